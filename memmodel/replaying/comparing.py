"""The model's lists, and how they differ from a dump or a snapshot."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from memmodel.kernels.replay_helpers import list_rows
from memmodel.sources.records import FreeLists, IntArray, Snapshot, ZoneLists
from memmodel.state.layout import (
    MIGRATE_TYPES,
    NR_PCP_LISTS,
    ZoneType,
    block_types,
    free_list_head,
    pcp_list_head,
)
from memmodel.state.machine import Machine

__all__ = ["SnapshotComparison", "compare_buddyinfo", "compare_dump", "free_list_rows", "pcp_list_rows"]

NO_PFNS = np.empty(0, np.int64)


@dataclass(frozen=True)
class SnapshotComparison:
    """The model beside a dump, at the place in the trace where it was taken."""

    label: str
    free_lists_equal: bool
    """Every list of every zone, in order."""
    pcp_lists_equal: bool
    pageblocks_equal: bool
    counters_equal: bool
    """count, high and free_count of the per-CPU sets, free counters and watermark boosts of the zones."""
    differences: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """All of it."""
        return self.free_lists_equal and self.pcp_lists_equal and self.pageblocks_equal and self.counters_equal

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("label", "free_lists_equal", "pcp_lists_equal", "pageblocks_equal", "counters_equal", "differences")
        return {name: getattr(self, name) for name in names}


def compare_dump(mem: Machine, dump: FreeLists) -> SnapshotComparison:
    """A dump against the model: free lists in order, per-CPU lists, pageblock types, counters."""
    found: dict[str, list[str]] = {"free": [], "pcp": [], "blocks": [], "counters": []}
    for lists in dump.zones:
        row = int(mem.index(lists.start_pfn))
        zone = int(mem.state.pages["zone"][row])
        _compare_lists(mem, zone, lists, found["free"])
        _compare_pcp(mem, zone, lists, found["pcp"], found["counters"])
        _compare_blocks(mem, lists, found["blocks"])
        record = mem.state.zones[zone]
        for name, real in (
            ("free_pages", lists.free_pages),
            ("free_cma", lists.free_cma_pages),
            ("watermark_boost", lists.watermark_boost),
        ):
            if real is not None and int(record[name]) != real:
                found["counters"].append(f"{lists.name}: {name} {int(record[name])}, kernel {real}")
    differences = tuple(text for texts in found.values() for text in texts[:5])
    return SnapshotComparison(
        dump.label, not found["free"], not found["pcp"], not found["blocks"], not found["counters"], differences
    )


def compare_buddyinfo(mem: Machine, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Free blocks of each zone by order, the model's beside the snapshot's."""
    rows = []
    keys = [(int(zone["node"]), ZoneType(int(zone["zone_type"])).label) for zone in mem.state.zones]
    for key, found in snapshot.zones.items():
        if found.nr_free is not None and key in keys:
            mine = mem.state.zones[keys.index(key)]["nr_free"][: found.nr_free.size].astype(np.int64)
            sizes = 1 << np.arange(mine.size)
            off = int(np.abs((mine - found.nr_free) * sizes).sum())
            row = {"zone": f"{key[0]}:{key[1]}", "model": mine.tolist(), "kernel": found.nr_free.tolist()}
            rows.append({**row, "pages_apart": off, "equal": off == 0})
    return rows


def _compare_lists(mem: Machine, zone: int, lists: ZoneLists, texts: list[str]) -> None:
    for order, nr_free in enumerate(mem.state.zones[zone]["nr_free"].tolist()):
        for migratetype in range(MIGRATE_TYPES):
            real = lists.lists.get((order, migratetype), NO_PFNS)
            if nr_free or real.size:
                mine = mem.pfns.pfn(free_list_rows(mem, zone, order, migratetype))
                _compare(mine, real, f"{lists.name}: list of order {order}, type {migratetype}", texts)


def _compare(mine: IntArray, real: IntArray, what: str, texts: list[str]) -> None:
    if not np.array_equal(mine, real):
        place = int(np.argmin(np.append(mine[: real.size] == real[: mine.size], False)))
        texts.append(f"{what} differs from place {place} on ({mine.size} blocks, kernel {real.size})")


def _compare_pcp(mem: Machine, zone: int, lists: ZoneLists, texts: list[str], counters: list[str]) -> None:
    for pcp in lists.pcp:
        record = mem.state.pcp[zone * mem.cpus + pcp.cpu]
        for pindex in range(NR_PCP_LISTS):
            mine = mem.pfns.pfn(pcp_list_rows(mem, zone, pcp.cpu, pindex))
            real = pcp.lists.get(pindex, NO_PFNS)
            _compare(mine, real, f"{lists.name}: list {pindex} of CPU {pcp.cpu}", texts)
        for name in ("count", "high", "free_count"):
            real_count = getattr(pcp, name)
            if real_count is not None and int(record[name]) != real_count:
                counters.append(f"{lists.name}: {name} of CPU {pcp.cpu} {int(record[name])}, kernel {real_count}")


def _compare_blocks(mem: Machine, lists: ZoneLists, texts: list[str]) -> None:
    types = block_types(mem.state.blocks[mem.pfns.index(lists.block_pfns) >> mem.geometry.pageblock_order])
    for place in np.flatnonzero(types != lists.block_migratetypes).tolist():
        pfn, mine, real = int(lists.block_pfns[place]), int(types[place]), int(lists.block_migratetypes[place])
        texts.append(f"{lists.name}: pageblock {pfn} is of type {mine}, kernel {real}")


def free_list_rows(mem: Machine, zone: int, order: int, migratetype: int) -> IntArray:
    """Rows of the blocks on a free list, the next to be allocated first."""
    state = mem.state
    head = free_list_head(state.params, zone, order, migratetype)
    return _rows(mem, head, int(state.zones[zone]["nr_free"][order]))


def pcp_list_rows(mem: Machine, zone: int, cpu: int, pindex: int) -> IntArray:
    """Rows of the blocks on a per-CPU list, the next to be allocated first."""
    head = pcp_list_head(mem.state.params, zone, cpu, pindex)
    return _rows(mem, head, int(mem.state.pcp[zone * mem.cpus + cpu]["count"]))


def _rows(mem: Machine, head: int, most: int) -> IntArray:
    rows = np.empty(most, np.int64)
    return rows[: list_rows(mem.state, np.uint64(head), rows)]
