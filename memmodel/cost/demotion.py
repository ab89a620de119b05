"""Demotion by kswapd and by the writer that outruns it: two rates, as a fluid and THP by THP.

A thread writes THPs on a node that is full; kswapd demotes them to a slower node. Where the writer is faster, free
pages sink to the min watermark, and from then on the writer demotes a THP itself at each stall (direct reclaim,
allocstall). Which of the two is faster decides: direct reclaim ends where kswapd's rate crosses the writer's.

Over n demoted THPs the two shares of direct reclaim differ by at most ``(gap + 2) / n + 4 spread / sqrt(n)``, ``gap``
being the THPs between the low and the min watermark, provided that these are 8 or more and that the writer's demotions
take a third to three times kswapd's. Below that a THP is too coarse for the fluid: one step can cross from above low to
below min, and kswapd can fall asleep while the writer demotes a single THP.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memmodel.cost.machines import Machine
from memmodel.cost.migration import migration_of, optional_ns
from memmodel.cost.model import CopyCounts, direction_codes, price
from memmodel.errors import InputError, one_of
from memmodel.geometry import Geometry
from memmodel.kernels.demotion import NEVER, DemotionTotal, run_demotion
from memmodel.state.layout import Wmark, ZoneType
from memmodel.state.sizing import Sysctls, watermarks

__all__ = [
    "THP_BYTES",
    "DemotionRun",
    "DemotionTimes",
    "SteadyDemotion",
    "Work",
    "demotion_times",
    "draw_work",
    "first_stall_ns",
    "node_watermarks",
    "simulate_demotion",
    "steady_demotion",
]

Floats = NDArray[np.float64]
Times = NDArray[np.int64]

THP_BYTES = 2 << 20
THP_PAGES = THP_BYTES >> 12
THPS_PER_GIB = (1 << 30) // THP_BYTES
_EXTENTS = {"page": 4096, "extent": THP_BYTES}


class DemotionTimes(NamedTuple):
    """Time of a THP in ns: demoted by kswapd beside the running writer, and by the writer itself, which then waits."""

    kswapd_ns: float
    direct_ns: float
    calibrated: bool


class SteadyDemotion(NamedTuple):
    """The fluid's steady state; shapes as the times given.

    Attributes
    ----------
    stalled_share
        Of the writer's time that it spends in direct reclaim.
    direct_share
        Of the bytes demoted that the writer demotes.
    kswapd_share
        Of the time that kswapd runs.
    demoted_bytes_per_ns
        Both together: as much as the writer writes.
    stalls_per_gib
        allocstall for each GiB demoted: one for each THP of the writer.
    kswapd_ns_per_gib
        CPU time of kswapd for each GiB that it demotes.
    """

    stalled_share: Floats
    direct_share: Floats
    kswapd_share: Floats
    demoted_bytes_per_ns: Floats
    stalls_per_gib: Floats
    kswapd_ns_per_gib: Floats


class Work(NamedTuple):
    """Seeded times of single THPs over their mean: of the writer, of kswapd, of direct reclaim."""

    write: Floats
    kswapd: Floats
    direct: Floats


class DemotionRun(NamedTuple):
    """What one run came to; times in ns.

    Attributes
    ----------
    n_kswapd, n_direct
        THPs demoted by kswapd and by the writer; each of the latter is one allocstall.
    kswapd_ns, stall_ns
        CPU time of kswapd, and of the writer in direct reclaim.
    first_stall_ns
        From the start to the first stall; NaN where there is none.
    end_ns
        Until the last THP was written.
    n_wakes
        How often kswapd was woken.
    lowest_free
        Fewest free pages.
    """

    n_kswapd: int
    n_direct: int
    kswapd_ns: int
    stall_ns: int
    first_stall_ns: float
    end_ns: int
    n_wakes: int
    lowest_free: int

    @property
    def direct_share(self) -> float:
        """Share of the demoted THPs that the writer demoted; 0 where none was."""
        return self.n_direct / max(self.n_kswapd + self.n_direct, 1)


def demotion_times(machine: Machine, batch: str, direction: str = "D0-CXL", form: str = "L") -> DemotionTimes:
    """What a THP's demotion takes on `machine`, its 512 pages copied one by one ("page") or in one call ("extent").

    kswapd's copies compete with the writer for memory and take ``reclaim_slowdown`` longer; the writer's own, while it
    writes nothing, do not. The latter is an assumption: no source has the time of direct reclaim.

    Raises
    ------
    InputError
        If the machine has no such number or direction, or the batch is unknown.

    References
    ----------
    mm/vmscan.c: demote_folio_list, Linux 6.12.117: shrinking isolates one THP a turn, so that each is a call of
    migrate_pages() by itself.
    """
    extent = _EXTENTS[one_of(batch, _EXTENTS, "batch")]
    counts = CopyCounts(THP_BYTES, extent, THP_BYTES // extent, 1, direction_codes(direction))
    time = price(counts, machine, form)
    slowdown = optional_ns(machine, "reclaim_slowdown")
    rest = float(time.folio_overhead_ns) + migration_of(machine).call.value
    known = bool(time.calibrated) and slowdown.how != "assumed"
    return DemotionTimes(slowdown.value * float(time.copy_ns) + rest, float(time.copy_ns) + rest, known)


def steady_demotion(write_ns: ArrayLike, kswapd_ns: ArrayLike, direct_ns: ArrayLike) -> SteadyDemotion:
    """The fluid's steady state, from the times of a THP: written without a stall, demoted by kswapd, by the writer.

    With the rates ``W = 1 / write_ns``, ``D`` and ``Dd`` likewise: x, the share of its time that the writer is stalled,
    is 0 for W <= D, else ``(W - D) / (W + Dd)``; direct reclaim's share of the demotions is ``x Dd / (D + x Dd)``.

    Raises
    ------
    InputError
        If a time is not a positive number.
    """
    given = ((write_ns, "write"), (kswapd_ns, "kswapd"), (direct_ns, "direct"))
    write, kswapd, direct = (1 / time for time in np.broadcast_arrays(*(_positive(t, name) for t, name in given)))
    stalled = np.maximum(write - kswapd, 0) / (write + direct)
    total = np.minimum(write, kswapd) + stalled * direct
    share = stalled * direct / total
    return SteadyDemotion(
        stalled_share=stalled,
        direct_share=share,
        kswapd_share=np.minimum(write / kswapd, 1),
        demoted_bytes_per_ns=total * THP_BYTES,
        stalls_per_gib=share * THPS_PER_GIB,
        kswapd_ns_per_gib=THPS_PER_GIB / kswapd,
    )


def first_stall_ns(
    free_pages: ArrayLike, marks: tuple[ArrayLike, ArrayLike, ArrayLike], write_ns: ArrayLike, kswapd_ns: ArrayLike
) -> Floats:
    """The fluid's time to the first stall: down to the low watermark at W, from there to min at W - D; inf for W <= D.

    `marks` are the min, low and high watermark in pages.

    Raises
    ------
    InputError
        If a time is not a positive number.
    """
    write, kswapd = _positive(write_ns, "write"), _positive(kswapd_ns, "kswapd")
    lowest, low, _ = (np.asarray(mark, np.float64) for mark in marks)
    sinks = 1 / write - 1 / kswapd  # THPs a ns
    gap = np.minimum(free_pages, low) - lowest
    fill = np.maximum(np.asarray(free_pages, np.float64) - low, 0) / THP_PAGES * write
    drain = np.divide(gap / THP_PAGES, sinks, out=np.full(np.broadcast(gap, sinks).shape, np.inf), where=sinks > 0)
    return np.asarray(fill + drain)


def node_watermarks(pages: int, sysctls: Sysctls, geometry: Geometry | None = None) -> tuple[int, int, int]:
    """(min, low, high) of a node that is one zone, pages, as the kernel sets them: see `memmodel.state.sizing`."""
    marks = watermarks(geometry or Geometry(), [ZoneType.NORMAL], np.array([pages], np.int64), sysctls)[0]
    return int(marks[Wmark.MIN]), int(marks[Wmark.LOW]), int(marks[Wmark.HIGH])


def draw_work(n_thps: int, spread: float, seed: int | NDArray[np.uint64]) -> Work:
    """Times of `n_thps` THPs for each thread over their mean: gamma, with `spread` as coefficient of variation.

    Raises
    ------
    InputError
        If the spread is negative, or there is no THP.
    """
    if not (n_thps >= 1 and 0 <= spread < np.inf):
        raise InputError(f"{n_thps} THPs with a spread of {spread}; at least one, and a spread from 0 up")
    rng = np.random.default_rng(seed)
    if spread == 0:
        return Work(*(np.ones(n_thps) for _ in Work._fields))
    shape = spread**-2
    return Work(*(rng.gamma(shape, 1 / shape, n_thps) for _ in Work._fields))


def simulate_demotion(
    work: Work, write_ns: float, kswapd_ns: float, direct_ns: float, free_pages: int, marks: tuple[int, int, int]
) -> DemotionRun:
    """Write the THPs of `work` on a node with `free_pages` free, watermarks `marks`, THP by THP.

    Parameters
    ----------
    work
        From `draw_work`.
    write_ns, kswapd_ns, direct_ns
        Mean times of a THP, as for `steady_demotion`.
    free_pages
        Free at the start: everything that the node can hold.
    marks
        min, low and high watermark in pages.

    Raises
    ------
    InputError
        If a time is not positive, the watermarks do not rise, or the node has no room for a THP above min and high.

    References
    ----------
    mm/page_alloc.c: get_page_from_freelist, wake_all_kswapds, __alloc_pages_direct_reclaim; mm/vmscan.c: balance_pgdat,
    Linux 6.12.117. kswapd is woken at the low watermark: with GFP_TRANSHUGE it is the page tables' allocations that do
    it. One demoted THP satisfies direct reclaim, which wants 32 pages.
    """
    means = [float(_positive(t, n)) for t, n in ((write_ns, "write"), (kswapd_ns, "kswapd"), (direct_ns, "direct"))]
    if not 0 <= marks[0] <= marks[1] <= marks[2]:
        raise InputError(f"watermarks {marks}: min, low and high do not rise")
    if free_pages < marks[2] + 2 * THP_PAGES:
        raise InputError(f"{free_pages} free pages: the node needs two THPs above its high watermark, {marks[2]} pages")
    write, kswapd, direct = (
        np.maximum(np.rint(share * mean), 1).astype(np.int64) for share, mean in zip(work, means, strict=True)
    )
    totals = np.zeros(len(DemotionTotal), np.int64)
    run_demotion(write, kswapd, direct, np.int64(free_pages), np.array(marks, np.int64), np.int64(THP_PAGES), totals)
    found = dict(zip(DemotionTotal, totals.tolist(), strict=True))
    first = found[DemotionTotal.FIRST_STALL_NS]
    return DemotionRun(
        n_kswapd=found[DemotionTotal.KSWAPD],
        n_direct=found[DemotionTotal.DIRECT],
        kswapd_ns=found[DemotionTotal.KSWAPD_NS],
        stall_ns=found[DemotionTotal.STALL_NS],
        first_stall_ns=float("nan") if first == NEVER else float(first),
        end_ns=found[DemotionTotal.END_NS],
        n_wakes=found[DemotionTotal.WAKES],
        lowest_free=found[DemotionTotal.LOWEST_FREE],
    )


def _positive(time: ArrayLike, name: str) -> Floats:
    array = np.asarray(time, np.float64)
    if not np.all((array > 0) & np.isfinite(array)):
        raise InputError(f"{name}_ns: a time of a THP is a positive number of ns")
    return array
