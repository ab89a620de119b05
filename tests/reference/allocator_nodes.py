"""The slow twins of the page allocator put together to whole machines: several nodes, and what is in use.

By kernel: 6.12.117 is `Allocator` as it stands, and 7.3 with the features of its zones; 6.12 has the fallback of 6.10;
6.10 has the older rules for HIGHATOMIC and kswapd too; 6.1 has its own zones and page sets.
"""

from dataclasses import dataclass, replace

from tests.reference.allocator import Allocator
from tests.reference.allocator_fallback import Finder
from tests.reference.allocator_fallback_old import Finder61, Finder610, Ungrouped, ungrouped
from tests.reference.allocator_pcp_old import Allocator61
from tests.reference.allocator_request import NORMAL_INDEX, AllocFlags, Request
from tests.reference.allocator_zone import HIGHATOMIC, ISOLATE, MERGEABLE, MOVABLE, Capture, Zone, ZoneCounter
from tests.reference.allocator_zone_old import UngroupedBlocks, UngroupedZone, Zone61
from tests.reference.replay_lru import LruState, joins_lru

DMA32_INDEX = 1
GFP_TYPES = {"MOVABLE": MOVABLE, "RECLAIMABLE": 2}


class ZoneFlags(set):
    """A zone's flags; how often BOOSTED was cleared, which wakes kswapd."""

    n_woken = 0

    def discard(self, flag):
        self.n_woken += flag == "BOOSTED" and flag in self
        super().discard(flag)


class ReadCounter(ZoneCounter):
    """Readers never see less than 0 (zone_page_state), though `total` may be less while differences are outstanding."""

    @property
    def value(self):
        return max(0, self.total)

    @value.setter
    def value(self, value):
        self.total = value

    def add(self, delta, cpu):
        difference = self.differences.get(cpu, 0) + delta
        self.differences[cpu] = difference
        if abs(difference) > self.threshold:
            self.fold(cpu)

    def fold(self, cpu):
        difference = self.differences.pop(cpu, 0)
        self.total += difference
        return difference


class NodeZone61(Zone61):
    """A pageblock may belong to two zones: only the zone's own isolated ones count."""

    def has_isolate_pageblock(self):
        blocks = range(self.block_of(self.start_pfn), self.end_pfn, self.pageblock_nr_pages)
        return any(self.block_types[block] == ISOLATE and self.spans_block(block) for block in blocks)


class UngroupedZone61(UngroupedBlocks, NodeZone61):
    pass


class UngroupedFinder(Ungrouped, Finder):
    pass


class UngroupedFinder610(Ungrouped, Finder610):
    pass


class UngroupedFinder61(Ungrouped, Finder61):
    pass


@dataclass(frozen=True)
class NodeRequest(Request):
    """A request on a node."""

    node: int = 0

    @classmethod
    def of(cls, order, gfp_text, node, grouped, config_dma32):
        """Without mobility grouping all are UNMOVABLE; a zone that is not configured is Normal (gfp_zone)."""
        gfp = cls.parse(order, 0, gfp_text).gfp
        migratetype = max((GFP_TYPES.get(bit, 0) for bit in gfp), default=0)
        request = cls(order, migratetype, gfp if config_dma32 else gfp - {"DMA", "DMA32"}, node)
        return request if grouped else ungrouped(request)


class Nodes:
    """Mixed into an allocator, for machines: each zone has a `node`.

    `config_dma32`, `config_cma`: how the kernel was built.
    """

    config_dma32 = config_cma = True

    def start(self, sets, finder, lru_batch_size):
        """`sets`: {node: {(zone index, cpu): page set}}."""
        self.sets, self.finder_kind = sets, finder
        self.lru_state = LruState(self.lru)
        self.lru_state.batch_size = lru_batch_size
        self.used = {}  # first pfn -> order
        self.n_allocated = {zone.index: 0 for zone in self.zones}
        self.n_freed = 0
        self.zonelists = {}
        self.isolated = {}  # blocks that compaction holds: first pfn -> order

    def finder(self, zone, flags):
        return self.finder_kind(zone, flags, self.lru, self.watermark_boost_factor)

    def pcp_of(self, zone, cpu):
        return self.sets[zone.node][zone.index, cpu]

    def free_pages(self, pfn, order, cpu):
        self.pcp = self.sets[self.zone_of(pfn).node]
        super().free_pages(pfn, order, cpu)

    def drain_all(self, *zones):
        """The page sets of these zones, CPUs and then zones ascending; pages drained."""
        n_pages = 0
        for cpu in sorted({cpu for sets in self.sets.values() for _, cpu in sets}):
            for zone in (zone for zone in self.zones if any(zone is wanted for wanted in zones)):
                pcp = self.pcp_of(zone, cpu)
                n_pages += pcp.count
                pcp.drain_all()
        return n_pages

    # -- the zones of a request ----------------------------------------------------------------------------------

    def zonelist(self, request):
        """Its node's zones from the highest down, then those of the next nodes, then of the lower ones."""
        key = request.node, request.highest_zone
        if key not in self.zonelists:
            others = sorted({zone.node for zone in self.zones} - {request.node})
            nodes = [request.node, *[n for n in others if n > request.node], *[n for n in others if n < request.node]]
            zones = [zone for zone in reversed(self.zones) if zone.index <= request.highest_zone]
            self.zonelists[key] = [zone for node in nodes for zone in zones if zone.node == node]
        return self.zonelists[key]

    def avoids_mixing(self, preferred):
        """alloc_flags_nofragment; with several nodes the preferred one must have a DMA32 zone."""
        if not self.config_dma32 or preferred.index != NORMAL_INDEX:
            return False
        one_node = len({zone.node for zone in self.zones}) == 1
        return one_node or any(zone.node == preferred.node and zone.index == DMA32_INDEX for zone in self.zones)

    def get_page_from_freelist(self, request, flags, cpu, skip=True):
        """Before a zone of another node is looked at, types may mix (NOFRAGMENT ends, and all begins anew).

        `skip`: with skip_awake_nodes zones that kswapd balances have their turn in a second round only.
        """
        zonelist, skipped = self.zonelist(request), False
        skip = skip and len({zone.node for zone in self.zones}) > 1 and "skip_awake_nodes" in zonelist[0].features
        for zone in zonelist:
            if flags.nofragment and zone.node != zonelist[0].node:
                return self.get_page_from_freelist(request, replace(flags, nofragment=False), cpu, skip)
            if skip and "RECLAIM_ACTIVE" in zone.flags:
                skipped = True
            elif self.may_use(zone, request, flags):
                pfn = self.rmqueue(zone, request, flags, cpu)
                if pfn is not None:
                    if flags.highatomic and "highatomic_by_buddy" not in zone.features:
                        self.reserve_highatomic(zone, pfn, request.order)
                    return pfn
        if skipped:
            return self.get_page_from_freelist(request, flags, cpu, skip=False)
        if flags.nofragment:
            return self.get_page_from_freelist(request, replace(flags, nofragment=False), cpu, skip)
        return None

    # -- requests ------------------------------------------------------------------------------------------------

    def attempts(self, request, preferred):
        """The flags of each attempt; who may use all reserves (__GFP_MEMALLOC) has a third."""
        cma = self.config_cma and request.migratetype == MOVABLE
        yield replace(AllocFlags.fast(request, preferred), cma=cma, nofragment=self.avoids_mixing(preferred))
        slow = replace(AllocFlags.slow(request), cma=cma)
        yield slow
        if "MEMALLOC" in request.gfp:
            yield AllocFlags(mark=None, cma=cma, kswapd=slow.kswapd)

    def alloc_pages(self, request, cpu):
        zonelist = self.zonelist(request)
        flags = self.attempts(request, zonelist[0]) if zonelist else ()
        pfns = (self.get_page_from_freelist(request, each, cpu) for each in flags)
        return next((pfn for pfn in pfns if pfn is not None), None)

    def rmqueue(self, zone, request, flags, cpu):
        self.pcp = self.sets[zone.node]
        return super().rmqueue(zone, request, flags, cpu)

    def alloc(self, request, cpu):
        """A folio: its first pfn, or None."""
        self.run_on(cpu)
        pfn = self.alloc_pages(request, cpu)
        if pfn is not None:
            self.used[pfn] = request.order
            self.n_allocated[self.zone_of(pfn).index] += 1 << request.order
            if joins_lru(request):
                self.lru_state.add(pfn, request.order, cpu)
        return pfn

    def free(self, pfn, cpu):
        order = self.used.pop(pfn)
        self.run_on(cpu)
        self.lru_state.remove(pfn, order)
        self.n_freed += 1 << order
        self.free_pages(pfn, order, cpu)

    def vmstat_update(self, cpu):
        """The vmstat worker (refresh_cpu_vm_stats)."""
        self.run_on(cpu)
        for zone in self.zones:
            zone.free_pages.fold(cpu)
            zone.free_cma_pages.fold(cpu)
            self.sets[zone.node][zone.index, cpu].decay()

    def unreserve(self, request, cpu):
        self.run_on(cpu)
        return self.unreserve_highatomic(request)

    def drain_set(self, zone, cpu, wanted=None):
        """Empty one page set of a zone, on its CPU; the page that a task waits for (order, migratetype), or None."""
        capture = wanted and Capture(*wanted)
        self.run_on(cpu, capture and (zone, capture))
        self.sets[zone.node][zone.index, cpu].drain_all()
        self.run_on(cpu)
        if capture is None or capture.pfn is None:
            return None
        self.used[capture.pfn] = capture.order
        return capture.pfn


class Allocator612(Nodes, Allocator):
    """6.12 and later."""


class Allocator610(Nodes, Allocator):
    """6.10: the whole reserve is out of reach, a zone of any size has one, and whoever asks wakes kswapd."""

    @staticmethod
    def watermark_ok(zone, order, mark, highest_zone, flags):
        if not flags.reserves:
            mark += zone.nr_reserved_highatomic - zone.nr_free_highatomic
        return Allocator.watermark_ok(zone, order, mark, highest_zone, flags)

    def rmqueue(self, zone, request, flags, cpu):
        pfn = super().rmqueue(zone, request, flags, cpu)
        zone.flags.discard("BOOSTED")
        return pfn

    @staticmethod
    def reserve_highatomic(zone, pfn, order):
        if zone.nr_reserved_highatomic >= zone.managed_pages // 100 + zone.pageblock_nr_pages:
            return
        if zone.type_of(pfn) not in MERGEABLE:
            return
        if order >= zone.pageblock_order:
            zone.set_types(pfn, order, HIGHATOMIC)
        elif not zone.move_free_blocks(pfn, HIGHATOMIC):
            return
        zone.nr_reserved_highatomic += max(zone.pageblock_nr_pages, 1 << order)


class NodeAllocator61(Nodes, Allocator61):
    """6.1."""


# kernel -> (allocator, grouped: (zone, finder), not grouped: (zone, finder))
KERNELS = {
    "6.1": (NodeAllocator61, (NodeZone61, Finder61), (UngroupedZone61, UngroupedFinder61)),
    "6.10": (Allocator610, (Zone, Finder610), (UngroupedZone, UngroupedFinder610)),
    "6.12": (Allocator612, (Zone, Finder610), (UngroupedZone, UngroupedFinder610)),
    "6.12.117": (Allocator612, (Zone, Finder), (UngroupedZone, UngroupedFinder)),
    "7.3": (Allocator612, (Zone, Finder), (UngroupedZone, UngroupedFinder)),
}
