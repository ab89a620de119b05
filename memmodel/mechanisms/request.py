"""What a request's gfp flags mean for the allocator: zones, migratetype, and the flags of each attempt."""

import numpy as np
import numpy.typing as npt

from memmodel.geometry import Geometry
from memmodel.kernels.page_alloc import Request
from memmodel.sources.gfp import Gfp
from memmodel.state.layout import Alloc, Feature, MigrateType, Wmark, ZoneType
from memmodel.state.machine import Machine

__all__ = ["DEFAULT_GFP", "highest_zone", "joins_lru", "request_of", "requested"]

DEFAULT_GFP = {
    "movable": "GFP_HIGHUSER_MOVABLE",
    "unmovable": "GFP_KERNEL",
    "reclaimable": "GFP_KERNEL|__GFP_RECLAIMABLE",
}
"""Flags of a request that names its migratetype alone."""

ZONES_BELOW_NORMAL = ("x86_64", "arm64")  # with CONFIG_ZONE_DMA and CONFIG_ZONE_DMA32; elsewhere gfp_zone() says Normal


def highest_zone(geometry: Geometry, gfp: Gfp) -> ZoneType:
    """The highest zone that a request may use (gfp_zone)."""
    highest = ZoneType[gfp.highest_zone.upper()]
    if highest < ZoneType.NORMAL and geometry.arch not in ZONES_BELOW_NORMAL:
        return ZoneType.NORMAL
    return highest


def joins_lru(gfp: Gfp) -> bool:
    """Whether the pages become anonymous memory or page cache, as far as the flags tell.

    Page cache that cannot move (ramfs) asks for compound pages; pipe buffers and the dma-buf heap's single pages do
    not, and the heap's larger ones cannot wait for reclaim.
    """
    if gfp.is_movable:
        return True
    return {"__GFP_HIGHMEM", "__GFP_COMP", "__GFP_DIRECT_RECLAIM"} <= gfp.flags and "__GFP_ACCOUNT" not in gfp


def requested(mem: Machine, gfp: Gfp, order: int, node: int, lru: bool) -> tuple[npt.NDArray[np.uint64], Request]:
    """Zonelist and request as kernels take them; kept, for making them takes as long as 300 allocations."""
    if not isinstance(node, int | np.integer):  # it may be no key
        mem.check_node(node)
    key = (order, gfp, node, lru)
    found: tuple[npt.NDArray[np.uint64], Request] | None = mem.requests.get(key)
    if found is None:
        zonelist = mem.zonelist(node, highest_zone(mem.geometry, gfp), this_node=gfp.thisnode)
        found = mem.requests[key] = (zonelist, request_of(mem, gfp, order, node, lru))
    return found


def request_of(mem: Machine, gfp: Gfp, order: int, node: int, lru: bool) -> Request:
    """The request as kernels take it.

    References
    ----------
    mm/page_alloc.c: prepare_alloc_pages, alloc_flags_nofragment, gfp_to_alloc_flags, Linux 6.12.117. Callers with
    PF_MEMALLOC or a real-time priority are not modelled.
    """
    migratetype = gfp.migratetype
    if int(mem.state.params.features) & Feature.NO_MOBILITY:
        migratetype = MigrateType.UNMOVABLE
    common = Alloc(0)
    if migratetype == MigrateType.MOVABLE and mem.geometry.cma:
        common |= Alloc.CMA
    if gfp.kswapd_reclaim:
        common |= Alloc.KSWAPD
    highest = highest_zone(mem.geometry, gfp)
    urgent = Alloc(0)
    if not gfp.direct_reclaim and not gfp.nomemalloc:
        urgent = Alloc.NON_BLOCK
        if gfp.high and order > 0:
            urgent |= Alloc.HIGHATOMIC
    fast = common | Alloc(Wmark.LOW)
    if avoids_mixing(mem, node, highest):
        fast |= Alloc.NOFRAGMENT
    if "highatomic_fast_path" in mem.geometry.features:
        fast |= urgent & Alloc.HIGHATOMIC
    slow = common | urgent | Alloc(Wmark.MIN)
    if gfp.high:
        slow |= Alloc.MIN_RESERVE
    if gfp.memalloc and not gfp.nomemalloc:
        slow |= Alloc.NO_WATERMARKS
    return Request(*(np.uint64(n) for n in (order, migratetype, highest, fast, slow, lru)))


def avoids_mixing(mem: Machine, node: int, highest: ZoneType) -> bool:
    """Whether the first round refuses to mix types in pageblocks: DMA32 may still have a clean page.

    Asked where the preferred zone is Normal, on kernels with CONFIG_ZONE_DMA32; with several nodes the preferred one
    must have a DMA32 zone.
    """
    if mem.geometry.arch not in ZONES_BELOW_NORMAL:
        return False
    zones, zonelist = mem.state.zones, mem.zonelist(node, highest)
    if not zonelist.size:
        return False
    preferred = zones[int(zonelist[0])]
    if preferred["zone_type"] != ZoneType.NORMAL:
        return False
    dma32 = (zones["node"] == preferred["node"]) & (zones["zone_type"] == ZoneType.DMA32)
    return len(mem.nodes) == 1 or bool(dma32.any())
