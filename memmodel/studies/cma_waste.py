"""CMA pools for drivers: how much memory they take, and how much of that nobody asked for.

A pool begins and ends on multiples of CMA_MIN_ALIGNMENT_BYTES, one pageblock as a rule; and in CMA memory the kernel
puts movable pages only.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.geometry import Geometry
from memmodel.mechanisms.memblock import MemoryMap
from memmodel.mechanisms.reserving import declare_contiguous
from memmodel.sources.spans import Span
from memmodel.studies.registry import Parameter, Params, Seeds, Study, points_of

__all__ = ["STUDY", "block", "pools"]

HUGE_PAGES = {"both": (True, True), "thp": (True, False), "hugetlb": (False, True), "none": (False, False)}
PARAMETERS = (
    Parameter("pool_kib", 4096, "Size of a pool as its driver asks for it.", "KiB", kind="int", range=(1, 1 << 32)),
    Parameter("n_pools", 1, "Pools of that size.", kind="int", range=(1, 256)),
    Parameter("page_size", "4KiB", "Base page size.", kind="choice", choices=("4KiB", "16KiB", "64KiB")),
    Parameter(
        "page_block_max_order",
        0,
        "Upper limit of the pageblock order (CONFIG_PAGE_BLOCK_MAX_ORDER). 0: none but the largest order.",
        kind="int",
        range=(0, 15),
    ),
    Parameter(
        "declared",
        "kernel",
        "How the pools are asked for. kernel: in code or on the boot line, which rounds up; device_tree: as a node, "
        "whose size has to fit as it is.",
        kind="choice",
        choices=("kernel", "device_tree"),
    ),
    Parameter(
        "huge_pages",
        "both",
        "Huge pages that the kernel is built with. They bring the pageblock order down to that of a PMD.",
        kind="choice",
        choices=tuple(HUGE_PAGES),
    ),
    Parameter("kernel", "7.3", "Kernel whose rules hold. Any X.Y[.Z].", kind="str"),
    Parameter("arch", "arm64", "Architecture.", kind="choice", choices=("arm64", "x86_64")),
    Parameter("size_mib", 4096, "Memory of the machine, none of it taken.", "MiB", kind="int", range=(16, 1 << 22)),
)
OUTPUTS = (
    *("pageblock_order", "cma_min_alignment_bytes", "cma_reserved_bytes", "cma_wasted_bytes", "cma_wasted_share"),
    *("non_cma_bytes", "n_pools_refused"),
)


def block(params: Params, seeds: Seeds) -> Mapping[str, npt.ArrayLike]:
    """Each point by itself: the pools one after the other, as the kernel places them. Nothing is random."""
    rows = [pools(point) for point in points_of(params)]
    return {name: np.array([row[name] for row in rows]) for name in OUTPUTS}


def pools(point: Mapping[str, Any]) -> dict[str, float]:
    """What one point comes to.

    Raises
    ------
    GeometryError
        If no kernel can be built like that.
    """
    thp, hugetlb = HUGE_PAGES[point["huge_pages"]]
    geo = Geometry(
        page_size=point["page_size"],
        arch=point["arch"],
        kernel=point["kernel"],
        transparent_hugepage=thp,
        hugetlb=hugetlb,
        page_block_max_order=point["page_block_max_order"] or None,
    )
    memory: MemoryMap | None = MemoryMap((Span(geo.ram_start_bytes, point["size_mib"] << 20),))
    wanted, reserved, wasted, refused = point["pool_kib"] << 10, 0, 0, 0
    for number in range(point["n_pools"]):
        fits = point["declared"] == "kernel" or wanted % geo.cma_min_alignment_bytes == 0
        area, left = declare_contiguous(geo, wanted, memory, name=f"pool{number}")
        if not (fits and area.accepted):
            refused += 1
            continue
        memory, reserved, wasted = left, reserved + area.size_bytes, wasted + area.wasted_bytes
    return {
        "pageblock_order": geo.pageblock_order,
        "cma_min_alignment_bytes": geo.cma_min_alignment_bytes,
        "cma_reserved_bytes": reserved,
        "cma_wasted_bytes": wasted,
        "cma_wasted_share": wasted / reserved if reserved else 0.0,
        "non_cma_bytes": (point["size_mib"] << 20) - reserved,
        "n_pools_refused": refused,
    }


STUDY = Study(
    name="cma_waste",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/cma.c, kernel/dma/contiguous.c (Linux 6.1 to 7.3); the PAGE_BLOCK_ORDER patch (Linux 6.16)",
)
