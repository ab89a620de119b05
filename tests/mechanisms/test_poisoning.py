"""inject_poison() and run_memory_failure_work(): where errors may lie, what becomes of pages, what is refused."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.state.layout import Kind, PageFlag
from tests.reference import views
from tests.reference.buddy import CMA, ISOLATE, MOVABLE, Zone
from tests.reference.views import refused


@pytest.fixture
def holed(small_geometry):
    """Pages 20 to 99 and 200 to 249; 16 to 19 and 96 to 111 belong to the same largest blocks, and are not there."""
    zones = [Zone(0, "Normal", a, b, [(a, b)]) for a, b in ((20, 100), (200, 250))]
    return views.machine(small_geometry, zones, cpus=2)


def fail(mem, pfns, cpu=0):
    """Queue these pages of live order-0 folios as a copy would."""
    mm.inject_poison(mem, pfn=pfns)
    handles = {int(pfn): handle for pfn, handle in zip(mem.pfn(mem.live), mem.live, strict=True)}
    target = mm.alloc_pages(mem, count=len(pfns))
    out = mm.folio_mc_copy(mem, target, [handles[pfn] for pfn in pfns], engine="fragile", cpu=cpu)
    mm.free_pages(mem, target)
    assert out.pfn_queued.tolist() == list(pfns)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_inject_poison__addresses_of_lines_each_once(holed):
    got = mm.inject_poison(holed, pfn=[200, 20, 200, 99], line=[63, 0, 63, 1])
    assert got.tolist() == [20 * 4096, 99 * 4096 + 64, 200 * 4096 + 63 * 64]
    again = mm.inject_poison(holed, address=[200 * 4096 + 63 * 64 + 17, 21 * 4096 - 1])
    assert again.tolist() == [20 * 4096 + 63 * 64, 200 * 4096 + 63 * 64]
    assert holed.state.ue_lines.size == 4
    assert (np.diff(holed.state.ue_lines.astype(np.int64)) > 0).all()
    assert int(np.bitwise_count(holed.state.ue_pages).sum()) == 3


def test_inject_poison__pages_and_lines_broadcast(holed):
    assert mm.inject_poison(holed, pfn=30, line=[1, 5]).tolist() == [30 * 4096 + 64, 30 * 4096 + 5 * 64]
    assert mm.inject_poison(holed, pfn=[31, 30]).tolist() == [30 * 4096, 31 * 4096]
    assert mm.inject_poison(holed, pfn=np.array([[32], [33]]), line=[2, 3]).size == 4
    assert mm.inject_poison(holed, pfn=np.array([40], np.uint64), line=np.array([2], np.uint8)).tolist() == [
        40 * 4096 + 128
    ]
    assert mm.inject_poison(holed, address=np.uint64(40 * 4096)).tolist() == [40 * 4096]
    assert mm.inject_poison(holed, pfn=np.array([], np.int64)).size == 0


def test_inject_poison__large_pages_have_more_lines():
    mem = views.plain_memory(Geometry(page_size="64KiB"), "64MiB", seed=0)
    first = 1 << 14  # arm64 RAM begins at 1 GiB
    assert mm.inject_poison(mem, pfn=first, line=1023).tolist() == [(1 << 30) + 65536 - 64]
    refused(mem, "0 to 1023 lie in a page", mm.inject_poison, pfn=first, line=1024)


def test_inject_poison__the_kernel_knows_nothing_of_it(small):
    folios = mm.alloc_pages(small, 0, 128)
    mm.inject_poison(small, pfn=small.pfn(folios))
    assert not (small.state.pages["pg_flags"] & 1).any()
    mm.free_pages(small, folios)
    assert int(small.state.zones["free_pages"].sum()) == 128
    small.check()


def test_inject_poison__at_a_rate():
    mem = views.plain_memory(Geometry(), "4GiB", nodes=2, seed=0)
    got = mm.inject_poison(mem, rate_per_gib=1000, seed=5)
    assert abs(got.size - 4000) < 5 * 4000**0.5
    assert (got % 64 == 0).all()
    assert (np.diff(got) > 0).all()
    assert got[-1] < 4 << 30
    quarters = np.bincount(got >> 30, minlength=4)
    assert (abs(quarters - 1000) < 5 * 1000**0.5).all()
    lines = np.bincount(got // 64 % 64, minlength=64)
    assert (abs(lines - 62.5) < 5 * 62.5**0.5).all()
    assert mm.inject_poison(mem.copy(), rate_per_gib=1000, seed=5).tolist() == got.tolist()
    assert mm.inject_poison(mem.copy(), rate_per_gib=1000, seed=6).tolist() != got.tolist()
    assert mm.inject_poison(mem, rate_per_gib=0, seed=0).size == 0


def test_inject_poison__a_rate_leaves_holes_out(holed):
    holed.state.pages["state"][holed.index(range(40, 60))] = Kind.HOLE << 4  # inside a zone's span
    got = mm.inject_poison(holed, rate_per_gib=4e6, seed=1)
    pfns = set((got // 4096).tolist())
    assert pfns == {*range(20, 40), *range(60, 100), *range(200, 250)}
    assert abs(got.size - 110 * 64 * (1 - np.exp(-4e6 * 64 / 2**30))) < 200


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({}, "just one of"),
        ({"pfn": 30, "address": 0}, "just one of"),
        ({"pfn": 30, "rate_per_gib": 1, "seed": 0}, "just one of"),
        ({"pfn": 15}, "pfn 15 is outside memory; there are 16..111, 192..255"),
        ({"pfn": -1}, "pfn -1 is outside memory"),
        ({"pfn": [30, 300]}, "pfn 300 is outside memory"),
        ({"pfn": 150}, "pfn 150 is outside memory"),
        ({"pfn": 16}, "pfn 16 is a hole"),
        ({"pfn": [30, 100]}, "pfn 100 is a hole"),
        ({"pfn": 30.0}, "a pfn is a whole number"),
        ({"pfn": "30"}, "a pfn is a whole number"),
        ({"pfn": True}, "a pfn is a whole number"),
        ({"pfn": 1 << 70}, "a pfn is a whole number"),
        ({"pfn": [[30], [30, 31]]}, "pfn"),
        ({"pfn": 30, "line": 64}, "line 64; 0 to 63 lie in a page"),
        ({"pfn": 30, "line": -1}, "line -1"),
        ({"pfn": 30, "line": 1.0}, "line 1.0"),
        ({"pfn": 30, "line": list(range(100))}, "line 64"),
        ({"pfn": 30, "line": np.arange(2000)}, "line 64"),
        ({"pfn": [30, 31], "line": [1, 2, 3]}, "pfn"),
        ({"address": 16 * 4096}, "pfn 16 is a hole"),
        ({"address": 0}, "pfn 0 is outside memory"),
        ({"address": -64}, "outside memory"),
        ({"address": 1.5}, "a physical address is a whole number"),
        ({"address": "0x1000"}, "a physical address is a whole number"),
        ({"rate_per_gib": -1, "seed": 0}, "rate_per_gib -1"),
        ({"rate_per_gib": float("nan"), "seed": 0}, "rate_per_gib nan"),
        ({"rate_per_gib": float("inf"), "seed": 0}, "rate_per_gib inf"),
        ({"rate_per_gib": "1", "seed": 0}, "rate_per_gib '1'"),
        ({"rate_per_gib": 1e30, "seed": 0}, "rate_per_gib 1e+30"),
        ({"rate_per_gib": 1, "seed": -1}, "seed -1"),
    ],
)
def test_inject_poison__bad_input(holed, place, message):
    refused(holed, message, mm.inject_poison, **place)


# -- memory_failure() --------------------------------------------------------------------------------------------------


def test_run_memory_failure_work__used_then_freed_then_again(small):
    small.live = mm.alloc_pages(small, 0, 20, migratetype="unmovable")
    first, second = small.pfn(small.live)[:2].tolist()
    fail(small, [first, second, first], cpu=1)
    assert mm.run_memory_failure_work(small, cpu=0).pfn.size == 0
    mm.free_pages(small, small.live[1])  # before the worker runs
    work = mm.run_memory_failure_work(small, cpu=1)
    assert work.pfn.tolist() == [first, second, first]
    assert work.already_poisoned.tolist() == [False, False, True]
    assert work.taken_off_buddy.tolist() == [False, True, False]
    assert mm.run_memory_failure_work(small, cpu=1).pfn.size == 0
    small.check()
    mm.free_pages(small, small.live[0])  # flagged while in use: lost when it is freed
    small.check()
    assert views.pages_of_kind(small, Kind.HWPOISON) == {first, second}
    assert int(small.state.zones["free_pages"].sum()) == 128 - 18 - 2
    everything = mm.alloc_pages(small, 0, 128, migratetype="unmovable")
    assert not {first, second} & set(small.pfn(everything[everything >= 0]).tolist())


def test_run_memory_failure_work__after_the_page_has_another_owner(small):
    """The queue holds a pfn, not a folio: whoever has the page by then is hit."""
    small.live = mm.alloc_pages(small, 0, 4)
    pfn = int(small.pfn(small.live)[0])
    fail(small, [pfn])
    mm.free_pages(small, small.live)
    again = mm.alloc_pages(small, 2)
    assert small.pfn(again).tolist() == [pfn]
    assert mm.run_memory_failure_work(small).taken_off_buddy.tolist() == [False]
    assert small.state.pages["pg_flags"][small.index(pfn)] & PageFlag.HWPOISON
    small.check()


@pytest.mark.parametrize("migratetype", [MOVABLE, CMA, ISOLATE])
def test_run_memory_failure_work__a_free_page_of_any_type(small_geometry, migratetype):
    """The CMA counter goes down with the page; isolated pages are in neither counter."""
    zones = [Zone(0, "Normal", 0, 16, [(0, 16)])]
    mem = views.machine(small_geometry, zones, types={1: migratetype})
    free, cma = (int(mem.state.zones[name][0]) for name in ("free_pages", "free_cma"))
    mem.state.queues[0]["index"][0], mem.state.queues["count"][0] = 6, 1
    assert mm.run_memory_failure_work(mem).taken_off_buddy.tolist() == [True]
    assert int(mem.state.zones["free_pages"][0]) == free - (migratetype != ISOLATE)
    assert int(mem.state.zones["free_cma"][0]) == cma - (migratetype == CMA)
    mem.check()


@pytest.mark.parametrize("cpu", [2, -1, "0", None, 0.5])
def test_run_memory_failure_work__bad_cpu(small, cpu):
    refused(small, f"cpu {cpu!r}; this machine has 0 to 1", mm.run_memory_failure_work, cpu)


def test_inject_poison__a_missing_seed_is_the_memorys():
    first, second = (views.plain_memory(Geometry(), "16MiB", seed=seed) for seed in (1, 1))
    got = mm.inject_poison(first, rate_per_gib=1000)
    assert got.size > 0
    assert mm.inject_poison(second, rate_per_gib=1000).tolist() == got.tolist()
    assert set(mm.inject_poison(first, rate_per_gib=1000)) != set(got)  # and the next call draws others
    assert mm.inject_poison(views.plain_memory(Geometry(), "16MiB", seed=2), rate_per_gib=1000).tolist() != got.tolist()
