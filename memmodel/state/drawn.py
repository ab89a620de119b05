"""Free lists drawn at random so that buddyinfo and pagetypeinfo, which give counts alone, come out the same.

A zone is a forest of aligned blocks. From the largest order down, each block that is not free is cut in two, and at
most one of the halves may be free as a whole: both would have merged.
"""

import numpy as np

from memmodel.errors import InputError
from memmodel.sources.records import MIGRATE_TYPES, MIGRATETYPE_NAMES, IntArray, ZoneKey, zone_label
from memmodel.state.from_flags import TypedLists

__all__ = ["draw_lists", "smallest_span"]

_TRIES = 64  # a cut block at a zone's border has less room, and may have been given a type that needs it


def draw_lists(
    rng: np.random.Generator,
    key: ZoneKey,
    span: tuple[int, int],
    type_free: IntArray,
    type_blocks: IntArray,
    pageblock_order: int,
) -> TypedLists:
    """Free blocks at random places of a zone, each in a pageblock of its type.

    `span` is [first pfn, one past the last), `type_free[migratetype, order]` and `type_blocks[migratetype]` what
    pagetypeinfo counts. If it counts fewer pageblocks than the span has, the last ones that hold no free block are
    taken as holes.

    Raises
    ------
    InputError
        If the blocks do not fit.
    """
    problem = ""
    for _ in range(_TRIES):
        try:
            return _Zone(rng, span, type_free.shape[1] - 1).draw(type_free, type_blocks, pageblock_order)
        except _DoesNotFitError as error:
            problem = str(error)
    raise InputError(f"{zone_label(key)}, pfns {span[0]} to {span[1] - 1}: {problem}")


def smallest_span(nr_free: IntArray, n_pageblocks: int, pageblock_order: int) -> int:
    """Pages of the smallest zone that holds so many free blocks of each order, and so many pageblocks."""
    *smaller, largest = nr_free.tolist()
    needed = 0  # blocks of the order above that have to be cut
    for n in smaller:
        needed = max(n, -(-(needed + n) // 2))  # a cut block has two halves, one of which may be free
    blocks: int = max(1, needed + largest)
    return max(blocks << len(smaller), n_pageblocks << pageblock_order)


class _DoesNotFitError(Exception):
    """A draw that left no room; the next may."""


class _Zone:
    """The blocks of the order reached that are not free, by number (pfn >> order)."""

    def __init__(self, rng: np.random.Generator, span: tuple[int, int], max_order: int) -> None:
        self.rng, self.span, self.max_order = rng, span, max_order
        self.top = np.arange(span[0] >> max_order, ((span[1] - 1) >> max_order) + 1, dtype=np.int64)

    def draw(self, type_free: IntArray, type_blocks: IntArray, pageblock_order: int) -> TypedLists:
        lists: dict[tuple[int, int], IntArray] = {}
        nodes = self.top
        typed: list[tuple[IntArray, IntArray]] = []
        for order in range(self.max_order, pageblock_order - 1, -1):
            free, nodes = self._take(nodes, order, int(type_free[:, order].sum()))
            kinds = np.repeat(np.arange(MIGRATE_TYPES), type_free[:, order])
            free = self.rng.permutation(free)
            lists |= {(order, int(kind)): np.sort(free[kinds == kind]) << order for kind in np.unique(kinds)}
            blocks = (free[:, None] << (order - pageblock_order)) + np.arange(1 << (order - pageblock_order))
            typed.append((blocks.ravel(), np.repeat(kinds, blocks.shape[1])))
        below = [int(n) for n in type_blocks - sum(np.bincount(kinds, minlength=MIGRATE_TYPES) for _, kinds in typed)]
        nodes, kinds = self._type_blocks(nodes, below)
        typed.append((nodes, kinds))
        for migratetype in range(MIGRATE_TYPES):
            rest = nodes[kinds == migratetype]
            for order in range(pageblock_order - 1, -1, -1):
                free, rest = self._take(rest, order, int(type_free[migratetype, order]), migratetype)
                if free.size:
                    lists[order, migratetype] = np.sort(free) << order
        blocks, kinds = (np.concatenate(part) for part in zip(*typed, strict=True))
        rank = np.argsort(blocks)
        return TypedLists(lists, blocks[rank] << pageblock_order, kinds[rank])

    def _take(self, nodes: IntArray, order: int, n: int, migratetype: int | None = None) -> tuple[IntArray, IntArray]:
        """`n` free blocks of an order out of the blocks above it (of the largest: out of themselves), and the rest."""
        parts = nodes[:, None] if order == self.max_order else nodes[:, None] * 2 + np.arange(2)
        first = parts << order
        whole = (first >= self.span[0]) & (first + (1 << order) <= self.span[1])
        rooms = np.flatnonzero(whole.any(axis=1))
        if n > rooms.size:
            kind = "" if migratetype is None else f"{MIGRATETYPE_NAMES[migratetype]} "
            raise _DoesNotFitError(f"{n} free {kind}blocks of order {order} do not fit; there is room for {rooms.size}")
        rooms = self.rng.permutation(rooms)[:n]
        side = np.argmax(whole[rooms] * self.rng.random((n, parts.shape[1])), axis=1)
        rest = (first < self.span[1]) & (first + (1 << order) > self.span[0])
        rest[rooms, side] = False
        return parts[rooms, side], parts[rest]

    def _type_blocks(self, nodes: IntArray, n_of_type: list[int]) -> tuple[IntArray, IntArray]:
        """Types for the pageblocks that are not free in whole; those that are too many are holes."""
        wanted = sum(n_of_type)
        if min(n_of_type) < 0:
            name = MIGRATETYPE_NAMES[n_of_type.index(min(n_of_type))]
            raise _DoesNotFitError(f"more {name} pageblocks are free in whole than there are")
        if wanted > nodes.size:
            raise _DoesNotFitError(f"{wanted} pageblocks are not free in whole; there is room for {nodes.size}")
        # A zone begins and ends with memory, so that its last block is no hole.
        nodes = np.sort(nodes)
        kept = np.delete(nodes, np.s_[max(wanted - 1, 0) : nodes.size - 1]) if wanted else nodes[:0]
        return kept, self.rng.permutation(np.repeat(np.arange(MIGRATE_TYPES), n_of_type))
