"""Reclaim: the policy that comes with the model, and one run of a node's kswapd."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, one_of
from memmodel.kernels import slowpath as kernels
from memmodel.kernels.compact_hints import reset_isolation_suitable
from memmodel.kernels.lru import drain_lru
from memmodel.kernels.reclaiming import pick_folios
from memmodel.mechanisms.buddy import as_handles, free_pages, whole_number
from memmodel.mechanisms.policies import (
    SWAP_CLUSTER_MAX,
    KswapdWake,
    ReclaimPolicy,
    ReclaimRequest,
    Rows,
    ask_reclaim,
    compact_gap,
    free_snapshot,
)
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import Vmstat, Wmark, ZoneFlag, ZoneType
from memmodel.state.machine import Machine

__all__ = ["KswapdRun", "LeastRecentlyAllocated", "WokenKswapd", "run_kswapd"]

DEF_PRIORITY = 12
MAX_RECLAIM_RETRIES = 16
BOOST_PRIORITY = DEF_PRIORITY - 2  # reclaim for a boost alone goes no further


class LeastRecentlyAllocated:
    """A reclaim policy: frees the folios of a list, first ones first, in batches of SWAP_CLUSTER_MAX pages.

    Parameters
    ----------
    folios
        Handles of what can be reclaimed, the least recently allocated first.

    Notes
    -----
    Folios outside the zones asked for keep their places; one freed by other means meanwhile is passed over. Each call
    empties the CPU's LRU-add batch first, as shrinking a list does (mm/vmscan.c: shrink_inactive_list, 6.12).
    """

    def __init__(self, folios: npt.ArrayLike) -> None:
        handles = as_handles(folios)
        self._listed = handles[handles >= 0].copy()
        self._first = 0

    def __call__(self, mem: Machine, request: ReclaimRequest) -> int:
        """Free `request.n_pages` pages or more, whole batches; how many it freed."""
        drain_lru(mem.state, np.uint64(request.cpu))
        picked = np.empty(SWAP_CLUSTER_MAX, np.int64)
        freed = 0
        while freed < request.n_pages:
            n_picked, n_pages = pick_folios(mem.state, self._listed, self._first, request.zones, picked)
            free_pages(mem, picked[:n_picked], cpu=request.cpu)
            freed += n_pages
            while self._first < self._listed.size and self._listed[self._first] < 0:
                self._first += 1
            if n_pages < SWAP_CLUSTER_MAX:
                break
        return freed


class WokenKswapd:
    """A policy for `alloc_pages(kswapd=)`: a node's kswapd that a request wakes runs to its end at its first turn.

    That is where the task gives the CPU away: in compaction before the first pageblock is scanned, at direct reclaim,
    or at the request's end. A node that has enough is not woken; one that could reclaim nothing in 16 runs is left
    alone from then on.

    Parameters
    ----------
    reclaim
        As of `run_kswapd`; None finds nothing to reclaim.

    Raises
    ------
    InputError
        If it is no function.

    References
    ----------
    mm/vmscan.c: wakeup_kswapd, balance_pgdat (kswapd_failures); where the task gives way: mm/compaction.c
    (isolate_migratepages_block), mm/page_alloc.c (__perform_reclaim); Linux 6.12.117. One that runs for longer than
    its slice is interrupted in the kernel.
    """

    def __init__(self, reclaim: ReclaimPolicy | None = None) -> None:
        if reclaim is not None and not callable(reclaim):
            raise InputError(f"reclaim is a function, not {reclaim!r}")
        self._reclaim = reclaim or _nothing
        self._failures: dict[int, int] = {}

    def __call__(self, mem: Machine, wake: KswapdWake) -> None:
        """Run it, if it is to be woken."""
        if self._failures.get(wake.node, 0) >= MAX_RECLAIM_RETRIES or self._has_enough(mem, wake):
            return
        run = run_kswapd(
            mem, wake.node, reclaim=self._reclaim, order=wake.order, highest=wake.highest.label, cpu=wake.cpu
        )
        self._failures[wake.node] = 0 if run.n_reclaimed else self._failures.get(wake.node, 0) + 1

    def _has_enough(self, mem: Machine, wake: KswapdWake) -> bool:
        zones = mem.zonelist(wake.node, wake.highest, this_node=True)
        boosted = bool(mem.state.zones["watermark_boost"][zones].any())
        return not boosted and _Balance(mem, zones, wake.order, wake.highest, wake.cpu).is_balanced()


def _nothing(mem: Machine, request: ReclaimRequest) -> int:
    """Finds nothing to reclaim."""
    return 0


class KswapdRun(NamedTuple):
    """What one run of kswapd did."""

    balanced: bool
    """Whether some zone is above its high watermark at the end."""
    n_reclaimed: int
    """Pages."""
    n_passes: int
    """Times that it asked for pages."""
    order: int
    """That it balanced for at the end: 0 once it had reclaimed enough to compact."""
    boost_returned: int
    """Pages that it took off the zones' watermark boosts."""
    kcompactd_order: int
    """Order that it wakes kcompactd for; 0 if it does not."""


def run_kswapd(
    mem: Machine,
    node: int = 0,
    *,
    reclaim: ReclaimPolicy,
    order: int = 0,
    highest: str = "Movable",
    cpu: int = 0,
) -> KswapdRun:
    """Reclaim until a zone of the node is above its high watermark and boosts are worked off, or nothing is left.

    While it runs its zones' per-CPU lists shrink at every free (ZONE_RECLAIM_ACTIVE). Each pass asks for as much as
    the kernel would scan: the reclaimable pages of the node, halved `priority` times, at least SWAP_CLUSTER_MAX; the
    priority falls from 12 to 1 as long as a pass frees less than the zones' high watermarks. At the end compaction's
    skip hints are taken back, where a direct compaction went through the whole zone.

    Parameters
    ----------
    mem
        Changed in place.
    node
        Whose kswapd runs.
    reclaim
        Frees pages and says how many, as for `alloc_pages`.
    order
        That it was woken for.
    highest
        Highest zone of the request that woke it, by name.
    cpu
        CPU that it runs on.

    Raises
    ------
    InputError
        If an argument is outside its range.

    References
    ----------
    mm/vmscan.c: balance_pgdat, pgdat_balanced, kswapd_shrink_node, Linux 6.12.117. Pages are asked for in place of
    being scanned; writeback, swap, memory tiering and the give-up after 16 runs without progress are not modelled.
    """
    mem.check_cpu(cpu)
    if not callable(reclaim):
        raise InputError(f"reclaim is a function, not {reclaim!r}")
    order = whole_number(order, "order", 0, mem.geometry.max_page_order, "MAX_PAGE_ORDER")
    highest_type = zone_type(highest)
    zones = np.sort(mem.zonelist(node, highest_type, this_node=True))
    zones = zones[mem.state.zones["managed"][zones] > 0]
    run = _Balance(mem, zones, order, highest_type, cpu)
    boosts = mem.state.zones["watermark_boost"][zones].copy()
    mem.state.vmstat[Vmstat.PAGEOUTRUN] += 1
    run.set_active(True)
    try:
        run.balance(reclaim, int(boosts.sum()))
    finally:
        run.set_active(False)
    now = mem.state.zones["watermark_boost"][zones]
    returned = np.minimum(now, boosts)
    mem.state.zones["watermark_boost"][zones] = now - returned
    reset_isolation_suitable(mem.state, np.uint64(node))
    balanced = run.is_balanced()
    wakes = max(mem.geometry.pageblock_order if boosts.any() else 0, order if balanced else 0)
    return KswapdRun(balanced, run.n_reclaimed, run.n_passes, run.order, int(returned.sum()), wakes)


def zone_type(name: str) -> ZoneType:
    """The zone type that a user names.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    types = {kind.label: kind for kind in ZoneType}
    return types[one_of(name, types, "zone")]


class _Balance:
    """One run over the zones of a node, lowest first."""

    def __init__(self, mem: Machine, zones: Rows, order: int, highest: ZoneType, cpu: int) -> None:
        self.mem, self.zones, self.order, self.highest, self.cpu = mem, zones, order, highest, cpu
        self.n_reclaimed = self.n_passes = 0

    def set_active(self, active: bool) -> None:
        flags = self.mem.state.zones["flags"]
        kept = flags[self.zones] & ~np.uint8(ZoneFlag.RECLAIM_ACTIVE)
        flags[self.zones] = kept | (ZoneFlag.RECLAIM_ACTIVE if active else 0)

    def high_mark(self, row: np.uint64) -> int:
        """With the boost."""
        zone = self.mem.state.zones[int(row)]
        return int(zone["watermark"][Wmark.HIGH]) + int(zone["watermark_boost"])

    def is_balanced(self) -> bool:
        """Whether one zone has enough; a node without zones has."""
        return not self.zones.size or any(self._has_enough(row) for row in self.zones)

    def _has_enough(self, row: np.uint64) -> bool:
        state, zone = self.mem.state, self.mem.state.zones[int(row)]
        free, mark = int(zone["free_pages"]), self.high_mark(row)
        drift = self.mem.cpus * int(zone["stat_threshold"])
        if drift > int(zone["watermark"][Wmark.LOW] - zone["watermark"][Wmark.MIN]) and free < mark + drift:
            free = free_snapshot(self.mem, int(row))  # percpu_drift_mark
        order, highest = np.uint64(self.order), np.uint64(self.highest)
        return bool(kernels.watermark_test(state, row, order, np.int64(mark), highest, np.uint64(0), np.int64(free)))

    def balance(self, reclaim: ReclaimPolicy, boost: int) -> None:
        """Passes of growing size; `boost` pages are to be reclaimed even where there is enough."""
        priority = DEF_PRIORITY
        while priority >= 1:
            balanced = self.is_balanced()
            if not balanced and boost:
                boost, priority = 0, DEF_PRIORITY
                continue
            if balanced and not boost:
                return
            target = sum(max(self.high_mark(row), SWAP_CLUSTER_MAX) for row in self.zones)
            freed = self._pass(reclaim, min(target, self._scanned(priority)))
            hold = freed >= target or (boost > 0 and priority == BOOST_PRIORITY)
            boost -= min(boost, freed)
            if boost and not freed:
                return
            if not hold or not freed:
                priority -= 1

    def _scanned(self, priority: int) -> int:
        """Pages that a pass of that priority looks at."""
        evictable = sum(int(kernels.reclaimable_pages(self.mem.state, row)) for row in self.zones)
        return max(evictable >> priority, SWAP_CLUSTER_MAX)

    def _pass(self, reclaim: ReclaimPolicy, n_pages: int) -> int:
        request = ReclaimRequest(self.zones[::-1].copy(), self.order, parse_gfp("GFP_KERNEL"), self.cpu, n_pages)
        freed = ask_reclaim(self.mem, reclaim, request)
        self.n_passes += 1
        self.n_reclaimed += freed
        self.mem.state.vmstat[Vmstat.PGSTEAL_KSWAPD] += freed
        if self.order and self.n_reclaimed >= compact_gap(self.mem, self.order):
            self.order = 0
        return freed
