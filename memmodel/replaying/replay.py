"""mm.replay(): start state, hidden numbers, and the run."""

import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np

from memmodel.errors import one_of
from memmodel.geometry import Geometry
from memmodel.kernels.pcp import refresh_cpu_vm_stats
from memmodel.memory import PhysicalMemory
from memmodel.replaying.comparing import compare_buddyinfo
from memmodel.replaying.followed import FollowedRun
from memmodel.replaying.plan import Plan, make_plan
from memmodel.replaying.predicted import PredictedRun
from memmodel.replaying.report import Report
from memmodel.replaying.run import Run
from memmodel.replaying.start import Start, end_row, read_start
from memmodel.sources.ftrace import Event, Trace, read_trace
from memmodel.sources.reading import PathLike
from memmodel.sources.records import FreeLists, Snapshot
from memmodel.sources.snapshot import read_snapshot
from memmodel.state.layout import NONE, Kind, MigrateType, PageFlag

__all__ = ["Hidden", "begin", "find_hidden", "replay"]

ALLOC_FACTORS = range(6)  # 0 to CONFIG_PCP_BATCH_SCALE_MAX
ON_LRU = PageFlag.LRU | PageFlag.LRU_BATCH | PageFlag.LRU_ISOLATED


def replay(
    trace: Trace | PathLike,
    start: PhysicalMemory | Snapshot | PathLike,
    *,
    end: Snapshot | PathLike | None = None,
    kernel: str | None = None,
    geometry: Geometry | None = None,
    node: int = 0,
    compaction: str | None = None,
) -> Report:
    """Predict every allocation of a recorded trace from its request and the model's own state.

    Parameters
    ----------
    trace
        ftrace text, or what `read_trace` made of it.
    start
        The state at which the trace begins: a dump of the free lists (its first label; the later ones are compared
        where the trace says that they were taken), a snapshot, or a memory, which is not changed.
    end
        A snapshot whose buddyinfo is compared where the trace says that it was taken ("snap LABEL begin", LABEL the
        name of its folder), else at the end.
    kernel
        Its name, for the rules. If neither this nor `geometry` is given, the one that the start's files name (a version
        file in the recording's folder), else the default.
    geometry
        Of the kernel, in place of `kernel`.
    node
        Node of the CPUs that make requests.
    compaction
        "given": the free blocks that it isolates and the lists that it rotates are taken from the trace; "predicted":
        only that it begins is. If not given, predicted where the trace does not have them.

    Returns
    -------
    Counts, what was given and inferred, each wrong prediction with its line, dumps compared.

    Raises
    ------
    InputError
        If a file is not what it should be, or the trace has no event of the kmem group.
    """
    if not isinstance(trace, Trace):
        trace = read_trace(trace)
    base = read_start(start, trace, kernel, geometry)
    predicts = _predicts(trace, compaction)
    plan = make_plan(base.memory, trace, base.first_row, node, last_row=end_row(trace, end), predicts=predicts)
    hidden, whole = find_hidden(base, trace, plan, node)
    run = whole or begin(base, trace, plan, hidden, node)
    report = run.report if whole else run.run()
    if end is not None:
        report.end = compare_buddyinfo(run.mem, end if isinstance(end, Snapshot) else read_snapshot(end))
    report.kernel = base.memory.geometry.kernel
    report.not_claimed = _not_claimed(base, trace, report, len(run.dumps))
    return report


def _predicts(trace: Trace, compaction: str | None) -> bool:
    """Whether compaction is predicted: where the trace does not say what it isolates nothing else can be done."""
    if compaction is not None:
        return one_of(compaction, ("given", "predicted"), "compaction") == "predicted"
    compacts = bool(trace.rows(Event.MM_COMPACTION_BEGIN).size)
    return compacts and not trace.rows(Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES).size


def _not_claimed(base: Start, trace: Trace, report: Report, n_dumps_left: int) -> list[str]:
    """What the report cannot, or can no longer, claim."""
    texts = []
    if base.label and not base.first_row:
        texts.append(f"{trace.source}: no mark of {base.label}: the trace is taken to begin where the start was read")
    if trace.overwritten:
        texts.append(f"{trace.source}: {trace.overwritten} events were overwritten before the first line")
    for gap in trace.lost:
        what = "events" if gap.n_events is None else f"{gap.n_events} events"
        texts.append(f"{trace.source}:{gap.line}: {what} of CPU {gap.cpu} are lost: what follows rests on a guess")
    if trace.truncated is not None:
        texts.append(f"{trace.source}:{trace.truncated}: the line is cut: the trace says nothing from here on")
    if report.problems:
        texts.append(f"{trace.source}:{report.problems[0].line}: events left out, the first of {len(report.problems)}")
    if n_dumps_left:
        texts.append(f"{n_dumps_left} later states of the dump are not compared: the trace has no mark of them")
    texts += base.memory.assumed
    if report.mismatches:
        first = report.mismatches[0].line
        texts.append(f"{trace.source}:{first}: the first wrong prediction: what follows is put in step")
    return texts


class Hidden(NamedTuple):
    """What no file tells of the start; the first values with which nothing differs are taken.

    If there are none, those that get furthest. They are forgotten within a few operations, and often any value fits.
    """

    alloc_factor: int
    folded: bool
    """Whether the CPUs' counter differences were folded right after the dump."""
    vmstat: bool = False
    """Whether the vmstat worker ran before the first request: a trace without the kernel's drains does not tell."""


def find_hidden(base: Start, trace: Trace, plan: Plan, node: int, log: bool = False) -> tuple[Hidden, Run | None]:
    """The first hidden numbers with which nothing differs, and that replay; else those that get furthest, and None."""
    furthest: tuple[int, Hidden] | None = None
    folded = (True, False) if base.dumps else (True,)  # other starts have no counters beside their lists
    for hidden in itertools.starmap(Hidden, itertools.product(ALLOC_FACTORS, folded, (False, True))):
        run = begin(base, trace, plan, hidden, node, log)
        report = run.run(stop_at_first=True)
        if not report.differs:
            return hidden, run
        if furthest is None or report.n_steps > furthest[0]:
            furthest = report.n_steps, hidden
    assert furthest is not None
    return furthest[1], None


def begin(base: Start, trace: Trace, plan: Plan, hidden: Hidden, node: int, log: bool = False) -> Run:
    """A replay at its beginning, on a memory of its own."""
    mem = base.memory.copy()
    pcp, inferred = mem.state.pcp, Counter[str]()
    pcp["alloc_factor"] = np.where(pcp["high"] > 0, hidden.alloc_factor, 0)  # a set that was never used has 0
    inferred["alloc_factor of the per-CPU sets at the start"] = 1
    if base.dumps and not hidden.folded:
        _unfold(mem, base.dumps[0])
    inferred["counter differences at the start"] = 1
    inferred["zone flags at the start"] = int(mem.state.zones.size)
    if hidden.vmstat:
        inferred["run of the vmstat worker before the first request"] = 1
        for cpu in range(mem.cpus):
            refresh_cpu_vm_stats(mem.state, np.uint64(cpu))
    if _assume_lru(mem, plan):
        inferred["LRU state at the start"] = 1
    if _fill_batch(mem):
        inferred["LRU-add batch at the start"] = 1
    run = (PredictedRun if plan.predicts else FollowedRun)(mem, trace, plan, base.dumps[1:], node, log)
    run.report.inferred.update(inferred)
    run.report.files = {**mem.files, trace.source: trace.sha256}
    return run


def _unfold(mem: PhysicalMemory, dump: FreeLists) -> None:
    """The counters as dumped; what the lists have beyond them is the first CPU's difference."""
    for lists in dump.zones:
        zone = int(mem.state.pages["zone"][mem.index(lists.start_pfn)])
        record, pcp = mem.state.zones[zone], mem.state.pcp[zone * mem.cpus]
        for name, difference, real in (
            ("free_pages", "free_diff", lists.free_pages),
            ("free_cma", "cma_diff", lists.free_cma_pages),
        ):
            if real is not None and abs(int(record[name]) - real) <= record["stat_threshold"]:
                pcp[difference] = int(record[name]) - real
                record[name] = real


def _fill_batch(mem: PhysicalMemory) -> bool:
    """Anonymous pages on no LRU list wait for one in a CPU's batch; whose is not told, nor their order."""
    state = mem.state
    pages = state.pages[: int(state.params.n_pages)]
    anonymous = (pages["state"] >> 4 == Kind.USED) & (pages["pg_flags"] & PageFlag.ANON != 0)
    rows = np.flatnonzero(anonymous & (pages["pg_flags"] & ON_LRU == 0))
    if not 0 < rows.size < state.lru["size"][0] or np.any(state.lru["count"]):
        return False
    state.lru["index"][0, : rows.size] = rows
    state.lru["count"][0] = rows.size
    state.pages["pg_flags"][rows] |= np.uint8(PageFlag.LRU_BATCH)
    return True


def _assume_lru(mem: PhysicalMemory, plan: Plan) -> bool:
    """Pages of which no file says what they are, but which the trace frees: if movable they were on an LRU list."""
    state = mem.state
    if not np.any(state.pages["state"][: int(state.params.n_pages)] >> 4 == Kind.UNKNOWN):
        return False
    rows = plan.freed_first[state.pages["state"][plan.freed_first] >> 4 == Kind.UNKNOWN]
    types = state.blocks["migratetype"][rows >> int(state.params.pageblock_order)]
    movable = rows[np.isin(types, (MigrateType.MOVABLE, MigrateType.CMA))]
    for name, value in (("state", Kind.USED << 4), ("refcount", 1), ("next", NONE), ("pg_flags", PageFlag.LRU)):
        state.pages[name][movable] = value
    return True
