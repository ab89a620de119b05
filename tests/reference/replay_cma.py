"""A CMA area followed by its events: which range an allocation tries next (cma_alloc, mm/cma.c of 6.12 and 7.3)."""

from tests.reference.allocator_isolation import isolate_range, undo_isolation
from tests.reference.allocator_zone import CMA
from tests.reference.replay_lru import BATCH


class CmaArea:
    """The bitmap of the zone's area, empty at the start and with order_per_bit 0; `range` is what is tried now."""

    def __init__(self, zone):
        self.zone = zone
        blocks = sorted(block for block, migratetype in zone.block_types.items() if migratetype == CMA)
        self.start = blocks[0] if blocks else 0
        self.end = blocks[-1] + zone.pageblock_nr_pages if blocks else 0
        self.used = set()
        self.range = None
        self.taken = None  # what alloc_contig_range took off the lists: it may exceed the range at both ends
        self.align = 0
        self.n_pages = 0

    def begin(self, n_pages, align_order):
        self.n_pages, self.align = n_pages, 1 << align_order
        self.range = self.taken = self.first_fit(self.start)

    def retry(self):
        """The range was busy: on by the alignment, not by the size."""
        self.range = self.taken = self.first_fit(self.range[0] + self.align)

    def take(self, pfn, order):
        """A free block of the range is taken off its list."""
        self.taken = min(self.taken[0], pfn), max(self.taken[1], pfn + (1 << order))

    def surplus(self, pfn):
        """(first pfn, pages) of what was taken before or behind the range, if it holds the pfn; it is freed again."""
        if self.range:
            for first, end in zip((self.taken[0], self.range[1]), (self.range[0], self.taken[1]), strict=True):
                if first <= pfn < end:
                    return first, end - first
        return None

    def first_fit(self, start):
        """The first free range of that length and alignment from `start` on (bitmap_find_next_zero_area_off)."""
        first = -(-start // self.align) * self.align
        while first + self.n_pages <= self.end:
            used = [pfn for pfn in range(first, first + self.n_pages) if pfn in self.used]
            if not used:
                return first, first + self.n_pages
            first = -(-(used[-1] + 1) // self.align) * self.align
        return None

    def finish(self, succeeded):
        if succeeded:
            self.used.update(range(*self.range))
        self.range = None

    def release(self, pfn, n_pages):
        self.used.difference_update(range(pfn, pfn + n_pages))


class CmaEvents:
    """The part of Replay that handles the events of CMA."""

    def on_cma_alloc_start(self, event):
        n_pages = event.fields.get("count") or event.fields["request_count"]
        self.cma.begin(int(n_pages), int(event.fields["align"]))
        self.isolate_range()

    def on_cma_alloc_busy_retry(self, event):
        self.on_mm_alloc_contig_migrate_range_info(event)
        undo_isolation(self.cma.zone, *self.cma.range, CMA)
        self.cma.retry()
        self.isolate_range()

    def isolate_range(self):
        """The pageblocks of the range are isolated and the page sets emptied (alloc_contig_range)."""
        if self.cma.range is None:
            return
        self.score.inferred["range of a cma_alloc"] += 1
        isolate_range(self.cma.zone, *self.cma.range)
        self.drain("range isolated", self.cma.zone)
        self.lru.drain_all()
        self.lru.batch_size = 1  # lru_cache_disable

    def on_mm_alloc_contig_migrate_range_info(self, event):
        self.lru.batch_size = BATCH
        self.lru.put_back(event.task, event.cpu)

    def on_cma_alloc_finish(self, event):
        if self.cma.range is None:
            return
        self.on_mm_alloc_contig_migrate_range_info(event)  # a recording may lack that event
        first, pfn = self.cma.range[0], int(event.fields["pfn"], 16)
        succeeded = event.fields.get("errorno") == "0"
        if succeeded and pfn != first:
            self.score.miss(event, "wrong CMA range", f"kernel {pfn}, twin {first}")
        undo_isolation(self.cma.zone, *self.cma.range, CMA)
        self.cma.finish(succeeded)

    def on_cma_release(self, event):
        self.cma.release(int(event.fields["pfn"], 16), int(event.fields["count"]))

    def on_contig_free(self, event, index, released):
        """Pages of a range are prepared singly, then freed together (contig_free_chunks); False for other pages."""
        pfn, order = event.page
        surplus = self.cma.surplus(pfn)
        if "contig_free_chunks" not in self.features or not (surplus or index in released):
            return False
        self.lru.remove(pfn, order)
        self.score.n_frees += 1
        first, n_pages = surplus or released[index] or (0, 0)
        if pfn == first + n_pages - 1:
            self.allocator.free_contig_range(first, n_pages, event.cpu)
        return True
