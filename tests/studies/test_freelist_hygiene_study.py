"""The study `freelist_hygiene`: mismatches by rule of the kernel, runs of one memory, and the line through them."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED
from memmodel.mechanisms.policies import Compaction, CompactResult
from memmodel.memory import PhysicalMemory
from memmodel.studies import freelist_hygiene
from memmodel.studies.freelist_hygiene import OUTPUTS, PARAMETERS, block, build_runs, trend
from memmodel.workloads.pageblocks import count_type_mismatches
from tests.reference import views

SMALL = {"size_mib": 64, "burst_mib": 4, "bursts": 3, "fill": 0.7, "rest": 0.3, "mix": "page_cache+kernel"}
if not JIT_ENABLED:
    SMALL |= {"size_mib": 8, "burst_mib": 2, "bursts": 1}
SEED = np.array([1, 2, 3, 4], np.uint64)


def point_of(**changes):
    return {parameter.name: parameter.default for parameter in PARAMETERS} | SMALL | changes


def memory_like(point):
    geo = Geometry(kernel=point["kernel"], page_block_max_order=point["page_block_max_order"])
    return PhysicalMemory(geo, point["size_mib"] << 20, seed=0)


def mismatches_of(mem):
    """The twin: every page of every list, by links."""
    order, types = mem.geometry.pageblock_order, views.block_types(mem)
    return sum(
        types[pfn + page >> order] != migratetype
        for (_, block, migratetype), pfns in views.free_lists(mem).items()
        for pfn in pfns
        for page in range(1 << block)
    )


@pytest.mark.parametrize("limit", [10, 6, 3])
@pytest.mark.parametrize("kernel", ["6.1", "6.10", "6.12.117", "7.3"])
def test_mismatches__in_6_1_alone(kernel, limit):
    """And counted as the slow twin counts them, at each burst."""
    point = point_of(kernel=kernel, page_block_max_order=limit, run=1 + JIT_ENABLED)
    mem = memory_like(point)
    counted = []

    def compact(mem, request):
        counted.append((int(count_type_mismatches(mem.state)), mismatches_of(mem)))
        return Compaction(CompactResult.DEFERRED)

    runs = build_runs(mem, point, SEED, compact=compact)
    counted.append((int(count_type_mismatches(mem.state)), mismatches_of(mem)))
    mem.check()
    assert all(ours == twins for ours, twins in counted)
    if kernel != "6.1":
        assert {run.mismatches for run in runs} == {0}
    elif JIT_ENABLED and limit < 10:
        assert max(run.mismatches for run in runs) > 0


def test_mismatches__of_blocks_larger_than_a_pageblock():
    """A free block of order 9 whose second pageblock of order 6 gets another type."""
    mem = views.plain_memory(Geometry(arch="generic", kernel="6.1", page_block_max_order=6), "4MiB", seed=0)
    assert count_type_mismatches(mem.state) == 0
    mem.state.blocks["migratetype"][1] = 2
    assert count_type_mismatches(mem.state) == mismatches_of(mem) == 64


@views.large
def test_block__runs_of_one_memory():
    """Points that differ in `run` alone share a memory; a shorter series is the beginning of a longer one."""
    grid = {"kernel": ["6.1", "7.3"], "run": [1, 3], **SMALL}
    ds = mm.run_study("freelist_hygiene", grid, replicates=2, seed=5)
    assert not ds["status"].any()
    assert set(OUTPUTS) <= set(ds.data_vars)
    one = mm.run_study("freelist_hygiene", {**grid, "run": [1]}, replicates=2, seed=5, chunk=1)
    assert ds.sel(run=[1]).drop_attrs().equals(one.drop_attrs())
    assert (ds["n_thp_faults"] == SMALL["bursts"] * (SMALL["burst_mib"] // 2)).all()
    assert bool(((ds["thp_success"] >= 0) & (ds["thp_success"] <= 1)).all())
    blocks = sum(ds[f"n_pageblocks_{what}"] for what in ("free", "movable", "unmovable", "mixed"))
    assert (blocks == SMALL["size_mib"] // 2).all()


@views.large
def test_block__compaction_is_handed_to_the_faults():
    """A policy is asked for each fault that finds no page; without one no fault compacts."""
    asked = []

    def compact(mem, request):
        asked.append(request.order)
        return Compaction(CompactResult.COMPLETE)

    point = point_of(run=1, fill=0.85)
    params = {p.name: p.column([point[p.name]]) for p in PARAMETERS}
    plain = block(params, SEED[None, :])
    compacted = block(params, SEED[None, :], compact=compact)
    assert plain["thp_success"][0] < 1
    assert set(asked) == {9}
    assert compacted["thp_success"] == plain["thp_success"]  # this one moves nothing


def test_trend__published_series():
    from scripts import reproduce_freelist_hygiene as script

    before, after = (trend(series) for series in script.published().values())
    assert (round(before.slope), round(before.error), before.falls) == (-1989, 169, True)
    assert (round(after.slope), round(after.error), after.falls) == (-23, 163, False)
    assert after.low < 0 < after.high
    assert before.high == pytest.approx(-1989 + 2.160 * 169, abs=3)


def test_trend__exact_line():
    fit = trend([5.0, 4.0, 3.0, 2.0])
    assert (fit.slope, fit.mean) == pytest.approx((-1, 3.5))
    assert fit.falls
    assert freelist_hygiene.STUDY.title.endswith("in one memory.")
