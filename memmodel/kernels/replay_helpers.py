"""What Python asks of a replay's memory between steps: attempts, putting a wrong prediction right, lists."""

from typing import Any

import numpy as np

from memmodel.jit import kernel
from memmodel.kernels.buddy import free_pages_split
from memmodel.kernels.freelist import ONE, block_type
from memmodel.kernels.lru import drain_lru_batch
from memmodel.kernels.page_alloc import Request, free_block, get_page_from_freelist
from memmodel.kernels.pcp import drain_all_pcp, pcp_add, pcp_allowed, pcp_list
from memmodel.kernels.replay_state import Course, request_at
from memmodel.kernels.replaying import set_capture, take_silently
from memmodel.kernels.used import force_used, make_used_block
from memmodel.state.layout import NONE, Memory

U = np.uint64
ZERO = np.uint64(0)


@kernel
def put_in_step(mem: Memory, predicted: U, actual: U, order: U, migratetype: U, cpu: U) -> None:
    """The kernel took another page than the predicted one; either may be NONE. One miss shall stay one miss.

    The predicted page goes back to where it came from: the head of the CPU's list, or the buddy lists.
    """
    if predicted != NONE:  # until then it must not be taken for a part of the other one
        take_silently(mem, predicted, order)
    if actual != NONE:
        force_used(mem, actual, cpu, order)
    if predicted == NONE:
        return
    if pcp_allowed(mem, order):
        zone = np.uint64(mem.pages[predicted].zone)
        pcp_add(mem, zone, cpu, predicted, order, pcp_list(mem, zone, cpu, order, migratetype))
        mem.pages[predicted].refcount = block_type(mem, predicted)
    else:
        mem.pages[predicted].state = ZERO
        mem.pages[predicted].refcount = ZERO
        free_pages_split(mem, predicted, cpu, order, False)


@kernel
def force_step(mem: Memory, course: Course, number: int) -> None:
    """A page is freed that the model does not hold in use: the kernel must have given it out without an event."""
    step = course.steps[number]
    force_used(mem, np.uint64(step.index), np.uint64(step.cpu), np.uint64(step.order))


@kernel
def leave_range(mem: Memory, course: Course, slot: U, cpu: U) -> None:
    """Compaction has left the range that it migrated from: what it freed shall merge (lru_add_drain_cpu_zone).

    A page that its task waits for may come of it.
    """
    drain_lru_batch(mem, cpu)
    set_capture(mem, course, slot, True)
    drain_all_pcp(mem, np.uint64(course.compactions[slot].zone), cpu, cpu)
    set_capture(mem, course, slot, False)


@kernel
def free_chunks(mem: Memory, first: U, end: U, cpu: U) -> bool:
    """Free a range of pages in use in maximal aligned chunks, ascending (free_contig_range since 7.2).

    False if some of it is not in use; that is left out.
    """
    whole = True
    index = first
    while index < end:
        order = ZERO
        while order < mem.params.max_order and index & ((ONE << (order + ONE)) - ONE) == ZERO:
            if index + (ONE << (order + ONE)) > end:
                break
            order += ONE
        if make_used_block(mem, index, order):
            free_block(mem, index, cpu)
        else:
            whole = False
        index += ONE << order
    return whole


@kernel
def attempt(mem: Memory, zonelist: Any, cpu: U, request: Request, flags: U) -> U:
    """One attempt of a request that goes on: row or NONE. The page is in use, though no event tells it yet."""
    index = get_page_from_freelist(mem, zonelist, cpu, request, flags)
    if index != NONE:
        take_silently(mem, index, request.order)
    return index


@kernel
def one_attempt(mem: Memory, course: Course, number: int, slow: bool) -> U:
    """One attempt of a step's request, with the first or the later flags: row or NONE."""
    row = course.requests[course.steps[number].request]
    request = request_at(course, course.steps[number])
    zonelist = course.zonelists[row.first_zone : row.last_zone]
    flags = request.slow if slow else request.fast
    return get_page_from_freelist(mem, zonelist, np.uint64(course.steps[number].cpu), request, flags)


@kernel
def list_rows(mem: Memory, head: U, rows: Any) -> int:
    """Rows on a list, first one first, written to `rows`; how many."""
    n = 0
    index = np.uint64(mem.pages[head].next)
    while index != head:
        rows[n] = index
        n += 1
        index = np.uint64(mem.pages[index].next)
    return n
