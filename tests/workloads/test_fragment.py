"""fragment(): targets reached and not, and what it refuses."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.jit import JIT_ENABLED
from memmodel.workloads.fragment import FRAGMENTERS, METRICS, measure
from tests.reference.views import plain_memory, refused

SIZE = "48MiB" if JIT_ENABLED else "20MiB"


@pytest.fixture(scope="module")
def start():
    return mm.PhysicalMemory(mm.Geometry(), SIZE, seed=5)


@pytest.mark.skipif(not JIT_ENABLED, reason="many operations")
@pytest.mark.parametrize("name", FRAGMENTERS)
def test_fragment__by_name(start, name):
    mem = start.copy()
    out = mm.fragment(mem, name, target=200, order=9, peak=0.85, seed=1)
    mem.check()
    assert out.reached
    assert out.value == measure(mem, "unusable_free_index", 9) >= 200
    assert out.value == mem.unusable_free_index().sel(order=9).values[-1]
    assert np.array_equal(out.workload.allocated - out.workload.freed, out.workload.held)
    assert mem.pfn(out.workload.folios).size == out.workload.held.sum()


@pytest.mark.skipif(not JIT_ENABLED, reason="many operations")
@pytest.mark.parametrize(
    ("metric", "target"),
    [("extfrag_for_order", 80), ("fragmentation_score_node", 80), ("fragmentation_index", 900)],
)
def test_fragment__other_metrics(start, metric, target):
    mem = plain_memory(mm.Geometry(arch="generic"), SIZE, seed=0)
    out = mm.fragment(mem, "holes", target=target, metric=metric, fill=0.6, peak=1.0, seed=1, order=7)
    assert out.reached
    assert out.value == measure(mem, metric, 7) >= target
    mem.check()


@pytest.mark.skipif(not JIT_ENABLED, reason="many operations")
def test_fragment__not_reached(start):
    mem = start.copy()
    out = mm.fragment(mem, "processes", target=1000, fill=0.2, peak=0.3, rounds=3, seed=1)
    assert not out.reached
    assert out.rounds == 3
    assert out.value == measure(mem, "unusable_free_index", 9) < 1000


@pytest.mark.skipif(not JIT_ENABLED, reason="many operations")
def test_fragment__a_workload_and_the_same_again(start):
    one, two = start.copy(), start.copy()
    outcomes = [
        mm.fragment(mem, "3*pinned+kernel", target=1, fill=0.02, peak=0.05, seed=3, pinned_pages=2)
        for mem in (one, two)
    ]
    assert one.digest == two.digest
    assert outcomes[0].value == outcomes[1].value


def test_measure__largest_zone(start):
    assert measure(start, "fragmentation_index", 9) == -1000
    assert measure(start, "unusable_free_index", 0) == 0
    with pytest.raises(mm.InputError, match="node 3; this machine has 0"):
        measure(start, "unusable_free_index", 0, node=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 1001}, "target 1001; 0 to 1000 (unusable_free_index)"),
        ({"target": 101, "metric": "extfrag_for_order"}, "target 101; 0 to 100"),
        ({"target": 0.5}, "target 0.5"),
        ({"target": 5, "metric": "entropy"}, f"unknown metric 'entropy'; one of: {', '.join(METRICS)}"),
        ({"target": 5, "fragmenter": "hole"}, "unknown workload 'hole'"),
        ({"target": 5, "order": 11}, "order 11; 0 to 10"),
        ({"target": 5, "rounds": 0}, "rounds 0"),
        ({"target": 5, "fill": 0.9, "peak": 0.5}, "peak 0.5 is below fill 0.9"),
        ({"target": 5, "fill": -0.1}, "fill -0.1"),
        ({"target": 5, "process_pages": 3}, "unknown setting of workload pinned 'process_pages'"),
    ],
)
def test_fragment__refused(start, options, message):
    refused(start.copy(), message, mm.fragment, **options)
