"""Huge page faults: flags, tries, sizes below the PMD order, counters."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.sources.gfp import parse_gfp
from tests.reference import views
from tests.reference.views import refused

COMPLETE = mm.Compaction(mm.CompactResult.COMPLETE)
LIGHT = "GFP_TRANSHUGE_LIGHT"
DIRECT = f"{LIGHT}|__GFP_DIRECT_RECLAIM"


def counts(mem):
    mem.check()
    return tuple(mem.vmstat()[name] for name in ("thp_fault_alloc", "thp_fault_fallback"))


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
    assert counts(mem) == (32, 8)


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
    assert counts(mem) == (0, 1)


def test_fault_thp__another_node_only_where_the_flags_allow_reclaim():
    mem = memory(nodes=2)
    assert (mm.fault_thp(mem, 40) >= 0).sum() == 32
    folios = mm.fault_thp(mem, 4, madvised=True)
    assert mem.pfn(folios).tolist() == [16384, 16896, 17408, 17920]
    assert counts(mem) == (36, 8)


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


def test_thp_fault__says_what_was_asked_and_what_came():
    mem = memory()
    out = mm.thp_fault(mem, 40)
    assert out.success.tolist() == [True] * 32 + [False] * 8
    assert out.order.tolist() == [9] * 32 + [-1] * 8
    assert (out.folios >= 0).tolist() == out.success.tolist()
    assert out.asked == ((9, f"{DIRECT}|__GFP_THISNODE|__GFP_NORETRY"), (9, DIRECT))
    assert mm.thp_fault(mem, 1, madvised=False).asked == ((9, f"{LIGHT}|__GFP_THISNODE|__GFP_NORETRY"),)
    assert "32 of order 9" in repr(out)


@pytest.mark.parametrize("numa", [True, False])
def test_thp_fault__one_try_without_numa(numa):
    mem = fragmented()
    trace = []
    out = mm.thp_fault(mem, 1, numa=numa, compact=lambda m, r: COMPLETE, trace=trace)
    assert trace.count("failed") == len(out.asked) == 1 + numa
    assert out.asked[-1] == (9, DIRECT)


@pytest.mark.parametrize("limit", [1, 7, 10])
@pytest.mark.parametrize(("page_size", "pmd_order"), [("4KiB", 9), ("16KiB", 11)])
def test_thp_fault__pageblock_orders(page_size, pmd_order, limit):
    """Huge pages above the pageblock order too: the order asked for, the limit and what came of it are told."""
    geo = Geometry(page_size=page_size, arch="arm64", kernel="7.3", page_block_max_order=limit)
    mem = views.plain_memory(geo, "256MiB", seed=0)
    n = (256 << 20) // (geo.page_size_bytes << pmd_order)
    out = mm.thp_fault(mem, n + 2)
    assert out.success.sum() == n
    assert (out.pmd_order, out.asked[0][0]) == (pmd_order, pmd_order)
    assert (out.page_block_max_order, out.pageblock_order) == (limit, min(limit, pmd_order))
    rows = mem.index(mem.pfn(out.folios[:n]))
    assert (mem.state.pages["state"][rows] & 15 == pmd_order).all()
    assert counts(mem) == (n, 2)
    mm.free_pages(mem, out.folios[:n])
    mem.check()
    assert mm.thp_fault(mem, n).success.all()


# -- below the PMD order -----------------------------------------------------------------------------------------------


def holes_of(mem, order):
    """All memory is used but for every second block of an order."""
    folios = mm.alloc_pages(mem, order, count=16384 >> order)
    mm.free_pages(mem, folios[::2])


def test_thp_fault__highest_enabled_order_first():
    mem = memory(kernel="7.3")
    holes_of(mem, 4)
    out = mm.thp_fault(mem, 520, orders=(4, 9, 2))
    assert out.order.tolist() == [4] * 512 + [-1] * 8
    assert [order for order, _ in out.asked] == [9, 9, 4, 2]
    assert {gfp for order, gfp in out.asked if order < 9} == {DIRECT}  # THISNODE is for the PMD order alone
    assert counts(mem) == (0, 520)
    stats = mm.mthp_stats(mem)
    assert {size: tuple(values.values()) for size, values in stats.items() if any(values.values())} == {
        2048: (0, 520),
        64: (512, 8),
        16: (0, 8),
    }
    assert list(stats) == [16 << n for n in range(8)]


def test_thp_fault__smaller_ones_in_between():
    """Each fault begins at the top again: what is freed meanwhile goes to the next one."""
    mem = memory(kernel="7.3")
    holes_of(mem, 3)
    held = mm.alloc_pages(mem, 3, count=1024)
    mm.free_pages(mem, held[:2])
    out = mm.thp_fault(mem, 4, orders=(3, 2))
    assert out.order.tolist() == [3, 3, -1, -1]
    mm.free_pages(mem, held[2:3])
    assert mm.thp_fault(mem, 3, orders=(2,)).order.tolist() == [2, 2, -1]
    assert counts(mem) == (0, 0)  # the PMD order was not enabled
    assert mm.mthp_stats(mem)[32] == {"anon_fault_alloc": 2, "anon_fault_fallback": 2}
    assert mm.mthp_stats(mem)[16] == {"anon_fault_alloc": 2, "anon_fault_fallback": 3}


def test_thp_fault__a_single_page_at_last():
    mem = fragmented()
    out = mm.thp_fault(mem, 3, base_pages=True)
    assert out.order.tolist() == [0, 0, 0]
    assert not out.success.any()
    assert out.asked[-1] == (0, "GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO")
    assert counts(mem) == (0, 3)
    assert not mm.mthp_stats(mem)[16]["anon_fault_alloc"]


def test_thp_fault__bad_orders():
    old = memory(kernel="6.1")
    refused(old, "kernel 6.1 has no large anonymous folios below the PMD order", mm.thp_fault, 1, orders=(9, 4))
    assert mm.thp_fault(old, 1, orders=(9,)).success.all()
    with pytest.raises(mm.GeometryError, match="has no large anonymous"):
        mm.mthp_stats(old)
    mem = memory()
    refused(mem, "order 1; 2 to 9 (THP_ORDERS_ALL_ANON)", mm.thp_fault, 1, orders=(1,))
    refused(mem, "order 10; 2 to 9", mm.thp_fault, 1, orders=(9, 10))
    refused(mem, "no order is enabled", mm.thp_fault, 1, orders=())
    refused(mem, "orders 9; several", mm.thp_fault, 1, orders=9)


def test_mthp_stats__survive_a_copy(tmp_path):
    mem = memory()
    mm.thp_fault(mem, 2, orders=(4,))
    mem.save(tmp_path / "m.npz")
    assert mm.mthp_stats(mm.load(tmp_path / "m.npz")) == mm.mthp_stats(mem.copy()) == mm.mthp_stats(mem)
