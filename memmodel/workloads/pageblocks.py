"""Pageblocks by what is in use in them, and free pages on lists of another type than theirs."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import kernel
from memmodel.kernels.freelist import ONE, ORDER_BITS, TYPES, block_type, free_list
from memmodel.state.layout import Kind, Memory, PageFlag

__all__ = ["PageblockUse", "count_type_mismatches", "movable_regions", "pageblock_use"]

USED, KIND_BITS = np.uint64(Kind.USED << 4), np.uint64(0xF0)
HOLE, RESERVED = np.uint64(Kind.HOLE << 4), np.uint64(Kind.RESERVED << 4)
ON_LRU = np.uint64(PageFlag.LRU | PageFlag.LRU_BATCH | PageFlag.LRU_ISOLATED)
HAS_PAGES, HAS_MOVABLE, HAS_UNMOVABLE, HAS_NONE = 1, 2, 4, 8


class PageblockUse(NamedTuple):
    """How many pageblocks hold what."""

    free: int
    """Nothing in use."""
    movable: int
    """Pages on LRU lists, or on their way there: all that is used can be moved."""
    unmovable: int
    """Other pages in use."""
    mixed: int
    """Both: they count as movable or not, and lose either way."""


@kernel
def _walk_blocks(mem: Memory, region_order: np.uint64, seen: npt.NDArray[np.uint8]) -> None:
    """What each aligned region of that order holds, as HAS_ bits."""
    index = np.uint64(0)
    while index < mem.params.n_pages:
        page = mem.pages[index]
        state, order = np.uint64(page.state), np.uint64(page.state) & ORDER_BITS
        kind = state & KIND_BITS
        bits = HAS_NONE if kind == HOLE or kind == RESERVED else HAS_PAGES
        if kind == USED:
            bits |= HAS_MOVABLE if np.uint64(page.pg_flags) & ON_LRU else HAS_UNMOVABLE
        end = index + (ONE << order)
        for block in range(index >> region_order, ((end - ONE) >> region_order) + ONE):
            seen[block] |= bits
        index = end


def pageblock_use(mem: Memory) -> PageblockUse:
    """Pageblocks by what is in use in them; those without any memory do not count."""
    seen = np.zeros(mem.blocks.size, np.uint8)
    _walk_blocks(mem, mem.params.pageblock_order, seen)
    counts = np.bincount(seen & ~np.uint8(HAS_NONE), minlength=8)
    free, movable = int(counts[HAS_PAGES]), int(counts[HAS_PAGES | HAS_MOVABLE])
    unmovable = int(counts[HAS_PAGES | HAS_UNMOVABLE])
    return PageblockUse(free, movable, unmovable, int(counts[HAS_PAGES | HAS_MOVABLE | HAS_UNMOVABLE]))


def movable_regions(mem: Memory, order: int) -> int:
    """Aligned regions of ``2**order`` pages without holes in which all that is used can be moved.

    No more huge pages of that order can ever be had.
    """
    seen = np.zeros(-(-int(mem.params.n_pages) >> order), np.uint8)
    _walk_blocks(mem, np.uint64(order), seen)
    return int(np.count_nonzero(seen & (HAS_PAGES | HAS_UNMOVABLE | HAS_NONE) == HAS_PAGES))


@kernel
def count_type_mismatches(mem: Memory) -> int:
    """Free pages on a list of another type than their pageblock's: since 6.10 there are none."""
    n_pages = np.int64(0)
    for zone in range(mem.zones.size):
        for order in range(mem.params.max_order + ONE):
            step = ONE << min(np.uint64(order), mem.params.pageblock_order)
            for migratetype in range(TYPES):
                head = free_list(mem, np.uint64(zone), np.uint64(order), np.uint64(migratetype))
                index = np.uint64(mem.pages[head].next)
                while index != head:
                    piece = index
                    while piece < index + (ONE << np.uint64(order)):
                        if block_type(mem, piece) != np.uint64(migratetype):
                            n_pages += np.int64(step)
                        piece += step
                    index = np.uint64(mem.pages[index].next)
    return int(n_pages)
