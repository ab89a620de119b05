"""A CMA area followed by its events: which range an allocation tries next (cma_alloc, mm/cma.c of 6.12)."""

from tests.reference.allocator_zone import CMA


class CmaArea:
    """The bitmap of the zone's area, empty at the start and with order_per_bit 0; `range` is what is tried now."""

    def __init__(self, zone):
        self.zone = zone
        blocks = sorted(block for block, migratetype in zone.block_types.items() if migratetype == CMA)
        self.start = blocks[0] if blocks else 0
        self.end = blocks[-1] + zone.pageblock_nr_pages if blocks else 0
        self.used = set()
        self.range = None
        self.align = 0
        self.n_pages = 0

    def begin(self, n_pages, align_order):
        self.n_pages, self.align = n_pages, 1 << align_order
        self.range = self.first_fit(self.start)

    def retry(self):
        """The range was busy: on by the alignment, not by the size."""
        self.range = self.first_fit(self.range[0] + self.align)

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
