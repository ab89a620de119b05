"""Many single pages at once, off one per-CPU list."""

import numpy as np

from memmodel.errors import one_of
from memmodel.kernels import bulk as kernels
from memmodel.kernels.slowpath import watermark_test
from memmodel.mechanisms.buddy import MAX_COUNT, Asked, allocate, whole_number
from memmodel.mechanisms.policies import CompactPolicy, ReclaimPolicy, Rows, Steps
from memmodel.mechanisms.request import DEFAULT_GFP, joins_lru, requested
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import Alloc, Wmark
from memmodel.state.machine import Handles, Machine

__all__ = ["alloc_pages_bulk"]


def alloc_pages_bulk(  # noqa: PLR0913 - as alloc_pages
    mem: Machine,
    count: int,
    migratetype: str = "movable",
    *,
    node: int = 0,
    cpu: int = 0,
    gfp: str | None = None,
    reclaim: ReclaimPolicy | None = None,
    compact: CompactPolicy | None = None,
) -> Handles:
    """Allocate up to `count` single pages, all from one zone and by way of the CPU's list; at least one if it can.

    The zone is the preferred node's first that has `count` pages more than its low watermark (the preferred zone's
    own reserve, not the request's, is kept back). Pages come off the list, refilled as often as it runs dry, until a
    refill brings none; types may mix in pageblocks, and kswapd is not woken for a boosted zone. Where no zone of the
    node qualifies, or the first refill brings nothing, or for `count` = 1 or with __GFP_ACCOUNT, one page is
    allocated as `alloc_pages` does, with all its attempts.

    Parameters
    ----------
    mem
        Changed in place.
    count
        Pages wanted.
    migratetype, node, cpu, gfp, reclaim, compact
        As of `alloc_pages`; only the fallback reclaims and compacts.

    Returns
    -------
    Folio handles, int64, shape ``(count,)``; -1 where no page came.

    Raises
    ------
    InputError
        If an argument is outside its range.

    References
    ----------
    mm/page_alloc.c: alloc_pages_bulk_noprof, __rmqueue_pcplist, Linux 6.12 (__alloc_pages_bulk in 6.1). The memory
    controller is taken to be on, page_owner to be off.
    """
    count = whole_number(count, "count", 0, MAX_COUNT)
    flags = parse_gfp(DEFAULT_GFP[one_of(migratetype, DEFAULT_GFP, "migratetype")] if gfp is None else gfp)
    asked = Asked(0, flags, node, cpu, joins_lru(flags))
    on_cpu = mem.check_cpu(cpu)
    zonelist, request = requested(mem, flags, 0, node, asked.lru)
    handles = np.full(count, -1, np.int64)
    if not count or not zonelist.size:
        return handles
    alloc_flags = np.uint64(Wmark.LOW | int(request.fast) & Alloc.CMA)
    zone = None if count == 1 or "__GFP_ACCOUNT" in flags else zone_with(mem, zonelist, alloc_flags, count)
    done = 0
    if zone is not None:
        mem.reserve_folios(min(count, mem.pfns.n_pages))
        done = kernels.alloc_bulk(mem.state, zone, on_cpu, request, alloc_flags, handles)
    if not done:
        handles[:1] = allocate(mem, asked, 1, Steps(reclaim, compact))
    return handles


def zone_with(mem: Machine, zonelist: Rows, flags: np.uint64, count: int) -> np.uint64 | None:
    """The first zone of the preferred node with so many pages above its low watermark."""
    zones = mem.state.zones
    preferred = zones[int(zonelist[0])]
    for row in zonelist:
        zone = zones[int(row)]
        if zone["node"] != preferred["node"]:
            return None
        mark = np.int64(int(zone["watermark"][Wmark.LOW]) + int(zone["watermark_boost"]) + count)
        highest, free = np.uint64(preferred["zone_type"]), np.int64(zone["free_pages"])
        if watermark_test(mem.state, row, np.uint64(0), mark, highest, flags, free):
            return np.uint64(row)
    return None
