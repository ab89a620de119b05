"""Requests of a recorded trace on other kernels and settings."""

import functools

import numpy as np
import pytest

import memmodel as mm
from memmodel.errors import InputError
from memmodel.kernels.buddy import count_free
from memmodel.replaying.plan import make_plan
from memmodel.replaying.recast import placement_of
from memmodel.replaying.replay import begin, find_hidden
from memmodel.replaying.start import read_start
from memmodel.replaying.what_if import _machine
from memmodel.results import dataset
from memmodel.sources.freelists import read_free_lists
from memmodel.sources.ftrace import read_trace
from tests.replaying.recorded import CMA, FIRST

TRACE, START = FIRST / "trace.txt.xz", FIRST / "gt_snap.txt.xz"


@functools.cache
def at_start(piece=FIRST):
    """The memory at the start of a piece, and its placement."""
    trace = read_trace(piece / "trace.txt.xz")
    base = read_start(piece / "gt_snap.txt.xz", trace, None, None)
    plan = make_plan(base.memory, trace, base.first_row)
    mem = begin(base, trace, plan, find_hidden(base, trace, plan, 0)[0], 0).mem
    return mem, placement_of(mem)


def dumped(piece, label):
    """Free blocks [zone, migratetype, order] of a dump."""
    dump = next(dump for dump in read_free_lists(piece / "gt_snap.txt.xz") if dump.label == label)
    free = np.zeros((len(dump.zones), 6, dump.max_order + 1), np.int64)
    for zone, lists in enumerate(dump.zones):
        for (order, migratetype), pfns in lists.lists.items():
            free[zone, migratetype, order] = pfns.size
    return free


def free_pages(mem):
    free = count_free(mem.state)
    return (free.sum(axis=1) << np.arange(free.shape[2])).sum(axis=1)


@pytest.mark.parametrize("grid", [{}, {"page_block_max_order": [9]}, {"kernel": ["6.12.117"]}])
def test_what_if__settings_as_recorded(grid):
    ds = mm.what_if(TRACE, START, grid)
    last = ds.isel(dict.fromkeys(grid, 0) | {"time_s": -1})
    assert np.array_equal(last.free_blocks, dumped(FIRST, "t01"))
    assert int(last.n_allocations) == 29755
    assert not any(int(last[name]) for name in ("n_failed", "n_failed_in_recording_only", "n_frees_of_missing_pages"))


def test_what_if__frees_are_of_allocations():
    """After CMA has moved pages what is freed is what was asked for, wherever it is now."""
    ds = mm.what_if(CMA / "trace.txt.xz", CMA / "gt_snap.txt.xz", {"page_block_max_order": [9, 7]})
    last = ds.isel(time_s=-1)
    assert last.n_frees_of_missing_pages.values.tolist() == [0, 0]
    assert last.n_failed.values.tolist() == [0, 0]
    assert (last.n_allocations > 0).all()


def test_what_if__every_variable_has_units(tmp_path):
    grid = {"page_block_max_order": [7, 9], "percpu_pagelist_high_fraction": [8, 100]}
    ds = mm.what_if(TRACE, START, grid, samples=4)
    assert ds.free_blocks.dims == (*grid, "time_s", "zone", "migratetype", "order")
    assert ds.free_blocks.shape == (2, 2, 4, 2, 6, 11)
    for name in ds.variables:
        assert ds[name].attrs["units"], name
        assert ds[name].attrs["long_name"], name
    assert ds.pageblock_order.values.tolist() == [[7, 7], [9, 9]]
    assert ds.attrs["provenance"]
    path = tmp_path / "w.nc"
    dataset.save(ds, path)
    assert dataset.load(path).equals(ds)


def test_what_if__equal_twice(tmp_path):
    files = [tmp_path / "a.nc", tmp_path / "b.nc"]
    for path in files:
        dataset.save(mm.what_if(TRACE, START, {"kernel": ["6.12.117", "7.3"]}, samples=3), path)
    first, second = (dataset.load(path) for path in files)
    for name in first.variables:
        assert first[name].values.tobytes() == second[name].values.tobytes()
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("piece", [FIRST, CMA])
@pytest.mark.parametrize(
    "settings",
    [
        *({"page_block_max_order": order} for order in (1, 5, 7, 9, 10)),
        *({"kernel": kernel} for kernel in ("6.12.117", "7.3")),
        {"percpu_pagelist_high_fraction": 8},
        {"page_block_max_order": 7, "kernel": "7.3", "percpu_pagelist_high_fraction": 100},
    ],
)
def test_what_if__recast_keeps_free_pages_and_laws(piece, settings):
    mem, placement = at_start(piece)
    there = _machine(mem, placement, settings)
    there.check()
    assert np.array_equal(free_pages(there), free_pages(mem))
    back = _machine(there, placement_of(there), {"page_block_max_order": 9, "kernel": "6.12.117"})
    back.check()
    assert np.array_equal(free_pages(back), free_pages(mem))


def test_what_if__recast_to_6_1_keeps_free_pages_and_laws():
    mem, placement = at_start()
    there = _machine(mem, placement, {"kernel": "6.1"})
    there.check()
    assert np.array_equal(free_pages(there), free_pages(mem))


@pytest.mark.parametrize("size", [0, 4 << 20, 16 << 20])
def test_what_if__cma_size(size):
    mem, placement = at_start()
    there = _machine(mem, placement, {"cma_size": size})
    there.check()
    assert np.count_nonzero(there.state.blocks["migratetype"] == 4) << 21 == size
    assert np.array_equal(free_pages(there), free_pages(mem))


def test_what_if__kernels():
    ds = mm.what_if(TRACE, START, {"kernel": ["6.1", "6.12.117", "7.3"]}, samples=2).isel(time_s=-1)
    assert ds.n_allocations.values.tolist() == [29755] * 3
    pages = (ds.free_blocks * 2.0**ds.order).sum(["zone", "migratetype", "order"])
    assert np.ptp(pages.values) < 200  # what is on per-CPU lists differs


def test_what_if__sizes_as_text():
    ds = mm.what_if(TRACE, START, {"cma_size": ["4MiB", 8 << 20]}, samples=1)
    assert ds.cma_size.values.tolist() == [4 << 20, 8 << 20]
    assert ds.cma_size.attrs["units"] == "byte"
    assert ds.pageblocks.sel(migratetype="CMA").sum("zone").values.ravel().tolist() == [2, 4]


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        ({"page_size": ["4KiB"]}, "page_size cannot be varied in a replay"),
        ({"pages": [1]}, "parameter of a replay"),
        ({"page_block_max_order": []}, "page_block_max_order has no values"),
        ({"page_block_max_order": ["x"]}, "page_block_max_order 'x' is not a whole number"),
        ({"page_block_max_order": [7.5]}, "not a whole number"),
        ({"page_block_max_order": [99]}, "page_block_max_order=99"),
        ({"page_block_max_order": [-1]}, "page_block_max_order=-1"),
        ({"page_block_max_order": [7, "7"]}, "has a value twice"),
        ({"kernel": ["nonsense"]}, "nonsense"),
        ({"percpu_pagelist_high_fraction": [-8]}, "percpu_pagelist_high_fraction -8; 0 (as at boot) and from 8 on"),
        ({"percpu_pagelist_high_fraction": [7, 8]}, "percpu_pagelist_high_fraction 7"),
        ({"cma_size": ["4MiX"]}, "cma_size"),
        ({"cma_size": [4097]}, "cma_size 4097 is not a multiple of the page size"),
        ({"cma_size": [4096]}, "not a multiple of a pageblock"),
        ({"cma_size": ["64GiB"]}, "no room for a CMA area"),
        ({"cma_size": [None]}, "cma_size"),
        ({"kernel": [None]}, "kernel"),
        ({"kernel": 5.5}, "kernel"),
    ],
)
def test_what_if__refuses(grid, text):
    with pytest.raises(InputError) as caught:
        mm.what_if(TRACE, START, grid, samples=1)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("samples", [0, -1])
def test_what_if__no_samples(samples):
    with pytest.raises(InputError, match="at least 1 is needed"):
        mm.what_if(TRACE, START, {}, samples=samples)
