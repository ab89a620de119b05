"""The kinds of request: their gfp flags, by order, and whether their pages join an LRU list."""

import numpy as np

from memmodel.kernels.page_alloc import Request
from memmodel.mechanisms import heaps
from memmodel.mechanisms.request import highest_zone, requested
from memmodel.sources.gfp import Gfp, parse_gfp
from memmodel.state.layout import NR_ORDERS
from memmodel.state.machine import Machine
from memmodel.workloads.generator import Kind
from memmodel.workloads.live import N_KINDS
from memmodel.workloads.loop import Requests

__all__ = ["gfp_of", "request_table"]

request_dtype = np.dtype([(name, "u8") for name in Request._fields])

ON_LRU = (Kind.ANONYMOUS, Kind.PAGE_CACHE, Kind.THP)
GFP = {
    Kind.ANONYMOUS: "GFP_HIGHUSER_MOVABLE|__GFP_COMP",
    Kind.PAGE_CACHE: "GFP_HIGHUSER_MOVABLE|__GFP_COMP",
    Kind.RECLAIMABLE_SLAB: "GFP_KERNEL|__GFP_RECLAIMABLE",
    Kind.KERNEL: "GFP_KERNEL",
    Kind.PINNED: "GFP_HIGHUSER_MOVABLE",
    Kind.THP: "GFP_TRANSHUGE_LIGHT",
}
# A slab that could be smaller is not worth waiting for.
GFP_LARGE_SLAB = "__GFP_IO|__GFP_FS|__GFP_RECLAIMABLE|__GFP_COMP|__GFP_NOMEMALLOC|__GFP_NOWARN|__GFP_NORETRY"


def gfp_of(mem: Machine, kind: Kind, order: int) -> Gfp:
    """Flags of a request of that kind.

    References
    ----------
    mm/slub.c (allocate_slab), mm/huge_memory.c (vma_thp_gfp_mask with defrag=madvise and no madvise); Linux 6.12.117.
    """
    if kind == Kind.DMA_BUF:
        return heaps.gfp_of(mem, order)
    return parse_gfp(GFP_LARGE_SLAB if order and kind == Kind.RECLAIMABLE_SLAB else GFP[kind])


def request_table(mem: Machine, node: int, cpu: np.uint64) -> Requests:
    """All kinds and orders, as the loop takes them."""
    fields = np.zeros((N_KINDS, NR_ORDERS), request_dtype)
    zonelists = np.zeros((N_KINDS, mem.state.zones.size), np.uint64)
    n_zones = np.zeros(N_KINDS, np.uint64)
    for kind in Kind:
        zonelist = mem.zonelist(node, highest_zone(mem.geometry, gfp_of(mem, kind, 0)))
        zonelists[kind, : zonelist.size], n_zones[kind] = zonelist, zonelist.size
        for order in range(mem.geometry.max_page_order + 1 if zonelist.size else 0):
            _, request = requested(mem, gfp_of(mem, kind, order), order, node, kind in ON_LRU)
            fields[kind, order] = tuple(request)
    return Requests(fields.view(np.recarray), zonelists, n_zones, cpu)
