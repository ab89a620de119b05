"""Compaction: for a request, by kcompactd, of all memory, or because the machine's memory is fragmented."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, one_of
from memmodel.kernels import compact_run as kernels
from memmodel.kernels.buddy import count_free
from memmodel.kernels.compact_control import ALL_ORDERS
from memmodel.kernels.lru import drain_lru
from memmodel.kernels.migration_job import Count, Mode
from memmodel.kernels.tlb import TlbCount
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.compactor import compactor, populated_zones, prepare
from memmodel.mechanisms.kswapd import zone_type
from memmodel.mechanisms.migration import MODES, refuse_latent
from memmodel.mechanisms.policies import Compaction, CompactPriority, CompactRequest, CompactResult, checked_by
from memmodel.state.fragmentation import fragmentation_score_node
from memmodel.state.layout import NONE, MigrateType, Vmstat, ZoneType
from memmodel.state.machine import Machine

__all__ = [
    "CompactionOutcome",
    "compact_memory",
    "compact_zone",
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
        If the request is none, or names zones, an order or a migratetype that are not there; or if a page has a latent
        error that the kernel would not survive to copy. A request that may compact is refused before it has done
        anything, whether it would have come to this or not.

    References
    ----------
    mm/compaction.c: try_to_compact_pages, compact_zone_order, Linux 6.1, 6.12.117 and 7.3.
    """
    zones = _checked_zones(mem, request)
    cpu = mem.check_cpu(request.cpu)
    hardest = int(request.priority == CompactPriority.SYNC_FULL)
    mode = Mode.ASYNC if request.priority == CompactPriority.ASYNC else Mode.SYNC_LIGHT
    bits = dict.fromkeys(("whole_zone", "ignore_skip", "ignore_suitable"), hardest)
    bits |= {"direct": 1, "highest": request.highest, "alloc_flags": request.alloc_flags}
    bits |= {"no_fs": int("__GFP_FS" not in request.gfp), "gives_way": int(request.gives_way is not None)}
    task = prepare(mem, cpu, request.order, mode, request.migratetype, **bits)
    result, captured = kernels.try_to_compact_pages(mem.state, task, zones)
    control = task.compact.control
    if request.gives_way is not None and control["paused"][0]:
        paused = control.copy()
        request.gives_way()
        compactor(mem, cpu)  # room for what those allocated who had their turn; they may have compacted, too
        control[...] = paused
        result, captured = kernels.try_to_compact_pages(mem.state, task, zones)
    return Compaction(CompactResult(int(result)), None if captured == NONE else int(captured))


def _checked_zones(mem: Machine, request: CompactRequest) -> npt.NDArray[np.uint64]:
    """Rows of the zones of a request; kernels do not look whether they and its order exist."""
    if not isinstance(request, CompactRequest):
        raise InputError(f"compaction is asked for by a CompactRequest, not {request!r}")
    whole_number(request.order, "order", 1, mem.geometry.max_page_order, "MAX_PAGE_ORDER")
    whole_number(request.migratetype, "migratetype", 0, MigrateType.RECLAIMABLE)
    zones = np.asarray(request.zones)
    n_zones = mem.state.zones.size
    if zones.ndim != 1 or zones.dtype.kind not in "iu" or np.any((zones < 0) | (zones >= n_zones)):
        raise InputError(f"zones {request.zones!r}; rows 0 to {n_zones - 1} are possible")
    return zones.astype(np.uint64)


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
    whole = int(bool(whole_zone) or wanted == ALL_ORDERS)
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
    nodes = mem.nodes if node is None else [mem.check_node(node)]
    bits = {"whole_zone": 1, "ignore_skip": 1}
    compactor(mem, on_cpu)  # refused before anything changes

    def run() -> dict[int, int]:
        for number in range(mem.cpus):
            drain_lru(mem.state, np.uint64(number))
        rows = [row for number in nodes for row in populated_zones(mem, number)]
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
    kind = zone_type(highest)
    wanted = whole_number(order, "order", 0, mem.geometry.max_page_order)
    zones = mem.state.zones
    rows = [row for row in populated_zones(mem, mem.check_node(node)) if zones["zone_type"][row] <= kind]
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
    rows = populated_zones(mem, mem.check_node(node))
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


def _zone_row(mem: Machine, node: int, zone: str) -> int:
    types = mem.state.zones["zone_type"]
    names = {ZoneType(int(types[row])).label: row for row in populated_zones(mem, mem.check_node(node))}
    return names[one_of(zone, names, "zone")]
