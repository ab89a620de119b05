"""Latent errors: injecting them, scanning for the first bad page, draining the queue behind a copy."""

from functools import partial

import numpy as np

import memmodel as mm
from memmodel.kernels.copying import copy_folios, new_outcomes
from memmodel.mechanisms.copying import copy_rule
from memmodel.state.layout import MF_QUEUE_SLOTS

from . import best_of, one_zone, warm_kernels


class Inject:
    """Poisoned lines, drawn or given."""

    params = (["rate", "pfn"],)
    param_names = ("by",)
    unit = "ns a line"
    size = "16GiB"
    n_lines = 100_000

    def setup(self, by):
        warm_kernels()
        mem = one_zone(self.size)
        first, last = mem.pfns.pfn([0, mem.pfns.n_pages - 1])
        self.pfns = np.random.default_rng(0).integers(first, last + 1, self.n_lines)
        self.rate = self.n_lines / (mem.pfns.n_pages / (1 << 18))
        self.mem = mem

    def track_time(self, by):
        best = np.inf
        for _ in range(3):
            mem = self.mem.copy()
            where = {"rate_per_gib": self.rate, "seed": 0} if by == "rate" else {"pfn": self.pfns}
            best = min(best, *best_of(1, partial(mm.inject_poison, mem, **where)))
        return best * 1e9 / self.n_lines


class FirstBadPage:
    """A clean range looked through for its first bad page, in memory without contents: nothing else is left to do."""

    unit = "TiB/s"
    size = "64GiB"

    def setup(self):
        warm_kernels()
        self.mem = one_zone(self.size)
        self.half = self.mem.pfns.n_pages // 2

    def rate(self, call):
        (time,) = best_of(20, call)
        return self.half * self.mem.geometry.page_size_bytes / time / (1 << 40)

    def track_kernel(self):
        rows = (np.array([row], np.uint64) for row in (self.half, 0, self.half))
        lanes, results = np.zeros((2, 0), np.uint64), new_outcomes(1)
        rule = copy_rule(self.mem.geometry)
        return self.rate(partial(copy_folios, self.mem.state, rule, np.uint64(0), *rows, lanes, results))

    def track_copy_mc_highpages(self):
        """With its check that no page is a hole."""
        target, source = self.mem.pfns.pfn([self.half, 0]).tolist()
        return self.rate(partial(mm.copy_mc_highpages, self.mem, target, source, self.half))


class DrainQueue:
    """A full queue of 16 failures of pages in use, or of free pages that the buddy has to give up."""

    params = (["used", "free"],)
    param_names = ("pages",)
    number = 1
    size = "1GiB"

    def setup(self, pages):
        warm_kernels()
        self.mem = one_zone(self.size)
        folios = mm.alloc_pages(self.mem, order=0, count=2 * MF_QUEUE_SLOTS)
        sources, targets = np.split(folios, 2)
        mm.inject_poison(self.mem, self.mem.pfn(sources))
        mm.folio_mc_copy(self.mem, targets, sources, engine="fast_string")
        if pages == "free":
            mm.free_pages(self.mem, sources)

    def time_drain(self, pages):
        mm.run_memory_failure_work(self.mem)
