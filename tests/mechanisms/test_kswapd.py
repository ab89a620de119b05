"""kswapd, the reclaim policy that comes with the model, and per-CPU drains."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.memory import PhysicalMemory
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import PageFlag, Wmark, ZoneFlag
from tests.reference import views
from tests.reference.views import refused

HIGH, LOW = Wmark.HIGH, Wmark.LOW
KERNEL = parse_gfp("GFP_KERNEL")


def request(mem, n_pages=32, zones=(0,), cpu=0):
    return mm.ReclaimRequest(np.array(zones, np.uint64), 0, KERNEL, cpu, n_pages)


def full(kernel="6.12.117", **options):
    """64 MiB, filled down to the min watermark with movable pages; these."""
    mem = PhysicalMemory(Geometry(arch="generic", kernel=kernel), "64MiB", cpus=2, seed=0, **options)
    folios = mm.alloc_pages(mem, count=1 << 14)
    return mem, folios[folios >= 0]


def free_of(mem, zone=0):
    return int(mem.state.zones["free_pages"][zone])


# -- the policy --------------------------------------------------------------------------------------------------------


def test_least_recently_allocated__first_ones_first():
    mem = views.plain_memory(Geometry(arch="generic"), "64MiB", seed=0)
    folios = mm.alloc_pages(mem, count=100)
    policy = mm.LeastRecentlyAllocated(folios)
    assert policy(mem, request(mem)) == 32
    refused(mem, "is not live", mm.free_pages, folios[31])
    assert mem.pfn(folios[32:]).size == 68
    assert policy(mem, request(mem, 33)) == 64  # whole batches
    assert policy(mem, request(mem)) == 4
    assert policy(mem, request(mem)) == 0
    mem.check()


def test_least_recently_allocated__large_folios_overshoot():
    mem = views.plain_memory(Geometry(arch="generic"), "64MiB", seed=0)
    policy = mm.LeastRecentlyAllocated([*mm.alloc_pages(mem, 0, 10), *mm.alloc_pages(mem, 9, 2)])
    assert policy(mem, request(mem)) == 10 + 512
    assert policy(mem, request(mem)) == 512


def test_least_recently_allocated__other_zones_keep_their_places():
    mem = views.plain_memory(Geometry(arch="generic"), "128MiB", nodes=2, seed=0)
    far, near = (mm.alloc_pages(mem, count=40, node=node) for node in (1, 0))
    policy = mm.LeastRecentlyAllocated([*far, *near])
    assert policy(mem, request(mem, zones=[0])) == 32
    assert mem.pfn(far).size == 40
    assert policy(mem, request(mem, zones=[1, 0])) == 32
    refused(mem, "is not live", mm.free_pages, far[31])
    assert mem.pfn(far[32:]).size == 8


def test_least_recently_allocated__what_was_freed_meanwhile_is_passed_over():
    mem = views.plain_memory(Geometry(arch="generic"), "64MiB", seed=0)
    folios = mm.alloc_pages(mem, count=50)
    policy = mm.LeastRecentlyAllocated([-1, *folios])
    mm.free_pages(mem, folios[:30])
    others = mm.alloc_pages(mem, count=30)  # in the same slots
    assert policy(mem, request(mem)) == 20
    assert mem.pfn(others).size == 30


def test_least_recently_allocated__empties_the_lru_batch():
    mem = views.plain_memory(Geometry(arch="generic"), "64MiB", cpus=2, seed=0)
    mm.alloc_pages(mem, count=3, cpu=1)
    mm.LeastRecentlyAllocated([])(mem, request(mem, cpu=1))
    assert mem.state.lru["count"].tolist() == [0, 0]
    assert np.count_nonzero(mem.state.pages["pg_flags"] & PageFlag.LRU) == 3


@pytest.mark.parametrize("folios", ["all", [0.5], None])
def test_least_recently_allocated__no_handles(folios):
    with pytest.raises(mm.InputError, match="folio handles are whole numbers"):
        mm.LeastRecentlyAllocated(folios)


# -- kswapd ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
def test_run_kswapd__until_the_high_mark(kernel):
    mem, folios = full(kernel)
    high = int(mem.state.zones["watermark"][0][HIGH])
    assert free_of(mem) < high
    seen = []
    policy = mm.LeastRecentlyAllocated(folios)

    def reclaim(mem, request):
        seen.append((int(mem.state.zones["flags"][0]) & ZoneFlag.RECLAIM_ACTIVE, request.n_pages))
        return policy(mem, request)

    run = mm.run_kswapd(mem, reclaim=reclaim)
    mem.check()
    assert run.balanced
    assert free_of(mem) > high
    assert (run.n_passes, run.order, run.boost_returned, run.kcompactd_order) == (len(seen), 0, 0, 0)
    assert {active for active, _ in seen} == {ZoneFlag.RECLAIM_ACTIVE}
    asked = [n_pages for _, n_pages in seen]
    assert asked[0] == 32
    assert asked == sorted(asked)
    assert not int(mem.state.zones["flags"][0]) & ZoneFlag.RECLAIM_ACTIVE
    vmstat = mem.vmstat()
    assert (vmstat["pageoutrun"], vmstat["pgsteal_kswapd"], vmstat["pgsteal_direct"]) == (1, run.n_reclaimed, 0)


def test_run_kswapd__passes_grow_with_the_priority():
    """A 4096th of what is on the LRU lists, twice that, and so on, at most the high watermarks; 12 passes in vain."""
    mem, _ = full()
    asked = []

    def reclaim(mem, request):
        asked.append(request.n_pages)
        return 0

    run = mm.run_kswapd(mem, reclaim=reclaim)
    on_lists = np.count_nonzero(mem.state.pages["pg_flags"] & PageFlag.LRU)
    high = int(mem.state.zones["watermark"][0][HIGH])
    assert asked == [min(high, max(on_lists >> priority, 32)) for priority in range(12, 0, -1)]
    assert (run.balanced, run.n_reclaimed, run.n_passes) == (False, 0, 12)


def test_run_kswapd__nothing_to_do():
    mem = PhysicalMemory(Geometry(arch="generic"), "64MiB", seed=0)
    run = mm.run_kswapd(mem, reclaim=lambda mem, request: 1 / 0)
    assert run == mm.KswapdRun(True, 0, 0, 0, 0, 0)
    assert mem.vmstat()["pageoutrun"] == 1


@views.large
def test_run_kswapd__an_order_drops_to_0_once_there_is_enough_to_compact():
    """compact_gap: 2 << order; since 7.2 at most 32."""
    for kernel, n_passes in (("6.12.117", 4), ("7.3", 1)):
        mem = views.plain_memory(Geometry(arch="generic", kernel=kernel), "64MiB", seed=0)
        folios = mm.alloc_pages(mem, count=1 << 14)
        mem.state.zones["watermark"] = [[0, 1, 2]]
        run = mm.run_kswapd(mem, reclaim=mm.LeastRecentlyAllocated(folios[1::2]), order=6)
        assert (run.balanced, run.order, run.kcompactd_order) == (True, 0, 6)
        assert (run.n_passes, run.n_reclaimed) == (n_passes, 32 * n_passes)


def test_run_kswapd__balanced_at_its_order():
    mem = views.plain_memory(Geometry(arch="generic"), "64MiB", seed=0)
    folios = mm.alloc_pages(mem, count=1 << 14)
    run = mm.run_kswapd(mem, reclaim=mm.LeastRecentlyAllocated(folios), order=4)
    assert (run.balanced, run.order, run.n_reclaimed) == (True, 0, 32)


@views.large
@pytest.mark.parametrize("enough", [True, False])
def test_run_kswapd__gives_the_boost_back(enough):
    """It reclaims the boost even where there is enough, and gives back what it saw at its start, no more."""
    mem, folios = full()
    policy = mm.LeastRecentlyAllocated(folios)
    if enough:
        mm.free_pages(mem, folios[-8000:])
        mm.drain_all_pages(mem)
    mem.state.zones["watermark_boost"] = 512
    before = free_of(mem)

    def reclaim(mem, request):
        mem.state.zones["watermark_boost"] = 700
        return policy(mem, request)

    run = mm.run_kswapd(mem, reclaim=reclaim)
    assert run.boost_returned == 512
    assert mem.state.zones["watermark_boost"].tolist() == [188]
    assert run.kcompactd_order == mem.geometry.pageblock_order
    assert run.balanced
    if enough:
        assert 512 <= run.n_reclaimed < 1024
    assert free_of(mem) > before
    mem.check()


def boosted():
    """512 MiB, three quarters of it on LRU lists, and a boost."""
    mem = PhysicalMemory(Geometry(arch="generic"), "512MiB", seed=0)
    mm.alloc_pages(mem, count=3 << 15)
    mem.state.zones["watermark_boost"] = 130
    return mem, np.count_nonzero(mem.state.pages["pg_flags"] & PageFlag.LRU)


@views.large
def test_run_kswapd__for_a_boost_the_priority_stays_at_10():
    mem, on_lists = boosted()
    asked = []

    def reclaim(mem, request):
        asked.append(request.n_pages)
        return 20

    run = mm.run_kswapd(mem, reclaim=reclaim)
    assert asked == [max(on_lists >> priority, 32) for priority in (12, 11, 10, 10, 10, 10, 10)]
    assert (run.n_reclaimed, run.boost_returned) == (140, 130)


@views.large
def test_run_kswapd__a_node_out_of_balance_forgets_the_boost_and_starts_over():
    mem, on_lists = boosted()
    asked = []

    def reclaim(mem, request):
        asked.append(request.n_pages)
        if len(asked) == 2:
            mem.state.zones["watermark"] = 1 << 20
        return 20

    run = mm.run_kswapd(mem, reclaim=reclaim)
    assert asked == [max(on_lists >> priority, 32) for priority in (12, 11, *range(12, 0, -1))]
    assert (run.balanced, run.boost_returned) == (False, 130)


def test_run_kswapd__a_boost_that_shrank_meanwhile():
    mem, folios = full()
    mm.free_pages(mem, folios[-8000:])
    mem.state.zones["watermark_boost"] = 512

    def reclaim(mem, request):
        mem.state.zones["watermark_boost"] = 100
        return 0

    run = mm.run_kswapd(mem, reclaim=reclaim)
    assert (run.boost_returned, run.n_passes) == (100, 1)  # no progress for a boost ends it at once
    assert mem.state.zones["watermark_boost"].tolist() == [0]


@views.large
def test_run_kswapd__one_node_and_the_zones_of_the_request():
    mem = PhysicalMemory(Geometry(arch="generic"), "256MiB", nodes=2, movablecore="128MiB", seed=0)
    for node in range(2):
        for gfp in ("GFP_HIGHUSER_MOVABLE|__GFP_THISNODE", "GFP_KERNEL|__GFP_THISNODE"):
            mm.alloc_pages(mem, count=1 << 15, node=node, gfp=gfp)
    seen = []

    def reclaim(mem, request):
        seen.append(request.zones.tolist())
        return 0

    zones = [(int(zone["node"]), int(zone["zone_type"])) for zone in mem.state.zones]
    mm.run_kswapd(mem, 1, reclaim=reclaim)
    assert set(map(tuple, seen)) == {(zones.index((1, 4)), zones.index((1, 2)))}
    seen.clear()
    mm.run_kswapd(mem, 1, reclaim=reclaim, highest="Normal")
    assert set(map(tuple, seen)) == {(zones.index((1, 2)),)}
    assert not mem.state.zones["flags"].astype(int).max() & ZoneFlag.RECLAIM_ACTIVE


def test_run_kswapd__a_policy_that_fails_leaves_no_flag():
    mem, _ = full()
    with pytest.raises(ZeroDivisionError):
        mm.run_kswapd(mem, reclaim=lambda mem, request: 1 / 0)
    assert not int(mem.state.zones["flags"][0]) & ZoneFlag.RECLAIM_ACTIVE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"node": 1}, "node 1; this machine has 0"),
        ({"order": 11}, "order 11; 0 to 10 (MAX_PAGE_ORDER)"),
        ({"highest": "High"}, "unknown zone 'High'; one of: DMA, DMA32, Normal"),
        ({"cpu": 2}, "cpu 2"),
        ({"reclaim": None}, "reclaim is a function, not None"),
    ],
)
def test_run_kswapd__bad_input(options, message):
    refused(full()[0], message, mm.run_kswapd, **{"reclaim": lambda mem, request: 0, **options})


# -- per-CPU lists -----------------------------------------------------------------------------------------------------


def test_drain_all_pages():
    mem = PhysicalMemory(Geometry(arch="generic"), "256MiB", cpus=2, nodes=2, seed=0)
    for cpu in range(2):
        for node in range(2):
            mm.alloc_pages(mem, node=node, cpu=cpu)
    assert (mem.state.pcp["count"] > 0).all()
    assert mm.drain_all_pages(mem, "1:Normal")
    assert (mem.state.pcp["count"] > 0).tolist() == [True, True, False, False]
    assert not mm.drain_all_pages(mem, "1:Normal")
    assert mm.drain_all_pages(mem)
    assert not mem.state.pcp["count"].any()
    assert not mm.drain_all_pages(mem)
    mem.check()


def test_drain_all_pages__zones_by_name():
    mem = PhysicalMemory(Geometry(arch="generic"), "64MiB", seed=0)
    mm.alloc_pages(mem)
    assert mm.drain_all_pages(mem, "Normal")
    refused(mem, "zone 'DMA'; one of: 0:Normal", mm.drain_all_pages, "DMA")
    refused(mem, "zone 0; one of: 0:Normal", mm.drain_all_pages, 0)
    mem = PhysicalMemory(Geometry(arch="generic"), "128MiB", nodes=2, seed=0)
    refused(mem, "zone 'Normal'; one of: 0:Normal, 1:Normal", mm.drain_all_pages, "Normal")


@views.large
def test_vmstat_update__folds_and_decays():
    """high: an eighth less, not below high_min nor below count - (batch << 5); what is above goes back."""
    mem = PhysicalMemory(Geometry(arch="generic"), "4GiB", cpus=2, seed=0)
    folios = mm.alloc_pages(mem, count=10000)
    mm.free_pages(mem, folios)
    pcp = mem.state.pcp[0]
    high, count = int(pcp["high"]), int(pcp["count"])
    assert high > int(pcp["high_min"])
    mm.vmstat_update(mem, 0)
    wanted = max(count - (int(pcp["batch"]) << 5), high - (high >> 3), int(pcp["high_min"]))
    assert int(pcp["high"]) == wanted
    assert int(pcp["count"]) == min(count, wanted)
    mm.vmstat_update(mem, 1)
    mm.vmstat_update(mem, 0)
    mem.check()
    refused(mem, "cpu 2", mm.vmstat_update, 2)
