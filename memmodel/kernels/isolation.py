"""Blocks that leave the free lists for compaction, and pageblocks that are isolated for a contiguous allocation.

mm/page_alloc.c (__isolate_free_page, move_freepages_block_isolate), mm/page_isolation.c, mm/compaction.c
(move_freelist_head, move_freelist_tail), 6.12.117.
"""

import numpy as np

from memmodel.jit import count_trailing_zeros, inlined, kernel
from memmodel.kernels.buddy import MOVABLE, free_one, free_pages_split
from memmodel.kernels.freelist import (
    FREE,
    HIGHATOMIC,
    HYGIENE,
    ISOLATE,
    ONE,
    ORDER_BITS,
    account,
    block_type,
    del_free,
    free_list,
    is_free_head,
    link_after,
    unlink,
)
from memmodel.kernels.pageblock import (
    HAS_ISOLATE_BIT,
    KIND_BITS,
    block_start,
    containing_head,
    move_freepages_61,
    move_freepages_block,
    set_pageblock_type,
)
from memmodel.state.layout import NONE, Kind, Memory

U = np.uint64
ZERO = np.uint64(0)
ISOLATED = np.uint64(Kind.ISOLATED << 4)


@inlined
def isolate_free_page(mem: Memory, index: U, cpu: U) -> U:
    """Compaction takes a whole free block: its order.

    Half a pageblock or more makes the pageblock MOVABLE; since 6.10 its other free blocks go along.
    """
    zone = np.uint64(mem.pages[index].zone)
    order = np.uint64(mem.pages[index].state) & ORDER_BITS
    pageblock_order = mem.params.pageblock_order
    migratetype = block_type(mem, index)
    del_free(mem, index, order)
    account(mem, zone, cpu, migratetype, -np.int64(ONE << order))
    mem.pages[index].state = ISOLATED | order
    if order + ONE >= pageblock_order:
        block = index
        while block < index + (ONE << order):
            if block_type(mem, block) < HIGHATOMIC:
                if mem.params.features & HYGIENE:
                    move_freepages_block(mem, zone, cpu, block, MOVABLE)
                else:
                    set_pageblock_type(mem, zone, block, MOVABLE)
            block += ONE << pageblock_order
    return order


@inlined
def list_head_of(mem: Memory, index: U) -> U:
    """Head of the free list that a block is on: since 6.10, that of its pageblock's type."""
    page = mem.pages[index]
    order = np.uint64(page.state) & ORDER_BITS
    return free_list(mem, np.uint64(page.zone), order, block_type(mem, index))


@inlined
def rotate_before(mem: Memory, head: U, index: U) -> bool:
    """Make a block the first of its list: what was before it goes to the tail (move_freelist_head)."""
    if mem.pages[head].next == index:
        return False
    unlink(mem, head)
    link_after(mem, head, np.uint64(mem.pages[index].prev))
    return True


@inlined
def rotate_behind(mem: Memory, head: U, index: U) -> bool:
    """Make a block the last of its list: it and what was before it go to the tail (move_freelist_tail)."""
    if mem.pages[head].prev == index:
        return False
    unlink(mem, head)
    link_after(mem, head, index)
    return True


@kernel
def rotate_to_tail(mem: Memory, index: U) -> bool:
    """rotate_behind() where Python calls it, of a list of the pageblock's type."""
    return rotate_behind(mem, list_head_of(mem, index), index)


@inlined
def large_buddy(mem: Memory, index: U) -> U:
    """First row of the free block of more than a pageblock that holds this pageblock, or NONE."""
    zone = np.uint64(mem.pages[index].zone)
    order = mem.params.pageblock_order + ONE
    while order <= mem.params.max_order:
        head = index & ~((ONE << order) - ONE)
        if is_free_head(mem, head, order, zone):
            return head
        order += ONE
    return NONE


@inlined
def set_isolation_61(mem: Memory, zone: U, cpu: U, block: U, migratetype: U) -> None:
    """Before 6.10: the free blocks that begin in the pageblock change their list, whole, and are counted as moved."""
    old = block_type(mem, block)
    moved = np.int64(move_freepages_61(mem, zone, cpu, block, migratetype))
    account(mem, zone, cpu, old, -moved)
    account(mem, zone, cpu, migratetype, moved)
    set_pageblock_type(mem, zone, block, migratetype)


@inlined
def split_free_61(mem: Memory, cpu: U, boundary: U) -> None:
    """Before 6.10: a free block that a border of pageblocks cuts is freed again in two parts (split_free_page)."""
    if boundary >= mem.params.n_pages:
        return
    index = containing_head(mem, boundary)
    state = np.uint64(mem.pages[index].state)
    if state & KIND_BITS != FREE or index == boundary:
        return
    order = state & ORDER_BITS
    end, rest = index + (ONE << order), boundary - index
    account(mem, np.uint64(mem.pages[index].zone), cpu, block_type(mem, index), -np.int64(ONE << order))
    del_free(mem, index, order)
    while index < end:
        piece = count_trailing_zeros(index) if index else order
        while ONE << piece > rest:
            piece -= ONE
        free_one(mem, index, cpu, piece, block_type(mem, index), False)
        index += ONE << piece
        rest -= ONE << piece
        if rest == ZERO:
            rest = end - index


@inlined
def set_isolation(mem: Memory, zone: U, cpu: U, block: U, migratetype: U) -> None:
    """A pageblock's type with its free blocks; a larger free block is split at pageblocks first.

    move_freepages_block_isolate(): a type that is ISOLATE, or what it was before.
    """
    if not mem.params.features & HYGIENE:
        set_isolation_61(mem, zone, cpu, block, migratetype)
        return
    large = large_buddy(mem, block)
    if large == NONE:
        move_freepages_block(mem, zone, cpu, block, migratetype)
        return
    order = np.uint64(mem.pages[large].state) & ORDER_BITS
    old = block_type(mem, large)
    del_free(mem, large, order)
    account(mem, zone, cpu, old, -np.int64(ONE << order))
    set_pageblock_type(mem, zone, block, migratetype)
    free_pages_split(mem, large, cpu, order, False)


@inlined
def unset_isolation(mem: Memory, zone: U, cpu: U, block: U, migratetype: U) -> None:
    """Undo it; a whole free pageblock merges with its neighbour again (unset_migratetype_isolate)."""
    state = np.uint64(mem.pages[block].state)
    order = state & ORDER_BITS
    whole = state & KIND_BITS == FREE and order >= mem.params.pageblock_order and order < mem.params.max_order
    buddy = block ^ (ONE << order)
    if whole and is_free_head(mem, buddy, order, zone) and block_type(mem, buddy) != ISOLATE:
        del_free(mem, block, order)
        set_pageblock_type(mem, zone, block, migratetype)
        free_one(mem, block, cpu, order, migratetype, True)
        return
    set_isolation(mem, zone, cpu, block, migratetype)


@kernel
def isolate_range(mem: Memory, zone: U, cpu: U, start: U, end: U) -> None:
    """Isolate the pageblocks of [start, end): the first, the last, then the others ascending."""
    step = ONE << mem.params.pageblock_order
    first, last = block_start(mem, start), block_start(mem, end - ONE)
    set_isolation(mem, zone, cpu, first, ISOLATE)
    if last != first:
        set_isolation(mem, zone, cpu, last, ISOLATE)
    block = first + step
    while block < last:
        set_isolation(mem, zone, cpu, block, ISOLATE)
        block += step


@inlined
def undo_blocks(mem: Memory, zone: U, cpu: U, start: U, end: U, migratetype: U) -> None:
    """Give the pageblocks of [start, end) their type back, ascending (undo_isolate_page_range).

    Since 6.17 it is below the bit; before, the caller must say it.
    """
    block = block_start(mem, start)
    while block < end:
        if block_type(mem, block) == ISOLATE:
            if mem.params.features & HAS_ISOLATE_BIT:
                migratetype = np.uint64(mem.blocks[block >> mem.params.pageblock_order].migratetype)
            unset_isolation(mem, zone, cpu, block, migratetype)
        block += ONE << mem.params.pageblock_order


@kernel
def undo_isolation(mem: Memory, zone: U, cpu: U, start: U, end: U, migratetype: U) -> None:
    """undo_blocks() for a caller outside."""
    undo_blocks(mem, zone, cpu, start, end, migratetype)
