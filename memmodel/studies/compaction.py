"""Compact a fragmented machine: what is scanned, isolated and migrated, and how many huge pages are free then.

What migrates is priced by the machine, phase by phase, from what the kernel counts: mainline copies a page at a time,
and one CPU alone has translations to flush. No source has a rate for the scanners, so that scanning has no price.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from memmodel.cost.machines import Machine
from memmodel.cost.migration import MigrationCounts
from memmodel.kernels.buddy import count_free
from memmodel.mechanisms.compaction import CompactionOutcome, compact_memory, compact_zone, run_kcompactd
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import ZoneType
from memmodel.studies.machines import Starts
from memmodel.studies.migration_prices import times
from memmodel.studies.registry import Parameter, Params, PricedStudy, Seeds, points_of
from memmodel.studies.thp_success import COUNTERS, counts_since, machine_of, settle
from memmodel.studies.thp_success import PARAMETERS as OF_LOAD

__all__ = ["STUDY", "block"]

HOW = ("compact_memory", "kcompactd", "async", "sync_light")
PARAMETERS = (
    *(parameter for parameter in OF_LOAD if parameter.name != "demand"),
    Parameter(
        "how",
        "compact_memory",
        "Who compacts. compact_memory: all zones, whole; kcompactd: woken for a huge page; async, sync_light: one run "
        "in the largest zone for one.",
        kind="choice",
        choices=HOW,
    ),
)
OUTPUTS = (
    *("pageblock_order", "thp_order", "compact_runs", "huge_blocks_before", "huge_blocks_after"),
    *(counter.name.lower() for counter in COUNTERS if counter.name not in ("COMPACT_STALL", "COMPACT_SUCCESS")),
    *("isolated_per_migrated", "compaction_cost"),
)
TIMES = (
    *("time_call_ns", "time_unmap_ns", "time_flush_ns", "time_copy_ns", "time_remap_ns", "time_folio_overhead_ns"),
    "calibrated",
)


def block(params: Params, seeds: Seeds, *, machine: Machine) -> Mapping[str, npt.ArrayLike]:
    """Run each point's load on a memory of its own, then compact it, and price what was moved."""
    starts: Starts = {}
    columns: dict[str, list[float]] = {name: [] for name in OUTPUTS}
    work: list[tuple[float, ...]] = []
    for point, seed in zip(points_of(params), seeds, strict=True):
        mem = machine_of(point, starts)
        settle(mem, point, seed)
        huge, before = _huge_blocks(mem), mem.state.vmstat.copy()
        outcome = _compact(mem, point["how"])
        found: dict[str, float] = {
            "pageblock_order": mem.geometry.pageblock_order,
            "thp_order": mem.geometry.hpage_pmd_order,
            "compact_runs": len(outcome.results),
            "huge_blocks_before": huge,
            "huge_blocks_after": _huge_blocks(mem),
            **counts_since(mem, before),
        }
        for name in OUTPUTS:
            columns[name].append(found[name])
        work.append(_work(outcome.counts, mem.geometry.page_size_bytes))
    time = times(MigrationCounts._make([*np.array(work, np.float64).T, 0]), machine, False)
    return {**columns, "time_migrations_ns": time["time_total_ns"], **{name: time[name] for name in TIMES}}


def _work(done: Mapping[str, int], page_bytes: int) -> tuple[float, ...]:
    """What compaction's migrations counted, as the fields of `MigrationCounts` but the direction."""
    n_copied = done.get("n_copied", 0)
    names = ("n_calls", "n_unmapped_folios", "n_copied", "n_set", "n_removed", "local_full", "local_pages")
    numbers = (*(done.get(name, 0) for name in names), done.get("requests", 0), done.get("ipis", 0))
    return (*numbers, n_copied, n_copied * page_bytes, page_bytes)


def _compact(mem: PhysicalMemory, how: str) -> CompactionOutcome:
    order = mem.geometry.hpage_pmd_order
    if how == "compact_memory":
        return compact_memory(mem)
    if how == "kcompactd":
        return run_kcompactd(mem, order=order)
    largest = mem.state.zones[int(mem.state.zones["managed"].argmax())]
    label = ZoneType(int(largest["zone_type"])).label
    return compact_zone(mem, label, order, how, migratetype="movable", node=int(largest["node"]))


def _huge_blocks(mem: PhysicalMemory) -> int:
    """Huge pages that are free as one block."""
    order = mem.geometry.hpage_pmd_order
    by_order = count_free(mem.state).sum(axis=(0, 1))[order:]
    return int((by_order << np.arange(by_order.size)).sum())


STUDY = PricedStudy(
    name="compaction",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=(*OUTPUTS, "time_migrations_ns", *TIMES),
    block=block,
    source="mm/compaction.c (Linux 6.1, 6.12.117, 7.3); made-up workloads",
    default_machine="zen3-32c",
)
