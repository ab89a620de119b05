"""Requests whose own lists are empty: pageblocks claimed, and blocks stolen, by the rules of each kernel."""

import numpy as np

import memmodel as mm
from memmodel.state.layout import MigrateType

from . import best_of, need_memory, one_zone, warm_kernels

FREE_SHARES = {"claims": 0.75, "steals": 0.25}
HALF = 2  # of the free pages are asked for


class Fallback:
    """Single unmovable pages from a zone of movable ones: on average three quarters, or one, of each pageblock is free.

    The first is enough to claim a pageblock, whose free blocks all change their lists; with the second every request
    looks at a pageblock from each order in vain, and takes one page. There are no per-CPU lists: each request counts.
    """

    unit = "ns a request"
    params = (["6.12.117", "6.12", "6.1"], list(FREE_SHARES))
    param_names = ("kernel", "outcome")
    size, quick_size = "1GiB", "256MiB"
    turns = 5

    def setup(self, kernel, outcome):
        warm_kernels()
        need_memory(1 << 30)
        self.mem = one_zone(self.size, kernel=kernel)
        folios = np.random.default_rng(0).permutation(mm.alloc_pages(self.mem, count=self.mem.pfns.n_pages))
        self.n_free = int(folios.size * FREE_SHARES[outcome])
        mm.free_pages(self.mem, folios[: self.n_free])

    def track_request(self, kernel, outcome):
        n_requests = self.n_free // HALF
        best = np.inf
        for _ in range(self.turns):
            mem = self.mem.copy()
            (time,) = best_of(1, lambda mem=mem: mm.alloc_pages(mem, 0, n_requests, "unmovable"))
            best = min(best, time)
            claimed = bool((mem.state.blocks["migratetype"] == MigrateType.UNMOVABLE).any())
            if mem.state.zones["free_pages"][0] != self.n_free - n_requests or claimed != (outcome == "claims"):
                raise AssertionError(f"{kernel}: not {n_requests} pages by {outcome}")
        return best * 1e9 / n_requests
