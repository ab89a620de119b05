"""The replay itself: the compiled loop over the steps, and what happens seldom; compaction is its subclasses'."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.kernels.page_alloc import Request, unreserve_highatomic
from memmodel.kernels.pcp import drain_all_pages, refresh_cpu_vm_stats
from memmodel.kernels.replay_helpers import attempt, force_step, free_chunks, one_attempt, put_in_step
from memmodel.kernels.replay_state import Action, Stop, step_dtype
from memmodel.kernels.replaying import STAYS, give_out_step, run_steps
from memmodel.kernels.request_log import note_failed
from memmodel.mechanisms.request import joins_lru, requested
from memmodel.memory import PhysicalMemory
from memmodel.replaying.cma_follower import CmaFollower
from memmodel.replaying.comparing import compare_dump
from memmodel.replaying.plan import Plan, fresh_course
from memmodel.replaying.report import Report, explain, kind_of_miss
from memmodel.sources.ftrace import Event, Trace
from memmodel.sources.gfp import parse_gfp
from memmodel.sources.records import FreeLists
from memmodel.state.layout import NONE, Kind, ZoneFlag

__all__ = ["Run"]

ALL_ZONES = np.uint64(255)
# As numbers: looking up a member of an enumeration costs half a microsecond.
END, SELDOM, WRONG_PAGE, NOT_IN_USE = (stop.value for stop in (Stop.END, Stop.SELDOM, Stop.WRONG_PAGE, Stop.NOT_IN_USE))


class Waiting(NamedTuple):
    """A request whose first attempts have failed; `found` is the page that a later one got, or NONE."""

    order: int
    zonelist: npt.NDArray[np.uint64]
    request: Request
    found: int = int(NONE)


class Run:
    """One replay of a trace against a memory, which it changes.

    Its subclasses say what becomes of compactions: `FollowedRun` or `PredictedRun`.
    """

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
        self.boosts: dict[int, npt.NDArray[np.int64]] = {}  # pid of a kswapd that runs -> [zones], -1 if not its own
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

    def _on_try_to_compact(self, row: int) -> None:
        values = self.trace.values(row)
        self._first_attempts(row, int(values["order"]), str(values["gfp_mask"]))

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

    # -- CMA -------------------------------------------------------------------------------------------------------

    def _on_isolated(self, row: int) -> None:
        self.cma.on_isolated(row)

    def _on_migrate_start(self, row: int) -> None:
        self.cma.on_migrate_start(row)

    def _on_migrate_end(self, row: int) -> None:
        self.cma.on_migrate_end(row)

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
    Event.MM_COMPACTION_TRY_TO_COMPACT_PAGES: Run._on_try_to_compact,
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
