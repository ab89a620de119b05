"""Compaction: for a request, by kcompactd, of all memory, or because the machine's memory is fragmented."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, one_of
from memmodel.kernels import compact_run as kernels
from memmodel.kernels.buddy import count_free
from memmodel.kernels.compact_control import ALL_ORDERS, CLUSTER_MAX, Compact, control_dtype, said_dtype
from memmodel.kernels.folios import count_parts
from memmodel.kernels.lru import drain_lru
from memmodel.kernels.migration_job import Count, Mode
from memmodel.kernels.thp_faults import Fault, fault_many
from memmodel.kernels.tlb import TlbCount
from memmodel.mechanisms.buddy import MAX_COUNT, whole_number
from memmodel.mechanisms.huge_pages import count_faults, pmd_order_of, thp_gfp
from memmodel.mechanisms.migration import CALLERS, MODES, migration_job, refuse_latent
from memmodel.mechanisms.policies import Compaction, CompactPriority, CompactRequest, CompactResult, checked_by
from memmodel.mechanisms.request import requested
from memmodel.mechanisms.tlb import MAX_MMS, Tlb
from memmodel.sources.gfp import parse_gfp
from memmodel.state.fragmentation import fragmentation_score_node
from memmodel.state.layout import NONE, NR_ORDERS, MigrateType, Vmstat, ZoneType
from memmodel.state.machine import Handles, Machine

__all__ = [
    "CompactionOutcome",
    "compact_memory",
    "compact_zone",
    "fault_compacting",
    "run_kcompactd",
    "run_proactive_compaction",
    "try_to_compact_pages",
]

COUNTERS = (
    *(Vmstat.COMPACT_MIGRATE_SCANNED, Vmstat.COMPACT_FREE_SCANNED, Vmstat.COMPACT_ISOLATED),
    *(Vmstat.PGMIGRATE_SUCCESS, Vmstat.PGMIGRATE_FAIL),
)
WORK = [*(count.name.lower() for count in Count), "n_calls", *(count.name.lower() for count in TlbCount)]


class CompactionOutcome(NamedTuple):
    """What runs of compaction did; scanned and isolated as /proc/vmstat counts them."""

    results: dict[str, CompactResult]
    """How each zone's run ended, by "node:zone"; zones that were left alone are missing."""
    compact_migrate_scanned: int
    """Pages that the migration scanner looked at."""
    compact_free_scanned: int
    """Pages that the free scanner looked at."""
    compact_isolated: int
    """Pages taken off LRU lists as sources and off free lists as targets."""
    pgmigrate_success: int
    pgmigrate_fail: int
    counts: Mapping[str, int] = MappingProxyType({})
    """Of all its migrations: `n_calls`, those of `memmodel.kernels.migration_job.Count` and of
    `memmodel.kernels.tlb.TlbCount`; what is 0 is missing."""

    @property
    def result(self) -> CompactResult:
        """The best of them."""
        return max(self.results.values(), default=CompactResult.SKIPPED)


def compactor(mem: Machine, cpu: np.uint64) -> kernels.Compactor:
    """A task of a CPU that compacts, made once and kept with the machine; the folio table has room for what it splits.

    Raises
    ------
    InputError
        If a page has a latent error, and migration cannot survive it.
    """
    refuse_latent(mem)
    mem.reserve_folios(room_for_parts(mem))
    key = ("compactor", int(cpu))
    if key not in mem.requests:
        mem.requests[key] = _new_compactor(mem, cpu)
    task: kernels.Compactor = mem.requests[key]
    return task


def room_for_parts(mem: Machine) -> int:
    """Folios that come of splitting every large one that finds no target; those of a pageblock never move."""
    zones, live = mem.state.zones, int(mem.state.slots[0])
    free = int((zones["nr_free"] << np.arange(NR_ORDERS, dtype=np.uint64)).sum()) + int(mem.state.pcp["count"].sum())
    most = int(zones["managed"].sum()) + int(zones["beyond_managed"].sum()) - free - live
    return most if most <= mem.geometry.pageblock_nr_pages else int(count_parts(mem.state))


def _new_compactor(mem: Machine, cpu: np.uint64) -> kernels.Compactor:
    room = mem.geometry.pageblock_nr_pages + CLUSTER_MAX
    control, said = np.zeros(1, control_dtype), np.zeros(0, said_dtype)
    compact = Compact(control.view(np.recarray), np.zeros(room, np.uint64), said.view(np.recarray))
    starts = mem.state.zones["start"].astype(np.int64)
    return kernels.Compactor(
        tlb=Tlb(mem.geometry, mem.cpus, [[int(cpu)]] * MAX_MMS).state,
        job=migration_job(mem, CALLERS["compaction"], room, cpu, compact),
        compact=compact,
        pfn_0=starts - mem.pfns.pfn(starts),
        one_by_one=np.uint64("batched_migration" not in mem.geometry.features),
        totals=np.zeros(len(Count) + 1, np.int64),
    )


def prepare(mem: Machine, cpu: np.uint64, order: int, mode: Mode, migratetype: int, **bits: int) -> kernels.Compactor:
    """The task with a fresh struct compact_control."""
    task = compactor(mem, cpu)
    control = task.compact.control.view(control_dtype, np.ndarray)
    control[...] = np.zeros(1, control_dtype)
    values = {"order": order, "search_order": order, "mode": mode, "migratetype": migratetype, **bits}
    for name, value in values.items():
        control[name] = value
    control["cpu"], control["pmd_order"] = cpu, mem.geometry.hpage_pmd_order
    return task._replace(job=task.job._replace(mode=np.uint64(mode)))


@checked_by(refuse_latent)
def try_to_compact_pages(mem: Machine, request: CompactRequest) -> Compaction:
    """Compact for a request, zone by zone up to the first success: the policy of Linux, for `alloc_pages(compact=)`.

    Parameters
    ----------
    mem
        Changed in place.
    request
        Zones, order, gfp flags, migratetype and priority. SYNC_FULL looks at all pageblocks of a zone and ignores skip
        hints and deferral. Others have their turn (`gives_way`) before the first pageblock is scanned, where it has
        been chosen already (isolate_migratepages_block: cond_resched).

    Returns
    -------
    The best result of the zones, and the block that was captured while its pages were freed, if one was.

    Raises
    ------
    InputError
        If a page has a latent error that the kernel would not survive to copy. A request that may compact is refused
        before it has done anything, whether it would have come to this or not.

    References
    ----------
    mm/compaction.c: try_to_compact_pages, compact_zone_order, Linux 6.1, 6.12.117 and 7.3.
    """
    cpu = mem.check_cpu(request.cpu)
    hardest = int(request.priority == CompactPriority.SYNC_FULL)
    mode = Mode.ASYNC if request.priority == CompactPriority.ASYNC else Mode.SYNC_LIGHT
    bits = dict.fromkeys(("whole_zone", "ignore_skip", "ignore_suitable"), hardest)
    bits |= {"direct": 1, "highest": request.highest, "alloc_flags": request.alloc_flags}
    bits |= {"no_fs": int("__GFP_FS" not in request.gfp), "gives_way": int(request.gives_way is not None)}
    task = prepare(mem, cpu, request.order, mode, request.migratetype, **bits)
    result, captured = kernels.try_to_compact_pages(mem.state, task, request.zones)
    control = task.compact.control
    if request.gives_way is not None and control["paused"][0]:
        paused = control.copy()
        request.gives_way()
        compactor(mem, cpu)  # room for what those allocated who had their turn; they may have compacted, too
        control[...] = paused
        result, captured = kernels.try_to_compact_pages(mem.state, task, request.zones)
    return Compaction(CompactResult(int(result)), None if captured == NONE else int(captured))


def compact_zone(  # noqa: PLR0913 - which zone, what for, how hard, by keyword
    mem: Machine,
    zone: str = "Normal",
    order: int | None = None,
    mode: str = "sync_light",
    *,
    node: int = 0,
    cpu: int = 0,
    migratetype: str = "unmovable",
    whole_zone: bool = False,
) -> CompactionOutcome:
    """Compact one zone until a block of an order is free, or the scanners meet.

    Parameters
    ----------
    mem
        Changed in place.
    zone
        Its name, as /proc prints it.
    order
        That is wanted; if not given, the whole zone is gone through.
    mode
        "async", "sync_light" or "sync": how long migration waits.
    node, cpu
        Where.
    migratetype
        Of the block that is wanted.
    whole_zone
        From the zone's ends, and without skip hints, not from where the last run stopped.

    Returns
    -------
    How it ended, and its counts.

    Raises
    ------
    InputError
        If there is no such zone, or another argument is outside its range.

    References
    ----------
    mm/compaction.c: compact_zone, Linux 6.1, 6.12.117 and 7.3.
    """
    on_cpu = mem.check_cpu(cpu)
    row = _zone_row(mem, node, zone)
    wanted = ALL_ORDERS if order is None else whole_number(order, "order", 0, mem.geometry.max_page_order)
    how = Mode[one_of(mode, MODES, "mode").upper()]
    kind = MigrateType[one_of(migratetype, ("unmovable", "movable", "reclaimable"), "migratetype").upper()]
    whole = int(whole_zone or wanted == ALL_ORDERS)
    highest = int(mem.state.zones["zone_type"][row])
    task = prepare(mem, on_cpu, wanted, how, kind, whole_zone=whole, ignore_skip=whole, highest=highest)
    return _counted(mem, on_cpu, lambda: {row: int(kernels.compact_one_zone(mem.state, task, np.uint64(row)))})


def compact_memory(mem: Machine, *, node: int | None = None, cpu: int = 0) -> CompactionOutcome:
    """Compact all zones, of one node or of all: writing 1 to vm.compact_memory, or to a node's `compact`.

    Raises
    ------
    InputError
        If there is no such node or CPU.

    References
    ----------
    mm/compaction.c: compact_nodes, compact_node, Linux 6.12.117.
    """
    on_cpu = mem.check_cpu(cpu)
    nodes = mem.nodes if node is None else [_node(mem, node)]
    bits = {"whole_zone": 1, "ignore_skip": 1}
    compactor(mem, on_cpu)  # refused before anything changes

    def run() -> dict[int, int]:
        for number in range(mem.cpus):
            drain_lru(mem.state, np.uint64(number))
        rows = [row for number in nodes for row in _populated(mem, number)]
        return {row: _all_of(mem, on_cpu, row, Mode.SYNC, bits) for row in rows}

    return _counted(mem, on_cpu, run)


def run_kcompactd(
    mem: Machine, node: int = 0, *, order: int, highest: str = "Movable", cpu: int = 0
) -> CompactionOutcome:
    """One run of a node's kcompactd, woken for an order.

    Parameters
    ----------
    mem
        Changed in place. Zones that failed not long ago are put off.
    node
        Whose kcompactd runs.
    order, highest
        Order and highest zone of the request that woke it.
    cpu
        That it runs on.

    Raises
    ------
    InputError
        If there is no such node, zone or CPU, or the order is outside its range.

    References
    ----------
    mm/compaction.c: kcompactd_do_work, Linux 6.1, 6.12.117 and 7.3.
    """
    on_cpu = mem.check_cpu(cpu)
    names = {kind.label: kind for kind in ZoneType}
    kind = names[one_of(highest, names, "highest")]
    wanted = whole_number(order, "order", 0, mem.geometry.max_page_order)
    zones = mem.state.zones
    rows = [row for row in _populated(mem, _node(mem, node)) if zones["zone_type"][row] <= kind]
    highest_row = max(zones["zone_type"][rows].tolist(), default=0)
    task = prepare(mem, on_cpu, wanted, Mode.SYNC_LIGHT, MigrateType.UNMOVABLE, highest=highest_row)
    results = np.full(len(zones), -1, np.int64)

    def run() -> dict[int, int]:
        kernels.compact_for_kcompactd(mem.state, task, np.array(rows, np.uint64), results)
        return {row: int(results[row]) for row in rows if results[row] >= 0}

    return _counted(mem, on_cpu, run)


def run_proactive_compaction(
    mem: Machine, node: int = 0, *, proactiveness: int = 20, cpu: int = 0
) -> CompactionOutcome:
    """One check of a node's fragmentation score; above the high mark its zones are compacted down to the low one.

    Parameters
    ----------
    mem
        Changed in place.
    node, cpu
        Where.
    proactiveness
        vm.compaction_proactiveness, 0 to 100.

    Raises
    ------
    InputError
        If there is no such node or CPU, or the number is outside its range.

    References
    ----------
    mm/compaction.c: should_proactive_compact_node, proactive_compact_node, fragmentation_score_wmark, Linux 6.12.117
    and (feature proactive_scaled) 7.3.
    """
    on_cpu = mem.check_cpu(cpu)
    level = whole_number(proactiveness, "proactiveness", 0, 100)
    low, high = _score_marks(mem, level)
    rows = _populated(mem, _node(mem, node))
    by_order, present = count_free(mem.state).sum(axis=1)[rows], mem.state.zones["present"][rows]
    if not level or fragmentation_score_node(by_order, present, mem.geometry.hpage_pmd_order) <= high:
        return CompactionOutcome({}, 0, 0, 0, 0, 0)
    bits = {"whole_zone": 1, "ignore_skip": 1, "proactive": 1, "low_score": low}
    return _counted(mem, on_cpu, lambda: {row: _all_of(mem, on_cpu, row, Mode.SYNC_LIGHT, bits) for row in rows})


def _score_marks(mem: Machine, proactiveness: int) -> tuple[int, int]:
    """Low and high mark of the fragmentation score."""
    if "proactive_scaled" in mem.geometry.features:
        low = 100 - proactiveness
        return low, min(100, low + min(10, low // 2))
    low = max(100 - proactiveness, 5)
    return low, min(low + 10, 100)


def _all_of(mem: Machine, cpu: np.uint64, row: int, mode: Mode, bits: dict[str, int]) -> int:
    """Go through a whole zone."""
    task = prepare(mem, cpu, ALL_ORDERS, mode, MigrateType.UNMOVABLE, **bits)
    return int(kernels.compact_one_zone(mem.state, task, np.uint64(row)))


def _counted(mem: Machine, cpu: np.uint64, run: Callable[[], dict[int, int]]) -> CompactionOutcome:
    task, before = compactor(mem, cpu), mem.state.vmstat.copy()
    migrated, flushed = task.totals.copy(), task.tlb.counts.copy()
    results = run()
    counts = (mem.state.vmstat - before)[list(COUNTERS)].tolist()
    work = np.concatenate([task.totals - migrated, task.tlb.counts - flushed]).tolist()
    done = {name: n for name, n in zip(WORK, work, strict=True) if n and name != "max_unmapped"}
    zones = mem.state.zones
    names = [f"{int(zone['node'])}:{ZoneType(int(zone['zone_type'])).label}" for zone in zones]
    ends = {names[row]: CompactResult(result) for row, result in results.items()}
    return CompactionOutcome(ends, *counts)._replace(counts=done)


def _node(mem: Machine, node: int) -> int:
    if node not in mem.nodes:
        raise InputError(f"node {node!r}; there are {', '.join(map(str, mem.nodes))}")
    return int(node)


def _populated(mem: Machine, node: int) -> list[int]:
    """Rows of a node's zones with pages, ascending by type (populated_zone)."""
    zones = mem.state.zones
    rows: npt.NDArray[np.int64] = np.flatnonzero((zones["node"] == node) & (zones["present"] > 0))
    return sorted(rows.tolist(), key=lambda row: int(zones["zone_type"][row]))


def _zone_row(mem: Machine, node: int, zone: str) -> int:
    names = {ZoneType(int(mem.state.zones["zone_type"][row])).label: row for row in _populated(mem, _node(mem, node))}
    return names[one_of(zone, names, "zone")]


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
