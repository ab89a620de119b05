"""The kernel's three fragmentation indices, for every order at once (mm/vmstat.c and mm/compaction.c, 6.1 to 7.3)."""

import numpy as np
import numpy.typing as npt

from memmodel.sources.records import IntArray

__all__ = ["extfrag_for_order", "fragmentation_index", "unusable_index"]


def _sums(nr_free: npt.ArrayLike) -> tuple[int, int, IntArray]:
    """Free pages, free blocks, and pages in blocks of at least each order."""
    counts = np.asarray(nr_free, dtype=np.int64)
    pages = counts << np.arange(counts.size)
    return int(pages.sum()), int(counts.sum()), np.cumsum(pages[::-1])[::-1]


def fragmentation_index(nr_free: npt.ArrayLike) -> IntArray:
    """Why an allocation of each order would fail, in thousandths: towards 0 lack of memory, towards 1000 fragmentation.

    `nr_free` has the free blocks by order, as buddyinfo prints them. -1000 where a block is there; values between
    -1000 and 0 occur with one or two blocks (``__fragmentation_index``, mm/vmstat.c).
    """
    free_pages, n_blocks, suitable_pages = _sums(nr_free)
    if n_blocks == 0:
        return np.zeros_like(suitable_pages)
    # The kernel divides towards zero; all operands here are positive, so that floor is the same.
    requested = np.int64(1) << np.arange(suitable_pages.size)
    index = 1000 - (1000 + free_pages * 1000 // requested) // n_blocks
    return np.where(suitable_pages > 0, -1000, index)


def unusable_index(nr_free: npt.ArrayLike) -> IntArray:
    """Thousandths of the free memory that a request of each order cannot use (``unusable_free_index``, mm/vmstat.c)."""
    free_pages, _, suitable_pages = _sums(nr_free)
    if free_pages == 0:
        return np.full_like(suitable_pages, 1000)
    return (free_pages - suitable_pages) * 1000 // free_pages


def extfrag_for_order(nr_free: npt.ArrayLike) -> IntArray:
    """Percent of the free memory in blocks below each order (``extfrag_for_order``, mm/vmstat.c).

    It decides on proactive compaction.
    """
    free_pages, _, suitable_pages = _sums(nr_free)
    if free_pages == 0:
        return np.zeros_like(suitable_pages)
    return (free_pages - suitable_pages) * 100 // free_pages
