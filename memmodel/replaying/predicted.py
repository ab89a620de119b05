"""A replay in which compaction is predicted too: it is given only that one begins."""

import math
from typing import Any

import numpy as np

from memmodel.kernels import lru
from memmodel.kernels import replay_compaction as kernels
from memmodel.kernels.compact_control import CompactResult, Said
from memmodel.kernels.compact_hints import reset_isolation_suitable
from memmodel.kernels.replay_state import Action
from memmodel.mechanisms.compactor import populated_zones
from memmodel.mechanisms.kswapd import zone_type
from memmodel.replaying.predicting import CompactionTask
from memmodel.replaying.report import Report
from memmodel.replaying.run import Run
from memmodel.replaying.said import FIELDS, SAID, heard, spelt
from memmodel.sources.ftrace import Event
from memmodel.state.layout import MAX_COMPACTIONS, NONE, ZoneType

__all__ = ["PredictedRun"]

NS_A_SOURCE = 55_000  # to unmap a page


class PredictedRun(Run):
    """One replay; `tasks` are the compactions on their way, by pid."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.tasks: dict[int, CompactionTask] = {}
        self.compacted: set[int] = set()
        """Requests whose last step was a compaction, not followed by reclaim."""
        self.course.cursor["usual"] = -1
        self.heard = heard(self.trace)
        migrations = (("start", Event.MM_MIGRATE_PAGES_START), ("migrated", Event.MM_MIGRATE_PAGES))
        self.untold = {what for what, event in migrations if not self.trace.rows(event).size}
        self.zone_names = [ZoneType(int(zone["zone_type"])).label for zone in self.mem.state.zones]

    def run(self, stop_at_first: bool = False) -> Report:
        """All steps; the pages that compactions freed count with the others."""
        report = super().run(stop_at_first)
        for pid in list(self.tasks):
            self._drop_task(pid)
        moved = report.predicted["sources moved"] + report.predicted["unused blocks released"]
        report.frees += moved
        report.n_unused_targets = report.predicted["unused targets"]
        return report

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _new_task(self, row: int) -> CompactionTask | None:
        pid = int(self.trace.pid[row])
        self._drop_task(pid)
        used = {task.slot for task in self.tasks.values()}
        free = [slot for slot in range(MAX_COMPACTIONS) if slot not in used]
        if not free:
            self.report.problem(int(self.trace.line[row]), f"more than {MAX_COMPACTIONS} compactions at one time")
            return None
        task = CompactionTask(self.mem, self.course, free[0], int(self.trace.cpu[row]), int(self.trace.line[row]))
        self.tasks[pid] = task
        self._note_pids()
        return task

    def _note_pids(self) -> None:
        cursor = self.course.cursor[0]
        cursor["n_tasks"] = len(self.tasks)
        cursor["tasks"][: len(self.tasks)] = list(self.tasks)

    def _drop_task(self, pid: int) -> None:
        """A task does something else: what it was to show is missing."""
        task = self.tasks.pop(pid, None)
        if task is None:
            return
        if not task.done:
            self.report.problem(task.line, "a compaction that has no end")
        missing = [told.said for told in task.told if told.said in self.heard]
        if missing:
            names = ", ".join(sorted({Said(said).name.lower() for said in missing}))
            self.report.miss(task.line, "compaction event", f"{len(missing)} that the trace does not have: {names}")
        self.report.predicted.update(task.counts)
        self._note_pids()

    def _go_on(self, pid: int, row: int) -> None:
        task = self.tasks[pid]
        task.budget = self._budget(row)
        task.go_on()
        while task.wants is not None and task.wants.what in self.untold:
            task.go_on()
        if task.done:
            self._end(pid, task)

    def _budget(self, row: int) -> float:
        """Sources that get their targets up to the next event, by the time that one takes.

        Between two sources another task may have its turn; a trace of the standard events alone does not tell.
        """
        if row + 1 >= len(self.trace):
            return math.inf
        return float(self.trace.time_ns[row + 1] - self.trace.time_ns[row]) / NS_A_SOURCE

    def _to_free(self, pid: int) -> None:
        """A page is freed, or all are moved: the sources have their targets."""
        task = self.tasks[pid]
        while task.wants is not None and task.wants.what == "targets":
            task.budget = math.inf
            task.go_on()

    def _on_tlb_flush(self, row: int) -> None:
        """The first flush since the task had its turn again (switch_mm of a lazy CPU)."""
        pid = int(self.trace.pid[row])
        task = self.tasks.get(pid)
        if task is not None and task.wants is not None and task.wants.what == "targets":
            self._go_on(pid, row)

    def _end(self, pid: int, task: CompactionTask) -> None:
        """A request's compaction leaves it a page, or not; the next event of the task tells."""
        key = pid << 1
        if key in self.waiting and task.result > CompactResult.SKIPPED:
            self.compacted.add(key)
            if task.captured != NONE:
                self.waiting[key] = self.waiting[key]._replace(found=task.captured)
                self.report.n_captured += 1

    def _on_try_to_compact(self, row: int) -> None:
        super()._on_try_to_compact(row)
        key, values = self._key(row), self.trace.values(row)
        self.compacted.discard(key)
        waiting = self.waiting[key]
        task = self._new_task(row)
        if task is not None:
            flags = int(waiting.request.slow)
            task.begin(task.for_request(waiting.zonelist, waiting.request, int(values["priority"]), flags))
            if task.done:
                self._end(int(self.trace.pid[row]), task)

    def _on_kcompactd_wake(self, row: int) -> None:
        values = self.trace.values(row)
        highest = zone_type(str(values["classzone_idx"]))
        types = self.mem.state.zones["zone_type"]
        mine = [zone for zone in populated_zones(self.mem, int(values["nid"])) if types[zone] <= highest]
        task = self._new_task(row)
        if task is not None:
            task.begin(task.for_kcompactd(int(values["order"]), mine, highest))

    def _on_compaction_begin(self, row: int) -> None:
        pid, zone = int(self.trace.pid[row]), self._zone_at(int(self.trace.values(row)["zone_start"]))
        task = self.tasks.get(pid)
        if task is None or task.done or task.wants is None or task.wants.what != "begin":
            if task is not None and not task.done:
                self._unexpected(row, task, "a compaction begins")
            self._begin_all(row, zone)
            task = self.tasks.get(pid)
        elif task.wants.row != zone:
            self._unexpected(row, task, f"a compaction of zone {self.zone_names[zone]} begins")
        if task is not None:
            self._go_on(pid, row)
            self._compare(row)

    def _begin_all(self, row: int, zone: int) -> None:
        """compact_memory: LRU batches are emptied before the first zone."""
        if not np.any((self.mem.state.zones["present"] > 0)[:zone]):
            lru.set_lru_batch(self.mem.state, self.batch_size)
        task = self._new_task(row)
        if task is not None:
            task.begin(task.for_nobody(zone))

    def _zone_at(self, pfn: int) -> int:
        return int(self.mem.state.pages["zone"][self.mem.index(pfn)])

    # -- what a task must show -------------------------------------------------------------------------------------

    def _unexpected(self, row: int, task: CompactionTask, what: str) -> None:
        wants = task.wants
        text = "nothing" if wants is None else wants.what
        if wants is not None and wants.what == "free":
            text += f" of pfn {int(self.mem.pfns.pfn(wants.row))}"
        self.report.miss(int(self.trace.line[row]), "compaction", f"{what}; the model expects {text}")

    def _awaited(self, row: int, what: str) -> None:
        pid = int(self.trace.pid[row])
        task = self.tasks.get(pid)
        if task is None or task.done:
            return
        if what == "migrated":
            self._to_free(pid)
        if task.wants is None or task.wants.what != what:
            self._unexpected(row, task, f"{what} of a migration")
        else:
            self._go_on(pid, row)

    def _on_isolated(self, row: int) -> None:
        if not self.cma.on_isolated(row):
            self._compare(row)

    def _on_migrate_start(self, row: int) -> None:
        super()._on_migrate_start(row)
        self._awaited(row, "start")

    def _on_migrate_end(self, row: int) -> None:
        super()._on_migrate_end(row)
        self._awaited(row, "migrated")

    def _task_frees(self, number: int) -> None:
        """An mm_page_free of a compacting task."""
        step = self.steps[number]
        pid, row = int(step["pid"]), int(step["row"])
        self._to_free(pid)
        task = self.tasks[pid]
        if not task.done and task.wants is not None and task.wants == ("free", int(step["index"])):
            self._go_on(pid, row)
            return
        if not task.done:
            self._unexpected(row, task, f"pfn {int(self.mem.pfns.pfn(int(step['index'])))} is freed")
        self.course.cursor["usual"] = number
        self.again = True

    def _task_operates(self, number: int) -> None:
        """What compaction did to the free lists, as an instrumented kernel tells it."""
        step = self.steps[number]
        if self.tasks[int(step["pid"])].told or not self.tasks[int(step["pid"])].done:
            self._compare(int(step["row"]))
        else:
            self.course.cursor["usual"] = number
            self.again = True

    # -- what the trace says beside --------------------------------------------------------------------------------

    def _compare(self, row: int) -> None:
        """The next thing that the model's run says, against the trace."""
        task = self.tasks.get(int(self.trace.pid[row]))
        if task is None:
            return
        said = SAID[Event(int(self.trace.event[row]))]
        while not task.told and task.wants is not None and task.wants.what == "targets":
            task.budget = 1
            task.go_on()
        while task.told and task.told[0].said not in self.heard:
            task.told.popleft()
        if said == Said.DEFER_RESET and not task.told and self._key(row) in self.compacted and self._attempt(row):
            self._got_page(self._key(row), self.waiting[self._key(row)].found, task)
        if said == Said.SUITABLE and task.done and not task.told:
            return  # a test of reclaim
        values = self.trace.values(row)
        real = (int(said), *(values[name] for name in FIELDS[said]))
        mine = spelt(task.told.popleft(), self.zone_names) if task.told else ()
        self.report.predicted["compaction events"] += 1
        if mine != real:
            text = f"{said.name.lower()} {real[1:]}; the model says {mine and Said(mine[0]).name.lower()} {mine[1:]}"
            self.report.miss(int(self.trace.line[row]), "compaction event", text)

    # -- requests --------------------------------------------------------------------------------------------------

    def _on_reclaim_begin(self, row: int) -> None:
        self.compacted.discard(self._key(row))
        super()._on_reclaim_begin(row)

    def _late_alloc(self, number: int) -> None:
        step = self.steps[number]
        key = int(step["pid"]) << 1 | int(step["softirq"])
        compacted = key in self.compacted and self.waiting[key].order == int(step["order"])
        super()._late_alloc(number)
        if compacted and step["index"] != NONE:
            self._got_page(key, int(step["index"]), None)

    def _got_page(self, key: int, row: int, task: CompactionTask | None) -> None:
        """Compaction was worth it: the next request need not wait (__alloc_pages_direct_compact)."""
        self.compacted.discard(key)
        zone = int(self.mem.state.pages["zone"][row])
        if task is not None:
            task.note(zone, succeeded=True, allocated=True)
        else:
            order = int(self.mem.state.pages["state"][row]) & 15
            kernels.note_success(self.mem.state, np.uint64(zone), np.uint64(order), True)

    def _on_kswapd_sleep(self, row: int) -> None:
        """Before it sleeps it takes skip hints back."""
        reset_isolation_suitable(self.mem.state, np.uint64(self.trace.values(row)["nid"]))


PredictedRun.handlers = {
    **Run.handlers,
    **dict.fromkeys(SAID, PredictedRun._compare),
    Event.MM_COMPACTION_BEGIN: PredictedRun._on_compaction_begin,
    Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES: PredictedRun._on_isolated,
    Event.MM_COMPACTION_TRY_TO_COMPACT_PAGES: PredictedRun._on_try_to_compact,
    Event.MM_COMPACTION_KCOMPACTD_WAKE: PredictedRun._on_kcompactd_wake,
    Event.MM_MIGRATE_PAGES_START: PredictedRun._on_migrate_start,
    Event.MM_MIGRATE_PAGES: PredictedRun._on_migrate_end,
    Event.TLB_FLUSH: PredictedRun._on_tlb_flush,
    Event.MM_VMSCAN_KSWAPD_SLEEP: PredictedRun._on_kswapd_sleep,
    Event.MM_VMSCAN_DIRECT_RECLAIM_BEGIN: PredictedRun._on_reclaim_begin,
}
PredictedRun.actions = {
    **Run.actions,
    Action.ALLOC.value: PredictedRun._late_alloc,
    Action.FREE.value: PredictedRun._task_frees,
    Action.FREE_DIRECT.value: PredictedRun._task_frees,
    **dict.fromkeys((Action.ISOLATE.value, Action.ROTATE.value, Action.SEARCH.value), PredictedRun._task_operates),
}
