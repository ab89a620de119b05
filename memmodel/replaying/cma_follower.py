"""CMA allocations of a trace, predicted: ranges, migration sources, the blocks taken, and whether it succeeds."""

import numpy as np

from memmodel.kernels import isolation, lru
from memmodel.kernels import replay_contig as kernels
from memmodel.kernels.pcp import drain_all_pages
from memmodel.kernels.replay_helpers import free_chunks, put_in_step
from memmodel.kernels.replay_state import Course
from memmodel.memory import PhysicalMemory
from memmodel.replaying.cma import CmaArea, Take
from memmodel.replaying.plan import Plan
from memmodel.replaying.report import Report
from memmodel.sources.ftrace import Trace
from memmodel.state.layout import NONE, Kind, MigrateType, PageFlag

__all__ = ["CmaFollower"]

CLUSTER = 32
ZERO = np.uint64(0)


class CmaFollower:
    """The allocation that is on its way, if one is; `sources` are rows of folios off their LRU lists."""

    def __init__(self, mem: PhysicalMemory, trace: Trace, plan: Plan, course: Course, report: Report) -> None:
        self.mem, self.trace, self.plan, self.course, self.report = mem, trace, plan, course, report
        self.area = CmaArea(mem)
        self.batch_size = np.uint64(mem.state.lru["size"][0])
        self.pid, self.cursor = -1, ZERO
        self.sources: list[int] = []
        self.before = 0
        self.taken: tuple[int, int] | None = None
        self.tried = False

    def on_start(self, row: int) -> None:
        """A request: its first range."""
        values = self.trace.values(row)
        if self.area.range is not None:
            self.report.problem(int(self.trace.line[row]), "a CMA allocation while another one has no end")
            self._end(row)
        self.area.begin(int(values["count"]), int(values["align"]))
        self._isolate(row)

    def on_retry(self, row: int) -> None:
        """The range was busy."""
        if self.area.range is None:
            self._no_allocation(row)
            return
        self._settle(row, False)
        self._end(row)
        self.area.retry()
        self._isolate(row)

    def on_finish(self, row: int) -> None:
        """The request has its range, or has given up."""
        if self.area.range is None:
            self._no_allocation(row)
            return
        values = self.trace.values(row)
        succeeded = values.get("errorno") == 0
        first, pfn = self.area.range[0], int(values["pfn"])
        if succeeded and pfn != first:
            self._miss(row, "wrong CMA range", f"cma_alloc got pfn {pfn}, the model expects {first}")
        self._settle(row, succeeded)
        self._end(row)
        self.area.finish(succeeded)

    def on_release(self, row: int) -> None:
        """cma_release; its frees have events of their own."""
        values = self.trace.values(row)
        self.area.release(int(values["pfn"]), int(values["count"]))

    def on_isolated(self, row: int) -> bool:
        """mm_compaction_isolate_migratepages of the task: what was predicted; False if it is another's."""
        if self.area.range is None or int(self.trace.pid[row]) != self.pid:
            return False
        values = self.trace.values(row)
        first = int(self.mem.index(int(values["start"])))
        last, n_taken = first + int(values["end"]) - int(values["start"]), int(values["nr_taken"])
        predicted = self._n_pages([source for source in self.sources if first <= source < last])
        if predicted != n_taken:
            self._miss(row, "wrong CMA sources", f"{n_taken} pages are isolated, the model expects {predicted}")
        return True

    def on_migrate_start(self, row: int) -> None:
        """migrate_pages() begins: clean page cache has been dropped before."""
        if int(self.trace.pid[row]) == self.pid:
            self.before = self._n_pages(self._left())

    def on_migrate_end(self, row: int) -> None:
        """What moved is free; the next sources, or those that are left once more."""
        if self.area.range is None or int(self.trace.pid[row]) != self.pid:
            return
        left = self._left()
        moved, told = self.before - self._n_pages(left), int(self.trace.values(row)["nr_succeeded"])
        if moved != told:
            self._miss(row, "wrong CMA sources", f"{told} pages moved, {moved} of those that the model expects")
        self.sources = left
        if not left:
            self._next_sources()

    def on_migrated(self, row: int) -> None:
        """All are moved, or it gave up: the LRU batches are on again, and what is left goes back through them."""
        lru.set_lru_batch(self.mem.state, self.batch_size)
        if self.area.range is not None:
            lru.put_back_lru(self.mem.state, np.uint64(self.trace.cpu[row]), *self._rows())
        self.sources = []

    def take(self, row: int) -> None:
        """The free blocks of the range leave the lists, if all of it is free."""
        take = self.plan.takes.get(row)
        if self.area.range is None or take is None or take.pid != self.pid:
            return
        self._take(take, row)

    # -- one range ---------------------------------------------------------------------------------------------------

    def _isolate(self, row: int) -> None:
        """The pageblocks of the range are isolated and the per-CPU lists emptied (alloc_contig_range)."""
        if self.area.range is None:
            return
        zone, cpu = np.uint64(self.area.zone), np.uint64(self.trace.cpu[row])
        isolation.isolate_range(self.mem.state, zone, cpu, *self._rows())
        drain_all_pages(self.mem.state, zone, cpu)
        lru.set_lru_batch(self.mem.state, lru.BYPASSED)
        self.pid, self.taken, self.tried = int(self.trace.pid[row]), None, False
        self.cursor = self._rows()[0]
        self._next_sources()

    def _next_sources(self) -> None:
        rows = np.empty(CLUSTER, np.uint64)
        self.cursor, n_folios = kernels.isolate_next(self.mem.state, np.uint64(self.cursor), self._rows()[1], rows)
        self.sources = rows[:n_folios].tolist()

    def _left(self) -> list[int]:
        pages = self.mem.state.pages
        return [source for source in self.sources if pages["pg_flags"][source] & PageFlag.LRU_ISOLATED]

    def _n_pages(self, rows: list[int]) -> int:
        return int((1 << (self.mem.state.pages["state"][rows] & 15).astype(np.int64)).sum()) if rows else 0

    def _rows(self) -> tuple[np.uint64, np.uint64]:
        first, end = self.area.range or (0, 0)
        row = np.uint64(self.mem.index(first))
        return row, row + np.uint64(end - first)

    def _take(self, take: Take, row: int) -> None:
        self.tried = True
        start, end = self._rows()
        blocks = np.empty((int(end - start), 2), np.int64)
        cpu = np.uint64(take.cpu)
        n_blocks, _ = kernels.take_contig(self.mem.state, self.course, start, end, cpu, blocks)
        if not n_blocks:
            return
        blocks = blocks[:n_blocks]
        self.taken = int(blocks[0, 0]), int(blocks[-1, 0]) + (1 << int(blocks[-1, 1]))
        told = [(pfn, order) for pfn, order in take.blocks]
        predicted = list(zip(self.mem.pfns.pfn(blocks[:, 0]).tolist(), blocks[:, 1].tolist(), strict=True))
        if told and told != predicted:
            text = (
                f"the kernel took {len(told)} blocks from pfn {told[0][0]}, the model {n_blocks} from {predicted[0][0]}"
            )
            self._miss(row, "wrong CMA blocks", text)

    def _settle(self, row: int, succeeded: bool) -> None:
        """Whether the range was had, as the kernel says; where the model has it otherwise it is put right."""
        if not self.tried:  # no event says where it was
            self._take(Take(self.pid, int(self.trace.cpu[row]), ()), row)
        if succeeded and self.taken is None:
            self._miss(row, "missed CMA success", f"pfns {self._told_range()}: not all of it is free in the model")
            cpu, none = np.uint64(self.trace.cpu[row]), np.uint64(NONE)
            for index in range(*(int(bound) for bound in self._rows())):
                if self.mem.state.pages["state"][index] != Kind.USED << 4:
                    put_in_step(self.mem.state, none, np.uint64(index), ZERO, np.uint64(MigrateType.MOVABLE), cpu)
        elif not succeeded and self.taken is not None:
            self._miss(row, "missed CMA failure", f"pfns {self._told_range()}: all of it is free in the model")
            first, end = self.taken
            free_chunks(self.mem.state, np.uint64(first), np.uint64(end), np.uint64(self.trace.cpu[row]))

    def _told_range(self) -> str:
        first, end = self.area.range or (0, 0)
        return f"{first} to {end - 1}"

    def _end(self, row: int) -> None:
        """The pageblocks are CMA again."""
        self.on_migrated(row)  # a trace may lack that event
        zone, cpu = np.uint64(self.area.zone), np.uint64(self.trace.cpu[row])
        isolation.undo_isolation(self.mem.state, zone, cpu, *self._rows(), np.uint64(MigrateType.CMA))
        self.pid = -1

    def _no_allocation(self, row: int) -> None:
        if not self.area.asked:
            self.report.problem(int(self.trace.line[row]), "of a CMA allocation that has no beginning")
        self.area.asked = False

    def _miss(self, row: int, kind: str, text: str) -> None:
        self.report.miss(int(self.trace.line[row]), kind, text)
