"""Ask a fragmented machine for huge pages: how many come with compaction, by pageblock order and unmovable share.

Unmovable pages decide it: each spoils the huge page that it lies in, and the pageblock is what keeps them together.
Points that differ in the kernel or its configuration alone share their load, replicate by replicate.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.cost.compaction import compaction_cost
from memmodel.geometry import Geometry
from memmodel.kernels.buddy import count_free
from memmodel.mechanisms.thp_faults import fault_compacting
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import Vmstat
from memmodel.state.sizing import Sysctls
from memmodel.studies.machines import KERNEL, Starts, first_state, page_block_max_order
from memmodel.studies.registry import Parameter, Params, Seeds, Study, points_of
from memmodel.workloads.pageblocks import movable_regions, pageblock_use
from memmodel.workloads.run import Session

__all__ = ["COUNTERS", "FRAGMENTERS", "PARAMETERS", "STUDY", "block", "counts_since", "machine_of", "settle"]

FRAGMENTERS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "kernel": ("kernel", {}),
    "holes": ("pinned", {"pinned_pages": 1}),
    "buffers": ("pinned", {"pinned_pages": 64}),
}
"""What the unmovable memory is: bursts of kernel blocks, single held pages, held buffers of about 64 pages."""
PARAMETERS = (
    page_block_max_order(1),
    Parameter("unmovable", 0.1, "Share of the memory in use that cannot be moved.", range=(0, 1), workload=True),
    Parameter("fill", 0.6, "Share of managed pages in use when huge pages are wanted.", range=(0, 1), workload=True),
    Parameter(
        "fragmenter",
        "kernel",
        "What cannot be moved. kernel: long and short lived blocks in bursts; holes: single pages; buffers: about 64.",
        kind="choice",
        choices=tuple(FRAGMENTERS),
        workload=True,
    ),
    Parameter("demand", 1.0, "Huge pages asked for, as a share of the free memory.", range=(0, 4), workload=True),
    Parameter(
        "min_free_kbytes",
        0,
        "vm.min_free_kbytes. 0: as the kernel works it out, which with THP grows with the pageblock.",
        "KiB",
        kind="int",
        range=(0, 1 << 30),
    ),
    KERNEL,
    Parameter("page_size", "4KiB", "Base page size.", kind="choice", choices=("4KiB", "16KiB"), workload=True),
    Parameter("size_mib", 1024, "Memory of the machine.", "MiB", kind="int", range=(64, 1 << 20), workload=True),
    Parameter("peak", 0.95, "Share of managed pages in use at first.", range=(0, 1), workload=True),
    Parameter("churn", 4.0, "Operations at the final level, per managed page.", range=(0, 1e6), workload=True),
)
COUNTERS = (
    *(Vmstat.COMPACT_STALL, Vmstat.COMPACT_SUCCESS, Vmstat.COMPACT_MIGRATE_SCANNED, Vmstat.COMPACT_FREE_SCANNED),
    *(Vmstat.COMPACT_ISOLATED, Vmstat.PGMIGRATE_SUCCESS, Vmstat.PGMIGRATE_FAIL),
)
MACHINE = ("page_size", "kernel", "page_block_max_order", "size_mib", "min_free_kbytes")
OUTPUTS = (
    *("pageblock_order", "thp_order", "thp_compact_share", "thp_light_share", "thp_bound_share", "n_thp_requests"),
    *("mixed_share", "unmovable_block_share", *(counter.name.lower() for counter in COUNTERS), "isolated_per_migrated"),
    "compaction_cost",
)


def block(params: Params, seeds: Seeds) -> Mapping[str, npt.ArrayLike]:
    """Run each point's load on a memory of its own, then its faults."""
    starts: Starts = {}
    columns: dict[str, list[float]] = {name: [] for name in OUTPUTS}
    for point, seed in zip(points_of(params), seeds, strict=True):
        mem = machine_of(point, starts)
        settle(mem, point, seed)
        for name, value in faults(mem, point["demand"]).items():
            columns[name].append(value)
    return columns


def machine_of(point: Mapping[str, Any], starts: Starts) -> PhysicalMemory:
    """A machine in its first state, in the arrays of the last point that had one like it."""
    page_size, kernel, limit, size_mib, min_free_kbytes = key = tuple(point[name] for name in MACHINE)

    def build() -> PhysicalMemory:
        arch = "x86_64" if page_size == "4KiB" else "arm64"
        geometry = Geometry(page_size=page_size, arch=arch, kernel=kernel, page_block_max_order=limit)
        sysctls = Sysctls(min_free_kbytes=min_free_kbytes or None)
        return PhysicalMemory(geometry, size_mib << 20, sysctls=sysctls, seed=0)

    return first_state(key, starts, build)


def settle(mem: PhysicalMemory, point: Mapping[str, Any], seed: npt.NDArray[np.uint64]) -> None:
    """Fill the memory, empty it down to the level, and let it churn there."""
    workload, settings = FRAGMENTERS[point["fragmenter"]]
    share = point["unmovable"]
    mix = {name: part for name, part in (("anonymous", 1 - share), (workload, share)) if part > 0}
    session = Session(mem, mix, seed=seed.tolist(), settings=settings if share else {})
    fill = point["fill"]
    session.run(max(point["peak"], fill))
    session.run(fill)
    session.run(fill, int(point["churn"] * int(mem.state.zones["managed"].sum())))
    session.run(fill)


def faults(mem: PhysicalMemory, demand: float) -> dict[str, float]:
    """What is there, and what comes of faults for so much of the free memory."""
    order = mem.geometry.hpage_pmd_order
    by_order = count_free(mem.state).sum(axis=(0, 1))
    free = int((by_order << np.arange(by_order.size)).sum() + mem.state.pcp["count"].sum())
    wanted = max(int(demand * free) >> order, 1)
    ready = int((by_order[order:] << np.arange(by_order.size - order)).sum())
    use, possible = pageblock_use(mem.state), movable_regions(mem.state, order)
    blocks = sum(use)
    before = mem.state.vmstat.copy()
    folios = fault_compacting(mem, wanted)
    counted = counts_since(mem, before)
    return {
        "pageblock_order": mem.geometry.pageblock_order,
        "thp_order": order,
        "thp_compact_share": float((folios >= 0).mean()),
        "thp_light_share": min(ready / wanted, 1.0),
        "thp_bound_share": min(possible / wanted, 1.0),
        "n_thp_requests": wanted,
        "mixed_share": use.mixed / blocks,
        "unmovable_block_share": (use.mixed + use.unmovable) / blocks,
        **counted,
    }


def counts_since(mem: PhysicalMemory, before: npt.NDArray[np.int64]) -> dict[str, float]:
    """What compaction counted, isolated pages per migrated one (NaN where none was), and the cost by mmtests."""
    numbers = (mem.state.vmstat - before)[list(COUNTERS)].astype(np.float64).tolist()
    counted = {counter.name.lower(): number for counter, number in zip(COUNTERS, numbers, strict=True)}
    moved = counted["pgmigrate_success"]
    counted["isolated_per_migrated"] = counted["compact_isolated"] / moved if moved else float("nan")
    counted["compaction_cost"] = float(compaction_cost(counted))
    return counted


STUDY = Study(
    name="thp_success",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/compaction.c, mm/page_alloc.c (Linux 6.1, 6.12.117, 7.3); made-up workloads",
)
