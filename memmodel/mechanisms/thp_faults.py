"""Huge page faults with direct compaction, in one compiled loop."""

import numpy as np

from memmodel.kernels.migration_job import Mode
from memmodel.kernels.thp_faults import Fault, fault_many
from memmodel.mechanisms.buddy import MAX_COUNT, whole_number
from memmodel.mechanisms.compactor import prepare, room_for_parts
from memmodel.mechanisms.huge_pages import count_faults, pmd_order_of, thp_gfp
from memmodel.mechanisms.request import requested
from memmodel.sources.gfp import parse_gfp
from memmodel.state.machine import Handles, Machine

__all__ = ["fault_compacting"]


def fault_compacting(mem: Machine, count: int, *, node: int = 0, cpu: int = 0) -> Handles:
    """Faults of madvised mappings that want a huge page, each with direct compaction, where nothing can be reclaimed.

    What `fault_thp(madvised=True, compact=try_to_compact_pages)` does, compiled.

    Parameters
    ----------
    mem
        Changed in place; compact_*, allocstall_*, thp_fault_* and `mthp_stats` count.
    count
        Number of faults.
    node, cpu
        Where the task runs.

    Returns
    -------
    Folio handles, int64, shape ``(count,)``; -1 where the fault fell back.

    Raises
    ------
    InputError
        If the kernel has no transparent huge pages, or an argument is outside its range.

    References
    ----------
    mm/page_alloc.c: __alloc_pages_slowpath, Linux 6.12.117.
    """
    flags, order = thp_gfp("madvise", madvised=True), pmd_order_of(mem)
    on_cpu = mem.check_cpu(cpu)
    handles = np.full(whole_number(count, "count", 0, MAX_COUNT), -1, np.int64)
    local, everywhere = parse_gfp(f"{flags}|__GFP_THISNODE|__GFP_NORETRY"), parse_gfp(flags)
    here, here_request = requested(mem, local, order, node, True)
    anywhere, request = requested(mem, everywhere, order, node, True)
    bits = {"direct": 1, "highest": int(request.highest), "alloc_flags": int(request.slow)}
    hurried = prepare(mem, on_cpu, order, Mode.ASYNC, int(request.migratetype), **bits)
    patient = hurried._replace(job=hurried.job._replace(mode=np.uint64(Mode.SYNC_LIGHT)))
    parts = 1 << order if order < mem.geometry.pageblock_order else 1  # of what is faulted in
    mem.reserve_folios(room_for_parts(mem) + parts * min(handles.size, mem.pfns.n_pages >> order))
    fault = Fault(here, anywhere, here_request, request, hurried, patient, on_cpu)
    fault_many(mem.state, fault, handles)
    count_faults(mem, np.where(handles >= 0, order, -1), [order], order)
    return handles
