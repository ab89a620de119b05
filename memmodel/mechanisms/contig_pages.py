"""Gigantic pages: contiguous ranges wherever they can be had."""

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.kernels import contig as kernels
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.contig import Contig, ContigOutcome, ContigRange, give_back, range_of
from memmodel.mechanisms.gigantic import gigantic_in, refuse_gigantic
from memmodel.mechanisms.request import highest_zone
from memmodel.mechanisms.tlb import Tlb
from memmodel.sources.gfp import parse_gfp
from memmodel.state.machine import Machine

__all__ = ["EBUSY", "alloc_contig_pages", "free_contig_range", "walk_zones"]

EBUSY, EINVAL = -16, -22
# Flags that say how hard to try, and what to do with the pages; those of zones and mobility are passed over.
HOW = {
    *("__GFP_IO", "__GFP_FS", "__GFP_DIRECT_RECLAIM", "__GFP_KSWAPD_RECLAIM"),
    *("__GFP_COMP", "__GFP_RETRY_MAYFAIL", "__GFP_NOWARN", "__GFP_ZERO", "__GFP_ZEROTAGS", "__GFP_SKIP_ZERO"),
}
PASSED_OVER = {
    *("__GFP_DMA", "__GFP_DMA32", "__GFP_HIGHMEM", "__GFP_MOVABLE", "__GFP_RECLAIMABLE"),
    *("__GFP_WRITE", "__GFP_HARDWALL", "__GFP_THISNODE"),
}


def alloc_contig_pages(  # noqa: PLR0913 - the kernel's arguments, and the machine's state, by keyword
    mem: Machine,
    nr_pages: int,
    *,
    gfp: str = "GFP_KERNEL",
    node: int = 0,
    cpu: int = 0,
    tlb: Tlb | None = None,
    fatal_signal: int | None = None,
    copy_batch: str = "extent",
    preempt: str | None = None,
    engine: str | None = None,
) -> ContigOutcome:
    """Contiguous pages wherever they can be had, as for a gigantic page; `alloc_hugetlb` makes one of them.

    The zones that the flags allow are walked from their start on in steps of the size. A range with a reserved page, a
    hugetlb page or a hole is passed over; CMA pageblocks are always busy.

    Parameters
    ----------
    mem
        Changed in place.
    nr_pages
        Pages; a power of two is aligned to itself.
    gfp
        Flags by name. With __GFP_COMP it is one compound page: the range must be a power of two, and no free block may
        reach beyond it. The model keeps its pages as single ones.
    node
        Preferred node; the others follow unless __GFP_THISNODE is given.
    cpu
        CPU that asks.
    tlb, copy_batch, preempt, engine
        As of `migrate_pages`.
    fatal_signal
        Batches of migration after which the task is killed; never if not given.

    Returns
    -------
    The range, or why there is none: of the last range tried.

    Raises
    ------
    InputError
        If an argument is outside its range, or the kernel would not survive what lies in a zone.

    References
    ----------
    mm/page_alloc.c: alloc_contig_pages, pfn_range_valid_contig, __alloc_contig_verify_gfp_mask, Linux 6.12.117.
    """
    nr_pages = whole_number(nr_pages, "nr_pages", 1, mem.pfns.n_pages)
    flags = parse_gfp(gfp)
    zonelist = mem.zonelist(node, highest_zone(mem.geometry, flags), this_node=flags.thisnode)
    if not zonelist.size:
        raise InputError(f"gfp {gfp!r}: no zone of this machine")
    copies = (copy_batch, preempt, engine)
    contig = Contig(mem, int(zonelist[0]), cpu, whole=flags.comp, tlb=tlb, fatal_signal=fatal_signal, copies=copies)
    if not flags.flags <= HOW | PASSED_OVER or (flags.comp and nr_pages & (nr_pages - 1)):
        return contig.outcome(EINVAL, None)
    return walk_zones(mem, contig, zonelist, nr_pages)


def walk_zones(mem: Machine, contig: Contig, zonelist: npt.NDArray[np.uint64], nr_pages: int) -> ContigOutcome:
    """The first range of these zones that can be had; nothing has changed where it is refused."""
    for zone in zonelist:
        contig.refuse(int(mem.state.zones[zone]["start"]), int(mem.state.zones[zone]["end"]))
    for zone in zonelist:
        contig.go_to(int(zone))
        pages = _walk_zone(mem, contig, int(zone), nr_pages)
        if pages is not None:
            return contig.outcome(0, pages)
    return contig.outcome(contig.errno or EBUSY, None)


def _walk_zone(mem: Machine, contig: Contig, zone: int, nr_pages: int) -> ContigRange | None:
    """The first range of the zone that can be had."""
    record = mem.state.zones[zone]
    start, n_spanned = int(mem.pfns.pfn(record["start"])), int(record["end"] - record["start"])
    pfn = (start + nr_pages - 1) & ~(nr_pages - 1)  # ALIGN(), which makes sense of powers of two only
    while start <= pfn + nr_pages - 1 < start + n_spanned:
        if pfn >= start:
            first = int(mem.index(pfn))
            if _may_be_contiguous(mem, zone, first, nr_pages) and contig.attempt(first, first + nr_pages) == 0:
                return ContigRange(pfn, nr_pages)
        pfn += nr_pages
    return None


def _may_be_contiguous(mem: Machine, zone: int, first: int, nr_pages: int) -> bool:
    """Whether a range is worth a try (pfn_range_valid_contig)."""
    if gigantic_in(mem, first, nr_pages) >= 0:
        return False
    rows = np.uint64(first), np.uint64(first + nr_pages)
    return bool(kernels.may_be_contiguous(mem.state, np.uint64(zone), *rows))


def free_contig_range(mem: Machine, pages: ContigRange, *, cpu: int = 0) -> None:
    """Give back what `alloc_contig_pages` got, or a part of it.

    Page by page through the CPU's lists; since 7.2 (feature contig_free_chunks) in the largest aligned blocks. A page
    with PG_hwpoison is not given back: it leaves the allocator.

    Raises
    ------
    InputError
        If not all of it is in use as single pages, or belongs to a folio, a gigantic page or a CMA area; nothing has
        been freed then.

    References
    ----------
    mm/page_alloc.c: free_contig_range, Linux 6.12.117 and 7.3.4.
    """
    on_cpu = mem.check_cpu(cpu)
    pfn, n_pages = range_of(pages)
    first = int(mem.index(pfn))
    mem.index(pfn + n_pages - 1)
    for area in mem.state.areas:
        if first < int(area["row"]) + int(area["n_pages"]) and first + n_pages > int(area["row"]):
            raise InputError(f"pfn {pfn}: of a CMA area; cma_release gives it back")
    refuse_gigantic(mem, first, "free_gigantic gives it back", n_pages)
    give_back(mem, first, n_pages, on_cpu)
