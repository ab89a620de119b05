"""Which migratetype each pageblock has, from the free blocks in it, the use of its pages and what pagetypeinfo counts.

Pageblocks with the same free blocks in them (and the same sort of use) form a group. How many blocks of a group have
which type is a small integer programme: its equations are the counts of free blocks by order and type and of
pageblocks by type. Blocks of one group cannot be told apart, so that any choice among them is as good.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.sources.records import (
    MIGRATE_MOVABLE,
    MIGRATE_RECLAIMABLE,
    MIGRATE_TYPES,
    MIGRATE_UNMOVABLE,
    BoolArray,
    IntArray,
)

__all__ = ["MERGE_CLASS", "TypeProblem", "TypeSolution", "solve_types"]

# Free blocks of one class merge whatever their types: the first three do, the others with their own kind only.
MERGE_CLASS = np.array([0, 0, 0, 1, 2, 3])

# Costs in free blocks that differ from pagetypeinfo. All costs of use together are below one such block.
_PAGEBLOCK_COST = 4.0
_SPLIT_COST = 1e-2
_USE_COST = 0.4
_TIME_LIMIT_S = 20.0


@dataclass(frozen=True, eq=False, kw_only=True)
class TypeProblem:
    """Groups of pageblocks, free chunks, and what they must add up to.

    `group_free[group, order]` counts the free blocks below the pageblock order in each pageblock of the group,
    `group_size[group]` its pageblocks; `group_cost[group, migratetype]`, 0 to 1, says how little their use suits a
    type. `n_chunks[i]` counts the free chunks of order ``pageblock_order + i``. `type_free[migratetype, order]` and
    `type_blocks[migratetype]` are pagetypeinfo's, None where it is missing; a `capped` count may truly be higher.
    """

    group_free: IntArray
    group_size: IntArray
    group_cost: npt.NDArray[np.float64]
    n_chunks: IntArray
    type_free: IntArray | None = None
    capped: BoolArray | None = None
    type_blocks: IntArray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class TypeSolution:
    """Pageblocks by [group, migratetype] and free chunks by [order from the pageblock order up, migratetype].

    `n_splits[i]` chunks of order ``pageblock_order + i`` are two unmerged blocks of different classes. `free_off` and
    `blocks_off` are how far the solution is above pagetypeinfo's counts (below: negative); zero where they agree.
    """

    group_types: IntArray
    chunk_types: IntArray
    n_splits: IntArray
    free_off: IntArray
    blocks_off: IntArray


def solve_types(problem: TypeProblem) -> TypeSolution:
    """Distribute the types so that as few counts as possible differ from pagetypeinfo, then as use suggests.

    Raises
    ------
    InputError
        If no distribution was found in 20 s.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    n_groups, n_below = problem.group_free.shape
    n_above = problem.n_chunks.size
    matrix, lower, upper = _constraints(problem)
    cost, limit, integral = _variables(problem)
    result = milp(
        cost,
        integrality=integral,
        bounds=Bounds(0, limit),
        constraints=LinearConstraint(matrix, lower, upper),
        options={"mip_rel_gap": 0.0, "time_limit": _TIME_LIMIT_S},
    )
    if result.x is None:
        raise InputError(f"no migratetypes found for {n_groups} groups of pageblocks: {result.message}")
    values = np.rint(result.x).astype(np.int64)
    sizes = np.array([n_groups, n_above, 0, n_below, n_below, n_above, n_above, 1, 1]) * MIGRATE_TYPES
    sizes[2] = n_above
    parts = np.split(values, np.cumsum(sizes)[:-1])
    off = [(a - b).reshape(-1, MIGRATE_TYPES).T for a, b in zip(parts[3::2], parts[4::2], strict=True)]
    return TypeSolution(
        group_types=parts[0].reshape(-1, MIGRATE_TYPES),
        chunk_types=parts[1].reshape(-1, MIGRATE_TYPES),
        n_splits=parts[2],
        free_off=-np.concatenate(off[:2], axis=1),
        blocks_off=-off[2][:, 0],
    )


def _constraints(problem: TypeProblem) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The rows. Columns: pageblocks by group and type, chunks by order and type, splits, then pairs of slacks."""
    from scipy.sparse import block_array, eye_array, hstack, kron

    n_groups, n_below = problem.group_free.shape
    n_above = problem.n_chunks.size
    types = eye_array(MIGRATE_TYPES)
    any_type = np.ones((1, MIGRATE_TYPES))
    classes = (MERGE_CLASS == np.arange(MERGE_CLASS.max() + 1)[:, None]).astype(float)
    chunk_blocks = 1 << np.arange(n_above)[None, :]
    upper_order = eye_array(n_above, k=1)

    def slack(n: int) -> Any:
        return hstack([eye_array(n), -eye_array(n)])

    rows: list[list[Any]] = [
        # every pageblock has a type
        [kron(eye_array(n_groups), any_type), None, None, None, None, None],
        # a chunk has a type, or is two chunks of the order below
        [None, kron(eye_array(n_above), any_type), eye_array(n_above) - 2 * upper_order, None, None, None],
        # free blocks by order and type, below the pageblock order and from there up
        [kron(problem.group_free.T, types), None, None, slack(n_below * MIGRATE_TYPES), None, None],
        [None, eye_array(n_above * MIGRATE_TYPES), None, None, slack(n_above * MIGRATE_TYPES), None],
        # pageblocks by type
        [kron(np.ones((1, n_groups)), types), kron(chunk_blocks, types), None, None, None, slack(MIGRATE_TYPES)],
        # the halves of a split chunk are not of one class: they would have merged
        [None, kron(eye_array(n_above), classes), -kron(upper_order, np.ones((len(classes), 1))), None, None, None],
    ]
    matrix: Any = block_array(rows).tocsr()
    wanted_free = np.zeros((MIGRATE_TYPES, n_below + n_above)) if problem.type_free is None else problem.type_free
    wanted_blocks = np.zeros(MIGRATE_TYPES) if problem.type_blocks is None else problem.type_blocks
    exact = np.concatenate([problem.group_size, problem.n_chunks, wanted_free.T.ravel(), wanted_blocks]).astype(float)
    most = np.repeat(problem.n_chunks, len(classes)).astype(float)
    return matrix, np.concatenate([exact, np.full(most.size, -np.inf)]), np.concatenate([exact, most])


def _variables(problem: TypeProblem) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], IntArray]:
    """Cost, upper bound and integrality of each column."""
    n_orders = problem.group_free.shape[1] + problem.n_chunks.size
    n_above = problem.n_chunks.size
    if problem.type_free is None or problem.type_blocks is None:
        off, block_off = np.zeros((2, n_orders, MIGRATE_TYPES)), 0.0
        allowed = np.isin(np.arange(MIGRATE_TYPES), (MIGRATE_UNMOVABLE, MIGRATE_MOVABLE, MIGRATE_RECLAIMABLE))
    else:
        off, block_off = np.ones((2, n_orders, MIGRATE_TYPES)), _PAGEBLOCK_COST
        allowed = (problem.type_blocks > 0) | problem.type_free.any(axis=1)
        if problem.capped is not None:
            off[1][problem.capped.T] = 0.0
    below = n_orders - n_above
    chunk_cost = np.full((n_above, MIGRATE_TYPES), _SPLIT_COST / 10)
    chunk_cost[:, MIGRATE_MOVABLE] = 0.0
    cost = np.concatenate(
        [
            (problem.group_cost * _USE_COST / max(1, int(problem.group_size.sum()))).ravel(),
            chunk_cost.ravel() / max(1, int(problem.n_chunks.sum())),
            np.full(n_above, _SPLIT_COST),
            off[:, :below].ravel(),
            off[:, below:].ravel(),
            np.full(2 * MIGRATE_TYPES, block_off),
        ]
    )
    limit = np.full(cost.size, np.inf)
    n_typed = (problem.group_size.size + n_above) * MIGRATE_TYPES
    limit[:n_typed] = np.where(np.tile(allowed, n_typed // MIGRATE_TYPES), np.inf, 0.0)
    if n_above:
        limit[n_typed] = 0.0  # a chunk of the pageblock order has one type
    return cost, limit, (np.arange(cost.size) < n_typed + n_above).astype(np.int64)
