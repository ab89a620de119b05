"""Single attempts of the slow path, and the tests that it makes between them.

mm/page_alloc.c (__alloc_pages_slowpath, should_reclaim_retry), mm/vmscan.c (zone_reclaimable_pages,
compaction_ready), 6.12.117.
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel
from memmodel.kernels.buddy import USED
from memmodel.kernels.compact_finished import CONTINUE, defer_reset, gap, suitable
from memmodel.kernels.folios import SLOT_BITS, new_folio
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.lru import add_lru
from memmodel.kernels.page_alloc import Request, get_page_from_freelist, mark_used
from memmodel.kernels.watermark import HIGH, MIN, watermark_ok
from memmodel.state.layout import NONE, Memory, PageFlag

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ON_LRU = np.uint64(PageFlag.LRU | PageFlag.UNEVICTABLE)
EVICTABLE = np.uint64(PageFlag.LRU)
NO_FOLIO = np.int64(-1)
ZERO = np.uint64(0)


@inlined
def become_folio(mem: Memory, index: U, cpu: U, request: Request) -> I:
    """A used block gets its handle, and its place on an LRU list if it has one."""
    if request.lru:
        add_lru(mem, index, cpu, request.order)
    return new_folio(mem, index)


@kernel
def attempt(mem: Memory, zonelist: Any, cpu: U, request: Request, flags: U) -> I:
    """One walk over the zones with these ALLOC_ flags: a folio's handle, or -1."""
    index = get_page_from_freelist(mem, zonelist, cpu, request, flags)
    if index == NONE:
        return NO_FOLIO
    mark_used(mem, index, request.order)
    return become_folio(mem, index, cpu, request)


@kernel
def adopt(mem: Memory, index: U, cpu: U, request: Request) -> I:
    """The handle of a block that compaction captured; -1 if it is no used block of the request's order, or has one.

    Captured pages never went through rmqueue(), and pgalloc does not count them.
    """
    page = mem.pages[index]
    slot = np.uint64(page.next)
    has_handle = slot < mem.slots[1] and mem.folios[slot].index == index
    if page.state != USED | request.order or has_handle:
        return NO_FOLIO
    page.refcount = ONE
    return become_folio(mem, index, cpu, request)


@kernel
def note_compacted(mem: Memory, handle: I, order: U) -> None:
    """A request got its folio of a compaction: the next one need not wait."""
    index = np.uint64(mem.folios[np.uint64(handle) & SLOT_BITS].index)
    zone = np.uint64(mem.pages[index].zone)
    mem.zones[zone].blockskip_flush = ZERO
    defer_reset(mem, zone, order, True)


@kernel
def watermark_test(mem: Memory, zone: U, order: U, mark: I, highest: U, flags: U, free: I) -> bool:
    """__zone_watermark_ok() with `free` pages in place of those that the zone counts."""
    record = mem.zones[zone]
    counted = np.int64(record.free_pages)
    record.free_pages = free
    passed = watermark_ok(mem, zone, order, mark, highest, flags)
    record.free_pages = counted
    return passed


@kernel
def reclaimable_pages(mem: Memory, zone: U) -> I:
    """Pages on the zone's evictable LRU lists (zone_reclaimable_pages, where anonymous memory can be swapped)."""
    pages = np.int64(0)
    for index in range(np.uint64(mem.zones[zone].start), np.uint64(mem.zones[zone].end)):
        page = mem.pages[index]
        state = np.uint64(page.state)
        if np.uint64(page.pg_flags) & ON_LRU == EVICTABLE and state & ~ORDER_BITS == USED:
            pages += np.int64(ONE << (state & ORDER_BITS))
    return pages


@inlined
def ready_to_compact(mem: Memory, zone: U, order: U, highest: U) -> bool:
    """Whether reclaim leaves a zone alone, because it has a block, or compaction can do without reclaim."""
    record = mem.zones[zone]
    boost = np.int64(record.watermark_boost)
    lowest, high = np.int64(record.watermark[MIN]) + boost, np.int64(record.watermark[HIGH]) + boost
    if watermark_ok(mem, zone, order, lowest, highest, ZERO):
        return True
    if suitable(mem, zone, order, highest, lowest) != CONTINUE:
        return False
    return watermark_ok(mem, zone, ZERO, high + gap(mem, order), highest, ZERO)


@kernel
def compaction_ready(mem: Memory, zone: U, order: U, highest: U) -> bool:
    """ready_to_compact() where Python calls it."""
    return ready_to_compact(mem, zone, order, highest)
