"""The hugetlb pool."""

import numpy as np

from memmodel.errors import GeometryError, InputError
from memmodel.mechanisms.buddy import MAX_COUNT, Asked, allocate, whole_number
from memmodel.mechanisms.policies import CompactPolicy, KswapdPolicy, ReclaimPolicy, Steps
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import HANDLE_SLOT, FolioBit, Vmstat
from memmodel.state.machine import Handles, Machine
from memmodel.units import parse_bytes

__all__ = ["alloc_hugetlb"]


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
) -> Handles:
    """Add `count` huge pages to the hugetlb pool, as a write to nr_hugepages does.

    Nodes take turns, each request stays on its node. A node that could not give one is not tried as hard until it
    gives one again (without __GFP_RETRY_MAYFAIL). The pool stops growing when no node gives a page.

    Parameters
    ----------
    mem
        Changed in place; htlb_buddy_alloc_success and htlb_buddy_alloc_fail count.
    count
        Huge pages wanted.
    node
        That node alone; all of them, from the lowest on, if not given.
    size
        Of a huge page: bytes, or text such as "2MiB"; that of a PMD if not given.
    movable
        Whether pages of that size can be migrated (hugepage_migration_supported); they may lie in ZONE_MOVABLE then.
    cpu
        CPU that asks.
    reclaim, compact, trace, kswapd
        As of `alloc_pages`.

    Returns
    -------
    Folio handles, int64, shape ``(count,)``; -1 for those that could not be had. `free_pages` gives them back: past the
    per-CPU lists, but for the PMD order of a kernel with transparent huge pages. They are free ones of the pool:
    `set_folio` says who maps them.

    Raises
    ------
    InputError
        If the kernel has no hugetlb, the size is none of a folio, or an argument is outside its range. Gigantic pages,
        beyond MAX_PAGE_ORDER, come from contiguous ranges and are not modelled.

    References
    ----------
    mm/hugetlb.c: set_max_huge_pages, alloc_pool_huge_folio, alloc_buddy_hugetlb_folio, Linux 6.12. The kernel goes on
    with the node after the last one of the write before; here each call begins with the lowest.
    """
    if not mem.geometry.hugetlb:
        raise GeometryError("this kernel has no hugetlb pages (CONFIG_HUGETLB_PAGE)")
    count = whole_number(count, "count", 0, MAX_COUNT)
    order = hugetlb_order(mem, size)
    nodes = mem.nodes if node is None else [node]
    easily = f"{'GFP_HIGHUSER_MOVABLE' if movable else 'GFP_HIGHUSER'}|__GFP_COMP|__GFP_NOWARN|__GFP_THISNODE"
    flags = {True: parse_gfp(f"{easily}|__GFP_RETRY_MAYFAIL"), False: parse_gfp(easily)}
    try_hard = dict.fromkeys(nodes, True)
    handles = np.full(count, -1, np.int64)
    vmstat = mem.state.vmstat
    turn = 0
    for number in range(count):
        for _ in nodes:
            here = nodes[turn % len(nodes)]
            turn += 1
            asked = Asked(order, flags[try_hard[here]], here, cpu)
            if order > mem.geometry.max_page_order:
                handles[number] = alloc_gigantic(mem, asked)
            else:
                handles[number] = allocate(mem, asked, 1, Steps(reclaim, compact, trace, kswapd))[0]
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


def alloc_gigantic(mem: Machine, asked: Asked) -> int:
    """Handle of a huge page beyond MAX_PAGE_ORDER, which alloc_contig_pages() would make of a range.

    Raises
    ------
    InputError
        Always: no range can be allocated yet.
    """
    most = mem.geometry.max_page_order
    raise InputError(f"huge pages of order {asked.order} are gigantic (MAX_PAGE_ORDER {most}): not modelled")


def hugetlb_order(mem: Machine, size: int | str | None) -> int:
    """Order of huge pages of that size.

    Raises
    ------
    InputError
        If no folio has it.
    """
    page = mem.geometry.page_size_bytes
    size_bytes = page << mem.geometry.hpage_pmd_order if size is None else parse_bytes(size)
    order = (size_bytes // page).bit_length() - 1
    if order < 1 or size_bytes != page << order:
        raise InputError(f"huge pages of {size!r}; a power of two of pages, two or more, is possible")
    return order
