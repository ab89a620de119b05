"""What a replay is made of: steps, requests, what is counted, compactions on their way, the request log."""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined
from memmodel.kernels.page_alloc import Request
from memmodel.state.layout import MAX_COMPACTIONS, NONE

U = np.uint64


class Action(IntEnum):
    """What a step is."""

    ALLOC = 0  # mm_page_alloc
    FREE = 1  # mm_page_free
    FREE_IN_BATCH = 2  # ... of a page whose mm_page_free_batched is to come
    FREE_DIRECT = 3  # ... that found the per-CPU lists locked
    PUSH = 4  # mm_page_free_batched
    ISOLATE = 5  # compaction took a free block
    ROTATE = 6  # compaction's search for targets made a block the first of its list
    SEARCH = 7  # compaction searched the free lists for targets; `order` is 1 if it took any
    PREPARE = 8  # mm_page_free of a page whose range is freed in chunks, later
    IDLE = 9  # the CPU was idle: its counter differences are folded
    SAMPLE = 10  # nothing happens, but the request log has an entry
    SELDOM = 11  # Python's part
    KSWAPD_END = 12  # likewise: before this event a run of kswapd had ended
    VMSTAT = 13  # likewise: the vmstat worker runs
    RELEASE = 14  # likewise: the last page of a range that is freed in chunks
    TAKE = 15  # likewise: before this event a CMA allocation takes its range


class Stop(IntEnum):
    """Why the loop ended at a step."""

    END = 0
    SELDOM = 1
    WRONG_PAGE = 2  # predicted and actual row are in the cursor
    NOT_IN_USE = 3  # a free of a page that the model does not hold in use
    NOT_FREE = 4  # a given free block that the model does not hold free


step_dtype = np.dtype(
    [
        ("row", "u4"),  # of the trace
        ("index", "u4"),  # row of the page, NONE where it is NULL
        ("pid", "i4"),
        ("request", "u4"),  # row of the table of requests
        ("cpu", "u2"),
        ("action", "u1"),
        ("order", "u1"),
        ("softirq", "u1"),
    ],
    align=True,
)


request_dtype = np.dtype([(name, "u8") for name in Request._fields] + [("first_zone", "u8"), ("last_zone", "u8")])


cursor_dtype = np.dtype(
    [
        ("predicted", "u4"),
        ("n_allocations", "i8"),
        ("n_failed", "i8"),
        ("n_frees", "i8"),
        ("n_isolated", "i8"),
        ("n_rotated", "i8"),
        ("n_direct", "i8"),
        ("n_folds", "i8"),
        ("n_unused_targets", "i8"),
        ("n_logged", "i8"),
        ("n_ids", "i8"),
        ("n_waiting", "i8"),  # tasks in `waiting`
        ("waiting", "i8", (64,)),  # pid << 1 | softirq of requests that went into reclaim or compaction
        ("n_tasks", "i8"),  # that compact, as the model predicts
        ("tasks", "i8", (MAX_COMPACTIONS,)),  # their pids
        ("usual", "i8"),  # number of a step that is none of theirs all the same
    ],
    align=True,
)


compaction_dtype = np.dtype(
    [
        ("running", "u1"),
        ("migrating", "u1"),
        ("chosen", "u1"),  # this migration's sources have their targets
        ("capture_order", "u1"),  # NR_ORDERS: nothing is captured
        ("capture_type", "u1"),
        ("pid", "i4"),
        ("captured", "u4"),
        ("zone", "u4"),
        ("last_isolated", "u4"),
        ("migrate", "u4"),  # row of the migration scanner
        ("fast_search_fail", "u4"),
        ("n_sources", "u8"),
    ],
    align=True,
)


log_dtype = np.dtype(
    [
        ("id", "u4"),  # number of the first page
        ("request", "u4"),
        ("cpu", "u2"),
        ("kind", "u1"),  # Entry
        ("order", "u1"),
    ],
    align=True,
)


class Entry(IntEnum):
    """What a row of the request log is."""

    ALLOC = 0
    FAILED = 1  # a request that failed
    FREE = 2
    DRAIN_LRU = 3  # a batch was freed: the CPU's LRU-add batch is emptied before
    SAMPLE = 4


class Course(NamedTuple):
    """What the loop works on beside the memory.

    With room in `log` it also writes what was asked for, by allocation and not by pfn: each page that is given out has
    a number of its own, which goes with its contents when they are migrated.
    """

    steps: npt.NDArray[Any]  # step_dtype
    requests: npt.NDArray[Any]  # request_dtype, by kind of request
    zonelists: npt.NDArray[np.uint64]
    cursor: npt.NDArray[Any]  # cursor_dtype, [1]
    compactions: npt.NDArray[Any]  # compaction_dtype, [MAX_COMPACTIONS]
    ids: npt.NDArray[np.uint32]  # number of each page in use, [pages] or empty
    log: npt.NDArray[Any]  # log_dtype, [steps] or empty


@inlined
def request_at(course: Course, step: Any) -> Request:
    """The request of a step."""
    row = course.requests[step.request]
    return Request(
        np.uint64(row.order),
        np.uint64(row.migratetype),
        np.uint64(row.highest),
        np.uint64(row.fast),
        np.uint64(row.slow),
        np.uint64(row.lru),
    )


@inlined
def is_of_task(course: Course, step: Any, number: int) -> bool:
    """Whether a free, or an operation of compaction, is for a predicted compaction to tell."""
    cursor = course.cursor[0]
    action = step.action
    frees = bool(action == Action.FREE.value) or bool(action == Action.FREE_DIRECT.value)
    operates = bool(action >= Action.ISOLATE.value) and bool(action <= Action.SEARCH.value)
    if step.softirq or number == cursor.usual or not (frees or operates):
        return False
    for place in range(cursor.n_tasks):
        if cursor.tasks[place] == step.pid:
            return True
    return False


@inlined
def compaction_of(course: Course, step: Any) -> U:
    """Slot of the compaction that the step's task runs, or NONE."""
    for slot in range(MAX_COMPACTIONS):
        compaction = course.compactions[slot]
        if compaction.running and compaction.pid == step.pid:
            return np.uint64(slot)
    return NONE
