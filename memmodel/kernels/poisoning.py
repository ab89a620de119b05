"""Latent hardware errors, and the queue between the copy that meets one and memory_failure()."""

import numpy as np

from memmodel.jit import count_trailing_zeros, inlined, kernel
from memmodel.kernels.buddy import take_out_of_buddy
from memmodel.kernels.freelist import ONE
from memmodel.state.layout import MF_QUEUE_SLOTS, NONE, Kind, Memory

U = np.uint64
SIX = np.uint64(6)
WORD_BITS = np.uint64(63)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
ZERO = np.uint64(0)
SLOTS = np.uint64(MF_QUEUE_SLOTS)
TAKEN_OFF = np.uint64(0x48575053)  # what the kernel writes into page->private
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
    return enqueue(mem, cpu, index, ZERO)


@inlined
def enqueue(mem: Memory, cpu: U, index: U, flags: U) -> bool:
    """The same with MF_ flags; a copy that meets an error gives none."""
    queue = mem.queues[cpu]
    if queue.count == SLOTS:
        queue.dropped += ONE
        return False
    place = (np.uint64(queue.head) + np.uint64(queue.count)) % SLOTS
    queue.index[place] = index
    queue["flags"][place] = flags
    queue.count += ONE
    return True


@kernel
def queue_entry(mem: Memory, cpu: U, index: U, flags: U) -> bool:
    """enqueue() for callers that are no kernels."""
    return enqueue(mem, cpu, index, flags)


@inlined
def take_page_off_buddy(mem: Memory, index: U, cpu: U) -> bool:
    """Keep a free page off the lists for good; False if it is not free.

    Its `prev` link says so: unpoisoning puts such a page back where it was, and frees any other.
    """
    if not take_out_of_buddy(mem, index, cpu, ZERO):
        return False
    page = mem.pages[index]
    page.state = LOST
    page.refcount = ONE
    page.next = NONE
    page.prev = TAKEN_OFF
    return True
