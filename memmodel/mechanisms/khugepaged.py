"""khugepaged: the small pages of a range become one huge page."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.kernels import lru
from memmodel.kernels.copying import Status
from memmodel.mechanisms.buddy import Asked, allocate, as_handles, folio_rows, free_pages
from memmodel.mechanisms.copying import CopyOutcome, copy_pages, has_error, page_rule
from memmodel.mechanisms.huge_pages import pmd_order_of
from memmodel.mechanisms.policies import CompactPolicy, ReclaimPolicy, Steps, refuse_compaction
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import HANDLE_SLOT, MAPPING_SHIFT, FolioBit, Mapping, PageFlag, Vmstat
from memmodel.state.machine import Machine

__all__ = ["Collapse", "khugepaged_collapse"]

GFP = {True: "GFP_TRANSHUGE", False: "GFP_TRANSHUGE_LIGHT"}
NOT_PLAIN = (
    *(FolioBit.LOCKED, FolioBit.WRITEBACK, FolioBit.FILE, FolioBit.MLOCKED, FolioBit.HUGETLB, FolioBit.SWAPCACHE),
    *(FolioBit.INACCESSIBLE, FolioBit.ORPHAN, FolioBit.POISON_ENTRIES, FolioBit.UNMAP_FAILS),
)
ANONYMOUS = (Mapping.UNSAID, Mapping.ANON)


@dataclass(frozen=True, eq=False)
class Collapse:
    """What became of one range."""

    result: str
    """"succeed", "alloc_huge_page_fail", "copy_mc" (a page has an error: all stays as it was) or "panic" (the machine
    would have stopped)."""
    folio: int
    """Handle of the huge page; -1: none."""
    node: int
    """The node it was asked for on: that of most of the pages."""
    asked: tuple[int, str]
    """Order and gfp flags."""
    n_copied: int
    """Pages copied."""
    n_cleared: int
    """Pages that were absent, and are zero in the huge page."""
    copy: CopyOutcome | None
    """By page copied; None where no huge page came."""
    pageblock_order: int
    """The effective one."""
    page_block_max_order: int | None
    """The limit that was asked for; None: none."""


def khugepaged_collapse(
    mem: Machine,
    folios: npt.ArrayLike,
    *,
    defrag: bool = True,
    engine: str | None = None,
    cpu: int = 0,
    reclaim: ReclaimPolicy | None = None,
    compact: CompactPolicy | None = None,
) -> Collapse:
    """Put the pages of one huge page's range of anonymous memory into a huge page.

    Whether a range is worth it (scan_sleep_millisecs, max_ptes_none, max_ptes_shared, young pages) is the caller's to
    say. All CPUs' LRU-add batches are emptied first. The pages are copied one by one, absent ones cleared; then the old
    pages are freed in their order, each at once.

    Parameters
    ----------
    mem
        Changed in place; thp_collapse_alloc and thp_collapse_alloc_failed count.
    folios
        Handles of single pages in the order of their addresses, -1 for an absent one, shape ``(HPAGE_PMD_NR,)``. They
        are stale where the result is "succeed".
    defrag
        khugepaged/defrag: whether it may reclaim and compact.
    engine
        As of `folio_mc_copy`.
    cpu
        Where khugepaged runs.
    reclaim, compact
        As of `alloc_pages`.

    Raises
    ------
    InputError
        If a handle is stale or comes twice, the number is another or all are absent; or if a page is what khugepaged is
        not modelled for: part of a large folio, of a file, shared, pinned, locked, on no LRU list; pages of several
        nodes, equally many on each; before 6.12 a latent error in a page; or as of `alloc_pages`; or if there is no
        such engine or CPU. Nothing has changed then.

    References
    ----------
    mm/khugepaged.c: collapse_huge_page, alloc_charge_folio, __collapse_huge_page_copy, Linux 6.12. Files
    (collapse_file) are not modelled.
    """
    order, on_cpu = pmd_order_of(mem), mem.check_cpu(cpu)
    page_rule(mem, engine)  # refused before anything changes
    handles = as_handles(folios)
    present, rows = _checked(mem, handles, 1 << order)
    node = _node_of(mem, rows)
    geo, asked = mem.geometry, (order, GFP[bool(defrag)])
    gfp = parse_gfp(f"{asked[1]}|__GFP_THISNODE")  # a nodemask of that node alone
    steps = Steps(reclaim, compact)
    refuse_compaction(mem, steps, gfp, order)
    for number in range(mem.cpus):
        lru.drain_lru(mem.state, np.uint64(number))
    folio = int(allocate(mem, Asked(order, gfp, node, int(on_cpu), lru=True), 1, steps)[0])
    mem.state.vmstat[Vmstat.THP_COLLAPSE_ALLOC if folio >= 0 else Vmstat.THP_COLLAPSE_ALLOC_FAILED] += 1
    limits = (geo.pageblock_order, geo.page_block_max_order)
    if folio < 0:
        return Collapse("alloc_huge_page_fail", -1, node, asked, 0, 0, None, *limits)
    target = int(folio_rows(mem, folio)[0][0])
    copy = copy_pages(mem, np.uint64(target) + present.astype(np.uint64), rows, engine=engine, cpu=cpu)
    n_copied = int(np.count_nonzero(copy.status == Status.COPIED))
    if n_copied < rows.size:
        free_pages(mem, folio, cpu=cpu)
        result = "panic" if copy.status[-1] == Status.PANIC else "copy_mc"
        return Collapse(result, -1, node, asked, n_copied, 0, copy, *limits)
    absent = np.flatnonzero(handles < 0)
    if mem.state.contents.size:
        mem.state.contents[target + absent] = 0
    table = mem.state.folios
    table["mms"][folio & HANDLE_SLOT] = table["mms"][handles[present[0]] & HANDLE_SLOT]
    free_pages(mem, handles[present], cpu=cpu)
    return Collapse("succeed", folio, node, asked, n_copied, absent.size, copy, *limits)


def _checked(
    mem: Machine, handles: npt.NDArray[np.int64], n_pages: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Places and rows of the pages that are there."""
    if handles.size != n_pages:
        raise InputError(f"{handles.size} pages; a huge page's range has {n_pages} (absent ones: -1)")
    present = np.flatnonzero(handles != -1)
    if not present.size:
        raise InputError("all pages of the range are absent")
    rows, orders = folio_rows(mem, handles[present])
    if np.unique(rows).size < rows.size:
        raise InputError("a page comes twice")
    bits = mem.state.folios["bits"][handles[present] & HANDLE_SLOT]
    mms = mem.state.folios["mms"][handles[present] & HANDLE_SLOT]
    flags = mem.state.pages["pg_flags"][rows]
    told = PageFlag.LRU | PageFlag.LRU_BATCH
    fatal = has_error(mem, rows) & ("khugepaged_mc_copy" not in mem.geometry.features)
    for what, wrong in (
        ("part of a large folio", orders > 0),
        ("no anonymous page", ~np.isin(bits >> MAPPING_SHIFT, ANONYMOUS)),
        *((bit.name.lower(), bits & bit != 0) for bit in NOT_PLAIN if bit.name),
        ("shared by address spaces, or mapped by none", (mms & (mms - 1) != 0) | (mms == 0)),
        ("of another address space than the first", mms != mms[0]),
        ("pinned", mem.state.pages["refcount"][rows] != 1),
        ("on no LRU list", flags & told == 0),
        ("poisoned (PG_hwpoison)", flags & PageFlag.HWPOISON != 0),
        (f"hit by an error, which kernel {mem.geometry.kernel} does not survive", fatal),
    ):
        if wrong.any():
            raise InputError(f"page {present[wrong.argmax()]} is {what}: not modelled for khugepaged")
    return present, rows


def _node_of(mem: Machine, rows: npt.NDArray[np.uint64]) -> int:
    """The node that most of the pages are on (hpage_collapse_find_target_node)."""
    counts = np.bincount(mem.state.zones["node"][mem.state.pages["zone"][rows]])
    if np.count_nonzero(counts == counts.max()) > 1:
        raise InputError("pages of several nodes, equally many on each: not modelled for khugepaged")
    return int(counts.argmax())
