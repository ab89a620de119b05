"""migrate_pages() before 6.3: every folio unmapped, flushed, copied and mapped again before the next one's turn.

mm/migrate.c (migrate_pages, unmap_and_move), 6.1.192.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.folios import is_hugetlb
from memmodel.kernels.migration_batch import (
    BATCH,
    STEP_FAILED,
    begin_pass,
    begin_walk,
    end_walk,
    move_at_once,
    settle,
    split_first,
    without_target,
)
from memmodel.kernels.migration_folio import ENOMEM
from memmodel.kernels.migration_job import Job, List, begin_list, pages_of, push, push_rest, splice, splice_front
from memmodel.kernels.tlb import Tlb
from memmodel.state.layout import Memory

U = np.uint64
PASSES = 10
FROM, FAILED, SPLIT_LIST = np.uint64(List.FROM), np.uint64(List.FAILED), np.uint64(List.SPLIT)


@inlined
def cut_list(mem: Memory, job: Job, first: int) -> int:
    """From a place in FROM on, as many folios as batch_pages has room for, to BATCH; where the next one begins."""
    n_pages = np.int64(0)
    while first < job.sizes[FROM]:
        place = job.lists[FROM, first]
        if is_hugetlb(mem, job.rows[place]):  # it has had its passes
            push(job, FAILED, place)
        else:
            n_pages += pages_of(job, place)
            if n_pages > np.int64(job.batch_pages) and job.sizes[BATCH]:
                break
            push(job, BATCH, place)
        first += 1
    return first


@outlined
def walk_list(mem: Memory, tlb: Tlb, job: Job, parts: bool) -> int:
    """All passes over BATCH: folios that failed, or -ENOMEM.

    Waiting for a lock or for writeback begins with the fourth pass. Pages of a folio that was split (`parts`) have one
    pass, and are not failures of their own, for the folio was one.
    """
    never_inline()
    begin_walk(job)
    for number in range(1 if parts else PASSES):
        if not begin_pass(job):
            break
        n_folios = begin_list(job, BATCH)
        for i in range(n_folios):
            place = job.lists[BATCH, i]
            if split_first(mem, tlb, job, place, job.mode, FAILED):
                continue
            errno = move_at_once(mem, tlb, job, place, number > 2)
            if errno != ENOMEM:
                settle(job, place, errno, BATCH, FAILED)
            elif not without_target(mem, tlb, job, place, job.mode):
                push_rest(job, BATCH, i, n_folios, BATCH)
                return ENOMEM
    end_walk(job)
    return 0 if parts else int(job.step[STEP_FAILED])


@inlined
def migrate_one_by_one(mem: Memory, tlb: Tlb, job: Job, total: int) -> int:
    """All of FROM but hugetlb folios, which had their turn: folios that failed, or -ENOMEM; the rest is on FAILED."""
    first = 0
    while total >= 0 and first < job.sizes[FROM]:
        first = cut_list(mem, job, first)
        failed = walk_list(mem, tlb, job, False)
        if failed < 0:
            splice_front(job, SPLIT_LIST, FAILED)
        elif job.sizes[SPLIT_LIST]:
            splice_front(job, BATCH, FAILED)
            splice(job, SPLIT_LIST, BATCH)
            problem = walk_list(mem, tlb, job, True)
            failed = problem if problem < 0 else failed
        splice(job, BATCH, FAILED)
        total = failed if failed < 0 else total + failed
    push_rest(job, FROM, first, begin_list(job, FROM), FAILED)
    return total
