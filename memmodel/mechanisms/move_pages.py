"""The system calls that migrate: move_pages(2), migrate_pages(2) and mbind(2), page by page as callers see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.kernels.migration import first_poisoned
from memmodel.mechanisms.buddy import as_handles, folio_rows
from memmodel.mechanisms.copying import copy_rule
from memmodel.mechanisms.migration import (
    MigrationOutcome,
    check_owners,
    lru_cache_disabled,
    migrate_pages,
    refuse_poisoned,
    survives_errors,
)
from memmodel.mechanisms.tlb import Tlb
from memmodel.state.layout import HANDLE_SLOT, FolioBit, PageFlag
from memmodel.state.machine import Handles, Machine

__all__ = ["Entry", "MovePagesOutcome", "move_pages"]

EACCES, EFAULT, ENOENT, EBUSY, ENODEV = -13, -14, -2, -16, -19
UNTOUCHED = -99


class Entry(IntEnum):
    """An address without a folio, in place of a handle."""

    ABSENT = -1  # of an anonymous mapping, never touched
    ABSENT_FILE = -2  # of a file mapping, not in memory
    ZERO_PAGE = -3
    NO_MAPPING = -4  # no vma there, or none that can migrate


@dataclass(frozen=True)
class MovePagesOutcome:
    """What the call returned, and did."""

    ret: int
    """0, or pages that did not move and were not tried."""
    status: npt.NDArray[np.int64]
    """By entry: the node it is on, or a negative errno; -99: left as the caller had it."""
    calls: list[MigrationOutcome]
    """Of migrate_pages(), one for each run of pages with one target."""

    def total(self, name: str) -> int:
        """Sum of a number over the calls: a field of `MigrationOutcome`, or one of its counts or flushes."""
        return sum(int(getattr(call, name, {**call.counts, **call.flushes}.get(name, 0))) for call in self.calls)


def move_pages(
    mem: Machine,
    pages: npt.ArrayLike,
    nodes: int | Sequence[int] | npt.NDArray[Any],
    *,
    move_all: bool = False,
    cpu: int = 0,
    tlb: Tlb | None = None,
    **options: Any,
) -> MovePagesOutcome:
    """Move the pages of an array of addresses, each to its node.

    Addresses in a row that go to one node are one migrate_pages(). One that cannot be queued (absent, shared, there
    already) ends the run; so does another node.

    Parameters
    ----------
    mem
        Changed in place.
    pages
        Folio handles, or an `Entry` where an address has no folio, shape ``(pages,)``.
    nodes
        Target of each, or of all.
    move_all
        MPOL_MF_MOVE_ALL: folios that several address spaces map move too.
    cpu
        Where the caller runs.
    tlb
        Address spaces; the caller's alone on `cpu` if not given. Changed in place.
    options
        As of `migrate_pages`: batch, copy_batch, preempt, engine.

    Raises
    ------
    InputError
        If a handle is stale, sizes differ, or as of `migrate_pages`; nothing has been moved then.

    References
    ----------
    mm/migrate.c: do_pages_move, add_folio_for_migration, move_pages_and_store_status, Linux 6.1.192, 6.12.117, 7.3.4.
    """
    handles = as_handles(pages)
    targets = np.broadcast_to(np.asarray(nodes, np.int64), handles.shape)
    if np.any(handles < Entry.NO_MAPPING):
        raise InputError(f"entry {int(handles.min())}; a handle, or one of {', '.join(e.name for e in Entry)}")
    if tlb is None:
        tlb = Tlb(mem.geometry, mem.cpus, [[cpu]])
    _refuse(mem, handles[handles >= 0], targets[handles >= 0], tlb, options)
    with lru_cache_disabled(mem):
        return _Call(mem, handles, targets, move_all, {"cpu": cpu, "tlb": tlb, **options}).run()


def _refuse(mem: Machine, handles: Handles, targets: npt.NDArray[np.int64], tlb: Tlb, options: dict[str, Any]) -> None:
    """Refuse what one of the calls of migrate_pages() would refuse, before the first has moved anything."""
    rows, orders = folio_rows(mem, handles)
    away = mem.state.zones["node"][mem.state.pages["zone"][rows]] != targets
    check_owners(mem, handles[away], tlb)
    rule = copy_rule(mem.geometry, options.get("copy_batch", "extent"), options.get("preempt"), options.get("engine"))
    if not survives_errors(mem, rule):
        refuse_poisoned(mem, rule, first_poisoned(mem.state, rows[away], np.uint64(1) << orders[away]))


class _Call:
    """One call: the entries, and the run of pages that is being collected."""

    def __init__(
        self,
        mem: Machine,
        handles: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        move_all: bool,
        options: dict[str, Any],
    ) -> None:
        self.mem, self.handles, self.targets, self.move_all, self.options = mem, handles, targets, move_all, options
        self.status = np.full(handles.size, UNTOUCHED, np.int64)
        self.calls: list[MigrationOutcome] = []
        self.run_pages: dict[int, None] = {}  # in order

    def run(self) -> MovePagesOutcome:
        """All entries in order; it ends with the first run that does not move whole."""
        n = self.handles.size
        node = None
        for i in range(n):
            target = int(self.targets[i])
            if target not in self.mem.nodes:
                return self._end(ENODEV, 0)
            if target != node and (left := self._migrate(node, i)):
                return self._end(left, n - i)
            node = target
            said = self._look_at(i, target)
            if said is None:
                self.run_pages[int(self.handles[i])] = None
                continue
            self.status[i] = said
            if left := self._migrate(node, i):
                return self._end(left, n - i - 1)
        return self._end(self._migrate(node, n), 0)

    def _look_at(self, i: int, target: int) -> int | None:
        """Status of an entry that is not queued; None queues it (add_folio_for_migration)."""
        handle, mem = int(self.handles[i]), self.mem
        if handle < 0:
            old = "batched_migration" not in mem.geometry.features
            return {Entry.ABSENT: EFAULT if old else ENOENT, Entry.ABSENT_FILE: ENOENT}.get(Entry(handle), EFAULT)
        folio = mem.state.folios[handle & HANDLE_SLOT]
        page = mem.state.pages[folio["index"]]
        if int(mem.state.zones["node"][page["zone"]]) == target:
            return target
        owners = int(folio["mms"])
        if owners & (owners - 1) and not self.move_all:
            return EACCES
        can_move = int(page["pg_flags"]) & PageFlag.LRU or int(folio["bits"]) & FolioBit.HUGETLB
        return None if can_move and handle not in self.run_pages else EBUSY

    def _migrate(self, node: int | None, end: int) -> int:
        """Move the run; folios left. Only a run that moved whole gets its statuses."""
        if not self.run_pages or node is None:
            return 0
        out = migrate_pages(self.mem, list(self.run_pages), node, caller="move_pages", **self.options)
        self.calls.append(out)
        n_pages, self.run_pages = len(self.run_pages), {}
        if out.rc == 0:
            self.status[end - n_pages : end] = node
        return out.rc

    def _end(self, left: int, n_not_tried: int) -> MovePagesOutcome:
        return MovePagesOutcome(left + n_not_tried if left > 0 else left, self.status, self.calls)
