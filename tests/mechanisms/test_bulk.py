"""alloc_pages_bulk(): one zone, one per-CPU list, and when it is a single page."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import Wmark, ZoneFlag
from tests.reference.views import refused

LOW = Wmark.LOW


@pytest.fixture
def mem():
    """64 MiB in one zone, batch 3."""
    return PhysicalMemory(Geometry(arch="generic"), "64MiB", cpus=2, seed=0)


def got(mem, count, **options):
    """Pages that came, and that they are the first ones of the answer."""
    handles = mm.alloc_pages_bulk(mem, count, **options)
    assert handles.shape == (count,)
    n = int(np.count_nonzero(handles >= 0))
    assert (handles[:n] >= 0).all()
    mem.check()
    return handles[:n]


def keep_free(mem, n_pages):
    """Take pages until just so many are free, none of them on a list of a CPU."""
    zone = mem.state.zones[0]
    mm.drain_all_pages(mem)
    for cpu in range(mem.cpus):
        mm.vmstat_update(mem, cpu)
    mm.alloc_pages(mem, count=int(zone["free_pages"]) - n_pages, gfp="GFP_KERNEL|__GFP_MEMALLOC")
    mm.drain_all_pages(mem)
    for cpu in range(mem.cpus):
        mm.vmstat_update(mem, cpu)
    assert int(zone["free_pages"]) == n_pages


def test_alloc_pages_bulk__same_pages_as_single_requests(mem):
    other = mem.copy()
    bulk = mem.pfn(got(mem, 300))
    single = other.pfn(mm.alloc_pages(other, count=300))
    assert bulk.tolist() == single.tolist()
    assert mem.vmstat()["pgalloc_normal"] == 300


def test_alloc_pages_bulk__leaves_the_memory_of_frees_alone(mem):
    """rmqueue_pcplist() halves free_count, the bulk allocator goes below it."""
    mem.state.pcp["free_count"] = 8
    got(mem, 5)
    assert int(mem.state.pcp["free_count"][0]) == 8
    mm.alloc_pages(mem)
    assert int(mem.state.pcp["free_count"][0]) == 4


def test_alloc_pages_bulk__wakes_nobody_for_a_boosted_zone(mem):
    mem.state.zones["flags"] = ZoneFlag.BOOSTED_WATERMARK
    got(mem, 5)
    assert mem.vmstat()["kswapd_woken"] == 0
    got(mem, 1)
    assert mem.vmstat()["kswapd_woken"] == 1


@pytest.mark.parametrize(("beyond", "n_pages"), [(1, 20), (0, 1)])
def test_alloc_pages_bulk__needs_all_its_pages_above_the_low_mark(mem, beyond, n_pages):
    """free > low + count; a page less, and one page comes by way of alloc_pages()."""
    keep_free(mem, int(mem.state.zones[0]["watermark"][LOW]) + 20 + beyond)
    assert got(mem, 20).size == n_pages


def test_alloc_pages_bulk__the_boost_counts(mem):
    keep_free(mem, int(mem.state.zones[0]["watermark"][LOW]) + 21)
    mem.state.zones["watermark_boost"] = 1
    assert got(mem, 20).size == 1


def test_alloc_pages_bulk__one_page_and_none(mem):
    assert got(mem, 1).size == 1
    assert got(mem, 0).size == 0


def test_alloc_pages_bulk__accounted_pages_come_singly(mem):
    assert got(mem, 20, gfp="GFP_KERNEL_ACCOUNT").size == 1


def test_alloc_pages_bulk__no_zone_of_another_node():
    mem = PhysicalMemory(Geometry(arch="generic"), "128MiB", nodes=2, seed=0)
    marks = mem.state.zones["watermark"]
    marks[0] = 1 << 20
    assert mem.pfn(got(mem, 20)).tolist() == [16384]  # the fallback asks node 1
    marks[0] = 0
    assert got(mem, 20).size == 20


def test_alloc_pages_bulk__a_lower_zone_keeps_the_preferred_zone_s_reserve():
    mem = PhysicalMemory(Geometry(arch="generic"), "128MiB", movablecore="64MiB", seed=0)
    normal, movable = mem.state.zones
    movable["watermark"] = 1 << 20
    got(mem, 20)
    assert mem.vmstat()["pgalloc_normal"] == 20
    keep_free(mem, int(normal["watermark"][LOW]) + int(normal["lowmem_reserve"][4]) + 20)
    assert got(mem, 20).size <= 1


def test_alloc_pages_bulk__the_reserve_is_that_for_the_preferred_zone(mem):
    """Not that for the highest zone of the request, which alloc_pages() looks at."""
    mem.state.zones["lowmem_reserve"][:, 4] = 1 << 20
    assert got(mem, 20, migratetype="unmovable").size == 20
    assert got(mem, 20).size == 20
    assert got(mem, 1).size == 0


def test_alloc_pages_bulk__what_the_last_refill_brings(mem):
    """The watermark is looked at once: a list that cannot be refilled ends it early."""
    mem.state.zones["watermark"] = mem.state.zones["stat_threshold"] = 0
    mm.alloc_pages(mem, count=1 << 14)
    assert got(mem, 20).size == 0
    mem = PhysicalMemory(Geometry(arch="generic"), "64MiB", seed=0)
    mem.state.zones["watermark"] = 0
    keep_free(mem, 50)
    mem.state.zones["free_pages"] += 100  # as if other CPUs' differences hid it
    mem.state.pcp["free_diff"] -= 100
    mem.state.zones["stat_threshold"] = 125
    assert got(mem, 100).size == 50


def test_alloc_pages_bulk__pages_reach_the_lru(mem):
    """By way of the CPU's batch of 31, movable ones only."""
    handles = got(mem, 62)
    assert (mem.state.pages["pg_flags"][mem.index(mem.pfn(handles))] == 2).all()
    handles = got(mem, 62, migratetype="unmovable")
    assert (mem.state.pages["pg_flags"][mem.index(mem.pfn(handles))] == 0).all()


def test_alloc_pages_bulk__only_the_fallback_reclaims(mem):
    folios = mm.alloc_pages(mem, count=1 << 14)
    policy = mm.LeastRecentlyAllocated(folios)
    assert got(mem, 100).size == 0
    assert got(mem, 100, reclaim=policy).size == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -1}, "count -1"),
        ({"count": 1.0}, "count 1.0"),
        ({"count": 5, "migratetype": "cma"}, "migratetype 'cma'"),
        ({"count": 5, "cpu": 2}, "cpu 2"),
        ({"count": 0, "node": 1}, "node 1"),
        ({"count": 5, "gfp": "GFP_ORANGE"}, "unknown gfp flag 'GFP_ORANGE'"),
        ({"count": 1, "reclaim": 5}, "are functions, not 5"),
    ],
)
def test_alloc_pages_bulk__bad_input(mem, options, message):
    refused(mem, message, mm.alloc_pages_bulk, **options)
