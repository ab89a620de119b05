"""Gigantic hugetlb pages: where they come from, what stands in the way, how they go back, what is refused."""

import pickle

import numpy as np
import pytest

import memmodel as mm
from memmodel.errors import GeometryError
from memmodel.geometry import Geometry
from memmodel.kernels import lru
from memmodel.mechanisms.failure_signals import Task
from memmodel.sources.kpageflags import KPF
from tests.reference import views
from tests.reference.views import refused

KERNELS = ["6.1", "6.12.117", "7.3"]
SIZE = "8MiB"  # order 11, the first beyond MAX_PAGE_ORDER
PAGES = 2048


def memory(kernel="6.12.117", size="64MiB", **options):
    """64 MiB a machine, all of it free for any request."""
    return views.plain_memory(Geometry(arch="generic", kernel=kernel), size, seed=0, **options)


def free_pages(mem):
    mm.drain_all_pages(mem)
    mem.check()
    return int(mem.state.zones["free_pages"].sum() + mem.state.pcp["free_diff"].sum())


def settled(mem, count, order=0, **options):
    """Folios on their LRU list."""
    folios = mm.alloc_pages(mem, order, count, **options)
    lru.drain_lru(mem.state, np.uint64(0))
    return folios


# -- where they come from ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_alloc_hugetlb__gigantic_pages_and_back(kernel):
    """Who lies there moves away; no page is lost on the way in or out."""
    mem = memory(kernel)
    folios = settled(mem, 300)
    free = free_pages(mem)
    out = mm.alloc_hugetlb(mem, 2, size=SIZE)
    assert free_pages(mem) == free - 2 * PAGES
    assert [(page.order, page.n_pages, page.pfn % PAGES) for page in out.pages] == [(11, PAGES, 0)] * 2
    assert (out.reason, [node for node, _ in out.tries]) == ("", [0, 0])
    assert sum(outcome.n_migrated for _, outcome in out.tries) >= 300
    assert mm.gigantic_pages(mem) == out.pages
    taken = [(page.pfn, page.pfn + PAGES) for page in out.pages]
    assert not any(first <= pfn < end for pfn in mem.pfn(folios).tolist() for first, end in taken)
    for page in out.pages:
        mm.free_gigantic(mem, page)
        mem.check()
    assert (free_pages(mem), mm.gigantic_pages(mem)) == (free, ())
    assert mem.vmstat()["htlb_buddy_alloc_success"] == mem.vmstat()["htlb_buddy_alloc_fail"] == 0


@views.large
@pytest.mark.parametrize("kernel", ["6.1", "6.12.117"])
def test_alloc_hugetlb__one_gib(kernel):
    mem = mm.PhysicalMemory(Geometry(kernel=kernel), "4GiB", seed=0)
    before = mem.buddyinfo()
    out = mm.alloc_hugetlb(mem, 9, size="1GiB")
    mem.check()
    assert {(page.pfn % (1 << 18), page.order) for page in out.pages} == {(0, 18)}
    assert 2 <= len(out.pages) <= 3  # the lowest holds the DMA zone
    assert out.tries[-1][1].errno == -16
    for page in out.pages:
        mm.free_gigantic(mem, page)
    mm.drain_all_pages(mem)
    mem.check()
    assert (mem.buddyinfo() * 2 ** before["order"]).sum() == (before * 2 ** before["order"]).sum()


def test_alloc_hugetlb__gigantic_nodes_take_turns():
    mem = memory(size="128MiB", nodes=2)
    out = mm.alloc_hugetlb(mem, 5, size=SIZE)
    assert [page.pfn // 16384 for page in out.pages] == [0, 1, 0, 1, 0]
    out = mm.alloc_hugetlb(mem, 9, node=1, size=SIZE)
    assert (len(out.pages), {page.pfn // 16384 for page in out.pages}) == (6, {1})
    mem.check()


def test_alloc_hugetlb__gigantic_pages_are_passed_over():
    """pfn_range_valid_contig() refuses a range with a hugetlb page: it is no attempt."""
    mem = memory()
    first, second = mm.alloc_hugetlb(mem, 2, size=SIZE).tries
    assert (first[1].n_attempts, second[1].n_attempts) == (1, 1)
    assert mm.alloc_contig_pages(mem, 2 * PAGES).n_attempts == 1
    assert mm.alloc_contig_pages(mem, PAGES).pfn == 4 * PAGES


def test_alloc_hugetlb__gigantic_pages_stay_out_of_zone_movable():
    mem = mm.PhysicalMemory(Geometry(arch="generic"), "64MiB", movablecore="32MiB", seed=0)
    out = mm.alloc_hugetlb(mem, 8, size=SIZE)
    assert all(page.pfn < 8192 for page in out.pages)
    mem.check()


# -- CMA areas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_alloc_hugetlb__the_nodes_cma_area_first(kernel):
    mem = memory(kernel)
    area = mm.cma_reserve(mem, "16MiB", "8MiB", order_per_bit=9)
    settled(mem, 10000)
    free = free_pages(mem)
    available = int(mem.state.areas["available"][0])
    out = mm.alloc_hugetlb(mem, 1, size=SIZE, cma={0: area})
    (page,) = out.pages
    assert area.pfn <= page.pfn < area.pfn + area.n_pages
    assert (len(out.tries), mem.vmstat()["cma_alloc_success"]) == (1, 1)
    assert int(mem.state.areas["available"][0]) == available - PAGES
    mem.check()
    refused(mem, "of a gigantic hugetlb page: free_gigantic", mm.cma_release, area, mm.ContigRange(page.pfn, PAGES))
    mm.free_gigantic(mem, page)
    assert (free_pages(mem), int(mem.state.areas["available"][0])) == (free, available)


def test_alloc_hugetlb__any_range_where_the_area_is_full():
    mem = memory()
    area = mm.cma_reserve(mem, "8MiB", "8MiB")
    out = mm.alloc_hugetlb(mem, 2, size=SIZE, cma={0: area})
    assert [page.pfn == area.pfn for page in out.pages] == [True, False]
    assert [outcome.errno for _, outcome in out.tries] == [0, -12, 0]
    mem.check()


def test_alloc_hugetlb__cma_areas_are_of_their_nodes():
    mem = memory(size="64MiB", nodes=2)
    area = mm.cma_reserve(mem, "8MiB")
    refused(mem, "CMA area 0 does not lie on node 0", mm.alloc_hugetlb, 1, size=SIZE, cma={0: area})
    refused(mem, "no CMA area of this memory", mm.alloc_hugetlb, 1, size=SIZE, cma={1: area._replace(pfn=0)})
    refused(mem, "node 7; this machine has 0, 1", mm.alloc_hugetlb, 1, size=SIZE, cma={7: area})


# -- what stands in the way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_alloc_hugetlb__why_there_is_no_gigantic_page(kernel):
    mem = memory(kernel, "16MiB")
    folios = settled(mem, 4096)
    mm.free_pages(mem, np.delete(folios, [1000, 3000]))
    mm.set_folio(mem, folios[[1000, 3000]], pins=1)
    free = free_pages(mem)
    out = mm.alloc_hugetlb(mem, 1, size=SIZE)
    assert (out.pages, out.reason, out.tries[0][1].errno, out.tries[0][1].n_attempts) == ((), "pinned", -16, 2)
    assert out.tries[0][1].where in mem.pfn(folios[[1000, 3000]]).tolist()
    assert (free_pages(mem), mm.gigantic_pages(mem)) == (free, ())
    mm.set_folio(mem, folios[3000], pins=0)
    assert len(mm.alloc_hugetlb(mem, 2, size=SIZE).pages) == 1
    mem.check()


def test_alloc_hugetlb__larger_than_the_machine():
    mem = memory()
    out = mm.alloc_hugetlb(mem, 3, size="1GiB")
    assert (out.pages, out.reason) == ((), "no range without holes, reserved memory and hugetlb pages")
    assert mm.alloc_hugetlb(mem, 0, size="1GiB").reason == ""


def test_alloc_hugetlb__a_fatal_error_anywhere_is_refused_before_the_first_page():
    mem = memory("6.1", nodes=2, size="128MiB")
    folio = settled(mem, 1, node=1)
    mm.inject_poison(mem, int(mem.pfn(folio)[0]))
    refused(mem, "copying a latent error would stop the machine", mm.alloc_hugetlb, 4, size=SIZE)


def test_alloc_hugetlb__before_6_10_larger_folios_than_a_pageblock_are_refused_before_the_first_page():
    mem = memory("6.1", nodes=2, size="128MiB")
    settled(mem, 1, order=10, node=1)
    refused(mem, "a movable folio of more than a pageblock", mm.alloc_hugetlb, 4, size=SIZE)


def test_alloc_hugetlb__no_gigantic_pages_in_this_kernel():
    mem = views.plain_memory(Geometry(arch="generic", cma=False, memory_isolation=False), "16MiB", seed=0)
    with pytest.raises(GeometryError, match="CONFIG_CONTIG_ALLOC"):
        mm.alloc_hugetlb(mem, 1, size=SIZE)


# -- how they go back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "listed"), [("6.1", True), ("6.12.117", False), ("7.3", False)])
def test_free_gigantic__page_by_page_before_6_12(kernel, listed):
    """A compound page goes past the per-CPU lists, as one free of so many pages."""
    mem = mm.PhysicalMemory(Geometry(arch="generic", kernel=kernel), "64MiB", seed=0)
    (page,) = mm.alloc_hugetlb(mem, 1, size=SIZE).pages
    mm.drain_all_pages(mem)
    before = mem.vmstat()["pgfree"]
    mm.free_gigantic(mem, page)
    mem.check()
    assert mem.vmstat()["pgfree"] - before == PAGES
    assert bool(mem.state.pcp["count"].sum()) == listed


@pytest.mark.parametrize(("kernel", "kept"), [("6.1", 1), ("6.12.117", 0)])
def test_free_gigantic__a_poisoned_page(kernel, kept):
    """Freed within a larger folio once it came back to the free lists; page by page it leaves the allocator now."""
    mem = memory(kernel, "16MiB")
    large = mm.alloc_pages(mem, 10, migratetype="unmovable")
    mm.memory_failure(mem, int(mem.pfn(large)[0]) + 7, flags=mm.MfFlag.SW_SIMULATED)
    mm.free_pages(mem, large)
    free = free_pages(mem)
    pages = mm.alloc_hugetlb(mem, 2, size=SIZE).pages
    assert len(pages) == 2
    for page in pages:
        mm.free_gigantic(mem, page)
    assert free_pages(mem) == free - kept


def test_free_gigantic__refused():
    mem = memory()
    (page,) = mm.alloc_hugetlb(mem, 1, size=SIZE).pages
    other = mm.GiganticPage(page.pfn + PAGES, page.order)
    refused(mem, "is no gigantic page of this memory", mm.free_gigantic, other)
    refused(mem, "is no gigantic page of this memory", mm.free_gigantic, mm.ContigRange(page.pfn, PAGES))
    refused(mem, "cpu 9", mm.free_gigantic, page, cpu=9)
    mm.free_gigantic(mem, page)
    refused(mem, "is no gigantic page of this memory: freed before", mm.free_gigantic, page)


# -- the state, and what is not modelled -------------------------------------------------------------------------------


def test_gigantic_pages__the_same_after_undo_copy_and_file(tmp_path):
    mem = memory()
    settled(mem, 100)
    start = mem.copy()
    pages = mm.alloc_hugetlb(mem, 2, size=SIZE).pages
    twin = mem.copy()
    mem.save(tmp_path / "state.npz")
    for other in (twin, mm.load(tmp_path / "state.npz"), pickle.loads(pickle.dumps(mem))):
        other.check()
        assert (mm.gigantic_pages(other), other.digest) == (pages, mem.digest)
        mm.free_gigantic(other, pages[0])
        assert other.digest != mem.digest
    assert mm.gigantic_pages(mem) == pages
    mem.restore(start)
    mem.check()
    assert (mem.digest, mm.gigantic_pages(mem)) == (start.digest, ())
    mem.restore(twin)
    assert mm.gigantic_pages(mem) == pages[1:]


@pytest.mark.parametrize("kernel", KERNELS)
def test_gigantic_pages__refused_by_name(kernel):
    mem = memory(kernel, size="128MiB", nodes=2)
    (page,) = mm.alloc_hugetlb(mem, 1, size=SIZE).pages
    pfn, no_folio = page.pfn + 5, "a gigantic page is no folio"
    for function, arguments, message in (
        (mm.memory_failure, (pfn,), "its failure is not modelled"),
        (mm.soft_offline_page, (pfn,), "its soft offlining is not modelled"),
        (mm.unpoison_memory, (pfn,), "its errors are not modelled"),
        (mm.madvise, ([pfn], "MADV_HWPOISON", Task("a", 1, 0)), "its failure is not modelled"),
        (mm.corrupt_pfn, (pfn,), "its failure is not modelled"),
        (mm.hard_offline_page, (pfn << 12,), "its failure is not modelled"),
        (mm.free_contig_range, (mm.ContigRange(pfn, 1),), "free_gigantic gives it back"),
        (mm.free_pages, (page,), no_folio),
        (mm.migrate_pages, ([page], 1), no_folio),
        (mm.move_pages, ([page], 1), no_folio),
        (mm.set_folio, (page,), no_folio),
    ):
        refused(mem, message, function, *arguments)
    with pytest.raises(mm.InputError, match=no_folio):
        mem.pfn(page)
    mm.memory_failure_queue(mem, pfn)
    refused(mem, "its failure is not modelled", mm.run_memory_failure_work)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gigantic_pages__shown_as_other_pages_of_the_pool(kernel):
    mem = memory(kernel)
    huge = int(mem.pfn(mm.alloc_hugetlb(mem, 1))[0])
    (page,) = mm.alloc_hugetlb(mem, 1, size=SIZE).pages
    shown = mm.kpageflags(mem, [[page.pfn, page.pfn + 1, page.pfn + PAGES - 1], [huge, huge + 1, huge + 511]])
    assert shown[0].tolist() == shown[1].tolist()
    assert not mm.kpageflags(mem, page.pfn + PAGES) & (1 << KPF["HUGE"])


@pytest.mark.parametrize("kernel", KERNELS)
def test_gigantic_pages__compaction_leaves_them_where_they_are(kernel):
    mem = memory(kernel)
    settled(mem, 4000)
    pages = mm.alloc_hugetlb(mem, 2, size=SIZE).pages
    mm.compact_memory(mem)
    mem.check()
    assert mm.gigantic_pages(mem) == pages
    for page in pages:
        mm.free_gigantic(mem, page)
    mem.check()
