"""The buddy core: merge on free, split on allocation, what boot does, and counting.

Rules: mm/page_alloc.c (__free_one_page, expand, __rmqueue_smallest), 6.12.117; the 6.1 behaviour is
Feature.FREELIST_HYGIENE switched off.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined, kernel
from memmodel.kernels.freelist import (
    CMA,
    FREE,
    HIGHATOMIC,
    HYGIENE,
    ISOLATE,
    ONE,
    ORDER_BITS,
    TYPES,
    account,
    add_free,
    block_type,
    del_free,
    free_list,
    is_free_head,
    set_block_types,
)
from memmodel.kernels.pageblock import KIND_BITS, containing_head
from memmodel.state.layout import MIGRATE_TYPES, NONE, BlockBit, Kind, Memory, MigrateType, Vmstat, block_types

U = np.uint64
ZERO = np.uint64(0)
MOVABLE = np.uint64(MigrateType.MOVABLE)
USED = np.uint64(Kind.USED << 4)
SPLITS = np.uint64(Vmstat.BUDDY_SPLITS)


@inlined
def merge_likely(mem: Memory, index: U, order: U, zone: U) -> bool:
    """Whether the next merge only waits for this block's buddy's neighbour (buddy_merge_likely)."""
    if order + ONE >= mem.params.max_order:
        return False
    higher = index & ~(ONE << order)
    return is_free_head(mem, higher ^ (ONE << (order + ONE)), order + ONE, zone)


@inlined
def captures(mem: Memory, zone: U, order: U, migratetype: U) -> bool:
    """Whether the compacting task takes a page freed at the order that it waits for (compaction_capture).

    Below a pageblock nobody but a MOVABLE request takes one out of a MOVABLE pageblock: until 6.9 not even that.
    """
    if migratetype == CMA or migratetype == ISOLATE or mem.zones[zone].captured != NONE:
        return False
    if order >= mem.params.pageblock_order or migratetype != MOVABLE:
        return True
    return bool(mem.params.features & HYGIENE) and mem.zones[zone].capture_type == MOVABLE


@inlined
def free_one(mem: Memory, index: U, cpu: U, order: U, migratetype: U, to_tail: bool) -> None:
    """Merge a block as far as it goes and put it on its list (__free_one_page)."""
    params = mem.params
    zone = np.uint64(mem.pages[index].zone)
    account(mem, zone, cpu, migratetype, np.int64(ONE << order))
    while order < params.max_order:
        if order == mem.zones[zone].capture_order and captures(mem, zone, order, migratetype):
            mem.zones[zone].captured = index
            mem.pages[index].state = USED | order
            account(mem, zone, cpu, migratetype, -np.int64(ONE << order))
            return
        buddy = index ^ (ONE << order)
        if not is_free_head(mem, buddy, order, zone):
            break
        if order >= params.pageblock_order:
            buddy_type = block_type(mem, buddy)
            if buddy_type != migratetype:
                if migratetype >= HIGHATOMIC or buddy_type >= HIGHATOMIC:
                    break
                if params.features & HYGIENE:
                    set_block_types(mem, buddy, order, migratetype)
        del_free(mem, buddy, order)
        index &= buddy
        order += ONE
    add_free(mem, index, order, migratetype, to_tail or merge_likely(mem, index, order, zone))


@inlined
def free_pages_split(mem: Memory, index: U, cpu: U, order: U, to_tail: bool) -> None:
    """Free a block of any order straight to the buddy (free_one_page).

    Since 6.10 in pieces of at most a pageblock, each to its own block's type; before, whole to the first block's.
    """
    piece = order
    if mem.params.features & HYGIENE:
        piece = min(order, mem.params.pageblock_order)
    end = index + (ONE << order)
    while index < end:
        free_one(mem, index, cpu, piece, block_type(mem, index), to_tail)
        index += ONE << piece


@inlined
def expand(mem: Memory, index: U, low: U, high: U, migratetype: U) -> None:
    """Split down to `low`, each upper half to the head of its list; the lowest part is the caller's (expand)."""
    mem.vmstat[SPLITS] += np.int64(high - low)
    while high > low:
        high -= ONE
        upper = index + (ONE << high)
        add_free(mem, upper, high, migratetype, False)


@inlined
def take_block(mem: Memory, index: U, cpu: U, order: U, found: U, migratetype: U) -> None:
    """Take a free block of order `found` off its list and keep its lowest part (page_del_and_expand).

    Before 6.10 the caller counts, by the type of the list: the page remembers it.
    """
    del_free(mem, index, found)
    expand(mem, index, order, found, migratetype)
    mem.pages[index].refcount = migratetype
    if mem.params.features & HYGIENE:
        account(mem, np.uint64(mem.pages[index].zone), cpu, migratetype, -np.int64(ONE << order))


@inlined
def take_smallest(mem: Memory, zone: U, cpu: U, order: U, migratetype: U) -> U:
    """Head of the smallest sufficient list of this type, split; NONE if there is none (__rmqueue_smallest)."""
    found = order
    while found <= mem.params.max_order:
        head = free_list(mem, zone, found, migratetype)
        index = np.uint64(mem.pages[head].next)
        if index != head:
            take_block(mem, index, cpu, order, found, migratetype)
            return index
        found += ONE
    return NONE


@inlined
def take_out_of_buddy(mem: Memory, index: U, cpu: U, order: U) -> bool:
    """Split the free block that holds this one so that it alone leaves the lists; False if there is none.

    Each half without it goes back to the head of its list, the largest first (break_down_buddy_pages).
    """
    head = containing_head(mem, index)
    state = np.uint64(mem.pages[head].state)
    if state & KIND_BITS != FREE or state & ORDER_BITS < order:
        return False
    high = state & ORDER_BITS
    zone = np.uint64(mem.pages[head].zone)
    migratetype = block_type(mem, head)
    del_free(mem, head, high)
    account(mem, zone, cpu, migratetype, -np.int64(ONE << order))
    while high > order:
        high -= ONE
        upper = head + (ONE << high)
        if index >= upper:
            add_free(mem, head, high, migratetype, False)
            head = upper
        else:
            add_free(mem, upper, high, migratetype, False)
    return True


@kernel
def free_ranges(mem: Memory, starts: Any, ends: Any) -> None:
    """Give ranges of rows to the buddy in maximal chunks, ascending, each to the tail (__free_pages_core at boot)."""
    params = mem.params
    for i in range(starts.size):
        index, end = starts[i], ends[i]
        while index < end:
            order = params.max_order
            while index & ((ONE << order) - ONE) or index + (ONE << order) > end:
                order -= ONE
            free_pages_split(mem, index, ZERO, order, True)
            index += ONE << order


@kernel
def _count_lists(mem: Memory, counts: Any) -> None:
    """Length of every free list, by zone, migratetype and order."""
    params = mem.params
    for zone in range(mem.zones.size):
        for order in range(params.max_order + ONE):
            for migratetype in range(TYPES):
                head = free_list(mem, np.uint64(zone), np.uint64(order), np.uint64(migratetype))
                index = np.uint64(mem.pages[head].next)
                while index != head:
                    counts[zone, migratetype, order] += 1
                    index = np.uint64(mem.pages[index].next)


def count_free(mem: Memory) -> npt.NDArray[np.int64]:
    """Free blocks, shape ``(zones, migratetypes, orders)``."""
    counts = np.zeros((mem.zones.size, MIGRATE_TYPES, int(mem.params.max_order) + 1), np.int64)
    _count_lists(mem, counts)
    return counts


def count_blocks(mem: Memory) -> npt.NDArray[np.int64]:
    """Pageblocks as /proc/pagetypeinfo counts them, from each zone's first page on, shape ``(zones, migratetypes)``."""
    counts = np.zeros((mem.zones.size, MIGRATE_TYPES), np.int64)
    for zone, record in enumerate(mem.zones):
        rows = np.arange(int(record["start"]), int(record["end"]), 1 << int(mem.params.pageblock_order))
        blocks = mem.blocks[rows[mem.pages["zone"][rows] == zone] >> int(mem.params.pageblock_order)]
        blocks = blocks[blocks["bits"] & BlockBit.OFFLINE == 0]
        counts[zone] = np.bincount(block_types(blocks), minlength=MIGRATE_TYPES)
    return counts
