"""migrate_pages(): from the caller's list to batches, the synchronous second step, hugetlb folios, and what is left.

mm/migrate.c (migrate_pages, migrate_pages_sync, migrate_hugetlbs), 6.12.117; migration_old.py has how folios went one
by one before 6.3.
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel, never_inline, outlined
from memmodel.kernels.folios import is_hugetlb, mark_folios, marked_index, unmark_folios
from memmodel.kernels.freelist import ORDER_BITS
from memmodel.kernels.lru import isolate_folio, put_back_folio
from memmodel.kernels.migration_batch import (
    BATCH,
    NR_FAILED,
    NR_SPLIT,
    NR_SUCCEEDED,
    RETRY_PAGES,
    STEP_FAILED,
    THP_FAILED,
    THP_SPLIT,
    THP_SUCCEEDED,
    begin_pass,
    begin_walk,
    count_failed,
    end_walk,
    migrate_batch,
    move_at_once,
    settle,
)
from memmodel.kernels.migration_folio import ASYNC, EBUSY, ENOMEM, SYNC
from memmodel.kernels.migration_job import ROWS_IN_USE, Count, Job, List, begin_list, pages_of, push, push_rest, splice
from memmodel.kernels.migration_old import migrate_one_by_one
from memmodel.kernels.poisoning import first_bad_page
from memmodel.kernels.tlb import Tlb
from memmodel.state.layout import Memory, Vmstat

U = np.uint64
PASSES, ASYNC_PASSES, SYNC_PASSES = 10, 3, 7  # NR_MAX_MIGRATE_{PAGES,ASYNC,SYNC}_RETRY
FROM, RETURNED, FAILED = np.uint64(List.FROM), np.uint64(List.RETURNED), np.uint64(List.FAILED)
SPLIT_LIST, KEPT = np.uint64(List.SPLIT), np.uint64(List.KEPT)
N_NOT_ISOLATED = np.uint64(Count.N_NOT_ISOLATED)
PGMIGRATE_SUCCESS, PGMIGRATE_FAIL = np.uint64(Vmstat.PGMIGRATE_SUCCESS), np.uint64(Vmstat.PGMIGRATE_FAIL)
THP_MIGRATION_SUCCESS, THP_MIGRATION_FAIL, THP_MIGRATION_SPLIT = (
    np.uint64(counter)
    for counter in (Vmstat.THP_MIGRATION_SUCCESS, Vmstat.THP_MIGRATION_FAIL, Vmstat.THP_MIGRATION_SPLIT)
)


@inlined
def migrate_sync(mem: Memory, tlb: Tlb, job: Job) -> int:
    """A batch as far as that goes without waiting, then what is left one by one (migrate_pages_sync).

    What fails in the first step is not counted, but for large folios that were split.
    """
    failed_before, thp_failed_before = job.counts[NR_FAILED], job.counts[THP_FAILED]
    thp_split_before, split_before = job.counts[THP_SPLIT], job.counts[NR_SPLIT]
    problem = migrate_batch(mem, tlb, job, ASYNC, ASYNC_PASSES, RETURNED)
    if problem < 0:
        splice(job, RETURNED, FAILED)
        return problem
    job.counts[NR_FAILED] = failed_before
    job.counts[THP_FAILED] = thp_failed_before + job.counts[THP_SPLIT] - thp_split_before
    nr_failed = int(job.counts[NR_SPLIT] - split_before)
    splice(job, BATCH, KEPT)
    splice(job, RETURNED, KEPT)
    n_folios = begin_list(job, KEPT)
    for i in range(n_folios):
        push(job, BATCH, job.lists[KEPT, i])
        problem = migrate_batch(mem, tlb, job, job.mode, SYNC_PASSES, FAILED)
        splice(job, BATCH, FAILED)
        if problem < 0:
            push_rest(job, KEPT, i + 1, n_folios, BATCH)
            return problem
        nr_failed += problem
    return nr_failed


@outlined
def migrate_hugetlbs(mem: Memory, tlb: Tlb, job: Job) -> int:
    """The hugetlb folios of FROM, one by one: number that failed, or -ENOMEM.

    Those that only had to wait stay on FROM. Waiting for a lock begins with the fourth pass.
    """
    never_inline()
    begin_walk(job)
    for number in range(PASSES):
        if not begin_pass(job):
            break
        n_folios = begin_list(job, FROM)
        for i in range(n_folios):
            place = job.lists[FROM, i]
            if not is_hugetlb(mem, job.rows[place]):
                push(job, FROM, place)
                continue
            errno = move_at_once(mem, tlb, job, place, number > 2 and job.mode == SYNC)
            if errno != ENOMEM:
                settle(job, place, errno, FROM, FAILED)
            else:
                job.status[place] = ENOMEM
                count_failed(job, pages_of(job, place) + job.step[RETRY_PAGES], 0)
                push_rest(job, FROM, i, n_folios, FROM)
                return ENOMEM
    end_walk(job)
    return int(job.step[STEP_FAILED])


@inlined
def cut_batch(mem: Memory, job: Job, first: int) -> int:
    """From a place in FROM on, folios of so many pages that a batch is full, to BATCH; where the next one begins."""
    n_pages = np.int64(0)
    while first < job.sizes[FROM]:
        place = job.lists[FROM, first]
        first += 1
        if is_hugetlb(mem, job.rows[place]):
            push(job, FAILED, place)
            continue
        push(job, BATCH, place)
        n_pages += pages_of(job, place)
        if n_pages >= np.int64(job.batch_pages):
            break
    return first


@inlined
def migrate_list(mem: Memory, tlb: Tlb, job: Job, total: int) -> int:
    """All of FROM but hugetlb folios, which had their turn, a batch after the other: folios that failed, or -ENOMEM.

    What is left is on FAILED.
    """
    first = 0
    while total >= 0 and first < job.sizes[FROM]:
        first = cut_batch(mem, job, first)
        if job.mode == ASYNC:
            failed = migrate_batch(mem, tlb, job, ASYNC, PASSES, RETURNED)
        else:
            failed = migrate_sync(mem, tlb, job)
        splice(job, RETURNED, FAILED)
        splice(job, BATCH, FAILED)
        if failed < 0:
            splice(job, SPLIT_LIST, FAILED)
            total = failed
        elif job.sizes[SPLIT_LIST]:
            splice(job, SPLIT_LIST, BATCH)
            migrate_batch(mem, tlb, job, ASYNC, 1, FAILED)
            splice(job, BATCH, FAILED)
        if failed > 0:
            total += failed
    push_rest(job, FROM, first, begin_list(job, FROM), FAILED)
    return total


@inlined
def isolate(mem: Memory, job: Job) -> None:
    """What can move leaves its LRU list for FROM; what is on none stays where it is, with -EBUSY."""
    for place in range(job.sizes[ROWS_IN_USE]):
        index = job.rows[place]
        hugetlb = is_hugetlb(mem, index)
        job.orders[place] = np.uint64(mem.pages[index].state) & ORDER_BITS
        job.thp[place] = job.orders[place] == job.pmd_order and not hugetlb
        if not isolate_folio(mem, index) and not hugetlb:
            job.status[place] = EBUSY
            job.counts[N_NOT_ISOLATED] += 1
            continue
        push(job, FROM, np.uint64(place))


@inlined
def put_back(mem: Memory, job: Job, which: U) -> None:
    """Folios that did not move return to their LRU list by way of the CPU's batch (putback_movable_pages)."""
    for i in range(job.sizes[which]):
        put_back_folio(mem, job.rows[job.lists[which, i]], job.cpu)


@kernel
def rows_of(mem: Memory, handles: Any, indices: Any, orders: Any) -> int:
    """First row and order of each folio; place of the first handle that is stale or given twice, or -1."""
    bad = mark_folios(mem, handles)
    if bad >= 0:
        return bad
    for i in range(handles.size):
        if handles[i] < 0:
            unmark_folios(mem, handles, handles.size)
            return i
        indices[i] = marked_index(mem, handles[i])
        orders[i] = np.uint64(mem.pages[indices[i]].state) & ORDER_BITS
    unmark_folios(mem, handles, handles.size)
    return -1


@kernel
def first_poisoned(mem: Memory, indices: Any, n_pages: Any) -> int:
    """First row with a latent error in some folios, or -1."""
    for i in range(indices.size):
        bad = first_bad_page(mem, indices[i], indices[i] + n_pages[i])
        if bad < indices[i] + n_pages[i]:
            return int(bad)
    return -1


@outlined
def migrate_isolated(mem: Memory, tlb: Tlb, job: Job, one_by_one: bool) -> int:
    """migrate_pages() of FROM: folios that failed, or -ENOMEM; 0 where none is left. What is left is on FAILED."""
    never_inline()
    total = migrate_hugetlbs(mem, tlb, job)
    if one_by_one:
        total = migrate_one_by_one(mem, tlb, job, total)
    else:
        total = migrate_list(mem, tlb, job, total)
    return total if job.sizes[FAILED] else 0


@inlined
def count_migrated(mem: Memory, job: Job) -> None:
    """What /proc/vmstat tells of it."""
    for count, counter in (
        (NR_SUCCEEDED, PGMIGRATE_SUCCESS),
        (NR_FAILED, PGMIGRATE_FAIL),
        (THP_SUCCEEDED, THP_MIGRATION_SUCCESS),
        (THP_FAILED, THP_MIGRATION_FAIL),
        (THP_SPLIT, THP_MIGRATION_SPLIT),
    ):
        mem.vmstat[counter] += job.counts[count]


@kernel
def migrate_folios(mem: Memory, tlb: Tlb, job: Job, one_by_one: bool) -> int:
    """migrate_pages() of the rows of a job: folios that failed, or -ENOMEM; 0 where none is left on the list."""
    isolate(mem, job)
    left = migrate_isolated(mem, tlb, job, one_by_one)
    put_back(mem, job, FAILED)
    count_migrated(mem, job)
    return left
