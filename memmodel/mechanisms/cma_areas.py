"""CMA areas of a memory: which there are, and free memory made one."""

from typing import NamedTuple

import numpy as np

from memmodel.errors import GeometryError, InputError
from memmodel.kernels import cma as kernels
from memmodel.mechanisms.buddy import whole_number
from memmodel.state.build import with_area
from memmodel.state.layout import NONE, MigrateType, ZoneType, block_types
from memmodel.state.machine import Machine
from memmodel.units import format_bytes, parse_bytes

__all__ = ["CmaArea", "cma_areas", "cma_reserve"]

MAX_ORDER_PER_BIT = 30


class CmaArea(NamedTuple):
    """An area, as its users name it."""

    number: int
    pfn: int
    n_pages: int
    order_per_bit: int


def cma_areas(mem: Machine) -> tuple[CmaArea, ...]:
    """All areas of a memory, in the order in which they were reserved."""
    return tuple(
        CmaArea(number, int(mem.pfns.pfn(area["row"])), int(area["n_pages"]), int(area["order_per_bit"]))
        for number, area in enumerate(mem.state.areas)
    )


def cma_reserve(
    mem: Machine,
    size: int | str,
    alignment: int | str | None = None,
    base: int | str | None = None,
    *,
    order_per_bit: int = 0,
    cpu: int = 0,
) -> CmaArea:
    """Make free memory a CMA area, as boot does: reserved, its pageblocks CMA, and freed one by one.

    Parameters
    ----------
    mem
        Changed in place.
    size, base
        Bytes, or text such as "64MiB": multiples of CMA_MIN_ALIGNMENT_BYTES. Without a base it is the highest place
        with free memory of one zone.
    alignment
        Of the base, where it is chosen: a power of two, at least CMA_MIN_ALIGNMENT_BYTES.
    order_per_bit
        A bit of its bitmap stands for ``2**order_per_bit`` pages.
    cpu
        CPU that does it: a pageblock of the PMD order goes by way of its lists.

    Returns
    -------
    The area.

    Raises
    ------
    GeometryError
        If the kernel has no CMA.
    InputError
        If base or size are no such multiples (the kernel says -EINVAL), or the memory is not free, or of two zones.

    Notes
    -----
    Only base and size as given: how they are rounded or refused before, by device tree or command line, comes first.
    On a machine that has not run, the free lists are as if the area had never been free memory.

    References
    ----------
    mm/cma.c: cma_init_reserved_mem, cma_activate_area; mm/mm_init.c: init_cma_reserved_pageblock, Linux 6.12.117.
    """
    if not mem.geometry.cma:
        raise GeometryError("this kernel has no CMA (CONFIG_CMA)")
    least, page = mem.geometry.cma_min_alignment_bytes, mem.geometry.page_size_bytes
    on_cpu = mem.check_cpu(cpu)
    per_bit = whole_number(order_per_bit, "order_per_bit", 0, MAX_ORDER_PER_BIT)
    unit = max(least, page << per_bit)
    n_bytes = _multiple(size, "size", unit)
    if base is None:
        step = unit if alignment is None else parse_bytes(alignment, "alignment")
        if step.bit_count() != 1 or step < unit:
            raise InputError(f"alignment {alignment!r}; a power of two of at least {format_bytes(unit)} is possible")
        zone, first = _highest_free(mem, n_bytes // page, step // page)
    else:
        if alignment is not None:
            raise InputError("alignment belongs to an area without a base")
        first = int(mem.index(_multiple(base, "base", unit) // page))
        zone = int(mem.state.pages["zone"][first])
    rows = np.uint64(first), np.uint64(first + n_bytes // page)
    _refuse_used(mem, zone, *rows)
    _unreserve_highatomic(mem, zone, *rows)
    kernels.reserve_rows(mem.state, np.uint64(zone), on_cpu, *rows)
    kernels.activate_area(mem.state, np.uint64(zone), on_cpu, *rows)
    mem.state = with_area(mem.state, first, n_bytes // page, per_bit, zone)
    return cma_areas(mem)[-1]


def _multiple(value: int | str, what: str, unit: int) -> int:
    """Bytes that are a multiple of the unit."""
    n_bytes = parse_bytes(value, what)
    if n_bytes % unit:
        raise InputError(
            f"{what} {format_bytes(n_bytes)}; a CMA area needs a multiple of {format_bytes(unit)} (-EINVAL)"
        )
    return n_bytes


def _highest_free(mem: Machine, n_pages: int, step: int) -> tuple[int, int]:
    """(zone, first row) of the highest free memory of that length and alignment."""
    zones = mem.state.zones
    for zone in np.argsort(-zones["end"].astype(np.int64)).tolist():
        if zones[zone]["zone_type"] == ZoneType.MOVABLE:
            continue
        start, end = (int(mem.pfns.pfn(row)) for row in (zones[zone]["start"], zones[zone]["end"] - np.uint64(1)))
        pfn = (end + 1 - n_pages) // step * step
        while pfn >= start:
            first = int(mem.index(pfn))
            used = kernels.last_not_free(mem.state, np.uint64(first), np.uint64(first + n_pages))
            if used == NONE:
                return zone, first
            pfn = (min(int(mem.pfns.pfn(used)), pfn + n_pages - 1) - n_pages) // step * step
    raise InputError(f"no zone has {n_pages} free pages in a row, aligned to {step}")


def _refuse_used(mem: Machine, zone: int, first: np.uint64, end: np.uint64) -> None:
    """Refuse rows that are not free memory of one zone."""
    record = mem.state.zones[zone]
    if first < record["start"] or end > record["end"]:
        raise InputError(f"pfn {int(mem.pfns.pfn(first))}: the area does not lie in one zone")
    for area in cma_areas(mem):
        row = int(mem.index(area.pfn))
        if first < row + area.n_pages and end > row:
            raise InputError(f"pfn {int(mem.pfns.pfn(first))}: CMA area {area.number} lies there")
    used = kernels.last_not_free(mem.state, first, end)
    if used != NONE:
        raise InputError(f"pfn {int(mem.pfns.pfn(used))} is not free: a CMA area is reserved before memory is used")


def _unreserve_highatomic(mem: Machine, zone: int, first: np.uint64, end: np.uint64) -> None:
    """Pageblocks kept for urgent requests count as such no more."""
    shift, record = np.uint64(mem.geometry.pageblock_order), mem.state.zones[zone]
    types = block_types(mem.state.blocks[first >> shift : end >> shift])
    kept = int(np.count_nonzero(types == MigrateType.HIGHATOMIC)) << int(shift)
    record["reserved_highatomic"] -= min(kept, int(record["reserved_highatomic"]))
