"""The study `fragmentation`: what its numbers are made of, and that a point depends on itself alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memmodel as mm
from memmodel.jit import JIT_ENABLED
from memmodel.state.layout import Kind, PageFlag
from memmodel.studies.fragmentation import OUTPUTS, PARAMETERS, STUDY, block, run_point
from memmodel.workloads.pageblocks import pageblock_use

SIZE_MIB, CHURN = (128, 1.0) if JIT_ENABLED else (16, 0.05)
MIXES = ["anonymous", "3*anonymous+kernel", "mixed"] if JIT_ENABLED else ["anonymous"]


def params_of(**columns):
    """Parameters of as many points as the lists are long; the rest is as it is by default."""
    n_points = max(len(column) for column in columns.values())
    given = {"size_mib": [SIZE_MIB] * n_points, "churn": [CHURN] * n_points, "peak": [0.9] * n_points, **columns}
    defaults = {parameter.name: [parameter.default] * n_points for parameter in PARAMETERS}
    return {name: STUDY.parameter(name).column(values) for name, values in {**defaults, **given}.items()}


def seeds_of(*numbers):
    return np.array([[n, 1, 2, 3] for n in numbers], np.uint64)


@pytest.fixture(scope="module")
def grid():
    points = [(fill, mix, limit) for fill in (0.4, 0.8) for mix in MIXES for limit in (5, 10)]
    fills, mixes, limits = map(list, zip(*points, strict=True))
    params = params_of(fill=fills, mix=mixes, page_block_max_order=limits)
    seeds = seeds_of(*[1] * len(points))
    return params, seeds, {name: np.array(values) for name, values in block(params, seeds).items()}


def test_block__all_outputs(grid):
    params, _, out = grid
    assert tuple(out) == OUTPUTS
    assert {len(values) for values in out.values()} == {len(params["fill"])}
    assert np.array_equal(out["pageblock_order"], np.minimum(params["page_block_max_order"], 9))


def test_block__pages_and_pageblocks_add_up(grid):
    params, _, out = grid
    managed = SIZE_MIB << 8
    free = out["free_pages"] + out["pcp_pages"]
    assert np.allclose(free / managed, 1 - params["fill"], atol=0.09 if JIT_ENABLED else 0.2)
    by_type = sum(out[f"free_pages_{name}"] for name in ("unmovable", "movable", "reclaimable"))
    assert (by_type <= out["free_pages"]).all()
    n_blocks = sum(out[f"n_pageblocks_{what}"] for what in ("free", "movable", "unmovable", "mixed"))
    assert np.array_equal(n_blocks, managed >> out["pageblock_order"])
    assert (out["n_requests_failed"] <= out["n_requests"]).all()


@pytest.mark.skipif(not JIT_ENABLED, reason="many operations")
def test_block__what_cannot_be_moved_is_what_the_mix_has(grid):
    params, _, out = grid
    alone = params["mix"] == "anonymous"
    assert (out["n_pageblocks_mixed"] + out["n_pageblocks_unmovable"])[alone].max() == 0
    assert (out["n_pageblocks_mixed"] + out["n_pageblocks_unmovable"])[~alone].min() > 0
    assert (out["n_pageblocks_mixed"][params["mix"] == "mixed"] > 0).all()
    assert ((out["thp_success_share"] >= 0) & (out["thp_success_share"] <= 1)).all()


def test_block__a_point_depends_on_itself_alone(grid):
    params, seeds, out = grid
    for i in reversed(range(len(seeds))):
        point = {name: column[i : i + 1] for name, column in params.items()}
        for name, values in block(point, seeds[i : i + 1]).items():
            assert values[0] == out[name][i], (i, name)


def test_block__on_two_threads(grid):
    params, seeds, out = grid
    halves = [({name: column[k::2] for name, column in params.items()}, seeds[k::2]) for k in (0, 1)]
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda half: block(*half), halves))
    for k, result in enumerate(results):
        for name, values in result.items():
            assert np.array_equal(values, out[name][k::2]), name


def test_block__orders_share_a_run():
    orders = list(range(13))
    params = params_of(order=orders, fill=[0.5] * 13, mix=["anonymous"] * 13)
    out = {name: np.array(values) for name, values in block(params, seeds_of(*[4] * 13)).items()}
    for name in ("free_pages", "thp_success_share", "n_requests", "n_pageblocks_mixed"):
        assert np.unique(out[name]).size == 1
    for name in ("unmovable", "movable", "reclaimable"):
        assert out[f"free_pages_{name}_at_order"].sum() == out[f"free_pages_{name}"][0]
        assert (out[f"free_pages_{name}_at_order"][11:] == 0).all()
    assert (np.diff(out["unusable_free_index"]) >= 0).all()
    assert out["unusable_free_index"][0] == 0
    assert out["unusable_free_index"][11] == 1000


@pytest.mark.skipif(not JIT_ENABLED, reason="many operations")
@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
@pytest.mark.parametrize("page_size", ["4KiB", "16KiB"])
def test_run_point__leaves_a_sound_memory(kernel, page_size):
    mem = mm.PhysicalMemory(mm.Geometry(kernel=kernel, page_size=page_size, page_block_max_order=7), "256MiB", seed=0)
    point = {"mix": "4*anonymous+page_cache+kernel+pinned+dma_buf", "peak": 0.85, "fill": 0.6, "churn": 0.5}
    end = run_point(mem, point | {"thp_requests": 4}, seeds_of(1)[0])
    mem.check()
    assert end.pageblock_order == 7
    assert end.settled


def test_pageblock_use__as_a_plain_walk():
    mem = mm.PhysicalMemory(mm.Geometry(page_block_max_order=3), "16MiB", seed=0)
    movable = mm.alloc_pages(mem, count=300)
    mm.alloc_pages(mem, count=40, migratetype="unmovable")
    mm.run_workload(mem, "pinned+anonymous", 500, fill=0.5, seed=3, pinned_pages=2, process_pages=2)
    mm.alloc_pages(mem, order=5, migratetype="unmovable")
    mm.free_pages(mem, movable[::3])
    states, flags = mem.state.pages["state"].tolist(), mem.state.pages["pg_flags"].tolist()
    seen = [set() for _ in range(mem.state.blocks.size)]
    for row in range(mem.pfns.n_pages):
        if states[row] >> 4 == Kind.USED:
            what = "movable" if flags[row] & (PageFlag.LRU | PageFlag.LRU_BATCH) else "unmovable"
            for page in range(row, row + (1 << (states[row] & 15))):
                seen[page >> 3].add(what)
    counts = [sum(kinds == wanted for kinds in seen) for wanted in (set(), {"movable"}, {"unmovable"})]
    use = pageblock_use(mem.state)
    assert use[:3] == tuple(counts)
    assert use.mixed == len(seen) - sum(counts) > 0
    assert min(use) > 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"mix": ["anon"]}, "unknown workload 'anon'"),
        ({"kernel": ["new"]}, "kernel 'new'"),
        ({"page_block_max_order": [15]}, "limit 15 > MAX_PAGE_ORDER 10"),
        ({"page_size": ["64KiB"], "mix": ["thp"], "size_mib": [3]}, "parameter size_mib: 3 is not allowed"),
    ],
)
def test_block__refused(columns, message):
    with pytest.raises(mm.InputError, match=message) as caught:
        block(params_of(**columns), seeds_of(1))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not JIT_ENABLED, reason="many operations")
def test_run_study__by_name():
    grid = {"page_block_max_order": [5, 9], "mix": ["anonymous", "mixed"], "order": [4, 9], "size_mib": 64}
    ds, again = (mm.run_study("fragmentation", grid, replicates=2, seed=1, workers=n, progress=False) for n in (1, 2))
    assert ds.identical(again)
    assert dict(ds.sizes) == {"page_block_max_order": 2, "mix": 2, "order": 2, "replicate": 2}
    assert (ds["status"] == 0).all()
    assert (ds["free_pages"].isel(order=0) == ds["free_pages"].isel(order=1)).all()
    assert ds.identical(mm.rerun(ds, progress=False))
