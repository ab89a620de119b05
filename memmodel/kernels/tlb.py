"""TLB flushes: which CPUs a flush asks, which of them it interrupts, and who leaves an address space's mask by it.

arch/x86/mm/tlb.c (flush_tlb_mm_range, flush_tlb_func, arch_tlbbatch_flush), mm/rmap.c (should_defer_flush,
set_tlb_ubc_flush_pending, try_to_unmap_flush), 6.1.192, 6.12.117 and 7.3.4.
"""

from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import count_trailing_zeros, inlined, kernel
from memmodel.kernels.freelist import ONE
from memmodel.state.layout import NONE

U = np.uint64
ZERO, SIX, WORD_BITS = np.uint64(0), np.uint64(6), np.uint64(63)


class TlbRule(IntFlag):
    """What kernels and CPUs do differently."""

    SKIPS_OTHER_MM = 1  # a flush that names an mm leaves out CPUs that have loaded another
    WRONG_CPU_LEAVES = 2  # a CPU leaves the mask when a flush finds another mm there, not when it loads one
    BROADCAST = 4  # INVLPGB: one instruction in place of the interrupts
    WAKES = 8  # threads of idle CPUs run again before the next flush


class TlbCount(IntEnum):
    """What is counted, by the tracepoint tlb_flush's reason where it has one."""

    LOCAL_MM = 0  # local mm shootdown (3): an immediate flush on the CPU that unmaps
    LOCAL_BATCH = 1  # local shootdown (2): its part of a deferred one
    REQUESTS = 2  # remote ipi send (4): flushes that ask other CPUs, interrupted or not
    IPIS = 3  # CPUs interrupted
    REMOTE = 4  # remote shootdown (1): flushes that they did
    WRONG_CPU = 5  # remote wrong CPU (5)
    LOCAL_FULL = 6  # flushes of everything on the CPU that unmaps
    LOCAL_PAGES = 7  # pages invalidated one by one there
    BROADCASTS = 8


class Tlb(NamedTuple):
    """Address spaces and CPUs, as kernels take them."""

    masks: npt.NDArray[np.uint64]  # mm_cpumask, [mms, words]
    lazy: npt.NDArray[np.uint64]  # [words]: CPUs that idle with an mm loaded
    pending: npt.NDArray[np.uint64]  # [words]: CPUs that deferred flushes wait for
    loaded: npt.NDArray[np.uint64]  # [cpus]: the mm that is loaded; NONE is init_mm
    counts: npt.NDArray[np.int64]  # TlbCount
    rules: np.uint64  # TlbRule


SKIPS, LEAVES = np.uint64(TlbRule.SKIPS_OTHER_MM), np.uint64(TlbRule.WRONG_CPU_LEAVES)
BROADCAST, WAKES = np.uint64(TlbRule.BROADCAST), np.uint64(TlbRule.WAKES)
LOCAL_MM, LOCAL_BATCH = np.uint64(TlbCount.LOCAL_MM), np.uint64(TlbCount.LOCAL_BATCH)
REQUESTS, IPIS = np.uint64(TlbCount.REQUESTS), np.uint64(TlbCount.IPIS)
REMOTE, WRONG_CPU = np.uint64(TlbCount.REMOTE), np.uint64(TlbCount.WRONG_CPU)
LOCAL_FULL, LOCAL_PAGES = np.uint64(TlbCount.LOCAL_FULL), np.uint64(TlbCount.LOCAL_PAGES)
BROADCASTS = np.uint64(TlbCount.BROADCASTS)


@inlined
def in_mask(mask: Any, cpu: U) -> bool:
    """Whether a CPU is in a mask."""
    return bool(mask[cpu >> SIX] >> (cpu & WORD_BITS) & ONE)


@inlined
def any_but(mask: Any, cpu: U) -> bool:
    """Whether a mask holds another CPU than this one (cpumask_any_but)."""
    for word in range(mask.size):
        others = mask[word]
        if np.uint64(word) == cpu >> SIX:
            others &= ~(ONE << (cpu & WORD_BITS))
        if others:
            return True
    return False


@inlined
def drop_cpu(mask: Any, cpu: U) -> None:
    """Take a CPU out of a mask."""
    mask[cpu >> SIX] &= ~(ONE << (cpu & WORD_BITS))


@inlined
def interrupt(tlb: Tlb, cpu: U, mm: U, tables_freed: bool) -> None:
    """What one CPU makes of a flush that it is asked for; `mm` NONE: one of everything (flush_tlb_func)."""
    lazy, loaded = in_mask(tlb.lazy, cpu), tlb.loaded[cpu]
    if not tables_freed:
        if lazy or (mm != NONE and loaded != mm and tlb.rules & SKIPS):
            return
    tlb.counts[IPIS] += 1
    if lazy and not tlb.rules & WAKES:  # it lets go of the mm in place of flushing
        drop_cpu(tlb.lazy, cpu)
        if not tlb.rules & LEAVES:
            drop_cpu(tlb.masks[loaded], cpu)
        tlb.loaded[cpu] = NONE
    elif lazy:
        return
    elif mm != NONE and loaded != mm:
        if tlb.rules & LEAVES:
            tlb.counts[WRONG_CPU] += 1
            drop_cpu(tlb.masks[mm], cpu)
    elif loaded != NONE:
        tlb.counts[REMOTE] += 1


@inlined
def ask_others(tlb: Tlb, mask: Any, cpu: U, mm: U, tables_freed: bool) -> None:
    """One request to all other CPUs of a mask."""
    tlb.counts[REQUESTS] += 1
    for word in range(mask.size):
        left = mask[word]
        while left:
            other = (np.uint64(word) << SIX) + count_trailing_zeros(left)
            left &= left - ONE
            if other != cpu:
                interrupt(tlb, other, mm, tables_freed)


@inlined
def flush_mm(tlb: Tlb, mm: U, cpu: U, n_pages: U, tables_freed: bool) -> None:
    """An immediate flush of an mm: so many pages, or 0 for all of it (flush_tlb_mm_range)."""
    if any_but(tlb.masks[mm], cpu):
        if tlb.rules & BROADCAST:
            tlb.counts[BROADCASTS] += 1
            return
        ask_others(tlb, tlb.masks[mm], cpu, mm, tables_freed)
    if tlb.loaded[cpu] == mm:
        tlb.counts[LOCAL_MM] += 1
        if n_pages:
            tlb.counts[LOCAL_PAGES] += np.int64(n_pages)
        else:
            tlb.counts[LOCAL_FULL] += 1


@kernel
def flush_pages(tlb: Tlb, mm: U, cpu: U, n_pages: U, tables_freed: bool) -> None:
    """flush_mm() from outside."""
    flush_mm(tlb, mm, cpu, n_pages, tables_freed)


@inlined
def defer_flush(tlb: Tlb, mm: U, cpu: U) -> bool:
    """Leave the flush of a PTE to the end of the batch if another CPU may hold it; False if none may."""
    if not any_but(tlb.masks[mm], cpu):
        return False
    for word in range(tlb.pending.size):
        tlb.pending[word] |= tlb.masks[mm, word]
    return True


@inlined
def flush_deferred(tlb: Tlb, cpu: U) -> None:
    """All that was deferred, in one flush of everything (try_to_unmap_flush)."""
    here, others = in_mask(tlb.pending, cpu), any_but(tlb.pending, cpu)
    if others and tlb.rules & BROADCAST:
        tlb.counts[BROADCASTS] += 1
    else:
        if others:
            ask_others(tlb, tlb.pending, cpu, NONE, False)
        if here and tlb.loaded[cpu] != NONE:
            tlb.counts[LOCAL_BATCH] += 1
            tlb.counts[LOCAL_FULL] += 1
    tlb.pending[:] = ZERO
