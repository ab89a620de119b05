"""One run of compaction: its scanners, what it holds, what it says; and what a zone remembers between runs.

mm/compaction.c (struct compact_control), 6.12.117. Rows are signed here: scanners may stand below a zone.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.freelist import ONE
from memmodel.state.layout import BlockBit, Feature, Memory, MigrateType, PageFlag

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
ANY_SOURCES = np.uint64(Feature.PAGEBLOCK_ORDER_SOURCES)
LARGE_FOLIOS = np.uint64(Feature.LARGE_FOLIO_COMPACTION)
COUNTS_PAGES = np.uint64(Feature.COMPACTION_COUNTS_PAGES)
SKIP, OFFLINE = np.uint64(BlockBit.SKIP), np.uint64(BlockBit.OFFLINE)
LRU = np.uint64(PageFlag.LRU)
MOVABLE = np.uint64(MigrateType.MOVABLE)
CLUSTER_MAX = 32  # COMPACT_CLUSTER_MAX
COSTLY_ORDER = 3  # PAGE_ALLOC_COSTLY_ORDER
ALL_ORDERS = -1  # is_via_compact_memory()
NOT_SEEN, SPENT = -1, -2  # no fast search has found a start; it was used


class CompactResult(IntEnum):
    """enum compact_result."""

    NOT_SUITABLE_ZONE = 0
    SKIPPED = 1
    DEFERRED = 2
    NO_SUITABLE_PAGE = 3
    CONTINUE = 4
    COMPLETE = 5
    PARTIAL_SKIPPED = 6
    CONTENDED = 7
    SUCCESS = 8


class Said(IntEnum):
    """What a run says on its way: the mm_compaction_* tracepoints, and its operations on free lists."""

    ISOLATE_MIGRATEPAGES = 0  # first row, row behind the last, scanned, taken
    ISOLATE_FREEPAGES = 1
    FAST_ISOLATE_FREEPAGES = 2
    ISOLATED = 3  # row, order
    ROTATED_FIRST = 4  # row that is the first of its list now, order
    ROTATED_LAST = 5
    FINISHED = 6  # zone, order, CompactResult
    SUITABLE = 7
    BEGIN = 8  # rows of the two scanners
    END = 9  # and CompactResult
    MIGRATEPAGES = 10  # pages that moved, that did not
    DEFERRED = 11  # zone, order, least order that failed, considered
    DEFER = 12
    DEFER_RESET = 13


said_dtype = np.dtype([("what", "i8"), ("numbers", "i8", (4,))])
control_dtype = np.dtype(
    [
        ("migrate", "i8"),  # row of the migration scanner
        ("free", "i8"),  # row of the free scanner
        ("last_migrated", "i8"),
        ("row_of_pfn_0", "i8"),  # what a position of 0 is
        ("fast_start", "i8"),  # lowest row that fast searches found, NOT_SEEN or SPENT
        ("nr_free", "i8"),  # pages isolated as targets and not used yet
        ("nr_migrate", "i8"),  # pages of sources that have no target yet
        ("n_sources", "i8"),  # folios isolated for the next migration
        ("n_pages", "i8"),  # their pages
        ("migrate_scanned", "i8"),  # frames that the scanners looked at in this run
        ("free_scanned", "i8"),
        ("n_isolated", "i8"),  # compact_isolated: both sources and targets
        ("n_said", "i8"),
        ("order", "i8"),  # that is wanted, or ALL_ORDERS
        ("search_order", "i8"),
        ("fast_search_fail", "i8"),
        ("pmd_order", "i8"),
        ("low_score", "i8"),  # of the zone, at which a proactive run ends
        ("paused_at", "i8"),  # row at which the scan of a pageblock goes on
        ("place", "i8"),  # in the zonelist
        ("best", "i8"),  # CompactResult of the zones before
        ("zone", "u4"),
        ("slot", "u4"),  # of the private lists
        ("cpu", "u4"),
        ("alloc_flags", "u4"),
        ("migratetype", "u1"),
        ("highest", "u1"),  # highest zone type of the request
        ("mode", "u1"),  # Mode of migration
        ("direct", "u1"),  # for a request, by its own task
        ("whole_zone", "u1"),
        ("ignore_skip", "u1"),
        ("ignore_suitable", "u1"),  # targets may be of any pageblock
        ("no_fs", "u1"),  # without __GFP_FS
        ("proactive", "u1"),
        ("gives_way", "u1"),  # the task gives the CPU away before it scans a pageblock
        ("paused", "u1"),  # and has
        ("finish_block", "u1"),
        ("update_cached", "u1"),
    ],
    align=True,
)


class Compact(NamedTuple):
    """A run of compaction, as kernels take it."""

    control: npt.NDArray[Any]  # control_dtype, [1]; none: no compaction runs
    sources: npt.NDArray[np.uint64]  # first rows of the folios that are isolated, in the order in which they were met
    said: npt.NDArray[Any]  # said_dtype, or empty: nobody listens


@inlined
def say(c: Compact, what: int, a: I, b: I, third: I, fourth: I) -> None:
    """Note what a listener compares; beyond the room that there is it is counted alone."""
    control = c.control[0]
    if control.n_said < c.said.size:
        said = c.said[control.n_said]
        said.what = what
        said.numbers[0], said.numbers[1], said.numbers[2], said.numbers[3] = a, b, third, fourth
    control.n_said += 1


@inlined
def pageblock_pages(mem: Memory) -> I:
    """Pages of a pageblock."""
    return np.int64(ONE << mem.params.pageblock_order)


@inlined
def first_of_block(mem: Memory, row: I) -> I:
    """First row of the pageblock."""
    return row & -pageblock_pages(mem)


@inlined
def zone_start(mem: Memory, c: Compact) -> I:
    """First row of the zone."""
    return np.int64(mem.zones[c.control[0].zone].start)


@inlined
def zone_end(mem: Memory, c: Compact) -> I:
    """One past its last row."""
    return np.int64(mem.zones[c.control[0].zone].end)


@inlined
def whole_block(mem: Memory, c: Compact, first: I, end: I) -> bool:
    """Whether rows of one pageblock lie in the zone and have a memory map (pageblock_pfn_to_page)."""
    if first < zone_start(mem, c) or end > zone_end(mem, c):
        return False
    zone = c.control[0].zone
    inside = bool(mem.pages[np.uint64(first)].zone == zone) and bool(mem.pages[np.uint64(end - 1)].zone == zone)
    return inside and not np.uint64(mem.blocks[np.uint64(first) >> mem.params.pageblock_order].bits) & OFFLINE


@inlined
def skips(mem: Memory, row: I) -> bool:
    """The skip hint of the pageblock (get_pageblock_skip)."""
    return bool(np.uint64(mem.blocks[np.uint64(row) >> mem.params.pageblock_order].bits) & SKIP)


@inlined
def set_skip(mem: Memory, row: I) -> None:
    """Leave the pageblock out next time."""
    block = mem.blocks[np.uint64(row) >> mem.params.pageblock_order]
    block.bits = np.uint64(block.bits) | SKIP


@inlined
def is_captured(mem: Memory, index: U) -> bool:
    """Whether a block was captured: no compound page yet, for only the request that gets it makes it one."""
    return bool(mem.zones[mem.pages[index].zone].captured == index)


@inlined
def fills_block(mem: Memory, row: I) -> bool:
    """Whether the row is in a compound page of a pageblock or more (pageblock_skip_persistent)."""
    index, order = np.uint64(row), mem.params.pageblock_order
    while order <= mem.params.max_order:
        head = index & ~((ONE << order) - ONE)
        if mem.pages[head].state == USED | order and not is_captured(mem, head):
            return True
        order += ONE
    return False


@inlined
def worth_looking(mem: Memory, c: Compact, row: I) -> bool:
    """Whether hints let the pageblock be scanned (isolation_suitable)."""
    return bool(c.control[0].ignore_skip) or not skips(mem, row)


@inlined
def like_movable(mem: Memory, c: Compact) -> bool:
    """Whether a direct compaction looks for sources as one for a MOVABLE request does."""
    control = c.control[0]
    whole = bool(mem.params.features & ANY_SOURCES) and bool(control.order >= np.int64(mem.params.pageblock_order))
    return bool(control.migratetype == MOVABLE) or whole


@inlined
def scanners_met(mem: Memory, c: Compact) -> bool:
    """compact_scanners_met()."""
    control = c.control[0]
    return bool(first_of_block(mem, np.int64(control.free)) <= first_of_block(mem, np.int64(control.migrate)))


@inlined
def advance_cached_migrate(mem: Memory, c: Compact, row: I) -> None:
    """Later runs begin a pageblock behind what was scanned up to a row (update_cached_migrate)."""
    control = c.control[0]
    zone = mem.zones[control.zone]
    row = first_of_block(mem, row) + pageblock_pages(mem)
    for sync in range(2 if control.mode else 1):
        zone.cached_migrate[sync] = max(row, np.int64(zone.cached_migrate[sync]))
