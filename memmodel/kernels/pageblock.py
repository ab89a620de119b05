"""What is in a pageblock, and giving it another migratetype together with the free blocks in it.

mm/page_alloc.c (prep_move_freepages_block, __move_freepages_block), 6.12.117.
"""

import numpy as np

from memmodel.jit import inlined
from memmodel.kernels.freelist import FREE, ISOLATE, ISOLATE_BIT, ONE, ORDER_BITS, block_type, grouped_type, move_free
from memmodel.state.layout import Feature, Memory, PageFlag

U = np.uint64
ZERO = np.uint64(0)
KIND_BITS = np.uint64(0xF0)
LRU = np.uint64(PageFlag.LRU)
HAS_ISOLATE_BIT = np.uint64(Feature.ISOLATE_BIT)


@inlined
def block_start(mem: Memory, index: U) -> U:
    """First row of the pageblock."""
    return index >> mem.params.pageblock_order << mem.params.pageblock_order


@inlined
def spans_block(mem: Memory, zone: U, index: U) -> bool:
    """Whether the pageblock lies inside the zone."""
    first = block_start(mem, index)
    record = mem.zones[zone]
    return bool(first >= record.start) and bool(first + (ONE << mem.params.pageblock_order) <= record.end)


@inlined
def set_pageblock_type(mem: Memory, zone: U, index: U, migratetype: U) -> None:
    """Type of one pageblock (set_pageblock_migratetype); since 6.17 ISOLATE is a bit, and the type below it stays."""
    block = mem.blocks[index >> mem.params.pageblock_order]
    was_isolated = block_type(mem, index) == ISOLATE
    if migratetype == ISOLATE and mem.params.features & HAS_ISOLATE_BIT:
        block.bits = np.uint64(block.bits) | ISOLATE_BIT
    elif was_isolated and block.migratetype == migratetype:
        block.bits = np.uint64(block.bits) & ~ISOLATE_BIT
    else:
        migratetype = grouped_type(mem, migratetype)
        block.bits = np.uint64(block.bits) & ~ISOLATE_BIT
        block.migratetype = migratetype
    if was_isolated:
        mem.zones[zone].nr_isolate_pageblock -= ONE
    if migratetype == ISOLATE:
        mem.zones[zone].nr_isolate_pageblock += ONE


@inlined
def move_free_blocks(mem: Memory, cpu: U, first: U, migratetype: U) -> U:
    """The free blocks from a row to the end of its pageblock, ascending, to the tails of another type's lists.

    Pages moved (move_freepages).
    """
    old = block_type(mem, first)
    end = block_start(mem, first) + (ONE << mem.params.pageblock_order)
    moved = ZERO
    index = first
    while index < end:
        state = np.uint64(mem.pages[index].state)
        if state & KIND_BITS == FREE:
            move_free(mem, index, cpu, old, migratetype)
            moved += ONE << (state & ORDER_BITS)
        index += ONE << (state & ORDER_BITS)
    return moved


@inlined
def move_freepages_block(mem: Memory, zone: U, cpu: U, index: U, migratetype: U) -> bool:
    """Pageblock and free blocks become another type; one that the zone's border cuts is left alone: False."""
    if not spans_block(mem, zone, index):
        return False
    move_free_blocks(mem, cpu, block_start(mem, index), migratetype)
    set_pageblock_type(mem, zone, index, migratetype)
    return True


@inlined
def first_moved_61(mem: Memory, zone: U, index: U) -> U:
    """Before 6.10: where the walk over a page's pageblock begins: at the page itself if the zone begins inside."""
    first = block_start(mem, index)
    return first if first >= mem.zones[zone].start else index


@inlined
def move_freepages_61(mem: Memory, zone: U, cpu: U, index: U, migratetype: U) -> U:
    """Before 6.10: the free blocks of a page's pageblock to another type's lists; pages moved.

    Where the zone ends inside the pageblock none is moved.
    """
    if block_start(mem, index) + (ONE << mem.params.pageblock_order) > mem.zones[zone].end:
        return ZERO
    return move_free_blocks(mem, cpu, first_moved_61(mem, zone, index), migratetype)


@inlined
def containing_head(mem: Memory, index: U) -> U:
    """First row of the block that holds a row."""
    order = ZERO
    head = index
    while mem.pages[head].state == ZERO and order < mem.params.max_order:
        order += ONE
        head = index & ~((ONE << order) - ONE)
    return head


@inlined
def count_pageblock(mem: Memory, first: U) -> tuple[U, U]:
    """(free pages, movable pages) from a row to the end of its pageblock; what is movable is on an LRU list (PageLRU).

    Pages on per-CPU lists, in LRU-add batches, or isolated for compaction are neither.
    """
    end = block_start(mem, first) + (ONE << mem.params.pageblock_order)
    free = movable = ZERO
    head = containing_head(mem, first)  # a folio of more than a pageblock may have begun before
    while head < end:
        page = mem.pages[head]
        state = np.uint64(page.state)
        after = head + (ONE << (state & ORDER_BITS))
        inside = min(after, end) - max(head, first)
        if state & KIND_BITS == FREE:
            free += inside
        elif np.uint64(page.pg_flags) & LRU:
            movable += inside
        head = after
    return free, movable
