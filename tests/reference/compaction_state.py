"""The slow obvious twin of what compaction remembers of a zone, and of what it asks about a page (mm/compaction.c)."""

from dataclasses import dataclass, field
from enum import IntEnum

from tests.reference.allocator_zone import MOVABLE

ASYNC, SYNC_LIGHT, SYNC = range(3)  # modes of migration
ALL_ORDERS = -1  # order of a compaction that no request waits for
CLUSTER_MAX = 32  # COMPACT_CLUSTER_MAX
MAX_DEFER_SHIFT = 6
SAMPLED = 8  # every so many pages are looked at before a skip bit is cleared


class Status(IntEnum):
    """enum compact_result; events carry the names in small letters."""

    NOT_SUITABLE_ZONE = 0
    SKIPPED = 1
    DEFERRED = 2
    NO_SUITABLE_PAGE = 3
    CONTINUE = 4
    COMPLETE = 5
    PARTIAL_SKIPPED = 6
    CONTENDED = 7
    SUCCESS = 8

    @property
    def text(self):
        return self.name.lower()


@dataclass
class ZoneMemory:
    """The compact_* fields of struct zone; `skip` holds the first pfns of the pageblocks with the skip bit."""

    considered: int = 0
    defer_shift: int = 0
    order_failed: int = 0
    cached_free: int = 0
    cached_migrate: list = field(default_factory=lambda: [0, 0])  # asynchronous, synchronous
    init_migrate: int = 0  # both 0 until the skip bits are reset for the first time
    init_free: int = 0
    blockskip_flush: bool = False
    skip: set = field(default_factory=set)

    # -- deferral ------------------------------------------------------------------------------------------------

    def deferred(self, order):
        """Is it too early for another attempt (compaction_deferred)? Asking counts."""
        if order < self.order_failed:
            return False
        self.considered = min(self.considered + 1, 1 << self.defer_shift)
        return self.considered < 1 << self.defer_shift

    def defer(self, order):
        """A synchronous attempt has failed (defer_compaction)."""
        self.considered = 0
        self.defer_shift = min(self.defer_shift + 1, MAX_DEFER_SHIFT)
        self.order_failed = min(self.order_failed, order)

    def defer_reset(self, order, allocated):
        """An attempt has succeeded, or a page was even allocated (compaction_defer_reset)."""
        if allocated:
            self.considered = self.defer_shift = 0
        self.order_failed = max(self.order_failed, order + 1)

    def restarting(self, order):
        """Has it been deferred as often as can be (compaction_restarting)?"""
        longest = self.defer_shift == MAX_DEFER_SHIFT and self.considered >= 1 << MAX_DEFER_SHIFT
        return order >= self.order_failed and longest

    def deferral(self, zone, order):
        """What the events of deferral say."""
        return zone.name, order, self.order_failed, self.considered, 1 << self.defer_shift


@dataclass
class Pages:
    """The folios in use, by their first pfns; `lru` is a LruState. A page of no set is anonymous memory or shmem.

    `fixed`: page cache that never moves (ramfs: dirty, unevictable, without a migrate_folio). `pinned`: more
    references than mappings. `anon`: no page cache. `moves` logs (source, target, order) if set, and (pfn, None, order)
    of a folio that is split.
    """

    lru: object
    orders: dict = field(default_factory=dict)  # of compound pages
    tails: set = field(default_factory=set)
    anon: set = field(default_factory=set)
    mlocked: set = field(default_factory=set)
    fixed: set = field(default_factory=set)
    pinned: set = field(default_factory=set)
    writeback: set = field(default_factory=set)
    hugetlb: set = field(default_factory=set)
    moves: list | None = None

    def kinds(self):
        return self.anon, self.mlocked, self.fixed, self.pinned, self.writeback, self.hugetlb

    def make_compound(self, pfn, order):
        if order:
            self.orders[pfn] = order
            self.tails.update(range(pfn + 1, pfn + (1 << order)))

    def forget(self, pfn, order=0):
        """It is freed; the order is that of the free, which may be of a page that is not compound."""
        for kind in self.kinds():
            kind.discard(pfn)
        self.orders.pop(pfn, None)
        self.tails.difference_update(range(pfn, pfn + (1 << order)))

    def move(self, source, target, order):
        """The target becomes what the source was."""
        if self.moves is not None:
            self.moves.append((source, target, order))
        for kind in self.kinds():
            if source in kind:
                kind.add(target)
        self.make_compound(target, order)
        self.forget(source, order)

    def split(self, pfn, order):
        """Single pages of the same kind."""
        if self.moves is not None:
            self.moves.append((pfn, None, order))
        pages = range(pfn, pfn + (1 << order))
        for kind in self.kinds():
            if pfn in kind:
                kind.update(pages)
        del self.orders[pfn]
        self.tails.difference_update(pages)

    def head_of(self, pfn):
        """(first pfn, order) of the compound page that holds the pfn, or None."""
        if pfn not in self.orders and pfn not in self.tails:
            return None
        return next((head, order) for head, order in self.orders.items() if head <= pfn < head + (1 << order))


# -- the reset of skip bits ----------------------------------------------------------------------------------------


def reset_isolation_suitable(zone, memory, pages):
    """Clear the skip bits of pageblocks that are worth a visit; scans begin at the outermost ones from now on.

    Only if a direct compaction has asked for it (__reset_isolation_suitable).
    """
    if not memory.blockskip_flush:
        return
    memory.blockskip_flush = False
    up, down = zone.start_pfn, zone.end_pfn - 1
    source = target = None  # first hit of each walk
    while up < down:
        if worth_a_visit(zone, memory, pages, up, True, source is not None) and source is None:
            source = memory.init_migrate = up
            memory.cached_migrate[:] = up, up
        if worth_a_visit(zone, memory, pages, down, target is not None, True) and target is None:
            target = memory.init_free = memory.cached_free = down  # not the start of a pageblock
        up += zone.pageblock_nr_pages
        down -= zone.pageblock_nr_pages
    if source is None or target is None or source >= target:
        memory.cached_migrate[:] = up, up
        memory.cached_free = down


def worth_a_visit(zone, memory, pages, pfn, as_source, as_target):
    """Does a sample of the pageblock show a page to move, or a free one? Then its skip bit is cleared."""
    if not zone.spans(pfn) or fills_pageblock(zone, pages, pfn):
        return False
    block = zone.block_of(pfn)
    if as_source and as_target and block not in memory.skip:
        return True
    if not as_source and zone.type_of(pfn) != MOVABLE:
        return False
    first = max(block, zone.start_pfn)
    for sample in range(first, min(block + zone.pageblock_nr_pages, zone.end_pfn), SAMPLED):
        if (as_source and sample in pages.lru.pages) or (as_target and sample in zone.free_orders):
            memory.skip.discard(block)
            return True
    return False


def fills_pageblock(zone, pages, pfn):
    """Does the pfn belong to a compound page of a pageblock or more (pageblock_skip_persistent)?"""
    compound = pages.head_of(pfn)
    return compound is not None and compound[1] >= zone.pageblock_order
