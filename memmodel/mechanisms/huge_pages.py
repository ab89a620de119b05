"""Transparent huge pages: what a fault asks for and gets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.errors import GeometryError, InputError, one_of
from memmodel.mechanisms.buddy import MAX_COUNT, Asked, allocate, given_back, whole_number
from memmodel.mechanisms.policies import CompactPolicy, KswapdPolicy, ReclaimPolicy, Steps
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import MthpStat, Vmstat, mthp_counter
from memmodel.state.machine import Handles, Machine

__all__ = ["THP_DEFRAG", "ThpFaults", "count_faults", "fault_thp", "mthp_stats", "pmd_order_of", "thp_fault", "thp_gfp"]

LIGHT, WAKE, DIRECT = "GFP_TRANSHUGE_LIGHT", "__GFP_KSWAPD_RECLAIM", "__GFP_DIRECT_RECLAIM"
THP_DEFRAG = {
    "always": ("GFP_TRANSHUGE|__GFP_NORETRY", "GFP_TRANSHUGE"),
    "defer": (f"{LIGHT}|{WAKE}", f"{LIGHT}|{WAKE}"),
    "defer+madvise": (f"{LIGHT}|{WAKE}", f"{LIGHT}|{DIRECT}"),
    "madvise": (LIGHT, f"{LIGHT}|{DIRECT}"),
    "never": (LIGHT, LIGHT),
}
"""transparent_hugepage/defrag: the flags of a fault, without and with MADV_HUGEPAGE."""
FIRST_TRY = "__GFP_THISNODE|__GFP_NORETRY"
BASE_PAGE = "GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO"
LEAST_MTHP_ORDER = 2  # THP_ORDERS_ALL_ANON: order 1 has no room for what a large anonymous folio keeps in its pages


def thp_gfp(defrag: str = "madvise", madvised: bool = False) -> str:
    """The gfp flags of a huge page fault.

    Parameters
    ----------
    defrag
        /sys/kernel/mm/transparent_hugepage/defrag; "madvise" is the kernel's default.
    madvised
        Whether the mapping has MADV_HUGEPAGE.

    Raises
    ------
    InputError
        If there is no such setting.

    References
    ----------
    mm/huge_memory.c: vma_thp_gfp_mask, Linux 6.12.
    """
    return THP_DEFRAG[one_of(defrag, THP_DEFRAG, "defrag")][bool(madvised)]


@dataclass(frozen=True, eq=False)
class ThpFaults:
    """Some faults, one entry each; arrays have shape ``(count,)``."""

    folios: Handles
    """Handles, int64; -1 where the fault got nothing."""
    order: npt.NDArray[np.int64]
    """Of the folio that came; -1: none did."""
    asked: tuple[tuple[int, str], ...]
    """What a fault asks for until something comes: orders with their gfp flags."""
    pmd_order: int
    """Order of a huge page (HPAGE_PMD_ORDER)."""
    pageblock_order: int
    """The effective one."""
    page_block_max_order: int | None
    """The limit that was asked for; None: none."""

    @property
    def success(self) -> npt.NDArray[np.bool_]:
        """Whether the fault got a huge page."""
        return np.asarray(self.order == self.pmd_order)

    def __repr__(self) -> str:
        said = ", ".join(f"{np.count_nonzero(self.order == order)} of order {order}" for order in np.unique(self.order))
        return f"<ThpFaults {self.order.size} of order {self.asked[0][0]} asked for; came: {said or 'none'} (-1: none)>"


def thp_fault(  # noqa: PLR0913 - where, how and with what, by keyword
    mem: Machine,
    count: int = 1,
    *,
    defrag: str = "madvise",
    madvised: bool = True,
    orders: Sequence[int] | None = None,
    base_pages: bool = False,
    numa: bool = True,
    node: int = 0,
    cpu: int = 0,
    reclaim: ReclaimPolicy | None = None,
    compact: CompactPolicy | None = None,
    trace: list[str] | None = None,
    kswapd: KswapdPolicy | None = None,
) -> ThpFaults:
    """Take `count` write faults in anonymous memory that may have huge pages, one after the other.

    Of the PMD order first. On NUMA kernels under the default policy that is a try on `node` alone, which may compact
    but not reclaim, and where the flags allow direct reclaim a second one everywhere. Then, each with the same flags,
    the smaller orders that are enabled (mTHP), from the highest down. Each fault tries anew.

    Parameters
    ----------
    mem
        Changed in place; thp_fault_alloc and thp_fault_fallback count the PMD order, `mthp_stats` each size.
    count
        Number of faults.
    defrag, madvised
        As of `thp_gfp`.
    orders
        Orders enabled (hugepages-<size>kB/enabled), 2 to HPAGE_PMD_ORDER; that one alone if not given. Each fault lies
        in a mapping that has room for the largest, with nothing in it yet.
    base_pages
        Whether a fault for which none came takes a single page.
    numa
        CONFIG_NUMA.
    node, cpu
        Where the task runs.
    reclaim, compact, trace, kswapd
        As of `alloc_pages`.

    Raises
    ------
    InputError
        If the kernel has no transparent huge pages, or none below the PMD order (before 6.8), or an argument is outside
        its range.

    References
    ----------
    mm/huge_memory.c: vma_alloc_anon_folio_pmd; mm/memory.c: alloc_anon_folio; mm/mempolicy.c: alloc_pages_mpol, Linux
    6.12. Not modelled: read faults (the huge zero page), the memory controller's refusals, PUD mappings, other
    policies.
    """
    pmd_order = pmd_order_of(mem)
    count = whole_number(count, "count", 0, MAX_COUNT)
    tries = []
    for order in _enabled(mem, orders, pmd_order):
        flags = thp_gfp(defrag, madvised)
        if order == pmd_order and numa:
            tries.append((order, f"{flags}|{FIRST_TRY}"))
            if not parse_gfp(flags).direct_reclaim:
                continue
        tries.append((order, flags))
    if base_pages:
        tries.append((0, BASE_PAGE))
    requests = [Asked(order, parse_gfp(flags), node, cpu, lru=True) for order, flags in tries]
    folios, came = _take(mem, requests, count, Steps(reclaim, compact, trace, kswapd))
    count_faults(mem, came, sorted({asked.order for asked in requests} - {0}), pmd_order)
    geo = mem.geometry
    return ThpFaults(folios, came, tuple(tries), pmd_order, geo.pageblock_order, geo.page_block_max_order)


def fault_thp(mem: Machine, count: int = 1, *, madvised: bool = False, **options: object) -> Handles:
    """Handles of the huge pages that `thp_fault` gets, here without MADV_HUGEPAGE unless said.

    Raises
    ------
    InputError
        As `thp_fault`.
    """
    return thp_fault(mem, count, madvised=madvised, **options).folios  # type: ignore[arg-type]


def mthp_stats(mem: Machine) -> dict[int, dict[str, int]]:
    """anon_fault_alloc and anon_fault_fallback by size in KiB (hugepages-<size>kB/stats), for orders that can be.

    Raises
    ------
    InputError
        If the kernel has none (before 6.8).
    """
    pmd_order = pmd_order_of(mem)
    if "mthp" not in mem.geometry.features:
        raise GeometryError(f"kernel {mem.geometry.kernel} has no large anonymous folios below the PMD order (mthp)")
    vmstat, kib = mem.state.vmstat, mem.geometry.page_size_bytes >> 10
    return {
        kib << order: {stat.name.lower(): int(vmstat[mthp_counter(stat, order)]) for stat in MthpStat}
        for order in range(LEAST_MTHP_ORDER, pmd_order + 1)
    }


def pmd_order_of(mem: Machine) -> int:
    """HPAGE_PMD_ORDER of a kernel that has transparent huge pages.

    Raises
    ------
    GeometryError
        If it has none, or the buddy allocator has no such order.
    """
    if not mem.geometry.transparent_hugepage:
        raise GeometryError("this kernel has no transparent huge pages (CONFIG_TRANSPARENT_HUGEPAGE)")
    order, most = mem.geometry.hpage_pmd_order, mem.geometry.max_page_order
    if order > most:
        raise GeometryError(f"huge pages of order {order} are beyond MAX_PAGE_ORDER {most}")
    return order


def _enabled(mem: Machine, orders: Sequence[int] | None, pmd_order: int) -> list[int]:
    """The enabled orders, highest first."""
    if orders is None:
        return [pmd_order]
    if isinstance(orders, str) or not isinstance(orders, Iterable):
        raise InputError(f"orders {orders!r}; several whole numbers are meant")
    rule = "THP_ORDERS_ALL_ANON"
    wanted = {whole_number(order, "order", LEAST_MTHP_ORDER, pmd_order, rule) for order in orders}
    if not wanted:
        raise InputError("no order is enabled; one or more are needed")
    if wanted != {pmd_order} and "mthp" not in mem.geometry.features:
        raise GeometryError(f"kernel {mem.geometry.kernel} has no large anonymous folios below the PMD order (mthp)")
    return sorted(wanted, reverse=True)


def _take(mem: Machine, requests: Sequence[Asked], count: int, steps: Steps) -> tuple[Handles, npt.NDArray[np.int64]]:
    """Handle and order of each fault; -1 and -1 where no request of it came."""
    folios, orders = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    done = 0
    with given_back(mem, folios, requests[0].cpu):
        while done < count:
            got = allocate(mem, requests[0], count - done, steps)
            got = got[got >= 0]
            folios[done : done + got.size], orders[done : done + got.size] = got, requests[0].order
            done += got.size
            if done == count:
                break
            for asked in requests[1:]:
                folios[done] = allocate(mem, asked, 1, steps)[0]
                if folios[done] >= 0:
                    orders[done] = asked.order
                    break
            done += 1
    return folios, orders


def count_faults(mem: Machine, came: npt.NDArray[np.int64], enabled: Sequence[int], pmd_order: int) -> None:
    """A fault falls back from every enabled order above the one that came."""
    vmstat = mem.state.vmstat
    for order in enabled:
        n_came, n_failed = int(np.count_nonzero(came == order)), int(np.count_nonzero(came < order))
        if order == pmd_order:
            vmstat[Vmstat.THP_FAULT_ALLOC] += n_came
            vmstat[Vmstat.THP_FAULT_FALLBACK] += n_failed
        if "mthp" in mem.geometry.features:
            vmstat[mthp_counter(MthpStat.ANON_FAULT_ALLOC, order)] += n_came
            vmstat[mthp_counter(MthpStat.ANON_FAULT_FALLBACK, order)] += n_failed
