"""CMA: contiguous allocations from areas, and their release."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.kernels import cma as kernels
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.cma_areas import CmaArea, cma_areas
from memmodel.mechanisms.contig import Contig, ContigOutcome, ContigRange, give_back, range_of
from memmodel.mechanisms.gigantic import refuse_gigantic
from memmodel.mechanisms.tlb import Tlb
from memmodel.state.layout import Kind, Vmstat
from memmodel.state.machine import Machine

__all__ = ["cma_alloc", "cma_release"]

ENOMEM, EBUSY = -12, -16


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
        If not all of it is allocated from this area, or a part of a gigantic page; or of a bit that it clears other
        pages are, which the kernel would lose. Nothing has been freed then.

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
    _refuse_parts(mem, area, row, pfn, n_pages)
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


def _refuse_parts(mem: Machine, area: CmaArea, row: int, pfn: int, n_pages: int) -> None:
    """Refuse a part of a bit whose other pages are allocated: they could not be given back any more."""
    unit = 1 << area.order_per_bit
    first, end = pfn - area.pfn, pfn - area.pfn + n_pages
    beside = np.concatenate([np.arange(first // unit * unit, first), np.arange(end, -(-end // unit) * unit)])
    rows = row + beside
    held = beside[(mem.state.pages["state"][rows] == Kind.USED << 4) & (mem.handles(rows) < 0)]
    if held.size:
        raise InputError(
            f"pfn {area.pfn + int(held[0])} is of the same bit (order_per_bit {area.order_per_bit}) and stays allocated"
        )
