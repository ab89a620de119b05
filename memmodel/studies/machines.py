"""The memories that points of a study begin with, and the parameters that studies share."""

from collections.abc import Callable, Mapping
from typing import Any

from memmodel.geometry import Geometry
from memmodel.memory import PhysicalMemory
from memmodel.studies.registry import Parameter

__all__ = ["KERNEL", "Starts", "first_state", "memory_of", "page_block_max_order"]

Starts = dict[tuple[Any, ...], tuple[PhysicalMemory, PhysicalMemory]]
"""By what describes it: a memory in its first state, and one that points change."""

KERNEL = Parameter("kernel", "6.12.117", "Kernel whose rules hold. Any X.Y[.Z].", kind="str")


def page_block_max_order(lowest: int = 0) -> Parameter:
    """The limit, from this order on."""
    doc = "Upper limit of the pageblock order (CONFIG_PAGE_BLOCK_MAX_ORDER). The order that comes of it is an output."
    return Parameter("page_block_max_order", 10, doc, kind="int", range=(lowest, 15))


def first_state(key: tuple[Any, ...], starts: Starts, build: Callable[[], PhysicalMemory]) -> PhysicalMemory:
    """A memory in its first state, in the arrays of the last point that had one like it."""
    if key not in starts:
        start = build()
        starts.clear()  # one machine at a time: large ones add up
        starts[key] = start, start.copy()
    start, mem = starts[key]
    mem.restore(start)
    return mem


def memory_of(point: Mapping[str, Any], starts: Starts) -> PhysicalMemory:
    """That of a point, which says its page size, kernel, limit of the pageblock order and size."""
    page_size, kernel, limit, size_mib = key = tuple(
        point[name] for name in ("page_size", "kernel", "page_block_max_order", "size_mib")
    )

    def build() -> PhysicalMemory:
        geometry = Geometry(page_size=page_size, kernel=kernel, page_block_max_order=limit)
        return PhysicalMemory(geometry, size_mib << 20, seed=0)

    return first_state(key, starts, build)
