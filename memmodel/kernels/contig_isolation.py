"""Pageblocks isolated for a contiguous range, or not: what is in them decides.

mm/page_isolation.c (start_isolate_page_range, set_migratetype_isolate, has_unmovable_pages), 6.1.192, 6.12.117, 7.3.4.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.buddy import MOVABLE, USED
from memmodel.kernels.contig_task import ContigCount, Task, Why, stop_at
from memmodel.kernels.folios import is_hugetlb
from memmodel.kernels.freelist import CMA, HYGIENE, ISOLATE, ONE, ORDER_BITS, block_type
from memmodel.kernels.isolation import set_isolation, split_free_61, undo_blocks
from memmodel.kernels.lru import LRU
from memmodel.kernels.pageblock import KIND_BITS, block_start, containing_head, spans_block
from memmodel.state.layout import NONE, Kind, Memory, ZoneType

U = np.uint64
ZERO = np.uint64(0)
HOLE, RESERVED = np.uint64(Kind.HOLE << 4), np.uint64(Kind.RESERVED << 4)
LOST, UNKNOWN = np.uint64(Kind.HWPOISON << 4), np.uint64(Kind.UNKNOWN << 4)
ZONE_MOVABLE = np.uint64(ZoneType.MOVABLE)
N_BLOCKS = np.uint64(ContigCount.N_ISOLATED_BLOCKS)


@inlined
def is_unmovable(mem: Memory, head: U) -> bool:
    """Whether a block is neither free, nor on an LRU list, nor hugetlb's: per-CPU pages have no references either."""
    page = mem.pages[head]
    kind = np.uint64(page.state) & KIND_BITS
    if kind == USED:
        return not np.uint64(page.pg_flags) & LRU and not is_hugetlb(mem, head)
    return bool(kind == UNKNOWN) or (bool(kind == LOST) and page.refcount > ZERO)


@inlined
def unmovable_row(mem: Memory, zone: U, block: U) -> U:
    """First page of the pageblock that cannot be moved away, or NONE (has_unmovable_pages)."""
    end = block + (ONE << mem.params.pageblock_order)
    head = containing_head(mem, block)
    while head < end:
        state = np.uint64(mem.pages[head].state)
        kind = state & KIND_BITS
        if kind == RESERVED or kind == HOLE:
            return max(head, block)
        if mem.zones[zone].zone_type != ZONE_MOVABLE and is_unmovable(mem, head):
            return max(head, block)
        head += ONE << (state & ORDER_BITS)
    return NONE


@inlined
def isolate_pageblock(mem: Memory, task: Task, block: U) -> bool:
    """set_migratetype_isolate(): the whole pageblock is looked at, whatever part of it is asked for."""
    before = block_type(mem, block)
    if before == ISOLATE:
        stop_at(task, Why.ISOLATED.value, block)
        return False
    if before == CMA and not task.cma:
        stop_at(task, Why.CMA.value, block)
        return False
    if before != CMA:
        index = unmovable_row(mem, task.zone, block)
        if index != NONE:
            stop_at(task, Why.UNMOVABLE.value, index)
            return False
    if mem.params.features & HYGIENE and not spans_block(mem, task.zone, block):
        stop_at(task, Why.CUT_BY_ZONE.value, block)
        return False
    set_isolation(mem, task.zone, task.cpu, block, ISOLATE)
    task.counts[N_BLOCKS] += 1
    return True


@inlined
def cut_at(mem: Memory, task: Task, boundary: U) -> bool:
    """What a border of the isolated pageblocks cuts: False for a compound page in use, but hugetlb's."""
    if boundary >= mem.params.n_pages:
        return True
    head = containing_head(mem, boundary)
    if head == boundary:
        return True
    if np.uint64(mem.pages[head].state) & KIND_BITS == USED and not is_hugetlb(mem, head):
        stop_at(task, Why.STRADDLES.value, head)
        return False
    if not mem.params.features & HYGIENE:
        split_free_61(mem, task.cpu, boundary)
    return True


@inlined
def old_type(task: Task) -> U:
    """What the pageblocks were, as the callers say it before 6.17."""
    return CMA if task.cma else MOVABLE


@inlined
def give_back_block(mem: Memory, task: Task, block: U) -> None:
    """Undo the isolation of one pageblock."""
    undo_blocks(mem, task.zone, task.cpu, block, block + ONE, old_type(task))


@outlined
def isolate_pageblocks(mem: Memory, task: Task) -> bool:
    """The pageblocks of a range: the first, the last, then the others ascending; all or none."""
    never_inline()
    step = ONE << mem.params.pageblock_order
    first, last = block_start(mem, task.start), block_start(mem, task.end - ONE)
    if not isolate_pageblock(mem, task, first):
        return False
    if not cut_at(mem, task, first):
        give_back_block(mem, task, first)
        return False
    isolated = last == first or isolate_pageblock(mem, task, last)
    if isolated and not cut_at(mem, task, last + step):
        isolated = False
        if last != first:
            give_back_block(mem, task, last)
    if not isolated:
        give_back_block(mem, task, first)
        return False
    block = first + step
    while block < last:
        if not isolate_pageblock(mem, task, block):
            undo_blocks(mem, task.zone, task.cpu, first, block, old_type(task))
            give_back_block(mem, task, last)
            return False
        block += step
    return True
