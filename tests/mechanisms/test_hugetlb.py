"""The hugetlb pool: flags, nodes, counters."""

import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import pcp_list_head
from tests.reference import views
from tests.reference.views import refused

COUNTERS = ("htlb_buddy_alloc_success", "htlb_buddy_alloc_fail")


def counts(mem):
    mem.check()
    return tuple(mem.vmstat()[name] for name in COUNTERS)


def memory(nodes=1, kernel="6.12.117"):
    """64 MiB a node, all of it free for any request: 32 huge pages."""
    return views.plain_memory(Geometry(arch="generic", kernel=kernel), f"{64 * nodes}MiB", nodes=nodes, seed=0)


def test_alloc_hugetlb__nodes_take_turns():
    mem = memory(nodes=2)
    folios = mm.alloc_hugetlb(mem, 5)
    assert (mem.pfn(folios) // 16384).tolist() == [0, 1, 0, 1, 0]
    assert not mem.state.pages["pg_flags"].any()  # in the pool, on no LRU list
    assert counts(mem) == (5, 0)
    mm.free_pages(mem, folios)
    mem.check()


def test_alloc_hugetlb__one_node():
    mem = memory(nodes=2)
    assert (mem.pfn(mm.alloc_hugetlb(mem, 3, node=1)) // 16384).tolist() == [1, 1, 1]
    folios = mm.alloc_hugetlb(mem, 40, node=1)
    assert (folios >= 0).sum() == 29
    assert counts(mem) == (32, 1)


def test_alloc_hugetlb__a_full_node_is_passed_over():
    """Each page asks it first, in vain; the pool ends where both refuse."""
    mem = memory(nodes=2)
    mm.alloc_hugetlb(mem, 32, node=0)
    folios = mm.alloc_hugetlb(mem, 40)
    assert (folios[:32] >= 0).all()
    assert (folios[32:] == -1).all()
    assert set((mem.pfn(folios[:32]) // 16384).tolist()) == {1}
    assert counts(mem) == (64, 32 + 2)


def test_alloc_hugetlb__tries_hard_until_a_node_fails():
    """__GFP_RETRY_MAYFAIL is dropped for a node after a failure: one round of reclaim then."""
    mem = memory(nodes=2)
    mm.alloc_hugetlb(mem, 32, node=0)
    trace = []
    mm.alloc_hugetlb(
        mem, 2, reclaim=lambda m, r: 1, compact=lambda m, r: mm.Compaction(mm.CompactResult.SUCCESS), trace=trace
    )
    tries = "|".join(trace).split("freelist low")[1:]
    assert [one.count("reclaim") for one in tries] == [5, 1]  # node 0 twice; costly: 4 more compactions


@pytest.mark.parametrize(("size", "order"), [(None, 9), ("2MiB", 9), ("4MiB", 10), ("64KiB", 4), (8192, 1)])
def test_alloc_hugetlb__sizes(size, order):
    mem = memory()
    folios = mm.alloc_hugetlb(mem, 1, size=size)
    assert int(mem.state.pages["state"][mem.index(mem.pfn(folios))[0]]) & 15 == order


def test_alloc_hugetlb__from_zone_movable():
    mem = PhysicalMemory(Geometry(arch="generic"), "128MiB", movablecore="64MiB", seed=0)
    assert mem.pfn(mm.alloc_hugetlb(mem, 1)).tolist() == [16384]


def test_alloc_hugetlb__not_movable_stays_out_of_zone_movable():
    mem = PhysicalMemory(Geometry(arch="generic"), "128MiB", movablecore="64MiB", seed=0)
    rows = mem.index(mem.pfn(mm.alloc_hugetlb(mem, 1, movable=False)))
    assert rows.tolist() == [0]  # of Normal; a movable one is at 16384
    assert mem.state.blocks["migratetype"][rows >> 9].tolist() == [0]


@pytest.mark.parametrize(("thp", "size", "count"), [(True, "2MiB", 512), (True, "4MiB", 0), (False, "2MiB", 0)])
def test_alloc_hugetlb__which_way_they_are_freed(thp, size, count):
    """The PMD order waits on list 13 of the CPU, with THPs configured; others go straight to the buddy."""
    mem = PhysicalMemory(Geometry(arch="generic", transparent_hugepage=thp), "64MiB", seed=0)
    zone = mem.state.zones[0]
    folios = mm.alloc_hugetlb(mem, 1, size=size)
    mm.drain_all_pages(mem)
    free, listed = int(zone["free_pages"]), mem.state.pcp["count"].tolist()
    assert listed == [0]
    mm.free_pages(mem, folios)
    mem.check()
    n_pages = 512 if size == "2MiB" else 1024
    assert mem.state.pcp["count"].tolist() == [count]
    assert int(zone["free_pages"]) + int(mem.state.pcp["free_diff"].sum()) - free == n_pages - count
    head = pcp_list_head(mem.state.params, 0, 0, 13)
    assert (int(mem.state.pages["next"][head]) != head) == bool(count)


def test_alloc_hugetlb__refused():
    mem = memory()
    area = mm.CmaArea(0, 0, 512, 0)
    refused(mem, "cma belongs to gigantic pages; order 9", mm.alloc_hugetlb, 1, cma={0: area})
    refused(mem, "huge pages of '3MiB'; a power of two", mm.alloc_hugetlb, 1, size="3MiB")
    refused(mem, "huge pages of 4096", mm.alloc_hugetlb, 1, size=4096)
    refused(mem, "size 'big'", mm.alloc_hugetlb, 1, size="big")
    refused(mem, "count -1", mm.alloc_hugetlb, -1)
    refused(mem, "node 7", mm.alloc_hugetlb, 1, node=7)
    mem = views.plain_memory(Geometry(arch="generic", hugetlb=False), "64MiB", seed=0)
    refused(mem, "this kernel has no hugetlb pages (CONFIG_HUGETLB_PAGE)", mm.alloc_hugetlb, 1)
