"""A CMA area followed by its events: which range an allocation tries next, and where in the trace it takes it.

cma_alloc of mm/cma.c, 6.12.117.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.kernels.replay_state import Action
from memmodel.sources.ftrace import Event, Trace
from memmodel.state.layout import MigrateType
from memmodel.state.machine import Machine

__all__ = ["CmaArea", "Take", "find_takes"]


class Take(NamedTuple):
    """The free blocks of a range leave the lists here."""

    pid: int
    cpu: int
    blocks: tuple[tuple[int, int], ...]
    """(pfn, order) of each, if the trace tells."""


def find_takes(trace: Trace, actions: npt.NDArray[np.int8]) -> dict[int, Take]:
    """Rows before which an allocation takes its range: behind its last request for a target and its last migration.

    The blocks that the trace says were taken are no steps: they are predicted.
    """
    ends = Event.CMA_ALLOC_BUSY_RETRY, Event.CMA_ALLOC_FINISH
    told = trace.rows(Event.CMA_ALLOC_START, *ends, Event.MM_MIGRATE_PAGES, Event.MM_PAGE_ALLOC)
    rows = np.union1d(told[actions[told] >= 0], np.flatnonzero(actions == Action.ISOLATE))
    takes: dict[int, Take] = {}
    behind: dict[int, int] = {}  # pid of a task that allocates -> row behind its last event
    blocks: dict[int, list[tuple[int, int]]] = {}
    if not np.any(trace.event == Event.CMA_ALLOC_START):
        return takes
    for row, pid in zip(rows.tolist(), trace.pid[rows].tolist(), strict=True):
        event = trace.event[row]
        if event == Event.CMA_ALLOC_START:
            behind[pid], blocks[pid] = row + 1, []
        elif pid not in behind:
            continue
        elif event == Event.LIST_DELETE:
            blocks[pid].append((int(trace.fields[row, 0]), int(trace.fields[row, 1])))
            actions[row] = -1
        elif event in ends:
            takes[behind.pop(pid)] = Take(pid, int(trace.cpu[row]), tuple(blocks.pop(pid)))
            if event == Event.CMA_ALLOC_BUSY_RETRY:
                behind[pid], blocks[pid] = row + 1, []
        else:
            behind[pid] = row + 1
    return takes


class CmaArea:
    """The bitmap of a zone's area, empty at the start, order_per_bit 0; `range` is what is tried now, in pfns."""

    def __init__(self, mem: Machine) -> None:
        shift = mem.geometry.pageblock_order
        rows = np.flatnonzero(mem.state.blocks["migratetype"] == MigrateType.CMA) << shift
        pfns = mem.pfns.pfn(rows)
        self.zone = int(mem.state.pages["zone"][rows[0]]) if rows.size else 0
        self.start = int(pfns[0]) if rows.size else 0
        self.used = np.zeros(int(pfns[-1]) + (1 << shift) - self.start if rows.size else 0, np.bool_)
        self.range: tuple[int, int] | None = None
        self.last_range = (0, 0)
        self.n_pages, self.align, self.asked = 0, 1, False

    def begin(self, n_pages: int, align_order: int) -> None:
        """A request: its first range."""
        self.n_pages, self.align, self.asked = n_pages, 1 << align_order, True
        self.range = self._first_fit(self.start)

    def retry(self) -> None:
        """The range was busy: on by the alignment, not by the size."""
        if self.range is not None:
            self.range = self._first_fit(self.range[0] + self.align)

    def _first_fit(self, start: int) -> tuple[int, int] | None:
        """The first free range of that length and alignment (bitmap_find_next_zero_area_off)."""
        first = -(-start // self.align) * self.align
        while first + self.n_pages - self.start <= self.used.size:
            taken = np.flatnonzero(self.used[first - self.start : first - self.start + self.n_pages])
            if not taken.size:
                return first, first + self.n_pages
            first = -(-(first + int(taken[-1]) + 1) // self.align) * self.align
        return None

    def finish(self, succeeded: bool) -> None:
        """The request has its range, or has given up."""
        self.last_range = self.range or (0, 0)
        if succeeded:
            self._mark(*self.last_range, True)
        self.range, self.asked = None, False

    def release(self, pfn: int, n_pages: int) -> None:
        """cma_release."""
        self._mark(pfn, pfn + n_pages, False)

    def _mark(self, first: int, end: int, used: bool) -> None:
        self.used[max(0, first - self.start) : max(0, end - self.start)] = used
