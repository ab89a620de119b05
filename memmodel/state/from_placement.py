"""A Memory from free lists and page use, as a snapshot gave them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.sources.records import FreeLists, ZoneLists
from memmodel.state.build import PfnMap, ZoneSpan, empty_memory, grow_folios, size_memory
from memmodel.state.layout import (
    NONE,
    BlockBit,
    Kind,
    Memory,
    MigrateType,
    PageFlag,
    Wmark,
    ZoneType,
    free_list_head,
    pcp_list_head,
)
from memmodel.state.placement import Placement
from memmodel.state.sizing import Sysctls

__all__ = ["from_placement", "geometry_of"]


def geometry_of(lists: FreeLists) -> Geometry:
    """A geometry with the page size, orders and migratetypes of the lists, and the default kernel's features."""
    options: dict[str, Any] = {
        "page_size": 1 << lists.page_shift,
        "cma": lists.n_migratetypes > MigrateType.CMA + 1,
        "memory_isolation": lists.n_migratetypes > MigrateType.CMA,
    }
    usual = Geometry(**options)
    if usual.max_page_order != lists.max_order:
        options |= {"max_page_order": lists.max_order}
        if lists.max_order < usual.hpage_pmd_order:
            options |= {"transparent_hugepage": False}
    if Geometry(**options).pageblock_order != lists.pageblock_order:
        options |= {"page_block_max_order": lists.pageblock_order}
        if lists.pageblock_order > Geometry(**options).pageblock_order:
            options |= {"transparent_hugepage": False, "hugetlb": False}
    return Geometry(**options)


def from_placement(geometry: Geometry, placement: Placement, sysctls: Sysctls | None = None) -> tuple[Memory, PfnMap]:
    """The memory that a placement describes: lists in their order, every page's kind, pageblock types, per-CPU lists.

    Raises
    ------
    InputError
        If the geometry has another page size or other orders than the placement.
    """
    lists = placement.free_lists
    for what, have, want in (
        ("page shift", geometry.page_shift, lists.page_shift),
        ("MAX_PAGE_ORDER", geometry.max_page_order, lists.max_order),
        ("pageblock order", geometry.pageblock_order, lists.pageblock_order),
    ):
        if have != want:
            raise InputError(f"the geometry has {what} {have}, the snapshot {want}")
    spans = [
        ZoneSpan(zone.node, ZoneType[zone.name.upper()], zone.start_pfn, zone.start_pfn + zone.spanned_pages)
        for zone in lists.zones
    ]
    cpus = 1 + max((pcp.cpu for zone in lists.zones for pcp in zone.pcp), default=0)
    memory, pfns = empty_memory(geometry, spans, cpus)
    for number, zone in enumerate(lists.zones):
        _count(memory, number, zone, placement)
    memory = size_memory(memory, geometry, sysctls or Sysctls())
    for number, zone in enumerate(lists.zones):
        _fill_zone(memory, number, zone)
        _fill_pages(memory, number, zone, placement)
        _fill_lists(memory, pfns, number, zone)
        _fill_blocks(memory, pfns, number, zone)
        _fill_pcp(memory, pfns, number, zone)
        _fill_compaction(memory, number, zone)
    memory = _fill_folios(memory, lists, placement)
    memory.failure["num_poisoned"] = np.count_nonzero(memory.pages["pg_flags"] & PageFlag.HWPOISON)
    return memory, pfns


def _fill_zone(memory: Memory, number: int, zone: ZoneLists) -> None:
    """What the source says of watermarks and reserves, in place of what the kernel would work out."""
    record = memory.zones[number]
    boost = zone.watermark_boost or 0
    marks = [zone.watermarks.get(mark.name.lower()) for mark in Wmark]
    if None not in marks:
        record["watermark"] = np.array(marks, np.int64) - boost
    record["watermark_boost"] = boost
    record["free_highatomic"] = zone.nr_free_highatomic or 0
    record["reserved_highatomic"] = zone.reserved_highatomic or 0


def _fill_pages(memory: Memory, number: int, zone: ZoneLists, placement: Placement) -> None:
    first = zone.start_pfn - placement.first_pfn
    there = slice(first, first + zone.spanned_pages)
    record = memory.zones[number]
    rows = memory.pages[int(record["start"]) : int(record["end"])]
    kind = placement.page_kind[there]
    rows["state"] = kind << 4 | placement.page_order[there]
    rows["pg_flags"] = placement.page_flags[there]
    rows["next"][kind == Kind.USED] = NONE  # folios that nobody holds a handle of
    rows["refcount"][(kind == Kind.USED) | (kind == Kind.HWPOISON)] = 1


def _fill_folios(memory: Memory, lists: FreeLists, placement: Placement) -> Memory:
    """Folios of which there is more to say than their flags: nobody holds a handle of them yet."""
    told = np.zeros(int(memory.params.n_pages), np.uint32)
    for number, zone in enumerate(lists.zones):
        first, row = zone.start_pfn - placement.first_pfn, int(memory.zones[number]["start"])
        told[row : row + zone.spanned_pages] = placement.page_bits[first : first + zone.spanned_pages]
    rows = np.flatnonzero(told)
    memory = grow_folios(memory, rows.size)
    slots = np.arange(rows.size)
    for name, values in (("index", rows), ("mms", 1), ("bits", told[rows])):
        memory.folios[name][slots] = values
    memory.pages["next"][rows] = slots
    memory.slots[:2] = rows.size
    return memory


def _fill_lists(memory: Memory, pfns: PfnMap, number: int, zone: ZoneLists) -> None:
    record = memory.zones[number]
    for (order, migratetype), blocks in zone.lists.items():
        _link(memory, free_list_head(memory.params, number, order, migratetype), pfns.index(blocks))
        record["nr_free"][order] += np.uint64(blocks.size)
        if migratetype != MigrateType.ISOLATE:
            record["free_pages"] += blocks.size << order
        if migratetype == MigrateType.CMA:
            record["free_cma"] += blocks.size << order


def _fill_pcp(memory: Memory, pfns: PfnMap, number: int, zone: ZoneLists) -> None:
    params = memory.params
    cpus = memory.pcp.size // memory.zones.size
    for pcp in zone.pcp:
        record = memory.pcp[number * cpus + pcp.cpu]
        for name in ("high", "batch", "high_min", "high_max", "free_count"):
            if getattr(pcp, name) is not None:
                record[name] = getattr(pcp, name)
        for pindex, blocks in pcp.lists.items():
            rows = pfns.index(blocks)
            _link(memory, pcp_list_head(params, number, pcp.cpu, pindex), rows)
            memory.pages["refcount"][rows] = memory.blocks["migratetype"][rows >> int(params.pageblock_order)]
            record["count"] += np.uint32((1 << (memory.pages["state"][rows] & 15).astype(np.int64)).sum())


def _fill_compaction(memory: Memory, number: int, zone: ZoneLists) -> None:
    """What compaction remembers. A position outside the zone, such as 0 since boot, is none."""
    told, record = zone.compaction, memory.zones[number]
    if told is None:
        return
    record["compact_considered"], record["compact_defer_shift"] = told.compact_considered, told.compact_defer_shift
    record["compact_order_failed"], record["blockskip_flush"] = told.compact_order_failed, told.compact_blockskip_flush
    cached = (told.compact_cached_migrate_pfn_async, told.compact_cached_migrate_pfn_sync, told.compact_cached_free_pfn)
    first = int(record["start"]) - zone.start_pfn
    rows = [pfn + first if zone.start_pfn <= pfn < zone.end_pfn else -1 for pfn in cached]
    record["cached_migrate"], record["cached_free"] = rows[:2], rows[2]


def _link(memory: Memory, head: int, rows: npt.NDArray[np.int64]) -> None:
    """Chain rows behind a list head, first row first."""
    chain = np.concatenate([[head], rows, [head]])
    memory.pages["next"][chain[:-1]] = chain[1:]
    memory.pages["prev"][chain[1:]] = chain[:-1]


def _fill_blocks(memory: Memory, pfns: PfnMap, number: int, zone: ZoneLists) -> None:
    shift, record = int(memory.params.pageblock_order), memory.zones[number]
    spanned = memory.blocks[int(record["start"]) >> shift : (int(record["end"]) - 1 >> shift) + 1]
    spanned["bits"] |= np.uint8(BlockBit.OFFLINE)
    # The first block of a zone may begin before the zone does; rows begin at a whole largest block, so it has a row.
    rows = pfns.index(zone.block_pfns) >> shift
    memory.blocks["migratetype"][rows] = zone.block_migratetypes
    memory.blocks["bits"][rows] = np.where(zone.block_skip, BlockBit.SKIP, 0)
    record["nr_isolate_pageblock"] = np.count_nonzero(zone.block_migratetypes == MigrateType.ISOLATE)


def _count(memory: Memory, number: int, zone: ZoneLists, placement: Placement) -> None:
    """Present and managed pages: as the source says them, else as the pages are."""
    record = memory.zones[number]
    first = zone.start_pfn - placement.first_pfn
    kinds = np.bincount(placement.page_kind[first : first + zone.spanned_pages], minlength=len(Kind))
    here = int(kinds.sum() - kinds[Kind.HOLE])
    counted = here - int(kinds[Kind.RESERVED])
    record["present"] = here if zone.present_pages is None else zone.present_pages
    record["managed"] = counted if zone.managed_pages is None else zone.managed_pages
    record["beyond_managed"] = counted - int(record["managed"])
