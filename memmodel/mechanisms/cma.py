"""CMA: areas reserved at boot, contiguous allocations from them, and their release."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import GeometryError, InputError
from memmodel.kernels import cma as kernels
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.contig import Contig, ContigOutcome, ContigRange, give_back, range_of
from memmodel.mechanisms.gigantic import refuse_gigantic
from memmodel.mechanisms.tlb import Tlb
from memmodel.state.build import with_area
from memmodel.state.layout import NONE, Vmstat, ZoneType
from memmodel.state.machine import Machine
from memmodel.units import format_bytes, parse_bytes

__all__ = ["CMA_ALIGNMENT", "CmaArea", "cma_alloc", "cma_areas", "cma_heap_alloc", "cma_release", "cma_reserve"]

ENOMEM, EBUSY = -12, -16
CMA_ALIGNMENT = 8
"""CONFIG_CMA_ALIGNMENT: the order beyond which buffers are not aligned."""
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


@dataclass
class _Bitmap:
    """The bits of an area."""

    mem: Machine
    number: int

    @property
    def words(self) -> npt.NDArray[np.uint64]:
        area = self.mem.state.areas[self.number]
        first = int(area["first_word"])
        return self.mem.state.area_bits[first : first + -(-self.n_bits // 64)]

    @property
    def n_bits(self) -> int:
        area = self.mem.state.areas[self.number]
        return int(area["n_pages"]) >> int(area["order_per_bit"])

    def write(self, first: int, n_bits: int, value: bool) -> None:
        """Set or clear bits; available_count follows."""
        kernels.write_bits(self.words, np.uint64(first), np.uint64(first + n_bits), value)
        area = self.mem.state.areas[self.number]
        n_pages = n_bits << int(area["order_per_bit"])
        area["available"] = int(area["available"]) - (n_pages if value else -n_pages)


def cma_alloc(  # noqa: PLR0913 - the kernel's arguments, and the machine's state, by keyword
    mem: Machine,
    area: CmaArea,
    nr_pages: int,
    align_order: int = 0,
    *,
    cpu: int = 0,
    tlb: Tlb | None = None,
    fatal_signal: int | None = None,
    copy_batch: str = "extent",
    preempt: str | None = None,
    engine: str | None = None,
) -> ContigOutcome:
    """Contiguous pages from a CMA area: whoever has them moves away.

    The first range whose bits are clear is tried; while one is busy, the next one behind it by the alignment.

    Parameters
    ----------
    mem
        Changed in place; cma_alloc_success and cma_alloc_fail count, and pgmigrate_* what moves.
    area
        As `cma_reserve` gave it.
    nr_pages
        Pages. The bitmap holds whole bits, but pages beyond `nr_pages` stay with the allocator.
    align_order
        Order to which the first page is aligned, absolutely.
    cpu
        CPU that asks.
    fatal_signal
        Batches of migration after which the task is killed; never if not given.
    tlb, copy_batch, preempt, engine
        As of `migrate_pages`.

    Returns
    -------
    The pages, or why there are none: of the last range tried.

    Raises
    ------
    InputError
        If the area or a number is none, or the kernel would not survive an error in what lies in the area.

    Notes
    -----
    Targets come from the free lists: neither reclaim nor compaction makes room for them.

    References
    ----------
    mm/cma.c: cma_alloc, Linux 6.1.192, 6.12.117, 7.3.4 (features cma_oversize_uncounted, cma_available_count).
    """
    row = area_row(mem, area)
    nr_pages = whole_number(nr_pages, "nr_pages", 1, 1 << 40)
    align = whole_number(align_order, "align_order", 0, 40)
    copies = (copy_batch, preempt, engine)
    zone = int(mem.state.areas[area.number]["zone"])
    contig = Contig(mem, zone, cpu, cma=True, tlb=tlb, fatal_signal=fatal_signal, copies=copies)
    contig.refuse(row, row + area.n_pages)
    counts_left = "cma_available_count" in mem.geometry.features
    oversized = -(-nr_pages >> area.order_per_bit) > area.n_pages >> area.order_per_bit
    errno, first = EBUSY if counts_left else ENOMEM, -1
    if not oversized:
        first = _try_ranges(mem, area, contig, nr_pages, align, counts_left)
        errno = contig.errno if contig.n_attempts else errno
    if first >= 0:
        mem.state.vmstat[Vmstat.CMA_ALLOC_SUCCESS] += 1
        return contig.outcome(0, ContigRange(int(mem.pfns.pfn(first)), nr_pages))
    if not oversized or counts_left or "cma_oversize_uncounted" not in mem.geometry.features:
        mem.state.vmstat[Vmstat.CMA_ALLOC_FAIL] += 1
    return contig.outcome(errno, None)


def _try_ranges(mem: Machine, area: CmaArea, contig: Contig, nr_pages: int, align: int, counts_left: bool) -> int:
    """First row of the range that was had, or -1."""
    per_bit, bitmap = area.order_per_bit, _Bitmap(mem, area.number)
    row = int(mem.state.areas[area.number]["row"])
    mask = (1 << align - per_bit) - 1 if align > per_bit else 0
    offset = (area.pfn & ((1 << align) - 1)) >> per_bit
    n_bits, wanted, start = bitmap.n_bits, -(-nr_pages >> per_bit), 0
    while not counts_left or nr_pages <= mem.state.areas[area.number]["available"]:
        found = kernels.find_zero_area(bitmap.words, *(np.uint64(n) for n in (n_bits, start, wanted, mask, offset)))
        if found >= n_bits:
            break
        bit = int(found)
        bitmap.write(bit, wanted, True)
        first = row + (bit << per_bit)
        errno = contig.attempt(first, first + nr_pages)
        if errno == 0:
            return first
        bitmap.write(bit, wanted, False)
        if errno != EBUSY:
            break
        start = bit + mask + 1
    return -1


def area_row(mem: Machine, area: CmaArea) -> int:
    """First row of an area.

    Raises
    ------
    InputError
        If the memory has no such area.
    """
    if not isinstance(area, CmaArea) or area not in cma_areas(mem):
        raise InputError(f"{area!r} is no CMA area of this memory; it has {len(mem.state.areas)}")
    return int(mem.state.areas[area.number]["row"])


def cma_release(mem: Machine, area: CmaArea, pages: ContigRange, *, cpu: int = 0) -> None:
    """Give back what `cma_alloc` got, or a part of it.

    Page by page through the CPU's lists of MOVABLE pages, where they linger; since 7.2 (feature contig_free_chunks) in
    the largest aligned blocks. A page with PG_hwpoison is not given back: it leaves the allocator.

    Raises
    ------
    InputError
        If not all of it is allocated from this area, or a part of a gigantic page; nothing has been freed then.

    References
    ----------
    mm/cma.c: cma_release; mm/page_alloc.c: free_contig_range, Linux 6.12.117 and 7.3.4.
    """
    row = area_row(mem, area)
    on_cpu = mem.check_cpu(cpu)
    pfn, n_pages = range_of(pages)
    if pfn < area.pfn or pfn + n_pages > area.pfn + area.n_pages:
        raise InputError(f"pfns {pfn} to {pfn + n_pages - 1} are outside CMA area {area.number}")
    refuse_gigantic(mem, row + pfn - area.pfn, "free_gigantic gives it back", n_pages)
    bitmap, bit = _Bitmap(mem, area.number), pfn - area.pfn >> area.order_per_bit
    n_bits = -(-n_pages >> area.order_per_bit)
    clear = int(kernels.first_clear(bitmap.words, np.uint64(bit), np.uint64(bit + n_bits)))
    if clear < bit + n_bits:
        raise InputError(f"pfn {area.pfn + (clear << area.order_per_bit)} is not allocated: freed before, or never")
    give_back(mem, row + pfn - area.pfn, n_pages, on_cpu)
    cma_forget(mem, area.number, row + pfn - area.pfn, n_pages)


def is_cma_allocated(mem: Machine, row: int) -> bool:
    """Whether an allocation from a CMA area holds a row."""
    for number, area in enumerate(mem.state.areas):
        first, end = int(area["row"]), int(area["row"]) + int(area["n_pages"])
        if first <= row < end:
            bit = np.uint64(row - first >> int(area["order_per_bit"]))
            return bool(kernels.first_clear(_Bitmap(mem, number).words, bit, bit + np.uint64(1)) != bit)
    return False


def cma_forget(mem: Machine, number: int, row: int, n_pages: int) -> None:
    """Clear the bits of pages that have been freed (cma_clear_bitmap)."""
    area = mem.state.areas[number]
    per_bit = int(area["order_per_bit"])
    _Bitmap(mem, number).write(row - int(area["row"]) >> per_bit, -(-n_pages >> per_bit), False)


def cma_heap_alloc(
    mem: Machine, area: CmaArea, size: int | str, *, cma_alignment: int = CMA_ALIGNMENT, cpu: int = 0
) -> ContigOutcome:
    """A buffer of the dma-buf CMA heap: all of it in one piece, aligned to its order up to CONFIG_CMA_ALIGNMENT.

    Parameters
    ----------
    mem, area, cpu
        As of `cma_alloc`.
    size
        Bytes, or text; rounded up to whole pages.
    cma_alignment
        CONFIG_CMA_ALIGNMENT, 2 to 12.

    Raises
    ------
    InputError
        If the size is none, or as of `cma_alloc`.

    References
    ----------
    drivers/dma-buf/heaps/cma_heap.c: cma_heap_allocate, Linux 6.12.
    """
    n_pages = -(-parse_bytes(size) // mem.geometry.page_size_bytes)
    most = whole_number(cma_alignment, "cma_alignment", 2, 12, "CONFIG_CMA_ALIGNMENT")
    return cma_alloc(mem, area, n_pages, min((n_pages - 1).bit_length(), most), cpu=cpu)
