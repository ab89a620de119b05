"""Huge page faults one after the other, each with its direct compaction: the slow path for one kind of request.

mm/page_alloc.c (__alloc_pages_slowpath), mm/mempolicy.c (alloc_pages_mpol), 6.12.117; 7.2 comes to the same. It is what
mechanisms/slowpath.py does for a request with __GFP_DIRECT_RECLAIM and without __GFP_KSWAPD_RECLAIM, where nothing can
be reclaimed: 2,000 faults of which half fail take 0.1 s and not 1 s.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined, kernel
from memmodel.kernels.buddy import USED
from memmodel.kernels.compact_control import CompactResult
from memmodel.kernels.compact_finished import defer_reset
from memmodel.kernels.compact_run import Compactor, try_to_compact
from memmodel.kernels.freelist import ONE
from memmodel.kernels.migration_job import Mode
from memmodel.kernels.page_alloc import Request, get_page_from_freelist, mark_used, unreserve_highatomic
from memmodel.kernels.pcp import drain_all_pages
from memmodel.kernels.slowpath import become_folio, ready_to_compact
from memmodel.state.layout import NONE, Memory, Vmstat

U = np.uint64
ZERO = np.uint64(0)
SKIPPED = CompactResult.SKIPPED.value
ASYNC, SYNC_LIGHT = Mode.ASYNC.value, Mode.SYNC_LIGHT.value
COMPACT_STALL, COMPACT_FAIL = np.uint64(Vmstat.COMPACT_STALL), np.uint64(Vmstat.COMPACT_FAIL)
COMPACT_SUCCESS, ALLOCSTALL = np.uint64(Vmstat.COMPACT_SUCCESS), np.uint64(Vmstat.ALLOCSTALL_DMA)


class Fault(NamedTuple):
    """What a fault asks for: on its node alone, then everywhere."""

    here: npt.NDArray[np.uint64]  # zonelists
    anywhere: npt.NDArray[np.uint64]
    here_request: Request
    request: Request
    hurried: Compactor  # ASYNC
    patient: Compactor  # SYNC_LIGHT
    cpu: np.uint64


@inlined
def take(mem: Memory, fault: Fault, zonelist: Any, request: Request, flags: U) -> U:
    """One walk over the zones: row of a page in use, or NONE."""
    index = get_page_from_freelist(mem, zonelist, fault.cpu, request, flags)
    if index != NONE:
        mark_used(mem, index, request.order)
    return index


@inlined
def direct_compact(mem: Memory, fault: Fault, zonelist: Any, request: Request, mode: int) -> U:
    """Compact, then an attempt, unless no zone was worth it or the page was captured (__alloc_pages_direct_compact)."""
    task = fault.hurried if mode == ASYNC else fault.patient
    control = task.compact.control[0]
    control.mode = mode
    result, index = try_to_compact(mem, task, zonelist)
    if result == SKIPPED:
        return NONE
    mem.vmstat[COMPACT_STALL] += 1
    if index == NONE:
        index = take(mem, fault, zonelist, request, request.slow)
    else:
        mem.pages[index].state = USED | request.order
        mem.pages[index].refcount = ONE
    if index == NONE:
        mem.vmstat[COMPACT_FAIL] += 1
        return NONE
    mem.vmstat[COMPACT_SUCCESS] += 1
    zone = np.uint64(mem.pages[index].zone)
    mem.zones[zone].blockskip_flush = ZERO
    defer_reset(mem, zone, request.order, True)
    return index


@inlined
def direct_reclaim(mem: Memory, fault: Fault) -> U:
    """Nothing can be reclaimed; a zone that is ready for compaction counts as progress all the same."""
    request = fault.request
    mem.vmstat[ALLOCSTALL + request.highest] += 1
    progress = False
    for zone in fault.anywhere:
        progress = progress or ready_to_compact(mem, np.uint64(zone), request.order, request.highest)
    if not progress:
        return NONE
    index = take(mem, fault, fault.anywhere, request, request.slow)
    if index == NONE:
        unreserve_highatomic(mem, fault.anywhere, fault.cpu, request.migratetype, False)
        drain_all_pages(mem, np.uint64(mem.zones.size), fault.cpu)
        index = take(mem, fault, fault.anywhere, request, request.slow)
    return index


@inlined
def first_attempts(mem: Memory, fault: Fault, zonelist: Any, request: Request) -> U:
    """Above the low watermark, above the min one, and after a first compaction that does not wait."""
    index = take(mem, fault, zonelist, request, request.fast)
    if index == NONE:
        index = take(mem, fault, zonelist, request, request.slow)
    if index == NONE:
        index = direct_compact(mem, fault, zonelist, request, ASYNC)
    return index


@inlined
def fault_one(mem: Memory, fault: Fault) -> U:
    """Row of the folio, or NONE."""
    index = first_attempts(mem, fault, fault.here, fault.here_request)
    if index == NONE:
        index = first_attempts(mem, fault, fault.anywhere, fault.request)
    if index == NONE:
        index = take(mem, fault, fault.anywhere, fault.request, fault.request.slow)
    if index == NONE:
        index = direct_reclaim(mem, fault)
    if index == NONE:
        index = direct_compact(mem, fault, fault.anywhere, fault.request, SYNC_LIGHT)
    return index


@kernel
def fault_many(mem: Memory, fault: Fault, handles: Any) -> None:
    """So many faults; the handle of each folio, -1 where there was none."""
    for place in range(handles.size):
        index = fault_one(mem, fault)
        handles[place] = -1
        if index != NONE:
            handles[place] = become_folio(mem, index, fault.cpu, fault.request)
