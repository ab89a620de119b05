"""Compaction's migration scanner: from the zone's start up, and first by the free lists, for pages to move away.

mm/compaction.c (fast_find_migrateblock, isolate_migratepages, isolate_migratepages_block), 6.12.117.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.compact_control import (
    ALL_ORDERS,
    CLUSTER_MAX,
    COSTLY_ORDER,
    LRU,
    MOVABLE,
    NOT_SEEN,
    SPENT,
    Compact,
    Said,
    advance_cached_migrate,
    fills_block,
    first_of_block,
    is_captured,
    pageblock_pages,
    say,
    scan_limit,
    set_skip,
    skips,
    whole_block,
    worth_looking,
    zone_start,
)
from memmodel.kernels.compact_free import COUNTS_PAGES, LARGE_FOLIOS
from memmodel.kernels.freelist import CMA, FREE, ONE, ORDER_BITS, block_type, free_list
from memmodel.kernels.isolation import rotate_behind
from memmodel.kernels.lru import isolate_folio, put_back_folio
from memmodel.kernels.migration_folio import DIRTY, HUGETLB, INACCESSIBLE, NO_MIGRATE, WRITEBACK, bits_of
from memmodel.kernels.migration_job import Mode
from memmodel.kernels.pageblock import KIND_BITS
from memmodel.kernels.watermark import ALLOC_CMA
from memmodel.state.layout import Feature, FolioBit, Memory, PageFlag

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
ASYNC, SYNC = Mode.ASYNC.value, Mode.SYNC.value
FILE = np.uint64(FolioBit.FILE)
ANON = np.uint64(PageFlag.ANON)
ANY_SOURCES = np.uint64(Feature.PAGEBLOCK_ORDER_SOURCES)
PASSED, STAYS, MOVES = range(3)
ISOLATE_MIGRATEPAGES, ROTATED_LAST = Said.ISOLATE_MIGRATEPAGES.value, Said.ROTATED_LAST.value


@inlined
def like_movable(mem: Memory, c: Compact) -> bool:
    """Whether a direct compaction looks for sources as one for a MOVABLE request does."""
    control = c.control[0]
    whole = bool(mem.params.features & ANY_SOURCES) and bool(control.order >= np.int64(mem.params.pageblock_order))
    return bool(control.migratetype == MOVABLE) or whole


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
def search_source(mem: Memory, c: Compact, order: I, bound: I, limit: I, n_scanned: I) -> tuple[I, I]:
    """One free list from its head: (row or -1, entries so far); a block below `bound` in a pageblock without the hint.

    What was looked at goes behind the rest, where the search ends in this list.
    """
    control = c.control[0]
    head = free_list(mem, np.uint64(control.zone), np.uint64(order), MOVABLE)
    entry = np.uint64(mem.pages[head].next)
    while entry != head:
        n_scanned += 1
        row = np.int64(entry)
        found = row < bound and not skips(mem, row)
        if n_scanned > limit or found:
            if n_scanned > limit:
                found = False
            if rotate_behind(mem, entry):
                say(c, ROTATED_LAST, row, order, np.int64(0), np.int64(0))
            return (row if found else np.int64(-1)), n_scanned
        entry = np.uint64(mem.pages[entry].next)
    return np.int64(-1), n_scanned


@inlined
def searches_lists(mem: Memory, c: Compact) -> bool:
    """Whether the free lists are asked for the next pageblock, or scanning just goes on."""
    control = c.control[0]
    row = np.int64(control.migrate)
    if control.ignore_skip or control.finish_block or control.order <= COSTLY_ORDER:
        return False
    if row != zone_start(mem, c) and row != first_of_block(mem, row):
        return False
    return not control.direct or like_movable(mem, c)


@outlined
def find_source_block(mem: Memory, c: Compact) -> I:
    """Where to look for sources next: in a pageblock that is partly free already (fast_find_migrateblock)."""
    never_inline()
    control = c.control[0]
    if not searches_lists(mem, c):
        return np.int64(control.migrate)
    limit = scan_limit(c)
    distance = (np.int64(control.free) - np.int64(control.migrate)) >> 1
    if control.migrate != zone_start(mem, c):
        distance >>= 2
    bound = first_of_block(mem, np.int64(control.migrate) + distance)
    row, n_scanned = np.int64(-1), np.int64(0)
    order = np.int64(control.order) - 1
    while order >= COSTLY_ORDER and row < 0 and n_scanned < limit:
        if mem.zones[control.zone].nr_free[np.uint64(order)] != ZERO:
            row, n_scanned = search_source(mem, c, order, bound, limit, n_scanned)
        order -= 1
    control.migrate_scanned += n_scanned
    if row >= 0:
        control.fast_search_fail = 0
        if control.fast_start != SPENT:
            control.fast_start = row if control.fast_start == NOT_SEEN else min(row, np.int64(control.fast_start))
        if not mem.params.features & COUNTS_PAGES:
            set_skip(mem, row)
        return max(first_of_block(mem, row), zone_start(mem, c))
    control.fast_search_fail += 1
    if control.fast_start >= 0:
        control.migrate = control.fast_start
        control.fast_start = SPENT
    return np.int64(control.migrate)


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
