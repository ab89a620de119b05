"""The slow obvious twin of compaction's search for pages to move (mm/compaction.c: isolate_migratepages and below).

Part of Compaction, which has the state of a run. Generators yield the run's events.
"""

from tests.reference.allocator_pcp import COSTLY_ORDER
from tests.reference.allocator_zone import CMA, MOVABLE
from tests.reference.compaction_state import ALL_ORDERS, ASYNC, CLUSTER_MAX, SYNC, fills_pageblock


class SourceScanner:
    """The migration scanner: ascending."""

    def isolate_sources(self):
        """Take pages of the next pageblock that has some to `sources`."""
        zone = self.zone
        start, found = yield from self.find_source_block()
        end = zone.block_of(start) + zone.pageblock_nr_pages
        while end <= self.free_pfn:
            first = max(end - zone.pageblock_nr_pages, zone.start_pfn)
            if not zone.spans(end - 1) or (self.looks_at_hint(start) and not found and self.skips(first)):
                pass
            elif self.suitable_source(first):
                yield from self.scan_for_sources(start, end)
                return
            else:
                self.advance_cached_migrate(end)
            found = False
            self.migrate_pfn = start = end
            end += zone.pageblock_nr_pages

    def looks_at_hint(self, pfn):
        """Before 6.6 not in a pageblock amid which the zone begins."""
        starts = self.has("compaction_counts_pages") and pfn == self.zone.start_pfn
        return starts or pfn == self.zone.block_of(pfn)

    def suitable_source(self, pfn):
        """suitable_migration_source: asynchronous requests keep to pageblocks of their own type."""
        zone, kind = self.zone, self.zone.type_of(pfn)
        if fills_pageblock(zone, self.pages, pfn):
            return False
        if not self.direct:
            return True
        movable = self.migratetype == MOVABLE
        if self.newer:
            if kind == CMA and not self.flags.cma:
                return False
            movable = movable or self.order >= zone.pageblock_order
        if self.mode != ASYNC:
            return True
        return kind in (MOVABLE, CMA) if movable else kind == self.migratetype

    def advance_cached_migrate(self, pfn):
        """The next scan begins behind the pageblock that begins at the pfn (update_cached_migrate)."""
        pfn = self.zone.block_of(pfn) + self.zone.pageblock_nr_pages
        for which in (0, 1) if self.mode != ASYNC else (0,):
            self.memory.cached_migrate[which] = max(self.memory.cached_migrate[which], pfn)

    # -- one pageblock -------------------------------------------------------------------------------------------

    def scan_for_sources(self, start, end):
        """isolate_migratepages_block over [start, end)."""
        scan = SourceScan(self, start, end)
        scan.walk()
        if scan.pfn == end and (not scan.n_taken or self.finish_block):
            if scan.whole and not scan.touched:
                self.memory.skip.add(self.zone.block_of(start))
            self.advance_cached_migrate(end)
        self.migrate_pfn = scan.pfn
        self.drain_next = not scan.n_taken and self.drain_is_due()
        yield "isolate_migratepages", start, scan.pfn, scan.n_scanned, scan.n_taken

    def look_at(self, pfn):
        """(order of what the scanner passes at once, is it free, is it to be taken?)."""
        order = self.zone.free_orders.get(pfn)
        if order is not None:
            return order, True, False
        order = self.pages.orders.get(pfn, 0)
        if order and (pfn in self.pages.hugetlb or self.too_large(order)):
            return order, False, False
        return (order, False, True) if self.may_take(pfn) else (0, False, False)

    def too_large(self, order):
        """Compound pages that no compaction of that order moves (skip_isolation_on_order); in 6.1 none."""
        if not self.has("large_folio_compaction") or order >= self.zone.pageblock_order:
            return True
        return self.order != ALL_ORDERS and order >= self.order

    def may_take(self, pfn):
        """A page on an LRU list that can probably move."""
        pages = self.pages
        if pfn not in pages.lru.pages or pfn in pages.tails:
            return False
        if pfn in pages.anon:
            if pfn in pages.pinned:
                return False
        elif not self.fs:
            return False
        if pfn in pages.fixed and self.mode != SYNC:
            return False
        if not self.unevictable_allowed and (pfn in pages.mlocked or pfn in pages.fixed):
            return False
        return pfn not in pages.writeback or self.mode == SYNC

    def take_source(self, pfn, order):
        self.pages.lru.pages.difference_update(range(pfn, pfn + (1 << order)))
        self.sources.appendleft((pfn, order))

    def test_and_set_skip(self, pfn):
        """Was the bit set already? Where hints are ignored it is neither looked at nor set."""
        block = self.zone.block_of(pfn)
        if self.ignore_skip:
            return False
        was_set = block in self.memory.skip
        self.memory.skip.add(block)
        return was_set

    # -- the search in the free lists ----------------------------------------------------------------------------

    def find_source_block(self):
        """(where to scan, did the search find it?) (fast_find_migrateblock)."""
        zone = self.zone
        if not self.searches_sources() or self.migrate_pfn not in (zone.start_pfn, zone.block_of(self.migrate_pfn)):
            return self.migrate_pfn, False
        distance = (self.free_pfn - self.migrate_pfn) >> 1
        if self.migrate_pfn != zone.start_pfn:
            distance >>= 2
        bound = zone.block_of(self.migrate_pfn + distance)
        found = yield from self.search_sources(bound)
        if found is not None:
            if self.fast_start is not None:
                self.fast_start = min(self.fast_start or found, found)
            self.fast_search_fail = 0
            if not self.has("compaction_counts_pages"):
                self.memory.skip.add(zone.block_of(found))
            start = max(zone.block_of(found), zone.start_pfn)
            return start, start != self.migrate_pfn
        self.fast_search_fail += 1
        if self.fast_start:
            self.migrate_pfn, self.fast_start = self.fast_start, None
        return self.migrate_pfn, False

    def searches_sources(self):
        if self.ignore_skip or self.finish_block or self.order <= COSTLY_ORDER:
            return False
        movable = self.migratetype == MOVABLE or (self.newer and self.order >= self.zone.pageblock_order)
        return movable or not self.direct

    def search_sources(self, bound):
        """A free block below the bound in a pageblock that is not skipped, or None; rotates the list it ends in."""
        limit, n_scanned = (CLUSTER_MAX >> self.fast_search_fail) + 1, 0
        for order in range(self.order - 1, COSTLY_ORDER - 1, -1):
            if n_scanned >= limit:
                break
            for pfn in list(self.zone.list_of(order, MOVABLE)):
                n_scanned += 1
                self.compactor.n_searched += 1
                if n_scanned > limit:
                    yield from self.rotate_behind(pfn, order)
                    break
                if pfn < bound and self.zone.block_of(pfn) not in self.memory.skip:
                    yield from self.rotate_behind(pfn, order)
                    return pfn
        return None

    def rotate_behind(self, pfn, order):
        if self.zone.rotate_behind(pfn):
            yield "rotated", pfn, order, "last"


class SourceScan:
    """The walk over one piece of a pageblock, ascending.

    For an asynchronous request a page that stays where it is spoils the whole chunk of the request's size.
    """

    def __init__(self, run, start, end):
        self.run, self.start, self.pfn, self.end = run, start, start, end
        self.whole = run.looks_at_hint(start)
        self.counts = run.has("compaction_counts_pages")
        self.touched = False  # the skip bit was looked at when the first page was taken
        self.n_scanned = self.n_taken = 0
        self.chunks = run.direct and run.mode == ASYNC
        self.boundary = self.chunk_end()

    def chunk_end(self):
        return (self.pfn | ((1 << max(self.run.order, 0)) - 1)) + 1

    def walk(self):
        if self.whole and self.run.skips(self.pfn):
            self.pfn, self.n_scanned, self.whole = self.end, 1, False
            return
        while self.pfn < self.end:
            if self.chunks and self.pfn >= self.boundary:
                if self.n_taken:
                    break
                self.boundary = self.chunk_end()
            order, free, takes = self.run.look_at(self.pfn)
            self.n_scanned += 1 << order if self.counts else 1
            if not takes:
                self.pass_by(order, free)
            elif not self.take(order):
                break
        self.pfn = min(self.pfn, self.end)

    def take(self, order):
        """False if the walk is over: enough are taken, or another compaction had the pageblock."""
        run = self.run
        if self.whole and not self.touched:
            self.touched = True
            marks = self.counts or self.pfn == self.start
            if marks and run.test_and_set_skip(self.pfn) and not run.finish_block:
                self.n_scanned -= (1 << order) - 1
                self.pfn = self.end
                return False
        run.take_source(self.pfn, order)
        self.n_taken += 1 << order
        self.pfn += 1 << order
        return self.n_taken < CLUSTER_MAX or run.finish_block

    def pass_by(self, order, free):
        self.pfn += 1 << order
        if not self.chunks or free:
            return
        if self.n_taken:
            self.run.put_back()
            self.n_taken = 0
        if self.pfn <= self.boundary:
            self.pfn = self.boundary
            self.boundary += 1 << self.run.order
