"""The hugetlb pool: huge pages of the buddy allocator, and gigantic ones, made of contiguous ranges."""

from collections.abc import Mapping

import numpy as np

from memmodel.errors import GeometryError, InputError
from memmodel.mechanisms.buddy import MAX_COUNT, NO_STEPS, Asked, allocate, given_back, whole_number
from memmodel.mechanisms.cma_areas import CmaArea
from memmodel.mechanisms.gigantic_pool import GiganticOutcome, grow
from memmodel.mechanisms.policies import CompactPolicy, KswapdPolicy, ReclaimPolicy, Steps
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import HANDLE_SLOT, FolioBit, Vmstat
from memmodel.state.machine import Handles, Machine
from memmodel.units import parse_bytes

__all__ = ["alloc_hugetlb", "pool_folios"]


def alloc_hugetlb(  # noqa: PLR0913 - where and with what, by keyword
    mem: Machine,
    count: int,
    node: int | None = None,
    *,
    size: int | str | None = None,
    movable: bool = True,
    cpu: int = 0,
    reclaim: ReclaimPolicy | None = None,
    compact: CompactPolicy | None = None,
    trace: list[str] | None = None,
    kswapd: KswapdPolicy | None = None,
    cma: Mapping[int, CmaArea] | None = None,
) -> Handles | GiganticOutcome:
    """Add `count` huge pages to the hugetlb pool, as a write to nr_hugepages does.

    Nodes take turns, each request stays on its node. A node that could not give one is not tried as hard until it
    gives one again (without __GFP_RETRY_MAYFAIL). The pool stops growing when no node gives a page.

    Sizes beyond MAX_PAGE_ORDER are gigantic: each page is a range of the node's CMA area in `cma`, else the first range
    of the node that can be emptied (`alloc_contig_pages`), never of ZONE_MOVABLE.

    Parameters
    ----------
    mem
        Changed in place; htlb_buddy_alloc_success and htlb_buddy_alloc_fail count, but for gigantic pages.
    count
        Huge pages wanted.
    node
        That node alone; all of them, from the lowest on, if not given.
    size
        Of a huge page: bytes, or text such as "2MiB"; that of a PMD if not given.
    movable
        Whether pages of that size can be migrated (hugepage_migration_supported); they may lie in ZONE_MOVABLE then.
        Gigantic ones never do.
    cpu
        CPU that asks.
    reclaim, compact, trace, kswapd
        As of `alloc_pages`. A gigantic page asks none of them.
    cma
        The nodes' areas for gigantic pages (hugetlb_cma=), by node.

    Returns
    -------
    Folio handles, int64, shape ``(count,)``; -1 for those that could not be had. `free_pages` gives them back: past the
    per-CPU lists, but for the PMD order of a kernel with transparent huge pages. They are free ones of the pool:
    `set_folio` says who maps them. Of a gigantic size a `GiganticOutcome`, whose pages are no folios: they are neither
    mapped nor moved, and `free_gigantic` gives them back.

    Raises
    ------
    InputError
        If the kernel has no hugetlb, or none that is gigantic; if no huge page has that size, an area is not of its
        node, an argument is outside its range, or the kernel would not survive a latent error in what it moves; nothing
        has changed then.

    References
    ----------
    mm/hugetlb.c: set_max_huge_pages, alloc_pool_huge_folio, alloc_buddy_hugetlb_folio, alloc_gigantic_folio, Linux
    6.12; alloc_gigantic_page, 6.1. The kernel goes on with the node after the last one of the write before; here each
    call begins with the lowest. vm.movable_gigantic_pages (7.x) is 0.
    """
    order = hugetlb_order(mem, size)
    if order > mem.geometry.max_page_order:
        nodes = mem.nodes if node is None else [node]
        return grow(mem, whole_number(count, "count", 0, MAX_COUNT), order, nodes, cma or {}, cpu)
    if cma:
        raise InputError(f"cma belongs to gigantic pages; order {order} is of the buddy allocator")
    return pool_folios(mem, count, node, order, movable, cpu, Steps(reclaim, compact, trace, kswapd))


def pool_folios(
    mem: Machine,
    count: int,
    node: int | None = None,
    order: int | None = None,
    movable: bool = True,
    cpu: int = 0,
    steps: Steps = NO_STEPS,
) -> Handles:
    """Handles of huge pages that the buddy allocator gives, of the PMD order if not said."""
    if order is None:
        order = hugetlb_order(mem, None)
    count = whole_number(count, "count", 0, MAX_COUNT)
    nodes = mem.nodes if node is None else [node]
    easily = f"{'GFP_HIGHUSER_MOVABLE' if movable else 'GFP_HIGHUSER'}|__GFP_COMP|__GFP_NOWARN|__GFP_THISNODE"
    flags = {True: parse_gfp(f"{easily}|__GFP_RETRY_MAYFAIL"), False: parse_gfp(easily)}
    try_hard = dict.fromkeys(nodes, True)
    handles = np.full(count, -1, np.int64)
    vmstat = mem.state.vmstat
    turn = 0
    with given_back(mem, handles, cpu):
        for number in range(count):
            for _ in nodes:
                here = nodes[turn % len(nodes)]
                turn += 1
                handles[number] = allocate(mem, Asked(order, flags[try_hard[here]], here, cpu), 1, steps)[0]
                try_hard[here] = bool(handles[number] >= 0)
                vmstat[Vmstat.HTLB_BUDDY_ALLOC_SUCCESS if try_hard[here] else Vmstat.HTLB_BUDDY_ALLOC_FAIL] += 1
                if try_hard[here]:
                    break
            else:
                break
    slots = handles[handles >= 0] & HANDLE_SLOT
    mem.state.folios["bits"][slots] |= np.uint32(FolioBit.HUGETLB)
    mem.state.folios["mms"][slots] = 0
    return handles


def hugetlb_order(mem: Machine, size: int | str | None) -> int:
    """Order of huge pages of that size.

    Raises
    ------
    InputError
        If the kernel has no hugetlb, or no huge page has that size.
    """
    if not mem.geometry.hugetlb:
        raise GeometryError("this kernel has no hugetlb pages (CONFIG_HUGETLB_PAGE)")
    page = mem.geometry.page_size_bytes
    size_bytes = page << mem.geometry.hpage_pmd_order if size is None else parse_bytes(size)
    order = (size_bytes // page).bit_length() - 1
    if order < 1 or size_bytes != page << order:
        raise InputError(f"huge pages of {size!r}; a power of two of pages, two or more, is possible")
    return order
