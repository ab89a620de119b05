"""Requests in a full zone, each with the kernel's slow path and reclaim before a page comes."""

from functools import partial

import memmodel as mm

from . import best_of, machine, need_memory, warm_kernels


class DirectReclaim:
    """Order 0 where what was allocated first is reclaimed, 32 pages at a time: most requests find what others left."""

    unit = "us a request"
    size, quick_size = "1GiB", "256MiB"
    n_requests = 4096
    turns = 5

    def setup(self):
        warm_kernels()
        need_memory(1 << 30)
        self.mem = machine(self.size)
        folios = mm.alloc_pages(self.mem, count=self.mem.pfns.n_pages)
        self.folios = folios[folios >= 0]

    def track_request(self):
        best = float("inf")
        for _ in range(self.turns):
            mem, got = self.mem.copy(), []
            reclaim = mm.LeastRecentlyAllocated(self.folios)
            call = partial(mm.alloc_pages, mem, count=self.n_requests, reclaim=reclaim)
            best = min(best, *best_of(1, lambda call=call, got=got: got.append(call())))
            if (got[0] < 0).any():
                raise AssertionError("a request failed: nothing was reclaimed for it")
        return best * 1e6 / self.n_requests
