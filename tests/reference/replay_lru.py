"""Which pages the half-block test counts as movable: those on an LRU list.

New pages wait in their CPU's batch (struct folio_batch, mm/swap.c of 6.12) and are on no list until it is emptied.
"""

BATCH = 31  # PAGEVEC_SIZE; 15 before 6.8


class LruState:
    """`pages` is the allocator's set of pfns on an LRU list."""

    def __init__(self, pages):
        self.pages = pages
        self.batches = {}  # cpu -> pfns that wait
        self.batch_size = BATCH
        self.isolated = {}  # task -> pfns that it took off the lists to migrate them
        self.n_drains = 0

    def add(self, pfn, order, cpu):
        """A new folio; the 31st, or a large one, empties the batch (folio_add_lru)."""
        batch = self.batches.setdefault(cpu, [])
        batch.extend(range(pfn, pfn + (1 << order)))
        if order or len(batch) >= self.batch_size:
            self.drain(cpu)

    def drain(self, cpu):
        """lru_add_drain."""
        batch = self.batches.pop(cpu, ())
        self.n_drains += bool(batch)
        self.pages.update(batch)

    def drain_all(self):
        for cpu in list(self.batches):
            self.drain(cpu)

    def remove(self, pfn, order):
        """A folio is freed. A batch holds its pages: if it was in one, that was emptied before."""
        pages = range(pfn, pfn + (1 << order))
        for cpu, batch in list(self.batches.items()):
            if not set(pages).isdisjoint(batch):
                self.drain(cpu)
        self.pages.difference_update(pages)
        for isolated in self.isolated.values():
            isolated.difference_update(pages)

    def isolate(self, task, start, end):
        """The pages of the range that are on a list become the task's migration sources."""
        found = self.pages.intersection(range(start, end))
        self.pages.difference_update(found)
        self.isolated.setdefault(task, set()).update(found)

    def put_back(self, task, cpu):
        """Sources that did not move return by way of the batch, the last isolated first (putback_movable_pages)."""
        for pfn in sorted(self.isolated.pop(task, ()), reverse=True):
            self.add(pfn, 0, cpu)


def joins_lru(request):
    """Do the request's pages become anonymous memory or page cache?

    Page cache that cannot move (ramfs) asks for compound pages; pipe buffers and the dma-buf heap's single pages do
    not, the heap's larger ones cannot wait for reclaim.
    """
    if "MOVABLE" in request.gfp:
        return True
    return {"HIGHMEM", "COMP", "DIRECT_RECLAIM"} <= request.gfp and "ACCOUNT" not in request.gfp
