"""Whole runs of compaction: for a request, by kcompactd, of all memory.

mm/compaction.c (compact_zone, compact_zone_order, try_to_compact_pages, kcompactd_do_work, compact_node), 6.12.117.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined, kernel, never_inline, outlined
from memmodel.kernels.compact_control import Compact, CompactResult
from memmodel.kernels.compact_finished import (
    defer,
    defer_reset,
    deferred,
    suit_allocation_order,
)
from memmodel.kernels.compact_free import release
from memmodel.kernels.compaction import after_migration, begin_compaction, next_sources, resumed_sources
from memmodel.kernels.freelist import ORDER_BITS
from memmodel.kernels.migration import FAILED, count_migrated, migrate_isolated, put_back
from memmodel.kernels.migration_folio import NOT_TRIED
from memmodel.kernels.migration_job import ROWS_IN_USE, Count, Job, List, Mode, push
from memmodel.kernels.pcp import drain_all_pcp
from memmodel.kernels.tlb import Tlb
from memmodel.state.layout import NONE, NR_ORDERS, Memory, Vmstat

U = np.uint64
ZERO = np.uint64(0)
ASYNC, FROM = Mode.ASYNC.value, np.uint64(List.FROM)
NO_ORDER = np.uint64(NR_ORDERS)
N_CALLS = np.uint64(len(Count))
SKIPPED, DEFERRED, CONTINUE = CompactResult.SKIPPED.value, CompactResult.DEFERRED.value, CompactResult.CONTINUE.value
COMPLETE, PARTIAL_SKIPPED = CompactResult.COMPLETE.value, CompactResult.PARTIAL_SKIPPED.value
SUCCESS = CompactResult.SUCCESS.value
COMPACT_MIGRATE_SCANNED, COMPACT_FREE_SCANNED, COMPACT_ISOLATED = (
    np.uint64(counter)
    for counter in (Vmstat.COMPACT_MIGRATE_SCANNED, Vmstat.COMPACT_FREE_SCANNED, Vmstat.COMPACT_ISOLATED)
)
COMPACT_DAEMON_WAKE = np.uint64(Vmstat.COMPACT_DAEMON_WAKE)
COMPACT_DAEMON_MIGRATE_SCANNED = np.uint64(Vmstat.COMPACT_DAEMON_MIGRATE_SCANNED)
COMPACT_DAEMON_FREE_SCANNED = np.uint64(Vmstat.COMPACT_DAEMON_FREE_SCANNED)


class Compactor(NamedTuple):
    """A task that compacts."""

    tlb: Tlb
    job: Job
    compact: Compact
    pfn_0: npt.NDArray[np.int64]  # row of pfn 0, [zones]: negative, or of another zone
    one_by_one: np.uint64  # 1: migration before 6.3
    totals: npt.NDArray[np.int64]  # Count of all its migrations so far, and behind them their number


@inlined
def begin_job(mem: Memory, job: Job, c: Compact) -> None:
    """The sources as the list of one migrate_pages(): the last one isolated first."""
    job.sizes[:] = 0
    job.counts[:] = 0
    n_sources = c.control[0].n_sources
    for i in range(n_sources):
        index = np.uint64(c.sources[n_sources - 1 - i])
        job.rows[i] = index
        job.orders[i] = np.uint64(mem.pages[index].state) & ORDER_BITS
        job.thp[i] = job.orders[i] == job.pmd_order
        job.parents[i] = -1
        job.status[i] = NOT_TRIED
        push(job, FROM, np.uint64(i))
    job.sizes[ROWS_IN_USE] = n_sources


@outlined
def compact_zone(mem: Memory, task: Compactor, zone: U) -> int:
    """The whole run, in a zone that is worth it: how it ended. CONTINUE: it is to be called again, for the rest."""
    never_inline()
    c, job = task.compact, task.job
    control = c.control[0]
    if control.paused:
        result = resumed_sources(mem, c)
    else:
        control.zone = zone
        control.row_of_pfn_0 = task.pfn_0[zone]
        begin_compaction(mem, c)
        result = next_sources(mem, c)
    if control.paused:
        return CONTINUE
    while result == CONTINUE:
        begin_job(mem, job, c)
        rc = migrate_isolated(mem, task.tlb, job, bool(task.one_by_one))
        put_back(mem, job, FAILED)
        count_migrated(mem, job)
        task.totals[N_CALLS] += 1
        for count in range(job.counts.size):
            task.totals[count] += job.counts[count]
        result = after_migration(mem, c, np.int64(rc))
    release(mem, c)
    mem.vmstat[COMPACT_MIGRATE_SCANNED] += control.migrate_scanned
    mem.vmstat[COMPACT_FREE_SCANNED] += control.free_scanned
    mem.vmstat[COMPACT_ISOLATED] += control.n_isolated
    control.n_isolated = 0
    return result


@inlined
def compact_zone_order(mem: Memory, task: Compactor, zone: U) -> int:
    """A zone for a request, whose block may be captured on the way."""
    control = task.compact.control[0]
    flags, order = np.uint64(control.alloc_flags), np.uint64(control.order)
    if not control.paused:
        result = suit_allocation_order(mem, task.compact, zone, order, np.uint64(control.highest), flags)
        if result != CONTINUE:
            return result
        control.search_order = control.order
        control.fast_search_fail = 0
        control.whole_zone = control.ignore_skip
    record = mem.zones[zone]
    record.capture_order, record.capture_type, record.captured = order, control.migratetype, NONE
    result = compact_zone(mem, task, zone)
    record.capture_order = NO_ORDER
    return SUCCESS if record.captured != NONE else result


@outlined
def try_to_compact(mem: Memory, task: Compactor, zonelist: Any) -> tuple[int, U]:
    """try_to_compact_pages(): the best result of the zones, and the block that was captured or NONE.

    `control.ignore_skip` is that of the hardest priority, at which nothing is put off. Where the task gives the CPU
    away, `control.paused` is set, and the next call goes on.
    """
    never_inline()
    control = task.compact.control[0]
    order = np.uint64(control.order)
    best = max(SKIPPED, int(control.best))
    for place in range(control.place, zonelist.size):
        zone = np.uint64(zonelist[place])
        if not control.paused and not control.ignore_skip and deferred(mem, zone, order):
            best = max(best, DEFERRED)
            continue
        result = compact_zone_order(mem, task, zone)
        if control.paused:
            control.place, control.best = place, best
            return best, NONE
        best = max(best, result)
        captured = np.uint64(mem.zones[zone].captured)
        mem.zones[zone].captured = NONE
        if result == SUCCESS:
            defer_reset(mem, zone, order, False)
            return best, captured
        if control.mode != ASYNC and (result == COMPLETE or result == PARTIAL_SKIPPED):
            defer(mem, zone, order)
    return best, NONE


@kernel
def try_to_compact_pages(mem: Memory, task: Compactor, zonelist: Any) -> tuple[int, U]:
    """try_to_compact() where Python calls it."""
    return try_to_compact(mem, task, zonelist)


@kernel
def compact_one_zone(mem: Memory, task: Compactor, zone: U) -> int:
    """A run of nobody's request, as the control says: how it ended."""
    control = task.compact.control[0]
    if control.order >= 0:
        order, highest = np.uint64(control.order), np.uint64(control.highest)
        result = suit_allocation_order(mem, task.compact, zone, order, highest, ZERO)
        if result != CONTINUE:
            return result
    return compact_zone(mem, task, zone)


@inlined
def suits_kcompactd(mem: Memory, task: Compactor, zone: U) -> bool:
    """Kcompactd looks twice: at the zone for itself, and for the request that woke it."""
    control = task.compact.control[0]
    order = np.uint64(control.order)
    if suit_allocation_order(mem, task.compact, zone, order, np.uint64(mem.zones[zone].zone_type), ZERO) != CONTINUE:
        return False
    return suit_allocation_order(mem, task.compact, zone, order, np.uint64(control.highest), ZERO) == CONTINUE


@kernel
def compact_for_kcompactd(mem: Memory, task: Compactor, zones: Any, results: Any) -> None:
    """kcompactd_do_work(): the zones of a node, ascending; how each run ended, at the zone's row of `results`.

    One struct compact_control serves them all: once a whole zone was gone through, the next ones are.
    """
    control = task.compact.control[0]
    order = np.uint64(control.order)
    mem.vmstat[COMPACT_DAEMON_WAKE] += 1
    for place in range(zones.size):
        zone = np.uint64(zones[place])
        if deferred(mem, zone, order) or not suits_kcompactd(mem, task, zone):
            continue
        result = compact_zone(mem, task, zone)
        results[zone] = result
        if result == SUCCESS:
            defer_reset(mem, zone, order, False)
        elif result == PARTIAL_SKIPPED or result == COMPLETE:
            for cpu in range(mem.params.n_cpus):
                drain_all_pcp(mem, zone, np.uint64(cpu), np.uint64(control.cpu))
            defer(mem, zone, order)
        mem.vmstat[COMPACT_DAEMON_MIGRATE_SCANNED] += control.migrate_scanned
        mem.vmstat[COMPACT_DAEMON_FREE_SCANNED] += control.free_scanned
