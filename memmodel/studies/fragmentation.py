"""Fill memory, empty it again and let it churn: how fragmented it is then.

What is left decides whether THPs can be had without compaction, and which pageblocks compaction cannot empty.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.geometry import Geometry
from memmodel.kernels.buddy import count_free
from memmodel.mechanisms.buddy import alloc_pages
from memmodel.memory import PhysicalMemory
from memmodel.state.fragmentation import (
    extfrag_for_order,
    fragmentation_index,
    fragmentation_score_node,
    unusable_free_index,
)
from memmodel.state.layout import MigrateType
from memmodel.studies.registry import Parameter, Params, Seeds, Study
from memmodel.workloads.pageblocks import PageblockUse, pageblock_use
from memmodel.workloads.run import Session

__all__ = ["KERNEL", "PAGE_BLOCK_MAX_ORDER", "STUDY", "block", "memory_of"]

PAGE_BLOCK_MAX_ORDER = Parameter(
    "page_block_max_order",
    10,
    "Upper limit of the pageblock order (CONFIG_PAGE_BLOCK_MAX_ORDER). The order that comes of it is an output.",
    kind="int",
    range=(0, 15),
)
KERNEL = Parameter("kernel", "6.12.117", "Kernel whose rules hold. Any X.Y[.Z].", kind="str")
PARAMETERS = (
    PAGE_BLOCK_MAX_ORDER,
    Parameter("fill", 0.5, "Share of managed pages in use at the end.", range=(0, 1), workload=True),
    Parameter(
        "mix",
        "mixed",
        "Workloads that use the memory. As run_workload() takes them: anonymous, page_cache, kernel, pinned, thp, "
        "dma_buf, mixed, or 4*anonymous+kernel.",
        kind="str",
        workload=True,
    ),
    KERNEL,
    Parameter("page_size", "4KiB", "Base page size.", kind="choice", choices=("4KiB", "16KiB", "64KiB")),
    Parameter("size_mib", 1024, "Memory of the machine.", "MiB", kind="int", range=(16, 1 << 22), workload=True),
    Parameter(
        "peak", 0.95, "Share of managed pages in use at first. Not less than fill counts.", range=(0, 1), workload=True
    ),
    Parameter("churn", 1.0, "Operations at the final level, per managed page.", range=(0, 1e6), workload=True),
    Parameter("order", 9, "Order that free blocks and indices are given for.", kind="int", range=(0, 15)),
    Parameter("thp_requests", 64, "THP requests at the end, without compaction.", kind="int", range=(1, 1 << 30)),
)
OUTPUTS = (
    *(
        "pageblock_order",
        "free_pages",
        "pcp_pages",
        "free_pages_unmovable",
        "free_pages_movable",
        "free_pages_reclaimable",
    ),
    *("free_pages_unmovable_at_order", "free_pages_movable_at_order", "free_pages_reclaimable_at_order"),
    *("unusable_free_index", "fragmentation_index", "extfrag_for_order", "fragmentation_score_node"),
    *("n_pageblocks_free", "n_pageblocks_movable", "n_pageblocks_unmovable", "n_pageblocks_mixed"),
    *("thp_success_share", "n_requests", "n_requests_failed", "settled"),
)
COUNTED_TYPES = (MigrateType.UNMOVABLE, MigrateType.MOVABLE, MigrateType.RECLAIMABLE)


class End(NamedTuple):
    """What one point comes to, for all orders."""

    pageblock_order: int
    nr_free: npt.NDArray[np.int64]
    """Free blocks of the largest zone, by migratetype and order."""
    free_pages: int
    pcp_pages: int
    score: int
    use: PageblockUse
    thp_success_share: float
    n_requests: int
    n_requests_failed: int
    settled: bool


def block(params: Params, seeds: Seeds) -> Mapping[str, npt.ArrayLike]:
    """Run each point's load on a memory of its own; points that differ in `order` alone share a run.

    The orders and indices are those of the zone with most managed pages, the others those of the whole machine.
    """
    ends: dict[tuple[Any, ...], End] = {}
    starts: dict[tuple[Any, ...], tuple[PhysicalMemory, PhysicalMemory]] = {}
    names = [parameter.name for parameter in PARAMETERS if parameter.name != "order"]
    rows = zip(*(params[name].tolist() for name in names), (seed.tobytes() for seed in seeds), strict=True)
    columns: dict[str, list[float]] = {name: [] for name in OUTPUTS}
    for i, key in enumerate(rows):
        if key not in ends:
            point = dict(zip(names, key[:-1], strict=True))
            ends[key] = run_point(memory_of(point, starts), point, seeds[i])
        for name, value in outputs(ends[key], int(params["order"][i])).items():
            columns[name].append(value)
    return columns


def memory_of(
    point: Mapping[str, Any], starts: dict[tuple[Any, ...], tuple[PhysicalMemory, PhysicalMemory]]
) -> PhysicalMemory:
    """A memory in its first state, in the arrays of the last point that had one like it."""
    key = tuple(point[name] for name in ("page_size", "kernel", "page_block_max_order", "size_mib"))
    if key not in starts:
        geometry = Geometry(page_size=key[0], kernel=key[1], page_block_max_order=key[2])
        start = PhysicalMemory(geometry, key[3] << 20, seed=0)
        starts.clear()  # one machine at a time: large ones add up
        starts[key] = start, start.copy()
    start, mem = starts[key]
    mem.restore(start)
    return mem


def run_point(mem: PhysicalMemory, point: Mapping[str, Any], seed: npt.NDArray[np.uint64]) -> End:
    """The load, then the measures, then the THP requests, which end the memory's use."""
    session = Session(mem, point["mix"], seed=seed.tolist())
    managed = int(mem.state.zones["managed"].sum())
    fill = point["fill"]
    runs = [session.run(max(point["peak"], fill)), session.run(fill)]
    runs += [session.run(fill, int(point["churn"] * managed)), session.run(fill)]
    nr_free, use = count_free(mem.state), pageblock_use(mem.state)
    zones, present = mem.state.zones, mem.state.zones["present"]
    by_order, pcp_pages = nr_free.sum(axis=1), int(mem.state.pcp["count"].sum())
    thps = alloc_pages(mem, mem.geometry.hpage_pmd_order, point["thp_requests"], gfp="GFP_TRANSHUGE_LIGHT")
    failed = sum(int(run.failed.sum()) for run in runs)
    return End(
        pageblock_order=mem.geometry.pageblock_order,
        nr_free=nr_free[zones["managed"].argmax()],
        free_pages=int((by_order << np.arange(by_order.shape[1])).sum()),
        pcp_pages=pcp_pages,
        score=int(fragmentation_score_node(by_order, present, mem.geometry.hpage_pmd_order)),
        use=use,
        thp_success_share=float((thps >= 0).mean()),
        n_requests=failed + sum(int(run.allocated.sum()) for run in runs),
        n_requests_failed=failed,
        settled=runs[-1].settled,
    )


def outputs(end: End, order: int) -> dict[str, float]:
    """All outputs at one order; above MAX_PAGE_ORDER there are no free blocks."""
    nr_free = end.nr_free
    orders = np.arange(nr_free.shape[1])
    at_order = nr_free[:, order] << order if order < orders.size else np.zeros(len(nr_free), np.int64)
    by_order = nr_free.sum(axis=0)
    values: dict[str, float] = {
        "pageblock_order": end.pageblock_order,
        "free_pages": end.free_pages,
        "pcp_pages": end.pcp_pages,
        "unusable_free_index": int(unusable_free_index(by_order, order)),
        "fragmentation_index": int(fragmentation_index(by_order, order)),
        "extfrag_for_order": int(extfrag_for_order(by_order, order)),
        "fragmentation_score_node": end.score,
        "thp_success_share": end.thp_success_share,
        "n_requests": end.n_requests,
        "n_requests_failed": end.n_requests_failed,
        "settled": end.settled,
    }
    values |= {f"n_pageblocks_{what}": number for what, number in end.use._asdict().items()}
    for migratetype in COUNTED_TYPES:
        name = f"free_pages_{migratetype.name.lower()}"
        values[name] = int((nr_free[migratetype] << orders).sum())
        values[f"{name}_at_order"] = int(at_order[migratetype])
    return values


STUDY = Study(
    name="fragmentation",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/page_alloc.c, mm/vmstat.c, mm/compaction.c (Linux 6.1, 6.12.117, 7.3); made-up workloads",
)
