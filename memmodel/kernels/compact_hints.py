"""Skip hints that are taken back once compaction went through a whole zone (__reset_isolation_suitable).

mm/compaction.c (__reset_isolation_pfn, __reset_isolation_suitable, reset_isolation_suitable), 6.12.117.
"""

import numpy as np

from memmodel.jit import inlined, kernel, never_inline, outlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.compact_control import (
    LRU,
    MOVABLE,
    SKIP,
    fills_block,
    first_of_block,
    pageblock_pages,
    skips,
)
from memmodel.kernels.freelist import FREE, ONE, block_type
from memmodel.kernels.pageblock import KIND_BITS
from memmodel.state.layout import Memory

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
SAMPLES = 8  # every 8th page of a pageblock is looked at


@inlined
def is_on_lru(mem: Memory, index: U) -> bool:
    """PageLRU(): of a tail it is the head's."""
    order = ZERO
    while order <= mem.params.max_order:
        head = mem.pages[index & ~((ONE << order) - ONE)]
        if head.state == USED | order:
            return bool(np.uint64(head.pg_flags) & LRU)
        order += ONE
    return False


@inlined
def is_worth_it(mem: Memory, row: I, source: bool, target: bool) -> bool:
    """Whether a page that could move, or a free block, is among those looked at."""
    index = np.uint64(row)
    if target and np.uint64(mem.pages[index].state) & KIND_BITS == FREE:
        return True
    return source and is_on_lru(mem, index)


@inlined
def clears_hint(mem: Memory, zone: U, row: I, source: bool, target: bool) -> bool:
    """Whether a scanner may begin in this pageblock, whose hint is taken back then."""
    start, end = np.int64(mem.zones[zone].start), np.int64(mem.zones[zone].end)
    if row < start or row >= end:
        return False
    index = np.uint64(row)
    if fills_block(mem, row):
        return False
    if source and target and not skips(mem, row):
        return True
    if target and not source and block_type(mem, index) != MOVABLE:
        return False
    page = max(first_of_block(mem, row), start)
    last = min(first_of_block(mem, row) + pageblock_pages(mem), end)
    while page < last:
        if is_worth_it(mem, page, source, target):
            block = mem.blocks[index >> mem.params.pageblock_order]
            block.bits = np.uint64(block.bits) & ~SKIP
            return True
        page += SAMPLES
    return False


@outlined
def reset_hints(mem: Memory, zone: U) -> None:
    """From both ends of the zone; the first pageblock of each end that qualifies is where later runs begin."""
    never_inline()
    record = mem.zones[zone]
    if not record.blockskip_flush:
        return
    record.blockskip_flush = ZERO
    up, down, size = np.int64(record.start), np.int64(record.end) - 1, pageblock_pages(mem)
    source_set, target_set = False, False
    reset_migrate, reset_free = down, up
    while up < down:
        if clears_hint(mem, zone, up, True, source_set) and up < reset_migrate:
            source_set = True
            reset_migrate = up
            record.init_migrate = record.cached_migrate[0] = record.cached_migrate[1] = up
        if clears_hint(mem, zone, down, target_set, True) and down > reset_free:
            target_set = True
            reset_free = down
            record.init_free = record.cached_free = down
        up += size
        down -= size
    if reset_migrate >= reset_free:
        record.cached_migrate[0] = record.cached_migrate[1] = up
        record.cached_free = down


@kernel
def reset_isolation_suitable(mem: Memory, node: U) -> None:
    """All zones of a node, when its kswapd goes to sleep."""
    for number in range(mem.zones.size):
        if mem.zones[number].node == node and mem.zones[number].present > ZERO:
            reset_hints(mem, np.uint64(number))
