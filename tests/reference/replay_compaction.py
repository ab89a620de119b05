"""What a running compaction holds, followed by its events (mm/compaction.c of 6.12 and 7.3).

Which blocks it isolates is given; what becomes of them follows: targets are split off the smallest block, a target
that the migration did not use goes back to the private lists (with an mm_page_free that frees nothing).
"""

from collections import deque

from tests.reference.allocator_pcp import COSTLY_ORDER
from tests.reference.allocator_zone import MOVABLE

CLUSTER_MAX = 32  # COMPACT_CLUSTER_MAX


class Compaction:
    """One compact_zone() of a task.

    `order` is -1 for compact_memory, `migratetype` that of the request which compacts, None in a kernel thread.
    """

    def __init__(self, zone, order, migrate_pfn, migratetype=None):
        self.zone = zone
        self.order = order
        movable = migratetype in (None, MOVABLE)
        if "pageblock_order_sources" in zone.features and order >= zone.pageblock_order:
            movable = True  # what such a request gets is a whole pageblock
        self.searches = order > COSTLY_ORDER and movable  # for sources, in the free lists
        self.held = {}  # order -> deque of isolated free blocks, first pfns
        self.pages = set()  # every pfn isolated in this run
        self.n_sources = 0  # taken off the LRU since the last migration
        self.migrating = False
        self.targets = None  # of this migration, in the order in which the sources got them
        self.migrate_pfn = migrate_pfn
        self.last_migrated_pfn = 0
        self.fast_search_fail = 0
        self.last_isolated = None

    def isolate(self, pfn, order):
        self.held.setdefault(order, deque()).append(pfn)
        self.pages.update(range(pfn, pfn + (1 << order)))
        self.last_isolated = pfn

    def take_target(self):
        """A page for a source (compaction_alloc): the lowest of the first block of the smallest order."""
        orders = [order for order in sorted(self.held) if self.held[order]]
        if not orders:
            return None
        order = orders[0]
        pfn = self.held[order].popleft()
        while order > 0:
            order -= 1
            self.held.setdefault(order, deque()).appendleft(pfn + (1 << order))
        return pfn

    def start_migration(self):
        self.migrating, self.targets = True, None

    def next_target(self):
        """The target of the next source that moves or fails.

        Sources that fail all together are tried once more, one by one (migrate_pages_sync): each takes a target then.
        """
        self.choose_targets()
        return self.targets.popleft() if self.targets else self.take_target()

    def give_back(self, pfn):
        """An unused target returns to the head of the private list (compaction_free)."""
        self.choose_targets()
        if pfn in self.targets:
            self.targets.remove(pfn)
        else:
            self.take_target()
        self.held.setdefault(0, deque()).appendleft(pfn)

    def choose_targets(self):
        """All sources of a migration have their targets before the first of them moves."""
        if self.targets is None:
            pfns = [self.take_target() for _ in range(self.n_sources)]
            self.targets = deque(pfn for pfn in pfns if pfn is not None)

    def end_migration(self):
        self.migrating, self.targets, self.n_sources = False, None, 0

    # -- the drain between blocks --------------------------------------------------------------------------------

    def scanned(self, end_pfn, n_taken):
        """The migration scanner stands at end_pfn and took pages."""
        self.migrate_pfn = end_pfn
        self.n_sources += n_taken
        if n_taken:
            block = self.zone.block_of(end_pfn - 1)
            self.last_migrated_pfn = max(self.zone.start_pfn, block)

    def drain_is_due(self):
        """Has it left the aligned range it last migrated from? Then what it freed shall merge (check_drain); once."""
        if self.order <= 0 or not self.last_migrated_pfn:
            return False
        if self.last_migrated_pfn >= self.migrate_pfn & -(1 << self.order):
            return False
        self.last_migrated_pfn = 0
        return True

    # -- the search for a pageblock to empty ---------------------------------------------------------------------

    def find_source_block(self, start_pfn):
        """Rotate the free list in which the search for a source ended (fast_find_migrateblock).

        start_pfn is where the scan began then, None if there was nothing to scan: a page of that pageblock is what the
        search found. True if a list was rotated.
        """
        zone = self.zone
        if not self.searches or self.migrate_pfn not in (zone.start_pfn, zone.block_of(self.migrate_pfn)):
            return False
        if zone.block_of(self.last_migrated_pfn) == zone.block_of(self.migrate_pfn):
            return False  # the pageblock is to be finished
        pfn, found = self.search_sources(None if start_pfn is None else zone.block_of(start_pfn))
        self.fast_search_fail = 0 if found else self.fast_search_fail + 1
        return pfn is not None and zone.rotate_behind(pfn)

    def search_sources(self, block):
        """(entry at which the search ends, True if it is in the pageblock); None where the lists end first."""
        limit, n_scanned = (CLUSTER_MAX >> self.fast_search_fail) + 1, 0
        for order in range(self.order - 1, COSTLY_ORDER - 1, -1):
            if n_scanned >= limit:
                break
            for pfn in self.zone.list_of(order, MOVABLE):
                if n_scanned >= limit:
                    return pfn, False
                n_scanned += 1
                if self.zone.block_of(pfn) == block:
                    return pfn, True
        return None, False

    def searched_free(self, free_pfn, n_taken):
        """The search for targets counts its failures in the same place (fast_isolate_freepages).

        A block in the last quarter before free_pfn is a success; a lower one is used, but the count stays.
        """
        low_pfn = self.zone.block_of(free_pfn - (free_pfn - self.migrate_pfn) // 4)
        if not n_taken:
            self.fast_search_fail += 1
        elif self.last_isolated >= low_pfn:
            self.fast_search_fail = 0
