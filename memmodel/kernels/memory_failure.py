"""memory_failure(): from a bad page to what became of it.

mm/memory-failure.c (memory_failure, get_any_page, try_to_split_thp_page), 6.12.117; what 6.1 and 7.3 do otherwise is
under a `Feature` each.
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel, never_inline, outlined
from memmodel.kernels.failure_actions import HELD, act, finish, hold
from memmodel.kernels.failure_unmap import collect, unmap
from memmodel.kernels.folio_state import (
    KERNEL,
    LRU,
    NOTHING,
    OWN,
    SWAPCACHE,
    bits_of,
    drain_lru_all,
    mapping_of,
    own_slot,
)
from memmodel.kernels.folios import is_hugetlb, new_folio_as, slot_of
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.huge_failure import fail_huge
from memmodel.kernels.page_flags import filtered
from memmodel.kernels.pageblock import KIND_BITS, containing_head
from memmodel.kernels.pcp import drain_all_pages
from memmodel.kernels.poisoning import LOST, take_page_off_buddy
from memmodel.kernels.used import cut_off
from memmodel.state.failure_layout import Errno, MfFlag, MfNote, MfResult, MfType, Refused
from memmodel.state.layout import MIN_ORDER_SHIFT, NONE, Feature, FolioBit, Kind, Memory, PageFlag, Vmstat, ZoneType

U = np.uint64
ZERO = np.uint64(0)
USED, RESERVED = np.uint64(Kind.USED << 4), np.uint64(Kind.RESERVED << 4)
HOLE, UNKNOWN, DEVICE = np.uint64(Kind.HOLE << 4), np.uint64(Kind.UNKNOWN << 4), np.uint64(ZoneType.DEVICE)
HWPOISON, SLAB = np.uint64(PageFlag.HWPOISON), np.uint64(PageFlag.SLAB)
COUNT_INCREASED, SW_SIMULATED = np.uint64(MfFlag.COUNT_INCREASED), np.uint64(MfFlag.SW_SIMULATED)
WRITEBACK, WAITED_FOR = np.uint64(FolioBit.WRITEBACK), np.uint64(FolioBit.WRITEBACK | FolioBit.LOCKED)
PTE_MAPPED = np.uint64(FolioBit.PTE_MAPPED | FolioBit.PARTIALLY_MAPPED)
GET_TYPE, KERNEL_FIRST = np.uint64(Feature.MF_GET_TYPE), np.uint64(Feature.MF_KERNEL_FIRST)
ALWAYS_GET, UNSPLIT_KILLS = np.uint64(Feature.MF_ALWAYS_GET), np.uint64(Feature.MF_UNSPLIT_KILLS)
UNMAP_FAILED, FILTER_FIRST = np.uint64(Feature.MF_UNMAP_FAILED), np.uint64(Feature.MF_FILTER_FIRST)
HAS_MIN_ORDER = np.uint64(Feature.MF_MIN_ORDER)
IGNORED, FAILED, RECOVERED = (np.uint64(r) for r in (MfResult.IGNORED, MfResult.FAILED, MfResult.RECOVERED))
TYPE_KERNEL, TYPE_GET = np.uint64(MfType.KERNEL), np.uint64(MfType.GET_HWPOISON)
TYPE_UNKNOWN, TYPE_BUDDY = np.uint64(MfType.UNKNOWN), np.uint64(MfType.BUDDY)
TYPE_UNSPLIT, TYPE_UNMAP = np.uint64(MfType.UNSPLIT_THP), np.uint64(MfType.UNMAP_FAILED)
TYPE_TRUNCATED, NO_TYPE = np.uint64(MfType.TRUNCATED_LRU), np.uint64(MfType.NO_TYPE)
TYPE_ALREADY = np.uint64(MfType.ALREADY_POISONED)
UNHANDLABLE, SPLIT, FORCE_KILL = (np.uint64(n) for n in (MfNote.UNHANDLABLE, MfNote.SPLIT, MfNote.FORCE_KILL))
EHWPOISON, EOPNOTSUPP = np.int64(Errno.EHWPOISON), np.int64(Errno.EOPNOTSUPP)
MIN_ORDER, ORDER = np.uint64(MIN_ORDER_SHIFT), np.uint64(15)
SPLIT_PAGE, SPLIT_FAILED = np.uint64(Vmstat.THP_SPLIT_PAGE), np.uint64(Vmstat.THP_SPLIT_PAGE_FAILED)


@inlined
def take_page(mem: Memory, index: U, cpu: U, out: Any) -> bool:
    """Take a reference of a page in use (get_hwpoison_page); True if it can be handled further.

    The zone's per-CPU lists are emptied first, so that a page on one is in the buddy, and leaves it here.
    """
    drain_all_pages(mem, np.uint64(mem.pages[index].zone), cpu)
    if take_page_off_buddy(mem, index, cpu):
        finish(mem, index, out, TYPE_BUDDY, RECOVERED)
        return False
    page = mem.pages[containing_head(mem, index)]
    own = bool(np.uint64(page.state) & KIND_BITS == RESERVED) or bool(np.uint64(page.pg_flags) & OWN)
    first = bool(mem.params.features & KERNEL_FIRST)
    if not np.uint64(page.pg_flags) & (LRU | SLAB) and not (own and first):
        drain_lru_all(mem)
    if np.uint64(page.state) & KIND_BITS == USED and np.uint64(page.pg_flags) & LRU and not own:
        return True
    out.notes = np.uint64(out.notes) | UNHANDLABLE
    if own and first:
        finish(mem, index, out, TYPE_KERNEL, IGNORED)
    else:
        finish(mem, index, out, TYPE_GET if mem.params.features & GET_TYPE else TYPE_UNKNOWN, IGNORED)
    return False


@inlined
def split_folio(mem: Memory, slot: U, head: U, low: U) -> None:
    """Cut a live folio into live folios of order `low`, each with what it had; the table must have room."""
    end = head + (ONE << (np.uint64(mem.pages[head].state) & ORDER_BITS))
    bits, mms = np.uint64(mem.folios[slot].bits) & ~PTE_MAPPED, np.uint64(mem.folios[slot].mms)
    mem.folios[slot].bits = bits
    mem.pages[head].state = USED | low
    part = head + (ONE << low)
    while part < end:
        cut_off(mem, head, part, low)
        new_folio_as(mem, part, mms, bits)
        part += ONE << low


@inlined
def split_order(mem: Memory, head: U, bits: U) -> U:
    """The order that a folio can be split down to, or its own: nobody else may hold it, nor may it be written back."""
    order, lowest = np.uint64(mem.pages[head].state) & ORDER_BITS, bits >> MIN_ORDER & ORDER
    if mem.pages[head].refcount > ONE or bits & WRITEBACK or mapping_of(bits) == KERNEL:
        return order
    if lowest and not mem.params.features & HAS_MIN_ORDER:
        return order
    return min(lowest, order)


@outlined
def split_large(mem: Memory, slot: U, head: U) -> bool:
    """Split a folio to single pages (try_to_split_thp_page); False if it could not be done, or not all the way."""
    never_inline()
    bits = bits_of(mem, head, slot)
    order = np.uint64(mem.pages[head].state) & ORDER_BITS
    low = split_order(mem, head, bits)
    mem.folios[slot].bits = bits & ~WAITED_FOR if low < order else bits
    if low < order:
        split_folio(mem, slot, head, low)
    if order == mem.params.pcp_thp_order:
        mem.vmstat[SPLIT_PAGE if low < order else SPLIT_FAILED] += 1
    return bool(low == ZERO)


@inlined
def leave_unsplit(mem: Memory, index: U, out: Any) -> None:
    """A THP that is still one: since 6.12 those who map it get a signal at once (kill_procs_now)."""
    head = containing_head(mem, index)
    if not mem.params.features & UNSPLIT_KILLS:
        finish(mem, index, out, TYPE_UNSPLIT, IGNORED)
        return
    collect(mem, head, slot_of(mem, head), out)
    out.notes = np.uint64(out.notes) | FORCE_KILL
    finish(mem, index, out, TYPE_UNSPLIT, FAILED)
    out.rc = EHWPOISON


@inlined
def let_go(mem: Memory, index: U, out: Any) -> None:
    """The filter keeps the error away: as if nothing had been."""
    page = mem.pages[index]
    page.pg_flags = np.uint64(page.pg_flags) & ~HWPOISON
    out.rc = EOPNOTSUPP
    out.type = NO_TYPE


@inlined
def fail_folio(mem: Memory, slot: U, index: U, flags: U, out: Any) -> None:
    """A single page in use: locks and writeback are waited for, mappings taken away, then the page's state decides."""
    bits = bits_of(mem, index, slot)
    saved, saved_flags = bits, np.uint64(mem.pages[index].pg_flags)
    mem.folios[slot].bits = bits & ~WAITED_FOR
    if saved_flags & LRU or saved & WRITEBACK:
        if not unmap(mem, index, slot, flags, out):
            failed = FAILED if mem.params.features & UNMAP_FAILED else IGNORED
            hold(mem, index, slot)
            finish(mem, index, out, TYPE_UNMAP, failed)
            return
        after = np.uint64(mem.folios[slot].bits)
        if saved_flags & LRU and not after & SWAPCACHE and mapping_of(after) == NOTHING:
            hold(mem, index, slot)
            finish(mem, index, out, TYPE_TRUNCATED, IGNORED)
            return
    act(mem, slot, index, saved, saved_flags, out)


@outlined
def fail_held(mem: Memory, index: U, flags: U, out: Any) -> None:
    """From where memory_failure() holds a reference of the page."""
    never_inline()
    head = containing_head(mem, index)
    filter_first = bool(mem.params.features & FILTER_FIRST)
    if filter_first and filtered(mem, index):
        let_go(mem, index, out)
        return
    slot = NONE
    if np.uint64(mem.pages[head].state) & KIND_BITS == USED:
        slot = own_slot(mem, head)
        order = np.uint64(mem.pages[head].state) & ORDER_BITS
        if order:
            out.whole = head
            out.whole_order = order
            split = split_large(mem, slot, head)
            if np.uint64(mem.pages[head].state) & ORDER_BITS < order:
                out.notes = np.uint64(out.notes) | SPLIT
            if not split:
                leave_unsplit(mem, index, out)
                return
            slot = slot_of(mem, index)
    drain_lru_all(mem)
    if not filter_first and filtered(mem, index):
        let_go(mem, index, out)
    elif slot == NONE:  # a reserved page, of which the caller holds a reference
        mem.pages[index].refcount = min(np.uint64(mem.pages[index].refcount) + ONE, HELD)
        finish(mem, index, out, TYPE_KERNEL, IGNORED)
    else:
        fail_folio(mem, slot, index, flags, out)


@inlined
def refuse(mem: Memory, index: U, flags: U) -> np.int64:
    """What keeps the model from looking at a page, or the places in the folio table that splitting it may take."""
    page = mem.pages[containing_head(mem, index)]
    kind, order = np.uint64(page.state) & KIND_BITS, np.uint64(page.state) & ORDER_BITS
    if kind == HOLE:
        return np.int64(Refused.HOLE.value)
    if kind == UNKNOWN:
        return np.int64(Refused.UNKNOWN.value)
    if mem.zones[page.zone].zone_type == DEVICE:
        return np.int64(Refused.DEVICE.value)
    if flags & COUNT_INCREASED and kind != USED and kind != RESERVED and kind != LOST:
        return np.int64(Refused.NOT_HELD.value)
    if kind == USED and np.uint64(mem.folios.size) - mem.slots[0] < ONE << order:
        return np.int64(ONE << order)
    return np.int64(0)


@inlined
def fail_any(mem: Memory, index: U, flags: U, cpu: U, out: Any) -> None:
    """memory_failure() from where the page is known to be there."""
    head = containing_head(mem, index)
    if is_hugetlb(mem, head):
        fail_huge(mem, head, index, flags, cpu, out)
        return
    page = mem.pages[index]
    if np.uint64(page.pg_flags) & HWPOISON:
        out.type = TYPE_ALREADY
        out.result = FAILED
        out.rc = EHWPOISON
        return
    page.pg_flags = np.uint64(page.pg_flags) | HWPOISON
    if (flags & COUNT_INCREASED and not mem.params.features & ALWAYS_GET) or take_page(mem, index, cpu, out):
        fail_held(mem, index, flags, out)


@kernel
def fail_page(mem: Memory, index: U, flags: U, cpu: U, event: Any) -> np.int64:
    """One memory_failure(), all but its signals; 0, or why nothing was done (`Refused`)."""
    refused = refuse(mem, index, flags)
    if not mem.failure[0].recovery:
        return np.int64(Refused.PANIC.value)
    if refused:
        return refused
    out = event[0]
    if not flags & SW_SIMULATED:
        mem.failure[0].hw_memory_failure = 1
    fail_any(mem, index, flags, cpu, out)
    head = containing_head(mem, index)
    out.head = head
    out.slot = slot_of(mem, head)
    return np.int64(0)


@kernel
def refuse_page(mem: Memory, index: U, flags: U) -> np.int64:
    """refuse() for callers that are no kernels."""
    return refuse(mem, index, flags)
