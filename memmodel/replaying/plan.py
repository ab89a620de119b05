"""A trace as the steps of a replay: what each event is, and what only later events tell."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.kernels.replay_state import (
    Action,
    Course,
    compaction_dtype,
    cursor_dtype,
    log_dtype,
    request_dtype,
    step_dtype,
)
from memmodel.kernels.replaying import STAYS
from memmodel.kernels.trace_frees import ORPHAN, Frees, tell_frees
from memmodel.mechanisms.request import joins_lru, requested
from memmodel.replaying.cma import Take, find_takes
from memmodel.replaying.foresight import chunked_frees, freed_first, kswapd_ends, scan_starts, vmstat_runs
from memmodel.replaying.refusing import PAGED, Problem, check_cpus, leave_out
from memmodel.sources.ftrace import FIELDS, Context, Event, Trace
from memmodel.sources.gfp import Gfp, parse_gfp
from memmodel.sources.records import IntArray
from memmodel.state.layout import MAX_COMPACTIONS, NONE, NR_ORDERS
from memmodel.state.machine import Machine

__all__ = ["Plan", "fresh_course", "make_plan", "request_table"]

SIMPLE = {
    Event.MM_PAGE_ALLOC: Action.ALLOC,
    Event.MM_PAGE_FREE: Action.FREE,
    Event.MM_PAGE_FREE_BATCHED: Action.PUSH,
}
SELDOM = (
    *(Event.MM_COMPACTION_BEGIN, Event.MM_COMPACTION_END, Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES),
    *(Event.MM_COMPACTION_MIGRATEPAGES, Event.MM_COMPACTION_FINISHED),
    *(Event.MM_COMPACTION_TRY_TO_COMPACT_PAGES, Event.MM_COMPACTION_KCOMPACTD_WAKE),
    *(Event.MM_MIGRATE_PAGES_START, Event.MM_MIGRATE_PAGES),
    *(Event.CMA_ALLOC_START, Event.CMA_ALLOC_FINISH, Event.CMA_ALLOC_BUSY_RETRY, Event.CMA_RELEASE),
    Event.MM_ALLOC_CONTIG_MIGRATE_RANGE_INFO,
    *(Event.MM_VMSCAN_KSWAPD_WAKE, Event.MM_VMSCAN_DIRECT_RECLAIM_BEGIN, Event.MM_VMSCAN_DIRECT_RECLAIM_END),
    Event.DUMP_BEGIN,
)
# What a predicted compaction is compared with, beside these.
SAID = (
    *(Event.MM_COMPACTION_ISOLATE_FREEPAGES, Event.MM_COMPACTION_SUITABLE, Event.MM_COMPACTION_DEFERRED),
    *(Event.MM_COMPACTION_DEFER_COMPACTION, Event.MM_COMPACTION_DEFER_RESET, Event.LIST_ROTATE_LAST),
    Event.MM_VMSCAN_KSWAPD_SLEEP,
)
# Functions whose list operations a replay may know: compaction's and CMA's isolation, compaction's rotation.
ISOLATES = ("__isolate_free_page",)
ROTATES = ("compaction_alloc", "fast_isolate_freepages")
Kind = tuple[int, Gfp]  # of request: order and flags
PAUSE_NS = 150_000_000  # a trace that says nothing for so long is of an idle machine


@dataclass(frozen=True, eq=False)
class Plan:
    """Steps, and what Python's part of the replay looks up."""

    course: Course
    kinds: list[Kind]
    """Of requests."""
    kswapd_ends: dict[int, int]
    """Rows before which a run of kswapd has ended -> its pid."""
    scan_starts: dict[int, int | None]
    """Row of each mm_compaction_finished -> first pfn that the task's next scan for sources looked at."""
    ranges: dict[int, tuple[int, int]]
    """Row of the last page of a range that is freed in chunks -> (first pfn, pfn behind it)."""
    freed_first: IntArray
    """Rows of the pages that are freed before any request gets them."""
    takes: dict[int, Take] = field(default_factory=dict)
    """Rows before which a CMA allocation takes its range."""
    problems: list[Problem] = field(default_factory=list)
    predicts: bool = False
    """Whether compactions are predicted, and not followed."""


def make_plan(
    mem: Machine,
    trace: Trace,
    first_row: int,
    node: int = 0,
    *,
    last_row: int | None = None,
    samples: npt.NDArray[np.int64] | None = None,
    predicts: bool = False,
) -> Plan:
    """All steps of a trace from a row on.

    Parameters
    ----------
    node
        Node of the CPUs that make requests.
    last_row
        The row before which it ends.
    samples
        Rows before which the request log shall have a sample.
    predicts
        Whether compactions are predicted, and not followed.

    Raises
    ------
    InputError
        If gfp flags are unknown, or the trace is of more CPUs than the start.
    """
    check_cpus(mem, trace, first_row)
    actions = _actions(trace)
    if predicts:
        actions[np.isin(trace.event, SAID)] = Action.SELDOM
        compacts = np.isin(trace.pid, trace.pid[trace.rows(Event.MM_COMPACTION_BEGIN)])
        actions[(trace.event == Event.TLB_FLUSH) & compacts] = Action.SELDOM
    actions[:first_row] = -1
    if last_row is not None:
        actions[last_row:] = -1
    problems = leave_out(mem, trace, actions)
    indices = _indices(mem, trace, actions)
    _tell_frees(mem, trace, actions, problems)
    kinds, kind_of_row = _kinds(trace, actions)
    ends = kswapd_ends(trace)
    takes = find_takes(trace, actions)
    ranges = {}
    if "contig_free_chunks" in mem.geometry.features:
        ranges = chunked_frees(mem, trace, actions, takes)
    actions[[row for row in vmstat_runs(trace, first_row) if last_row is None or row < last_row]] = Action.VMSTAT
    before = {Action.KSWAPD_END: np.array(sorted(row for row in ends if last_row is None or row < last_row), np.int64)}
    before[Action.TAKE] = np.array(sorted(row for row in takes if last_row is None or row < last_row), np.int64)
    if samples is not None:
        before[Action.SAMPLE] = samples
    steps = _steps(trace, actions, indices, kind_of_row, before)
    course = fresh_course(steps.view(np.recarray), *request_table(mem, kinds, node))
    return Plan(course, kinds, ends, scan_starts(trace, actions), ranges, freed_first(steps), takes, problems, predicts)


def fresh_course(steps: Any, requests: Any, zonelists: npt.NDArray[np.uint64], n_logged: int = 0) -> Course:
    """Steps with nothing counted yet and no compaction on its way.

    With a number of pages it has room for a request log; the pages of the start are numbered by their rows.
    """
    cursor = np.zeros(1, cursor_dtype)
    cursor["n_ids"] = n_logged
    freed = np.isin(steps["action"], (Action.FREE, Action.FREE_IN_BATCH, Action.FREE_DIRECT))
    room = 2 * steps.size + int((1 << steps["order"][freed].astype(np.int64)).sum())  # a free may be logged by pages
    log = np.zeros(room if n_logged else 0, log_dtype)
    compactions = np.zeros(MAX_COMPACTIONS, compaction_dtype)
    compactions["capture_order"], compactions["captured"] = NR_ORDERS, NONE
    return Course(
        steps,
        requests,
        zonelists,
        cursor.view(np.recarray),
        compactions.view(np.recarray),
        np.arange(n_logged, dtype=np.uint32),
        log.view(np.recarray),
    )


def _actions(trace: Trace) -> npt.NDArray[np.int8]:
    """What each row is; -1 says nothing about pages."""
    actions = np.full(len(trace), -1, np.int8)
    for event, action in SIMPLE.items():
        actions[trace.event == event] = action
    actions[np.isin(trace.event, SELDOM)] = Action.SELDOM
    actions[trace.event == Event.MM_COMPACTION_FAST_ISOLATE_FREEPAGES] = Action.SEARCH
    for event, functions, action in (
        (Event.LIST_DELETE, ISOLATES, Action.ISOLATE),
        (Event.LIST_ROTATE_FIRST, ROTATES, Action.ROTATE),
    ):
        known = [number for number, text in enumerate(trace.strings) if text in functions]
        rows = trace.rows(event)
        actions[rows[np.isin(trace.fields[rows, FIELDS[event]["function"]], known)]] = action
    return actions


def _indices(mem: Machine, trace: Trace, actions: npt.NDArray[np.int8]) -> npt.NDArray[np.uint32]:
    """Row of each page."""
    indices = np.full(len(trace), NONE, np.uint32)
    paged = np.flatnonzero(np.isin(actions, PAGED) & (trace.fields[:, 0] >= 0))
    indices[paged] = mem.pfns.index(trace.fields[paged, 0])
    searched = np.flatnonzero(actions == Action.SEARCH)
    columns = FIELDS[Event.MM_COMPACTION_FAST_ISOLATE_FREEPAGES]
    indices[searched] = mem.pfns.index(trace.fields[searched, columns["end"]])
    return indices


def _tell_frees(mem: Machine, trace: Trace, actions: npt.NDArray[np.int8], problems: list[Problem]) -> None:
    """Which frees are of a batch, and which found the per-CPU lists locked: what next befalls the page says it."""
    first = int(mem.pfns.starts[0])
    last = np.zeros(int(mem.pfns.ends[-1]) - first, np.int64)
    softirq = trace.context != Context.TASK
    whole = bool(np.any(trace.event == Event.PCP_ADD))
    thp_order = int(mem.state.params.pcp_thp_order)
    tell_frees(Frees(trace.event, trace.fields, softirq, last, first, thp_order, whole), actions)
    alone = np.flatnonzero(actions == ORPHAN)
    for row in alone.tolist():
        problems.append(Problem(int(trace.line[row]), "an mm_page_free_batched without its mm_page_free"))
    actions[alone] = -1


def _kinds(trace: Trace, actions: npt.NDArray[np.int8]) -> tuple[list[Kind], npt.NDArray[np.uint32]]:
    """Each kind of request once, and the kind of each row."""
    rows = np.flatnonzero(actions == Action.ALLOC)
    columns = FIELDS[Event.MM_PAGE_ALLOC]
    orders, texts_of_row = trace.fields[rows, columns["order"]], trace.fields[rows, columns["gfp_flags"]]
    _, first, inverse = np.unique(orders * len(trace.strings) + texts_of_row, return_index=True, return_inverse=True)
    told = np.stack([rows[first], orders[first], texts_of_row[first]], axis=1)
    kinds = []
    for row, order, text in told.tolist():
        try:
            kinds.append((order, parse_gfp(trace.strings[text])))
        except InputError as error:
            raise InputError(f"{trace.source}:{int(trace.line[row])}: {error}") from None
    kind_of_row = np.zeros(len(trace), np.uint32)
    kind_of_row[rows] = inverse.reshape(-1)
    return kinds, kind_of_row


def request_table(mem: Machine, kinds: list[Kind], node: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]:
    """What kernels take of each kind of request, and the zonelists, one behind the other."""
    table, zonelists = np.zeros(len(kinds), request_dtype), list[int]()
    for number, (order, gfp) in enumerate(kinds):
        zones, request = requested(mem, gfp, order, node, joins_lru(gfp))
        if request.lru and not gfp.is_movable:  # ramfs
            request = request._replace(lru=STAYS)
        table[number] = (*request, len(zonelists), len(zonelists) + zones.size)
        zonelists += zones.tolist()
    return table.view(np.recarray), np.array(zonelists, np.uint64)


def _steps(
    trace: Trace,
    actions: npt.NDArray[np.int8],
    indices: npt.NDArray[np.uint32],
    requests: npt.NDArray[np.uint32],
    before: dict[Action, npt.NDArray[np.int64]],
) -> npt.NDArray[Any]:
    """Rows with something to do; before them what goes first: the end of a run of kswapd, samples, an idle CPU."""
    first = int(np.argmax(actions >= 0)) if np.any(actions >= 0) else len(trace)
    acted = np.flatnonzero(actions >= 0)
    paused = np.flatnonzero(np.diff(trace.time_ns, prepend=trace.time_ns[:1]) > PAUSE_NS)
    idle = np.union1d(np.flatnonzero(trace.pid == 0), paused)
    idle = idle[idle >= first]
    parts = [(action, rows[(rows >= first) & (rows < len(trace))]) for action, rows in before.items()]
    parts.append((Action.IDLE, idle))
    rows = np.concatenate([*(part for _, part in parts), acted])
    sizes = [part.size for _, part in parts]
    rank = np.repeat(np.arange(len(parts) + 1), [*sizes, acted.size])
    order = np.lexsort((rank, rows))
    kinds = np.concatenate([*(np.full(part.size, action) for action, part in parts), actions[acted]])
    steps = np.zeros(rows.size, step_dtype)
    steps["row"], steps["action"] = rows[order], kinds[order]
    rows = rows[order]
    orders = trace.fields[rows, 1]
    steps["order"] = np.where((orders >= 0) & (orders < NR_ORDERS) & (steps["action"] != Action.PUSH), orders, 0)
    steps["index"], steps["request"] = indices[rows], requests[rows]
    searched = steps["action"] == Action.SEARCH
    columns = FIELDS[Event.MM_COMPACTION_FAST_ISOLATE_FREEPAGES]
    steps["order"][searched] = trace.fields[rows[searched], columns["nr_taken"]] > 0
    steps["pid"], steps["cpu"] = trace.pid[rows], trace.cpu[rows]
    steps["softirq"] = trace.context[rows] != Context.TASK
    return steps
