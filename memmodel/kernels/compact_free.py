"""Compaction's free scanner: from the zone's end down, and first by the free lists, for blocks to move pages into.

mm/compaction.c (fast_isolate_freepages, isolate_freepages, isolate_freepages_block, compaction_alloc,
compaction_free), 6.12.117. Until 6.9 targets are single pages, handed out from the last one isolated down.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.compact_control import (
    CLUSTER_MAX,
    MOVABLE,
    Compact,
    Said,
    first_of_block,
    is_captured,
    pageblock_pages,
    say,
    scan_limit,
    set_skip,
    whole_block,
    worth_looking,
    zone_end,
    zone_start,
)
from memmodel.kernels.freelist import (
    CMA,
    FREE,
    ISOLATE,
    ONE,
    ORDER_BITS,
    block_type,
    free_list,
    link_after,
    load_neighbours,
    unlink,
)
from memmodel.kernels.isolation import ISOLATED, isolate_free_page, rotate_before
from memmodel.kernels.page_alloc import free_block
from memmodel.kernels.pageblock import KIND_BITS
from memmodel.kernels.private_lists import hold, private_list
from memmodel.kernels.watermark import ALLOC_CMA, MIN, watermark_ok
from memmodel.state.layout import NONE, Feature, Memory

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
ASYNC = 0
AHEAD = 16
BEYOND = np.int64(1 << 62)  # all rows
LARGE_FOLIOS = np.uint64(Feature.LARGE_FOLIO_COMPACTION)
COUNTS_PAGES = np.uint64(Feature.COMPACTION_COUNTS_PAGES)
ISOLATE_FREEPAGES, FAST_ISOLATE_FREEPAGES = Said.ISOLATE_FREEPAGES.value, Said.FAST_ISOLATE_FREEPAGES.value
ISOLATED_BLOCK, ROTATED_FIRST = Said.ISOLATED.value, Said.ROTATED_FIRST.value


@inlined
def hold_target(mem: Memory, c: Compact, index: U, order: U) -> None:
    """Keep a block that was just isolated; until 6.9 as single pages, each to the head of the one list."""
    slot = np.uint64(c.control[0].slot)
    if mem.params.features & LARGE_FOLIOS:
        hold(mem, slot, index, order)
        return
    for page in range(index, index + (ONE << order)):
        mem.pages[page].state = ISOLATED
        link_after(mem, np.uint64(page), private_list(mem, slot, ZERO))


@inlined
def take_block(mem: Memory, c: Compact, row: I) -> I:
    """Isolate a free block, if that leaves the zone enough (__isolate_free_page): its pages, or 0."""
    control = c.control[0]
    index, zone, cpu = np.uint64(row), np.uint64(control.zone), np.uint64(control.cpu)
    order = np.uint64(mem.pages[index].state) & ORDER_BITS
    n_pages = np.int64(ONE << order)
    mark = np.int64(mem.zones[zone].watermark[MIN]) + n_pages
    if block_type(mem, index) != ISOLATE and not watermark_ok(mem, zone, ZERO, mark, ZERO, ALLOC_CMA):
        return np.int64(0)
    isolate_free_page(mem, index, cpu)
    hold_target(mem, c, index, order)
    control.nr_free += n_pages
    control.n_isolated += n_pages
    say(c, ISOLATED_BLOCK, row, np.int64(order), np.int64(0), np.int64(0))
    return n_pages


@inlined
def scan_block(mem: Memory, c: Compact, row: I, end: I, stride: I) -> tuple[I, I]:
    """Isolate the free blocks of rows of a pageblock until there are enough; row where it ended, pages taken.

    isolate_freepages_block()
    """
    control = c.control[0]
    counts = bool(mem.params.features & COUNTS_PAGES)
    first, scanned, taken = row, np.int64(0), np.int64(0)
    while row < end:
        scanned += 1
        load_neighbours(mem, np.uint64(min(row + AHEAD, end - 1)))
        state = np.uint64(mem.pages[np.uint64(row)].state)
        n_pages = np.int64(ONE << (state & ORDER_BITS))
        if state & KIND_BITS == FREE:
            if take_block(mem, c, row) == 0:
                break
            scanned += n_pages - 1
            taken += n_pages
            if control.nr_migrate <= control.nr_free:
                row += n_pages
                break
            row += n_pages - 1
        elif state & KIND_BITS == USED and n_pages > 1 and row + n_pages <= end:
            if not is_captured(mem, np.uint64(row)):
                row += n_pages - 1
                scanned += n_pages - 1 if counts else np.int64(0)
        row += stride
    row = min(row, end)
    control.free_scanned += scanned
    say(c, ISOLATE_FREEPAGES, first, row, scanned, taken)
    return row, taken


@inlined
def is_target_block(mem: Memory, c: Compact, row: I) -> bool:
    """Whether pages may move into the pageblock (suitable_migration_target): not where a large enough block is free.

    Before 6.12 large enough is a pageblock.
    """
    control = c.control[0]
    state = np.uint64(mem.pages[np.uint64(row)].state)
    if state & KIND_BITS == FREE:
        large = np.int64(mem.params.pageblock_order)
        if control.order > 0 and mem.params.features & LARGE_FOLIOS:
            large = np.int64(control.order)
        if np.int64(state & ORDER_BITS) >= large:
            return False
    migratetype = block_type(mem, np.uint64(row))
    return bool(control.ignore_suitable) or bool(migratetype == MOVABLE) or bool(migratetype == CMA)


@outlined
def scan_linearly(mem: Memory, c: Compact) -> None:
    """From where the free scanner stands down to the migration scanner's pageblock (isolate_freepages)."""
    never_inline()
    control = c.control[0]
    size = pageblock_pages(mem)
    stride = np.int64(CLUSTER_MAX if control.mode == ASYNC else 1)
    row = np.int64(control.free)
    first = first_of_block(mem, row)
    end = min(first + size, zone_end(mem, c))
    lowest = first_of_block(mem, np.int64(control.migrate)) + size
    while first >= lowest:
        if whole_block(mem, c, first, end) and is_target_block(mem, c, first) and worth_looking(mem, c, first):
            row, taken = scan_block(mem, c, row, end, stride)
            if row == end:
                set_skip(mem, first)
                zone = mem.zones[control.zone]
                below = first - (size if mem.params.features & LARGE_FOLIOS else 0)
                zone.cached_free = min(np.int64(zone.cached_free), below)
            if control.nr_free >= control.nr_migrate:
                if row >= end:
                    row = first - size
                break
            if row < end:
                break
            stride = np.int64(1) if taken else min(stride << 1, np.int64(CLUSTER_MAX))
        end = first
        first -= size
        row = first
    control.free = row


@inlined
def next_search_order(c: Compact, order: I) -> I:
    """The order that a search goes on with, or -1 once all had their turn: the next search begins one lower."""
    control = c.control[0]
    order -= 1
    if order < 0:
        order = np.int64(control.order) - 1
    if order == control.search_order:
        control.search_order -= 1
        if control.search_order < 0:
            control.search_order = control.order - 1
        return np.int64(-1)
    return order


@inlined
def search_list(mem: Memory, c: Compact, order: I, low: I, least: I, limit: I, highest: I) -> tuple[I, I, I, I, bool]:
    """One free list from its tail: (row, highest row seen, entries, limit, whether more were left).

    The row is one in the last quarter before the free scanner, else the highest in the quarter below it, else -1. What
    was looked at goes behind the rest.
    """
    control = c.control[0]
    head = free_list(mem, np.uint64(control.zone), np.uint64(order), MOVABLE)
    entry = np.uint64(mem.pages[head].prev)
    scanned, found, candidate = np.int64(0), np.int64(-1), np.int64(-1)
    while entry != head:
        scanned += 1
        row = np.int64(entry)
        if row >= highest:
            highest = max(first_of_block(mem, row), zone_start(mem, c))
        if row >= low:
            control.fast_search_fail = 0
            control.search_order = order
            found = row
            break
        if row >= least and row > candidate:
            candidate = row
            limit >>= 1
        if scanned >= limit:
            break
        entry = np.uint64(mem.pages[entry].prev)
    if found < 0 and candidate >= 0:
        found = candidate
        entry = np.uint64(candidate)
    if entry != head and rotate_before(mem, head, entry):
        say(c, ROTATED_FIRST, np.int64(entry), order, np.int64(0), np.int64(0))
    return found, highest, scanned, limit, bool(scanned >= limit)


@inlined
def scan_around(mem: Memory, c: Compact, row: I) -> None:
    """The rest of the pageblock of a block that a search found (fast_isolate_around)."""
    control = c.control[0]
    if control.nr_free >= control.nr_migrate or (control.direct and control.mode == ASYNC):
        return
    first = first_of_block(mem, row)
    end = min(first + pageblock_pages(mem), zone_end(mem, c))
    first = max(first, zone_start(mem, c))
    if not whole_block(mem, c, first, end):
        return
    stopped, _ = scan_block(mem, c, first, end, np.int64(1))
    if stopped == end:
        set_skip(mem, first)


@inlined
def fall_back(mem: Memory, c: Compact, highest: I, least: I) -> I:
    """At the first search of a zone: the highest pageblock seen, or (direct) the lowest one aimed at; row, or -1."""
    control = c.control[0]
    if highest >= least:
        control.free = highest
        return highest
    if not control.direct:
        return np.int64(-1)
    control.free = least
    end = min(first_of_block(mem, least) + pageblock_pages(mem), zone_end(mem, c))
    any_block = not mem.params.features & LARGE_FOLIOS
    if whole_block(mem, c, least, end) and (any_block or is_target_block(mem, c, least)):
        return least
    return np.int64(-1)


@inlined
def search_orders(mem: Memory, c: Compact, low: I, least: I, limit: I) -> tuple[I, I, I, I]:
    """One list after the other until a block is isolated: (row or -1, highest row seen, pages scanned, pages taken)."""
    control = c.control[0]
    found, highest, n_scanned, n_taken = np.int64(-1), np.int64(-1), np.int64(0), np.int64(0)
    counts = bool(mem.params.features & COUNTS_PAGES)
    order = np.int64(control.search_order)
    while found < 0 and order >= 0:
        if mem.zones[control.zone].nr_free[np.uint64(order)] != ZERO:
            found, highest, scanned, limit, more = search_list(mem, c, order, low, least, limit, highest)
            n_scanned += scanned
            if found >= 0:
                taken = take_block(mem, c, found)
                n_scanned += max(taken - 1, np.int64(0))
                n_taken += taken
                if taken == 0:  # refused: this search is over
                    found = np.int64(-1)
                    order = np.int64(control.search_order) + 1
            if counts and control.nr_free >= control.nr_migrate:
                break
            if more:
                limit = max(np.int64(1), limit >> 1)
        order = next_search_order(c, order)  # also where the search ends
    return found, highest, n_scanned, n_taken


@outlined
def search_lists(mem: Memory, c: Compact) -> None:
    """A block near the free scanner by way of the free lists, and what is around it (fast_isolate_freepages)."""
    never_inline()
    control = c.control[0]
    if control.order <= 0:
        return
    zone = mem.zones[control.zone]
    at_start = bool(np.int64(control.free) >= np.int64(zone.init_free))
    limit = pageblock_pages(mem) >> 1 if at_start else max(np.int64(1), scan_limit(c) >> 1)
    distance = np.int64(control.free) - np.int64(control.migrate)
    low = first_of_block(mem, np.int64(control.free) - (distance >> 2))
    least = first_of_block(mem, np.int64(control.free) - (distance >> 1))
    beyond = distance < 0  # unsigned in the kernel: with both scanners in one pageblock no block is near enough
    control.search_order = min(np.int64(control.order) - 1, np.int64(control.search_order))
    found, highest, n_scanned, n_taken = search_orders(
        mem, c, BEYOND if beyond else low, BEYOND if beyond else least, limit
    )
    say(c, FAST_ISOLATE_FREEPAGES, least, np.int64(control.free), n_scanned, n_taken)
    if found < 0:
        control.fast_search_fail += 1
        if at_start and not beyond:
            found = fall_back(mem, c, highest, least)
    if highest >= 0 and highest >= zone.cached_free:
        zone.cached_free = highest - pageblock_pages(mem)
    control.free_scanned += n_scanned
    if found >= 0:
        scan_around(mem, c, found)


@outlined
def isolate_freepages(mem: Memory, c: Compact) -> None:
    """More targets, by the free lists or else by scanning (isolate_freepages)."""
    never_inline()
    search_lists(mem, c)
    if c.control[0].nr_free == 0:
        scan_linearly(mem, c)


@inlined
def first_held(mem: Memory, c: Compact, order: U) -> U:
    """Head of the private list of the smallest sufficient order that has a block, or NONE."""
    while order <= mem.params.max_order:
        head = private_list(mem, np.uint64(c.control[0].slot), order)
        if mem.pages[head].next != head:
            return head
        order += ONE
    return NONE


@inlined
def compaction_alloc(mem: Memory, c: Compact, order: U) -> U:
    """A target for a source: the lower part of the first block of the smallest sufficient order; row, or NONE.

    Not a call, whose arguments alone, the whole state, cost a sixth of a move.
    """
    head = first_held(mem, c, order)
    if head == NONE:
        isolate_freepages(mem, c)
        head = first_held(mem, c, order)
        if head == NONE:
            return NONE
    control = c.control[0]
    index = np.uint64(mem.pages[head].next)
    unlink(mem, index)
    rest = np.uint64(mem.pages[index].state) & ORDER_BITS
    while rest > order:
        rest -= ONE
        upper = index + (ONE << rest)
        mem.pages[upper].state = ISOLATED | rest
        link_after(mem, upper, private_list(mem, np.uint64(control.slot), rest))
    mem.pages[index].state = USED | order
    mem.pages[index].refcount = ONE
    control.nr_free -= np.int64(ONE << order)
    if mem.params.features & LARGE_FOLIOS:  # before, all of the batch is wanted anew
        control.nr_migrate -= np.int64(ONE << order)
    return index


@outlined
def compaction_free(mem: Memory, c: Compact, index: U, order: U) -> None:
    """A target that its source did not use goes to the head of the private list."""
    never_inline()
    control = c.control[0]
    mem.pages[index].state = ISOLATED | order
    mem.pages[index].refcount = ZERO
    link_after(mem, index, private_list(mem, np.uint64(control.slot), order))
    control.nr_free += np.int64(ONE << order)
    if mem.params.features & LARGE_FOLIOS:
        control.nr_migrate += np.int64(ONE << order)


@inlined
def next_released(mem: Memory, c: Compact) -> U:
    """The next block that was isolated for nothing, taken out to be freed: orders ascending; row, or NONE."""
    control = c.control[0]
    head = first_held(mem, c, ZERO)
    if head == NONE:
        return NONE
    index = np.uint64(mem.pages[head].next)
    unlink(mem, index)
    order = np.uint64(mem.pages[index].state) & ORDER_BITS
    mem.pages[index].state = USED | order
    mem.pages[index].refcount = ONE
    control.nr_free -= np.int64(ONE << order)
    return index


@inlined
def release(mem: Memory, c: Compact) -> None:
    """All of them go back, and the next run looks there again (release_free_list)."""
    control = c.control[0]
    highest = np.int64(-1)
    while True:
        index = next_released(mem, c)
        if index == NONE:
            break
        highest = max(highest, np.int64(index))
        free_block(mem, index, np.uint64(control.cpu))
    note_released(mem, c, highest)


@inlined
def note_released(mem: Memory, c: Compact, highest: I) -> None:
    """The pageblock of the highest block that was given back is looked at again."""
    zone = mem.zones[c.control[0].zone]
    if highest >= 0:
        zone.cached_free = max(np.int64(zone.cached_free), first_of_block(mem, highest))
