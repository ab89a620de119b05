"""A contiguous range in a replay: which folios leave their LRU lists, and the free blocks that are taken."""

from typing import Any

import numpy as np

from memmodel.jit import kernel
from memmodel.kernels.buddy import USED
from memmodel.kernels.contig import first_busy, free_block_around
from memmodel.kernels.contig_sources import CLUSTER, may_isolate
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.isolation import isolate_free_page
from memmodel.kernels.lru import LRU, isolate_folio
from memmodel.kernels.pageblock import KIND_BITS, block_start
from memmodel.kernels.replay_state import Course
from memmodel.kernels.replaying import take_silently
from memmodel.kernels.request_log import forget_ids
from memmodel.state.layout import NONE, Memory

U = np.uint64
ZERO = np.uint64(0)


@kernel
def isolate_next(mem: Memory, index: U, end: U, rows: Any) -> tuple[U, int]:
    """The next 32 pages or more of a range: (where the next call goes on, number of folios written to `rows`)."""
    n_folios, taken = 0, ZERO
    while index < end and taken < CLUSTER:
        last = min(block_start(mem, index) + (ONE << mem.params.pageblock_order), end)
        while index < last and taken < CLUSTER:
            state = np.uint64(mem.pages[index].state)
            used = state & KIND_BITS == USED
            if used and np.uint64(mem.pages[index].pg_flags) & LRU and may_isolate(mem, index):
                isolate_folio(mem, index)
                rows[n_folios] = index
                n_folios += 1
                taken += ONE << (state & ORDER_BITS)
            index += ONE << (state & ORDER_BITS)
        index = min(index, last)
    return index, n_folios


@kernel
def take_contig(mem: Memory, course: Course, start: U, end: U, cpu: U, blocks: Any) -> tuple[int, U]:
    """Take a range off the lists: (number of blocks written to `blocks`, NONE), or 0 and the first page in the way."""
    index = free_block_around(mem, start)
    busy = first_busy(mem, index, end)
    if busy != NONE:
        return 0, busy
    n_blocks = 0
    while index < end:
        order = isolate_free_page(mem, index, cpu)
        take_silently(mem, index, order)
        forget_ids(course, index, order)
        blocks[n_blocks, 0] = index
        blocks[n_blocks, 1] = order
        n_blocks += 1
        index += ONE << order
    return n_blocks, NONE
