"""Watermarks: whether a zone has enough free pages for a request, and the boost after a mixing fallback.

mm/page_alloc.c (__zone_watermark_ok, zone_watermark_fast, boost_watermark), 6.12.117.
"""

import numpy as np

from memmodel.jit import inlined
from memmodel.kernels.freelist import CMA, HIGHATOMIC, ONE, free_list
from memmodel.state.layout import Alloc, Feature, Memory, Wmark, ZoneFlag

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
MARK_BITS = np.uint64(3)
MIN, HIGH = np.uint64(Wmark.MIN), np.uint64(Wmark.HIGH)
ALLOC_CMA, ALLOC_OOM = np.uint64(Alloc.CMA), np.uint64(Alloc.OOM)
ALLOC_NON_BLOCK, ALLOC_MIN_RESERVE = np.uint64(Alloc.NON_BLOCK), np.uint64(Alloc.MIN_RESERVE)
RESERVES = np.uint64(Alloc.NON_BLOCK | Alloc.MIN_RESERVE | Alloc.HIGHATOMIC | Alloc.OOM)
RESERVED_LISTS = np.uint64(Alloc.HIGHATOMIC | Alloc.OOM)
FREE_HIGHATOMIC = np.uint64(Feature.FREE_HIGHATOMIC)
BELOW_HIGH = np.uint64(ZoneFlag.BELOW_HIGH)
MERGEABLE_TYPES = HIGHATOMIC  # types below it merge, and serve any request
BASIS_POINTS = np.int64(10000)


@inlined
def has_block(mem: Memory, zone: U, order: U, flags: U) -> bool:
    """Whether any list that the request may use has a block of its order or more, whatever the request's own type."""
    found = order
    while found <= mem.params.max_order:
        if mem.zones[zone].nr_free[found] == ZERO:
            found += ONE
            continue
        head = free_list(mem, zone, found, ZERO)
        for migratetype in range(MERGEABLE_TYPES):
            if mem.pages[head + migratetype].next != head + migratetype:
                return True
        if flags & ALLOC_CMA and mem.pages[head + CMA].next != head + CMA:
            return True
        if flags & RESERVED_LISTS and mem.pages[head + HIGHATOMIC].next != head + HIGHATOMIC:
            return True
        found += ONE
    return False


@inlined
def watermark_ok(mem: Memory, zone: U, order: U, mark: I, highest: U, flags: U) -> bool:
    """Whether enough pages are free above `mark` pages (__zone_watermark_ok)."""
    record = mem.zones[zone]
    free = max(np.int64(record.free_pages), np.int64(0)) - (np.int64(ONE << order) - np.int64(1))
    if not flags & RESERVES:
        free -= record.free_highatomic if mem.params.features & FREE_HIGHATOMIC else record.reserved_highatomic
    if not flags & ALLOC_CMA:
        free -= max(np.int64(record.free_cma), np.int64(0))
    if flags & ALLOC_MIN_RESERVE:
        mark -= mark // 2
        if flags & ALLOC_NON_BLOCK:
            mark -= mark // 4
    if flags & ALLOC_OOM:
        mark -= mark // 2
    if free <= mark + record.lowmem_reserve[highest]:
        return False
    return order == ZERO or has_block(mem, zone, order, flags)


@inlined
def watermark_fast(mem: Memory, zone: U, order: U, which: U, highest: U, flags: U) -> bool:
    """The test before an allocation (zone_watermark_fast); urgent order-0 requests may ignore a boost."""
    record = mem.zones[zone]
    mark = np.int64(record.watermark[which])
    boost = np.int64(record.watermark_boost)
    if watermark_ok(mem, zone, order, mark + boost, highest, flags):
        return True
    urgent = order == ZERO and flags & ALLOC_MIN_RESERVE and boost and which == MIN and flags & MARK_BITS == MIN
    return bool(urgent) and watermark_ok(mem, zone, order, mark, highest, flags)


@inlined
def leave_below_high(mem: Memory, zone: U, highest: U) -> None:
    """Look at the HIGH watermark again, after a drain that a free on a per-CPU list caused."""
    record = mem.zones[zone]
    if np.uint64(record["flags"]) & BELOW_HIGH:
        mark = np.int64(record.watermark[HIGH]) + np.int64(record.watermark_boost)
        if watermark_ok(mem, zone, ZERO, mark, highest, ZERO):
            record["flags"] = np.uint64(record["flags"]) & ~BELOW_HIGH


@inlined
def boost_watermark(mem: Memory, zone: U) -> bool:
    """Raise the watermarks for a while, so that kswapd makes room (boost_watermark); False if it is off."""
    record = mem.zones[zone]
    pageblock = np.int64(ONE << mem.params.pageblock_order)
    if mem.params.watermark_boost_factor == ZERO or pageblock * 4 > np.int64(record.managed):
        return False
    most = np.int64(record.watermark[HIGH]) * np.int64(mem.params.watermark_boost_factor) // BASIS_POINTS
    if most == 0:
        return False
    record.watermark_boost = min(np.int64(record.watermark_boost) + pageblock, max(pageblock, most))
    return True
