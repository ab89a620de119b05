"""The slow obvious twin of memory compaction: mm/compaction.c of 6.12.117, by feature also what 6.1 and 7.3 do.

What follows are generators that yield what happens, in the kernel's order, so that other tasks may act in between:

    ("begin", zone start, migrate pfn, free pfn, zone end, "sync" or "async"), ("end", ..., status)
    ("isolate_migratepages" | "isolate_freepages" | "fast_isolate_freepages", start, end, scanned, taken)
    ("isolated", pfn, order) a free block is taken, ("rotated", pfn, order, "first" or "last") in its list
    ("free", pfn) of a source that has moved, ("fictitious", pfn) of a target that was not used
    ("migratepages", moved, failed), ("released", pfn, order) at the end, ("drain", pages) of per-CPU lists
    ("finished", status), ("suitable", status)
    ("deferred" | "defer" | "defer_reset", zone, order, order_failed, considered, limit)

What an event tells has been done when it is yielded. compaction_scanners.py looks for pages to move,
compaction_free.py for free blocks, compaction_migrate.py moves, compaction_tasks.py has who compacts and when.
Not modelled: too many isolated pages, locks held by others and need_resched(), pages with movable_ops.
"""

from collections import deque

from tests.reference.allocator_fallback import FALLBACKS
from tests.reference.allocator_pcp import COSTLY_ORDER
from tests.reference.allocator_request import AllocFlags
from tests.reference.allocator_zone import CMA, LOW, MIN, MOVABLE, RECLAIMABLE, UNMOVABLE
from tests.reference.compaction_free import FreeScanner
from tests.reference.compaction_migrate import Mover
from tests.reference.compaction_scanners import SourceScanner
from tests.reference.compaction_state import ALL_ORDERS, ASYNC, SYNC, Status, reset_isolation_suitable

EXTFRAG_THRESHOLD = 500
GAP_CAP = 32  # of compact_gap() since 7.2


def compact_gap(zone, order):
    """Pages that a compaction needs for its targets."""
    return min(2 << order, GAP_CAP) if "compact_gap_capped" in zone.features else 2 << order


def fragmentation_index(zone, order):
    """0 for too little memory .. 1000 for fragmentation, -1000 where a block is free."""
    blocks = {}  # order -> number of free blocks
    for (free_order, _), pfns in zone.lists.items():
        blocks[free_order] = blocks.get(free_order, 0) + len(pfns)
    n_blocks, n_free = sum(blocks.values()), sum(n << o for o, n in blocks.items())
    if n_blocks == 0:
        return 0
    if any(n for o, n in blocks.items() if o >= order):
        return -1000
    return 1000 - (1000 + n_free * 1000 // (1 << order)) // n_blocks


def suitable(allocator, zone, order, highest_zone, mark=MIN):
    """compaction_suitable: enough room for targets, and fragmentation to blame? A Status."""
    costly, flags = order > COSTLY_ORDER, AllocFlags(mark=MIN, cma=True)
    if "compact_gap_capped" in zone.features:
        pages = zone.watermarks[mark] + (zone.watermarks[LOW] - zone.watermarks[MIN]) * costly
    else:
        pages = zone.watermarks[LOW if costly else MIN]
    pages += zone.watermark_boost + compact_gap(zone, order)
    if not allocator.watermark_ok(zone, 0, pages, highest_zone, flags):
        return Status.SKIPPED
    if costly and 0 <= fragmentation_index(zone, order) <= EXTFRAG_THRESHOLD:
        return Status.NOT_SUITABLE_ZONE
    return Status.CONTINUE


def suit_allocation_order(allocator, zone, order, highest_zone, flags, mode):
    """compaction_suit_allocation_order: CONTINUE if there is something to do; yields "suitable" if it came to that."""
    mark = flags.mark or MIN
    pages = zone.watermarks[mark] + zone.watermark_boost
    if allocator.watermark_ok(zone, order, pages, highest_zone, flags):
        return Status.SUCCESS
    hurried = order > COSTLY_ORDER and mode == ASYNC and not flags.cma
    if hurried and "compact_gap_capped" in zone.features:
        gap = compact_gap(zone, order)
        if not allocator.watermark_ok(zone, 0, pages + gap, highest_zone, AllocFlags(mark=mark)):
            return Status.SKIPPED
    status = suitable(allocator, zone, order, highest_zone, mark)
    yield "suitable", status.text
    return status if status == Status.CONTINUE else Status.SKIPPED


class Compaction(SourceScanner, FreeScanner, Mover):
    """One compact_zone().

    `order` is ALL_ORDERS where no request waits. `capture` is the Capture of a request's task. While `drain_next`,
    the event just yielded is followed at once by a drain.
    """

    def __init__(self, compactor, zone, order, mode, *, cpu=0, direct=False, migratetype=UNMOVABLE, **options):
        self.compactor, self.allocator, self.pages = compactor, compactor.allocator, compactor.pages
        self.unevictable_allowed = compactor.unevictable_allowed
        self.zone, self.memory = zone, compactor.memory_of(zone)
        self.order, self.mode, self.cpu, self.direct, self.migratetype = order, mode, cpu, direct, migratetype
        self.whole_zone = options.get("whole_zone", False)
        self.ignore_skip = options.get("ignore_skip", False)
        self.ignore_suitable = options.get("ignore_suitable", False)
        self.proactive = options.get("proactive")  # () -> Status: whether to go on
        self.flags = options.get("flags", AllocFlags(mark=MIN))
        self.highest_zone = options.get("highest_zone", zone.index)
        self.fs = options.get("fs", True)  # __GFP_FS
        self.capture = options.get("capture")
        self.drains_at_end = options.get("drains_at_end", False)
        self.newer = "pageblock_order_sources" in zone.features
        self.migrate_pfn = self.free_pfn = self.last_migrated = 0
        self.sources = deque()  # (pfn, order), the next to move first
        self.held = {}  # order -> deque of isolated free blocks
        self.n_free = self.n_wanted = 0  # pages in `held`; pages of `sources` that have no target yet
        self.search_order, self.fast_search_fail = options.get("search", (order, 0))
        self.fast_start = 0
        self.finish_block = self.keep_equal = self.drain_next = False

    def has(self, feature):
        return feature in self.zone.features

    def run(self):
        """The Status."""
        memory, zone = self.memory, self.zone
        if self.order != ALL_ORDERS:
            arguments = self.allocator, zone, self.order, self.highest_zone, self.flags, self.mode
            status = yield from suit_allocation_order(*arguments)
            if status != Status.CONTINUE:
                return status
            if memory.restarting(self.order):
                reset_isolation_suitable(zone, memory, self.pages)
        self.place_scanners()
        self.keep_equal = self.mode == ASYNC and memory.cached_migrate[0] == memory.cached_migrate[1]
        yield "begin", *self.position()
        self.pages.lru.drain(self.cpu)
        status = yield from self.loop()
        yield from self.release()
        self.drain_next = self.drains_at_end and status in (Status.COMPLETE, Status.PARTIAL_SKIPPED)
        yield "end", *self.position(), status.text
        return status

    def position(self):
        mode = "async" if self.mode == ASYNC else "sync"
        return self.zone.start_pfn, self.migrate_pfn, self.free_pfn, self.zone.end_pfn, mode

    def last_block(self):
        return self.zone.block_of(self.zone.end_pfn - 1)

    def place_scanners(self):
        """Where the last run stopped, or the ends of the zone."""
        zone, memory = self.zone, self.memory
        if self.whole_zone:
            self.migrate_pfn, self.free_pfn = zone.start_pfn, self.last_block()
            return
        if not zone.spans(memory.cached_free):
            memory.cached_free = self.last_block()
        if not zone.spans(memory.cached_migrate[self.mode != ASYNC]):
            memory.cached_migrate[:] = [zone.start_pfn] * 2
        self.free_pfn, self.migrate_pfn = memory.cached_free, memory.cached_migrate[self.mode != ASYNC]
        if self.migrate_pfn <= memory.init_migrate:
            self.whole_zone = True

    def loop(self):
        while True:
            status = self.finished()
            yield "finished", status.text
            if status not in (Status.CONTINUE, Status.NO_SUITABLE_PAGE):
                return status
            # the second visit to a pageblock takes all of it; in the zone's first pageblock last_migrated is 0
            self.finish_block = self.zone.block_of(self.last_migrated) == self.zone.block_of(self.migrate_pfn)
            status = yield from self.once()
            if status is not None:
                return status
            if self.drain_is_due():
                yield from self.drain()

    def once(self):
        """Isolate and move one batch, and the rest of its pageblock if some of it failed; a Status ends the run."""
        while True:
            yield from self.isolate_sources()
            if not self.sources:
                if self.keep_equal:
                    self.memory.cached_migrate[1] = self.memory.cached_migrate[0]
                return None
            self.keep_equal = False
            self.last_migrated = max(self.zone.start_pfn, self.zone.block_of(self.migrate_pfn - 1))
            n_taken = self.n_wanted = sum(1 << order for _, order in self.sources)
            n_moved, out = yield from self.migrate()
            self.n_wanted = 0
            captured = self.capture is not None and self.capture.pfn is not None
            contended = out and not self.scanners_met()
            again = bool(self.sources) and not contended and self.may_rescan()
            if self.sources and not contended and not self.has("compaction_rescans"):
                self.leave_chunk()
            self.drain_next = not (contended or again or captured) and self.drain_is_due()
            yield "migratepages", n_moved, n_taken - n_moved
            self.put_back()
            if contended:
                return Status.CONTENDED
            if not again:
                return Status.SUCCESS if captured else None
            self.finish_block = True
            if self.order == self.compactor.huge_order(self.zone, self.cpu):
                self.last_migrated = 0

    def leave_chunk(self):
        """Before 6.6 a request that cannot wait leaves out the rest of the chunk in which a page stayed."""
        if self.direct and self.mode == ASYNC:
            self.migrate_pfn = (self.migrate_pfn - 1 | (1 << self.order) - 1) + 1
            self.last_migrated = 0

    def may_rescan(self):
        if not self.has("compaction_rescans"):
            return False
        inside = self.migrate_pfn != self.zone.block_of(self.migrate_pfn)
        return inside and not self.ignore_skip and not self.finish_block and self.mode != SYNC

    # -- is it done? ---------------------------------------------------------------------------------------------

    def scanners_met(self):
        return self.zone.block_of(self.free_pfn) <= self.zone.block_of(self.migrate_pfn)

    def finished(self):
        """compact_finished."""
        if self.scanners_met():
            self.memory.cached_migrate[:] = [self.zone.start_pfn] * 2
            self.memory.cached_free = self.last_block()
            if self.direct:
                self.memory.blockskip_flush = True
            return Status.COMPLETE if self.whole_zone else Status.PARTIAL_SKIPPED
        if self.proactive:
            return self.proactive()
        if self.order == ALL_ORDERS or self.migrate_pfn != self.zone.block_of(self.migrate_pfn):
            return Status.CONTINUE
        orders = range(self.order, self.zone.max_order + 1)
        return Status.SUCCESS if any(map(self.has_block, orders)) else Status.NO_SUITABLE_PAGE

    def has_block(self, order):
        """Would a request of the type find a block of that order, on its own list or by claiming a pageblock?"""
        lists, kind = self.zone.lists, self.migratetype
        if lists.get((order, kind)) or (kind == MOVABLE and lists.get((order, CMA))):
            return True
        claimable = order >= self.zone.pageblock_order // 2 or kind in (UNMOVABLE, RECLAIMABLE)
        return claimable and any(lists.get((order, other)) for other in FALLBACKS[kind])

    # -- drains and frees ----------------------------------------------------------------------------------------

    def drain_is_due(self):
        """Has it left the aligned range it last migrated from? Then what it freed shall merge (check_drain)."""
        return self.order > 0 and 0 < self.last_migrated < self.migrate_pfn & -(1 << self.order)

    def drain(self):
        self.drain_next = False
        self.last_migrated = 0
        self.pages.lru.drain(self.cpu)
        self.allocator.run_on(self.cpu, self.capture_of_zone())
        pcp = self.allocator.pcp_of(self.zone, self.cpu)
        n_pages = pcp.count
        pcp.drain_all()
        self.allocator.run_on(self.cpu)
        yield "drain", n_pages

    def capture_of_zone(self):
        return self.capture and (self.zone, self.capture)

    def free_pages(self, pfn, order):
        """In the context of the task, which may capture what comes of it."""
        self.allocator.run_on(self.cpu, self.capture_of_zone())
        self.allocator.free_pages(pfn, order, self.cpu)
        self.allocator.run_on(self.cpu)

    def skips(self, pfn):
        return not self.ignore_skip and self.zone.block_of(pfn) in self.memory.skip
