"""The slow obvious twin of a zone's buddy lists (mm/page_alloc.c of 6.12.117): ordered dicts of first pfns, head first.

Every list operation is noted in `operations`, if there is such a list, the way an instrumented kernel prints them:
("gt+", pfn, order, migratetype, tail), ("gt-", pfn, order, migratetype), ("gtm", pfn, order, old, new) and
("gtB", pfn, migratetype) for a pageblock.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

UNMOVABLE, MOVABLE, RECLAIMABLE, HIGHATOMIC, CMA, ISOLATE = range(6)
MERGEABLE = (UNMOVABLE, MOVABLE, RECLAIMABLE)
MIN, LOW, HIGH = "min", "low", "high"


class ZoneCounter:
    """A counter of the zone with a difference a CPU (__mod_zone_page_state, mm/vmstat.c).

    Readers see `value`: what is in the differences is not in it yet.
    """

    def __init__(self, value, threshold, differences=None):
        self.value = value
        self.threshold = threshold
        self.differences = differences or {}  # by CPU

    def add(self, delta, cpu):
        difference = self.differences.get(cpu, 0) + delta
        if abs(difference) > self.threshold:
            self.value += difference
            difference = 0
        self.differences[cpu] = difference

    def fold(self, cpu):
        """Bring a CPU's difference in: it."""
        difference = self.differences.pop(cpu, 0)
        self.value += difference
        return difference


@dataclass
class Capture:
    """What the compacting task of this moment waits for (struct capture_control), and the page once it came."""

    order: int
    migratetype: int
    pfn: int | None = None


@dataclass
class Zone:
    """Span [start_pfn, end_pfn); `index` is its place in the enum (DMA 0, DMA32 1, NORMAL 2, MOVABLE 3)."""

    name: str
    index: int
    start_pfn: int
    end_pfn: int
    managed_pages: int
    max_order: int
    pageblock_order: int
    watermarks: dict  # min, low, high without the boost
    lowmem_reserve: tuple  # by the highest zone index of the request
    free_pages: ZoneCounter
    free_cma_pages: ZoneCounter
    block_types: dict  # first pfn of the pageblock -> migratetype
    features: frozenset = frozenset()  # what differs between kernels, by name
    isolated: set = field(default_factory=set)  # pageblocks with the bit of "isolate_bit" set
    nr_free_highatomic: int = 0
    nr_reserved_highatomic: int = 0
    watermark_boost: int = 0
    flags: set = field(default_factory=set)  # "BOOSTED", "BELOW_HIGH", "RECLAIM_ACTIVE"
    lists: dict = field(default_factory=dict)  # (order, migratetype) -> OrderedDict of first pfns
    free_orders: dict = field(default_factory=dict)  # first pfn of a free block -> its order
    capture: Capture | None = None
    after_piece: Callable | None = None  # told how many blocks a drain has freed: then interrupts come through
    cpu: int = 0  # where the caller runs: whose counter differences change
    operations: list | None = None
    n_splits: int = 0  # blocks cut in two
    n_fallbacks: int = 0  # blocks of another type's list taken, or their pageblocks

    def note(self, *operation):
        if self.operations is not None:
            self.operations.append(operation)

    # -- pageblocks ----------------------------------------------------------------------------------------------

    @property
    def pageblock_nr_pages(self):
        return 1 << self.pageblock_order

    def block_of(self, pfn):
        return pfn & -self.pageblock_nr_pages

    def type_of(self, pfn):
        block = self.block_of(pfn)
        return ISOLATE if block in self.isolated else self.block_types[block]

    def set_type(self, pfn, migratetype):
        """With isolate_bit ISOLATE is a bit beside the type: the type below it is there again when the bit goes."""
        block = self.block_of(pfn)
        if "isolate_bit" in self.features and ISOLATE in (migratetype, self.type_of(block)):
            self.isolated ^= {block}
            self.note("gtI", block, int(block in self.isolated))
            return
        self.block_types[block] = migratetype
        self.note("gtB", block, migratetype)

    def set_types(self, pfn, order, migratetype):
        """All pageblocks of a block of at least that size (change_pageblock_range)."""
        for block in range(pfn, pfn + (1 << order), self.pageblock_nr_pages):
            self.set_type(block, migratetype)

    def spans(self, pfn):
        return self.start_pfn <= pfn < self.end_pfn

    def spans_block(self, pfn):
        """Does the pageblock of the pfn lie inside the zone?"""
        block = self.block_of(pfn)
        return self.spans(block) and self.spans(block + self.pageblock_nr_pages - 1)

    # -- lists ---------------------------------------------------------------------------------------------------

    def list_of(self, order, migratetype):
        return self.lists.setdefault((order, migratetype), OrderedDict())

    def head(self, order, migratetype):
        return next(iter(self.list_of(order, migratetype)), None)

    def is_free(self, pfn, order):
        """Is it the first page of a free block of exactly that order?"""
        return self.free_orders.get(pfn) == order

    def account(self, n_pages, migratetype):
        """Count free pages (account_freepages); isolated ones do not count."""
        if migratetype == ISOLATE:
            return
        self.free_pages.add(n_pages, self.cpu)
        if migratetype == CMA:
            self.free_cma_pages.add(n_pages, self.cpu)
        elif migratetype == HIGHATOMIC:
            self.nr_free_highatomic += n_pages

    def insert(self, pfn, order, migratetype, tail=False):
        blocks = self.list_of(order, migratetype)
        blocks[pfn] = None
        if not tail:
            blocks.move_to_end(pfn, last=False)
        self.free_orders[pfn] = order
        self.note("gt+", pfn, order, migratetype, int(tail))

    def remove(self, pfn):
        """Take a block off its list: (order, migratetype)."""
        order = self.free_orders.pop(pfn)
        migratetype = self.type_of(pfn)
        del self.lists[order, migratetype][pfn]
        self.note("gt-", pfn, order, migratetype)
        return order, migratetype

    def move(self, pfn, new):
        """To the tail of another migratetype's list (move_to_free_list); the pageblock's type is set afterwards."""
        order, old = self.free_orders[pfn], self.type_of(pfn)
        del self.lists[order, old][pfn]
        self.list_of(order, new)[pfn] = None
        self.account(-(1 << order), old)
        self.account(1 << order, new)
        self.note("gtm", pfn, order, old, new)

    def free_blocks_in(self, start, end):
        """The free blocks that begin in [start, end), ascending (listed: the caller may move them)."""
        found, pfn = [], start
        while pfn < end:
            order = self.free_orders.get(pfn)
            if order is not None:
                found.append(pfn)
            pfn += 1 << (order or 0)
        return found

    def move_free_blocks(self, pfn, new):
        """The free blocks of the pageblock to the tails of another type's lists; then the type (move_freepages_block).

        A pageblock that the zone's border cuts is left alone: False.
        """
        if not self.spans_block(pfn):
            return False
        block = self.block_of(pfn)
        for free in self.free_blocks_in(block, block + self.pageblock_nr_pages):
            self.move(free, new)
        self.set_type(block, new)
        return True

    def list_type_of(self, pfn):
        """The migratetype of the list that a free block is on."""
        return self.type_of(pfn)

    def rotate_to(self, pfn):
        """Make the block the first of its list: what was before it goes to the tail (move_freelist_head)."""
        order, migratetype = self.free_orders[pfn], self.list_type_of(pfn)
        self.note("gtH", pfn, order, migratetype)
        blocks = self.lists[order, migratetype]
        while next(iter(blocks)) != pfn:
            blocks.move_to_end(next(iter(blocks)))

    def rotate_behind(self, pfn):
        """Make the block the last of its list: it and what was before it go to the tail (move_freelist_tail).

        False if it is the last already.
        """
        order, migratetype = self.free_orders[pfn], self.list_type_of(pfn)
        blocks = self.lists[order, migratetype]
        if next(reversed(blocks)) == pfn:
            return False
        self.note("gtT", pfn, order, migratetype)
        while next(reversed(blocks)) != pfn:
            blocks.move_to_end(next(iter(blocks)))
        return True

    # -- free ----------------------------------------------------------------------------------------------------

    def free_one(self, pfn, order, migratetype, to_tail=False):
        """Merge as far as possible, then insert (__free_one_page)."""
        self.account(1 << order, migratetype)
        while order < self.max_order:
            if self.captures(order, migratetype):
                self.capture.pfn = pfn
                self.account(-(1 << order), migratetype)
                return
            buddy = pfn ^ (1 << order)
            if not self.spans(buddy) or not self.is_free(buddy, order):
                break
            if order >= self.pageblock_order:
                buddy_type = self.type_of(buddy)
                if buddy_type != migratetype and not {buddy_type, migratetype} <= set(MERGEABLE):
                    break
            self.join(buddy, order, migratetype)
            pfn &= buddy
            order += 1
        self.insert(pfn, order, migratetype, to_tail or self.merge_likely(pfn, order))

    def join(self, buddy, order, migratetype):
        """The buddy becomes part of a block of that type, and so do its pageblocks."""
        _, buddy_type = self.remove(buddy)
        if buddy_type != migratetype:
            self.set_types(buddy, order, migratetype)

    def merge_likely(self, pfn, order):
        """Is the buddy of the next larger block free, so that waiting pays (buddy_merge_likely)?"""
        if order >= self.max_order - 1:
            return False
        upper = (pfn & ~(1 << order)) ^ (1 << (order + 1))
        return self.spans(upper) and self.is_free(upper, order + 1)

    def captures(self, order, migratetype):
        """Does the compacting task take a page freed at this order (compaction_capture)?"""
        wanted = self.capture
        if wanted is None or wanted.pfn is not None or order != wanted.order or migratetype in (CMA, ISOLATE):
            return False
        return order >= self.pageblock_order or migratetype != MOVABLE or wanted.migratetype == MOVABLE

    def free_direct(self, pfn, order, to_tail=False):
        """Past the per-CPU lists: one piece a pageblock, each with its own type (split_large_buddy)."""
        piece = min(order, self.pageblock_order)
        for first in range(pfn, pfn + (1 << order), 1 << piece):
            self.free_one(first, piece, self.type_of(first), to_tail)

    # -- take ----------------------------------------------------------------------------------------------------

    def expand(self, pfn, low, high, migratetype):
        """Upper halves onto the list heads, from the large order down; returns the pages given back."""
        n_pages = 0
        for order in reversed(range(low, high)):
            self.n_splits += 1
            self.insert(pfn + (1 << order), order, migratetype)
            n_pages += 1 << order
        return n_pages

    def take_split(self, pfn, order):
        """Take the block and give back what is above `order` (page_del_and_expand)."""
        high, migratetype = self.remove(pfn)
        self.account(self.expand(pfn, order, high, migratetype) - (1 << high), migratetype)
        return pfn

    def take_smallest(self, order, migratetype):
        """The head of the smallest order that has a block (__rmqueue_smallest); None if there is none."""
        for high in range(order, self.max_order + 1):
            pfn = self.head(high, migratetype)
            if pfn is not None:
                return self.take_split(pfn, order)
        return None
