"""What one call of migrate_pages() works on: its folios, the lists that they move between, and its counts."""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined
from memmodel.kernels.compact_control import Compact
from memmodel.kernels.copying import CopyRule
from memmodel.kernels.freelist import ONE
from memmodel.kernels.page_alloc import Request

U = np.uint64


class Mode(IntEnum):
    """enum migrate_mode."""

    ASYNC = 0
    SYNC_LIGHT = 1
    SYNC = 2


class Errno(IntEnum):
    """Why a folio did not move, as the kernel's functions return it."""

    MOVED = 0
    UNMAPPED = 1  # on the way
    NOT_TRIED = 2
    SPLIT = 3  # its pages went on as folios of their own
    EAGAIN = -11
    ENOMEM = -12
    EBUSY = -16
    ENOSYS = -38
    EOPNOTSUPP = -95
    EHWPOISON = -133


class Count(IntEnum):
    """What is counted."""

    NR_SUCCEEDED = 0  # base pages, here and in NR_FAILED
    NR_FAILED = 1
    NR_THP_SUCCEEDED = 2
    NR_THP_FAILED = 3
    NR_THP_SPLIT = 4
    NR_SPLIT = 5
    N_BATCHES = 6  # lists that were unmapped together and then flushed; one folio each before 6.3
    N_UNMAPPED_FOLIOS = 7  # tries that got so far
    N_SET = 8  # migration PTEs put in place
    N_REMOVED = 9
    N_TARGETS = 10  # destination folios allocated
    N_COPIED_FOLIOS = 11
    N_COPIED = 12  # base pages, repeated copies too
    N_COPY_CALLS = 13
    N_POISONED = 14  # copies that met an error
    LOCK_WAITS = 15
    WRITEBACK_WAITS = 16
    MAX_UNMAPPED = 17  # most base pages unmapped at one time
    N_UNMAPPED_PAGES = 18  # base pages of the tries above
    N_TARGET_PAGES = 19  # base pages of destination folios
    N_NOT_ISOLATED = 20  # folios on no LRU list


class List(IntEnum):
    """Lists of folios, as migrate_pages() keeps them."""

    FROM = 0
    BATCH = 1
    UNMAPPED = 2
    RETURNED = 3  # gave up in this step
    FAILED = 4  # gave up
    SPLIT = 5  # pages of large folios that were split
    KEPT = 6  # of a list that is being walked: what stays on it


class Step(IntEnum):
    """What a walk over a list keeps count of."""

    FAILED = 0  # folios that failed, for the return value
    RETRY = 1  # that another pass may move
    RETRY_THP = 2
    RETRY_PAGES = 3


class Job(NamedTuple):
    """One call of migrate_pages()."""

    rows: npt.NDArray[np.uint64]  # first row of each folio, NONE: freed; pages of split ones come behind those given
    targets: npt.NDArray[np.uint64]  # of its destination
    orders: npt.NDArray[np.uint64]
    thp: npt.NDArray[np.int64]  # 1: of PMD order and not hugetlb's, which is counted apart
    parents: npt.NDArray[np.int64]  # place of the folio that it was split from, or -1
    status: npt.NDArray[np.int64]  # Errno
    lists: npt.NDArray[np.uint64]  # [List, places in `rows`]
    sizes: npt.NDArray[np.int64]  # [List], and behind them the number of `rows` in use
    counts: npt.NDArray[np.int64]  # Count
    step: npt.NDArray[np.int64]  # Step
    lanes: npt.NDArray[np.uint64]  # as of copy_folios()
    zonelist: npt.NDArray[np.uint64]
    small: Request
    large_zonelist: npt.NDArray[np.uint64]  # GFP_TRANSHUGE has __GFP_HIGHMEM, whatever the caller's flags
    large: Request
    copy: CopyRule
    cpu: np.uint64
    mode: np.uint64
    batch_pages: np.uint64  # NR_MAX_BATCHED_MIGRATION
    pmd_order: np.uint64
    moves_thp: np.uint64  # 1: thp_migration_supported()
    splits: np.uint64  # 1: a large folio without a target is split
    splits_partial: np.uint64  # 1: a partially mapped folio is split before it is moved
    longterm_pin: np.uint64  # 1: where splitting it has to wait, it is tried again
    keeps_sources: np.uint64  # 1: what folios lay in does not go back to the allocator
    memalloc: np.uint64  # 1: the task has PF_MEMALLOC and sleeps on no lock
    compact: Compact  # the run of compaction that it is part of: targets are what that isolated


ROWS_IN_USE = np.uint64(len(List))


@inlined
def push(job: Job, which: U, place: U) -> None:
    """Onto the tail of a list."""
    job.lists[which, job.sizes[which]] = place
    job.sizes[which] += 1


@inlined
def splice_front(job: Job, which: U, onto: U) -> None:
    """All of a list in front of another."""
    n_new, n_old = job.sizes[which], job.sizes[onto]
    for i in range(n_old - 1, -1, -1):
        job.lists[onto, i + n_new] = job.lists[onto, i]
    for i in range(n_new):
        job.lists[onto, i] = job.lists[which, i]
    job.sizes[onto] += n_new
    job.sizes[which] = 0


@inlined
def begin_list(job: Job, which: U) -> np.int64:
    """Number of folios on a list that is about to be walked: none stays on it unless it is pushed again."""
    n_folios = np.int64(job.sizes[which])
    job.sizes[which] = 0
    return n_folios


@inlined
def push_rest(job: Job, which: U, first: Any, n_folios: Any, onto: U) -> None:
    """What a walk over a list has left, from a place in it on, onto the tail of a list."""
    for i in range(first, n_folios):
        push(job, onto, job.lists[which, i])


@inlined
def splice(job: Job, which: U, onto: U) -> None:
    """All of a list onto the tail of another."""
    push_rest(job, which, 0, begin_list(job, which), onto)


@inlined
def pages_of(job: Job, place: U) -> np.int64:
    """Base pages of a folio."""
    return np.int64(ONE << job.orders[place])


@inlined
def count_one(job: Job, count: U, number: Any) -> None:
    """Add to a count."""
    job.counts[count] += number
