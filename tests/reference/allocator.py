"""The slow obvious twin of Linux 6.12.117's page allocator: one node, zones ascending, a page set a zone and CPU.

What later kernels do otherwise, up to 7.3, are the names in a zone's `features` (memmodel.sources.features).
Plain Python throughout: it is what the compiled kernels are compared with. allocator_zone.py has the buddy lists,
allocator_fallback.py how a block is found, allocator_pcp.py the per-CPU lists, allocator_request.py the flags,
allocator_isolation.py what cma_alloc does to pageblocks; here are the watermarks, the walk over the zones, and the
ways a page comes back. Mobility grouping is on, and no pageblock belongs to two zones.
"""

from collections import OrderedDict, deque
from dataclasses import replace

from tests.reference.allocator_fallback import Finder
from tests.reference.allocator_pcp import PcpSet
from tests.reference.allocator_request import MOVABLE_INDEX, ZONE_INDEX, AllocFlags
from tests.reference.allocator_zone import CMA, HIGH, HIGHATOMIC, ISOLATE, MERGEABLE, MIN, MOVABLE, Zone, ZoneCounter


class Allocator:
    """`lru` are the pfns on an LRU list: they decide whether a pageblock may be claimed. `operations` logs if set."""

    def __init__(self, zones, pcp, watermark_boost_factor=15000):
        self.zones = zones
        self.pcp = pcp  # (zone index, cpu) -> PcpSet
        self.watermark_boost_factor = watermark_boost_factor
        self.lru = set()

    @classmethod
    def from_free_lists(cls, state, protection, thresholds, features=frozenset(), folded=True, **settings):
        """From a dump (memmodel.sources.records.FreeLists); protection and vm stat thresholds by the zone's name.

        `folded`: the CPU went idle after the dump, so that the counters start without differences.
        """
        zones, pcp = [], {}
        for lists in state.zones:
            zone = zone_from_lists(state, lists, protection[lists.name], thresholds[lists.name], folded)
            zone.features = features
            zones.append(zone)
            for dumped in lists.pcp:
                pcp[zone.index, dumped.cpu] = pcp_from_dump(zone, dumped, state.page_shift)
        return cls(sorted(zones, key=lambda zone: zone.index), pcp, **settings)

    def log_to(self, operations):
        for zone in self.zones:
            zone.operations = operations

    def run_on(self, cpu, capture=None):
        """What follows is done on that CPU, by a task whose compaction waits for `capture`: (zone, Capture) or None."""
        for zone in self.zones:
            zone.cpu = cpu
            zone.capture = capture[1] if capture and capture[0] is zone else None

    def after_piece(self, function):
        for zone in self.zones:
            zone.after_piece = function

    def fold_counters(self, cpu):
        """A CPU that goes idle brings its differences in (quiet_vmstat); were there any?"""
        counters = [counter for zone in self.zones for counter in (zone.free_pages, zone.free_cma_pages)]
        differences = [counter.fold(cpu) for counter in counters]
        return any(differences)

    def vmstat_update(self, cpu):
        """The vmstat worker: each zone's differences, then its page set (refresh_cpu_vm_stats)."""
        for zone in self.zones:
            zone.free_pages.fold(cpu)
            zone.free_cma_pages.fold(cpu)
            self.pcp[zone.index, cpu].decay()

    def zone_of(self, pfn):
        return next(zone for zone in self.zones if zone.spans(pfn))

    def pcp_of(self, zone, cpu):
        return self.pcp[zone.index, cpu]

    def zonelist(self, request):
        return [zone for zone in reversed(self.zones) if zone.index <= request.highest_zone]

    # -- watermarks ----------------------------------------------------------------------------------------------

    @staticmethod
    def watermark_ok(zone, order, mark, highest_zone, flags):
        """Enough free pages for a request of that order above the mark, in pages (__zone_watermark_ok)?"""
        free = zone.free_pages.value - ((1 << order) - 1)
        if not flags.reserves:
            free -= zone.nr_free_highatomic
        if not flags.cma:
            free -= zone.free_cma_pages.value
        if flags.reserves:
            if flags.min_reserve:
                mark -= mark // 2
                if flags.non_block:
                    mark -= mark // 4
            if flags.oom:
                mark -= mark // 2
        if free <= mark + zone.lowmem_reserve[highest_zone]:
            return False
        usable = (*MERGEABLE, *[CMA] * flags.cma, *[HIGHATOMIC] * (flags.highatomic or flags.oom))
        orders = range(order, zone.max_order + 1)
        return order == 0 or any(zone.lists.get((o, migratetype)) for o in orders for migratetype in usable)

    def watermark_fast(self, zone, name, request, flags):
        """The test before an allocation (zone_watermark_fast); urgent order-0 requests may ignore a boost."""
        mark = zone.watermarks[name]
        if self.watermark_ok(zone, request.order, mark + zone.watermark_boost, request.highest_zone, flags):
            return True
        urgent = request.order == 0 and flags.min_reserve and zone.watermark_boost and name == flags.mark == MIN
        return bool(urgent) and self.watermark_ok(zone, 0, mark, request.highest_zone, flags)

    # -- allocation ----------------------------------------------------------------------------------------------

    def alloc_pages(self, request, cpu):
        """The first pfn, or None: both attempts of a request that neither reclaims nor compacts."""
        pfn = self.fast_attempt(request, cpu)
        return pfn if pfn is not None else self.slow_attempt(request, cpu)

    def fast_attempt(self, request, cpu):
        flags = AllocFlags.fast(request, self.zonelist(request)[0])
        return self.get_page_from_freelist(request, flags, cpu)

    def slow_attempt(self, request, cpu):
        return self.get_page_from_freelist(request, AllocFlags.slow(request), cpu)

    def get_page_from_freelist(self, request, flags, cpu):
        """The zones from the highest down; a second round may mix types within pageblocks."""
        for zone in self.zonelist(request):
            if self.may_use(zone, request, flags):
                pfn = self.rmqueue(zone, request, flags, cpu)
                if pfn is not None:
                    if flags.highatomic and "highatomic_by_buddy" not in zone.features:
                        self.reserve_highatomic(zone, pfn, request.order)
                    return pfn
        if flags.nofragment:
            return self.get_page_from_freelist(request, replace(flags, nofragment=False), cpu)
        return None

    def may_use(self, zone, request, flags):
        """Does the zone have enough? Failing the HIGH mark is remembered: the page sets shrink then."""
        if "BELOW_HIGH" not in zone.flags:
            if self.watermark_fast(zone, HIGH, request, flags):
                return True
            zone.flags.add("BELOW_HIGH")
        return flags.mark is None or self.watermark_fast(zone, flags.mark, request, flags)

    def rmqueue(self, zone, request, flags, cpu):
        """A page of the zone, by way of the CPU's list if the order has one (rmqueue)."""
        order, migratetype = request.order, request.migratetype
        pcp, pfn = self.pcp[zone.index, cpu], None
        if pcp.allowed(order):
            pfn = pcp.alloc(order, migratetype, self.finder(zone, flags))
        if pfn is None:
            pfn = self.rmqueue_buddy(zone, order, migratetype, flags)
        if flags.kswapd:
            zone.flags.discard("BOOSTED")  # kswapd is woken
        return pfn

    def finder(self, zone, flags):
        return Finder(zone, flags, self.lru, self.watermark_boost_factor)

    def rmqueue_buddy(self, zone, order, migratetype, flags):
        """One block straight from the buddy lists (rmqueue_buddy)."""
        pfn = zone.take_smallest(order, HIGHATOMIC) if flags.highatomic else None
        if pfn is None:
            pfn = self.finder(zone, flags).find(order, migratetype)
        if pfn is None and (flags.oom or flags.non_block):
            pfn = zone.take_smallest(order, HIGHATOMIC)
        if pfn is not None and flags.highatomic and "highatomic_by_buddy" in zone.features and flags.mark == MIN:
            self.reserve_highatomic(zone, pfn, order)
        return pfn

    @staticmethod
    def reserve_highatomic(zone, pfn, order):
        """Keep the pageblock for urgent requests, up to 1 % of the zone (reserve_highatomic_pageblock)."""
        pageblock, percent = zone.pageblock_nr_pages, zone.managed_pages // 100
        most = -(-percent // pageblock) * pageblock if percent >= pageblock else 0
        if zone.nr_reserved_highatomic >= most or zone.type_of(pfn) not in MERGEABLE:
            return
        if order >= zone.pageblock_order:
            zone.set_types(pfn, order, HIGHATOMIC)
        elif not zone.move_free_blocks(pfn, HIGHATOMIC):
            return
        zone.nr_reserved_highatomic += max(pageblock, 1 << order)

    def unreserve_highatomic(self, request):
        """One pageblock of the reserve becomes the request's, but the zone's last (unreserve_highatomic_pageblock)."""
        for zone in self.zonelist(request):
            if zone.nr_reserved_highatomic <= zone.pageblock_nr_pages:
                continue
            for order in range(zone.max_order + 1):
                pfn = zone.head(order, HIGHATOMIC)
                if pfn is None:
                    continue
                size = max(zone.pageblock_nr_pages, 1 << order)
                zone.nr_reserved_highatomic -= min(size, zone.nr_reserved_highatomic)
                if order >= zone.pageblock_order:
                    zone.move(pfn, request.migratetype)
                    zone.set_types(pfn, order, request.migratetype)
                    return True
                if zone.move_free_blocks(pfn, request.migratetype):
                    return True
        return False

    # -- free ----------------------------------------------------------------------------------------------------

    def free_pages(self, pfn, order, cpu):
        """A page comes back (free_unref_page)."""
        zone = self.zone_of(pfn)
        pcp, migratetype = self.pcp[zone.index, cpu], zone.type_of(pfn)
        if not pcp.allowed(order) or migratetype == ISOLATE:
            zone.free_direct(pfn, order)
        elif pcp.free(pfn, order, migratetype):
            self.leave_below_high(zone)

    def free_contig_range(self, pfn, n_pages, cpu):
        """A range of single pages comes back in the largest aligned blocks, ascending (contig_free_chunks)."""
        end = pfn + n_pages
        while pfn < end:
            order = min(self.zone_of(pfn).max_order, (end - pfn).bit_length() - 1, (pfn & -pfn).bit_length() - 1)
            self.free_pages(pfn, order, cpu)
            pfn += 1 << order

    def leave_below_high(self, zone):
        """Looked at after a drain only."""
        mark = zone.watermarks[HIGH] + zone.watermark_boost
        if self.watermark_ok(zone, 0, mark, MOVABLE_INDEX, AllocFlags(mark=HIGH)):
            zone.flags.discard("BELOW_HIGH")

    def drain_all(self, *zones):
        """Empty the page sets of these zones, CPUs and then zones ascending (drain_all_pages); pages drained."""
        n_pages = 0
        for _, pcp in sorted(self.pcp.items(), key=lambda item: (item[0][1], item[0][0])):
            if any(pcp.zone is zone for zone in zones):
                n_pages += pcp.count
                pcp.drain_all()
        return n_pages

    # -- compaction ----------------------------------------------------------------------------------------------

    def isolate_free_page(self, pfn):
        """Compaction takes a whole free block (__isolate_free_page): its order.

        Half a pageblock or more makes the pageblock MOVABLE.
        """
        zone = self.zone_of(pfn)
        order, migratetype = zone.remove(pfn)
        zone.account(-(1 << order), migratetype)
        if order >= zone.pageblock_order - 1:
            for block in range(pfn, pfn + (1 << order), zone.pageblock_nr_pages):
                if zone.type_of(block) in MERGEABLE:
                    zone.move_free_blocks(block, MOVABLE)
        return order


def start_counter(total, dumped, threshold, folded):
    """What the dumped counter lacks of the lists' sum is in the difference of CPU 0 (no dump says which CPU's)."""
    if folded or dumped is None:
        return ZoneCounter(total, threshold)
    return ZoneCounter(dumped, threshold, {0: total - dumped})


def zone_from_lists(state, lists, protection, threshold, folded):
    """A zone as dumped."""
    boost = lists.watermark_boost or 0
    blocks = {key: OrderedDict.fromkeys(pfns.tolist()) for key, pfns in lists.lists.items()}
    free = {key: len(pfns) << key[0] for key, pfns in blocks.items() if key[1] != ISOLATE}
    free_cma = sum(n_pages for (_, migratetype), n_pages in free.items() if migratetype == CMA)
    return Zone(
        name=lists.name,
        index=ZONE_INDEX[lists.name],
        start_pfn=lists.start_pfn,
        end_pfn=lists.end_pfn,
        managed_pages=lists.managed_pages,
        max_order=state.max_order,
        pageblock_order=state.pageblock_order,
        watermarks={name: pages - boost for name, pages in lists.watermarks.items()},
        lowmem_reserve=protection,
        free_pages=start_counter(sum(free.values()), lists.free_pages, threshold, folded),
        free_cma_pages=start_counter(free_cma, lists.free_cma_pages, threshold, folded),
        block_types=dict(zip(lists.block_pfns.tolist(), lists.block_migratetypes.tolist(), strict=True)),
        nr_free_highatomic=lists.nr_free_highatomic or 0,
        nr_reserved_highatomic=lists.reserved_highatomic or 0,
        watermark_boost=boost,
        lists=blocks,
        free_orders={pfn: order for (order, _), pfns in blocks.items() for pfn in pfns},
    )


def pcp_from_dump(zone, dumped, page_shift):
    hpage_pmd_order = page_shift - 3  # a page of 8-byte entries
    pcp = PcpSet(
        zone=zone,
        batch=dumped.batch,
        high=dumped.high,
        high_min=dumped.high_min,
        high_max=dumped.high_max,
        hpage_pmd_order=hpage_pmd_order if "pcp_pmd_order" in zone.features else zone.pageblock_order,
        count=dumped.count,
        free_count=dumped.free_count,
    )
    for pindex, pfns in dumped.lists.items():
        pcp.lists[pindex] = deque(pfns.tolist())
    return pcp
