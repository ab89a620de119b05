"""TLB flushes: which CPUs a flush asks, which of them it interrupts, and who leaves an address space's mask by it.

arch/x86/mm/tlb.c (flush_tlb_mm_range, flush_tlb_func, arch_tlbbatch_flush), mm/rmap.c (should_defer_flush,
set_tlb_ubc_flush_pending, try_to_unmap_flush), 6.1.192, 6.12.117 and 7.3.4.
"""

from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import count_trailing_zeros, inlined, kernel, never_inline, outlined
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
    newest: npt.NDArray[np.uint64]  # [mms]: generation, a flush each
    flushed: npt.NDArray[np.uint64]  # [cpus]: generation up to which the loaded mm is flushed there
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
def flush_loaded(tlb: Tlb, cpu: U, asker: U, mm: U, n_pages: U) -> None:
    """A CPU flushes the mm that it has loaded: page by page if that is all it is behind, or else everything.

    Where another flush has done it already nothing is left to do, but the flush is one.
    """
    newest = tlb.newest[tlb.loaded[cpu]]
    behind = newest - tlb.flushed[cpu]
    tlb.flushed[cpu] = newest
    if cpu != asker:
        tlb.counts[REMOTE] += 1
        return
    tlb.counts[LOCAL_BATCH if mm == NONE else LOCAL_MM] += 1
    if behind == ONE and n_pages:
        tlb.counts[LOCAL_PAGES] += np.int64(n_pages)
    elif behind:
        tlb.counts[LOCAL_FULL] += 1


@inlined
def flush_on(tlb: Tlb, cpu: U, asker: U, mm: U, n_pages: U) -> None:
    """What a CPU makes of a flush; `mm` NONE: one that names none (flush_tlb_func)."""
    loaded, lazy = tlb.loaded[cpu], in_mask(tlb.lazy, cpu)
    if mm != NONE and loaded != mm:
        if tlb.rules & LEAVES:
            tlb.counts[WRONG_CPU] += 1
            drop_cpu(tlb.masks[mm], cpu)
    elif loaded == NONE or (lazy and tlb.rules & WAKES):
        return
    elif lazy:  # it lets go of the mm in place of flushing
        drop_cpu(tlb.lazy, cpu)
        if not tlb.rules & LEAVES:
            drop_cpu(tlb.masks[loaded], cpu)
        tlb.loaded[cpu] = NONE
    else:
        flush_loaded(tlb, cpu, asker, mm, n_pages)


@inlined
def is_skipped(tlb: Tlb, cpu: U, mm: U, tables_freed: bool) -> bool:
    """Whether it is enough that a CPU flushes when it next switches address spaces (should_flush_tlb)."""
    if tables_freed:
        return False
    return in_mask(tlb.lazy, cpu) or bool(tlb.rules & SKIPS and mm != NONE and tlb.loaded[cpu] != mm)


@inlined
def broadcast(tlb: Tlb) -> None:
    """INVLPGB and TLBSYNC in place of interrupts."""
    tlb.counts[BROADCASTS] += 1
    for cpu in range(tlb.loaded.size):
        if tlb.loaded[cpu] != NONE:
            tlb.flushed[cpu] = tlb.newest[tlb.loaded[cpu]]


@inlined
def flush_many(tlb: Tlb, mask: Any, asker: U, mm: U, n_pages: U, tables_freed: bool) -> None:
    """One request to all CPUs of a mask, the asking one too (flush_tlb_multi)."""
    if tlb.rules & BROADCAST:
        broadcast(tlb)
        return
    tlb.counts[REQUESTS] += 1
    for word in range(mask.size):
        left = mask[word]
        while left:
            cpu = (np.uint64(word) << SIX) + count_trailing_zeros(left)
            left &= left - ONE
            if not is_skipped(tlb, cpu, mm, tables_freed):
                tlb.counts[IPIS] += cpu != asker
                flush_on(tlb, cpu, asker, mm, n_pages)


@outlined
def flush_mm(tlb: Tlb, mm: U, cpu: U, n_pages: U, tables_freed: bool) -> None:
    """An immediate flush of an mm: so many pages, or 0 for all of it (flush_tlb_mm_range)."""
    never_inline()
    tlb.newest[mm] += ONE
    if any_but(tlb.masks[mm], cpu):
        flush_many(tlb, tlb.masks[mm], cpu, mm, n_pages, tables_freed)
    elif tlb.loaded[cpu] == mm:
        flush_on(tlb, cpu, cpu, mm, n_pages)


@kernel
def flush_pages(tlb: Tlb, mm: U, cpu: U, n_pages: U, tables_freed: bool) -> None:
    """flush_mm() from outside."""
    flush_mm(tlb, mm, cpu, n_pages, tables_freed)


@inlined
def defer_flush(tlb: Tlb, mm: U, cpu: U, n_ptes: U) -> bool:
    """Leave the flush of PTEs to the end of the batch if another CPU may hold them; False if none may."""
    if not any_but(tlb.masks[mm], cpu):
        return False
    tlb.newest[mm] += n_ptes
    for word in range(tlb.pending.size):
        tlb.pending[word] |= tlb.masks[mm, word]
    return True


@outlined
def flush_deferred(tlb: Tlb, cpu: U) -> None:
    """All that was deferred, in one flush of everything (try_to_unmap_flush)."""
    never_inline()
    if any_but(tlb.pending, cpu):
        flush_many(tlb, tlb.pending, cpu, NONE, ZERO, False)
    elif in_mask(tlb.pending, cpu):
        flush_on(tlb, cpu, cpu, NONE, ZERO)
    tlb.pending[:] = ZERO
