"""CMA areas and contiguous ranges: what stands in the way, by errno and name; bytes that stay; what is refused."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.errors import GeometryError
from memmodel.geometry import Geometry
from memmodel.kernels import lru
from memmodel.state.layout import Kind, MigrateType, PageFlag
from tests.reference import views
from tests.reference.views import refused

KERNELS = ["6.1", "6.12.117", "7.3"]
AREA = 128  # pages


def machine(kernel="6.12.117", **options):
    """2 MiB in pageblocks of 128 KiB, an area of four of them at the top, and no watermark."""
    orders = {"max_page_order": 6, "page_block_max_order": 5, "transparent_hugepage": False}
    mem = views.plain_memory(Geometry(arch="x86_64", kernel=kernel, **orders), "2MiB", seed=0, **options)
    return mem, mm.cma_reserve(mem, "512KiB")


def usual_machine(size="64MiB"):
    """An area of 8 MiB in pageblocks of 2 MiB."""
    mem = views.plain_memory(Geometry(), size, seed=0)
    return mem, mm.cma_reserve(mem, "8MiB")


def filled(kernel="6.12.117", **options):
    """The area is full of movable pages; as much memory beside it is free. With the pfns in the area by handle."""
    mem, area = machine(kernel, **options)
    folios = mm.alloc_pages(mem, 0, mem.pfns.n_pages)
    folios = folios[folios >= 0]
    pfns = mem.pfn(folios)
    inside = (pfns >= area.pfn) & (pfns < area.pfn + area.n_pages)
    assert inside.sum() == area.n_pages
    mm.free_pages(mem, folios[~inside][::2])
    return mem, area, dict(zip(pfns[inside].tolist(), folios[inside].tolist(), strict=True))


def lie_in(mem, folios, pages):
    """Which of some folios lie in a range."""
    pfns = mem.pfn(folios)
    return (pfns >= pages.pfn) & (pfns < pages.pfn + pages.n_pages)


# -- reserving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_cma_reserve__pageblocks_are_freed_through_their_list(kernel):
    mem = mm.PhysicalMemory(Geometry(kernel=kernel, arch="generic"), "256MiB", seed=0)
    area = mm.cma_reserve(mem, "64MiB")
    mem.check()
    assert (area.pfn, area.n_pages) == (49152, 16384)
    assert mem.pageblocks().sel(migratetype="CMA").item() == 32
    free = mem.pagetypeinfo().sel(migratetype="CMA").values[0] @ (1 << np.arange(11))
    waiting = int(mem.state.pcp["count"].sum())  # per-CPU list 13: movable blocks of the PMD order
    assert waiting % 512 == 0
    assert waiting or kernel == "7.3"  # which drains in pieces of a batch, each a whole pageblock
    assert free + waiting == 16384
    assert mem.state.zones["managed"][0] == 65536


def test_cma_reserve__below_the_pmd_order_straight_to_the_buddy():
    geometry = Geometry(page_size="16KiB", arch="arm64", kernel="7.3", page_block_max_order=7)
    mem = mm.PhysicalMemory(geometry, "256MiB", seed=0)
    area = mm.cma_reserve(mem, "2MiB", alignment="2MiB")
    mem.check()
    assert area.n_pages == 128
    assert mem.pagetypeinfo().sel(migratetype="CMA", order=7).sum() == 1
    assert mem.state.pcp["count"].sum() == 0


def test_cma_reserve__free_lists_as_if_it_had_never_been_free():
    mem = mm.PhysicalMemory(Geometry(arch="generic"), "64MiB", seed=0)
    mm.cma_reserve(mem, "6MiB", base="16MiB")
    lists = views.free_lists(mem)
    whole = [pfn for pfn in range(0, 16384, 1024) if not 4096 <= pfn < 4096 + 1536]
    assert lists[0, 10, MigrateType.MOVABLE] == [pfn for pfn in whole if pfn != 5120]
    assert lists[0, 9, MigrateType.MOVABLE] == [5632]


def test_cma_reserve__what_is_refused():
    mem = mm.PhysicalMemory(Geometry(), "64MiB", seed=0)
    refused(mem, "multiple of 2 MiB (-EINVAL)", mm.cma_reserve, "3MiB")
    refused(mem, "multiple of 2 MiB (-EINVAL)", mm.cma_reserve, "4MiB", base="33MiB")
    refused(mem, "one zone", mm.cma_reserve, "8MiB", base="12MiB")  # DMA ends at 16 MiB
    refused(mem, "a power of two of at least 2 MiB", mm.cma_reserve, "4MiB", alignment="1MiB")
    refused(mem, "belongs to an area without a base", mm.cma_reserve, "4MiB", "4MiB", "32MiB")
    refused(mem, "no zone has", mm.cma_reserve, "64MiB")
    mm.cma_reserve(mem, "8MiB", base="32MiB")
    refused(mem, "CMA area 0 lies there", mm.cma_reserve, "4MiB", base="36MiB")
    folio = mm.alloc_pages(mem, 0)
    base = int(mem.pfn(folio)[0]) * 4096 >> 21 << 21
    refused(mem, "is not free", mm.cma_reserve, "2MiB", base=base)
    mem.check()
    with pytest.raises(GeometryError, match="no CMA"):
        mm.cma_reserve(mm.PhysicalMemory(Geometry(cma=False), "64MiB"), "4MiB")


def test_cma_areas__are_copied_restored_and_saved(tmp_path):
    mem, area = machine()
    start = mem.copy()
    out = mm.cma_alloc(mem, area, 100)
    assert mem.digest != start.digest
    mem.save(tmp_path / "state.npz")
    for other in (mem.copy(), mm.load(tmp_path / "state.npz")):
        assert other.digest == mem.digest
        assert mm.cma_areas(other) == (area,)
        mm.cma_release(other, area, out.pages)
        other.check()
    mem.restore(start)
    assert mem.digest == start.digest
    refused(mem, "is not allocated", mm.cma_release, area, out.pages)


# -- what comes of a request -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_cma_alloc__moves_who_is_there_and_their_bytes(kernel):
    mem, area, inside = filled(kernel, contents=True)
    handles = np.array(list(inside.values()))
    rows = mem.index(mem.pfn(handles))
    marks = np.arange(handles.size) % 251 + 1
    mem.contents[rows] = marks[:, None]
    out = mm.cma_alloc(mem, area, 70, 4)
    mem.check()
    assert (out.errno, out.pfn, out.n_migrated, out.n_attempts) == (0, area.pfn, 70, 1)
    assert not lie_in(mem, handles, out.pages).any()
    assert np.array_equal(mem.contents[mem.index(mem.pfn(handles))], np.repeat(marks[:, None], 4096, axis=1))
    assert mem.vmstat()["cma_alloc_success"] == 1
    assert mem.vmstat()["pgmigrate_success"] == 70
    mm.cma_release(mem, area, out.pages)
    mem.check()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("how", "reason", "n_batches"),
    [
        ({"pins": 1}, "pinned", 1),  # anonymous: not even isolated
        ({"mapping": "shmem", "pins": 1}, "pinned", 5),
        ({"mapping": "slab"}, "slab", 1),
        ({"mapping": "page_table"}, "page table", 1),
        ({"mapping": "kernel"}, "unmovable", 1),
        ({"inaccessible": True}, "inaccessible", 1),
        ({"isolated": True}, "isolated by another task", 1),
        ({"mapping": "ramfs", "dirty": True, "no_migrate_folio": True}, "dirty", 5),
        ({"mapping": "file", "pins": 1}, "pinned", 5),
    ],
)
def test_cma_alloc__one_page_in_the_way_is_busy(kernel, how, reason, n_batches):
    mem, area, inside = filled(kernel)
    at = area.pfn + 40
    mm.set_folio(mem, inside[at], **how)
    before = mem.vmstat()["cma_alloc_fail"]
    out = mm.cma_alloc(mem, area, AREA)
    mem.check()
    assert (out.errno, out.reason, out.where, out.pages) == (-16, reason, at, None)
    assert out.n_attempts == 1
    assert mem.vmstat()["cma_alloc_fail"] == before + 1
    if n_batches == 1:  # all others have moved
        assert out.n_migrated == AREA - 1
    assert mem.state.areas[0]["available"] == AREA
    assert not mem.state.zones["nr_isolate_pageblock"].any()


def test_cma_alloc__five_tries():
    mem, area, inside = filled()
    mm.set_folio(mem, inside[area.pfn + 3], mapping="shmem", pins=1)
    out = mm.cma_alloc(mem, area, 8, 3)
    assert (out.errno, out.pfn) == (0, area.pfn + 8)  # on by the alignment
    assert (out.n_attempts, out.n_batches) == (2, 5 + 1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_cma_alloc__slides_by_the_alignment_past_a_busy_page(kernel):
    mem, area, inside = filled(kernel)
    mm.set_folio(mem, inside[area.pfn + 9], pins=1)
    out = mm.cma_alloc(mem, area, 16, 0)
    mem.check()
    assert (out.errno, out.pfn, out.n_attempts) == (0, area.pfn + 10, 11)


@pytest.mark.parametrize("kernel", KERNELS)
def test_cma_alloc__poisoned_page_is_no_excuse(kernel):
    """PG_hwpoison is passed over for memory offlining only."""
    mem, area = machine(kernel)
    mm.drain_all_pages(mem)
    mm.memory_failure(mem, area.pfn + 100)
    out = mm.cma_alloc(mem, area, AREA)
    mem.check()
    assert (out.errno, out.reason, out.where) == (-16, "hwpoison", area.pfn + 100)


@pytest.mark.parametrize("kernel", ["6.12.117", "7.3"])
def test_cma_alloc__latent_error_stays_where_it_is(kernel):
    mem, area, inside = filled(kernel)
    mm.inject_poison(mem, pfn=area.pfn + 7, line=0)
    out = mm.cma_alloc(mem, area, AREA)
    mem.check()
    assert (out.errno, out.reason, out.where) == (-16, "latent error", area.pfn + 7)
    assert mem.pfn(inside[area.pfn + 7])[0] == area.pfn + 7
    assert out.counts["n_poisoned"] > 0


def test_cma_alloc__error_that_would_stop_the_machine_is_refused():
    mem, area, _ = filled("6.1")
    mm.inject_poison(mem, pfn=area.pfn + 7, line=0)
    refused(mem, f"pfn {area.pfn + 7}: copying its error would stop the machine", mm.cma_alloc, area, 1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_cma_alloc__no_target(kernel):
    mem, area = machine(kernel)
    folios = mm.alloc_pages(mem, 0, mem.pfns.n_pages, gfp="GFP_HIGHUSER_MOVABLE")
    mm.alloc_pages(mem, 0, mem.pfns.n_pages, gfp="GFP_ATOMIC|__GFP_MEMALLOC")
    assert lie_in(mem, folios[folios >= 0], area).any()
    out = mm.cma_alloc(mem, area, AREA)
    mem.check()
    assert (out.errno, out.reason) == (-12, "no target")
    assert area.pfn <= out.where < area.pfn + AREA


def test_cma_alloc__fatal_signal():
    mem, area, _ = filled()
    out = mm.cma_alloc(mem, area, 100, fatal_signal=2)
    mem.check()
    assert (out.errno, out.reason, out.n_batches, out.n_migrated) == (-4, "fatal signal", 2, 64)


def test_cma_alloc__another_range_has_the_pageblock():
    mem, area = machine()
    block = int(mem.index(area.pfn)) >> 5
    mem.state.blocks["migratetype"][block] = MigrateType.ISOLATE  # as a task that has just begun leaves it
    out = mm.cma_alloc(mem, area, AREA)
    assert (out.errno, out.reason, out.where, out.n_isolated_blocks) == (-16, "isolated already", area.pfn, 0)


@pytest.mark.parametrize(("kernel", "errno", "fails"), [("6.1", -12, 1), ("6.12.117", -12, 0), ("7.3", -16, 1)])
def test_cma_alloc__more_than_the_area(kernel, errno, fails):
    """Recorded: 100000 pages of 8192, no failure counted by 6.12 and one by 7.3."""
    mem, area = machine(kernel)
    out = mm.cma_alloc(mem, area, AREA + 1)
    assert (out.errno, out.n_attempts, out.reason, out.where) == (errno, 0, "", -1)
    assert mem.vmstat()["cma_alloc_fail"] == fails


@pytest.mark.parametrize(("kernel", "errno"), [("6.1", -12), ("6.12.117", -12), ("7.3", -16)])
def test_cma_alloc__nothing_tried(kernel, errno):
    mem, area = machine(kernel)
    mm.cma_alloc(mem, area, AREA)
    out = mm.cma_alloc(mem, area, 1)
    assert (out.errno, out.n_attempts) == (errno, 0)
    assert mem.vmstat()["cma_alloc_fail"] == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_cma_alloc__clean_page_cache_is_dropped(kernel):
    mem, area, inside = filled(kernel)
    clean, dirty, mlocked = (inside[area.pfn + at] for at in (0, 1, 2))
    mm.set_folio(mem, [clean, dirty, mlocked], mapping="file")
    mm.set_folio(mem, dirty, dirty=True)
    mm.set_folio(mem, mlocked, mlocked=True)
    out = mm.cma_alloc(mem, area, 8)
    mem.check()
    assert (out.errno, out.n_dropped, out.n_migrated) == (0, 1, 7)
    refused(mem, "not live", mm.free_pages, clean)
    assert not lie_in(mem, [dirty, mlocked], out.pages).any()


@views.large
def test_cma_alloc__thp_is_moved_whole_or_in_parts():
    mem, area = usual_machine()
    folios = mm.alloc_pages(mem, 9, 30)
    folios = folios[folios >= 0]
    here = lie_in(mem, folios, area)
    inside = folios[here]
    assert inside.size
    mm.free_pages(mem, folios[~here][:8])
    pfn = int(mem.pfn(inside[0])[0])
    out = mm.cma_alloc(mem, area, area.n_pages)
    mem.check()
    assert out.errno == 0
    assert out.counts["nr_thp_succeeded"] + out.counts["nr_thp_split"] == inside.size
    assert int(mem.pfn(inside[0])[0]) != pfn


@pytest.mark.parametrize("kernel", KERNELS)
def test_cma_release__single_pages_or_chunks(kernel):
    mem, area = machine(kernel, cpus=1)
    out = mm.cma_alloc(mem, area, AREA)
    before = mem.vmstat()["pgfree"]
    mm.cma_release(mem, area, out.pages)
    mem.check()
    assert mem.vmstat()["pgfree"] == before + AREA
    assert mem.state.areas[0]["available"] == AREA
    refused(mem, f"pfn {area.pfn} is not allocated", mm.cma_release, area, out.pages)


def test_cma_release__a_part_and_what_is_refused():
    mem, area = machine()
    out = mm.cma_alloc(mem, area, 10)
    mm.cma_release(mem, area, (out.pfn + 2, 3))
    mem.check()
    refused(mem, f"pfn {out.pfn + 2} is not allocated", mm.cma_release, area, out.pages)
    refused(mem, "outside CMA area", mm.cma_release, area, (area.pfn - 1, 1))
    refused(mem, "is no range of pages", mm.cma_release, area, out.pfn)
    refused(mem, "is no CMA area of this memory", mm.cma_release, area._replace(number=1), out.pages)
    assert mm.cma_alloc(mem, area, 3).pfn == out.pfn + 2


def test_cma_heap_alloc__is_aligned_up_to_the_limit():
    mem, area = usual_machine("16MiB")
    mm.cma_alloc(mem, area, 1)
    assert mm.cma_heap_alloc(mem, area, "12KiB").pfn == area.pfn + 4
    assert mm.cma_heap_alloc(mem, area, "2MiB").pfn == area.pfn + 256
    assert mm.cma_heap_alloc(mem, area, "2MiB", cma_alignment=9).pfn == area.pfn + 1024
    mem.check()


def test_cma_alloc__bits_of_several_pages():
    mem = views.plain_memory(Geometry(), "32MiB", seed=0)
    area = mm.cma_reserve(mem, "4MiB", order_per_bit=3)
    first, second = mm.cma_alloc(mem, area, 5), mm.cma_alloc(mem, area, 5)
    mem.check()
    assert (first.pfn, second.pfn) == (area.pfn, area.pfn + 8)
    assert mem.state.areas[0]["available"] == 1024 - 16


def test_cma_release__no_part_of_a_bit_of_which_the_rest_stays():
    """The kernel clears the bit, and nobody could give the rest back."""
    mem = views.plain_memory(Geometry(), "32MiB", seed=0)
    area = mm.cma_reserve(mem, "4MiB", order_per_bit=3)
    pfn = mm.cma_alloc(mem, area, 21).pfn
    refused(mem, f"pfn {pfn} is of the same bit", mm.cma_release, area, (pfn + 1, 7))
    refused(mem, f"pfn {pfn + 15} is of the same bit", mm.cma_release, area, (pfn, 15))
    mm.cma_release(mem, area, (pfn + 16, 5))  # the pages behind it never were allocated
    mm.cma_release(mem, area, (pfn, 16))
    mem.check()
    assert mem.state.areas[0]["available"] == 1024


def test_cma_reserve__pageblocks_kept_for_urgent_requests():
    mem = mm.PhysicalMemory(Geometry(kernel="6.12.117"), "512MiB", seed=0)
    movable = mm.alloc_pages(mem, 9, 250)
    urgent = mm.alloc_pages(mem, 3, 300, gfp="GFP_ATOMIC")
    kept = np.flatnonzero(mem.state.blocks["migratetype"] == MigrateType.HIGHATOMIC)
    mm.free_pages(mem, urgent[urgent >= 0])
    mm.drain_all_pages(mem)
    block = int(kept[-1])
    zone = mem.state.pages["zone"][block << 9]
    before = int(mem.state.zones["reserved_highatomic"][zone])
    assert before >= 512
    mm.cma_reserve(mem, "2MiB", base=block << 21)
    mem.check()
    assert int(mem.state.zones["reserved_highatomic"][zone]) == before - 512
    assert (movable >= 0).any()


# -- gigantic pages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_alloc_contig_pages__beyond_the_largest_order(kernel):
    mem = views.plain_memory(Geometry(kernel=kernel, arch="generic"), "64MiB", seed=0)
    folios = mm.alloc_pages(mem, 0, 300)
    lru.drain_lru(mem.state, np.uint64(0))
    out = mm.alloc_contig_pages(mem, 4096)
    mem.check()
    assert (out.errno, out.pfn, out.n_migrated) == (0, 0, 300)
    assert not lie_in(mem, folios, out.pages).any()
    mm.free_contig_range(mem, out.pages)
    mem.check()
    refused(mem, "not in use", mm.free_contig_range, out.pages)


def test_alloc_contig_pages__cma_is_always_busy():
    mem = views.plain_memory(Geometry(arch="generic"), "8MiB", seed=0)
    area = mm.cma_reserve(mem, "4MiB")
    out = mm.alloc_contig_pages(mem, 2048)
    assert (out.errno, out.reason, out.where) == (
        -16,
        "CMA pageblock",
        area.pfn + 512,
    )  # the last one has its turn after the first
    assert mm.alloc_contig_pages(mem, 1024).pfn == 0
    mem.check()


def test_alloc_contig_pages__unmovable_pages_are_busy_and_passed():
    mem = views.plain_memory(Geometry(arch="generic"), "32MiB", seed=0)
    folio = mm.alloc_pages(mem, 0, migratetype="unmovable")
    pfn = int(mem.pfn(folio)[0])
    out = mm.alloc_contig_pages(mem, 1024)
    mem.check()
    assert (out.errno, out.n_attempts) == (0, 2)
    assert pfn // 1024 * 1024 != out.pfn
    used = mm.alloc_contig_pages(mem, 8192)
    assert (used.errno, used.reason, used.where) == (-16, "unmovable", pfn)


@pytest.mark.parametrize("way", ["contig", "cma"])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_free_contig_range__a_poisoned_page_leaves_the_allocator(kernel, held, way):
    """free_contig_range() puts page by page: what memory_failure() holds stays in use, the rest is free again.

    Before 7.3 an error that its caller holds the page for keeps that reference.
    """
    mem, area = machine(kernel)
    free = int(mem.state.zones["free_pages"].sum())
    pages = (mm.cma_alloc(mem, area, 64) if way == "cma" else mm.alloc_contig_pages(mem, 64)).pages
    row, flags = int(mem.index(pages.pfn)) + 5, mm.MfFlag.SW_SIMULATED
    mm.memory_failure(mem, pages.pfn + 5, flags=flags | mm.MfFlag.COUNT_INCREASED if held else flags)
    kept = held and kernel != "7.3"
    assert mem.state.pages["refcount"][row] == 1 + kept
    mem.check()
    if way == "cma" and not kept:
        refused(mem, "the kernel would free it under its owner", mm.unpoison_memory, pages.pfn + 5)
    give = (mm.cma_release, area) if way == "cma" else (mm.free_contig_range,)
    give[0](mem, *give[1:], pages)
    mem.check()
    page = mem.state.pages[row]
    assert (page["state"] >> 4, page["pg_flags"], page["refcount"]) == (Kind.HWPOISON, PageFlag.HWPOISON, kept)
    assert int(mem.state.zones["free_pages"].sum()) == free - 1
    if way == "contig":
        refused(mem, "is not in use", mm.free_contig_range, mm.ContigRange(pages.pfn + 5, 1))
    assert mm.unpoison_memory(mem, pages.pfn + 5).rc == 0
    mem.check()


@pytest.mark.parametrize("gfp", ["GFP_KERNEL|__GFP_ACCOUNT", "GFP_KERNEL|__GFP_NORETRY"])
def test_alloc_contig_pages__flags_that_it_does_not_take(gfp):
    mem = views.plain_memory(Geometry(arch="generic"), "16MiB", seed=0)
    assert mm.alloc_contig_pages(mem, 16, gfp=gfp).errno == -22
    assert mm.alloc_contig_pages(mem, 3, gfp="GFP_KERNEL|__GFP_COMP").errno == -22


def test_alloc_contig_pages__compound_page_within_a_larger_block():
    mem = views.plain_memory(Geometry(arch="generic"), "16MiB", seed=0)
    out = mm.alloc_contig_pages(mem, 16, gfp="GFP_KERNEL|__GFP_COMP")
    mem.check()
    assert (out.errno, out.reason) == (-22, "free block beyond the range")
    assert mm.alloc_contig_pages(mem, 2048, gfp="GFP_KERNEL|__GFP_COMP").errno == 0
    mem.check()


def test_alloc_contig_pages__page_on_no_lru_list_yet():
    mem = views.plain_memory(Geometry(arch="generic"), "4MiB", seed=0)
    pfn = int(mem.pfn(mm.alloc_pages(mem, 0))[0])
    out = mm.alloc_contig_pages(mem, 1024)
    assert (out.errno, out.reason, out.where) == (-16, "LRU batch", pfn)


@pytest.mark.parametrize("migratetype", ["movable", "unmovable"])
def test_alloc_contig_pages__straddling_compound_page(migratetype):
    geometry = Geometry(arch="generic", transparent_hugepage=False, max_page_order=4, page_block_max_order=2)
    mem = views.plain_memory(geometry, 64 * 4096, seed=0)
    folios = mm.alloc_pages(mem, 3, 8, migratetype)
    assert folios.min() >= 0
    out = mm.alloc_contig_pages(mem, 4)
    mem.check()
    assert out.errno == -16
    assert out.reason == ("straddling compound page" if migratetype == "movable" else "unmovable")
    assert out.n_attempts == 16


def test_alloc_contig_pages__old_kernels_migrate_such_a_page_first():
    geometry = Geometry(
        arch="generic", kernel="6.1", transparent_hugepage=False, max_page_order=4, page_block_max_order=2
    )
    mem = views.plain_memory(geometry, 64 * 4096, seed=0)
    mm.alloc_pages(mem, 3)
    refused(mem, "which is not modelled", mm.alloc_contig_pages, 4)


def test_alloc_contig_pages__ranges_with_hugetlb_pages_are_passed_over():
    mem = views.plain_memory(Geometry(arch="generic"), "16MiB", seed=0)
    pool = mm.alloc_hugetlb(mem, 1)
    pfn = int(mem.pfn(pool)[0])
    out = mm.alloc_contig_pages(mem, 2048)
    mem.check()
    assert (out.errno, out.n_attempts) == (0, 1)
    assert not lie_in(mem, pool, out.pages).any()
    assert int(mem.pfn(pool)[0]) == pfn


@views.large
def test_cma_alloc__free_pool_page_is_replaced():
    mem, area = usual_machine()
    pool = mm.alloc_hugetlb(mem, 40)
    pool = pool[pool >= 0]
    here = lie_in(mem, pool, area)
    assert here.any()
    mm.free_pages(mem, pool[~here][:6])
    out = mm.cma_alloc(mem, area, area.n_pages)
    mem.check()
    assert (out.errno, out.n_replaced, out.n_migrated) == (0, 512 * here.sum(), 0)
    assert not lie_in(mem, pool[here], out.pages).any()
