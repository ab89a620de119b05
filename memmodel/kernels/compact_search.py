"""Compaction's fast searches: by the free lists, for a pageblock to empty and for a block to move pages into.

mm/compaction.c (fast_find_migrateblock, fast_isolate_freepages), 6.12.117. Both turn the lists that they look at.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.compact_control import (
    CLUSTER_MAX,
    COSTLY_ORDER,
    COUNTS_PAGES,
    LARGE_FOLIOS,
    MOVABLE,
    NOT_SEEN,
    SPENT,
    Compact,
    Said,
    first_of_block,
    like_movable,
    pageblock_pages,
    say,
    set_skip,
    skips,
    whole_block,
    zone_end,
    zone_start,
)
from memmodel.kernels.compact_free_scan import is_target_block, scan_around, take_block
from memmodel.kernels.freelist import free_list
from memmodel.kernels.isolation import rotate_before, rotate_behind
from memmodel.state.layout import Memory

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
BEYOND = np.int64(1 << 62)  # all rows
FAST_ISOLATE_FREEPAGES = Said.FAST_ISOLATE_FREEPAGES.value
ROTATED_FIRST, ROTATED_LAST = Said.ROTATED_FIRST.value, Said.ROTATED_LAST.value


@inlined
def scan_limit(c: Compact) -> I:
    """Entries of free lists that a fast search looks at: fewer after each that failed (freelist_scan_limit)."""
    return (np.int64(CLUSTER_MAX) >> min(np.int64(63), np.int64(c.control[0].fast_search_fail))) + 1


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
            if rotate_behind(mem, head, entry):  # before 6.10 perhaps not the list of its pageblock's type
                say(c, ROTATED_LAST, row, order, np.int64(0), np.int64(0))
            return (row if found else np.int64(-1)), n_scanned
        entry = np.uint64(mem.pages[entry].next)
    return np.int64(-1), n_scanned


@inlined
def searches_for_sources(mem: Memory, c: Compact) -> bool:
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
    if not searches_for_sources(mem, c):
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
def search_target(mem: Memory, c: Compact, order: I, low: I, least: I, limit: I, highest: I) -> tuple[I, I, I, I, bool]:
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
def search_targets(mem: Memory, c: Compact, low: I, least: I, limit: I) -> tuple[I, I, I, I]:
    """One list after the other until a block is isolated: (row or -1, highest row seen, pages scanned, pages taken)."""
    control = c.control[0]
    found, highest, n_scanned, n_taken = np.int64(-1), np.int64(-1), np.int64(0), np.int64(0)
    counts = bool(mem.params.features & COUNTS_PAGES)
    order = np.int64(control.search_order)
    while found < 0 and order >= 0:
        if mem.zones[control.zone].nr_free[np.uint64(order)] != ZERO:
            found, highest, scanned, limit, more = search_target(mem, c, order, low, least, limit, highest)
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
def find_target_block(mem: Memory, c: Compact) -> None:
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
    found, highest, n_scanned, n_taken = search_targets(
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
