"""Latent hardware errors, and the queue between the copy that meets one and memory_failure()."""

from typing import Any

import numpy as np

from memmodel.jit import count_trailing_zeros, inlined, kernel
from memmodel.kernels.buddy import take_out_of_buddy
from memmodel.kernels.freelist import ONE
from memmodel.state.layout import MF_QUEUE_SLOTS, Kind, Memory, PageFlag

U = np.uint64
SIX = np.uint64(6)
WORD_BITS = np.uint64(63)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
ZERO = np.uint64(0)
SLOTS = np.uint64(MF_QUEUE_SLOTS)
HWPOISON = np.uint64(PageFlag.HWPOISON)
LOST = np.uint64(Kind.HWPOISON << 4)


@inlined
def first_bad_page(mem: Memory, index: U, end: U) -> U:
    """First row in [index, end) with a latent error, or `end`: 64 clean pages in one test."""
    while index < end:
        word = mem.ue_pages[index >> SIX] & (ALL << (index & WORD_BITS))
        if word:
            return min((index & ~WORD_BITS) + count_trailing_zeros(word), end)
        index = (index | WORD_BITS) + ONE
    return end


@inlined
def first_bad_line(mem: Memory, index: U) -> U:
    """First poisoned 64-byte line of a page that has one, counted from the page's start."""
    shift = mem.params.page_shift - SIX
    line = mem.ue_lines[np.searchsorted(mem.ue_lines, index << shift)]
    return np.uint64(line - (index << shift))


@inlined
def queue_failure(mem: Memory, cpu: U, index: U) -> bool:
    """memory_failure_queue(): False where the CPU's 16 slots are full, and this newest entry is dropped."""
    queue = mem.queues[cpu]
    if queue.count == SLOTS:
        queue.dropped += ONE
        return False
    queue.index[(np.uint64(queue.head) + np.uint64(queue.count)) % SLOTS] = index
    queue.count += ONE
    return True


@inlined
def take_page_off_buddy(mem: Memory, index: U, cpu: U) -> bool:
    """Keep a free page off the lists for good; False if it is not free."""
    if not take_out_of_buddy(mem, index, cpu, ZERO):
        return False
    page = mem.pages[index]
    page.state = LOST
    page.refcount = ONE
    return True


@kernel
def drain_failures(mem: Memory, cpu: U, indices: Any, taken: Any) -> int:
    """memory_failure_work_func(): first in, first out, until the queue is empty; entries written.

    A page gets PG_hwpoison; a free one leaves the buddy. `taken`: 1 taken off the buddy, 0 not, 2 already poisoned.
    """
    queue = mem.queues[cpu]
    n = 0
    while queue.count:
        index = np.uint64(queue.index[queue.head])
        queue.head = (np.uint64(queue.head) + ONE) % SLOTS
        queue.count -= ONE
        page = mem.pages[index]
        indices[n] = index
        if np.uint64(page.pg_flags) & HWPOISON:
            taken[n] = 2
        else:
            page.pg_flags = np.uint64(page.pg_flags) | HWPOISON
            taken[n] = 1 if take_page_off_buddy(mem, index, cpu) else 0
        n += 1
    return n
