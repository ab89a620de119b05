"""What only later events of a trace tell: ends of kswapd runs, where scans begin, drains, ranges freed together."""

from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.kernels.replay_state import Action
from memmodel.replaying.cma import CmaArea, Take
from memmodel.sources.ftrace import FIELDS, Context, Event, Trace
from memmodel.sources.records import IntArray
from memmodel.state.layout import NONE
from memmodel.state.machine import Machine

__all__ = ["chunked_frees", "freed_first", "kswapd_ends", "scan_starts", "vmstat_runs"]


def freed_first(steps: npt.NDArray[Any]) -> IntArray:
    """Rows of the pages that are freed before any request gets them: they were in use at the start."""
    frees = (Action.FREE, Action.FREE_IN_BATCH, Action.FREE_DIRECT, Action.PREPARE, Action.RELEASE)
    told = steps[np.isin(steps["action"], (Action.ALLOC, *frees)) & (steps["index"] != NONE)]
    sizes = 1 << told["order"].astype(np.int64)
    pages = np.repeat(told["index"].astype(np.int64) + sizes - np.cumsum(sizes), sizes) + np.arange(sizes.sum())
    rows, first = np.unique(pages, return_index=True)
    freed: IntArray = rows[np.repeat(told["action"] != Action.ALLOC, sizes)[first]]
    return freed


def kswapd_ends(trace: Trace) -> dict[int, int]:
    """Rows before which a run of kswapd has ended -> its pid.

    No event tells it: the run is over when another task shows up after kswapd's last own event before it wakes again
    or sleeps.
    """
    names = [number for number, text in enumerate(trace.strings) if text.startswith("kswapd")]
    mine = np.flatnonzero(np.isin(trace.comm, names) & (trace.context == Context.TASK))
    ends: dict[int, int] = {}
    last: dict[int, int] = {}  # pid of a kswapd that runs -> its last row
    for row, pid, event in zip(mine.tolist(), trace.pid[mine].tolist(), trace.event[mine].tolist(), strict=True):
        if pid in last and event in (Event.MM_VMSCAN_KSWAPD_WAKE, Event.MM_VMSCAN_KSWAPD_SLEEP):
            ends[last.pop(pid) + 1] = pid
        if pid in last or event == Event.MM_VMSCAN_KSWAPD_WAKE:
            last[pid] = row
    return ends | {row + 1: pid for pid, row in last.items()}


def scan_starts(trace: Trace, actions: npt.NDArray[np.int8]) -> dict[int, int | None]:
    """For the row of each mm_compaction_finished the first pfn that the task's next scan looked at, or None."""
    starts: dict[int, int | None] = {}
    waiting: dict[int, int] = {}
    column = FIELDS[Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES]["start"]
    for row in _told(trace, actions, Event.MM_COMPACTION_FINISHED, Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES):
        pid = int(trace.pid[row])
        if trace.event[row] == Event.MM_COMPACTION_FINISHED:
            starts[row] = None
            waiting[pid] = row
        elif pid in waiting:
            starts[waiting.pop(pid)] = int(trace.fields[row, column])
    return starts


def _told(trace: Trace, actions: npt.NDArray[np.int8], *events: Event) -> list[int]:
    """Rows of these events that are part of the replay."""
    rows = trace.rows(*events)
    told: list[int] = rows[actions[rows] >= 0].tolist()
    return told


def vmstat_runs(trace: Trace, first_row: int) -> list[int]:
    """Rows where the vmstat worker runs: the first page that a kworker drains without having freed one.

    Only a whole trace tells it.
    """
    names = [number for number, text in enumerate(trace.strings) if text.startswith("kworker")]
    mine = np.isin(trace.comm, names) & (trace.context == Context.TASK) & (trace.event <= Event.MM_PAGE_PCPU_DRAIN)
    runs: list[int] = []
    last: dict[int, tuple[int, int]] = {}
    for row in (first_row + np.flatnonzero(mine[first_row:])).tolist():
        pid, event = int(trace.pid[row]), int(trace.event[row])
        before, at = last.get(pid, (-1, row))
        if event == Event.MM_PAGE_PCPU_DRAIN:
            goes_on = before == event and not np.any(trace.pid[at + 1 : row] != pid)
            if not goes_on and before not in (Event.MM_PAGE_FREE, Event.MM_PAGE_FREE_BATCHED):
                runs.append(row)
        last[pid] = event, row
    return runs


def chunked_frees(
    mem: Machine, trace: Trace, actions: npt.NDArray[np.int8], takes: dict[int, Take]
) -> dict[int, tuple[int, int]]:
    """Since 7.2 the pages of a contiguous range are prepared singly, each with its mm_page_free, and freed together.

    Marks their steps; the ranges by the row of their last page.
    """
    ranges: dict[int, tuple[int, int]] = {}
    for row in _told(trace, actions, Event.CMA_RELEASE):  # the event comes after the frees
        values = trace.values(row)
        first = int(values["pfn"])
        _mark_range(trace, actions, (0, row), int(trace.pid[row]), (first, first + int(values["count"])), ranges)
    area = CmaArea(mem)
    begun: dict[int, int] = {}
    behind = np.array(sorted(takes), np.int64)
    for row in _told(
        trace, actions, Event.CMA_ALLOC_START, Event.CMA_ALLOC_BUSY_RETRY, Event.CMA_ALLOC_FINISH, Event.CMA_RELEASE
    ):
        _follow(trace, area, row)
        pid = int(trace.pid[row])
        if trace.event[row] == Event.CMA_ALLOC_START and area.range is not None:
            begun[pid] = row
        elif pid in begun and trace.event[row] == Event.CMA_ALLOC_FINISH:
            del begun[pid]
            start = int(behind[np.searchsorted(behind, row, side="right") - 1])
            for extra in _surplus(trace, actions, (start, row), pid, area.last_range):
                _mark_range(trace, actions, (start, row), pid, extra, ranges)
    return ranges


def _follow(trace: Trace, area: CmaArea, row: int) -> None:
    """Let the area's bitmap follow an event."""
    values, event = trace.values(row), trace.event[row]
    if event == Event.CMA_ALLOC_START:
        area.begin(int(values["count"]), int(values["align"]))
    elif event == Event.CMA_ALLOC_BUSY_RETRY:
        area.retry()
    elif event == Event.CMA_ALLOC_FINISH:
        area.finish(values.get("errorno") == 0)
    else:
        area.release(int(values["pfn"]), int(values["count"]))


def _surplus(
    trace: Trace, actions: npt.NDArray[np.int8], rows: tuple[int, int], pid: int, wanted: tuple[int, int]
) -> list[tuple[int, int]]:
    """What an allocation took off the lists before and behind its range: its frees once it has the range."""
    here = np.arange(*rows)
    pages = trace.fields[here, 0][_freed_by(trace, actions, here, pid)]
    lower, upper = pages[pages < wanted[0]], pages[pages >= wanted[1]]
    parts = [(int(lower.min()), wanted[0])] if lower.size else []
    return parts + ([(wanted[1], int(upper.max()) + 1)] if upper.size else [])


def _freed_by(trace: Trace, actions: npt.NDArray[np.int8], here: IntArray, pid: int) -> npt.NDArray[np.bool_]:
    """Which of some rows are frees by a task itself."""
    found: npt.NDArray[np.bool_] = (
        (actions[here] == Action.FREE) & (trace.pid[here] == pid) & (trace.context[here] == Context.TASK)
    )
    return found


def _mark_range(
    trace: Trace,
    actions: npt.NDArray[np.int8],
    rows: tuple[int, int],
    pid: int,
    pfns: tuple[int, int],
    ranges: dict[int, tuple[int, int]],
) -> None:
    """The last frees of each page of a range by a task in these rows are prepared ones."""
    here = np.arange(*rows)
    free = _freed_by(trace, actions, here, pid)
    pages = trace.fields[here, 0]
    mine = here[free & (pages >= pfns[0]) & (pages < pfns[1])][-(pfns[1] - pfns[0]) :]
    if mine.size:
        actions[mine] = Action.PREPARE
        actions[mine[-1]] = Action.RELEASE
        ranges[int(mine[-1])] = pfns
