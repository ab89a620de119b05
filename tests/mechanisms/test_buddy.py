"""alloc_pages() and free_pages(): the rules that decide where a page comes from, one by one, and what is refused."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import Kind, PageFlag
from memmodel.state.sizing import Sysctls
from tests.reference import views
from tests.reference.buddy import CMA, ISOLATE, MOVABLE, RECLAIMABLE, UNMOVABLE, Zone
from tests.reference.views import refused


def lists_of(mem, migratetype, zone=0):
    """{order: pfns} of the lists that hold something."""
    lists = views.free_lists(mem)
    return {order: pfns for (z, order, mt), pfns in lists.items() if (z, mt) == (zone, migratetype) and pfns}


@pytest.fixture
def plain(small_geometry):
    """One zone of 64 pages from pfn 0: four blocks of the largest order."""
    return views.plain_memory(small_geometry, 64 * 4096, seed=0)


def one_zone(geometry, n_pages, types=None, start=0):
    return views.machine(geometry, [Zone(0, "Normal", start, start + n_pages, [(start, start + n_pages)])], types=types)


# -- allocate ----------------------------------------------------------------------------------------------------------


def test_alloc_pages__the_lowest_part_is_given_and_upper_halves_stay(plain):
    assert lists_of(plain, MOVABLE) == {4: [0, 16, 32, 48]}
    assert plain.pfn(mm.alloc_pages(plain)).tolist() == [0]
    assert lists_of(plain, MOVABLE) == {0: [1], 1: [2], 2: [4], 3: [8], 4: [16, 32, 48]}
    assert plain.pfn(mm.alloc_pages(plain, order=2)).tolist() == [4]
    assert plain.pfn(mm.alloc_pages(plain, order=1, count=2)).tolist() == [2, 8]
    assert lists_of(plain, MOVABLE) == {0: [1], 1: [10], 2: [12], 4: [16, 32, 48]}


def test_alloc_pages__single_requests_in_order(plain):
    """Bulk is the same as one by one."""
    other = plain.copy()
    bulk = plain.pfn(mm.alloc_pages(plain, order=1, count=20)).tolist()
    single = [int(other.pfn(mm.alloc_pages(other, order=1))[0]) for _ in range(20)]
    assert bulk == single
    assert len(set(bulk)) == 20
    assert views.free_lists(plain) == views.free_lists(other)


def test_alloc_pages__head_of_the_smallest_sufficient_list(plain):
    folios = mm.alloc_pages(plain, count=64)
    mm.free_pages(plain, folios[[40, 41, 8, 20]])  # order 1 at 40; single pages 8, then 20
    assert lists_of(plain, MOVABLE) == {0: [20, 8], 1: [40]}
    assert plain.pfn(mm.alloc_pages(plain, count=3)).tolist() == [20, 8, 40]


def test_alloc_pages__whole_blocks_are_claimed_from_the_largest_down(plain):
    assert plain.pfn(mm.alloc_pages(plain, migratetype="unmovable")).tolist() == [0]
    assert lists_of(plain, UNMOVABLE) == {0: [1], 1: [2], 2: [4], 3: [8]}
    assert lists_of(plain, MOVABLE) == {4: [16, 32, 48]}
    assert list(views.block_types(plain).values()) == [UNMOVABLE] * 4 + [MOVABLE] * 12
    # own lists come first, and a claim takes all pageblocks of a block
    assert plain.pfn(mm.alloc_pages(plain, 3, migratetype="unmovable")).tolist() == [8]
    assert plain.pfn(mm.alloc_pages(plain, 3, migratetype="reclaimable")).tolist() == [16]
    assert list(views.block_types(plain).values())[4:8] == [RECLAIMABLE] * 4


@pytest.mark.parametrize(
    ("request_type", "first", "second"),
    [
        ("unmovable", RECLAIMABLE, MOVABLE),
        ("movable", RECLAIMABLE, UNMOVABLE),
        ("reclaimable", UNMOVABLE, MOVABLE),
    ],
)
def test_alloc_pages__fallback_order(small_geometry, request_type, first, second):
    """Two largest blocks, one of each fallback type, the second choice in front of the first."""
    types = {block: second if block < 4 else first for block in range(8)}
    mem = one_zone(small_geometry, 32, types)
    assert mem.pfn(mm.alloc_pages(mem, 4, 2, request_type)).tolist() == [16, 0]


def test_alloc_pages__a_larger_block_goes_before_a_better_type(small_geometry):
    """MOVABLE asks RECLAIMABLE first, but the search begins at the largest order."""
    mem = one_zone(small_geometry, 20, {**dict.fromkeys(range(4), UNMOVABLE), 4: RECLAIMABLE})
    assert lists_of(mem, RECLAIMABLE) == {2: [16]}
    assert mem.pfn(mm.alloc_pages(mem)).tolist() == [0]


@pytest.mark.parametrize("migratetype", [CMA, ISOLATE])
def test_alloc_pages__no_fallback_to_cma_or_isolated_blocks(small_geometry, migratetype):
    mem = one_zone(small_geometry, 32, dict.fromkeys(range(4), migratetype))
    got = mem.pfn(mm.alloc_pages(mem, count=16, migratetype="unmovable"))
    assert sorted(got.tolist()) == list(range(16, 32))
    assert mm.alloc_pages(mem, migratetype="unmovable").tolist() == [-1]


def test_alloc_pages__zones_from_the_highest_down(small_geometry):
    zones = [
        Zone(0, name, 16 * i, 16 * i + 16, [(16 * i, 16 * i + 16)]) for i, name in enumerate(["Normal", "Movable"])
    ]
    mem = views.machine(small_geometry, zones)
    assert mem.pfn(mm.alloc_pages(mem, 4)).tolist() == [16]
    assert mem.pfn(mm.alloc_pages(mem, 4, migratetype="unmovable")).tolist() == [0]
    assert mm.alloc_pages(mem).tolist() == [-1]


def test_alloc_pages__a_request_without_any_zone_fails(small_geometry):
    mem = views.machine(small_geometry, [Zone(0, "Movable", 0, 16, [(0, 16)])])
    assert mm.alloc_pages(mem, count=2, migratetype="unmovable").tolist() == [-1, -1]
    assert mem.pfn(mm.alloc_pages(mem)).tolist() == [0]


def test_alloc_pages__other_nodes_when_the_own_is_full(small_geometry):
    zones = [Zone(node, "Normal", 16 * node, 16 * node + 16, [(16 * node, 16 * node + 16)]) for node in range(3)]
    mem = views.machine(small_geometry, zones)
    assert mem.pfn(mm.alloc_pages(mem, 4, 4 - 1, node=1)).tolist() == [16, 32, 0]


def test_alloc_pages__more_than_there_is(plain):
    folios = mm.alloc_pages(plain, 3, 1000)
    assert (folios[:8] >= 0).all()
    assert folios[8:].tolist() == [-1] * 992
    assert plain.nbytes["folios"] == 16 * 8
    mm.free_pages(plain, folios)
    assert lists_of(plain, MOVABLE) == {4: [48, 32, 16, 0]}  # each merged block at the head


def test_alloc_pages__none(plain):
    assert mm.alloc_pages(plain, count=0).shape == (0,)
    assert lists_of(plain, MOVABLE) == {4: [0, 16, 32, 48]}


@pytest.mark.parametrize(
    ("gfp", "zone", "migratetype"),
    [
        ("GFP_KERNEL", "Normal", UNMOVABLE),
        ("GFP_KERNEL|__GFP_COMP|__GFP_ZERO", "Normal", UNMOVABLE),
        ("GFP_KERNEL|__GFP_RECLAIMABLE", "Normal", RECLAIMABLE),
        ("GFP_DMA", "DMA", UNMOVABLE),
        ("GFP_KERNEL|__GFP_DMA", "DMA", UNMOVABLE),
        ("GFP_DMA32", "DMA32", UNMOVABLE),
        ("GFP_HIGHUSER", "Normal", UNMOVABLE),
        ("GFP_HIGHUSER_MOVABLE", "Movable", MOVABLE),
        ("GFP_TRANSHUGE | __GFP_NOWARN", "Movable", MOVABLE),
        ("GFP_TRANSHUGE_LIGHT", "Movable", MOVABLE),
        ("GFP_NOFS|__GFP_MOVABLE", "Normal", MOVABLE),
        ("__GFP_DMA|__GFP_MOVABLE", "DMA", MOVABLE),
        ("__GFP_DMA32|__GFP_MOVABLE", "DMA32", MOVABLE),
        ("__GFP_HIGHMEM|__GFP_MOVABLE", "Movable", MOVABLE),
    ],
)
def test_alloc_pages__gfp_decides_zone_and_type(gfp, zone, migratetype):
    mem = views.plain_memory(Geometry(), "8GiB", movablecore="1GiB", seed=0)
    pfn = int(mem.pfn(mm.alloc_pages(mem, gfp=gfp))[0])
    limits = {"DMA": 0, "DMA32": 4096, "Normal": 1 << 20, "Movable": 7 << 18}
    assert pfn == limits[zone]
    assert views.block_types(mem)[pfn >> 9] == migratetype


@pytest.mark.parametrize("gfp", ["GFP_DMA", "GFP_DMA32", "__GFP_DMA|__GFP_MOVABLE", "GFP_HIGHUSER"])
def test_alloc_pages__a_zone_that_is_not_configured_is_normal(plain, gfp):
    assert plain.pfn(mm.alloc_pages(plain, gfp=gfp)).tolist() == [0]


def test_alloc_pages__no_node_has_such_a_zone():
    """x86-64 with memory above 4 GiB alone: nothing that a 32-bit device reaches."""
    high = 1 << 20
    mem = views.machine(Geometry(), [Zone(0, "Normal", high, high + 4096, [(high, high + 4096)])])
    assert mm.alloc_pages(mem, count=2, gfp="GFP_DMA32").tolist() == [-1, -1]
    assert mem.pfn(mm.alloc_pages(mem)).tolist() == [high]


def test_alloc_pages__the_last_pages_stay_below_the_min_watermark(small_geometry):
    """A request fails where free - (2**order - 1) is not above the mark; one that asks for it may go to half."""
    mem = PhysicalMemory(small_geometry, 1024 * 4096, sysctls=Sysctls(min_free_kbytes=400, pcp=False), seed=0)
    views.exact_counters(mem)
    assert mem.state.zones["watermark"].tolist() == [[100, 125, 150]]
    assert np.count_nonzero(mm.alloc_pages(mem, 0, 1024) != -1) == 1024 - 100
    assert mm.alloc_pages(mem).tolist() == [-1]
    assert np.count_nonzero(mm.alloc_pages(mem, 0, 1024, gfp="GFP_ATOMIC") != -1) == 100 - (50 - 50 // 4)
    assert mm.alloc_pages(mem, gfp="GFP_ATOMIC|__GFP_NOMEMALLOC").tolist() == [-1]
    assert np.count_nonzero(mm.alloc_pages(mem, 0, 1024, gfp="GFP_KERNEL|__GFP_MEMALLOC") != -1) == 38
    mem.check()


def test_alloc_pages__lower_zones_keep_a_reserve_from_those_who_may_go_higher(small_geometry):
    """vm.lowmem_reserve_ratio 32: 20 of 640 pages of ZONE_MOVABLE."""
    zones = [Zone(0, "Normal", 0, 128, [(0, 128)]), Zone(0, "Movable", 128, 768, [(128, 768)])]
    mem = views.machine(small_geometry, zones)
    assert mem.state.zones["lowmem_reserve"][0].tolist() == [0, 0, 0, 0, 20, 20]
    assert np.count_nonzero(mm.alloc_pages(mem, 0, 1000) != -1) == 640 + 128 - 20
    assert np.count_nonzero(mm.alloc_pages(mem, 0, 1000, "unmovable") != -1) == 20


def test_alloc_pages__a_tiny_machine_has_one_type(small_geometry):
    """Less than a pageblock for each of six types: every request is UNMOVABLE, and takes any pageblock."""
    mem = one_zone(small_geometry, 20)
    mm.alloc_pages(mem, 1, 1, "movable")
    assert set(views.block_types(mem).values()) == {UNMOVABLE, MOVABLE}
    assert mem.pfn(mm.alloc_pages(mem, 0, 2, "reclaimable")).tolist() == [2, 3]
    assert lists_of(mem, RECLAIMABLE) == {}
    mem.check()


def test_alloc_pages__a_pageblock_that_is_half_free_or_alike_is_claimed():
    """Pageblocks of 8. A MOVABLE request finds 4 free pages of an UNMOVABLE one, then 2 with 2 movable ones."""
    geometry = Geometry(arch="generic", max_page_order=3, page_block_max_order=3, transparent_hugepage=False)
    for n_used, n_movable, claimed in ((4, 0, True), (6, 2, True), (6, 0, False)):
        mem = one_zone(geometry, 64, {0: UNMOVABLE})
        own = mm.alloc_pages(mem, 3, 7)  # all that is MOVABLE
        used = mm.alloc_pages(mem, 0, n_used, "unmovable")
        mem.state.pages["pg_flags"][mem.index(mem.pfn(used[:n_movable]))] = PageFlag.LRU
        pfn = int(mem.pfn(mm.alloc_pages(mem, 1))[0])
        assert pfn == (4 if n_used == 4 else 6)
        assert (views.block_types(mem)[0] == MOVABLE) == claimed
        assert mem.pfn(own).tolist() == list(range(8, 64, 8))
        mem.check()


@pytest.mark.parametrize(("features", "size"), [({}, 31), ({"lru_batch_31": False}, 15)])
def test_alloc_pages__movable_pages_wait_in_a_batch_of_their_cpu(small_geometry, features, size):
    """They are on an LRU list once the batch is full, a large folio comes, or one of them is freed."""
    mem = views.plain_memory(small_geometry.replace(features=features), 128 * 4096, cpus=2, seed=0)

    def flags(folios):
        return set(mem.state.pages["pg_flags"][mem.index(mem.pfn(folios))].tolist())

    folios = mm.alloc_pages(mem, 0, size - 1)
    assert (flags(folios), mem.state.lru["count"].tolist()) == ({PageFlag.LRU_BATCH}, [size - 1, 0])
    other = mm.alloc_pages(mem, 0, 2, cpu=1)
    last = mm.alloc_pages(mem)
    assert (flags([*folios, *last]), flags(other)) == ({PageFlag.LRU}, {PageFlag.LRU_BATCH})
    mm.alloc_pages(mem, 1, cpu=1)
    assert (flags(other), mem.state.lru["count"].tolist()) == ({PageFlag.LRU}, [0, 0])
    more = mm.alloc_pages(mem, 0, 3, cpu=1)
    mm.free_pages(mem, more[1], cpu=0)
    assert (flags(more[[0, 2]]), mem.state.lru["count"].tolist()) == ({PageFlag.LRU}, [0, 0])
    assert flags(mm.alloc_pages(mem, 0, 2, "unmovable")) == {0}
    mem.check()


def test_alloc_pages__pages_pass_by_the_lists_of_their_cpu():
    """A refill takes a batch of 63 pages; what a CPU frees is what its next request gets."""
    mem = PhysicalMemory(Geometry(arch="generic"), "1GiB", cpus=2, seed=0)
    assert mem.state.pcp["batch"].tolist() == [63, 63]
    folios = mm.alloc_pages(mem, 0, 3, cpu=1)
    assert mem.state.pcp["count"].tolist() == [0, 60]
    assert mem.pfn(folios).tolist() == [0, 1, 2]
    assert views.pages_of_kind(mem, Kind.PCP) == set(range(3, 63))
    mm.free_pages(mem, folios[1], cpu=1)
    mm.free_pages(mem, folios[0], cpu=0)
    assert mem.state.pcp["count"].tolist() == [1, 61]
    assert mem.pfn(mm.alloc_pages(mem, 0, 2, cpu=1)).tolist() == [1, 3]
    assert mem.pfn(mm.alloc_pages(mem, 0, 1, cpu=0)).tolist() == [0]
    mem.check()


# -- free --------------------------------------------------------------------------------------------------------------


def test_free_pages__to_the_head(plain):
    folios = mm.alloc_pages(plain, count=64)
    mm.free_pages(plain, folios[[1, 9, 5]])
    assert lists_of(plain, MOVABLE) == {0: [5, 9, 1]}


def test_free_pages__to_the_tail_where_a_merge_is_likely(plain):
    folios = mm.alloc_pages(plain, count=64)
    mm.free_pages(plain, folios[[2, 3, 9]])
    assert lists_of(plain, MOVABLE) == {0: [9], 1: [2]}
    mm.free_pages(plain, folios[0])  # when 1 comes free, 0 and 1 merge with the free block at 2
    assert lists_of(plain, MOVABLE) == {0: [9, 0], 1: [2]}
    mm.free_pages(plain, folios[21])
    assert lists_of(plain, MOVABLE) == {0: [21, 9, 0], 1: [2]}
    mm.free_pages(plain, folios[1])
    assert lists_of(plain, MOVABLE) == {0: [21, 9], 2: [0]}


def test_free_pages__no_tail_just_below_the_largest_order(plain):
    """A block of MAX_PAGE_ORDER - 1 has no such neighbour to wait for."""
    folios = mm.alloc_pages(plain, order=3, count=8)
    mm.free_pages(plain, folios[[7, 4, 1]])
    assert lists_of(plain, MOVABLE) == {3: [8, 32, 56]}
    mm.free_pages(plain, folios[0])
    assert lists_of(plain, MOVABLE) == {3: [32, 56], 4: [0]}


@pytest.mark.parametrize("features", [{}, views.BEFORE_6_10], ids=["6.10", "6.1"])
def test_free_pages__what_came_by_a_per_cpu_list_is_never_split(small_geometry, features):
    """Orders 0 to 3 go that way: free_pcppages_bulk() frees them whole to the type of their first pageblock."""
    mem = one_zone(small_geometry.replace(features=features), 32)
    folios = mm.alloc_pages(mem, 3, 4)
    mem.state.blocks["migratetype"][0] = UNMOVABLE
    mm.free_pages(mem, folios[0])
    assert lists_of(mem, UNMOVABLE) == {3: [0]}
    assert lists_of(mem, MOVABLE) == {}


def test_free_pages__merging_across_pageblocks_takes_the_freed_type(small_geometry):
    mem = one_zone(small_geometry, 32)
    folios = mm.alloc_pages(mem, 2, 8)
    mem.state.blocks["migratetype"][0] = UNMOVABLE
    mm.free_pages(mem, folios[1])
    assert lists_of(mem, MOVABLE) == {2: [4]}
    mm.free_pages(mem, folios[0])
    assert (lists_of(mem, UNMOVABLE), lists_of(mem, MOVABLE)) == ({3: [0]}, {})
    assert list(views.block_types(mem).values()) == [UNMOVABLE] * 2 + [MOVABLE] * 6
    mm.free_pages(mem, folios[[2, 3]])
    assert (lists_of(mem, UNMOVABLE), lists_of(mem, MOVABLE)) == ({}, {4: [0]})
    assert list(views.block_types(mem).values()) == [MOVABLE] * 8


def test_free_pages__before_6_10_blocks_keep_their_type(small_geometry):
    old = small_geometry.replace(features=views.BEFORE_6_10)
    mem = one_zone(old, 32)
    unmovable = mm.alloc_pages(mem, 2, 4, "unmovable")  # all four pageblocks of the block at 0
    mm.alloc_pages(mem, 4)
    mem.state.blocks["migratetype"][1] = MOVABLE
    mm.free_pages(mem, unmovable[[0, 1]])  # the block at 4 is MOVABLE, its buddy at 0 is not
    assert lists_of(mem, MOVABLE) == {3: [0]}
    assert list(views.block_types(mem).values())[:2] == [UNMOVABLE, MOVABLE]


@pytest.mark.parametrize(
    ("hygiene", "lists"), [(True, {(4, MOVABLE): [0]}), (False, {(4, UNMOVABLE): [0]})], ids=["6.10", "6.1"]
)
def test_free_pages__a_folio_larger_than_a_pageblock(small_geometry, hygiene, lists):
    """Since 6.10 each pageblock is freed to its own type, before all of it to that of the first."""
    mem = one_zone(small_geometry.replace(features={} if hygiene else views.BEFORE_6_10), 32)
    folios = mm.alloc_pages(mem, 4, 2)
    mem.state.blocks["migratetype"][0] = UNMOVABLE
    mm.free_pages(mem, folios[0])
    assert {(order, mt): pfns for (_, order, mt), pfns in views.free_lists(mem).items() if pfns} == lists
    mem.check()


@pytest.mark.parametrize("migratetype", [CMA, ISOLATE])
def test_free_pages__cma_and_isolated_blocks_never_merge_with_others(small_geometry, migratetype):
    mem = one_zone(small_geometry, 32, {0: migratetype})
    folios = mm.alloc_pages(mem, 0, 32)
    assert np.count_nonzero(folios != -1) == (32 if migratetype == CMA else 28)
    mm.free_pages(mem, folios)
    assert lists_of(mem, migratetype) == {2: [0]}
    assert lists_of(mem, MOVABLE) == {2: [4], 3: [8], 4: [16]}


def test_free_pages__a_zone_border_is_never_crossed(small_geometry):
    zones = [Zone(0, "Normal", 0, 10, [(0, 10)]), Zone(0, "Movable", 10, 32, [(10, 32)])]
    mem = views.machine(small_geometry, zones)
    assert lists_of(mem, MOVABLE, 0) == {1: [8], 3: [0]}
    assert lists_of(mem, MOVABLE, 1) == {1: [10], 2: [12], 4: [16]}
    mm.free_pages(mem, mm.alloc_pages(mem, 0, 32))
    assert lists_of(mem, MOVABLE, 0) == {1: [8], 3: [0]}
    assert lists_of(mem, MOVABLE, 1) == {1: [10], 2: [12], 4: [16]}


def test_free_pages__a_poisoned_page_is_kept_back(plain):
    """Order 0 leaks on purpose and counts as neither free nor freed; a larger folio does not look (a known hole)."""
    folios = mm.alloc_pages(plain, count=64)
    plain.state.pages["pg_flags"][[5, 8]] = 1
    plain.state.failure["num_poisoned"] = 2
    mm.free_pages(plain, folios)
    assert views.pages_of_kind(plain, Kind.HWPOISON) == {5, 8}
    assert int(plain.state.zones["free_pages"][0]) == 62
    assert plain.state.vmstat[6] == 62
    plain.check()
    large = mm.alloc_pages(plain, 4)
    plain.state.pages["pg_flags"][plain.pfn(large)[0] + [0, 3]] = 1
    plain.state.failure["num_poisoned"] += 2
    mm.free_pages(plain, large)
    plain.check()
    assert int(plain.state.zones["free_pages"][0]) == 62


def test_free_pages__failed_requests_are_passed_over(plain):
    folios = mm.alloc_pages(plain, 4, 6)
    mm.free_pages(plain, folios)
    mm.free_pages(plain, [-1, -1])
    mm.free_pages(plain, [])
    assert int(plain.state.zones["free_pages"][0]) == 64


def test_free_pages__handles_of_any_shape(plain):
    folios = mm.alloc_pages(plain, 0, 6)
    mm.free_pages(plain, int(folios[0]))
    mm.free_pages(plain, folios[1:5].reshape(2, 2).astype(np.uint64))
    mm.free_pages(plain, folios[::-1][:1])
    assert lists_of(plain, MOVABLE) == {4: [0, 16, 32, 48]}


def test_free_pages__a_reused_slot_has_another_handle(plain):
    """As often as it is reused: an old handle never names a new folio."""
    seen = set()
    for _ in range(50):
        folios = mm.alloc_pages(plain, 0, 3)
        assert not seen & set(folios.tolist())
        seen |= set(folios.tolist())
        mm.free_pages(plain, folios)
    assert plain.nbytes["folios"] == 16 * 3


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 5}, "order 5; 0 to 4 (MAX_PAGE_ORDER)"),
        ({"order": -1}, "order -1"),
        ({"order": 1.0}, "order 1.0"),
        ({"order": "1"}, "order '1'"),
        ({"order": True}, "order True"),
        ({"order": None}, "order None"),
        ({"count": -1}, "count -1"),
        ({"count": 2.0}, "count 2.0"),
        ({"count": 1 << 40}, "count"),
        ({"migratetype": "cma"}, "migratetype 'cma'; one of: movable, unmovable, reclaimable"),
        ({"migratetype": "MOVABLE"}, "migratetype 'MOVABLE'"),
        ({"migratetype": 1}, "migratetype 1"),
        ({"cpu": 2}, "cpu 2; this machine has 0 to 1"),
        ({"cpu": -1}, "cpu -1"),
        ({"cpu": "0"}, "cpu '0'"),
        ({"cpu": 0.5}, "cpu 0.5"),
        ({"cpu": None}, "cpu None"),
        ({"node": 2}, "node 2; this machine has 0, 1"),
        ({"node": -1}, "node -1"),
        ({"node": "0"}, "node '0'"),
        ({"node": 0.5}, "node 0.5"),
        ({"gfp": "GFP_KERNEL|__GFP_ORANGE"}, "unknown gfp flag '__GFP_ORANGE'"),
        ({"gfp": "gfp_kernel"}, "unknown gfp flag 'gfp_kernel'"),
        ({"gfp": "__GFP_DMA|__GFP_HIGHMEM"}, "asks for more than one zone"),
        ({"gfp": "__GFP_DMA|__GFP_DMA32"}, "asks for more than one zone"),
        ({"gfp": "GFP_HIGHUSER_MOVABLE|__GFP_RECLAIMABLE"}, "both movable and reclaimable"),
        ({"gfp": 0xCC0}, "gfp 3264"),
    ],
)
def test_alloc_pages__bad_input(small, options, message):
    refused(small, message, mm.alloc_pages, **options)


@pytest.mark.parametrize("pick", ["freed", "freed in one batch", "never given", "slot of the future", "minus two"])
def test_free_pages__stale_handles(small, pick):
    folios = mm.alloc_pages(small, 1, 6)
    mm.free_pages(small, folios[:2])
    handle = {
        "freed": folios[0],
        "freed in one batch": folios[1],
        "never given": 1 << 33 | 3,
        "slot of the future": 1000,
        "minus two": -2,
    }[pick]
    refused(small, "is not live", mm.free_pages, [*folios[2:], handle])
    refused(small, "is not live", mm.free_pages, [handle, *folios[2:]])
    mm.free_pages(small, folios[2:])
    small.check()


def test_free_pages__a_handle_twice_in_one_call(small):
    folios = mm.alloc_pages(small, 0, 4)
    refused(small, "given twice", mm.free_pages, folios[[0, 1, 2, 1]])
    refused(small, "given twice", mm.free_pages, folios[[3, 3]])
    assert small.pfn(folios).size == 4  # all live
    mm.free_pages(small, folios)


def test_free_pages__a_handle_of_another_memory(small):
    other = small.copy()
    folios = mm.alloc_pages(other, 0, 4)
    refused(small, "of another memory", mm.free_pages, folios)


@pytest.mark.parametrize(
    "folios", [[0.0], [True], ["0"], "0", None, [None], 1.5, [1 << 70], np.array([0.0]), [[0], [0, 0]], {0: 0}]
)
def test_free_pages__no_handles(small, folios):
    mm.alloc_pages(small)
    refused(small, "folio handles are whole numbers", mm.free_pages, folios)


def test_free_pages__bad_cpu(small):
    refused(small, "cpu 7", mm.free_pages, [], cpu=7)


@pytest.mark.parametrize("folios", [[-1], [0], ["a"], [0.5]])
def test_pfn__bad_handles(small, folios):
    refused(small, "folio", lambda mem: mem.pfn(folios))
