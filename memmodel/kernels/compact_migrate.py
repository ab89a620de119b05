"""Compaction's migration scanner: pageblock by pageblock from the zone's start up, for pages to move away.

mm/compaction.c (isolate_migratepages, isolate_migratepages_block), 6.12.117.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.compact_control import (
    ALL_ORDERS,
    ANY_SOURCES,
    CLUSTER_MAX,
    COUNTS_PAGES,
    LARGE_FOLIOS,
    LRU,
    MOVABLE,
    Compact,
    Said,
    advance_cached_migrate,
    fills_block,
    first_of_block,
    is_captured,
    like_movable,
    pageblock_pages,
    say,
    set_skip,
    skips,
    whole_block,
    worth_looking,
    zone_start,
)
from memmodel.kernels.compact_search import find_source_block
from memmodel.kernels.freelist import CMA, FREE, ONE, ORDER_BITS, block_type
from memmodel.kernels.lru import isolate_folio, put_back_folio
from memmodel.kernels.migration_folio import DIRTY, HUGETLB, INACCESSIBLE, NO_MIGRATE, WRITEBACK, bits_of
from memmodel.kernels.migration_job import Mode
from memmodel.kernels.pageblock import KIND_BITS
from memmodel.kernels.watermark import ALLOC_CMA
from memmodel.state.layout import FolioBit, Memory

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
ASYNC, SYNC = Mode.ASYNC.value, Mode.SYNC.value
FILE = np.uint64(FolioBit.FILE)
PASSED, STAYS, MOVES = range(3)
ISOLATE_MIGRATEPAGES = Said.ISOLATE_MIGRATEPAGES.value


@inlined
def is_source_block(mem: Memory, c: Compact, row: I) -> bool:
    """Whether the pageblock may be emptied (suitable_migration_source).

    Not one that a compound page fills, nor for a request that cannot wait one of another type; since 7.2 none of a CMA
    area for a request that may not use it.
    """
    control = c.control[0]
    if fills_block(mem, row):
        return False
    if not control.direct:
        return True
    migratetype = block_type(mem, np.uint64(row))
    if mem.params.features & ANY_SOURCES and migratetype == CMA and not np.uint64(control.alloc_flags) & ALLOC_CMA:
        return False
    if control.mode != ASYNC:
        return True
    if like_movable(mem, c):
        return bool(migratetype == MOVABLE) or bool(migratetype == CMA)
    return bool(migratetype == control.migratetype)


@inlined
def too_large(mem: Memory, c: Compact, index: U, order: U) -> bool:
    """Whether a compound page stays where it is (skip_isolation_on_order); until 6.9 every one does, hugetlb's ever."""
    control = c.control[0]
    if not mem.params.features & LARGE_FOLIOS or order >= mem.params.pageblock_order or bits_of(mem, index) & HUGETLB:
        return True
    return bool(control.order != ALL_ORDERS) and bool(np.int64(order) >= control.order)


@inlined
def may_move(mem: Memory, c: Compact, index: U) -> bool:
    """Whether a folio on an LRU list is worth taking: pinned, busy or unmovable ones are not."""
    control = c.control[0]
    bits = bits_of(mem, index)
    if bits & HUGETLB:
        return False
    file = bool(bits & FILE)
    if not file and mem.pages[index].refcount > ONE:
        return False
    if file and control.no_fs:
        return False
    if control.mode != SYNC and (bits & WRITEBACK or (bits & DIRTY and bits & NO_MIGRATE)):
        return False
    return not bits & INACCESSIBLE


@inlined
def put_sources_back(mem: Memory, c: Compact) -> None:
    """Sources that will not be moved return by way of the LRU batch, the last one first (putback_movable_pages)."""
    control = c.control[0]
    while control.n_sources > 0:
        control.n_sources -= 1
        put_back_folio(mem, np.uint64(c.sources[control.n_sources]), np.uint64(control.cpu))
    control.n_pages = 0


@inlined
def end_of_chunk(c: Compact, row: I) -> I:
    """Where the chunk of the wanted order ends that holds a row (block_end_pfn)."""
    size = np.int64(ONE << np.uint64(c.control[0].order))
    return (row & -size) + size


@inlined
def what_is_here(mem: Memory, c: Compact, index: U) -> tuple[int, I]:
    """PASSED, STAYS or MOVES, and the pages that the scanner need not look at one by one."""
    page = mem.pages[index]
    state = np.uint64(page.state)
    order = state & ORDER_BITS
    n_pages = np.int64(ONE << order)
    if state & KIND_BITS == FREE:
        return PASSED, n_pages
    used = bool(state & KIND_BITS == USED)
    if used and order > ZERO and not is_captured(mem, index) and too_large(mem, c, index, order):
        return STAYS, n_pages
    if not used or not np.uint64(page.pg_flags) & LRU or not may_move(mem, c, index):
        return STAYS, np.int64(1)
    return MOVES, n_pages


@inlined
def begins_block(mem: Memory, c: Compact, row: I) -> bool:
    """Whether a scan from here looks at the hint; before 6.6 not in a pageblock amid which the zone begins."""
    partly = bool(mem.params.features & COUNTS_PAGES) and bool(row == zone_start(mem, c))
    return bool(row == first_of_block(mem, row)) or partly


@inlined
def takes_mark(mem: Memory, c: Compact, first: I) -> bool:
    """The hint of a pageblock is set as soon as a folio of it is taken; False if somebody else has set it meanwhile.

    Before 6.6 only if that is its first page.
    """
    control = c.control[0]
    if control.ignore_skip:
        return True
    if skips(mem, first) and not control.finish_block:
        return False
    set_skip(mem, first)
    return True


@inlined
def take_source(mem: Memory, c: Compact, index: U, n_pages: I) -> None:
    """A folio leaves its LRU list."""
    control = c.control[0]
    isolate_folio(mem, index)
    c.sources[control.n_sources] = index
    control.n_sources += 1
    control.n_pages += n_pages


@inlined
def spoil_chunk(mem: Memory, c: Compact, row: I, chunk_end: I) -> tuple[I, I]:
    """A page before `row` stays: what was taken returns, and the chunk is left; (row, end of the next chunk)."""
    put_sources_back(mem, c)
    if row > chunk_end:
        return row, chunk_end
    return chunk_end, chunk_end + np.int64(ONE << np.uint64(c.control[0].order))


@inlined
def finish_scan(mem: Memory, c: Compact, first: I, row: I, end: I, scanned: I, unmarked: bool) -> None:
    """Count, and leave a pageblock out next time of which nothing came, or that was finished."""
    control = c.control[0]
    taken = np.int64(control.n_pages)
    if row == end and (taken == 0 or control.finish_block):
        if unmarked:
            set_skip(mem, first)
        advance_cached_migrate(mem, c, end)
    say(c, ISOLATE_MIGRATEPAGES, first, row, scanned, taken)
    control.migrate_scanned += scanned
    control.n_isolated += taken
    control.migrate = row


@outlined
def isolate_block(mem: Memory, c: Compact, first: I, end: I) -> None:
    """Take the movable folios of rows of a pageblock, until there are enough for one migration.

    isolate_migratepages_block(). Where a request cannot wait, the first page that stays spoils its chunk of the wanted
    order: what was taken of it returns.
    """
    never_inline()
    control = c.control[0]
    fails = bool(control.direct) and control.mode == ASYNC
    counts = bool(mem.params.features & COUNTS_PAGES)
    unmarked = begins_block(mem, c, first)
    if unmarked and not worth_looking(mem, c, first):
        finish_scan(mem, c, first, end, end, np.int64(1), False)
        return
    marks = True
    row, scanned = first, np.int64(0)
    chunk_end = end_of_chunk(c, first) if fails else end
    while row < end:
        if fails and row >= chunk_end:
            if control.n_pages:
                break
            chunk_end = end_of_chunk(c, row)
        what, n_pages = what_is_here(mem, c, np.uint64(row))
        scanned += n_pages if counts or what == MOVES else np.int64(1)
        if what == MOVES and marks:
            marks = False
            if unmarked and (counts or row == first) and not takes_mark(mem, c, first):
                row, scanned = end, scanned - (n_pages - 1)
                unmarked = False
                break
            unmarked = False
        if what == MOVES:
            take_source(mem, c, np.uint64(row), n_pages)
        row += n_pages
        if what == MOVES and control.n_pages >= CLUSTER_MAX and not control.finish_block:
            break
        if what == STAYS and fails:
            row, chunk_end = spoil_chunk(mem, c, row, chunk_end)
    finish_scan(mem, c, first, min(row, end), end, scanned, unmarked)


@inlined
def isolate_migratepages(mem: Memory, c: Compact) -> None:
    """Sources of the next pageblock that may have any, unless the task gives the CPU away before it scans it."""
    control = c.control[0]
    row = find_source_block(mem, c)
    found = bool(row != control.migrate) and bool(control.fast_search_fail == 0)
    size = pageblock_pages(mem)
    first = max(first_of_block(mem, row), zone_start(mem, c))
    end = first_of_block(mem, row) + size
    while end <= control.free:
        again = not begins_block(mem, c, row)
        looked_at = whole_block(mem, c, first, end) and (again or found or worth_looking(mem, c, first))
        if looked_at:
            if is_source_block(mem, c, first):
                if control.gives_way:
                    control.gives_way = ZERO
                    control.paused, control.paused_at = ONE, row
                else:
                    isolate_block(mem, c, row, end)
                return
            advance_cached_migrate(mem, c, end)
        found = False
        row = first = end
        control.migrate = end
        end += size
