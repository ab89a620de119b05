"""Compaction's free scanner, pageblock by pageblock from the zone's end down, for blocks to move pages into.

mm/compaction.c (isolate_freepages, isolate_freepages_block, fast_isolate_around, suitable_migration_target), 6.12.117.
Until 6.9 targets are single pages, handed out from the last one isolated down.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.compact_control import (
    CLUSTER_MAX,
    COUNTS_PAGES,
    LARGE_FOLIOS,
    MOVABLE,
    Compact,
    Said,
    first_of_block,
    is_captured,
    pageblock_pages,
    say,
    set_skip,
    whole_block,
    worth_looking,
    zone_end,
    zone_start,
)
from memmodel.kernels.freelist import CMA, FREE, ISOLATE, ONE, ORDER_BITS, block_type, link_after, load_neighbours
from memmodel.kernels.isolation import ISOLATED, isolate_free_page
from memmodel.kernels.migration_job import Mode
from memmodel.kernels.pageblock import KIND_BITS
from memmodel.kernels.private_lists import hold, private_list
from memmodel.kernels.watermark import ALLOC_CMA, MIN, watermark_ok
from memmodel.state.layout import Memory

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
ASYNC = Mode.ASYNC.value
AHEAD = 16
ISOLATE_FREEPAGES, ISOLATED_BLOCK = Said.ISOLATE_FREEPAGES.value, Said.ISOLATED.value


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
