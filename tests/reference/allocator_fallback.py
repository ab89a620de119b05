"""The slow obvious twin of how 6.12.117 finds a block for a request: own lists, CMA, claiming and stealing.

`flags` are the request's AllocFlags, `lru` is the set of pfns that the half-block test counts as movable.
"""

from tests.reference.allocator_zone import CMA, HIGH, MOVABLE, RECLAIMABLE, UNMOVABLE

FALLBACKS = {UNMOVABLE: (RECLAIMABLE, MOVABLE), MOVABLE: (RECLAIMABLE, UNMOVABLE), RECLAIMABLE: (UNMOVABLE, MOVABLE)}
# enum rmqueue_mode: where the next block of the same refill starts to look.
NORMAL_MODE, CMA_MODE, CLAIM_MODE, STEAL_MODE = range(4)


class Finder:
    """Blocks of one refill, or of one request, from one zone; what worked last is remembered (enum rmqueue_mode)."""

    def __init__(self, zone, flags, lru, watermark_boost_factor):
        self.zone = zone
        self.flags = flags
        self.lru = lru
        self.watermark_boost_factor = watermark_boost_factor
        self.mode = NORMAL_MODE

    def find(self, order, migratetype):
        """One block (__rmqueue), or None."""
        zone = self.zone
        if self.flags.cma and zone.free_cma_pages.value > zone.free_pages.value // 2:
            pfn = zone.take_smallest(order, CMA)
            if pfn is not None:
                return pfn
        for mode in range(self.mode, STEAL_MODE + 1):
            pfn = self.try_mode(mode, order, migratetype)
            if pfn is not None:
                # A claim has filled the own lists again: the next block starts there.
                self.mode = NORMAL_MODE if mode == CLAIM_MODE else mode
                return pfn
        return None

    def try_mode(self, mode, order, migratetype):
        if mode == NORMAL_MODE:
            return self.zone.take_smallest(order, migratetype)
        if mode == CMA_MODE:
            return self.zone.take_smallest(order, CMA) if self.flags.cma else None
        if mode == CLAIM_MODE:
            return self.claim(order, migratetype)
        return None if self.flags.nofragment else self.steal(order, migratetype)

    def fallback(self, order, migratetype):
        """The first fallback type that has a block of that order, or None."""
        for other in FALLBACKS[migratetype]:
            if self.zone.head(order, other) is not None:
                return other
        return None

    def claim(self, order, migratetype):
        """Whole pageblocks, from the largest block down (__rmqueue_claim)."""
        zone = self.zone
        lowest = max(order, zone.pageblock_order) if self.flags.nofragment else order
        for high in reversed(range(lowest, zone.max_order + 1)):
            if high < zone.pageblock_order // 2 and migratetype == MOVABLE:
                break  # too small a block to take the pageblock for (should_try_claim_block)
            other = self.fallback(high, migratetype)
            if other is None:
                continue
            pfn = self.try_claim(zone.head(high, other), high, order, migratetype, other)
            if pfn is not None:
                zone.n_fallbacks += 1
                return pfn
        return None

    def try_claim(self, pfn, high, order, migratetype, other):
        """Make the block's pageblock the request's if that is mostly free or alike (try_to_claim_block)."""
        zone = self.zone
        if high >= zone.pageblock_order:
            zone.remove(pfn)
            zone.account(-(1 << high), other)
            zone.set_types(pfn, high, migratetype)
            zone.account(zone.expand(pfn, order, high, migratetype), migratetype)
            return pfn
        if self.boost() and self.flags.kswapd:
            zone.flags.add("BOOSTED")
        if not zone.spans_block(pfn):
            return None
        free, movable = self.count_block(zone.block_of(pfn))
        if migratetype == MOVABLE:
            alike = movable
        elif other == MOVABLE:
            alike = zone.pageblock_nr_pages - (free + movable)
        else:
            alike = 0
        if free + alike < 1 << (zone.pageblock_order - 1):
            return None
        zone.move_free_blocks(pfn, migratetype)
        return zone.take_smallest(order, migratetype)

    def count_block(self, block):
        """(free pages, movable pages) of a pageblock (prep_move_freepages_block)."""
        free = movable = 0
        pfn, end = block, block + self.zone.pageblock_nr_pages
        while pfn < end:
            order = self.zone.free_orders.get(pfn)
            if order is not None:
                free += 1 << order
                pfn += 1 << order
            else:
                movable += pfn in self.lru
                pfn += 1
        return free, movable

    def steal(self, order, migratetype):
        """One block, from the smallest order up; its pageblock stays what it is (__rmqueue_steal)."""
        zone = self.zone
        for high in range(order, zone.max_order + 1):
            other = self.fallback(high, migratetype)
            if other is not None:
                zone.n_fallbacks += 1
                return zone.take_split(zone.head(high, other), order)
        return None

    def boost(self):
        """Raise the watermarks for a while, so that kswapd makes room (boost_watermark); was it done?"""
        zone = self.zone
        if not self.watermark_boost_factor or zone.pageblock_nr_pages * 4 > zone.managed_pages:
            return False
        most = zone.watermarks[HIGH] * self.watermark_boost_factor // 10000
        if not most:
            return False
        most = max(zone.pageblock_nr_pages, most)
        zone.watermark_boost = min(zone.watermark_boost + zone.pageblock_nr_pages, most)
        return True
