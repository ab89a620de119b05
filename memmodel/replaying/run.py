"""The replay itself: the compiled loop over the steps, and what happens seldom."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.kernels import lru
from memmodel.kernels.page_alloc import Request, unreserve_highatomic
from memmodel.kernels.pcp import drain_all_pages, refresh_cpu_vm_stats
from memmodel.kernels.replay_helpers import attempt, force_step, free_chunks, leave_range, one_attempt, put_in_step
from memmodel.kernels.replay_state import Action, Stop, step_dtype
from memmodel.kernels.replaying import STAYS, give_out_step, run_steps
from memmodel.kernels.request_log import note_failed
from memmodel.mechanisms.request import joins_lru, requested
from memmodel.memory import PhysicalMemory
from memmodel.replaying.cma_follower import CmaFollower
from memmodel.replaying.compaction import CompactionRun
from memmodel.replaying.comparing import compare_dump
from memmodel.replaying.plan import Plan, fresh_course
from memmodel.replaying.report import Report, explain, kind_of_miss
from memmodel.sources.ftrace import Event, Trace
from memmodel.sources.gfp import parse_gfp
from memmodel.sources.records import FreeLists
from memmodel.state.layout import MAX_COMPACTIONS, NONE, NR_ORDERS, Kind, ZoneFlag

__all__ = ["Run"]

ALL_ZONES = np.uint64(255)
GOES_ON = ("continue", "no_suitable_page")  # ret of compact_finished
KCOMPACTD_DONE = ("complete", "partial_skipped")  # status of an end after which kcompactd drains
# As numbers: looking up a member of an enumeration costs half a microsecond.
END, SELDOM, WRONG_PAGE, NOT_IN_USE = (stop.value for stop in (Stop.END, Stop.SELDOM, Stop.WRONG_PAGE, Stop.NOT_IN_USE))


class Waiting(NamedTuple):
    """A request whose first attempts have failed; `found` is the page that a later one got, or NONE."""

    order: int
    zonelist: npt.NDArray[np.uint64]
    request: Request
    found: int = int(NONE)


class Run:
    """One replay of a trace against a memory, which it changes."""

    handlers: ClassVar[dict[int, Callable[[Any, int], None]]]
    """What is done at a row of the trace, by its event."""
    actions: ClassVar[dict[int, Callable[[Any, int], None]]]
    """What is done at a step, by its action."""

    def __init__(
        self,
        mem: PhysicalMemory,
        trace: Trace,
        plan: Plan,
        dumps: Sequence[FreeLists],
        node: int = 0,
        log: bool = False,
    ) -> None:
        self.mem, self.trace, self.plan, self.node = mem, trace, plan, node
        self.dumps = list(dumps)
        self.course = fresh_course(*plan.course[:3], n_logged=int(mem.state.params.n_pages) if log else 0)
        self.steps = self.course.steps.view(step_dtype, np.ndarray)  # a record of a recarray costs 20 times as much
        self.report = Report.of(trace, plan)
        self.waiting: dict[int, Waiting] = {}
        self.runs: dict[int, CompactionRun] = {}  # by pid
        self.kcompactd_orders: dict[int, int] = {}
        self.boosts: dict[int, npt.NDArray[np.int64]] = {}  # pid of a kswapd that runs -> [zones], -1 if not its own
        self.isolated: dict[int, list[tuple[int, int]]] = {}  # pid -> ranges of rows with migration sources
        self.cma = CmaFollower(mem, trace, plan, self.course, self.report)
        self.again = False
        self.batch_size = np.uint64(mem.state.lru["size"][0])
        lru_of_step = self.course.requests["lru"][self.steps["request"]] if self.course.requests.size else np.zeros(0)
        mem.reserve_folios(int(np.count_nonzero((lru_of_step == STAYS) & (self.steps["action"] == Action.ALLOC))))

    def run(self, stop_at_first: bool = False) -> Report:
        """All steps, or those up to the first difference."""
        number, forced = 0, -1
        while True:
            number, stop = run_steps(self.mem.state, self.course, number)
            if stop == END:
                break
            if stop == NOT_IN_USE and number != forced:
                self._force(number)
                forced = number  # once more, and then on
                continue
            self._handle(number, stop)
            number += not self.again  # that step is done as usual
            self.again = False
            if stop_at_first and self.report.differs:
                break
        if stop == END:
            for run in self.runs.values():
                self.report.problem(run.line, "a compaction that has no end")
        self.report.n_steps = number
        self.report.finish(self.course.cursor[0])
        return self.report

    def _handle(self, number: int, stop: int) -> None:
        if stop == WRONG_PAGE:
            self._wrong_page(number, int(self.course.cursor[0]["predicted"]))
        elif stop != SELDOM:
            self._contradiction(number)
        else:
            self.actions[int(self.steps[number]["action"])](self, number)

    def _event(self, number: int) -> None:
        row = int(self.steps[number]["row"])
        self.handlers[int(self.trace.event[row])](self, row)

    def _vmstat_worker(self, number: int) -> None:
        self.report.given["run of the vmstat worker"] += 1
        refresh_cpu_vm_stats(self.mem.state, np.uint64(self.steps[number]["cpu"]))

    # -- predictions that were wrong -------------------------------------------------------------------------------

    def _wrong_page(self, number: int, predicted: int) -> None:
        step = self.steps[number]
        actual, order = int(step["index"]), int(step["order"])
        kind = kind_of_miss(self.mem, actual, predicted, order)
        text = explain(self.mem, self.course, step, predicted) if self.report.wants_text else ""
        self.report.miss(int(self.trace.line[step["row"]]), kind, text)
        migratetype = self.course.requests[int(step["request"])]["migratetype"]
        numbers = (np.uint64(number) for number in (predicted, actual, order, migratetype, int(step["cpu"])))
        put_in_step(self.mem.state, *numbers)
        if actual == NONE:
            self._failed(number)
        else:
            give_out_step(self.mem.state, self.course, number)

    def _failed(self, number: int) -> None:
        self.course.cursor[0]["n_failed"] += 1
        note_failed(self.course, number)

    def _force(self, number: int) -> None:
        """A free of a page not in use: given out without an event, or its event is lost, or it is freed twice."""
        step = self.steps[number]
        pfn, order = int(self.mem.pfns.pfn(int(step["index"]))), int(step["order"])
        line = int(self.trace.line[step["row"]])
        self.report.unseen(line, f"pfn {pfn} of order {order} is freed, and was not in use")
        force_step(self.mem.state, self.course, number)

    def _contradiction(self, number: int) -> None:
        """A block that is given as free, and is not."""
        step = self.steps[number]
        pfn, order = int(self.mem.pfns.pfn(int(step["index"]))), int(step["order"])
        line = int(self.trace.line[step["row"]])
        self.report.miss(line, "given block not free", f"pfn {pfn} of order {order} is not free")

    # -- requests that reclaim or compact --------------------------------------------------------------------------

    def _key(self, row: int) -> int:
        return int(self.trace.pid[row]) << 1 | int(self.trace.context[row] != 0)

    def _set_waiting(self) -> None:
        cursor = self.course.cursor[0]
        keys = list(self.waiting)[: cursor["waiting"].size]
        cursor["n_waiting"] = len(keys)
        cursor["waiting"][: len(keys)] = keys

    def _late_alloc(self, number: int) -> None:
        """The end of such a request."""
        step = self.steps[number]
        key = int(step["pid"]) << 1 | int(step["softirq"])
        waiting = self.waiting[key]
        if waiting.order != int(step["order"]):  # another request of the same task, on the way
            predicted = int(one_attempt(self.mem.state, self.course, number, False))
            if predicted == NONE:
                predicted = int(one_attempt(self.mem.state, self.course, number, True))
        else:
            del self.waiting[key]
            self._set_waiting()
            predicted = waiting.found
            if predicted == NONE or self.mem.state.pages["state"][predicted] != Kind.USED << 4 | waiting.order:
                predicted = int(one_attempt(self.mem.state, self.course, number, True))
        if predicted != int(step["index"]):
            self._wrong_page(number, predicted)
        elif predicted == NONE:
            self._failed(number)
        else:
            give_out_step(self.mem.state, self.course, number)

    def _first_attempts(self, row: int, order: int, flags: str) -> None:
        """Direct compaction and direct reclaim begin when a fast and a slow attempt have failed, or one more slow."""
        key = self._key(row)
        if key in self.waiting:
            self._attempt(row)
            return
        gfp = parse_gfp(flags)
        zonelist, request = requested(self.mem, gfp, order, self.node, joins_lru(gfp))
        self.waiting[key] = Waiting(order, zonelist, request)
        self._set_waiting()
        cpu = np.uint64(self.trace.cpu[row])
        predicted = attempt(self.mem.state, zonelist, cpu, request, request.fast)
        if predicted == NONE:
            predicted = attempt(self.mem.state, zonelist, cpu, request, request.slow)
        if predicted != NONE:
            text = f"order {order}: the model has pfn {int(self.mem.pfns.pfn(int(predicted)))}, the kernel found none"
            self.report.miss(int(self.trace.line[row]), "missed failure", text)
            put_in_step(self.mem.state, predicted, NONE, np.uint64(order), request.migratetype, cpu)

    def _attempt(self, row: int) -> bool:
        """A slow attempt in between; a page that it finds is the one that mm_page_alloc will tell."""
        key = self._key(row)
        if key not in self.waiting:
            return True
        waiting = self.waiting[key]
        if waiting.found == NONE:
            cpu = np.uint64(self.trace.cpu[row])
            found = attempt(self.mem.state, waiting.zonelist, cpu, waiting.request, waiting.request.slow)
            self.waiting[key] = waiting = waiting._replace(found=int(found))
        return waiting.found != NONE

    def _on_reclaim_begin(self, row: int) -> None:
        values = self.trace.values(row)
        self._first_attempts(row, int(values["order"]), str(values["gfp_flags"]))

    def _on_reclaim_end(self, row: int) -> None:
        """Progress is worth an attempt; if it fails, another one after all per-CPU lists were emptied."""
        if self.trace.values(row)["nr_reclaimed"] and not self._attempt(row):
            waiting = self.waiting[self._key(row)]
            cpu = np.uint64(self.trace.cpu[row])
            unreserve_highatomic(self.mem.state, waiting.zonelist, cpu, waiting.request.migratetype, False)
            drain_all_pages(self.mem.state, ALL_ZONES, cpu)
            self._attempt(row)

    def _on_kswapd_wake(self, row: int) -> None:
        node = int(self.trace.values(row)["nid"])
        zones = self.mem.state.zones
        mine = zones["node"] == node
        self.boosts[int(self.trace.pid[row])] = np.where(mine, zones["watermark_boost"], -1)
        zones["flags"][mine] |= np.uint8(ZoneFlag.RECLAIM_ACTIVE)

    def _kswapd_ended(self, number: int) -> None:
        """The boost that the run started with is given back (balance_pgdat)."""
        boosts = self.boosts.pop(self.plan.kswapd_ends[int(self.steps[number]["row"])], None)
        if boosts is None:  # it woke before the start
            return
        self.report.inferred["end of a kswapd run"] += 1
        zones = self.mem.state.zones
        zones["watermark_boost"] -= np.minimum(zones["watermark_boost"], np.maximum(boosts, 0))
        zones["flags"][boosts >= 0] &= np.uint8(0xFF ^ ZoneFlag.RECLAIM_ACTIVE)

    # -- compaction ------------------------------------------------------------------------------------------------

    def _on_kcompactd_wake(self, row: int) -> None:
        self.kcompactd_orders[int(self.trace.pid[row])] = int(self.trace.values(row)["order"])

    def _on_try_to_compact(self, row: int) -> None:
        values = self.trace.values(row)
        self._first_attempts(row, int(values["order"]), str(values["gfp_mask"]))

    def _on_compaction_begin(self, row: int) -> None:
        values, pid = self.trace.values(row), int(self.trace.pid[row])
        if pid in self.runs:
            self.report.problem(int(self.trace.line[row]), "a compaction of a task whose last one has no end")
            self._end_compaction(pid)
        zone = int(self.mem.state.pages["zone"][self.mem.index(int(values["zone_start"]))])
        waiting = self.waiting.get(self._key(row))
        order = waiting.order if waiting else self.kcompactd_orders.get(pid, -1)
        free = [slot for slot in range(MAX_COMPACTIONS) if not self.course.compactions[slot]["running"]]
        if not free:
            self.report.problem(int(self.trace.line[row]), f"more than {MAX_COMPACTIONS} compactions at one time")
            return
        record = self.course.compactions[free[0]]
        record["running"], record["pid"], record["zone"], record["n_sources"] = 1, pid, zone, 0
        record["captured"], record["migrating"], record["chosen"] = NONE, 0, 0
        record["migrate"], record["fast_search_fail"] = self.mem.index(int(values["migrate_pfn"])), 0
        if waiting:
            record["capture_order"], record["capture_type"] = order, waiting.request.migratetype
        migratetype = int(waiting.request.migratetype) if waiting else None
        line = int(self.trace.line[row])
        self.runs[pid] = CompactionRun(self.mem, free[0], record, order, migratetype, line)

    def _on_finished(self, row: int) -> None:
        """compact_finished() says whether it goes on; then a source is searched at once."""
        run = self.runs.get(int(self.trace.pid[row]))
        if run is not None and self.trace.values(row)["ret"] in GOES_ON:
            start = self.plan.scan_starts[row]
            run.find_source_block(None if start is None else int(self.mem.index(start)))

    def _on_isolate_migratepages(self, row: int) -> None:
        if self.cma.on_isolated(row):
            return
        values, pid, cpu = self.trace.values(row), int(self.trace.pid[row]), int(self.trace.cpu[row])
        start, end, n_taken = (int(values[name]) for name in ("start", "end", "nr_taken"))
        first = int(self.mem.index(start))
        last = first + end - start
        if n_taken:
            lru.isolate_lru(self.mem.state, np.uint64(first), np.uint64(last))
            self.isolated.setdefault(pid, []).append((first, last))
        run = self.runs.get(pid)
        if run is not None:
            run.scanned(last, n_taken)
            self.course.compactions[run.slot]["n_sources"] += np.uint64(n_taken)
            if not n_taken and run.leaves_range():
                leave_range(self.mem.state, self.course, np.uint64(run.slot), np.uint64(cpu))

    def _on_migrate_start(self, row: int) -> None:
        self.cma.on_migrate_start(row)
        run = self.runs.get(int(self.trace.pid[row]))
        if run is not None:
            record = self.course.compactions[run.slot]
            record["migrating"], record["chosen"] = 1, 0

    def _on_migrate_end(self, row: int) -> None:
        self.cma.on_migrate_end(row)
        run = self.runs.get(int(self.trace.pid[row]))
        if run is not None:
            record = self.course.compactions[run.slot]
            record["migrating"], record["chosen"], record["n_sources"] = 0, 0, 0

    def _put_back(self, row: int) -> None:
        """Sources that did not move go back to their LRU lists, the last isolated first."""
        for first, last in reversed(self.isolated.pop(int(self.trace.pid[row]), [])):
            lru.put_back_lru(self.mem.state, np.uint64(self.trace.cpu[row]), np.uint64(first), np.uint64(last))

    def _on_migratepages(self, row: int) -> None:
        self._put_back(row)
        run = self.runs.get(int(self.trace.pid[row]))
        if run is not None and self.course.compactions[run.slot]["captured"] == NONE:
            if run.leaves_range():
                leave_range(self.mem.state, self.course, np.uint64(run.slot), np.uint64(self.trace.cpu[row]))

    def _on_compaction_end(self, row: int) -> None:
        pid = int(self.trace.pid[row])
        if pid not in self.runs:
            self.report.problem(int(self.trace.line[row]), "the end of a compaction that has no beginning")
            return
        zone, captured = self._end_compaction(pid)
        key = self._key(row)
        if captured != NONE and key in self.waiting:
            self.waiting[key] = self.waiting[key]._replace(found=captured)
            self.report.n_captured += 1
        kcompactd = self.trace.strings[self.trace.comm[row]].startswith("kcompactd")
        if kcompactd and self.trace.values(row)["status"] in KCOMPACTD_DONE:
            drain_all_pages(self.mem.state, np.uint64(zone), np.uint64(self.trace.cpu[row]))

    def _end_compaction(self, pid: int) -> tuple[int, int]:
        """(zone, page that the task got meanwhile or NONE)."""
        run = self.runs.pop(pid)
        record = self.course.compactions[run.slot]
        captured = int(record["captured"])
        record["running"], record["capture_order"], record["captured"] = 0, NR_ORDERS, NONE
        return run.zone, captured

    # -- CMA -------------------------------------------------------------------------------------------------------

    def _take(self, number: int) -> None:
        self.cma.take(int(self.steps[number]["row"]))

    def _release(self, number: int) -> None:
        """The last page of a contiguous range that is freed in chunks: all of it goes back."""
        step = self.steps[number]
        first, end = self.plan.ranges[int(step["row"])]
        rows = (np.uint64(self.mem.index(first)), np.uint64(int(self.mem.index(end - 1)) + 1))
        self.course.cursor[0]["n_frees"] += 1
        if not free_chunks(self.mem.state, *rows, np.uint64(step["cpu"])):
            line = int(self.trace.line[step["row"]])
            self.report.unseen(line, f"part of the range of pfns {first} to {end - 1} is freed, and was not in use")

    # -- dumps -----------------------------------------------------------------------------------------------------

    def _on_dump(self, row: int) -> None:
        label = self.trace.values(row)["label"]
        if self.dumps and self.dumps[0].label == label:
            self.report.snapshots.append(compare_dump(self.mem, self.dumps.pop(0), self.plan.predicts))


Run.handlers = {
    Event.MM_COMPACTION_BEGIN: Run._on_compaction_begin,
    Event.MM_COMPACTION_END: Run._on_compaction_end,
    Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES: Run._on_isolate_migratepages,
    Event.MM_COMPACTION_MIGRATEPAGES: Run._on_migratepages,
    Event.MM_COMPACTION_FINISHED: Run._on_finished,
    Event.MM_COMPACTION_TRY_TO_COMPACT_PAGES: Run._on_try_to_compact,
    Event.MM_COMPACTION_KCOMPACTD_WAKE: Run._on_kcompactd_wake,
    Event.MM_MIGRATE_PAGES_START: Run._on_migrate_start,
    Event.MM_MIGRATE_PAGES: Run._on_migrate_end,
    Event.CMA_ALLOC_START: lambda run, row: run.cma.on_start(row),
    Event.CMA_ALLOC_FINISH: lambda run, row: run.cma.on_finish(row),
    Event.CMA_ALLOC_BUSY_RETRY: lambda run, row: run.cma.on_retry(row),
    Event.CMA_RELEASE: lambda run, row: run.cma.on_release(row),
    Event.MM_ALLOC_CONTIG_MIGRATE_RANGE_INFO: lambda run, row: run.cma.on_migrated(row),
    Event.MM_VMSCAN_KSWAPD_WAKE: Run._on_kswapd_wake,
    Event.MM_VMSCAN_DIRECT_RECLAIM_BEGIN: Run._on_reclaim_begin,
    Event.MM_VMSCAN_DIRECT_RECLAIM_END: Run._on_reclaim_end,
    Event.DUMP_BEGIN: Run._on_dump,
}
Run.actions = {
    Action.ALLOC.value: Run._late_alloc,
    Action.SELDOM.value: Run._event,
    Action.KSWAPD_END.value: Run._kswapd_ended,
    Action.VMSTAT.value: Run._vmstat_worker,
    Action.RELEASE.value: Run._release,
    Action.TAKE.value: Run._take,
}
