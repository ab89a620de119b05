"""cma_alloc() and cma_release(): of free areas, and of areas that movable pages fill."""

import memmodel as mm
from memmodel.sources.features import DEFAULT_KERNEL

from . import best_of, need_memory, warm_kernels

PAGE = 4096


class Area:
    """An area that is a part of the machine, all of it allocated in requests of one size, and released."""

    unit = "M pages/s"
    timeout = 300
    size, quick_size, turns = "2GiB", "512MiB", 5
    share = 2  # of the machine: one in so many pages
    kernel = DEFAULT_KERNEL

    def setup(self, pages):
        warm_kernels()
        need_memory(1 << 30)
        geometry = mm.Geometry(arch="generic", kernel=self.kernel)
        self.mem = mm.PhysicalMemory(geometry, self.size, seed=0)
        n_bytes = self.mem.pfns.n_pages // self.share * PAGE
        self.area = mm.cma_reserve(self.mem, n_bytes)
        self.pages = min(pages, self.area.n_pages)
        mm.drain_all_pages(self.mem)
        self.start = self.mem.copy()
        self.allocate()

    def allocate(self):
        """All of it; the memory is as before at the next turn."""
        self.mem.restore(self.start)
        for _ in range(self.area.n_pages // self.pages):
            if mm.cma_alloc(self.mem, self.area, self.pages).errno:
                raise AssertionError("a free area was busy")

    def rate(self):
        total, restored = best_of(self.turns, self.allocate, lambda: self.mem.restore(self.start))
        return self.area.n_pages / (total - restored) / 1e6


class CmaAlloc(Area):
    """Nobody uses the area."""

    # Bar: 1 M pages/s.
    at_least = 1
    params = ([262144, 2048],)
    param_names = ("pages a request",)

    def track_rate(self, pages):
        return self.rate()


class CmaAllocSmall(Area):
    """Nobody uses the area; what a call costs, whatever its size."""

    params = ([256],)
    param_names = ("pages a request",)

    def track_rate(self, pages):
        return self.rate()


class CmaAllocFilled(Area):
    """Single movable pages fill the area, and move."""

    share = 8
    params = ([8192],)
    param_names = ("pages a request",)

    def setup(self, pages):
        super().setup(pages)
        self.mem.restore(self.start)
        folios = mm.alloc_pages(self.mem, 0, self.mem.pfns.n_pages)
        folios = folios[folios >= 0]
        pfns = self.mem.pfn(folios)
        outside = (pfns < self.area.pfn) | (pfns >= self.area.pfn + self.area.n_pages)
        mm.free_pages(self.mem, folios[outside])
        self.start = self.mem.copy()

    def track_rate(self, pages):
        return self.rate()
