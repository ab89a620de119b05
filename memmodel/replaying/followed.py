"""A replay in which compaction is followed: the blocks that it isolates and the lists that it rotates are given."""

from typing import Any

import numpy as np

from memmodel.kernels import lru
from memmodel.kernels.pcp import drain_all_pages
from memmodel.kernels.replay_helpers import leave_range
from memmodel.replaying.compaction import CompactionRun
from memmodel.replaying.report import Report
from memmodel.replaying.run import Run
from memmodel.sources.ftrace import Event
from memmodel.state.layout import MAX_COMPACTIONS, NONE, NR_ORDERS

__all__ = ["FollowedRun"]

GOES_ON = ("continue", "no_suitable_page")  # ret of compact_finished
KCOMPACTD_DONE = ("complete", "partial_skipped")  # status of an end after which kcompactd drains


class FollowedRun(Run):
    """One replay; `runs` are the compactions on their way, by pid."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.runs: dict[int, CompactionRun] = {}
        self.kcompactd_orders: dict[int, int] = {}
        self.isolated: dict[int, list[tuple[int, int]]] = {}  # pid -> ranges of rows with migration sources

    def run(self, stop_at_first: bool = False) -> Report:
        """All steps; a compaction that is still on its way has no end."""
        report = super().run(stop_at_first)
        if report.n_steps == self.steps.size:
            for run in self.runs.values():
                report.problem(run.line, "a compaction that has no end")
        return report

    def _on_kcompactd_wake(self, row: int) -> None:
        self.kcompactd_orders[int(self.trace.pid[row])] = int(self.trace.values(row)["order"])

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

    def _on_isolated(self, row: int) -> None:
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
        super()._on_migrate_start(row)
        run = self.runs.get(int(self.trace.pid[row]))
        if run is not None:
            record = self.course.compactions[run.slot]
            record["migrating"], record["chosen"] = 1, 0

    def _on_migrate_end(self, row: int) -> None:
        super()._on_migrate_end(row)
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


FollowedRun.handlers = {
    **Run.handlers,
    Event.MM_COMPACTION_BEGIN: FollowedRun._on_compaction_begin,
    Event.MM_COMPACTION_END: FollowedRun._on_compaction_end,
    Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES: FollowedRun._on_isolated,
    Event.MM_COMPACTION_MIGRATEPAGES: FollowedRun._on_migratepages,
    Event.MM_COMPACTION_FINISHED: FollowedRun._on_finished,
    Event.MM_COMPACTION_KCOMPACTD_WAKE: FollowedRun._on_kcompactd_wake,
    Event.MM_MIGRATE_PAGES_START: FollowedRun._on_migrate_start,
    Event.MM_MIGRATE_PAGES: FollowedRun._on_migrate_end,
}
