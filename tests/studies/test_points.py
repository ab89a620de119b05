import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.studies.points import Axis, Points, axes_of, check_seed


def to_column(name, values):
    return np.array(values)


def make(grid, cases=None, *, workload=("a", "b"), replicates=1, seed=7):
    axes, constants = axes_of(grid, cases, to_column, ["y"])
    return Points(axes, constants, workload, replicates, seed)


def test_block__c_order_with_replicates_last():
    points = make({"a": [1, 2], "c": "x", "b": [5, 6, 7]}, replicates=2)
    params, seeds = points.block(0, len(points))
    expected = list(itertools.product([1, 2], [5, 6, 7], [0, 1]))
    assert list(zip(params["a"], params["b"], strict=True)) == [(a, b) for a, b, _ in expected]
    assert params["c"].tolist() == ["x"] * 12
    assert seeds.shape == (12, 4)
    assert seeds.dtype == np.uint64
    assert (points.dims, points.shape) == (("a", "b", "replicate"), (2, 3, 2))
    assert points.label(3) == {"a": 1, "b": 6, "replicate": 1}


@given(cuts=st.lists(st.integers(0, 24), max_size=4), replicates=st.integers(1, 2))
@settings(deadline=None, max_examples=25)
def test_block__however_it_is_cut(cuts, replicates):
    points = make({"a": [1, 2, 3], "c": [0.5, 0.25], "b": ["x", "y"]}, replicates=replicates)
    whole_params, whole_seeds = points.block(0, len(points))
    edges = sorted({0, len(points), *(cut for cut in cuts if cut <= len(points))})
    parts = [points.block(start, stop) for start, stop in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate([seeds for _, seeds in parts]), whole_seeds)
    for name, values in whole_params.items():
        assert np.array_equal(np.concatenate([params[name] for params, _ in parts]), values)
        assert all(params[name].dtype == values.dtype for params, _ in parts)


def test_seeds__follow_the_documented_rule():
    """SeedSequence(seed, (replicate, h0, h1)): the digest is fixed here, or old results could not be made again."""
    points = make({"a": 1, "b": "x"}, workload=("a", "b"), replicates=2, seed=12345)
    words = (0x57FF44FEEA871B0F, 0x33E74CE09469AC50)  # BLAKE2b-128 of {"a": 1, "b": "x"}
    expected = [np.random.SeedSequence(12345, spawn_key=(r, *words)).generate_state(4, np.uint64) for r in (0, 1)]
    assert points.block(0, 2)[1].tolist() == np.array(expected).tolist()


def test_seeds__shared_by_levels_of_other_parameters():
    seeds = make({"a": [1, 2], "c": ["x", "y", "z"]}).block(0, 6)[1].reshape(2, 3, 4)
    assert (seeds == seeds[:, :1]).all()
    assert not (seeds[0] == seeds[1]).any()


def test_seeds__replicates_differ_and_the_first_is_that_of_one():
    one = make({"a": [1, 2]}).block(0, 2)[1]
    three = make({"a": [1, 2]}, replicates=3).block(0, 6)[1].reshape(2, 3, 4)
    assert (three[:, 0] == one).all()
    assert len(np.unique(three.reshape(6, 4), axis=0)) == 6


@given(
    old=st.lists(st.integers(-5, 5) | st.sampled_from([0.5, 2.5]), min_size=1, max_size=5, unique=True),
    new=st.lists(st.integers(-9, 9) | st.sampled_from([0.5, 7.5]), min_size=1, max_size=5, unique=True),
)
@settings(deadline=None, max_examples=30)
def test_seeds__a_longer_grid_keeps_them(old, new):
    """Even where a fraction among the new values turns the whole column into floats."""
    values = old + [value for value in new if value not in old]
    before = make({"a": old}).block(0, len(old))[1]
    assert (make({"a": values}).block(0, len(values))[1][: len(old)] == before).all()
    listed = [{"a": value, "c": number} for number, value in enumerate(values)]
    assert (make({}, listed).block(0, len(values))[1][: len(old)] == before).all()


def test_seeds__constant_or_swept_is_the_same_point():
    swept = make({"a": [3], "b": ["x"]}).block(0, 1)[1]
    fixed = make({"b": "x", "a": 3}).block(0, 1)[1]
    assert (swept == fixed).all()


def test_seeds__depend_on_the_root():
    assert not (make({"a": 1}, seed=1).block(0, 1)[1] == make({"a": 1}, seed=2**100).block(0, 1)[1]).any()


def test_seeds__ten_thousand_points_in_well_under_a_second():
    points = make({"a": range(100), "b": range(10), "c": range(10)})
    start = time.perf_counter()
    points.block(0, len(points))
    shared = time.perf_counter() - start
    points = make({"a": range(1000), "b": range(10)})
    start = time.perf_counter()
    points.block(0, len(points))
    assert shared < 0.3
    assert time.perf_counter() - start < 1.0  # 0.2 s on a quiet machine


def test_cases__one_axis_with_all_their_parameters():
    points = make({"c": [0, 1]}, [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}], workload=("a",))
    params, seeds = points.block(0, 6)
    assert points.dims == ("c", "case")
    assert params["a"].tolist() == [1, 1, 2] * 2
    assert params["b"].tolist() == ["x", "y", "x"] * 2
    assert (seeds[0] == seeds[1]).all()
    assert not (seeds[0] == seeds[2]).any()
    assert points.label(4) == {"c": 1, "a": 1, "b": "y"}
    assert points.axes[1].listed
    assert len(points.axes[1]) == 3


def test_points__nothing_swept():
    points = make({"a": 1})
    assert (points.dims, points.shape, len(points)) == ((), (), 1)
    assert points.label(0) == {}
    assert points.block(0, 1)[0]["a"].tolist() == [1]


def test_points__too_many():
    axis = Axis("a", {"a": np.arange(2**16)})
    with pytest.raises(InputError, match=r"8,589,934,592 points; a sweep has at most 2,147,483,648"):
        Points([axis, Axis("b", {"b": np.arange(2**16)})], {}, (), 2, 0)
    assert len(Points([axis, Axis("b", {"b": np.arange(2**15)})], {}, (), 1, 0)) == 2**31


@pytest.mark.parametrize(
    ("grid", "cases", "message"),
    [
        ([("a", [1])], None, "the grid is a list"),
        ({"a": []}, None, "parameter a has an empty list"),
        ({"a": np.array([])}, None, "parameter a has an empty list"),
        ({"a": [1, 2, 1]}, None, "parameter a has the value 1 twice"),
        ({"a": {1, 2}}, None, "parameter a is a set"),
        ({"a": {"b": 1}}, None, "parameter a is a dict"),
        ({"replicate": [1]}, None, "'replicate' cannot be the name of a parameter"),
        ({"y": [1]}, None, "'y' cannot be the name of a parameter"),
        ({1: [1]}, None, "1 cannot be the name of a parameter"),
        ({"a": [1]}, [{"a": 2}], "parameter a is given by both"),
        ({}, [], "the list of cases is empty"),
        ({}, [{"a": 1}, {"b": 1}], "case 1 gives b; case 0 gives a"),
        ({}, [{"a": 1}, 3], "case 1 is not a mapping"),
        ({}, [{}], "case 0 is not a mapping"),
    ],
)
def test_axes_of__refused(grid, cases, message):
    with pytest.raises(InputError, match=message):
        axes_of(grid, cases, to_column, ["y"])


@pytest.mark.parametrize("levels", [(1, 2), range(1, 3), np.array([1, 2]), iter([1, 2]), {1: 0, 2: 0}.keys()])
def test_axes_of__any_ordered_collection(levels):
    axes, constants = axes_of({"a": levels, "b": np.array(3)}, None, to_column, [])
    assert axes[0].columns["a"].tolist() == [1, 2]
    assert constants == {"b": 3}


@pytest.mark.parametrize("seed", [0, 5, np.uint64(5), 2**128])
def test_check_seed__whole_numbers(seed):
    assert check_seed(seed) == int(seed)
    assert type(check_seed(seed)) is int


@pytest.mark.parametrize("seed", [-1, True, np.True_, 1.0, "1", np.int64(-2), [1]])
def test_check_seed__refused(seed):
    with pytest.raises(InputError, match=r"seed .* is not a whole number from 0 up"):
        check_seed(seed)


def test_check_seed__drawn_where_none_is_given():
    first, second = check_seed(None), check_seed(None)
    assert first != second
    assert 0 <= first < 2**128
