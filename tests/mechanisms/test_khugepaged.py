"""khugepaged: contents move, old pages are freed in order, errors leave all as it was, and what it refuses."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import PageFlag
from tests.reference import views
from tests.reference.views import refused

ORDER = 9
N = 1 << ORDER


def counts(mem):
    mem.check()
    return tuple(mem.vmstat()[name] for name in ("thp_collapse_alloc", "thp_collapse_alloc_failed"))


def with_pages(kernel="6.12.117", **options):
    """A memory with contents, and pages of a range, scattered."""
    mem = views.plain_memory(Geometry(arch="generic", kernel=kernel), "16MiB", contents=True, seed=0, **options)
    folios = mm.alloc_pages(mem, count=2 * N)
    mm.free_pages(mem, folios[::2])
    folios = folios[1::2].copy()
    random = np.random.default_rng(1)
    random.shuffle(folios)
    rows = mem.index(mem.pfn(folios))
    mem.contents[rows] = random.integers(1, 256, (N, 4096), np.uint8)
    return mem, folios


def test_collapse__contents_move_and_the_old_pages_are_free():
    mem, folios = with_pages()
    rows = mem.index(mem.pfn(folios))
    expected = mem.contents[rows].copy()
    free = int(mem.state.zones["free_pages"].sum())
    holes = folios.copy()
    holes[[3, 400]] = -1
    expected[[3, 400]] = 0
    out = mm.khugepaged_collapse(mem, holes)
    target = int(mem.index(mem.pfn(out.folio))[0])
    assert np.array_equal(mem.contents[target : target + N], expected)
    assert (out.result, out.n_copied, out.n_cleared) == ("succeed", N - 2, 2)
    assert (out.asked, out.pageblock_order, out.page_block_max_order) == ((ORDER, "GFP_TRANSHUGE"), 9, None)
    assert int(mem.state.zones["free_pages"].sum()) == free - N + N - 2
    assert mem.state.pages["pg_flags"][target] == PageFlag.LRU
    assert counts(mem) == (1, 0)
    refused(mem, "is not live", mm.khugepaged_collapse, holes)


def test_collapse__old_pages_are_freed_in_their_order():
    """As free_pages() of the same pages after the same allocation."""
    mem, folios = with_pages()
    other = mem.copy()
    mm.khugepaged_collapse(mem, folios)
    mm.fault_thp(other, 1)
    mm.free_pages(other, folios)
    assert views.free_lists(mem) == views.free_lists(other)


def test_collapse__flags_by_defrag():
    mem, folios = with_pages()
    mm.alloc_pages(mem, ORDER, count=8)
    assert mm.alloc_pages(mem, ORDER)[0] == -1
    asked = []

    def compact(mem, request):
        asked.append(request.order)
        return mm.Compaction(mm.CompactResult.COMPLETE)

    light = mm.khugepaged_collapse(mem, folios, defrag=False, compact=compact)
    assert (light.result, light.folio, light.asked[1], asked) == ("alloc_huge_page_fail", -1, "GFP_TRANSHUGE_LIGHT", [])
    assert mm.khugepaged_collapse(mem, folios, compact=compact).result == "alloc_huge_page_fail"
    assert asked
    assert set(asked) == {ORDER}
    assert counts(mem) == (0, 2)
    assert (mem.handles(mem.index(mem.pfn(folios))) == folios).all()


def test_collapse__an_error_leaves_all_as_it_was():
    mem, folios = with_pages()
    mm.inject_poison(mem, pfn=int(mem.pfn(folios)[70]), line=5)
    before = views.free_lists(mem)
    out = mm.khugepaged_collapse(mem, folios, engine="fragile")
    assert (out.result, out.folio, out.n_copied, out.copy.status.size) == ("copy_mc", -1, 70, 71)
    assert out.copy.pfn_queued[-1] == mem.pfn(folios)[70]
    assert {key: sorted(pfns) for key, pfns in views.free_lists(mem).items()} == {
        key: sorted(pfns) for key, pfns in before.items()
    }
    assert (mem.handles(mem.index(mem.pfn(folios))) == folios).all()
    assert counts(mem) == (1, 0)
    assert mm.khugepaged_collapse(mem, folios, engine="none").result == "panic"


def test_collapse__before_6_12_an_error_is_refused():
    mem, folios = with_pages("6.1")
    mm.inject_poison(mem, pfn=int(mem.pfn(folios)[7]))
    refused(mem, "page 7 is hit by an error, which kernel 6.1 does not survive", mm.khugepaged_collapse, folios)


def test_collapse__on_the_node_of_most_pages():
    mem = PhysicalMemory(Geometry(arch="generic"), "128MiB", nodes=2, seed=0)
    here, there = mm.alloc_pages(mem, count=N // 2 - 1, node=0), mm.alloc_pages(mem, count=N // 2 + 1, node=1)
    out = mm.khugepaged_collapse(mem, np.concatenate([here, there]))
    assert (out.node, int(mem.pfn(out.folio)[0]) // 16384) == (1, 1)
    here, there = mm.alloc_pages(mem, count=N // 2, node=0), mm.alloc_pages(mem, count=N // 2, node=1)
    refused(mem, "pages of several nodes, equally many", mm.khugepaged_collapse, np.concatenate([here, there]))


@pytest.mark.parametrize("limit", [1, 7, 10])
@pytest.mark.parametrize(("page_size", "order"), [("4KiB", 9), ("16KiB", 11)])
def test_collapse__pageblock_orders(page_size, order, limit):
    geo = Geometry(page_size=page_size, arch="arm64", kernel="7.3", page_block_max_order=limit)
    mem = views.plain_memory(geo, "128MiB", seed=0)
    out = mm.khugepaged_collapse(mem, mm.alloc_pages(mem, count=1 << order))
    assert (out.result, out.asked[0], out.page_block_max_order) == ("succeed", order, limit)
    assert out.pageblock_order == min(limit, order)
    assert counts(mem) == (1, 0)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"pins": 1}, "page 4 is pinned: not modelled for khugepaged"),
        ({"locked": True}, "page 4 is locked"),
        ({"mlocked": True}, "page 4 is mlocked"),
        ({"mapped_by": (0, 1)}, "page 4 is shared"),
        ({"mapped_by": 3}, "page 4 is of another address space"),
        ({"mapping": "shmem"}, "page 4 is no anonymous page"),
        ({"file": True}, "page 4 is file"),
        ({"isolated": True}, "page 4 is on no LRU list"),
        ({"swapcache": True}, "page 4 is swapcache"),
    ],
)
def test_collapse__not_modelled(said, message):
    mem, folios = with_pages()
    mm.set_folio(mem, folios[4], **said)
    refused(mem, message, mm.khugepaged_collapse, folios)


def test_collapse__bad_input():
    mem, folios = with_pages()
    refused(mem, "3 pages; a huge page's range has 512", mm.khugepaged_collapse, folios[:3])
    refused(mem, "all pages of the range are absent", mm.khugepaged_collapse, np.full(N, -1))
    twice = folios.copy()
    twice[9] = twice[8]
    refused(mem, "a page comes twice", mm.khugepaged_collapse, twice)
    refused(mem, "cpu 4", mm.khugepaged_collapse, folios, cpu=4)
    refused(mem, "unknown engine 'quick'", mm.khugepaged_collapse, folios, engine="quick")
    large = folios.copy()
    large[1] = mm.alloc_pages(mem, 2)[0]
    refused(mem, "page 1 is part of a large folio", mm.khugepaged_collapse, large)
    mm.free_pages(mem, large[1])
    plain = views.plain_memory(Geometry(arch="generic", transparent_hugepage=False), "16MiB", seed=0)
    refused(plain, "no transparent huge pages", mm.khugepaged_collapse, folios)
