"""The slow path of a request that may reclaim and compact: the order of its attempts."""

import numpy as np

from memmodel.errors import InputError
from memmodel.kernels import slowpath as kernels
from memmodel.kernels.page_alloc import ALL_RESERVES, NO_WATERMARKS, Request, unreserve_highatomic
from memmodel.kernels.pcp import drain_all_pages
from memmodel.mechanisms.policies import (
    SWAP_CLUSTER_MAX,
    Compaction,
    CompactPriority,
    CompactRequest,
    CompactResult,
    KswapdWake,
    ReclaimRequest,
    Rows,
    Steps,
    ask_compact,
    ask_reclaim,
    compact_gap,
    free_snapshot,
)
from memmodel.sources.gfp import PAGE_ALLOC_COSTLY_ORDER, Gfp
from memmodel.state.layout import Alloc, MigrateType, Vmstat, Wmark, ZoneType
from memmodel.state.machine import Machine

__all__ = ["MAX_COMPACT_RETRIES", "MAX_RECLAIM_RETRIES", "MAX_STUCK_ROUNDS", "SlowPath"]

MAX_RECLAIM_RETRIES, MAX_COMPACT_RETRIES = 16, 16
MAX_STUCK_ROUNDS = 100
"""Rounds without more free memory than ever before, after which a request that would go on for ever is given up."""


class SlowPath:
    """One request whose first two attempts, above the low and the min watermark, found no page.

    References
    ----------
    mm/page_alloc.c: __alloc_pages_slowpath, __alloc_pages_direct_reclaim, __alloc_pages_direct_compact,
    should_reclaim_retry, should_compact_retry, __alloc_pages_may_oom; 6.1 and 6.12, and where compact_first_once is
    a feature 7.2.
    """

    def __init__(self, mem: Machine, zonelist: Rows, cpu: np.uint64, request: Request, gfp: Gfp, steps: Steps) -> None:
        self.mem, self.zonelist, self.cpu, self.request, self.gfp = mem, zonelist, cpu, request, gfp
        self.order = int(request.order)
        self.policies = steps
        self.steps: list[str] = []
        self.outcome = ""
        """"page", "failed", "would_oom" or "would_loop"; empty while the request goes on."""
        self.highest = ZoneType(int(request.highest))
        self.costly = self.order > PAGE_ALLOC_COSTLY_ORDER
        self.reserves = bool(int(request.slow) & Alloc.NO_WATERMARKS)
        self.flags = request.slow & ALL_RESERVES if self.reserves else request.slow
        self.can_compact = gfp.io and steps.compact is not None
        movable = int(request.migratetype) == MigrateType.MOVABLE
        self.compact_first = self.can_compact and (self.costly or (self.order > 0 and not movable))
        self.one_loop = "compact_first_once" in mem.geometry.features
        self.priority = CompactPriority.SYNC_LIGHT
        self.result = CompactResult.SKIPPED
        self.progress = self.no_progress_loops = self.compaction_retries = 0
        self.woken: list[KswapdWake] = []

    # -- the order of attempts -------------------------------------------------------------------------------------

    def run(self) -> int:
        """Handle of the folio, or -1; `outcome` says how it ended."""
        handle = self.try_hard()
        self.give_way()
        return handle

    def try_hard(self) -> int:
        """Up to the request's end."""
        self.note_first_attempts()
        if not self.gfp.direct_reclaim or (self.policies.reclaim is None and self.policies.compact is None):
            self.outcome = "failed"
            return -1
        handle = self.begin()
        most_free, stuck = -1, 0
        while handle < 0 and not self.outcome:
            handle = self.round(first=most_free < 0)
            free = sum(free_snapshot(self.mem, int(row)) for row in self.zonelist)
            stuck = 0 if free > most_free else stuck + 1
            most_free = max(most_free, free)
            if handle < 0 and not self.outcome and stuck == MAX_STUCK_ROUNDS:
                self.outcome = "would_loop"
        if handle >= 0:
            self.outcome = "page"
        return handle

    def note_first_attempts(self) -> None:
        """What alloc_row() has done already."""
        self.steps.append("freelist low")
        self.wake_kswapd()
        self.steps.append("freelist min")
        if self.reserves:
            self.wake_kswapd()
            self.steps.append("freelist reserves")

    def begin(self) -> int:
        """Up to the label `retry`: before 7.2 a first compaction of its own."""
        if self.one_loop:
            if self.compact_first:
                self.priority = CompactPriority.ASYNC
            return -1
        first, self.compact_first = self.compact_first, False
        if not first or self.reserves:
            return -1
        handle = self.direct_compact(CompactPriority.ASYNC)
        if handle < 0 and self.gfp.is_costly_noretry(self.order):
            self.priority = CompactPriority.ASYNC
            if self.gfp.thisnode or self.result <= CompactResult.DEFERRED:
                return self.no_page()
        return handle

    def round(self, first: bool) -> int:
        """From the label `retry` on."""
        handle = -1
        if not first or not (self.one_loop or self.reserves):  # else it was the last of the first attempts
            self.wake_kswapd()
            handle = self.attempt("reserves" if self.reserves else "min", self.flags)
        if handle < 0 and not self.compact_first:
            handle = self.direct_reclaim()
        if handle < 0:
            handle = self.direct_compact(self.priority)
        if handle >= 0:
            return handle
        if self.compact_first:
            return self.after_first_compaction()
        if self.gfp.fails_after_first_round(self.order) or (self.costly and not self.can_compact):
            return self.no_page()
        if self.should_reclaim_retry():
            return -1
        if self.progress and self.can_compact and self.should_compact_retry():
            return -1
        return self.may_oom()

    def after_first_compaction(self) -> int:
        """7.2: huge page faults end here on their own node; others go on, __GFP_NORETRY for one round."""
        if self.gfp.noretry and self.gfp.thisnode:
            return self.no_page()
        if not self.gfp.noretry:
            self.priority = CompactPriority.SYNC_LIGHT
        self.compact_first = False
        return -1

    def no_page(self) -> int:
        """The label `nopage`: the end, but for __GFP_NOFAIL."""
        if not self.gfp.nofail:
            self.outcome = "failed"
            return -1
        handle = self.attempt("min_reserve", np.uint64(Alloc.MIN_RESERVE))
        if handle < 0 and not self.progress:
            self.outcome = "would_loop"
        return handle

    def may_oom(self) -> int:
        """Where the kernel would kill a task: the model kills none, and the request ends."""
        handle = self.attempt("high", np.uint64(Wmark.HIGH))
        if handle >= 0:
            return handle
        spared = self.costly or self.gfp.retry_mayfail or self.gfp.thisnode or self.highest < ZoneType.NORMAL
        if spared:
            self.progress = 0
            return self.no_page()
        self.steps.append("oom")
        if self.gfp.nofail:
            handle = self.attempt("no_watermarks", NO_WATERMARKS)
        if handle < 0:  # without __GFP_FS nobody is killed, and the request tries for ever
            self.outcome = "would_oom" if "__GFP_FS" in self.gfp else "would_loop"
        return handle

    # -- single steps ----------------------------------------------------------------------------------------------

    def wake_kswapd(self) -> None:
        """wake_all_kswapds(): noted, and left to a policy if there is one; else `run_kswapd` runs it."""
        if not self.gfp.kswapd_reclaim:
            return
        self.steps.append("wake_kswapd")
        if self.policies.kswapd is not None:
            nodes = dict.fromkeys(self.mem.state.zones["node"][self.zonelist].tolist())
            self.woken = [KswapdWake(node, self.order, self.highest, int(self.cpu)) for node in nodes]

    def give_way(self) -> None:
        """The task gives the CPU away (cond_resched, or its way back to user space): kswapd has its turn."""
        woken, self.woken = self.woken, []
        for wake in woken:
            if self.policies.kswapd is not None:
                self.policies.kswapd(self.mem, wake)

    def attempt(self, name: str, flags: np.uint64) -> int:
        """One walk over the zones: a handle, or -1."""
        self.steps.append(f"freelist {name}")
        self.mem.reserve_folios(1)  # a policy may have taken the room
        return int(kernels.attempt(self.mem.state, self.zonelist, self.cpu, self.request, flags))

    def direct_reclaim(self) -> int:
        """Reclaim, and an attempt if that freed something; a second one with all per-CPU lists drained."""
        self.steps.append("reclaim")
        self.give_way()
        self.mem.state.vmstat[Vmstat.ALLOCSTALL_DMA + self.highest] += 1
        self.progress = 0
        zones = self.zones_to_reclaim()
        if self.policies.reclaim is not None and zones.size:
            wanted = ReclaimRequest(zones, self.order, self.gfp, int(self.cpu), SWAP_CLUSTER_MAX)
            self.progress = ask_reclaim(self.mem, self.policies.reclaim, wanted)
        self.mem.state.vmstat[Vmstat.PGSTEAL_DIRECT] += self.progress
        if not self.progress and zones.size < self.zonelist.size:
            self.progress = 1  # what compaction can do counts as progress
        if not self.progress:
            return -1
        name = "reserves" if self.reserves else "min"
        handle = self.attempt(name, self.flags)
        if handle < 0:
            self.unreserve(force=False)
            self.steps.append("drain_all_pages")
            drain_all_pages(self.mem.state, np.uint64(self.mem.state.zones.size), self.cpu)
            handle = self.attempt(name, self.flags)
        return handle

    def zones_to_reclaim(self) -> Rows:
        """For a costly order those zones are left alone that compaction can work in as they are."""
        if not self.costly or not self.can_compact:
            return self.zonelist
        state, request = self.mem.state, self.request
        ready = [kernels.compaction_ready(state, zone, request.order, request.highest) for zone in self.zonelist]
        return self.zonelist[~np.array(ready, np.bool_)]

    def unreserve(self, force: bool) -> bool:
        """A pageblock of the reserve for urgent requests becomes this request's."""
        self.steps.append("unreserve_highatomic force" if force else "unreserve_highatomic")
        return bool(unreserve_highatomic(self.mem.state, self.zonelist, self.cpu, self.request.migratetype, force))

    def direct_compact(self, priority: CompactPriority) -> int:
        """Compact, and an attempt unless all zones were skipped or the page was captured."""
        if not self.order or self.policies.compact is None:
            return -1
        answer = Compaction(CompactResult.SKIPPED)
        if self.can_compact:
            wanted = CompactRequest(
                *(self.zonelist, self.order, self.gfp, int(self.cpu), int(self.request.migratetype)),
                *(priority, Alloc(int(self.flags)), self.highest, self.give_way if self.woken else None),
            )
            answer = ask_compact(self.mem, self.policies.compact, wanted)
        self.result = answer.result
        self.steps.append(f"compact {priority.name.lower()} {self.result.name.lower()}")
        if self.result == CompactResult.SKIPPED:
            return -1
        vmstat = self.mem.state.vmstat
        vmstat[Vmstat.COMPACT_STALL] += 1
        if answer.captured is None:
            handle = self.attempt("reserves" if self.reserves else "min", self.flags)
        else:
            handle = self.adopt(answer.captured)
        vmstat[Vmstat.COMPACT_FAIL if handle < 0 else Vmstat.COMPACT_SUCCESS] += 1
        if handle >= 0:
            kernels.note_compacted(self.mem.state, np.int64(handle), self.request.order)
        return handle

    def adopt(self, row: int) -> int:
        """The folio of a captured block."""
        self.steps.append("captured")
        self.mem.reserve_folios(1)
        state = self.mem.state
        handle = -1
        if 0 <= row < int(state.params.n_pages):
            handle = int(kernels.adopt(state, np.uint64(row), self.cpu, self.request))
        if handle < 0:
            raise InputError(f"a compaction captured row {row}: no used block of order {self.order} without a handle")
        return handle

    # -- whether to go on ------------------------------------------------------------------------------------------

    def would_pass(self, order: int, mark: Wmark, beyond: int, flags: np.uint64, share: int) -> bool:
        """Whether some zone had enough if one in `share` of its reclaimable pages were free too."""
        state = self.mem.state
        for row in self.zonelist:
            zone = state.zones[int(row)]
            free = free_snapshot(self.mem, int(row)) + int(kernels.reclaimable_pages(state, row)) // share
            marked = np.int64(int(zone["watermark"][mark]) + int(zone["watermark_boost"]) + beyond)
            if kernels.watermark_test(
                state, row, np.uint64(order), marked, self.request.highest, flags, np.int64(free)
            ):
                return True
        return False

    def should_reclaim_retry(self) -> bool:
        """Whether reclaim may still help; before it says no the whole reserve for urgent requests is given up."""
        if self.progress and not self.costly:
            self.no_progress_loops = 0
        else:
            self.no_progress_loops += 1
        if self.no_progress_loops <= MAX_RECLAIM_RETRIES and self.would_pass(
            self.order, Wmark.MIN, 0, self.flags, share=1
        ):
            return True
        return self.unreserve(force=True)

    def should_compact_retry(self) -> bool:
        """Whether another compaction may help, harder than before where the last one did not succeed."""
        if not self.order:
            return False
        if self.result == CompactResult.SKIPPED:
            mark = Wmark.LOW if self.costly else Wmark.MIN
            gap = compact_gap(self.mem, self.order)
            return self.would_pass(0, mark, gap, np.uint64(Alloc.CMA), share=self.order)
        if self.result == CompactResult.SUCCESS:
            self.compaction_retries += 1
            if self.compaction_retries <= (MAX_COMPACT_RETRIES // 4 if self.costly else MAX_COMPACT_RETRIES):
                return True
        if self.priority <= (CompactPriority.SYNC_LIGHT if self.costly else CompactPriority.SYNC_FULL):
            return False
        self.priority = CompactPriority(self.priority - 1)
        self.compaction_retries = 0
        return True
