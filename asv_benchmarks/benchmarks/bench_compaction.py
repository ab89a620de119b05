"""Compaction: pages that its scanners look at a second, and how long one direct compaction takes."""

import numpy as np

import memmodel as mm
from memmodel.kernels.lru import drain_lru

from . import RunOnce, best_of, machine, need_memory, warm_kernels

ZONES = {
    "unmovable": ("GFP_KERNEL", 0.0),  # the migration scanner's alone
    "used": ("GFP_HIGHUSER_MOVABLE", 1 / 256),  # enough free pages for the free scanner to look at every frame
    "fragmented": ("GFP_HIGHUSER_MOVABLE", 0.5),  # a quarter of its pages move
}


def filled(size: int | str, gfp: str, free_share: float) -> mm.PhysicalMemory:
    """All pages allocated one by one, and a share of them, at random, free again."""
    mem = machine(size)
    folios = mm.alloc_pages(mem, count=mem.pfns.n_pages, gfp=gfp)
    folios = np.random.default_rng(0).permutation(folios[folios >= 0])
    drain_lru(mem.state, np.uint64(0))
    mm.free_pages(mem, folios[: int(folios.size * free_share)])
    mm.drain_all_pages(mem)
    return mem


class Scanners(RunOnce):
    """Whole zones gone through, as by vm.compact_memory."""

    # Bar: 20 M pages/s. Scanning alone is far beyond it; in the fragmented zone every fourth page that is looked at
    # moves, which takes 0.2 us.
    at_least = 20
    unit = "M pages/s"
    params = (tuple(ZONES),)
    param_names = ("zone",)
    size, quick_size = "4GiB", "512MiB"
    turns = 5

    def setup(self, zone):
        warm_kernels()
        need_memory(1 << 29)
        self.start = filled(self.size, *ZONES[zone])
        self.mem = self.start.copy()
        self.out = mm.compact_memory(self.mem)

    def track_scanned(self, zone):
        best = float("inf")
        for _ in range(self.turns):
            self.mem.restore(self.start)
            best = min(best, *best_of(1, lambda: mm.compact_memory(self.mem)))
        return (self.out.compact_migrate_scanned + self.out.compact_free_scanned) / best / 1e6


class Direct(RunOnce):
    """One direct compaction for a huge page, half of memory being free in single pages."""

    unit = "ms"
    size, quick_size = "1GiB", "256MiB"
    turns = 5

    def setup(self):
        warm_kernels()
        need_memory(1 << 29)
        self.start = filled(self.size, "GFP_HIGHUSER_MOVABLE", 0.5)
        self.mem = self.start.copy()
        self.compact()

    def compact(self):
        if mm.compact_zone(self.mem, order=9, migratetype="movable").result != mm.CompactResult.SUCCESS:
            raise AssertionError("no huge page came of it")

    def track_compact(self):
        best = float("inf")
        for _ in range(self.turns):
            self.mem.restore(self.start)
            best = min(best, *best_of(1, self.compact))
        return best * 1e3
