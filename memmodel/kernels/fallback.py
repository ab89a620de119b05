"""Where a block comes from when a request's own lists are empty: CMA, claiming pageblocks, stealing blocks.

mm/page_alloc.c (__rmqueue, __rmqueue_claim, __rmqueue_steal; __rmqueue_fallback and steal_suitable_fallback before
6.15), 6.12.117. Features: CLAIM_STEAL off and FREELIST_HYGIENE on is 6.10 to 6.14, both off is 6.1.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.buddy import MOVABLE, ZERO, expand, take_block, take_smallest
from memmodel.kernels.freelist import (
    CMA,
    HIGHATOMIC,
    HYGIENE,
    NO_MOBILITY,
    ONE,
    account,
    block_type,
    del_free,
    free_list,
    move_free,
    set_block_types,
)
from memmodel.kernels.pageblock import (
    block_start,
    count_pageblock,
    first_moved_61,
    move_freepages_61,
    move_freepages_block,
    set_pageblock_type,
    spans_block,
)
from memmodel.kernels.watermark import ALLOC_CMA, boost_watermark
from memmodel.state.layout import NONE, Alloc, Feature, Memory, Vmstat, ZoneFlag

U = np.uint64
NOFRAGMENT, KSWAPD = np.uint64(Alloc.NOFRAGMENT), np.uint64(Alloc.KSWAPD)
CLAIM_STEAL = np.uint64(Feature.CLAIM_STEAL)
BOOSTED = np.uint64(ZoneFlag.BOOSTED_WATERMARK)
EXTFRAG = np.uint64(Vmstat.EXTFRAG_EVENTS)
# enum rmqueue_mode: where the next block of the same refill starts to look.
NORMAL_MODE, CMA_MODE, CLAIM_MODE, STEAL_MODE = (np.uint64(mode) for mode in range(4))
# fallbacks[][] of mm/page_alloc.c
FALLBACKS = ((2, 1), (2, 0), (0, 1))


@inlined
def fallback_type(mem: Memory, zone: U, order: U, migratetype: U) -> U:
    """The first fallback type that has a block of just that order, or NONE."""
    for fallback in FALLBACKS[migratetype]:
        other = np.uint64(fallback)
        head = free_list(mem, zone, order, other)
        if mem.pages[head].next != head:
            return other
    return NONE


@inlined
def claimable(mem: Memory, order: U, migratetype: U) -> bool:
    """Whether a block of that order is enough to take its pageblock for (should_try_claim_block)."""
    if order >= mem.params.pageblock_order >> ONE or migratetype != MOVABLE:
        return True
    return bool(mem.params.features & NO_MOBILITY)


@inlined
def first_block(mem: Memory, zone: U, order: U, migratetype: U) -> U:
    """Head of a list that is not empty."""
    return np.uint64(mem.pages[free_list(mem, zone, order, migratetype)].next)


@inlined
def lowest_order(mem: Memory, order: U, flags: U) -> U:
    """From which order on fallbacks are looked for: whole pageblocks where types must not mix."""
    return max(order, mem.params.pageblock_order) if flags & NOFRAGMENT else order


@inlined
def boost(mem: Memory, zone: U, flags: U) -> None:
    """Types are about to mix: raise the watermarks, and have kswapd woken if the caller may."""
    if boost_watermark(mem, zone) and flags & KSWAPD:
        mem.zones[zone]["flags"] = np.uint64(mem.zones[zone]["flags"]) | BOOSTED


@inlined
def claim_large(mem: Memory, index: U, cpu: U, order: U, found: U, migratetype: U, other: U) -> None:
    """Convert a free block of at least a pageblock, and keep its lowest part."""
    zone = np.uint64(mem.pages[index].zone)
    del_free(mem, index, found)
    account(mem, zone, cpu, other, -np.int64(ONE << found))
    set_block_types(mem, index, found, migratetype)
    expand(mem, index, order, found, migratetype)
    account(mem, zone, cpu, migratetype, np.int64((ONE << found) - (ONE << order)))


@inlined
def half_block_ok(mem: Memory, free: U, movable: U, migratetype: U, other: U) -> bool:
    """Whether enough of a pageblock is free, or of the request's kind, to make it the request's."""
    alike = ZERO
    if migratetype == MOVABLE:
        alike = movable
    elif other == MOVABLE:
        alike = (ONE << mem.params.pageblock_order) - (free + movable)
    enough = ONE << (mem.params.pageblock_order - ONE)
    return bool(free + alike >= enough) or bool(mem.params.features & NO_MOBILITY)


@inlined
def claim_pageblock(mem: Memory, zone: U, cpu: U, index: U, migratetype: U, other: U) -> bool:
    """Make the pageblock of a smaller free block the request's, if that is mostly free or alike."""
    if not spans_block(mem, zone, index):
        return False
    free, movable = count_pageblock(mem, block_start(mem, index))
    if not half_block_ok(mem, free, movable, migratetype, other):
        return False
    return move_freepages_block(mem, zone, cpu, index, migratetype)


@outlined
def claim(mem: Memory, zone: U, cpu: U, order: U, migratetype: U, flags: U) -> U:
    """Whole pageblocks, from the largest free block down (__rmqueue_claim); NONE if none may be taken."""
    never_inline()
    found = mem.params.max_order
    lowest = lowest_order(mem, order, flags)
    while found >= lowest and claimable(mem, found, migratetype):
        other = fallback_type(mem, zone, found, migratetype)
        if other != NONE:
            index = first_block(mem, zone, found, other)
            if found >= mem.params.pageblock_order:
                claim_large(mem, index, cpu, order, found, migratetype, other)
                mem.vmstat[EXTFRAG] += 1
                return index
            boost(mem, zone, flags)
            if claim_pageblock(mem, zone, cpu, index, migratetype, other):
                mem.vmstat[EXTFRAG] += 1
                return take_smallest(mem, zone, cpu, order, migratetype)
        if found == ZERO:
            break
        found -= ONE
    return NONE


@outlined
def steal(mem: Memory, zone: U, cpu: U, order: U, migratetype: U) -> U:
    """One block, from the smallest order up; its pageblock stays what it is (__rmqueue_steal)."""
    never_inline()
    found = order
    while found <= mem.params.max_order:
        other = fallback_type(mem, zone, found, migratetype)
        if other != NONE:
            index = first_block(mem, zone, found, other)
            take_block(mem, index, cpu, order, found, other)
            mem.vmstat[EXTFRAG] += 1
            return index
        found += ONE
    return NONE


@inlined
def choose_fallback(mem: Memory, zone: U, order: U, migratetype: U, flags: U) -> tuple[U, U]:
    """(order, type) of the fallback block before 6.15, or (NONE, NONE): the largest.

    A MOVABLE request that may not take its pageblock has the smallest that will do.
    """
    found = mem.params.max_order
    lowest = lowest_order(mem, order, flags)
    while found >= lowest:
        other = fallback_type(mem, zone, found, migratetype)
        if other != NONE:
            if claimable(mem, found, migratetype) or found == order:
                return found, other
            smallest = order
            while fallback_type(mem, zone, smallest, migratetype) == NONE:
                smallest += ONE
            return smallest, fallback_type(mem, zone, smallest, migratetype)
        if found == ZERO:
            break
        found -= ONE
    return NONE, NONE


@outlined
def fallback_612(mem: Memory, zone: U, cpu: U, order: U, migratetype: U, flags: U) -> U:
    """6.10 to 6.14: the pageblock of the chosen block if it may be taken, else that block alone."""
    never_inline()
    found, other = choose_fallback(mem, zone, order, migratetype, flags)
    if found == NONE:
        return NONE
    mem.vmstat[EXTFRAG] += 1
    index = first_block(mem, zone, found, other)
    if found >= mem.params.pageblock_order:
        claim_large(mem, index, cpu, order, found, migratetype, other)
        return index
    boost(mem, zone, flags)
    if claimable(mem, found, migratetype) and claim_pageblock(mem, zone, cpu, index, migratetype, other):
        return take_smallest(mem, zone, cpu, order, migratetype)
    take_block(mem, index, cpu, order, found, other)
    return index


@inlined
def claim_61(mem: Memory, zone: U, cpu: U, index: U, migratetype: U) -> bool:
    """6.1: all free blocks of the pageblock change their list before the test, which decides on its type alone."""
    old = block_type(mem, index)
    _, movable = count_pageblock(mem, first_moved_61(mem, zone, index))
    moved = move_freepages_61(mem, zone, cpu, index, migratetype)
    if moved and half_block_ok(mem, moved, movable, migratetype, old):
        set_pageblock_type(mem, zone, index, migratetype)
    return bool(moved)


@outlined
def fallback_61(mem: Memory, zone: U, cpu: U, order: U, migratetype: U, flags: U) -> U:
    """6.1: put the chosen block, or all of its pageblock's, on the request's lists, and take it from there.

    Of a pageblock of the reserve the block alone, and nothing else changes.
    """
    never_inline()
    found, other = choose_fallback(mem, zone, order, migratetype, flags)
    if found == NONE:
        return NONE
    mem.vmstat[EXTFRAG] += 1
    index = first_block(mem, zone, found, other)
    alone = True
    if block_type(mem, index) != HIGHATOMIC:
        if found >= mem.params.pageblock_order:
            set_block_types(mem, index, found, migratetype)
        else:
            boost(mem, zone, flags)
            alone = not claimable(mem, found, migratetype) or not claim_61(mem, zone, cpu, index, migratetype)
    if alone:
        move_free(mem, index, cpu, other, migratetype)
    return take_smallest(mem, zone, cpu, order, migratetype)


@inlined
def rmqueue_claim_steal(mem: Memory, zone: U, cpu: U, order: U, migratetype: U, flags: U, mode: U) -> tuple[U, U]:
    """Since 6.15: what `__rmqueue` does once the own lists are empty; (row, mode for the next block)."""
    if mode <= CMA_MODE and flags & ALLOC_CMA:
        index = take_smallest(mem, zone, cpu, order, CMA)
        if index != NONE:
            return index, CMA_MODE
    if mode <= CLAIM_MODE:
        index = claim(mem, zone, cpu, order, migratetype, flags)
        if index != NONE:
            return index, NORMAL_MODE  # the own lists are filled again
    if not flags & NOFRAGMENT:
        index = steal(mem, zone, cpu, order, migratetype)
        if index != NONE:
            return index, STEAL_MODE
    return NONE, mode


@inlined
def rmqueue_fallback(mem: Memory, zone: U, cpu: U, order: U, migratetype: U, flags: U) -> U:
    """Before 6.15: CMA, else one fallback."""
    if flags & ALLOC_CMA:
        index = take_smallest(mem, zone, cpu, order, CMA)
        if index != NONE:
            return index
    if mem.params.features & HYGIENE:
        return fallback_612(mem, zone, cpu, order, migratetype, flags)
    return fallback_61(mem, zone, cpu, order, migratetype, flags)


@inlined
def rmqueue_one(mem: Memory, zone: U, cpu: U, order: U, migratetype: U, flags: U, mode: U) -> tuple[U, U]:
    """One block (__rmqueue): (row or NONE, where the next block of the same refill starts to look)."""
    record = mem.zones[zone]
    if flags & ALLOC_CMA and record.free_cma > max(np.int64(record.free_pages), np.int64(0)) // 2:
        index = take_smallest(mem, zone, cpu, order, CMA)
        if index != NONE:
            return index, mode
    if mode == NORMAL_MODE:
        index = take_smallest(mem, zone, cpu, order, migratetype)
        if index != NONE:
            return index, mode
    if migratetype >= HIGHATOMIC:
        return NONE, mode
    if mem.params.features & CLAIM_STEAL:
        return rmqueue_claim_steal(mem, zone, cpu, order, migratetype, flags, mode)
    return rmqueue_fallback(mem, zone, cpu, order, migratetype, flags), mode
