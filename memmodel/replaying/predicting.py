"""Compactions that a replay predicts: each is a coroutine that waits for the events which the trace must show next.

mm/compaction.c, 6.12.117. What the trace says of them beside is compared: scans, isolated blocks, rotations, results.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.kernels import replay_compaction as kernels
from memmodel.kernels.compact_control import Compact, CompactResult, Said, control_dtype, said_dtype
from memmodel.kernels.migration_job import Errno, Mode
from memmodel.kernels.pcp import drain_all_pages
from memmodel.kernels.replay_state import Course
from memmodel.mechanisms.migration import max_batch
from memmodel.replaying.said import Told
from memmodel.state.layout import NONE, NR_ORDERS, MigrateType, Vmstat
from memmodel.state.machine import Machine

__all__ = ["CompactionTask", "Wants"]

ROOM_TO_SAY = 1 << 16
COUNTED = {
    "migrate_scanned": Vmstat.COMPACT_MIGRATE_SCANNED,
    "free_scanned": Vmstat.COMPACT_FREE_SCANNED,
    "n_isolated": Vmstat.COMPACT_ISOLATED,
}
NO_ORDER = np.uint64(NR_ORDERS)
ENOMEM = Errno.ENOMEM.value


class Wants(NamedTuple):
    """The event that a task must show next."""

    what: str
    """"begin", "start" (of a migration), "targets" (any event: sources are still to get theirs), "free" (an
    mm_page_free) or "migrated"."""
    row: int = -1
    """Of the page that is freed; of the zone that a run begins in."""


Steps = Generator[Wants, None, Any]


class CompactionTask:
    """What one task compacts: for a request, as kcompactd, or because it was told to.

    `told` is what the model's run says, to be compared in its order with what the trace says.
    """

    def __init__(self, mem: Machine, course: Course, slot: int, cpu: int, line: int) -> None:
        self.mem, self.course, self.cpu, self.line = mem, course, np.uint64(cpu), line
        self.slot = slot
        control = np.zeros(1, control_dtype)
        control["slot"], control["cpu"] = slot, cpu
        control["pmd_order"] = mem.geometry.hpage_pmd_order
        room = mem.geometry.pageblock_nr_pages + 64
        said = np.zeros(ROOM_TO_SAY, said_dtype)
        self.compact = Compact(control.view(np.recarray), np.zeros(room, np.uint64), said.view(np.recarray))
        self.control = self.compact.control[0]
        self.told: deque[Told] = deque()
        self.wants: Wants | None = None
        self.counts: Counter[str] = Counter()
        self.result = CompactResult.SKIPPED
        self.captured = int(NONE)
        self.capture: tuple[int, int] | None = None
        """Order and migratetype that the task waits for, in `control.zone`."""
        self.budget = math.inf
        """Sources that get their targets before another task has its turn."""
        self._steps: Steps | None = None

    @property
    def done(self) -> bool:
        """Whether nothing is to come of it."""
        return self._steps is None

    def begin(self, steps: Steps) -> None:
        """Run up to the first event that the trace must show."""
        self._steps = steps
        self.go_on()

    def go_on(self) -> None:
        """The event that it waited for has come: on to the next."""
        assert self._steps is not None
        try:
            self.wants = next(self._steps)
        except StopIteration:
            self.wants = self._steps = None
        self._listen()

    def _listen(self) -> None:
        n_said = int(self.control["n_said"])
        assert n_said <= ROOM_TO_SAY
        said = self.compact.said[:n_said]
        self.told += map(Told, said["what"].tolist(), said["numbers"].tolist(), repeat(self._row_of_pfn_0()))
        self.control["n_said"] = 0

    def _do(self, kernel: Callable[..., Any], *arguments: Any) -> Any:
        """A piece of the run, in which a page that the task waits for may be captured."""
        if self.capture is None:
            return kernel(*arguments)
        zone = self.mem.state.zones[int(self.control["zone"])]
        zone["capture_order"], zone["capture_type"], zone["captured"] = *self.capture, self.captured
        try:
            return kernel(*arguments)
        finally:
            self.captured = int(zone["captured"])
            zone["capture_order"], zone["captured"] = NO_ORDER, NONE

    # -- who compacts ------------------------------------------------------------------------------------------

    def for_request(self, zones: npt.NDArray[np.uint64], request: Any, priority: int, flags: int) -> Steps:
        """try_to_compact_pages(): one zone after the other, up to the first success."""
        order, hardest = int(request.order), priority == 0
        best = CompactResult.SKIPPED
        for zone in zones.tolist():
            if not hardest and self._put_off(zone, order):
                best = max(best, CompactResult.DEFERRED)
                continue
            self._control(zone, order, Mode.ASYNC if priority == 2 else Mode.SYNC_LIGHT, int(request.migratetype))
            self.control["direct"], self.control["alloc_flags"] = 1, flags
            for name in ("whole_zone", "ignore_skip", "ignore_suitable"):
                self.control[name] = hardest
            status = CompactResult(self._suits(zone, int(request.highest)))
            if status == CompactResult.CONTINUE:
                self.capture = order, int(request.migratetype)
                status = yield from self.zone_run()
                self.capture = None
                if self.captured != NONE:
                    status = CompactResult.SUCCESS
            best = max(best, status)
            if status == CompactResult.SUCCESS:
                self.note(zone, succeeded=True)
                break
            if priority != 2 and status in (CompactResult.COMPLETE, CompactResult.PARTIAL_SKIPPED):
                self.note(zone, succeeded=False)
        self.result = best

    def for_kcompactd(self, order: int, zones: list[int], highest: int) -> Steps:
        """kcompactd_do_work(): the zones of its node up to the request's highest; one struct serves them all."""
        if not zones:
            return
        self._control(zones[0], order, Mode.SYNC_LIGHT, MigrateType.UNMOVABLE)
        state = self.mem.state
        for zone in zones:
            if self._put_off(zone, order):
                continue
            if self._suits(zone, int(state.zones["zone_type"][zone])) != CompactResult.CONTINUE:
                continue
            if self._suits(zone, highest) != CompactResult.CONTINUE:
                continue
            self._in_zone(zone)
            status = yield from self.zone_run()
            if status == CompactResult.SUCCESS:
                self.note(zone, succeeded=True)
            elif status in (CompactResult.COMPLETE, CompactResult.PARTIAL_SKIPPED):
                drain_all_pages(state, np.uint64(zone), self.cpu)
                self.note(zone, succeeded=False)

    def for_nobody(self, zone: int) -> Steps:
        """A zone of compact_memory, or of a node's compact."""
        self._control(zone, -1, Mode.SYNC, MigrateType.UNMOVABLE)
        self.control["whole_zone"] = self.control["ignore_skip"] = 1
        yield from self.zone_run()

    def _control(self, zone: int, order: int, mode: Mode, migratetype: int) -> None:
        control = self.control
        control["order"] = control["search_order"] = order
        control["mode"], control["migratetype"], control["fast_search_fail"] = mode, migratetype, 0
        self._in_zone(zone)

    def _in_zone(self, zone: int) -> None:
        first = int(self.mem.state.zones["start"][zone])
        self.control["zone"], self.control["row_of_pfn_0"] = zone, first - int(self.mem.pfns.pfn(first))

    def _put_off(self, zone: int, order: int) -> bool:
        put_off = bool(kernels.put_off(self.mem.state, np.uint64(zone), np.uint64(order)))
        if put_off:
            self._tell(Said.DEFERRED, zone, order)
        return put_off

    def note(self, zone: int, *, succeeded: bool, allocated: bool = False) -> None:
        """A run's result decides how often the zone is left alone."""
        order = int(self.control["order"])
        if succeeded:
            kernels.note_success(self.mem.state, np.uint64(zone), np.uint64(order), allocated)
        else:
            kernels.note_failure(self.mem.state, np.uint64(zone), np.uint64(order))
        self._tell(Said.DEFER_RESET if succeeded else Said.DEFER, zone, order)

    def _tell(self, said: Said, zone: int, order: int) -> None:
        record = self.mem.state.zones[zone]
        self._say(said, zone, order, int(record["compact_order_failed"]), int(record["compact_considered"]))

    def _say(self, said: Said, *numbers: int) -> None:
        """Behind what the kernels have said."""
        self._listen()
        self.told.append(Told(said, list(numbers), self._row_of_pfn_0()))

    def _row_of_pfn_0(self) -> int:
        return int(self.control["row_of_pfn_0"])

    def _suits(self, zone: int, highest: int) -> int:
        result: int = kernels.suits(self.mem.state, self.compact, np.uint64(zone), np.uint64(highest))
        return result

    # -- a run -------------------------------------------------------------------------------------------------

    def zone_run(self) -> Generator[Wants, None, CompactResult]:
        """compact_zone() of a zone that is worth it."""
        state = self.mem.state
        yield Wants("begin", int(self.control["zone"]))
        self.counts["compaction runs"] += 1
        status = self._do(kernels.start_run, state, self.compact)
        while status == CompactResult.CONTINUE:
            yield Wants("start")
            rc = yield from self.migration()
            status = self._do(kernels.go_on, state, self.compact, rc)
        highest = -1
        while (row := int(kernels.released(state, self.compact))) != NONE:
            highest = max(highest, row)
            yield Wants("free", row)
            self.counts["unused blocks released"] += 1
            self._do(kernels.free_released, state, np.uint64(row), self.cpu)
        kernels.end_run(state, self.compact, highest)
        for name, counter in COUNTED.items():
            state.vmstat[counter] += int(self.control[name])
        self.control["n_isolated"] = 0
        self._say(Said.END, int(self.control["migrate"]), int(self.control["free"]), int(status))
        return CompactResult(int(status))

    def migration(self) -> Generator[Wants, None, int]:
        """migrate_pages() of the sources, in lists of at most HPAGE_PMD_NR pages: 0, failures, or -ENOMEM."""
        state = self.mem.state
        sources = self.compact.sources[: int(self.control["n_sources"])][::-1].astype(np.int64).tolist()
        stay: list[int] = []
        rc = 0
        for group in self._groups(sources):
            targets: list[int] = []
            while self._takes_target(group, targets):
                if self.budget < 1:
                    yield Wants("targets")
            failed: list[int] = []
            for source, target in zip(group, targets, strict=False):
                yield from self._move(source, target, failed)
            if len(targets) < len(group):
                stay += failed + group[len(targets) :] + sources[sources.index(group[-1]) + 1 :]
                rc = ENOMEM
                break
            if self.control["mode"] != Mode.ASYNC:
                yield from self._one_by_one(failed)
            stay += failed
            rc += len(failed)
        yield Wants("migrated")
        n_failed = sum(1 << int(state.pages["state"][row] & 15) for row in stay)
        state.vmstat[Vmstat.PGMIGRATE_SUCCESS] += int(self.control["n_pages"]) - n_failed
        self._say(Said.MIGRATEPAGES, int(self.control["n_pages"]) - n_failed, n_failed)
        kernels.put_back(state, self.cpu, np.array(stay, np.uint64))
        return rc

    def _groups(self, sources: list[int]) -> Iterator[list[int]]:
        pages, most = self.mem.state.pages, max_batch(self.mem)
        group: list[int] = []
        n_pages = 0
        for source in sources:
            group.append(source)
            n_pages += 1 << int(pages["state"][source] & 15)
            if n_pages >= most:
                yield group
                group, n_pages = [], 0
        if group:
            yield group

    def _takes_target(self, group: list[int], targets: list[int]) -> bool:
        """All of a list have theirs before the first moves: one more; False where all have, or there is none."""
        if len(targets) == len(group):
            return False
        target = int(kernels.target_for(self.mem.state, self.compact, np.uint64(group[len(targets)])))
        if target == NONE:
            return False
        targets.append(target)
        self.budget -= 1
        return True

    def _move(self, source: int, target: int, failed: list[int]) -> Steps:
        state = self.mem.state
        if kernels.never_moves(state, np.uint64(source)):
            yield from self._give_back(target)
            failed.append(source)
            return
        yield Wants("free", source)
        self.counts["sources moved"] += 1
        self._do(kernels.move_page, state, self.course, np.uint64(source), np.uint64(target), self.cpu)

    def _give_back(self, target: int) -> Steps:
        """A target that was not used: an mm_page_free that frees nothing."""
        yield Wants("free", target)
        self.counts["unused targets"] += 1
        kernels.return_target(self.mem.state, self.compact, np.uint64(target))

    def _one_by_one(self, failed: list[int]) -> Steps:
        """What failed is tried alone, and fails again (migrate_pages_sync)."""
        for source in failed:
            targets: list[int] = []
            if self._takes_target([source], targets):
                yield from self._give_back(targets[0])
