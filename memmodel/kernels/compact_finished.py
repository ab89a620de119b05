"""Whether a zone is worth compacting, whether that is done, and how often it is put off after a failure.

mm/compaction.c (compaction_suit_allocation_order, compaction_suitable, __compact_finished, compaction_deferred),
mm/vmstat.c (__fragmentation_index, extfrag_for_order), 6.12.117.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.compact_control import (
    ALL_ORDERS,
    COSTLY_ORDER,
    MOVABLE,
    Compact,
    CompactResult,
    Said,
    first_of_block,
    say,
    scanners_met,
    zone_end,
    zone_start,
)
from memmodel.kernels.fallback import claimable, fallback_type
from memmodel.kernels.freelist import CMA, ONE, free_list
from memmodel.kernels.migration_job import Mode
from memmodel.kernels.watermark import ALLOC_CMA, MARK_BITS, MIN, watermark_ok
from memmodel.state.layout import NONE, Feature, Kind, Memory, Wmark

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
LOW = np.uint64(Wmark.LOW)
USED = np.uint64(Kind.USED << 4)
ASYNC = Mode.ASYNC.value
GAP_CAPPED, SUITABLE_MARK = np.uint64(Feature.COMPACT_GAP_CAPPED), np.uint64(Feature.COMPACT_SUITABLE_MARK)
NOT_SUITABLE_ZONE, SKIPPED = CompactResult.NOT_SUITABLE_ZONE.value, CompactResult.SKIPPED.value
CONTINUE, SUCCESS = CompactResult.CONTINUE.value, CompactResult.SUCCESS.value
NO_SUITABLE_PAGE, COMPLETE = CompactResult.NO_SUITABLE_PAGE.value, CompactResult.COMPLETE.value
PARTIAL_SKIPPED = CompactResult.PARTIAL_SKIPPED.value
SUITABLE, FINISHED = Said.SUITABLE.value, Said.FINISHED.value
MAX_DEFER_SHIFT = 6  # COMPACT_MAX_DEFER_SHIFT
EXTFRAG_THRESHOLD = 500  # vm.extfrag_threshold


@inlined
def gap(mem: Memory, order: U) -> I:
    """Free pages that compaction needs as targets (compact_gap)."""
    pages = np.int64(ONE << (order + ONE))
    return min(pages, np.int64(32)) if mem.params.features & GAP_CAPPED else pages


@inlined
def fragmentation_index(mem: Memory, zone: U, order: U) -> I:
    """Whether a failure is for want of memory (towards 0) or for fragmentation (towards 1000); negative: none."""
    blocks, free, fits = np.int64(0), np.int64(0), False
    for found in range(mem.params.max_order + ONE):
        n_blocks = np.int64(mem.zones[zone].nr_free[found])
        blocks += n_blocks
        free += n_blocks << np.int64(found)
        fits = fits or bool(found >= order and n_blocks > 0)
    if blocks == 0:
        return np.int64(0)
    if fits:
        return np.int64(-1000)
    return np.int64(1000) - (np.int64(1000) + free * np.int64(1000) // np.int64(ONE << order)) // blocks


@inlined
def suitable(mem: Memory, zone: U, order: U, highest: U, mark: I) -> int:
    """CONTINUE where order-0 pages are left for targets, or why not (compaction_suitable).

    Costly orders are tried for fragmentation alone, not where memory is short.
    """
    marks = mem.zones[zone].watermark
    costly = bool(order > np.uint64(COSTLY_ORDER))
    if mem.params.features & SUITABLE_MARK:
        need = mark + (np.int64(marks[LOW]) - np.int64(marks[MIN]) if costly else np.int64(0))
    else:
        need = np.int64(marks[LOW if costly else MIN]) + np.int64(mem.zones[zone].watermark_boost)
    if not watermark_ok(mem, zone, ZERO, need + gap(mem, order), highest, ALLOC_CMA):
        return SKIPPED
    if costly:
        index = fragmentation_index(mem, zone, order)
        if index >= 0 and index <= EXTFRAG_THRESHOLD:
            return NOT_SUITABLE_ZONE
    return CONTINUE


@outlined
def suit_allocation_order(mem: Memory, c: Compact, zone: U, order: U, highest: U, flags: U) -> int:
    """SUCCESS: there is a block already; SKIPPED: it would be of no use; CONTINUE: compact."""
    never_inline()
    marks = mem.zones[zone].watermark
    mark = np.int64(marks[flags & MARK_BITS]) + np.int64(mem.zones[zone].watermark_boost)
    if watermark_ok(mem, zone, order, mark, highest, flags):
        return SUCCESS
    hurried = bool(c.control[0].direct) and c.control[0].mode == ASYNC and order > np.uint64(COSTLY_ORDER)
    if mem.params.features & SUITABLE_MARK and hurried and not flags & ALLOC_CMA:
        if not watermark_ok(mem, zone, ZERO, mark + gap(mem, order), highest, ZERO):
            return SKIPPED
    result = suitable(mem, zone, order, highest, mark)
    say(c, SUITABLE, np.int64(zone), np.int64(order), np.int64(result), np.int64(0))
    return max(result, SKIPPED)


@inlined
def score(mem: Memory, zone: U, order: U) -> I:
    """Share of the free memory in blocks too small for an order, in percent (fragmentation_score_zone)."""
    free, suitable = np.int64(0), np.int64(0)
    for found in range(mem.params.max_order + ONE):
        pages = np.int64(mem.zones[zone].nr_free[found]) << np.int64(found)
        free += pages
        if found >= order:
            suitable += pages
    return np.int64(0) if free == 0 else (free - suitable) * np.int64(100) // free


@inlined
def forget_positions(mem: Memory, c: Compact) -> None:
    """Both scanners begin anew next time (reset_cached_positions)."""
    zone = mem.zones[c.control[0].zone]
    zone.cached_migrate[0] = zone.cached_migrate[1] = zone_start(mem, c)
    zone.cached_free = first_of_block(mem, zone_end(mem, c) - 1)


@inlined
def has_wanted_block(mem: Memory, c: Compact) -> bool:
    """Whether a block of the wanted order can be had: of the type, or of one whose pageblock may be claimed for it."""
    control = c.control[0]
    zone, migratetype = np.uint64(control.zone), np.uint64(control.migratetype)
    order = np.uint64(control.order)
    while order <= mem.params.max_order:
        own = free_list(mem, zone, order, migratetype)
        if mem.pages[own].next != own:
            return True
        cma = free_list(mem, zone, order, CMA)
        if migratetype == MOVABLE and mem.pages[cma].next != cma:
            return True
        if claimable(mem, order, migratetype) and fallback_type(mem, zone, order, migratetype) != NONE:
            return True
        order += ONE
    return False


@outlined
def compact_finished(mem: Memory, c: Compact) -> int:
    """CONTINUE, or how the run ends (compact_finished)."""
    never_inline()
    control = c.control[0]
    if scanners_met(mem, c):
        forget_positions(mem, c)
        if control.direct:
            mem.zones[control.zone].blockskip_flush = ONE
        result = COMPLETE if control.whole_zone else PARTIAL_SKIPPED
    elif control.proactive:
        too_high = score(mem, np.uint64(control.zone), np.uint64(control.pmd_order)) > control.low_score
        result = CONTINUE if too_high else SUCCESS
    elif control.order == ALL_ORDERS or control.migrate != first_of_block(mem, np.int64(control.migrate)):
        result = CONTINUE
    else:
        result = SUCCESS if has_wanted_block(mem, c) else NO_SUITABLE_PAGE
    say(c, FINISHED, np.int64(control.zone), np.int64(control.order), np.int64(result), np.int64(0))
    return CONTINUE if result == NO_SUITABLE_PAGE else result


@inlined
def deferred(mem: Memory, zone: U, order: U) -> bool:
    """Whether compaction of the zone is put off this time (compaction_deferred)."""
    record = mem.zones[zone]
    limit = ONE << np.uint64(record.compact_defer_shift)
    if order < np.uint64(record.compact_order_failed):
        return False
    record.compact_considered += ONE
    if record.compact_considered >= limit:
        record.compact_considered = limit
        return False
    return True


@inlined
def defer(mem: Memory, zone: U, order: U) -> None:
    """The zone could not be compacted: leave it alone for twice as many requests (defer_compaction)."""
    record = mem.zones[zone]
    record.compact_considered = ZERO
    record.compact_defer_shift = min(np.uint64(record.compact_defer_shift) + ONE, np.uint64(MAX_DEFER_SHIFT))
    record.compact_order_failed = min(np.uint64(record.compact_order_failed), order)


@inlined
def defer_reset(mem: Memory, zone: U, order: U, allocated: bool) -> None:
    """Compaction for this order succeeded (compaction_defer_reset)."""
    record = mem.zones[zone]
    if allocated:
        record.compact_considered = ZERO
        record.compact_defer_shift = ZERO
    record.compact_order_failed = max(np.uint64(record.compact_order_failed), order + ONE)


@inlined
def restarting(mem: Memory, zone: U, order: I) -> bool:
    """Whether it was put off as often as can be (compaction_restarting)."""
    record = mem.zones[zone]
    if order < np.int64(record.compact_order_failed):
        return False
    limit = ONE << np.uint64(MAX_DEFER_SHIFT)
    return bool(record.compact_defer_shift == MAX_DEFER_SHIFT) and bool(record.compact_considered >= limit)
