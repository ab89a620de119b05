"""A recorded trace, step by step: requests and frees are done as the kernel would, and compared with what it did.

A step is a row of `step_dtype`, made by memmodel.replaying. What happens seldom ends the loop: Python does it, or notes
a wrong prediction, and goes on behind it.
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel
from memmodel.kernels.buddy import USED, free_pages_split
from memmodel.kernels.folios import forget_folio, new_folio_as
from memmodel.kernels.freelist import FREE, ONE, ORDER_BITS, fold_difference
from memmodel.kernels.isolation import ISOLATED, isolate_free_page, list_head_of, rotate_before
from memmodel.kernels.lru import add_lru, drain_lru_batch, leave_lru
from memmodel.kernels.page_alloc import alloc_block, free_block, mark_used
from memmodel.kernels.pageblock import block_start
from memmodel.kernels.private_lists import choose_targets, drop_held, give_back_target, hold, next_target
from memmodel.kernels.replay_state import Action, Course, Entry, Stop, compaction_of, is_of_task, request_at
from memmodel.kernels.request_log import forget_ids, move_ids, note, note_alloc, note_free
from memmodel.kernels.used import is_used, make_used_block
from memmodel.state.layout import MAX_COMPACTIONS, NONE, NR_ORDERS, RAMFS_BITS, Memory, Vmstat

U = np.uint64
ZERO = np.uint64(0)
FOUR = np.uint64(4)
PGFREE = np.uint64(Vmstat.PGFREE)
NO_ORDER = np.uint64(NR_ORDERS)
STAYS = np.uint64(2)  # `lru` of a request whose pages never move: page cache of a file system without that operation
RAMFS = np.uint64(RAMFS_BITS)


@inlined
def set_capture(mem: Memory, course: Course, slot: U, on: bool) -> None:
    """What the compacting task waits for holds while it runs itself."""
    compaction = course.compactions[slot]
    zone = mem.zones[compaction.zone]
    if on:
        zone.capture_order = compaction.capture_order
        zone.capture_type = compaction.capture_type
        zone.captured = compaction.captured
    else:
        compaction.captured = zone.captured
        zone.capture_order = NO_ORDER
        zone.captured = NONE


@inlined
def take_silently(mem: Memory, index: U, order: U) -> None:
    """A block is in use that no request got: pgalloc does not count it."""
    mem.pages[index].state = USED | order
    mem.pages[index].refcount = ONE


@inlined
def give_out(mem: Memory, course: Course, step: Any) -> None:
    """The page of a request leaves the allocator."""
    request = request_at(course, step)
    index = np.uint64(step.index)
    mark_used(mem, index, request.order)
    mem.pages[index].next = NONE
    if request.lru:
        add_lru(mem, index, np.uint64(step.cpu), request.order)
    if request.lru == STAYS:
        new_folio_as(mem, index, ONE, RAMFS)
    course.cursor[0].n_allocations += 1
    note_alloc(course, step)


@inlined
def step_alloc(mem: Memory, course: Course, step: Any) -> int:
    """A request: predict its page."""
    cursor = course.cursor[0]
    key = np.int64(step.pid) * 2 + np.int64(step.softirq)
    for place in range(cursor.n_waiting):
        if cursor.waiting[place] == key:
            return Stop.SELDOM.value
    row = course.requests[step.request]
    request = request_at(course, step)
    zonelist = course.zonelists[row.first_zone : row.last_zone]
    cpu = np.uint64(step.cpu)
    index = alloc_block(mem, zonelist, cpu, request)
    if index != step.index:
        cursor.predicted = index
        return Stop.WRONG_PAGE.value
    if index == NONE:
        cursor.n_failed += 1
        note(course, step, Entry.FAILED.value, NONE)
        return Stop.END.value
    give_out(mem, course, step)
    return Stop.END.value


@inlined
def is_unused_target(mem: Memory, course: Course, slot: U, step: Any) -> bool:
    """Whether a free amid a migration says that a target was not used: it has its mm_page_free and is not freed."""
    compaction = course.compactions[slot]
    if not compaction.chosen:
        choose_targets(mem, slot, np.uint64(compaction.n_sources))
        compaction.chosen = ONE
    if mem.pages[step.index].state != ISOLATED or step.order != 0:
        return False
    course.cursor[0].n_unused_targets += 1
    give_back_target(mem, slot, np.uint64(step.index))
    return True


@inlined
def move_source(mem: Memory, course: Course, slot: U, step: Any) -> None:
    """What any other such free says: a source has moved to its target."""
    target = next_target(mem, slot)
    if target != NONE:
        take_silently(mem, target, ZERO)
        move_ids(course, np.uint64(step.index), target)
        add_lru(mem, target, np.uint64(step.cpu), np.uint64(step.order))


@inlined
def step_free(mem: Memory, course: Course, step: Any) -> int:
    """A page comes back."""
    index, order, cpu = np.uint64(step.index), np.uint64(step.order), np.uint64(step.cpu)
    slot = compaction_of(course, step)
    migrates = slot != NONE and course.compactions[slot].migrating and not step.softirq
    if migrates and is_unused_target(mem, course, slot, step):
        return Stop.END.value
    if np.uint64(mem.pages[index].state) == ISOLATED | order:
        drop_held(mem, index)
        take_silently(mem, index, order)
    if not make_used_block(mem, index, order):
        return Stop.NOT_IN_USE.value
    course.cursor[0].n_frees += 1
    forget_folio(mem, index)
    if migrates:
        move_source(mem, course, slot, step)
    if step.action == Action.FREE_IN_BATCH.value:
        drain_lru_batch(mem, cpu)
        note(course, step, Entry.DRAIN_LRU.value, NONE)
        leave_lru(mem, index)
    elif step.action == Action.FREE_DIRECT.value:
        course.cursor[0].n_direct += 1
        leave_lru(mem, index)
        mem.pages[index].state = ZERO
        mem.pages[index].refcount = ZERO
        mem.vmstat[PGFREE] += np.int64(ONE << order)
        free_pages_split(mem, index, cpu, order, False)
        note_free(course, step)
    else:
        note_free(course, step)
        free_block(mem, index, cpu)
    return Stop.END.value


@inlined
def step_given(mem: Memory, course: Course, step: Any) -> int:
    """A free block that compaction isolated, or made the first of its list."""
    index, cpu = np.uint64(step.index), np.uint64(step.cpu)
    if mem.pages[index].state != FREE | np.uint64(step.order):
        return Stop.NOT_FREE.value
    if step.action == Action.ROTATE.value:
        course.cursor[0].n_rotated += 1
        rotate_before(mem, list_head_of(mem, index), index)
        return Stop.END.value
    course.cursor[0].n_isolated += 1
    order = isolate_free_page(mem, index, cpu)
    slot = compaction_of(course, step)
    if slot != NONE:
        hold(mem, slot, index, order)
        course.compactions[slot].last_isolated = index
    else:  # for a contiguous allocation: the caller has it
        take_silently(mem, index, order)
        forget_ids(course, index, order)
    return Stop.END.value


@inlined
def step_search(mem: Memory, course: Course, step: Any) -> None:
    """The search for targets counts its failures where that for sources does (fast_isolate_freepages).

    A block in the last quarter before the free scanner is a success; a lower one is used, but the count stays.
    """
    slot = compaction_of(course, step)
    if slot == NONE:
        return
    compaction = course.compactions[slot]
    free, migrate = np.uint64(step.index), np.uint64(compaction.migrate)
    low = block_start(mem, free - (free - migrate) // FOUR)
    if step.order == ZERO:
        compaction.fast_search_fail += ONE
    elif compaction.last_isolated >= low:
        compaction.fast_search_fail = ZERO


@inlined
def step_prepare(mem: Memory, course: Course, step: Any) -> int:
    """A page of a range that is freed in chunks."""
    index = np.uint64(step.index)
    if not make_used_block(mem, index, ZERO):
        return Stop.NOT_IN_USE.value
    course.cursor[0].n_frees += 1
    leave_lru(mem, index)
    return Stop.END.value


@inlined
def step_idle(mem: Memory, course: Course, step: Any) -> None:
    """A CPU that goes idle brings its counter differences in."""
    for zone in range(mem.zones.size):
        if fold_difference(mem, np.uint64(zone), np.uint64(step.cpu)):
            course.cursor[0].n_folds += 1


@inlined
def do_step(mem: Memory, course: Course, step: Any) -> int:
    """One step; why the loop should end, or Stop.END."""
    action = step.action
    if action == Action.ALLOC.value:
        return step_alloc(mem, course, step)
    if action <= Action.FREE_DIRECT.value:
        return step_free(mem, course, step)
    if action == Action.ISOLATE.value or action == Action.ROTATE.value:
        return step_given(mem, course, step)
    if action == Action.PREPARE.value:
        return step_prepare(mem, course, step)
    if action >= Action.SELDOM.value:
        return Stop.SELDOM.value
    if action == Action.PUSH.value:
        if not is_used(mem, np.uint64(step.index)):
            return Stop.NOT_IN_USE.value
        step.order = np.uint64(mem.pages[step.index].state) & ORDER_BITS  # the event says 0 whatever it is
        note_free(course, step)
        forget_folio(mem, np.uint64(step.index))
        free_block(mem, np.uint64(step.index), np.uint64(step.cpu))
    elif action == Action.SEARCH.value:
        step_search(mem, course, step)
    elif action == Action.SAMPLE.value:
        note(course, step, Entry.SAMPLE.value, NONE)
    else:
        step_idle(mem, course, step)
    return Stop.END.value


@kernel
def run_steps(mem: Memory, course: Course, first: int) -> tuple[int, int]:
    """Steps from `first` on, to the end or to one that Python must look at: (its number, why)."""
    n_captures = 0
    for place in range(MAX_COMPACTIONS):
        n_captures += course.compactions[place].capture_order != NO_ORDER
    for number in range(first, course.steps.size):
        step = course.steps[number]
        if course.cursor[0].n_tasks and is_of_task(course, step, number):
            return number, Stop.SELDOM.value
        slot = compaction_of(course, step) if n_captures else NONE
        if slot != NONE:
            set_capture(mem, course, slot, True)
        stop = do_step(mem, course, step)
        if slot != NONE:
            set_capture(mem, course, slot, False)
        if stop != Stop.END.value:
            return number, stop
    return course.steps.size, Stop.END.value


@kernel
def give_out_step(mem: Memory, course: Course, number: int) -> None:
    """The page of a step's request is in use, whatever was predicted."""
    if course.steps[number].index != NONE:
        leave_lru(mem, np.uint64(course.steps[number].index))  # a page that the model held in use may be on one
    give_out(mem, course, course.steps[number])
