"""The hugetlb pool and huge page faults: flags, nodes, counters."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.memory import PhysicalMemory
from memmodel.sources.gfp import parse_gfp
from tests.reference import views
from tests.reference.views import refused

COUNTERS = ("thp_fault_alloc", "thp_fault_fallback", "htlb_buddy_alloc_success", "htlb_buddy_alloc_fail")
COMPLETE = mm.Compaction(mm.CompactResult.COMPLETE)


def counts(mem):
    mem.check()
    return tuple(mem.vmstat()[name] for name in COUNTERS)


def memory(nodes=1, kernel="6.12.117"):
    """64 MiB a node, all of it free for any request: 32 huge pages."""
    return views.plain_memory(Geometry(arch="generic", kernel=kernel), f"{64 * nodes}MiB", nodes=nodes, seed=0)


def fragmented(nodes=1):
    """A page of each pageblock is taken."""
    mem = memory(nodes)
    for node in range(nodes):
        folios = mm.alloc_pages(mem, count=16384, node=node, gfp="GFP_KERNEL|__GFP_THISNODE")
        mm.free_pages(mem, folios[np.arange(folios.size) % 512 != 100])
    return mem


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defrag", "madvised", "direct", "kswapd", "noretry"),
    [
        ("always", False, True, False, True),
        ("always", True, True, False, False),
        ("defer", False, False, True, False),
        ("defer", True, False, True, False),
        ("defer+madvise", False, False, True, False),
        ("defer+madvise", True, True, False, False),
        ("madvise", False, False, False, False),
        ("madvise", True, True, False, False),
        ("never", False, False, False, False),
        ("never", True, False, False, False),
    ],
)
def test_thp_gfp(defrag, madvised, direct, kswapd, noretry):
    gfp = parse_gfp(mm.thp_gfp(defrag, madvised))
    assert (gfp.direct_reclaim, gfp.kswapd_reclaim, gfp.noretry) == (direct, kswapd, noretry)
    assert gfp.flags >= parse_gfp("GFP_TRANSHUGE_LIGHT").flags
    assert not gfp.thisnode


def test_thp_gfp__bad_setting():
    with pytest.raises(mm.InputError, match="unknown defrag 'sometimes'; one of: always, defer, defer"):
        mm.thp_gfp("sometimes")


def test_fault_thp__counts_and_places():
    mem = memory()
    folios = mm.fault_thp(mem, 40)
    assert (folios[:32] >= 0).all()
    assert (folios[32:] == -1).all()
    assert mem.pfn(folios[:32]).tolist() == mem.pfn(np.sort(folios[:32])).tolist()
    assert (mem.pfn(folios[:32]) % 512 == 0).all()
    assert (
        mem.state.pages["pg_flags"][mem.index(mem.pfn(folios[:32]))] == 2
    ).all()  # large folios reach the LRU at once
    assert counts(mem) == (32, 8, 0, 0)


@views.large
@pytest.mark.parametrize(
    ("defrag", "madvised", "n_compactions", "n_reclaims"),
    [
        ("madvise", False, 0, 0),
        ("defer", True, 0, 0),
        ("never", True, 0, 0),
        ("madvise", True, 1 + 2, 1),
        ("always", True, 1 + 2, 1),
        ("always", False, 1 + 2, 1),
    ],
)
def test_fault_thp__two_tries(defrag, madvised, n_compactions, n_reclaims):
    """The first one, on the node alone, compacts; the second one compacts, reclaims and compacts again."""
    mem = fragmented()
    trace = []
    mm.fault_thp(
        mem, 1, defrag=defrag, madvised=madvised, reclaim=lambda m, r: 0, compact=lambda m, r: COMPLETE, trace=trace
    )
    assert sum(step.startswith("compact") for step in trace) == n_compactions
    assert trace.count("reclaim") == n_reclaims
    assert trace.count("failed") == 1 + bool(n_compactions)
    assert counts(mem) == (0, 1, 0, 0)


def test_fault_thp__another_node_only_where_the_flags_allow_reclaim():
    mem = memory(nodes=2)
    assert (mm.fault_thp(mem, 40) >= 0).sum() == 32
    folios = mm.fault_thp(mem, 4, madvised=True)
    assert mem.pfn(folios).tolist() == [16384, 16896, 17408, 17920]
    assert counts(mem) == (36, 8, 0, 0)


def test_fault_thp__each_fault_tries_anew():
    """The reclaim of the second fault frees what it and the third take."""
    mem = memory()
    held = mm.fault_thp(mem, 32)
    asked = []

    def reclaim(mem, request):
        asked.append(request.order)
        if len(asked) == 2:
            mm.free_pages(mem, held[:2])
        return 0

    got = mm.fault_thp(mem, 4, madvised=True, reclaim=reclaim, compact=lambda m, r: COMPLETE)
    assert (got >= 0).tolist() == [False, True, True, False]


def test_fault_thp__refused():
    mem = views.plain_memory(Geometry(arch="generic", transparent_hugepage=False), "64MiB", seed=0)
    refused(mem, "this kernel has no transparent huge pages", mm.fault_thp)
    mem = memory()
    refused(mem, "unknown defrag 'on'", mm.fault_thp, defrag="on")
    refused(mem, "count -1", mm.fault_thp, -1)
    refused(mem, "cpu 5", mm.fault_thp, cpu=5)
    refused(mem, "node 5", mm.fault_thp, node=5)


# -- the pool ----------------------------------------------------------------------------------------------------------


def test_alloc_hugetlb__nodes_take_turns():
    mem = memory(nodes=2)
    folios = mm.alloc_hugetlb(mem, 5)
    assert (mem.pfn(folios) // 16384).tolist() == [0, 1, 0, 1, 0]
    assert not mem.state.pages["pg_flags"].any()  # in the pool, on no LRU list
    assert counts(mem) == (0, 0, 5, 0)
    mm.free_pages(mem, folios)
    mem.check()


def test_alloc_hugetlb__one_node():
    mem = memory(nodes=2)
    assert (mem.pfn(mm.alloc_hugetlb(mem, 3, node=1)) // 16384).tolist() == [1, 1, 1]
    folios = mm.alloc_hugetlb(mem, 40, node=1)
    assert (folios >= 0).sum() == 29
    assert counts(mem) == (0, 0, 32, 1)


def test_alloc_hugetlb__a_full_node_is_passed_over():
    """Each page asks it first, in vain; the pool ends where both refuse."""
    mem = memory(nodes=2)
    mm.alloc_hugetlb(mem, 32, node=0)
    folios = mm.alloc_hugetlb(mem, 40)
    assert (folios[:32] >= 0).all()
    assert (folios[32:] == -1).all()
    assert set((mem.pfn(folios[:32]) // 16384).tolist()) == {1}
    assert counts(mem) == (0, 0, 64, 32 + 2)


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


def test_alloc_hugetlb__refused():
    mem = memory()
    refused(
        mem, "huge pages of order 18 are gigantic (MAX_PAGE_ORDER 10): not modelled", mm.alloc_hugetlb, 1, size="1GiB"
    )
    refused(mem, "huge pages of '3MiB'; a power of two", mm.alloc_hugetlb, 1, size="3MiB")
    refused(mem, "huge pages of 4096", mm.alloc_hugetlb, 1, size=4096)
    refused(mem, "size 'big'", mm.alloc_hugetlb, 1, size="big")
    refused(mem, "count -1", mm.alloc_hugetlb, -1)
    refused(mem, "node 7", mm.alloc_hugetlb, 1, node=7)
    mem = views.plain_memory(Geometry(arch="generic", hugetlb=False), "64MiB", seed=0)
    refused(mem, "this kernel has no hugetlb pages (CONFIG_HUGETLB_PAGE)", mm.alloc_hugetlb, 1)
