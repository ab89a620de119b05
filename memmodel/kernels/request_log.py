"""The request log: what was asked for and given back, by allocation and not by pfn, to be replayed on other machines.

Each page that is given out has a number of its own, which goes with its contents when they are migrated.
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel
from memmodel.kernels.freelist import ONE
from memmodel.kernels.lru import add_lru, drain_lru_batch
from memmodel.kernels.page_alloc import alloc_block, free_block, mark_used
from memmodel.kernels.replay_state import Course, Entry, request_at
from memmodel.kernels.used import make_used_block
from memmodel.state.layout import NONE, Memory

U = np.uint64
ZERO = np.uint64(0)


@inlined
def note_block(course: Course, step: Any, kind: int, first: U, order: U) -> None:
    """An entry of the request log about a block, if there is room."""
    if course.cursor[0].n_logged >= course.log.size:
        return
    entry = course.log[course.cursor[0].n_logged]
    entry.kind = kind
    entry.id = first
    entry.order = order
    entry.request = step.request
    entry.cpu = step.cpu
    course.cursor[0].n_logged += 1


@inlined
def note(course: Course, step: Any, kind: int, first: U) -> None:
    """An entry about the block of a step."""
    note_block(course, step, kind, first, np.uint64(step.order))


@inlined
def note_alloc(course: Course, step: Any) -> None:
    """A request that succeeded: its pages get numbers."""
    if course.log.size == 0:
        return
    cursor = course.cursor[0]
    first = np.uint64(cursor.n_ids)
    note(course, step, Entry.ALLOC.value, first)
    for place in range(ONE << np.uint64(step.order)):
        course.ids[np.uint64(step.index) + place] = first + place
    cursor.n_ids += np.int64(ONE << np.uint64(step.order))


@inlined
def note_free(course: Course, step: Any) -> None:
    """A free of pages that a request, or the start, has put in use; page by page if not one request has got them."""
    if course.log.size == 0:
        return
    first = np.uint64(course.ids[step.index])
    together = first != NONE
    for place in range(ONE << np.uint64(step.order)):
        together = together and np.uint64(course.ids[np.uint64(step.index) + place]) == first + place
    if together:
        note(course, step, Entry.FREE.value, first)
        return
    for place in range(ONE << np.uint64(step.order)):
        page = np.uint64(course.ids[np.uint64(step.index) + place])
        if page != NONE:
            note_block(course, step, Entry.FREE.value, page, ZERO)


@inlined
def move_ids(course: Course, source: U, target: U) -> None:
    """A page's contents have moved, and its number with them."""
    if course.ids.size:
        course.ids[target] = course.ids[source]
        course.ids[source] = NONE


@inlined
def forget_ids(course: Course, index: U, order: U) -> None:
    """Pages that no request got."""
    if course.ids.size:
        for place in range(ONE << order):
            course.ids[index + place] = NONE


@kernel
def note_failed(course: Course, number: int) -> None:
    """The request of a step failed, as it did in the recording."""
    note(course, course.steps[number], Entry.FAILED.value, NONE)


@inlined
def free_numbered(mem: Memory, places: Any, entry: Any) -> int:
    """Free the pages of an entry where the model has them; how many it does not hold in use."""
    cpu, order = np.uint64(entry.cpu), np.uint64(entry.order)
    index = np.uint64(places[entry.id])
    together = index != NONE and index & ((ONE << order) - ONE) == ZERO
    for place in range(ONE << order):
        together = together and np.uint64(places[entry.id + place]) == index + np.uint64(place)
    missing = 0
    if together and make_used_block(mem, index, order):
        free_block(mem, index, cpu)
    else:  # here they are not neighbours, or some request for them failed
        for place in range(ONE << order):
            page = np.uint64(places[entry.id + place])
            if page != NONE and make_used_block(mem, page, ZERO):
                free_block(mem, page, cpu)
            else:
                missing += 1
    for place in range(ONE << order):
        places[entry.id + place] = NONE
    return missing


@kernel
def run_log(mem: Memory, course: Course, places: Any, counts: Any, first: int) -> int:
    """Entries of a request log from `first` on, up to the next sample or the end: the number of the one behind it.

    `places[id]` is the row of a numbered page here; `counts` are requests that succeeded, that failed, that failed in
    the recording but succeed here (and are given back at once), and pages freed that are not in use here.
    """
    for number in range(first, course.log.size):
        entry = course.log[number]
        cpu = np.uint64(entry.cpu)
        if entry.kind == Entry.SAMPLE.value:
            return number + 1
        if entry.kind == Entry.DRAIN_LRU.value:
            drain_lru_batch(mem, cpu)
        elif entry.kind == Entry.FREE.value:
            counts[3] += free_numbered(mem, places, entry)
        else:
            row = course.requests[entry.request]
            request = request_at(course, entry)
            index = alloc_block(mem, course.zonelists[row.first_zone : row.last_zone], cpu, request)
            if index == NONE:
                counts[1] += 1
                continue
            mark_used(mem, index, request.order)
            if entry.kind == Entry.FAILED.value:
                counts[2] += 1
                free_block(mem, index, cpu)
                continue
            counts[0] += 1
            if request.lru:
                add_lru(mem, index, cpu, request.order)
            for place in range(ONE << request.order):
                places[entry.id + place] = index + np.uint64(place)
    return course.log.size
