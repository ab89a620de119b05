"""The slow obvious twin of compaction's search for free blocks to move pages to (mm/compaction.c: isolate_freepages).

Part of Compaction, which has the state of a run. Generators yield the run's events. What is found waits in `held`,
the private lists of the run by order; before 6.10 these are single pages on one list.
"""

from collections import deque

from tests.reference.allocator_request import AllocFlags
from tests.reference.allocator_zone import CMA, ISOLATE, MIN, MOVABLE
from tests.reference.compaction_state import ASYNC, CLUSTER_MAX

NOWHERE = 1 << 62


class FreeScanner:
    """The free scanner: pageblocks descending, ascending within each."""

    # -- the private lists ---------------------------------------------------------------------------------------

    def take_target(self, order):
        """A page for a source of that order (compaction_alloc), or None."""
        pfn = self.split_held(order)
        if pfn is None:
            yield from self.isolate_targets()
            pfn = self.split_held(order)
        if pfn is not None:
            self.n_free -= 1 << order
            self.want(-1 << order)
        return pfn

    def split_held(self, order):
        """The lowest part of the first block of the smallest order that will do."""
        high = min((high for high, blocks in self.held.items() if blocks and high >= order), default=None)
        if high is None:
            return None
        pfn = self.held[high].popleft()
        while high > order:
            high -= 1
            self.held_list(high).appendleft(pfn + (1 << high))
        return pfn

    def give_back(self, pfn, order):
        """An unused target returns to the head of its list (compaction_free); no page is freed, though it looks so."""
        self.held_list(order).appendleft(pfn)
        self.n_free += 1 << order
        self.want(1 << order)
        if self.has("large_folio_compaction"):
            yield "fictitious", pfn

    def want(self, n_pages):
        """Before 6.10 a search goes for as many pages as all sources have, whatever is served already."""
        if self.has("large_folio_compaction"):
            self.n_wanted += n_pages

    def held_list(self, order):
        return self.held.setdefault(order, deque())

    def hold(self, pfn, order):
        self.n_free += 1 << order
        if self.has("large_folio_compaction"):
            self.held_list(order).append(pfn)
        else:
            self.held_list(0).extendleft(range(pfn, pfn + (1 << order)))

    def release(self):
        """What was not used is freed again; the next free scan shall not begin below it (release_free_list)."""
        released = [(pfn, order) for order in sorted(self.held) for pfn in self.held[order]]
        self.held.clear()
        self.n_free = 0
        for pfn, order in released:
            self.free_pages(pfn, order)
            yield "released", pfn, order
        if released:
            block = self.zone.block_of(max(pfn for pfn, _ in released))
            self.memory.cached_free = max(self.memory.cached_free, block)

    # -- taking a block ------------------------------------------------------------------------------------------

    def isolate(self, pfn, order):
        """Take a free block off its list, if enough is left then (__isolate_free_page); False if not."""
        zone = self.zone
        if zone.type_of(pfn) != ISOLATE:
            mark = zone.watermarks[MIN] + (1 << order)
            if not self.allocator.watermark_ok(zone, 0, mark, 0, AllocFlags(mark=MIN, cma=True)):
                return False
        self.allocator.run_on(self.cpu, self.capture_of_zone())
        self.allocator.isolate_free_page(pfn)
        self.hold(pfn, order)
        return True

    def enough(self):
        return self.n_free >= self.n_wanted

    # -- the linear scan -----------------------------------------------------------------------------------------

    def isolate_targets(self):
        """The free lists first, then one pageblock after the other down to where the sources are looked for."""
        yield from self.search_targets()
        if self.n_free:
            return
        zone, size = self.zone, self.zone.pageblock_nr_pages
        pfn = self.free_pfn
        block = zone.block_of(pfn)
        lowest = zone.block_of(self.migrate_pfn) + size
        stride = CLUSTER_MAX if self.mode == ASYNC else 1
        while block >= lowest:
            end = min(block + size, zone.end_pfn)
            if zone.spans(block) and self.suitable_target(block) and not self.skips(block):
                pfn, n_taken = yield from self.scan_for_targets(pfn, end, stride)
                if pfn == end:
                    self.skip_free_block(block)
                if self.enough():
                    pfn = block - size if pfn == end else pfn
                    break
                if pfn < end:
                    break
                stride = 1 if n_taken else min(stride << 1, CLUSTER_MAX)
            block -= size
            pfn = block
        self.free_pfn = pfn

    def suitable_target(self, pfn):
        """suitable_migration_target: not where a block of the wanted size is free already."""
        zone = self.zone
        by_request = self.has("large_folio_compaction") and self.order > 0
        if zone.free_orders.get(pfn, -1) >= (self.order if by_request else zone.pageblock_order):
            return False
        return self.ignore_suitable or zone.type_of(pfn) in (MOVABLE, CMA)

    def skip_free_block(self, block):
        """It was scanned to its end: not again soon (update_pageblock_skip)."""
        self.memory.skip.add(block)
        below = block - self.zone.pageblock_nr_pages if self.has("large_folio_compaction") else block
        self.memory.cached_free = min(self.memory.cached_free, below)

    def scan_for_targets(self, start, end, stride):
        """isolate_freepages_block: every stride-th frame of [start, end); (where it ended, pages taken)."""
        zone, pages = self.zone, self.pages
        pfn, n_scanned, n_taken = start, 0, 0
        while pfn < end:
            n_scanned += 1
            order = zone.free_orders.get(pfn)
            if order is not None:
                if not self.isolate(pfn, order):
                    break
                yield "isolated", pfn, order
                n_scanned += (1 << order) - 1
                n_taken += 1 << order
                if self.enough():
                    pfn += 1 << order
                    break
                pfn += (1 << order) - 1
            elif pfn in pages.orders and pfn + (1 << pages.orders[pfn]) <= end:
                n_scanned += ((1 << pages.orders[pfn]) - 1) * self.has("compaction_counts_pages")
                pfn += (1 << pages.orders[pfn]) - 1
            pfn += stride
        pfn = min(pfn, end)
        yield "isolate_freepages", start, pfn, n_scanned, n_taken
        return pfn, n_taken

    # -- the search in the free lists ----------------------------------------------------------------------------

    def search_targets(self):
        """One block of the upper part of what is left to scan, and the rest of its pageblock (fast_isolate_freepages).

        At the very start of a scan its pageblock, or failing that a low one, is where the linear scan begins.
        """
        if self.order <= 0:
            return
        zone, memory = self.zone, self.memory
        at_start = self.free_pfn >= memory.init_free
        distance = self.free_pfn - self.migrate_pfn
        low, lowest = (zone.block_of(self.free_pfn - (distance >> shift)) for shift in (2, 1))
        crossed = distance < 0  # an unsigned number, then: nothing is near enough
        search = TargetSearch(self, at_start, *((NOWHERE, NOWHERE) if crossed else (low, lowest)))
        yield from search.run()
        yield "fast_isolate_freepages", lowest, self.free_pfn, search.n_scanned, search.n_taken
        around = search.taken
        if around is None:
            self.fast_search_fail += 1
            if crossed:
                pass
            elif at_start and search.highest >= lowest:
                around = self.free_pfn = search.highest
            elif at_start and self.direct:
                self.free_pfn = lowest
                fits = not self.has("large_folio_compaction") or self.suitable_target(lowest)
                around = lowest if zone.spans(lowest) and fits else None
        if search.highest and search.highest >= memory.cached_free:
            memory.cached_free = search.highest - zone.pageblock_nr_pages
        if around is not None:
            yield from self.isolate_around(around)

    def isolate_around(self, pfn):
        """The whole pageblock of the pfn (fast_isolate_around)."""
        zone = self.zone
        if self.enough() or (self.direct and self.mode == ASYNC):
            return
        block = zone.block_of(pfn)
        start, end = max(block, zone.start_pfn), min(block + zone.pageblock_nr_pages, zone.end_pfn)
        pfn, _ = yield from self.scan_for_targets(start, end, 1)
        if pfn == end:
            self.memory.skip.add(block)


class TargetSearch:
    """One search of the MOVABLE lists from their tails, order by order; `highest` is a pageblock it has seen."""

    def __init__(self, run, at_start, low, lowest):
        self.run_, self.zone = run, run.zone
        self.low, self.lowest = low, lowest
        self.limit = max(1, ((CLUSTER_MAX >> run.fast_search_fail) + 1) >> 1)
        if at_start:
            self.limit = run.zone.pageblock_nr_pages >> 1
        self.n_scanned = self.n_taken = self.highest = 0
        self.taken = None

    def run(self):
        run = self.run_
        run.search_order = min(run.order - 1, run.search_order)
        order = run.search_order
        while order is not None:
            if any(blocks for (free_order, _), blocks in self.zone.lists.items() if free_order == order):
                if (yield from self.search_order(order)):
                    return
            order = self.next_order(order)

    def next_order(self, order):
        """The next lower one, from the top again after 0; None after a full round, and a later one starts lower."""
        run = self.run_
        order = order - 1 if order > 0 else run.order - 1
        if order != run.search_order:
            return order
        run.search_order = run.search_order - 1 if run.search_order > 0 else run.order - 1
        return None

    def search_order(self, order):
        """Walk one list; True if the search is over."""
        run = self.run_
        last, best, n_visited = self.walk(order)
        pfn = self.taken if self.taken is not None else best or None
        rotated = self.rotate_to(last if pfn is None else pfn, order)
        self.taken = pfn if pfn is not None and run.isolate(pfn, order) else None  # under one lock
        if rotated is not None:
            yield "rotated", rotated, order, "first"
        if self.taken is not None:
            yield "isolated", pfn, order
            self.n_taken = 1 << order
            self.n_scanned += self.n_taken - 1
        if run.has("compaction_counts_pages") and run.enough():
            return True
        if pfn is not None:  # the search is over, but where the next one begins moves on
            self.next_order(order if self.taken is not None else run.search_order + 1)
            return True
        if n_visited >= self.limit:
            self.limit = max(1, self.limit >> 1)
        return False

    def walk(self, order):
        """(entry at which the walk stopped or None, best candidate or 0, entries visited); what will do is `taken`."""
        run, zone = self.run_, self.zone
        best = n_visited = 0
        for pfn in reversed(list(zone.list_of(order, MOVABLE))):
            n_visited += 1
            self.n_scanned += 1
            if pfn >= self.highest:
                self.highest = max(zone.block_of(pfn), zone.start_pfn)
            if pfn >= self.low:
                run.fast_search_fail, run.search_order, self.taken = 0, order, pfn
                return pfn, best, n_visited
            if pfn >= self.lowest and pfn > best:
                best = pfn
                self.limit >>= 1
            if n_visited >= self.limit:
                return pfn, best, n_visited
        return None, best, n_visited

    def rotate_to(self, pfn, order):
        """The pfn, if that changed anything."""
        if pfn is None or self.zone.head(order, MOVABLE) == pfn:
            return None
        self.zone.rotate_to(pfn)
        return pfn
