"""The model's lists, and how they differ from a dump or a snapshot."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from memmodel.kernels.replay_helpers import list_rows
from memmodel.sources.records import FreeLists, IntArray, Snapshot, ZoneLists
from memmodel.state.layout import (
    MIGRATE_TYPES,
    NR_PCP_LISTS,
    BlockBit,
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
    compaction_equal: bool | None = None
    """What compaction remembers: deferral, cached positions, skip hints; None where it is not predicted."""

    @property
    def equal(self) -> bool:
        """All of it."""
        lists = self.free_lists_equal and self.pcp_lists_equal and self.pageblocks_equal
        return lists and self.counters_equal and self.compaction_equal is not False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def compare_dump(mem: Machine, dump: FreeLists, predicts: bool = False) -> SnapshotComparison:
    """A dump against the model: free lists in order, per-CPU lists, pageblock types, counters, compaction's memory."""
    found: dict[str, list[str]] = {"free": [], "pcp": [], "blocks": [], "counters": [], "compaction": []}
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
        if predicts:
            _compare_compaction(mem, zone, lists, found["compaction"])
    differences = tuple(text for texts in found.values() for text in texts[:5])
    free, pcp, blocks, counters = (not found[what] for what in ("free", "pcp", "blocks", "counters"))
    compaction = not found["compaction"] if predicts else None
    return SnapshotComparison(dump.label, free, pcp, blocks, counters, differences, compaction)


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


def _compare_compaction(mem: Machine, zone: int, lists: ZoneLists, texts: list[str]) -> None:
    record, told = mem.state.zones[zone], lists.compaction
    first = int(record["start"]) - lists.start_pfn  # row of pfn 0
    if told is not None:
        mine = {
            "compact_considered": int(record["compact_considered"]),
            "compact_defer_shift": int(record["compact_defer_shift"]),
            "compact_order_failed": int(record["compact_order_failed"]),
            "compact_blockskip_flush": int(record["blockskip_flush"]),
            "compact_cached_free_pfn": _cached(record["cached_free"], first),
            "compact_cached_migrate_pfn_async": _cached(record["cached_migrate"][0], first),
            "compact_cached_migrate_pfn_sync": _cached(record["cached_migrate"][1], first),
        }
        for name, number in mine.items():
            if number != getattr(told, name):
                texts.append(f"{lists.name}: {name} {number}, kernel {getattr(told, name)}")
    bits = mem.state.blocks["bits"][mem.pfns.index(lists.block_pfns) >> mem.geometry.pageblock_order]
    wrong = lists.block_pfns[(bits & BlockBit.SKIP != 0) != lists.block_skip]
    if wrong.size:
        texts.append(f"{lists.name}: skip hints of {wrong.size} pageblocks, the first {int(wrong[0])}")


def _cached(row: Any, first: int) -> int:
    """The pfn of a position; 0 since boot."""
    return 0 if row == -1 else int(row) - first


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
