"""Buffers of the dma-buf system heap in used memory: which orders they are made of, and what the allocator does for it.

What is counted is what a smaller pageblock could change: orders, refills, splits, fallbacks. Instructions and time of
the heap (clearing pages, scatterlists) are not modelled.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import Vmstat
from memmodel.studies.machines import KERNEL, Starts, memory_of, page_block_max_order
from memmodel.studies.registry import Parameter, Params, Seeds, Study, points_of
from memmodel.units import parse_bytes
from memmodel.workloads.dma_bufs import run_dma_bufs
from memmodel.workloads.run import Session

__all__ = ["STUDY", "block"]

PARAMETERS = (
    page_block_max_order(),
    Parameter("page_size", "16KiB", "Base page size.", kind="choice", choices=("4KiB", "16KiB", "64KiB")),
    KERNEL,
    Parameter("n_allocations", 100_000, "Buffers asked for.", kind="int", range=(1, 1 << 30), workload=True),
    Parameter(
        "sizes", "8MiB,4MiB,1MiB,64KiB,4KiB", "Sizes that are drawn from, each as often.", kind="str", workload=True
    ),
    Parameter("size_mib", 4096, "Memory of the machine.", "MiB", kind="int", range=(16, 1 << 22), workload=True),
    Parameter("fill", 0.5, "Share of managed pages that others hold.", range=(0, 1), workload=True),
    Parameter(
        "peak", 0.8, "Share of managed pages in use before. Not less than fill counts.", range=(0, 1), workload=True
    ),
    Parameter("mix", "mixed", "Workloads of the others. As run_workload() takes them.", kind="str", workload=True),
    Parameter("held", 0.5, "Share of the pages left that the buffers hold together.", range=(0, 1), workload=True),
)
COUNTERS = (Vmstat.PCP_REFILLS, Vmstat.BUDDY_SPLITS, Vmstat.EXTFRAG_EVENTS)
OUTPUTS = (
    *("pageblock_order", "n_bufs", "n_bufs_failed"),
    *("n_folios_order_8", "n_folios_order_4", "n_folios_order_0", "n_failed_order_8", "n_failed_order_4"),
    *(counter.name.lower() for counter in COUNTERS),
)


def block(params: Params, seeds: Seeds) -> Mapping[str, npt.ArrayLike]:
    """Each point on a memory of its own: others fill and empty it, then come the buffers."""
    starts: Starts = {}
    columns: dict[str, list[float]] = {name: [] for name in OUTPUTS}
    for point, seed in zip(points_of(params), seeds, strict=True):
        for name, value in run_point(memory_of(point, starts), point, seed).items():
            columns[name].append(value)
    return columns


def run_point(mem: PhysicalMemory, point: Mapping[str, Any], seed: npt.NDArray[np.uint64]) -> dict[str, float]:
    """The load of the others, then the buffers."""
    page = mem.geometry.page_size_bytes
    sizes = pages_of(point["sizes"], page)
    session = Session(mem, point["mix"], seed=seed.tolist())
    session.run(max(point["peak"], point["fill"]))
    session.run(point["fill"])
    free = int(mem.state.zones["free_pages"].sum() + mem.state.pcp["count"].sum())
    drawn = np.random.default_rng([*seed.tolist(), 1]).choice(sizes, point["n_allocations"])
    before = mem.state.vmstat[list(COUNTERS)].copy()
    run = run_dma_bufs(mem, drawn, int(point["held"] * free))
    counted = mem.state.vmstat[list(COUNTERS)] - before
    values: dict[str, float] = {
        "pageblock_order": mem.geometry.pageblock_order,
        "n_bufs": run.n_bufs,
        "n_bufs_failed": run.n_failed,
    }
    values |= {f"n_folios_order_{order}": number for order, number in run.folios.items()}
    values |= {f"n_failed_order_{order}": run.failed_requests[order] for order in (8, 4)}
    return values | dict(zip((counter.name.lower() for counter in COUNTERS), counted.tolist(), strict=True))


def pages_of(text: str, page: int) -> npt.NDArray[np.int64]:
    """Sizes in whole pages.

    Raises
    ------
    InputError
        If one is no size.
    """
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise InputError(f"sizes {text!r}; a list such as '8MiB,64KiB' is possible")
    return np.array([-(-parse_bytes(part.strip(), "sizes") // page) for part in parts], np.int64)


STUDY = Study(
    name="dmabuf",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="drivers/dma-buf/heaps/system_heap.c, mm/page_alloc.c (Linux 6.1, 6.12.117, 7.3); made-up loads",
)
