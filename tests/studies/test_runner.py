import io
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError, InvariantError
from memmodel.results.variables import Variable, variable
from memmodel.studies.points import Points, axes_of
from memmodel.studies.runner import MAX_FAILURES, run

Y = Variable("y", "float64", "1", "y", "Y.")
FLAG = replace(variable("calibrated"), name="flag")


def points_of(n, workload=("x",)):
    axes, _ = axes_of({"x": range(n)}, None, lambda name, values: np.array(values), [])
    return Points(axes, {}, workload, 1, 3)


def draw(params, seeds):
    if (params["x"] % 7 == 5).any():
        raise InputError("fives are refused")
    return {"y": seeds[:, 0] % 1000 + params["x"], "flag": params["x"] > 3}


def same(one, two):
    assert one.status.tobytes() == two.status.tobytes()
    assert one.failures == two.failures
    assert all(one.columns[name].tobytes() == two.columns[name].tobytes() for name in one.columns)


@settings(deadline=None, max_examples=40)
@given(n=st.integers(1, 60), workers=st.integers(1, 5), chunk=st.none() | st.integers(1, 70))
def test_run__bytes_depend_on_neither_workers_nor_chunk(n, workers, chunk):
    same(run(draw, points_of(n), [Y, FLAG], workers=workers, chunk=chunk), run(draw, points_of(n), [Y, FLAG], chunk=1))


def test_run__other_executor():
    points = points_of(20)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        same(run(draw, points, [Y, FLAG], workers=executor, chunk=8), run(draw, points, [Y, FLAG]))


def test_run__types_of_the_catalogue():
    outcome = run(draw, points_of(5), [Y, FLAG])
    assert outcome.columns["y"].dtype == np.float64
    assert outcome.columns["flag"].dtype == np.int8
    assert outcome.columns["flag"].tolist() == [0, 0, 0, 0, 1]


def test_run__threads_share_the_work():
    names = set()
    meeting = threading.Barrier(2, timeout=30)

    def block(params, seeds):
        if params["x"][0] in (0, 1):
            meeting.wait()  # would never end with one thread
        names.add(threading.current_thread().name)
        return {"y": params["x"]}

    run(block, points_of(8), [Y], workers=2, chunk=1)
    assert len(names) == 2


def test_run__dask_executor():
    distributed = pytest.importorskip("distributed", reason="Dask is an extra")
    points = points_of(30)
    with distributed.Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as client:
        same(run(draw, points, [Y, FLAG], workers=client.get_executor(), chunk=8), run(draw, points, [Y, FLAG]))


@pytest.mark.parametrize(("n", "workers", "largest"), [(10, 1, 3), (100, 2, 13), (100_000, 1, 4096), (1, 8, 1)])
def test_run__chunks_balance_the_workers(n, workers, largest):
    sizes = []

    def block(params, seeds):
        sizes.append(len(seeds))
        return {"y": params["x"]}

    run(block, points_of(n, workload=()), [Y], workers=workers)
    assert sum(sizes) == n
    assert max(sizes) == largest
    assert n < 4 * workers or len(sizes) >= 4 * workers


def fail(params, seeds):
    x = params["x"]
    if (x == 2).any():
        raise InputError("two is\nrefused")
    if (x == 3).any():
        raise InvariantError("law broken")
    if (x == 4).any():
        raise KeyError("k")
    return {"y": x, "flag": x > 0}


@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_run__failing_points_alone_are_lost(chunk):
    outcome = run(fail, points_of(10), [Y, FLAG], chunk=chunk)
    assert outcome.status.tolist() == [0, 0, 1, 2, 3, 0, 0, 0, 0, 0]
    assert np.isnan(outcome.columns["y"]).tolist() == [status > 0 for status in outcome.status]
    assert outcome.columns["flag"].tolist() == [0, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    assert outcome.failures == [(2, "two is\nrefused"), (3, "law broken"), (4, "KeyError: 'k'")]


def test_run__only_the_first_failures_are_told():
    def block(params, seeds):
        raise InputError(f"no {params['x'][0]}")

    outcome = run(block, points_of(100), [Y], workers=3)
    assert [point for point, _ in outcome.failures] == list(range(MAX_FAILURES))
    assert (outcome.status == 1).all()


def test_run__status_of_the_block_itself():
    def block(params, seeds):
        return {"y": params["x"], "status": np.where(params["x"] == 1, 2, 0)}

    outcome = run(block, points_of(3), [Y])
    assert outcome.status.tolist() == [0, 2, 0]
    assert np.isnan(outcome.columns["y"]).tolist() == [False, True, False]
    assert outcome.failures == []


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "it returned a NoneType; a dict"),
        ({}, "it did not return the output 'y'"),
        ({"y": [1, 2], "z": [1, 2]}, "it returned 'z', which is no output; one of: y, status"),
        ({"y": 1.0}, r"it returned 'y' in the shape \(\); \(2,\) is needed"),
        ({"y": [1, 2, 3]}, r"it returned 'y' in the shape \(3,\); \(2,\) is needed"),
        ({"y": [[1], [2]]}, r"it returned 'y' in the shape \(2, 1\)"),
        ({"y": [[1], [2, 3]]}, "it returned a ragged 'y'"),
        ({"y": ["a", "b"]}, "it returned 'y' as <U1; float64 is needed"),
        ({"y": [1j, 2]}, "it returned 'y' as complex128; float64 is needed"),
        ({"y": [None, 1]}, "it returned 'y' as object; float64 is needed"),
        ({"y": [1, 2], "status": [0, 4]}, "it returned a status outside 0 to 3"),
        ({"y": [1, 2], "status": [0.0, 0.5]}, "it returned 'status' with values that int8 cannot hold"),
        ({"y": [1, 2], "status": [0.0, np.nan]}, "it returned 'status' with values that int8 cannot hold"),
        ({"y": [1, 2], "status": [0, 256]}, "it returned 'status' with values that int8 cannot hold"),
    ],
)
def test_run__wrong_return(returned, message):
    def block(params, seeds):
        return returned

    with pytest.raises(InputError, match=f"block .*{message}"):
        run(block, points_of(2), [Y], chunk=2)


def test_run__wrong_return_at_one_point_after_a_failure():
    def block(params, seeds):
        if len(seeds) > 1:
            raise ValueError
        return {"z": seeds[:, 0]}

    with pytest.raises(InputError, match="it returned 'z'"):
        run(block, points_of(4), [Y], chunk=4)


@pytest.mark.parametrize("workers", [1, 2])
def test_run__interruption_passes_and_drops_the_rest(workers):
    called = []

    def block(params, seeds):
        called.append(params["x"][0])
        if params["x"][0] == 0:
            raise KeyboardInterrupt
        time.sleep(0.01)
        return {"y": params["x"]}

    with pytest.raises(KeyboardInterrupt):
        run(block, points_of(1000), [Y], workers=workers, chunk=1)
    assert len(called) < 500


@pytest.mark.parametrize(
    "option", [{"workers": 0}, {"workers": 1.5}, {"workers": True}, {"workers": -1}, {"chunk": 0}, {"chunk": "1"}]
)
def test_run__bad_option(option):
    with pytest.raises(InputError, match=f"{next(iter(option))} .* is not a whole number from 1 up"):
        run(draw, points_of(2), [Y, FLAG], **option)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def slow(params, seeds):
    time.sleep(0.36)
    return {"y": params["x"]}


@pytest.mark.parametrize(
    ("stream", "block", "progress", "shown"),
    [
        (Terminal, slow, None, True),
        (Terminal, slow, False, False),
        (Terminal, lambda params, seeds: {"y": params["x"]}, None, False),
        (io.StringIO, slow, None, False),
    ],
    ids=["terminal", "off", "fast", "no terminal"],
)
def test_run__progress(monkeypatch, stream, block, progress, shown):
    err = stream()
    monkeypatch.setattr(sys, "stderr", err)
    run(block, points_of(3), [Y], chunk=1, progress=progress)
    assert ("point" in err.getvalue()) == shown
