"""CMA areas: the bitmap of each, and the memory that becomes one.

mm/cma.c (cma_alloc, cma_release, cma_activate_area), lib/bitmap.c (bitmap_find_next_zero_area_off), 6.12.117.
"""

from typing import Any

import numpy as np

from memmodel.jit import count_trailing_zeros, inlined, kernel
from memmodel.kernels.buddy import USED, free_pages_split
from memmodel.kernels.freelist import CMA, FREE, ONE, ORDER_BITS, account, block_type, del_free
from memmodel.kernels.page_alloc import free_block
from memmodel.kernels.pageblock import KIND_BITS, containing_head, set_pageblock_type
from memmodel.state.layout import NONE, Memory

U = np.uint64
ZERO = np.uint64(0)
WORD_SHIFT, WORD_BITS = np.uint64(6), np.uint64(63)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@inlined
def next_bit(words: Any, start: U, end: U, flip: U) -> U:
    """First bit that is set (with `flip` of all ones: clear) in [start, end), or the end."""
    bit = start
    while bit < end:
        word = (words[bit >> WORD_SHIFT] ^ flip) >> (bit & WORD_BITS)
        if word:
            return min(bit + count_trailing_zeros(word), end)
        bit = (bit | WORD_BITS) + ONE
    return end


@kernel
def find_zero_area(words: Any, n_bits: U, start: U, wanted: U, mask: U, offset: U) -> U:
    """First clear bits of that number from a bit on, the first of them on a border of the mask; `n_bits` if none."""
    while True:
        first = next_bit(words, start, n_bits, ALL)
        first = ((first + offset + mask) & ~mask) - offset
        end = first + wanted
        if end > n_bits:
            return n_bits
        taken = next_bit(words, first, end, ZERO)
        if taken == end:
            return first
        start = taken + ONE


@kernel
def write_bits(words: Any, start: U, end: U, value: bool) -> None:
    """Set or clear the bits [start, end)."""
    bit = start
    while bit < end:
        after = min((bit | WORD_BITS) + ONE, end)
        ones = ALL >> (WORD_BITS - (after - ONE - bit)) << (bit & WORD_BITS)
        if value:
            words[bit >> WORD_SHIFT] |= ones
        else:
            words[bit >> WORD_SHIFT] &= ~ones
        bit = after


@kernel
def first_clear(words: Any, start: U, end: U) -> U:
    """First clear bit of [start, end), or the end."""
    return next_bit(words, start, end, ALL)


@kernel
def last_not_free(mem: Memory, first: U, end: U) -> U:
    """First row of the last block of [first, end) that is not on a free list, or NONE."""
    found = NONE
    head = containing_head(mem, first)
    while head < end:
        state = np.uint64(mem.pages[head].state)
        if state & KIND_BITS != FREE:
            found = head
        head += ONE << (state & ORDER_BITS)
    return found


@inlined
def free_chunks(mem: Memory, index: U, end: U, cpu: U) -> None:
    """Rows of no block to the buddy in the largest chunks, each to the tail, as boot does."""
    while index < end:
        order = mem.params.max_order
        while index & ((ONE << order) - ONE) or index + (ONE << order) > end:
            order -= ONE
        free_pages_split(mem, index, cpu, order, True)
        index += ONE << order


@kernel
def reserve_rows(mem: Memory, zone: U, cpu: U, first: U, end: U) -> None:
    """Free rows leave the free lists, as if boot had kept them back; what was with them in a block stays free."""
    begin = head = containing_head(mem, first)
    while head < end:
        order = np.uint64(mem.pages[head].state) & ORDER_BITS
        account(mem, zone, cpu, block_type(mem, head), -np.int64(ONE << order))
        del_free(mem, head, order)
        head += ONE << order
    free_chunks(mem, begin, first, cpu)
    free_chunks(mem, end, head, cpu)


@kernel
def activate_area(mem: Memory, zone: U, cpu: U, first: U, end: U) -> None:
    """Reserved rows become CMA pageblocks, each freed as one block, ascending (init_cma_reserved_pageblock)."""
    step = ONE << mem.params.pageblock_order
    block = first
    while block < end:
        set_pageblock_type(mem, zone, block, CMA)
        mem.pages[block].state = USED | mem.params.pageblock_order
        free_block(mem, block, cpu)
        block += step
