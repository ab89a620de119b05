"""The slow obvious twin of the buddy lists before 6.10, and of zones where mobility grouping is off.

Read: mm/page_alloc.c of 6.1. There a free block may be on another list than its pageblock's type says, so the type of
its list is kept by the block.
"""

from dataclasses import dataclass, field

from tests.reference.allocator_zone import CMA, HIGH, ISOLATE, MERGEABLE, MOVABLE, UNMOVABLE, Zone


def page_group_by_mobility_disabled(zones, n_migratetypes):
    """Is there too little memory to keep the types apart (build_all_zonelists)?

    `zones` are all that a movable request may use; at boot their high watermark is still 0. `n_migratetypes` is
    MIGRATE_TYPES: 6 with CMA and memory isolation, 5 without CMA, 4 without both.
    """
    usable_pages = sum(max(0, zone.managed_pages - zone.watermarks[HIGH]) for zone in zones)
    return usable_pages < zones[0].pageblock_nr_pages * n_migratetypes


@dataclass
class ListTypedZone(Zone):
    """A zone whose free blocks know their list, whatever the type of their pageblock."""

    free_types: dict = field(default_factory=dict)  # first pfn of a free block -> migratetype of its list

    def __post_init__(self):
        for (_, migratetype), blocks in self.lists.items():
            self.free_types |= dict.fromkeys(blocks, migratetype)

    def list_type_of(self, pfn):
        return self.free_types[pfn]

    def insert(self, pfn, order, migratetype, tail=False):
        super().insert(pfn, order, migratetype, tail)
        self.free_types[pfn] = migratetype

    def remove(self, pfn):
        """Take a block off its list: (order, the list's migratetype)."""
        order, migratetype = self.free_orders.pop(pfn), self.free_types.pop(pfn)
        del self.lists[order, migratetype][pfn]
        self.note("gt-", pfn, order, migratetype)
        return order, migratetype

    def relink(self, pfn, new):
        """To the tail of another list; no counter changes. Returns (order, the old list's migratetype)."""
        order, old = self.free_orders[pfn], self.free_types[pfn]
        del self.lists[order, old][pfn]
        self.list_of(order, new)[pfn] = None
        self.free_types[pfn] = new
        self.note("gtm", pfn, order, old, new)
        return order, old

    def move(self, pfn, new):
        """move_to_free_list since 6.10."""
        order, old = self.relink(pfn, new)
        self.account(-(1 << order), old)
        self.account(1 << order, new)


class UngroupedBlocks:
    """Mixed into a zone of any version: no pageblock becomes MOVABLE or RECLAIMABLE (set_pageblock_migratetype)."""

    def set_type(self, pfn, migratetype):
        super().set_type(pfn, UNMOVABLE if migratetype in MERGEABLE else migratetype)


class UngroupedZone(UngroupedBlocks, ListTypedZone):
    """Grouping off, 6.10 and later; pageblocks are MOVABLE until an allocation takes them."""


@dataclass
class Zone61(ListTypedZone):
    """The buddy lists of 6.1.

    Who takes a block counts it (rmqueue_buddy, rmqueue_bulk): `take_split` and `take_smallest` leave the counters
    alone. There is no nr_free_highatomic.
    """

    pcppage_migratetypes: dict = field(default_factory=dict)  # pfn -> what set_pcppage_migratetype wrote last

    def account(self, n_pages, migratetype):
        """__mod_zone_freepage_state; isolated pages do not count."""
        if migratetype == ISOLATE:
            return
        self.free_pages.add(n_pages, self.cpu)
        if migratetype == CMA:
            self.free_cma_pages.add(n_pages, self.cpu)

    def move(self, pfn, new):
        """move_to_free_list."""
        self.relink(pfn, new)

    def has_isolate_pageblock(self):
        return ISOLATE in self.block_types.values()

    # -- free ----------------------------------------------------------------------------------------------------

    def join(self, buddy, order, migratetype):
        """The block goes on the list of the freed page's type; no pageblock changes (__free_one_page)."""
        self.remove(buddy)

    def captures(self, order, migratetype):
        """compaction_capture: below a pageblock never from a MOVABLE one, whoever asks."""
        return super().captures(order, migratetype) and (order >= self.pageblock_order or migratetype != MOVABLE)

    def free_direct(self, pfn, order, to_tail=False):
        """Past the per-CPU lists: whole, with the type of the first pageblock (free_one_page)."""
        self.free_one(pfn, order, self.type_of(pfn), to_tail)

    # -- take ----------------------------------------------------------------------------------------------------

    def take_split(self, pfn, order):
        """Take the block, give back what is above `order`; the page remembers the list's type (__rmqueue_smallest)."""
        high, migratetype = self.remove(pfn)
        self.expand(pfn, order, high, migratetype)
        self.pcppage_migratetypes[pfn] = migratetype
        return pfn

    def move_freepages_block(self, pfn, new, lru=()):
        """The free blocks of the pageblock to the tails of another type's lists: (free pages moved, movable pages).

        The pageblock's type stays. Where the zone begins inside the pageblock the walk begins at `pfn`; where it
        ends inside, nothing is moved.
        """
        start = self.block_of(pfn)
        end = start + self.pageblock_nr_pages
        if not self.spans(start):
            start = pfn
        if not self.spans(end - 1):
            return 0, 0
        free = movable = 0
        pfn = start
        while pfn < end:
            order = self.free_orders.get(pfn)
            if order is not None:
                self.move(pfn, new)
                free += 1 << order
                pfn += 1 << order
            else:
                movable += pfn in lru
                pfn += 1
        return free, movable
