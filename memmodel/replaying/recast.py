"""A memory as it would be under another kernel: the same pages in use, other pageblocks, lists and rules."""

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.replaying.comparing import free_list_rows, pcp_list_rows
from memmodel.sources.records import FreeLists, IntArray, PcpSet, ZoneLists
from memmodel.state.build import PfnMap
from memmodel.state.from_placement import from_placement
from memmodel.state.layout import (
    MIGRATE_TYPES,
    NONE,
    NR_PCP_LISTS,
    BlockBit,
    Kind,
    Memory,
    MigrateType,
    PageFlag,
    Wmark,
    ZoneType,
    block_types,
)
from memmodel.state.machine import Machine
from memmodel.state.placement import Placement
from memmodel.state.sizing import Sysctls

__all__ = ["placement_of", "recast"]


def placement_of(mem: Machine) -> Placement:
    """The free lists in their order, per-CPU lists, pageblock types and page use of a memory.

    Raises
    ------
    InputError
        If its pfns have a gap of whole largest blocks: a placement is one range.
    """
    if mem.pfns.starts.size > 1:
        raise InputError("a memory with gaps between its zones cannot be recast")
    params, pages = mem.state.params, mem.state.pages[: int(mem.state.params.n_pages)]
    lists = FreeLists(
        label="recast",
        time_ns=0,
        page_shift=int(params.page_shift),
        pageblock_order=int(params.pageblock_order),
        max_order=int(params.max_order),
        n_pcp_lists=NR_PCP_LISTS,
        n_migratetypes=MIGRATE_TYPES,
        zones=tuple(_zone(mem, number) for number in range(mem.state.zones.size)),
    )
    return Placement(
        source="dump",
        free_lists=lists,
        first_pfn=int(mem.pfns.starts[0]),
        page_kind=(pages["state"] >> 4).astype(np.uint8),
        page_flags=pages["pg_flags"] & np.uint8(0xFF ^ PageFlag.LRU_BATCH),  # batches are no part of a placement
        page_order=(pages["state"] & 15).astype(np.uint8),
        page_bits=_folio_bits(mem),
        assumed=(),
        differences=(),
    )


def _folio_bits(mem: Machine) -> npt.NDArray[np.uint32]:
    bits = np.zeros(mem.pfns.n_pages, np.uint32)
    folios = mem.state.folios[: int(mem.state.slots[1])]
    live = folios[folios["index"] != NONE]
    bits[live["index"]] = live["bits"]
    return bits


def _zone(mem: Machine, number: int) -> ZoneLists:
    record = mem.state.zones[number]
    keys = itertools.product(range(mem.geometry.max_page_order + 1), range(MIGRATE_TYPES))
    lists = {key: mem.pfns.pfn(free_list_rows(mem, number, *key)) for key in keys}
    shift = mem.geometry.pageblock_order
    start, end = int(record["start"]), int(record["end"])
    blocks = np.arange(start >> shift, (end - 1 >> shift) + 1)
    blocks = blocks[mem.state.blocks["bits"][blocks] & BlockBit.OFFLINE == 0]
    boost = int(record["watermark_boost"])
    return ZoneLists(
        node=int(record["node"]),
        name=ZoneType(int(record["zone_type"])).label,
        start_pfn=int(mem.pfns.pfn(start)),
        spanned_pages=end - start,
        present_pages=int(record["present"]),
        managed_pages=int(record["managed"]),
        nr_free_highatomic=int(record["free_highatomic"]),
        reserved_highatomic=int(record["reserved_highatomic"]),
        watermarks={mark.name.lower(): int(record["watermark"][mark]) + boost for mark in Wmark},
        watermark_boost=boost,
        lists={key: pfns for key, pfns in lists.items() if pfns.size},
        block_pfns=mem.pfns.pfn(blocks << shift),
        block_migratetypes=block_types(mem.state.blocks[blocks]).astype(np.int64),
        block_skip=(mem.state.blocks["bits"][blocks] & BlockBit.SKIP) != 0,
        pcp=tuple(_pcp(mem, number, cpu) for cpu in range(mem.cpus)),
    )


def _pcp(mem: Machine, number: int, cpu: int) -> PcpSet:
    record = mem.state.pcp[number * mem.cpus + cpu]
    lists = {pindex: mem.pfns.pfn(pcp_list_rows(mem, number, cpu, pindex)) for pindex in range(NR_PCP_LISTS)}
    names = ("count", "high", "batch", "high_min", "high_max", "free_count")
    values = {name: int(record[name]) for name in names}
    return PcpSet(cpu=cpu, **values, lists={pindex: pfns for pindex, pfns in lists.items() if pfns.size})


def recast(
    placement: Placement, geometry: Geometry, *, high_fraction: int | None = None, cma_pages: int | None = None
) -> tuple[Memory, PfnMap]:
    """The memory of a placement under a geometry of the same page size and MAX_PAGE_ORDER.

    A pageblock that becomes part of a larger one has the type of most of it; free blocks join the list of their
    pageblock, in the order of their old lists. Where the kernel works sizes out (per-CPU lists) they are its own.

    Parameters
    ----------
    high_fraction
        vm.percpu_pagelist_high_fraction in place of the sizes of the start.
    cma_pages
        Size of the CMA area: from where the area of the start begins, or the first pageblocks that are wholly free.

    Raises
    ------
    InputError
        If the CMA area does not fit.
    """
    order = geometry.pageblock_order
    zones = tuple(
        _with_blocks(zone, order, placement.free_lists.pageblock_order) for zone in placement.free_lists.zones
    )
    if cma_pages is not None:
        zones = _with_cma(zones, placement, geometry, cma_pages)
    zones = tuple(_relisted(zone, order) for zone in zones)
    if high_fraction is not None:
        zones = tuple(replace(zone, pcp=tuple(_unsized(pcp) for pcp in zone.pcp)) for zone in zones)
    lists = replace(placement.free_lists, zones=zones, pageblock_order=order)
    sysctls = Sysctls(percpu_pagelist_high_fraction=high_fraction or 0)
    memory, pfns = from_placement(geometry, replace(placement, free_lists=lists), sysctls)
    if "pcp_autotune" not in geometry.features:  # `high` is fixed there
        memory.pcp["high"] = memory.pcp["high_min"]
    return memory, pfns


def _unsized(pcp: PcpSet) -> PcpSet:
    """Its pages stay; the kernel works out its sizes, and `high` starts at the lowest when it is next used."""
    return replace(pcp, high=0, high_min=None, high_max=None)


def _with_blocks(zone: ZoneLists, order: int, old: int) -> ZoneLists:
    """Pageblocks of another order."""
    if order == old:
        return zone
    pfns, types, skips = zone.block_pfns, zone.block_migratetypes, zone.block_skip
    if order < old:
        parts = 1 << old - order
        steps = np.arange(parts) << order
        pfns = (pfns[:, None] + steps).ravel()
        inside = (pfns + (1 << order) > zone.start_pfn) & (pfns < zone.end_pfn)
        types, skips = np.repeat(types, parts)[inside], np.repeat(skips, parts)[inside]
        return replace(zone, block_pfns=pfns[inside], block_migratetypes=types, block_skip=skips)
    firsts, place = np.unique(pfns >> order << order, return_inverse=True)
    votes = np.zeros((firsts.size, MIGRATE_TYPES), np.int64)
    np.add.at(votes, (place, types), 1)
    return replace(
        zone, block_pfns=firsts, block_migratetypes=votes.argmax(axis=1), block_skip=np.zeros(firsts.size, np.bool_)
    )


def _with_cma(
    zones: tuple[ZoneLists, ...], placement: Placement, geometry: Geometry, cma_pages: int
) -> tuple[ZoneLists, ...]:
    """Another size of the CMA area."""
    shift = geometry.pageblock_order
    n_blocks = -(-cma_pages >> shift)
    if n_blocks << shift != cma_pages:
        raise InputError(f"a CMA area of {cma_pages} pages is not a multiple of a pageblock of {1 << shift} pages")
    before = [zone.block_pfns[zone.block_migratetypes == MigrateType.CMA] for zone in zones]
    number = next((number for number, pfns in enumerate(before) if pfns.size), len(zones) - 1)
    zone = zones[number]
    usable = _usable(zone, placement, shift)
    start = int(before[number][0]) if before[number].size else None
    first = _first_run(zone.block_pfns, usable, n_blocks, start)
    types = np.where(zone.block_migratetypes == MigrateType.CMA, MigrateType.MOVABLE, zone.block_migratetypes)
    if n_blocks:
        if first is None:
            raise InputError(f"no room for a CMA area of {cma_pages} pages: unmovable pages are in the way")
        types[first : first + n_blocks] = MigrateType.CMA
    changed = replace(zone, block_migratetypes=types)
    return (*zones[:number], changed, *zones[number + 1 :])


def _usable(zone: ZoneLists, placement: Placement, shift: int) -> npt.NDArray[np.bool_]:
    """Pageblocks of the zone whose pages are all free, on per-CPU lists, or movable."""
    head = np.maximum.accumulate(np.where(placement.page_kind != Kind.TAIL, np.arange(placement.page_kind.size), 0))
    kind, flags = placement.page_kind[head], placement.page_flags[head]
    movable = (kind == Kind.FREE) | (kind == Kind.PCP) | ((kind == Kind.USED) & (flags & PageFlag.LRU != 0))
    rows = zone.block_pfns - placement.first_pfn
    whole = (zone.block_pfns >= zone.start_pfn) & (zone.block_pfns + (1 << shift) <= zone.end_pfn)
    free = [bool(movable[max(row, 0) : row + (1 << shift)].all()) for row in rows.tolist()]
    usable: npt.NDArray[np.bool_] = whole & np.array(free, np.bool_)
    return usable


def _first_run(pfns: IntArray, usable: npt.NDArray[np.bool_], n_blocks: int, start: int | None) -> int | None:
    """Place of the first run of so many usable pageblocks, at `start` if that is given."""
    for first in range(pfns.size - n_blocks + 1):
        if (start is None or pfns[first] == start) and usable[first : first + n_blocks].all():
            return first
    return None


def _relisted(zone: ZoneLists, order: int) -> ZoneLists:
    """Each free block on the list of its pageblock's type."""
    lists: dict[tuple[int, int], list[IntArray]] = {}
    for (block_order, _), pfns in sorted(zone.lists.items()):
        types = zone.block_migratetypes[np.searchsorted(zone.block_pfns, pfns, side="right") - 1]
        for migratetype in np.unique(types).tolist():
            lists.setdefault((block_order, migratetype), []).append(pfns[types == migratetype])
    return replace(zone, lists={key: np.concatenate(parts) for key, parts in lists.items()})
