"""A list of folios unmapped together, flushed once, then copied and mapped again (migrate_pages_batch).

mm/migrate.c, 6.12.117; the algorithm came in 6.3.
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.copying import finish_lanes
from memmodel.kernels.migration_folio import (
    ASYNC,
    EAGAIN,
    ENOMEM,
    ENOSYS,
    MOVED,
    PARTIALLY,
    UNMAPPED,
    bits_of,
    move_folio,
    split_folio,
    undo_unmap,
    unmap_folio,
)
from memmodel.kernels.migration_job import (
    Count,
    Errno,
    Job,
    List,
    Step,
    begin_list,
    count_one,
    pages_of,
    push,
    push_rest,
    splice,
)
from memmodel.kernels.tlb import Tlb, flush_deferred
from memmodel.state.layout import Memory

U = np.uint64
SPLIT = Errno.SPLIT.value
BATCH, UNMAPPED_LIST = np.uint64(List.BATCH), np.uint64(List.UNMAPPED)
NR_SUCCEEDED, NR_FAILED = np.uint64(Count.NR_SUCCEEDED), np.uint64(Count.NR_FAILED)
THP_SUCCEEDED, THP_FAILED = np.uint64(Count.NR_THP_SUCCEEDED), np.uint64(Count.NR_THP_FAILED)
THP_SPLIT, NR_SPLIT = np.uint64(Count.NR_THP_SPLIT), np.uint64(Count.NR_SPLIT)
STEP_FAILED, RETRY = np.uint64(Step.FAILED), np.uint64(Step.RETRY)
RETRY_THP, RETRY_PAGES = np.uint64(Step.RETRY_THP), np.uint64(Step.RETRY_PAGES)
N_BATCHES, MAX_UNMAPPED = np.uint64(Count.N_BATCHES), np.uint64(Count.MAX_UNMAPPED)


@inlined
def begin_walk(job: Job) -> None:
    """Nothing failed yet, and a first pass is to be made."""
    job.step[:] = 0
    job.step[RETRY] = 1


@inlined
def begin_pass(job: Job) -> bool:
    """Whether another pass is to be made; it counts anew what waits."""
    wanted = job.step[RETRY] != 0
    if wanted:
        job.step[RETRY:] = 0
    return bool(wanted)


@inlined
def end_walk(job: Job) -> None:
    """What still waits after the last pass has failed."""
    job.step[STEP_FAILED] += job.step[RETRY]
    count_failed(job, job.step[RETRY_PAGES], job.step[RETRY_THP])
    job.step[RETRY:] = 0


@inlined
def count_failed(job: Job, pages: np.int64, thp: Any) -> None:
    """Folios that did not move."""
    count_one(job, NR_FAILED, pages)
    count_one(job, THP_FAILED, thp)


@inlined
def settle(job: Job, place: U, errno: int, waiting: U, returned: U) -> None:
    """A folio has moved, waits on its list for another pass, or has failed for good."""
    pages, thp = pages_of(job, place), job.thp[place]
    job.status[place] = errno
    if errno == MOVED:
        count_one(job, NR_SUCCEEDED, pages)
        count_one(job, THP_SUCCEEDED, thp)
    elif errno == EAGAIN:
        push(job, waiting, place)
        job.step[RETRY] += 1
        job.step[RETRY_THP] += thp
        job.step[RETRY_PAGES] += pages
    else:
        job.step[STEP_FAILED] += 1
        count_failed(job, pages, thp)
        push(job, returned, place)


@inlined
def try_split(mem: Memory, tlb: Tlb, job: Job, place: U, mode: U) -> int:
    """Split a folio, counted; 0 or why not."""
    thp = job.thp[place]
    problem = split_folio(mem, tlb, job, place, mode)
    if problem == 0:
        count_one(job, THP_SPLIT, thp)
        count_one(job, NR_SPLIT, 1)
    return problem


@inlined
def split_first(mem: Memory, tlb: Tlb, job: Job, place: U, mode: U, returned: U) -> bool:
    """Whether a folio is not moved but split: one that waits for that, or where huge pages cannot move."""
    thp = job.thp[place]
    # The list of folios that wait has none of two pages.
    may_wait = bool(job.splits_partial) and pages_of(job, place) > 2
    waits = may_wait and bool(bits_of(mem, job.rows[place]) & PARTIALLY)
    unsupported = thp != 0 and not job.moves_thp
    if not waits and not unsupported:
        return False
    problem = try_split(mem, tlb, job, place, mode)
    if problem == 0:
        job.status[place] = SPLIT
        job.step[STEP_FAILED] += 1
        count_one(job, THP_FAILED, thp)
    elif unsupported:
        settle(job, place, ENOSYS, returned, returned)
    return problem == 0 or unsupported


@outlined
def without_target(mem: Memory, tlb: Tlb, job: Job, place: U, mode: U) -> bool:
    """There was no target: split a large folio; False where this ends the walk."""
    never_inline()
    pages, thp = pages_of(job, place), job.thp[place]
    problem = ENOMEM
    if pages > 1 and job.splits:
        problem = try_split(mem, tlb, job, place, mode)
    if problem == EAGAIN and job.longterm_pin:
        settle(job, place, EAGAIN, BATCH, BATCH)
        return True
    job.status[place] = SPLIT if problem == 0 else ENOMEM
    job.step[STEP_FAILED] += 1
    count_one(job, THP_FAILED, thp)
    if problem:
        count_failed(job, pages + job.step[RETRY_PAGES], job.step[RETRY_THP])
    return problem == 0


@outlined
def unmap_batch(mem: Memory, tlb: Tlb, job: Job, mode: U, passes: int, returned: U) -> int:
    """Phase 1: unmap the folios of BATCH; what has to wait stays there. 0 or -ENOMEM."""
    never_inline()
    for _ in range(passes):
        if not begin_pass(job):
            break
        n_folios = begin_list(job, BATCH)
        for i in range(n_folios):
            place = job.lists[BATCH, i]
            if split_first(mem, tlb, job, place, mode, returned):
                continue
            errno = unmap_folio(mem, tlb, job, place, mode, mode == ASYNC, True)
            if errno == UNMAPPED:
                push(job, UNMAPPED_LIST, place)
            elif errno != ENOMEM:
                settle(job, place, errno, BATCH, returned)
            elif not without_target(mem, tlb, job, place, mode):
                push_rest(job, BATCH, i, n_folios, BATCH)
                job.step[RETRY:] = 0
                return ENOMEM
    end_walk(job)
    return 0


@outlined
def move_batch(mem: Memory, job: Job, passes: int, returned: U) -> None:
    """Phase 3, and 4 for those that could not: back to where they were."""
    never_inline()
    waiting = 0
    job.step[RETRY] = 1
    for _ in range(passes):
        if not begin_pass(job):
            break
        n_folios = begin_list(job, UNMAPPED_LIST)
        for i in range(n_folios):
            place = job.lists[UNMAPPED_LIST, i]
            errno, waiting = move_folio(mem, job, place, waiting)
            if errno != MOVED and errno != EAGAIN:
                undo_unmap(mem, job, place)
            settle(job, place, errno, UNMAPPED_LIST, returned)
    finish_lanes(mem, job.lanes, waiting)
    end_walk(job)
    for i in range(job.sizes[UNMAPPED_LIST]):
        undo_unmap(mem, job, job.lists[UNMAPPED_LIST, i])
    splice(job, UNMAPPED_LIST, returned)


@inlined
def count_unmapped(mem: Memory, job: Job) -> None:
    """Pages that nobody can reach until they are mapped again."""
    unmapped = np.int64(0)
    for i in range(job.sizes[UNMAPPED_LIST]):
        unmapped += pages_of(job, job.lists[UNMAPPED_LIST, i])
    count_one(job, N_BATCHES, 1 if unmapped else 0)
    job.counts[MAX_UNMAPPED] = max(job.counts[MAX_UNMAPPED], unmapped)


@outlined
def migrate_batch(mem: Memory, tlb: Tlb, job: Job, mode: U, passes: int, returned: U) -> int:
    """The folios of BATCH: number that failed, or -ENOMEM (migrate_pages_batch).

    Those that gave up go to `returned`; those that only had to wait stay on BATCH.
    """
    never_inline()
    begin_walk(job)
    problem = unmap_batch(mem, tlb, job, mode, passes, returned)
    count_unmapped(mem, job)
    flush_deferred(tlb, job.cpu)
    move_batch(mem, job, passes, returned)
    return problem if problem else int(job.step[STEP_FAILED])


@outlined
def move_at_once(mem: Memory, tlb: Tlb, job: Job, place: U, waits: bool) -> int:
    """One folio unmapped, flushed and moved before the next one's turn: hugetlb's way, and everyone's before 6.3."""
    never_inline()
    errno = unmap_folio(mem, tlb, job, place, job.mode, False, waits)
    if errno == UNMAPPED:
        count_one(job, N_BATCHES, 1)
        job.counts[MAX_UNMAPPED] = max(job.counts[MAX_UNMAPPED], pages_of(job, place))
        errno, waiting = move_folio(mem, job, place, 0)
        finish_lanes(mem, job.lanes, waiting)
        if errno != MOVED:
            undo_unmap(mem, job, place)
    return errno
