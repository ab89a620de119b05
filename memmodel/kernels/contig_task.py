"""What one alloc_contig_range() works on, what it counts, and why it gave up."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined
from memmodel.kernels.page_alloc import Request

U = np.uint64


class Why(IntEnum):
    """What stood in the way; the row of the page is counted beside it."""

    NOTHING = 0
    ISOLATED = 1  # another range has the pageblock
    CMA = 2  # a CMA pageblock, and the range is not for cma_alloc()
    CUT_BY_ZONE = 3  # the pageblock belongs to two zones
    UNMOVABLE = 4
    STRADDLES = 5  # a compound page that begins before or ends behind the isolated pageblocks
    BUSY = 6  # not free after all tries
    NO_TARGET = 7
    SIGNAL = 8
    NOT_WHOLE = 9  # a compound page was asked for, and free blocks reach beyond the range


class ContigCount(IntEnum):
    """Places in a task's counts; pages are base pages."""

    WHY = 0
    WHERE = 1
    N_ISOLATED_BLOCKS = 2
    N_BATCHES = 3  # calls of migrate_pages()
    N_DROPPED = 4  # pages of clean page cache
    N_REPLACED = 5  # pages of free hugetlb folios, for which the pool got others
    N_FREED = 6  # pages before and behind the range that came along and went back


class Task(NamedTuple):
    """One alloc_contig_range()."""

    zone: np.uint64
    cpu: np.uint64
    start: np.uint64  # rows
    end: np.uint64
    cma: np.uint64  # 1: for cma_alloc()
    whole: np.uint64  # 1: for a compound page
    signal_after: np.uint64  # batches after which a fatal signal is pending
    one_by_one: np.uint64  # 1: as migrate_pages() did before 6.3
    huge: Request  # for hugetlb folios in place of free ones
    huge_zones: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int64]  # ContigCount


WHY, WHERE = np.uint64(ContigCount.WHY), np.uint64(ContigCount.WHERE)


@inlined
def stop_at(task: Task, why: int, index: U) -> None:
    """Remember what stood in the way, and where."""
    task.counts[WHY] = why
    task.counts[WHERE] = np.int64(index)
