import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.sources.records import MIGRATE_CMA, MIGRATE_MOVABLE, MIGRATE_UNMOVABLE
from memmodel.state.block_types import TypeProblem, solve_types

NOTHING = np.zeros((0, 1), int)


def problem(contents, types, chunks=(0, 0), **changes):
    """Groups with one pageblock each; what pagetypeinfo counts follows from `types`."""
    contents, types = np.atleast_2d(contents), np.array(types, int)
    type_free = np.zeros((6, contents.shape[1] + 2), np.int64)
    np.add.at(type_free, types, np.hstack([contents, np.zeros((len(types), 2), int)]))
    facts = {
        "group_free": contents,
        "group_size": np.ones(len(types), np.int64),
        "group_cost": np.zeros((len(types), 6)),
        "n_chunks": np.array(chunks),
        "type_free": type_free,
        "type_blocks": np.bincount(types, minlength=6),
    }
    return TypeProblem(**(facts | changes))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.tuples(*[st.integers(0, 3)] * 3), st.integers(0, 5)), min_size=1, max_size=20))
def test_solve_types__counts_are_met(blocks):
    solution = solve_types(given := problem([b[0] for b in blocks], [b[1] for b in blocks]))
    assert not solution.free_off.any()
    assert not solution.blocks_off.any()
    assert (solution.group_types.sum(axis=1) == 1).all()
    assert (solution.group_types.T @ given.group_free == given.type_free[:, :3]).all()


def test_solve_types__use_decides_where_counts_do_not():
    cost = np.zeros((2, 6))
    cost[0, MIGRATE_MOVABLE] = cost[1, MIGRATE_UNMOVABLE] = 1
    solution = solve_types(problem([[1], [1]], [MIGRATE_MOVABLE, MIGRATE_UNMOVABLE], group_cost=cost))
    assert solution.group_types.argmax(axis=1).tolist() == [MIGRATE_UNMOVABLE, MIGRATE_MOVABLE]


def test_solve_types__a_chunk_across_a_cma_border_is_two():
    type_free = np.zeros((6, 3), np.int64)
    type_free[[MIGRATE_MOVABLE, MIGRATE_CMA], 1] = 1
    blocks = np.zeros(6, np.int64)
    blocks[[MIGRATE_MOVABLE, MIGRATE_CMA]] = 1
    solution = solve_types(problem(NOTHING, [], chunks=(0, 1), type_free=type_free, type_blocks=blocks))
    assert solution.n_splits.tolist() == [0, 1]
    assert solution.chunk_types[0, [MIGRATE_MOVABLE, MIGRATE_CMA]].tolist() == [1, 1]
    assert not solution.free_off.any()


def test_solve_types__halves_that_would_have_merged_are_not_believed():
    type_free = np.zeros((6, 3), np.int64)
    type_free[[MIGRATE_MOVABLE, MIGRATE_UNMOVABLE], 1] = 1
    blocks = np.array([1, 1, 0, 0, 0, 0])
    solution = solve_types(problem(NOTHING, [], chunks=(0, 1), type_free=type_free, type_blocks=blocks))
    assert solution.n_splits.tolist() == [0, 0]
    assert solution.free_off.sum(axis=0).tolist() == [0, -2, 1]


def test_solve_types__torn_counts_are_reported():
    given = problem([[2], [5]], [MIGRATE_MOVABLE, MIGRATE_UNMOVABLE])
    given.type_free[MIGRATE_MOVABLE, 0] += 1
    solution = solve_types(given)
    assert solution.free_off[:2, 0].tolist() == [0, -1]
    assert solution.group_types.argmax(axis=1).tolist() == [MIGRATE_MOVABLE, MIGRATE_UNMOVABLE]


def test_solve_types__a_capped_count_is_a_lower_bound():
    given = problem([[7], [1]], [MIGRATE_MOVABLE, MIGRATE_UNMOVABLE], capped=np.zeros((6, 3), bool))
    given.type_free[MIGRATE_MOVABLE, 0] = 4
    given.capped[MIGRATE_MOVABLE, 0] = True
    assert solve_types(given).group_types.argmax(axis=1).tolist() == [MIGRATE_MOVABLE, MIGRATE_UNMOVABLE]


@pytest.mark.parametrize("cost", [0.0, 1.0])
def test_solve_types__without_pagetypeinfo_use_alone_decides(cost):
    costs = np.ones((1, 6))
    costs[0, MIGRATE_MOVABLE], costs[0, MIGRATE_UNMOVABLE] = cost, 1 - cost
    solution = solve_types(problem([[3]], [0], chunks=(1, 0), group_cost=costs, type_free=None, type_blocks=None))
    assert solution.group_types[0].argmax() == (MIGRATE_UNMOVABLE if cost else MIGRATE_MOVABLE)
    assert solution.chunk_types[0, MIGRATE_MOVABLE] == 1
