"""What lives between the calls of a workload: its folios in lots, its generators, and what was counted."""

from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from memmodel.state.layout import NONE, NR_ORDERS, Memory
from memmodel.state.machine import handles_at
from memmodel.workloads.generator import POOLS, Kind, work_dtype

__all__ = ["ALLOCATED", "FAILED", "FREED", "HELD", "N_KINDS", "Live", "member_dtype", "new_live"]

N_KINDS = len(Kind)
ALLOCATED, FAILED, FREED, HELD = range(4)

member_dtype = np.dtype(
    [
        ("sequence", "u4"),  # of the folio's handle
        ("after", "u4"),  # slot of the next folio of the lot, or NONE
        ("last", "u4"),  # of a lot's first folio: slot of the last one
        ("kind", "u4"),  # Kind + 1; 0: no folio of the workload
    ]
)


class Live(NamedTuple):
    """As kernels take it. A lot is known by the slot of its first folio in the table of folios."""

    works: npt.NDArray[Any]  # work_dtype, [generators + 1]: the last one draws whose turn it is
    members: npt.NDArray[Any]  # member_dtype, by slot
    rings: npt.NDArray[np.uint32]  # [generators, pools, a power of two]: the lots, oldest first from `head` on
    counts: npt.NDArray[np.int64]  # [ALLOCATED .. HELD, kinds, orders], folios
    totals: npt.NDArray[np.int64]  # operations; the word of one that cannot be, or -1

    @property
    def handles(self) -> npt.NDArray[np.int64]:
        """Handles of all folios, by slot."""
        slots = np.flatnonzero(self.members["kind"])
        return handles_at(self.members, slots)

    @property
    def kinds(self) -> npt.NDArray[np.int64]:
        """`Kind` of each, in the same order."""
        kinds = self.members["kind"]
        return np.asarray(kinds[kinds != 0].astype(np.int64) - 1)

    def with_room(self, n_slots: int) -> Self:
        """The same in arrays of its own, for a table of so many folios."""
        other = new_live(self.works.size - 1, max(n_slots, self.members.size))
        other.works[:] = self.works
        other.members[: self.members.size] = self.members
        mask = self.rings.shape[-1] - 1
        for generator, pool in np.ndindex(*self.rings.shape[:2]):
            work = self.works[generator]
            n_lots = int(work["lots"][pool])
            places = np.arange(int(work["head"][pool]), int(work["head"][pool]) + n_lots) & mask
            other.rings[generator, pool, :n_lots] = self.rings[generator, pool, places]
        other.works["head"] = 0
        other.counts[:], other.totals[:] = self.counts, self.totals
        return self._replace(**other._asdict())


def new_live(n_generators: int, n_slots: int) -> Live:
    """Nothing lives yet. Room that is never used has no memory behind it."""
    works = np.zeros(n_generators + 1, work_dtype)
    works["open"] = NONE
    ring = 1 << max(n_slots - 1, 0).bit_length()
    return Live(
        works=works.view(np.recarray),
        members=np.zeros(n_slots, member_dtype).view(np.recarray),
        rings=np.zeros((n_generators, POOLS, ring), np.uint32),
        counts=np.zeros((4, N_KINDS, NR_ORDERS), np.int64),
        totals=np.array([0, -1], np.int64),
    )


def first_stale(mem: Memory, live: Live) -> int:
    """The first of the folios that is not live any more, as a handle; -1 if all are."""
    slots = np.flatnonzero(live.members["kind"])
    if slots.size and slots[-1] >= mem.folios.size:
        return int(live.handles[-1])
    folios = mem.folios[slots]
    stale = (folios["index"] == NONE) | (folios["sequence"] != live.members["sequence"][slots])
    return int(live.handles[stale.argmax()]) if stale.any() else -1
