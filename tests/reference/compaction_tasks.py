"""The slow obvious twin of who compacts and when: requests, kcompactd and /proc/sys/vm/compact_memory.

A CompactionTask is one task's call; its methods are generators of the events that compaction.py lists.
"""

from dataclasses import replace

from tests.reference.allocator_request import AllocFlags
from tests.reference.allocator_zone import MIN, Capture
from tests.reference.compaction import Compaction, suit_allocation_order
from tests.reference.compaction_state import (
    ALL_ORDERS,
    ASYNC,
    SYNC,
    SYNC_LIGHT,
    Pages,
    Status,
    ZoneMemory,
    reset_isolation_suitable,
)
from tests.reference.replay_lru import LruState

PRIORITY_FULL, PRIORITY_LIGHT, PRIORITY_ASYNC = range(3)  # enum compact_priority
FAILED = (Status.COMPLETE, Status.PARTIAL_SKIPPED)
KCOMPACTD_FLAGS = AllocFlags(mark=MIN)


class Compactor:
    """What all compactions of an allocator share: what is in the pages, and what each zone remembers."""

    def __init__(self, allocator, pages=None, proactiveness=20, unevictable_allowed=True):
        self.allocator = allocator
        self.pages = pages or Pages(LruState(allocator.lru))
        if "lru_batch_31" not in allocator.zones[0].features:
            self.pages.lru.batch_size = 15
        skip = set()  # a pageblock may belong to two zones
        self.memory = {id(zone): ZoneMemory(skip=skip) for zone in allocator.zones}
        self.proactiveness = proactiveness  # vm.compaction_proactiveness
        self.unevictable_allowed = unevictable_allowed  # vm.compact_unevictable_allowed
        self.kswapd_runs = False
        self.hpage_pmd_order = None  # that of the per-CPU lists
        self.batch_pages = 512  # NR_MAX_BATCHED_MIGRATION
        self.n_searched = 0  # entries of free lists that searches for sources have looked at

    def memory_of(self, zone):
        return self.memory[id(zone)]

    def huge_order(self, zone, cpu=0):
        """Of a page that a PMD maps."""
        if self.hpage_pmd_order is not None:
            return self.hpage_pmd_order
        return self.allocator.pcp_of(zone, cpu).hpage_pmd_order

    def take_searched(self):
        """No event tells them."""
        n_searched, self.n_searched = self.n_searched, 0
        return n_searched

    def zones_of(self, node):
        """Ascending; zones of machines with one node do not say theirs."""
        return [zone for zone in self.allocator.zones if getattr(zone, "node", 0) == node]

    def flags_of(self, request):
        """Of the attempt that compacts."""
        flags = AllocFlags.slow(request)
        return replace(flags, cma=flags.cma and getattr(self.allocator, "config_cma", True))

    def before_kswapd_sleeps(self):
        """reset_isolation_suitable."""
        for zone in self.allocator.zones:
            reset_isolation_suitable(zone, self.memory_of(zone), self.pages)

    def page_allocated(self, zone, order):
        """A request has got its page after a compaction (__alloc_pages_direct_compact)."""
        memory = self.memory_of(zone)
        memory.blockskip_flush = False
        memory.defer_reset(order, allocated=True)
        return "defer_reset", *memory.deferral(zone, order)

    def node_suitable(self, order, highest_zone, node=0):
        """Has some zone anything to do for kcompactd (kcompactd_node_suitable)? Generator; returns it."""
        for zone in self.zones_of(node):
            if zone.index <= highest_zone and (yield from self.suit(zone, order)) == Status.CONTINUE:
                return True
        return False

    def suit(self, zone, order):
        arguments = self.allocator, zone, order, zone.index, KCOMPACTD_FLAGS, SYNC_LIGHT
        return (yield from suit_allocation_order(*arguments))

    # -- proactive compaction ------------------------------------------------------------------------------------

    def score(self, zone):
        """Per cent of the free pages that are in blocks too small for a huge page (extfrag_for_order)."""
        huge = self.huge_order(zone)
        sizes = [(order, len(blocks) << order) for (order, _), blocks in zone.lists.items()]
        n_free = sum(n_pages for _, n_pages in sizes)
        n_suitable = sum(n_pages >> huge for order, n_pages in sizes if order >= huge) << huge
        return (n_free - n_suitable) * 100 // n_free if n_free else 0

    def node_score(self, present, node=0):
        """The zones' scores by their present pages, {zone index: pages of the node}."""
        n_node = sum(present.values())
        return sum(present[zone.index] * self.score(zone) // (n_node + 1) for zone in self.zones_of(node))

    def low_mark(self):
        low = 100 - self.proactiveness
        return low if self.newer() else max(low, 5)

    def high_mark(self):
        low = self.low_mark()
        return min(100, low + (min(10, low // 2) if self.newer() else 10))

    def newer(self):
        return "pageblock_order_sources" in self.allocator.zones[0].features

    def is_due(self, present, node=0):
        """Does kcompactd begin by itself (should_proactive_compact_node)?"""
        return self.proactiveness > 0 and not self.kswapd_runs and self.node_score(present, node) > self.high_mark()

    def goes_on(self, zone):
        """When a proactive run ends (__compact_finished)."""
        if self.kswapd_runs:
            return Status.PARTIAL_SKIPPED
        return Status.CONTINUE if self.score(zone) > self.low_mark() else Status.SUCCESS


class CompactionTask:
    """`run` is the Compaction of now or the last one; `captured` the page that a request's own frees have made."""

    def __init__(self, compactor, cpu=0):
        self.compactor, self.cpu = compactor, cpu
        self.run = None
        self.captured = None
        self.zone = None  # what is looked at now

    def compact_zone(self, zone, order, mode, **options):
        self.zone = zone
        self.run = Compaction(self.compactor, zone, order, mode, cpu=self.cpu, **options)
        return (yield from self.run.run())

    def memory_of(self, zone):
        self.zone = zone
        return self.compactor.memory_of(zone)

    def deferred(self, zone, order):
        memory = self.memory_of(zone)
        if not memory.deferred(order):
            return False
        yield "deferred", *memory.deferral(zone, order)
        return True

    def direct(self, request, priority):
        """try_to_compact_pages: the Status of the zone that came furthest."""
        result = Status.SKIPPED
        for zone in self.compactor.allocator.zonelist(request):
            if priority > PRIORITY_FULL and (yield from self.deferred(zone, request.order)):
                result = max(result, Status.DEFERRED)
                continue
            status = yield from self.compact_zone_order(zone, request, priority)
            result = max(result, status)
            memory = self.memory_of(zone)
            if status == Status.SUCCESS:
                memory.defer_reset(request.order, allocated=False)
                yield "defer_reset", *memory.deferral(zone, request.order)
                break
            if priority != PRIORITY_ASYNC and status in FAILED:
                memory.defer(request.order)
                yield "defer", *memory.deferral(zone, request.order)
        return result

    def compact_zone_order(self, zone, request, priority):
        full = priority == PRIORITY_FULL
        capture = Capture(request.order, request.migratetype)
        status = yield from self.compact_zone(
            zone,
            request.order,
            ASYNC if priority == PRIORITY_ASYNC else SYNC_LIGHT,
            direct=True,
            migratetype=request.migratetype,
            whole_zone=full,
            ignore_skip=full,
            ignore_suitable=full,
            flags=self.compactor.flags_of(request),
            highest_zone=request.highest_zone,
            fs="FS" in request.gfp,
            capture=capture,
        )
        self.captured = capture.pfn
        return status if capture.pfn is None else Status.SUCCESS

    def kcompactd(self, order, highest_zone, node=0):
        """kcompactd_do_work; what a run leaves in its struct compact_control the next zone's finds there."""
        kept = {"highest_zone": highest_zone, "drains_at_end": True}
        for zone in self.compactor.zones_of(node):
            if zone.index > highest_zone or (yield from self.deferred(zone, order)):
                continue
            if (yield from self.compactor.suit(zone, order)) != Status.CONTINUE:
                continue
            status = yield from self.compact_zone(zone, order, SYNC_LIGHT, **kept)
            kept["search"] = self.run.search_order, self.run.fast_search_fail
            kept["whole_zone"] = self.run.whole_zone
            memory = self.memory_of(zone)
            if status == Status.SUCCESS:
                memory.defer_reset(order, allocated=False)
                yield "defer_reset", *memory.deferral(zone, order)
            elif status in FAILED:
                self.run.drain_next = False
                self.compactor.allocator.run_on(self.cpu)
                yield "drain", self.compactor.allocator.drain_all(zone)
                memory.defer(order)
                yield "defer", *memory.deferral(zone, order)

    def compact_memory(self):
        """sysctl_compaction_handler: everything."""
        self.compactor.pages.lru.drain_all()
        for zone in sorted(self.compactor.allocator.zones, key=lambda zone: (getattr(zone, "node", 0), zone.index)):
            yield from self.compact_zone(zone, ALL_ORDERS, SYNC, whole_zone=True, ignore_skip=True)

    def proactive(self, node=0):
        """proactive_compact_node."""
        for zone in self.compactor.zones_of(node):
            yield from self.compact_zone(
                zone,
                ALL_ORDERS,
                SYNC_LIGHT,
                whole_zone=True,
                ignore_skip=True,
                proactive=lambda zone=zone: self.compactor.goes_on(zone),
            )
