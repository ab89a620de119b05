"""A Memory with what turns users' words into rows: geometry, pfns, zones by node, CPUs."""

from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.state.build import PfnMap, grow_folios
from memmodel.state.check import check
from memmodel.state.layout import Memory, ZoneType

__all__ = ["Handles", "Machine", "handles_at"]

Handles = npt.NDArray[np.int64]


def handles_at(table: npt.NDArray[Any], slots: npt.NDArray[np.int64]) -> Handles:
    """Handles of the folios in these slots of a table with their sequence numbers."""
    return np.asarray(table["sequence"][slots].astype(np.int64) << 32 | slots)


class Machine:
    """Holds the state of one machine's memory; mechanisms change it in place."""

    seed: int
    """Root of random numbers that nobody gave a seed for."""

    def __init__(self, geometry: Geometry, state: Memory, pfns: PfnMap, cpus: int) -> None:
        self.geometry = geometry
        self.state = state
        self.pfns = pfns
        self.cpus = cpus
        self.requests: dict[tuple[Any, ...], Any] = {}  # what mechanisms made of requests, for this state's features
        self._zonelists: dict[tuple[int, ZoneType, bool], npt.NDArray[np.uint64]] = {}

    @property
    def nodes(self) -> list[int]:
        """Node numbers, ascending."""
        return [int(node) for node in np.unique(self.state.zones["node"])]

    def index(self, pfn: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Rows of pfns in the arrays.

        Raises
        ------
        InputError
            If a pfn is outside memory.
        """
        return self.pfns.index(pfn)

    def handles(self, rows: npt.ArrayLike) -> Handles:
        """Handle of the live folio that begins at each row, shape ``(rows,)``; -1: none does."""
        index = np.atleast_1d(np.asarray(rows, np.int64))
        slots = self.state.pages["next"][index].astype(np.int64)
        handles = np.full(index.shape, -1)
        there = slots < int(self.state.slots[1])
        there[there] = self.state.folios["index"][slots[there]] == index[there]
        handles[there] = handles_at(self.state.folios, slots[there])
        return handles

    def check(self) -> None:
        """Verify every law of the state.

        Raises
        ------
        InvariantError
            Naming the first broken law.
        """
        check(self.state)

    def check_cpu(self, cpu: int) -> np.uint64:
        """The CPU's number as kernels take it.

        Raises
        ------
        InputError
            If there is no such CPU.
        """
        if not isinstance(cpu, int | np.integer) or cpu not in range(self.cpus):
            raise InputError(f"cpu {cpu!r}; this machine has 0 to {self.cpus - 1}")
        return np.uint64(cpu)

    def check_node(self, node: int) -> int:
        """The node's number.

        Raises
        ------
        InputError
            If there is no such node.
        """
        nodes = self.nodes
        if isinstance(node, bool) or not isinstance(node, int | np.integer) or node not in nodes:
            raise InputError(f"node {node!r}; this machine has {', '.join(map(str, nodes))}")
        return int(node)

    def zonelist(self, node: int, highest: ZoneType, this_node: bool = False) -> npt.NDArray[np.uint64]:
        """Zones in the order in which a request on `node` tries them: its own from the highest down, then other nodes'.

        Nodes are taken to be equally far from each other: the next ones first, then the lower ones, as
        find_next_best_node() breaks ties (mm/page_alloc.c). With `this_node` (__GFP_THISNODE) there are no others.

        Raises
        ------
        InputError
            If there is no such node.
        """
        whole = isinstance(node, int | np.integer)
        known = self._zonelists.get((node, highest, this_node)) if whole else None
        if known is not None:
            return known
        node, nodes = self.check_node(node), self.nodes
        others = [] if this_node else [n for n in nodes if n > node] + [n for n in nodes if n < node]
        zones = self.state.zones
        rows = [
            z
            for n in (node, *others)
            for z in reversed(range(zones.size))
            if zones[z]["node"] == n and zones[z]["zone_type"] <= highest
        ]
        return self._zonelists.setdefault((node, highest, this_node), np.array(rows, dtype=np.uint64))

    def reserve_folios(self, n_more: int) -> None:
        """Make room in the folio table."""
        self.state = grow_folios(self.state, n_more)
