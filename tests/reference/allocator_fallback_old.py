"""The slow obvious twin of how older kernels find a block: __rmqueue_fallback of 6.1, and that of 6.10 to 6.14.

Neither remembers what worked for the block before. `Ungrouped` is mobility grouping off, for any version.
"""

from dataclasses import replace

from tests.reference.allocator_fallback import Finder
from tests.reference.allocator_zone import CMA, HIGHATOMIC, MOVABLE, UNMOVABLE


class OneFallbackFinder(Finder):
    """What 6.1 and 6.10 to 6.14 share: the own lists, CMA, and which fallback block is looked at."""

    def find(self, order, migratetype):
        """One block (__rmqueue), or None."""
        zone = self.zone
        if self.flags.cma and zone.free_cma_pages.value > zone.free_pages.value // 2:
            pfn = zone.take_smallest(order, CMA)
            if pfn is not None:
                return pfn
        pfn = zone.take_smallest(order, migratetype)
        if pfn is None and self.flags.cma:
            pfn = zone.take_smallest(order, CMA)
        return pfn if pfn is not None else self.find_fallback(order, migratetype)

    def find_fallback(self, order, migratetype):
        """A block out of another type's lists (__rmqueue_fallback), or None."""
        chosen = self.choose(order, migratetype)
        if chosen is None:
            return None
        self.zone.n_fallbacks += 1
        return self.steal_suitable_fallback(*chosen, order, migratetype)

    def choose(self, order, migratetype):
        """(order, list) of the fallback block: from the largest order down, or None.

        If that is too small to take its pageblock for, a MOVABLE request takes the smallest instead.
        """
        zone = self.zone
        lowest = max(order, zone.pageblock_order) if self.flags.nofragment else order
        for high in reversed(range(lowest, zone.max_order + 1)):
            other = self.fallback(high, migratetype)
            if other is None:
                continue
            if self.can_steal(high, migratetype) or high == order:
                return high, other
            return next(
                (low, type_) for low in range(order, high + 1) if (type_ := self.fallback(low, migratetype)) is not None
            )
        return None

    def can_steal(self, order, migratetype):
        """Is the block large enough to take its pageblock along (can_steal_fallback)?"""
        return order >= self.zone.pageblock_order // 2 or migratetype != MOVABLE

    def boost_and_flag(self):
        if self.boost() and self.flags.kswapd:
            self.zone.flags.add("BOOSTED")


class Finder610(OneFallbackFinder):
    """6.10 to 6.14: where the pageblock cannot be claimed, the page is split out of this very block."""

    def steal_suitable_fallback(self, high, other, order, migratetype):
        pfn = self.zone.head(high, other)
        if not self.can_steal(high, migratetype):
            self.boost_and_flag()
            return self.zone.take_split(pfn, order)
        claimed = self.try_claim(pfn, high, order, migratetype, other)
        return claimed if claimed is not None else self.zone.take_split(pfn, order)


class Finder61(OneFallbackFinder):
    """6.1: free blocks go to the request's lists, whether their pageblock becomes its own or not. For a `Zone61`."""

    page_group_by_mobility_disabled = False

    def steal_suitable_fallback(self, high, other, order, migratetype):
        """Fill the own lists, then take from them."""
        self.refill_lists(self.zone.head(high, other), high, migratetype)
        return self.zone.take_smallest(order, migratetype)

    def refill_lists(self, pfn, high, migratetype):
        """What steal_suitable_fallback does: it moves the block alone, or all free blocks of its pageblock."""
        zone = self.zone
        old = zone.type_of(pfn)
        free = movable = 0
        if high >= zone.pageblock_order and old != HIGHATOMIC:
            zone.set_types(pfn, high, migratetype)
        elif old != HIGHATOMIC:
            self.boost_and_flag()
            if self.can_steal(high, migratetype):
                free, movable = zone.move_freepages_block(pfn, migratetype, self.lru)
        if not free:
            zone.move(pfn, migratetype)
        elif self.may_own(old, free, movable, migratetype):
            zone.set_type(pfn, migratetype)

    def may_own(self, old, free, movable, migratetype):
        """The half-block test; `old` is the pageblock's type, whatever list the block was on."""
        if migratetype == MOVABLE:
            alike = movable
        elif old == MOVABLE:
            alike = self.zone.pageblock_nr_pages - (free + movable)
        else:
            alike = 0
        return free + alike >= 1 << (self.zone.pageblock_order - 1) or self.page_group_by_mobility_disabled


class Ungrouped:
    """Mixed into a finder of any version: page_group_by_mobility_disabled, every claim succeeds.

    For a zone with `UngroupedBlocks`.
    """

    page_group_by_mobility_disabled = True

    def find(self, order, migratetype):
        return super().find(order, UNMOVABLE)

    def count_block(self, block):
        """(free pages, movable pages): what passes the half-block test, since that is not made."""
        return self.zone.pageblock_nr_pages, 0


def ungrouped(request):
    """The request as its gfp bits are read then (gfp_migratetype): UNMOVABLE, so it never has ALLOC_CMA either."""
    return replace(request, migratetype=UNMOVABLE)
