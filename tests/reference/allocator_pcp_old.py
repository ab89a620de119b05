"""The slow obvious twin of 6.1's per-CPU page lists, and of what calls them there (mm/page_alloc.c of 6.1)."""

from dataclasses import dataclass

from tests.reference.allocator import Allocator
from tests.reference.allocator_fallback_old import Finder61
from tests.reference.allocator_pcp import COSTLY_ORDER, N_LISTS, PcpSet, clamp
from tests.reference.allocator_zone import CMA, HIGHATOMIC, MERGEABLE, MOVABLE


@dataclass
class PcpSet61(PcpSet):
    """One CPU's set of a `Zone61`: `high` is fixed, `batch` is the length of every order-0 refill."""

    free_factor: int = 0

    @classmethod
    def of(cls, zone, batch, high):
        """The lists 12 and 13 hold blocks of pageblock_order."""
        return cls(zone, batch, high, high_min=high, high_max=high, hpage_pmd_order=zone.pageblock_order)

    # -- allocation ----------------------------------------------------------------------------------------------

    def alloc(self, order, migratetype, finder):
        """rmqueue_pcplist."""
        self.free_factor >>= 1
        return super().alloc(order, migratetype, finder)

    def refill(self, order, migratetype, finder):
        """rmqueue_bulk: NR_FREE_CMA_PAGES is counted block by block, NR_FREE_PAGES once at the end."""
        pindex, zone = self.pindex(order, migratetype), self.zone
        taken = 0
        for _ in range(self.refill_length(order)):
            pfn = finder.find(order, migratetype)
            if pfn is None:
                break
            self.lists[pindex].append(pfn)
            zone.note("gtp>", pfn, pindex)
            taken += 1 << order
            if zone.pcppage_migratetypes[pfn] == CMA:
                zone.free_cma_pages.add(-(1 << order), zone.cpu)
        zone.free_pages.add(-taken, zone.cpu)
        self.count += taken

    def refill_length(self, order):
        """Blocks that a refill asks for (__rmqueue_pcplist)."""
        return max(self.batch >> order, 2) if self.batch > 1 else self.batch

    # -- free ----------------------------------------------------------------------------------------------------

    def free(self, pfn, order, migratetype):
        """Push, then drain if there are too many (free_unref_page_commit); True if it drained.

        The page remembers `migratetype`, its pageblock's of now (free_unref_page_prepare).
        """
        self.zone.pcppage_migratetypes[pfn] = migratetype
        pindex = self.pindex(order, migratetype)
        self.lists[pindex].appendleft(pfn)
        self.count += 1 << order
        self.zone.note("gtp+", pfn, pindex)
        free_high = self.free_factor > 0 and 0 < order <= COSTLY_ORDER
        high = self.drain_mark(free_high)
        if self.count < high:
            return False
        self.drain(self.drain_length(high, free_high), pindex)
        return True

    def drain_mark(self, free_high):
        """nr_pcp_high."""
        if free_high:
            return 0
        return min(self.batch << 2, self.high) if "RECLAIM_ACTIVE" in self.zone.flags else self.high

    def drain_length(self, high, free_high):
        """nr_pcp_free: doubles from free to free while nothing is allocated."""
        if free_high:
            return self.count
        if high < self.batch:
            return 1
        length, most = self.batch << self.free_factor, high - self.batch
        if length < most and self.free_factor < self.scale_max:
            self.free_factor += 1
        return clamp(length, self.batch, most)

    def decay(self):
        """The vmstat worker leaves the sets of the own node alone."""

    def drain(self, n_pages, pindex):
        """free_pcppages_bulk: each page under the type it remembers, unless a pageblock of the zone is isolated."""
        zone = self.zone
        isolated = zone.has_isolate_pageblock()
        n_pages = min(n_pages, self.count)
        while n_pages > 0:
            while not self.lists[pindex]:
                pindex = (pindex + 1) % N_LISTS
            order = self.order_of(pindex)
            pfn = self.lists[pindex].pop()
            n_pages -= 1 << order
            self.count -= 1 << order
            zone.note("gtpd", pfn, pindex)
            zone.free_one(pfn, order, zone.type_of(pfn) if isolated else zone.pcppage_migratetypes[pfn])


class Allocator61(Allocator):
    """6.1's watermarks, zone walk, rmqueue and HIGHATOMIC reserve, over `Zone61` and `PcpSet61`."""

    config_cma = True

    @staticmethod
    def watermark_ok(zone, order, mark, highest_zone, flags):
        """__zone_watermark_ok: the reserved pageblocks are out of reach, whether their pages are free or not."""
        if not flags.reserves:
            mark += zone.nr_reserved_highatomic
        return Allocator.watermark_ok(zone, order, mark, highest_zone, flags)

    def may_use(self, zone, request, flags):
        """No HIGH mark is looked at first: that came with the tuning of the page sets."""
        return flags.mark is None or self.watermark_fast(zone, flags.mark, request, flags)

    def finder(self, zone, flags):
        return Finder61(zone, flags, self.lru, self.watermark_boost_factor)

    def rmqueue(self, zone, request, flags, cpu):
        """A MOVABLE page set may hold CMA pages: who may not have these goes past it."""
        order, migratetype = request.order, request.migratetype
        pcp, pfn = self.pcp[zone.index, cpu], None
        if pcp.allowed(order) and (not self.config_cma or flags.cma or migratetype != MOVABLE):
            pfn = pcp.alloc(order, migratetype, self.finder(zone, flags))
        if pfn is None:
            pfn = self.rmqueue_buddy(zone, order, migratetype, flags)
        zone.flags.discard("BOOSTED")  # whoever asks wakes kswapd
        return pfn

    def rmqueue_buddy(self, zone, order, migratetype, flags):
        pfn = super().rmqueue_buddy(zone, order, migratetype, flags)
        if pfn is not None:
            zone.account(-(1 << order), zone.pcppage_migratetypes[pfn])
        return pfn

    @staticmethod
    def reserve_highatomic(zone, pfn, order):
        """One pageblock, whatever the order; it is HIGHATOMIC even if the zone's end keeps its free blocks back."""
        if zone.nr_reserved_highatomic >= zone.managed_pages // 100 + zone.pageblock_nr_pages:
            return
        if zone.type_of(pfn) in MERGEABLE:
            zone.nr_reserved_highatomic += zone.pageblock_nr_pages
            zone.set_type(pfn, HIGHATOMIC)
            zone.move_freepages_block(pfn, HIGHATOMIC)

    def unreserve_highatomic(self, request):
        """unreserve_highatomic_pageblock: it goes on to the next order where the zone's end kept the blocks back."""
        for zone in self.zonelist(request):
            if zone.nr_reserved_highatomic <= zone.pageblock_nr_pages:
                continue
            for order in range(zone.max_order + 1):
                pfn = zone.head(order, HIGHATOMIC)
                if pfn is None:
                    continue
                if zone.type_of(pfn) == HIGHATOMIC:
                    zone.nr_reserved_highatomic -= min(zone.pageblock_nr_pages, zone.nr_reserved_highatomic)
                zone.set_type(pfn, request.migratetype)
                if zone.move_freepages_block(pfn, request.migratetype)[0]:
                    return True
        return False

    def isolate_free_page(self, pfn):
        """__isolate_free_page: a pageblock made MOVABLE leaves its other free blocks on their lists."""
        zone = self.zone_of(pfn)
        zone.account(-(1 << zone.free_orders[pfn]), zone.type_of(pfn))
        order, _ = zone.remove(pfn)
        if order >= zone.pageblock_order - 1:
            for block in range(pfn, pfn + (1 << order), zone.pageblock_nr_pages):
                if zone.type_of(block) in MERGEABLE:
                    zone.set_type(block, MOVABLE)
        return order
