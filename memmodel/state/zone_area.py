"""A zone as /proc/kpageflags shows it: what its pages are, and the free ones merged as far as the buddy merges."""

from dataclasses import dataclass

import numpy as np

from memmodel.sources.kpageflags import has_flag
from memmodel.sources.records import BoolArray, IntArray, UIntArray

__all__ = ["ZoneArea"]


@dataclass(frozen=True, eq=False)
class ZoneArea:
    """The zone, widened to whole blocks of the largest order.

    `flags` and `inside` are by page from pfn `base` on; `free[order]` says of each aligned block of that order whether
    it is free in whole; `block_pfns` and `present` are by pageblock. A block that pagetypeinfo counts, one whose
    first page in the zone exists, is present.
    """

    base: int
    flags: UIntArray
    inside: BoolArray
    free: tuple[BoolArray, ...]
    block_pfns: IntArray
    present: BoolArray

    @classmethod
    def of(cls, flags: UIntArray, start_pfn: int, end_pfn: int, pageblock_order: int, max_order: int) -> "ZoneArea":
        """Pages [start_pfn, end_pfn) of `flags`, which are by pfn."""
        base = start_pfn >> max_order << max_order
        n_pages = -((base - end_pfn) >> max_order) << max_order
        inside = np.zeros(n_pages, np.bool_)
        inside[start_pfn - base : end_pfn - base] = True
        words = np.zeros(n_pages, np.uint64)
        words[inside] = flags[start_pfn:end_pfn]
        free = [has_flag(words, "BUDDY")]
        for _ in range(max_order):
            free.append(free[-1][0::2] & free[-1][1::2])
        block_pfns = base + (np.arange(n_pages >> pageblock_order, dtype=np.int64) << pageblock_order)
        touching = inside.reshape(block_pfns.size, -1).any(axis=1)
        first = np.clip(block_pfns, start_pfn, end_pfn - 1) - base
        return cls(base, words, inside, tuple(free), block_pfns, touching & ~has_flag(words[first], "NOPAGE"))

    def blocks(self, order: int) -> IntArray:
        """First pfns of the free blocks of an order, merged up to the largest, ascending."""
        whole = self.free[order]
        if order + 1 < len(self.free):
            whole = whole & ~np.repeat(self.free[order + 1], 2)
        first: IntArray = self.base + (np.flatnonzero(whole) << order)
        return first

    def counts(self, order: int) -> IntArray:
        """Free blocks of an order below the pageblock order in each pageblock."""
        pageblock = (self.blocks(order) - self.base) * self.block_pfns.size // self.inside.size
        return np.bincount(pageblock, minlength=self.block_pfns.size)

    def by_pageblock(self, pages: BoolArray) -> IntArray:
        """How many of the marked pages are in each pageblock."""
        n: IntArray = pages.reshape(self.block_pfns.size, -1).sum(axis=1, dtype=np.int64)
        return n
