"""The slow obvious twin of the slow path: __alloc_pages_slowpath() written down step by step, with its gotos as loops.

A `World` does the single steps on a memory, and notes them. What it needs of zones and watermarks it works out itself.
"""

from dataclasses import dataclass

import numpy as np

from memmodel.jit import kernel
from memmodel.kernels import slowpath as kernels
from memmodel.kernels.buddy import USED, take_smallest
from memmodel.kernels.freelist import HYGIENE, ONE, account
from memmodel.kernels.page_alloc import reserve_highatomic, unreserve_highatomic
from memmodel.kernels.pcp import drain_all_pages
from memmodel.mechanisms.policies import CompactPriority, CompactRequest, CompactResult, ReclaimRequest
from memmodel.mechanisms.request import highest_zone, joins_lru, request_of
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import NONE, Alloc

CMA, HIGHATOMIC = 4, 3
MIN, LOW, HIGH = range(3)
MOVABLE = np.uint64(1)


class WouldOomError(Exception):
    """The kernel would kill a task."""


class WouldLoopError(Exception):
    """The kernel would try for ever."""


class FailedError(Exception):
    """No page."""


@dataclass
class World:
    """A memory, one request, and the steps of the user; everything that happens is in `log`."""

    mem: object
    order: int
    text: str
    node: int
    reclaim: object
    compact: object
    max_stuck: int

    def __post_init__(self):
        self.gfp = parse_gfp(self.text)
        self.flags = {flag.removeprefix("__GFP_") for flag in self.gfp.flags}
        self.highest = highest_zone(self.mem.geometry, self.gfp)
        self.zones = self.mem.zonelist(self.node, self.highest, this_node="THISNODE" in self.flags)
        self.request = request_of(self.mem, self.gfp, self.order, self.node, joins_lru(self.gfp))
        self.movable = int(self.request.migratetype) == 1
        self.cpu = np.uint64(0)
        self.log = []
        self.free_after_rounds = None
        kswapd, cma = "KSWAPD_RECLAIM" in self.flags, self.movable and self.mem.geometry.cma
        self.common = Alloc.CMA * cma | Alloc.KSWAPD * kswapd
        self.reserves = "MEMALLOC" in self.flags and "NOMEMALLOC" not in self.flags
        self.alloc_flags = self.common | MIN | Alloc.MIN_RESERVE * ("HIGH" in self.flags)

    def next_round(self):
        """Gives up after so many rounds since the one that left the most free memory."""
        if self.free_after_rounds is None:
            self.free_after_rounds = []
            return
        self.free_after_rounds.append(sum(self.free_pages(int(zone)) for zone in self.zones))
        best = self.free_after_rounds.index(max(self.free_after_rounds))
        if len(self.free_after_rounds) - 1 - best == self.max_stuck:
            raise WouldLoopError

    def wake_kswapds(self):
        if "KSWAPD_RECLAIM" in self.flags:
            self.log.append("wake_kswapd")

    def freelist(self, name, flags):
        """A handle, or None."""
        self.log.append(f"freelist {name}")
        self.mem.reserve_folios(1)
        handle = kernels.attempt(self.mem.state, self.zones, self.cpu, self.request, np.uint64(flags))
        return None if handle < 0 else int(handle)

    def again(self):
        name = "reserves" if self.alloc_flags & Alloc.NO_WATERMARKS else "min"
        return self.freelist(name, self.alloc_flags)

    def apply_reserves(self):
        if self.reserves:
            self.alloc_flags = Alloc.NO_WATERMARKS | self.common

    def count(self, name, by=1):
        names = list(self.mem.vmstat())
        self.mem.state.vmstat[names.index(name)] += by

    def direct_reclaim(self):
        """(a handle or None, pages reclaimed)."""
        self.log.append("reclaim")
        self.count(f"allocstall_{self.highest.name.lower().replace('mem', '')}")
        left_alone = [self.leaves_alone(int(zone)) for zone in self.zones]
        zones = self.zones[~np.array(left_alone, bool)]
        wanted = ReclaimRequest(zones, self.order, self.gfp, 0, 32)
        progress = self.reclaim(self.mem, wanted) if self.reclaim and zones.size else 0
        self.count("pgsteal_direct", progress)
        if progress == 0 and any(left_alone):
            progress = 1  # compaction can do without reclaim
        if progress == 0:
            return None, 0
        page = self.again()
        if page is None:
            self.unreserve(False)
            self.log.append("drain_all_pages")
            drain_all_pages(self.mem.state, np.uint64(99), np.uint64(0))
            page = self.again()
        return page, progress

    def leaves_alone(self, zone):
        """compaction_ready(), for orders above 3: reclaim passes the zone over."""
        if self.order <= 3 or "IO" not in self.flags or self.compact is None:
            return False
        free = max(0, int(self.mem.state.zones[zone]["free_pages"]))
        low, least, high = (self.marked(zone, which) for which in (LOW, MIN, HIGH))
        if self.watermark_ok(zone, self.order, least, 0, free):
            return True
        gap = 2 << self.order
        if "compact_gap_capped" in self.mem.geometry.features:
            gap = min(gap, 32)
        if not self.watermark_ok(zone, 0, low + gap, Alloc.CMA, free) or self.is_short_of_memory(zone):
            return False
        return self.watermark_ok(zone, 0, high + gap, 0, free)

    def is_short_of_memory(self, zone):
        """A fragmentation index from 0 to 500."""
        blocks = self.mem.state.zones[zone]["nr_free"].tolist()
        if sum(blocks) == 0:
            return True
        if sum(blocks[self.order :]):
            return False
        pages = sum(n << order for order, n in enumerate(blocks))
        return 1000 - (1000 + pages * 1000 // (1 << self.order)) // sum(blocks) <= 500

    def unreserve(self, force):
        self.log.append("unreserve_highatomic" + " force" * force)
        return unreserve_highatomic(self.mem.state, self.zones, self.cpu, self.request.migratetype, force)

    def direct_compact(self, priority):
        """(a handle or None, the result)."""
        if self.order == 0 or self.compact is None:
            return None, CompactResult.SKIPPED
        result, captured = CompactResult.SKIPPED, None
        if "IO" in self.flags:
            migratetype = int(self.request.migratetype)
            wanted = CompactRequest(
                self.zones, self.order, self.gfp, 0, migratetype, priority, self.alloc_flags, self.highest
            )
            result, captured = self.compact(self.mem, wanted)
        self.log.append(f"compact {priority.name.lower()} {result.name.lower()}")
        if result == CompactResult.SKIPPED:
            return None, result
        self.count("compact_stall")
        if captured is not None:
            self.log.append("captured")
            self.mem.reserve_folios(1)
            page = int(kernels.adopt(self.mem.state, np.uint64(captured), self.cpu, self.request))
        else:
            page = self.again()
        self.count("compact_fail" if page is None else "compact_success")
        if page is not None:  # it was worth it: the next request need not wait
            zone = self.mem.state.zones[int(self.mem.state.pages["zone"][self.mem.index(self.mem.pfn(page))][0])]
            zone["blockskip_flush"] = zone["compact_considered"] = zone["compact_defer_shift"] = 0
            zone["compact_order_failed"] = max(int(zone["compact_order_failed"]), self.order + 1)
        return page, result

    # -- plain watermarks ------------------------------------------------------------------------------------------

    def lru_pages(self, zone):
        state = self.mem.state
        rows = slice(int(state.zones[zone]["start"]), int(state.zones[zone]["end"]))
        flags, kinds = state.pages["pg_flags"][rows].tolist(), state.pages["state"][rows].tolist()
        return sum(
            1 << (kind & 15) for kind, flag in zip(kinds, flags, strict=True) if flag & 18 == 2 and kind >> 4 == 5
        )

    def free_pages(self, zone):
        n_cpus = self.mem.cpus
        sets = self.mem.state.pcp[zone * n_cpus : (zone + 1) * n_cpus]
        return max(0, int(self.mem.state.zones[zone]["free_pages"]) + sum(int(one["free_diff"]) for one in sets))

    def has_list(self, zone, order, flags):
        state = self.mem.state
        types = [0, 1, 2, *[CMA] * bool(flags & Alloc.CMA), *[HIGHATOMIC] * bool(flags & Alloc.HIGHATOMIC)]
        first = int(state.params.n_pages) + zone * int(state.params.heads_per_zone)
        heads = [first + o * 6 + t for o in range(order, int(state.params.max_order) + 1) for t in types]
        return any(int(state.pages[head]["next"]) != head for head in heads)

    def watermark_ok(self, zone, order, mark, flags, free):
        record = self.mem.state.zones[zone]
        free -= (1 << order) - 1
        if not flags & (Alloc.NON_BLOCK | Alloc.MIN_RESERVE | Alloc.HIGHATOMIC | Alloc.OOM):
            old = "free_highatomic" not in self.mem.geometry.features
            free -= int(record["reserved_highatomic" if old else "free_highatomic"])
        if not flags & Alloc.CMA:
            free -= max(int(record["free_cma"]), 0)
        if flags & Alloc.MIN_RESERVE:
            mark -= mark // 2
        if free <= mark + int(record["lowmem_reserve"][self.highest]):
            return False
        return order == 0 or self.has_list(zone, order, flags)

    def marked(self, zone, which):
        record = self.mem.state.zones[zone]
        return int(record["watermark"][which]) + int(record["watermark_boost"])

    def reclaim_would_do(self):
        """Some zone would pass MIN with all reclaimable pages."""
        return any(
            self.watermark_ok(
                zone, self.order, self.marked(zone, MIN), self.alloc_flags, self.free_pages(zone) + self.lru_pages(zone)
            )
            for zone in map(int, self.zones)
        )

    def compaction_suitable(self):
        """Some zone has room for targets, or would have after some reclaim."""
        gap = 2 << self.order
        if "compact_gap_capped" in self.mem.geometry.features:
            gap = min(gap, 32)
        which = LOW if self.order > 3 else MIN
        return any(
            self.watermark_ok(
                *(zone, 0, self.marked(zone, which) + gap, Alloc.CMA),
                self.free_pages(zone) + self.lru_pages(zone) // self.order,
            )
            for zone in map(int, self.zones)
        )


class Retries:
    """The counters of one request."""

    def __init__(self, world):
        self.world = world
        self.no_progress = self.compactions = 0
        self.priority = CompactPriority.SYNC_LIGHT

    def reclaim(self, progress):
        """should_reclaim_retry()."""
        if progress > 0 and self.world.order <= 3:
            self.no_progress = 0
        else:
            self.no_progress += 1
        if self.no_progress > 16:
            return self.world.unreserve(True)
        if self.world.reclaim_would_do():
            return True
        return self.world.unreserve(True)

    def compact(self, result):
        """should_compact_retry()."""
        costly = self.world.order > 3
        if self.world.order == 0:
            return False
        if result == CompactResult.SKIPPED:
            return self.world.compaction_suitable()
        if result == CompactResult.SUCCESS:
            self.compactions += 1
            if self.compactions <= (4 if costly else 16):
                return True
        if self.priority > (CompactPriority.SYNC_LIGHT if costly else CompactPriority.SYNC_FULL):
            self.priority = CompactPriority(self.priority - 1)
            self.compactions = 0
            return True
        return False


def may_oom(world):
    """A handle, None where nobody may be killed, or the end."""
    page = world.freelist("high", HIGH)
    if page is not None:
        return page
    if world.order > 3 or world.flags & {"RETRY_MAYFAIL", "THISNODE"} or world.highest < 2:
        return None
    world.log.append("oom")
    if "NOFAIL" in world.flags:
        page = world.freelist("no_watermarks", Alloc.NO_WATERMARKS)
        if page is not None:
            return page
    raise WouldOomError if "FS" in world.flags else WouldLoopError


def no_page(world, progress):
    """The label nopage: a handle, or None to retry."""
    if "NOFAIL" not in world.flags:
        raise FailedError
    page = world.freelist("min_reserve", Alloc.MIN_RESERVE)
    if page is None and progress == 0:
        raise WouldLoopError
    return page


def end_of_round(world, retries, progress, result):
    """What follows the compaction of a round, in both generations: a handle, or None to retry."""
    costly = world.order > 3
    can_compact = "IO" in world.flags and world.compact is not None
    if "NORETRY" in world.flags:
        return no_page(world, progress)
    if costly and not (can_compact and "RETRY_MAYFAIL" in world.flags):
        return no_page(world, progress)
    if retries.reclaim(progress):
        return None
    if progress > 0 and can_compact and retries.compact(result):
        return None
    page = may_oom(world)
    if page is not None:
        return page
    return no_page(world, 0)


def slow_path_612(world):  # noqa: C901 - in one piece, as the kernel has it
    """6.1 and 6.12, after the first attempt."""
    can_compact = "IO" in world.flags and world.compact is not None
    costly = world.order > 3
    retries = Retries(world)
    result = CompactResult.SKIPPED
    world.wake_kswapds()
    page = world.again()
    if page is not None:
        return page
    if can_compact and (costly or (world.order > 0 and not world.movable)) and not world.reserves:
        page, result = world.direct_compact(CompactPriority.ASYNC)
        if page is not None:
            return page
        if costly and "NORETRY" in world.flags:
            retries.priority = CompactPriority.ASYNC
            if result in (CompactResult.SKIPPED, CompactResult.DEFERRED) or "THISNODE" in world.flags:
                page = no_page(world, 0)
                if page is not None:
                    return page
    while True:
        world.next_round()
        world.wake_kswapds()
        world.apply_reserves()
        page = world.again()
        if page is not None:
            return page
        page, progress = world.direct_reclaim()
        if page is not None:
            return page
        page, result = world.direct_compact(retries.priority)
        if page is not None:
            return page
        page = end_of_round(world, retries, progress, result)
        if page is not None:
            return page


def slow_path_72(world):  # noqa: C901 - likewise
    """7.2 and 7.3, after the first attempt: one loop."""
    can_compact = "IO" in world.flags and world.compact is not None
    retries = Retries(world)
    compact_first = can_compact and (world.order > 3 or (world.order > 0 and not world.movable))
    if compact_first:
        retries.priority = CompactPriority.ASYNC
    progress = 0
    may_retry_reserves = world.reserves
    while True:
        world.next_round()
        world.wake_kswapds()
        page = world.again()
        if page is not None:
            return page
        world.apply_reserves()
        if may_retry_reserves:
            may_retry_reserves = False
            world.free_after_rounds = None
            continue
        if not compact_first:
            page, progress = world.direct_reclaim()
            if page is not None:
                return page
        page, result = world.direct_compact(retries.priority)
        if page is not None:
            return page
        if compact_first:
            if {"NORETRY", "THISNODE"} <= world.flags:
                page = no_page(world, progress)
                if page is not None:
                    return page
            if "NORETRY" not in world.flags:
                retries.priority = CompactPriority.SYNC_LIGHT
            compact_first = False
            continue
        page = end_of_round(world, retries, progress, result)
        if page is not None:
            return page


def alloc(world):
    """The first attempt, and the slow path after it: (handle or -1, outcome)."""
    page = world.freelist("low", world.common | LOW)
    if page is not None:
        world.log.clear()
        return page, None
    slow_path = slow_path_72 if "compact_first_once" in world.mem.geometry.features else slow_path_612
    try:
        return slow_path(world), "page"
    except FailedError:
        return -1, "failed"
    except WouldOomError:
        return -1, "would_oom"
    except WouldLoopError:
        return -1, "would_loop"


@kernel
def capture(mem, zone, cpu, order):
    """A block out of the lists, used and without a handle."""
    index = take_smallest(mem, zone, cpu, order, MOVABLE)
    if index != NONE:
        if not mem.params.features & HYGIENE:
            account(mem, zone, cpu, MOVABLE, -np.int64(ONE << order))
        mem.pages[index].state = USED | order
    return index


@kernel
def reserve_pageblock(mem, zone, cpu, index, order):
    reserve_highatomic(mem, zone, cpu, index, order)
