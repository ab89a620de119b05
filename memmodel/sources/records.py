"""What the sources hand on: frozen records, with migratetypes numbered the same whatever the kernel's configuration.

A kernel built without CMA numbers ISOLATE 4; the readers translate, so that an index into any array of these records
always means the same type.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "MIGRATETYPE_NAMES",
    "MIGRATE_CMA",
    "MIGRATE_HIGHATOMIC",
    "MIGRATE_ISOLATE",
    "MIGRATE_MOVABLE",
    "MIGRATE_RECLAIMABLE",
    "MIGRATE_TYPES",
    "MIGRATE_UNMOVABLE",
    "BoolArray",
    "CompactionState",
    "FreeLists",
    "IntArray",
    "PcpSet",
    "Snapshot",
    "UIntArray",
    "ZoneKey",
    "ZoneLists",
    "ZoneSnapshot",
    "zone_label",
]

MIGRATE_UNMOVABLE: Final = 0
MIGRATE_MOVABLE: Final = 1
MIGRATE_RECLAIMABLE: Final = 2
MIGRATE_HIGHATOMIC: Final = 3
MIGRATE_CMA: Final = 4
MIGRATE_ISOLATE: Final = 5
MIGRATE_TYPES: Final = 6
MIGRATETYPE_NAMES: Final = ("Unmovable", "Movable", "Reclaimable", "HighAtomic", "CMA", "Isolate")

ZoneKey = tuple[int, str]
IntArray = npt.NDArray[np.int64]
UIntArray = npt.NDArray[np.uint64]
BoolArray = npt.NDArray[np.bool_]


def zone_label(key: ZoneKey) -> str:
    """The zone as the kernel's files name it: ``"Node 0, zone DMA32"``."""
    return f"Node {key[0]}, zone {key[1]}"


@dataclass(frozen=True, eq=False, kw_only=True)
class PcpSet:
    """One CPU's page set of a zone (struct per_cpu_pages); None where the file does not say.

    `lists` maps pindex (3 * order + migratetype; 12 and 13: the PMD order) to pfns, head first. A zoneinfo gives the
    count alone: then there are no lists.
    """

    cpu: int
    count: int
    high: int
    batch: int
    high_min: int | None = None
    high_max: int | None = None
    free_count: int | None = None
    lists: Mapping[int, IntArray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class ZoneSnapshot:
    """A populated zone as /proc shows it; None, or empty, where no file says.

    Quantities are base pages. Watermarks (min, low, high, promo, boost) are as printed: boost is in the others.
    `type_free[migratetype, order]` and `nr_free[order]` count free blocks (without buddyinfo, `nr_free` is the sum of
    the rows of pagetypeinfo); where `type_free_capped` is True the file
    said ">100000". `type_blocks[migratetype]` counts pageblocks, `migratetypes` are those that pagetypeinfo printed.
    """

    node: int
    name: str
    start_pfn: int | None = None
    spanned_pages: int | None = None
    present_pages: int | None = None
    managed_pages: int | None = None
    cma_pages: int | None = None
    free_pages: int | None = None
    watermarks: Mapping[str, int] = field(default_factory=dict)
    protection: tuple[int, ...] = ()
    vm_stats_threshold: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    pcp: tuple[PcpSet, ...] = ()
    nr_free: IntArray | None = None
    migratetypes: tuple[int, ...] = ()
    type_free: IntArray | None = None
    type_free_capped: BoolArray | None = None
    type_blocks: IntArray | None = None
    mixed_blocks: IntArray | None = None

    @property
    def key(self) -> ZoneKey:
        """(node, name)."""
        return self.node, self.name

    @property
    def end_pfn(self) -> int | None:
        """One past the last pfn of the span."""
        if self.start_pfn is None or self.spanned_pages is None:
            return None
        return self.start_pfn + self.spanned_pages


@dataclass(frozen=True, kw_only=True)
class CompactionState:
    """What compaction remembers of a zone (struct zone, mm/compaction.c); the cached entries are pfns."""

    compact_considered: int
    compact_defer_shift: int
    compact_order_failed: int
    compact_cached_free_pfn: int
    compact_cached_migrate_pfn_async: int
    compact_cached_migrate_pfn_sync: int
    compact_blockskip_flush: int


@dataclass(frozen=True, eq=False, kw_only=True)
class ZoneLists:
    """One zone's free lists, exactly; None where the source does not say.

    Quantities are base pages; `watermarks` holds min, low and high with the boost in them.
    `lists[order, migratetype]` are the first pfns of the blocks, head (next to be allocated) first; empty lists are
    left out. `block_pfns` ascend and are aligned to the pageblock: the first may lie before the zone's start.
    """

    node: int
    name: str
    start_pfn: int
    spanned_pages: int
    present_pages: int | None = None
    managed_pages: int | None = None
    free_pages: int | None = None
    free_cma_pages: int | None = None
    nr_free_highatomic: int | None = None
    reserved_highatomic: int | None = None
    watermarks: Mapping[str, int] = field(default_factory=dict)
    watermark_boost: int | None = None
    lists: Mapping[tuple[int, int], IntArray]
    block_pfns: IntArray
    block_migratetypes: IntArray
    block_skip: BoolArray
    pcp: tuple[PcpSet, ...] = ()
    compaction: CompactionState | None = None

    @property
    def key(self) -> ZoneKey:
        """(node, name)."""
        return self.node, self.name

    @property
    def end_pfn(self) -> int:
        """One past the last pfn of the span."""
        return self.start_pfn + self.spanned_pages

    def type_free(self, n_orders: int) -> IntArray:
        """Free blocks by [migratetype, order], as pagetypeinfo counts them."""
        counts = np.zeros((MIGRATE_TYPES, n_orders), np.int64)
        for (order, migratetype), pfns in self.lists.items():
            counts[migratetype, order] = pfns.size
        return counts


@dataclass(frozen=True, eq=False, kw_only=True)
class FreeLists:
    """One exact state of all zones: what the state is built from.

    `n_migratetypes` is the kernel's MIGRATE_TYPES (6, 5 without CMA, 4 without isolation too). With `order_known`
    False the blocks of each list stand in ascending order because their real order is not known.
    """

    label: str
    time_ns: int
    page_shift: int
    pageblock_order: int
    max_order: int
    n_pcp_lists: int
    n_migratetypes: int
    zones: tuple[ZoneLists, ...]
    order_known: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Snapshot:
    """What the files of one machine say at (about) one instant.

    `zones` has the populated zones in the order of the files, by (node, name). `kpageflags[pfn]` are the KPF_ bits.
    `meminfo` has bytes for the lines in kB and plain counts for the others, `node_counters` the per-node part of
    zoneinfo, `kernel` its name where /proc/version was read. `files` maps each file read to the SHA-256 of its bytes on
    disk, `ignored` names the files of a folder that are none of these. `differences` are one-line texts on what the
    files say differently: they are not read at one instant.
    """

    zones: Mapping[ZoneKey, ZoneSnapshot]
    page_size_bytes: int | None = None
    pageblock_order: int | None = None
    max_order: int | None = None
    kernel: str | None = None
    kpageflags: UIntArray | None = None
    vmstat: Mapping[str, int] = field(default_factory=dict)
    meminfo: Mapping[str, int] = field(default_factory=dict)
    node_counters: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    free_lists: FreeLists | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
