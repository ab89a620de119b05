"""Free lists from /proc/kpageflags, with types from what pagetypeinfo counts.

kpageflags marks every page of a free block, not its order. Blocks are rebuilt by merging as far as the buddy system
does; that is exact below the pageblock order, and above it but for neighbours whose types do not merge.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.sources.kpageflags import has_flag
from memmodel.sources.records import (
    MIGRATE_CMA,
    MIGRATE_MOVABLE,
    MIGRATE_RECLAIMABLE,
    MIGRATE_TYPES,
    MIGRATE_UNMOVABLE,
    MIGRATETYPE_NAMES,
    IntArray,
    UIntArray,
    ZoneSnapshot,
    zone_label,
)
from memmodel.state.block_types import MERGE_CLASS, TypeProblem, TypeSolution, solve_types
from memmodel.state.zone_area import ZoneArea

__all__ = ["TypedLists", "lists_from_flags"]

_USE_STEPS = 8  # how finely the share of unmovable pages in a pageblock is told apart
_SPLIT = MIGRATE_TYPES  # among the types of a chunk: "two chunks of the order below"
_CLASS = np.append(MERGE_CLASS, MERGE_CLASS.max() + 1)


@dataclass(frozen=True, eq=False)
class TypedLists:
    """One zone's free lists, in ascending order, and the migratetypes of its pageblocks."""

    lists: dict[tuple[int, int], IntArray]
    block_pfns: IntArray
    block_migratetypes: IntArray
    differences: tuple[str, ...] = ()


def lists_from_flags(
    flags: UIntArray, zone: ZoneSnapshot, span: tuple[int, int], pageblock_order: int, max_order: int
) -> TypedLists:
    """Rebuild the free blocks of a zone, and infer their types and those of its pageblocks.

    `flags` are the words of kpageflags by pfn, `span` is [first pfn, one past the last). Among blocks that cannot be
    told apart, CMA takes those nearest to the blocks that must be CMA (or to the zone's end), and the other types the
    lowest pfns, in the order of their numbers.

    Raises
    ------
    InputError
        If no distribution of types is found.
    """
    area = ZoneArea.of(flags, *span, pageblock_order, max_order)
    chunks = [area.blocks(order) for order in range(pageblock_order, max_order + 1)]
    partial = np.flatnonzero(area.present & ~area.free[pageblock_order])
    contents = np.stack([area.counts(order) for order in range(pageblock_order)], axis=1)
    groups, group_of = np.unique(np.hstack([contents, _use(area)])[partial], axis=0, return_inverse=True)
    group_of = group_of.reshape(-1)
    size = np.bincount(group_of, minlength=len(groups))
    solution = solve_types(
        TypeProblem(
            group_free=groups[:, :pageblock_order],
            group_size=size,
            group_cost=_use_cost(groups[:, pageblock_order:]),
            n_chunks=np.array([pfns.size for pfns in chunks], np.int64),
            type_free=zone.type_free,
            capped=zone.type_free_capped,
            type_blocks=zone.type_blocks,
        )
    )
    sure = np.flatnonzero(solution.group_types[:, MIGRATE_CMA] == size)
    near = area.block_pfns[partial][np.isin(group_of, sure)]
    anchor = int(near.mean()) if near.size else span[1]
    types = np.full(area.block_pfns.size, MIGRATE_MOVABLE, np.int64)
    types[partial] = _spread_groups(area.block_pfns[partial], group_of, solution.group_types, anchor)
    lists = _spread_chunks(chunks, solution, pageblock_order, anchor)
    for (order, migratetype), pfns in lists.items():
        first = (pfns - area.base) >> pageblock_order
        types[first[:, None] + np.arange(1 << (order - pageblock_order))] = migratetype
    for order in range(pageblock_order):
        pfns = area.blocks(order)
        owner = types[(pfns - area.base) >> pageblock_order]
        lists |= {(order, int(t)): pfns[owner == t] for t in np.unique(owner)}
    off = () if zone.type_free is None else tuple(_differences(zone, solution))
    return TypedLists(lists, area.block_pfns[area.present], types[area.present], off)


def _use(area: ZoneArea) -> IntArray:
    """Of each pageblock, the share of its used pages that cannot be moved, in steps, and whether any is reserved."""
    away = has_flag(area.flags, "NOPAGE", "RESERVED", "OFFLINE") | ~area.inside
    used = ~away & ~area.free[0]
    n_movable = area.by_pageblock(used & has_flag(area.flags, "LRU", "ANON"))
    n_used = area.by_pageblock(used)
    share = (n_used - n_movable) * _USE_STEPS // np.maximum(n_used, 1)
    return np.stack([share, np.sign(area.by_pageblock(away))], axis=1)


def _use_cost(use: IntArray) -> npt.NDArray[np.float64]:
    """How little each use suits each type: pages on an LRU list are movable, slab and the kernel's own are not."""
    share = use[:, 0] / _USE_STEPS
    cost = np.ones((len(use), MIGRATE_TYPES))
    cost[:, MIGRATE_MOVABLE] = share
    cost[:, MIGRATE_UNMOVABLE] = 1 - share
    cost[:, MIGRATE_RECLAIMABLE] = 1 - 0.9 * share
    cost[:, MIGRATE_CMA] = np.where(use[:, 1], 1.0, share)
    return cost


def _spread_groups(pfns: IntArray, group_of: IntArray, group_types: IntArray, anchor: int) -> IntArray:
    """The type of each pageblock from the numbers of each group."""
    types: IntArray = np.argmax(group_types[group_of], axis=1)
    for group in np.flatnonzero(np.count_nonzero(group_types, axis=1) > 1):
        members = np.flatnonzero(group_of == group)
        order = _nearest(pfns[members], anchor, int(group_types[group, MIGRATE_CMA]))
        types[members[order]] = _in_turn(group_types[group])
    return types


def _spread_chunks(
    chunks: list[IntArray], solution: TypeSolution, pageblock_order: int, anchor: int
) -> dict[tuple[int, int], IntArray]:
    """The type of each free chunk from the numbers of each order; splits hand halves down to the order below."""
    lists: dict[tuple[int, int], list[int]] = {}
    halves: list[tuple[int, int]] = []
    for i in reversed(range(len(chunks))):
        order = pageblock_order + i
        left = np.append(solution.chunk_types[i], solution.n_splits[i])
        taken: list[tuple[int, int]] = []
        for pair in halves:
            kinds = _two_kinds(left)
            # CMA, if it is one of the two, goes to the half that is nearer to the area.
            ends = sorted(pair, key=lambda pfn: abs(pfn - anchor))
            taken += zip(ends, sorted(kinds, key=lambda kind: kind != MIGRATE_CMA), strict=True)
            np.subtract.at(left, np.array(kinds), 1)
        singles = chunks[i][_nearest(chunks[i], anchor, int(left[MIGRATE_CMA] + left[_SPLIT]))]
        taken += zip(singles.tolist(), _in_turn(left).tolist(), strict=True)
        for pfn, kind in taken:
            lists.setdefault((order, kind), []).append(pfn)
        halves = [(pfn, pfn + (1 << (order - 1))) for pfn in lists.pop((order, _SPLIT), [])]
    return {key: np.array(sorted(pfns), np.int64) for key, pfns in lists.items()}


def _nearest(pfns: IntArray, anchor: int, n_first: int) -> IntArray:
    """Positions: the `n_first` nearest to the anchor, nearest first, then the others in ascending order."""
    rank = np.argsort(np.abs(pfns - anchor), kind="stable")
    return np.concatenate([rank[:n_first], np.sort(rank[n_first:])])


def _in_turn(n_of_kind: IntArray) -> IntArray:
    """Each kind as often as wanted: CMA first, then splits, then the others by their numbers."""
    kinds = np.arange(n_of_kind.size)
    turn = np.argsort(np.where(kinds == MIGRATE_CMA, -2, np.where(kinds == _SPLIT, -1, kinds)))
    return np.repeat(kinds[turn], n_of_kind[turn])


def _two_kinds(left: IntArray) -> tuple[int, int]:
    """Kinds of two halves that do not merge, from the classes that most are left of."""
    of_class = np.bincount(_CLASS, weights=left)
    first, second = np.argsort(-of_class, kind="stable")[:2]
    if not of_class[second]:
        second = first  # both are split once more
    return int(np.argmax((_CLASS == first) & (left > 0))), int(np.argmax((_CLASS == second) & (left > 0)))


def _differences(zone: ZoneSnapshot, solution: TypeSolution) -> Iterator[str]:
    for migratetype, name in enumerate(MIGRATETYPE_NAMES):
        off = solution.free_off[migratetype].tolist()
        found = [f"{n:+d} of order {order}" for order, n in enumerate(off) if n]
        if found:
            yield f"{zone_label(zone.key)}: free {name} blocks, kpageflags against pagetypeinfo: {', '.join(found)}"
        if solution.blocks_off[migratetype]:
            n = solution.blocks_off[migratetype]
            yield f"{zone_label(zone.key)}: pageblocks of type {name}, placed against pagetypeinfo: {n:+d}"
