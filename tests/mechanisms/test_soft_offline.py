"""soft_offline_page(): freed, dropped, moved or left, and what is counted."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.mechanisms.page_flags import FlagsLayout, format_page_flags
from memmodel.state.layout import Kind, PageFlag
from tests.mechanisms.pages import a_page, machine, state_of
from tests.reference.views import refused


def test_soft_offline_page__a_free_page_leaves_and_no_error_is_counted():
    mem = machine()
    out = mm.soft_offline_page(mem, 1000)
    assert (out.rc, out.log, out.moved_to, out.folio, out.vacated) == (0, (), -1, -1, -1)
    assert state_of(mem, 1000) == Kind.HWPOISON
    assert (mm.hardware_corrupted_kib(mem), mm.memory_failure_stats(mem)[0]["total"]) == (4, 0)
    assert mm.soft_offline_page(mem, 1000).log == ("Soft offline: 0x3e8: page already poisoned",)
    assert mm.hardware_corrupted_kib(mem) == 4
    mem.check()


def test_soft_offline_page__a_page_in_use_moves_with_its_handle():
    mem = machine(contents=True)
    folio, pfn = a_page(mem, mapped_by=(2, 5), mlocked=True)
    mem.contents[mem.index([pfn])[0]] = 7
    out = mm.soft_offline_page(mem, pfn)
    assert (out.rc, out.folio, out.moved_to) == (0, folio, int(mem.pfn(folio)[0]))
    assert out.moved_to != pfn
    assert (mem.contents[mem.index([out.moved_to])[0]] == 7).all()
    assert mem.state.folios["mms"][folio] == 0b100100
    assert (state_of(mem, pfn), mem.pfn(out.vacated).tolist()) == (Kind.HWPOISON, [pfn])
    assert mem.vmstat()["pgmigrate_success"] == 1
    assert mm.access_page(mem, folio).signal is None
    mem.check()
    mm.free_pages(mem, [folio, out.vacated])
    mem.check()
    rest = mm.alloc_pages(mem, 0, mem.pfns.n_pages)
    assert pfn not in mem.pfn(rest[rest >= 0])


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
def test_soft_offline_page__clean_unmapped_page_cache_is_dropped(kernel):
    for options, dropped in (
        ({"mapping": "file", "mapped_by": ()}, True),
        ({"mapping": "file"}, False),
        ({"mapping": "file", "mapped_by": (), "dirty": True}, False),
        ({"mapping": "anon", "mapped_by": ()}, False),
    ):
        mem = machine(kernel)
        folio, pfn = a_page(mem, **options)
        out = mm.soft_offline_page(mem, pfn)
        prefix = "soft_offline" if kernel == "6.1" else "Soft offline"
        assert out.log == ((f"{prefix}: {pfn:#x}: invalidated",) if dropped else ())
        assert (out.vacated == folio, out.folio == folio) == (dropped, not dropped)
        assert mm.access_page(mem, folio).reread == dropped
        mem.check()


def test_soft_offline_page__thps_are_split_for_one_page():
    mem = machine()
    folio, pfn = a_page(mem, 9, mapping="anon")
    out = mm.soft_offline_page(mem, pfn)
    assert (out.rc, out.parts.size, out.folio, int(out.parts[0])) == (0, 512, folio, folio)
    moved = mem.pfn(out.parts)
    assert moved.tolist() == [out.moved_to, *range(pfn + 1, pfn + 512)]
    assert mem.vmstat()["thp_split_page"] == 1
    pinned = a_page(mem, 9, mapping="anon", pins=1)[1]
    assert mm.soft_offline_page(mem, pinned + 5).log == (f"Soft offline: {pinned + 5:#x}: thp split failed",)
    mem.check()


def test_soft_offline_page__huge_pages():
    """One of the pool is dissolved; one in use moves whole, and what it leaves is dissolved."""
    mem = machine("7.3", "32MiB")
    free, used = mm.alloc_hugetlb(mem, 2).tolist()
    mm.set_folio(mem, used, mapped_by=0)
    pool, mine = mem.pfn([free, used]).tolist()
    n_free = int(mem.state.zones["free_pages"].sum())
    assert mm.soft_offline_page(mem, pool + 3).rc == 0
    refused(mem, "not live", mm.free_pages, free)
    out = mm.soft_offline_page(mem, mine + 3)
    assert (out.rc, out.folio, out.moved_to) == (0, used, int(mem.pfn(used)[0]) + 3)
    assert int(mem.state.zones["free_pages"].sum()) == n_free + 511 - 1
    assert mm.kpageflags(mem, [pool + 3, mine + 3]).tolist() == [1 << 19, 1 << 19]
    assert mm.hardware_corrupted_kib(mem) == 8
    mem.check()


def test_soft_offline_page__what_cannot_be_handled():
    mem = machine()
    kernel = mm.alloc_pages(mem, 0, 1, "unmovable")
    isolated, _ = a_page(mem, isolated=True)
    for folio in (kernel, isolated):
        pfn = int(mem.pfn(folio)[0])
        out = mm.soft_offline_page(mem, pfn)
        assert (out.rc, out.log) == (-5, (f"Memory failure: {pfn:#x}: unhandlable page.",))
    assert mm.hardware_corrupted_kib(mem) == 0
    mem.check()


def test_soft_offline_page__switched_off():
    mem = machine()
    mm.set_memory_failure(mem, enable_soft_offline=False)
    outs = [mm.soft_offline_page(mem, 1000) for _ in range(2)]
    assert [out.rc for out in outs] == [-95, -95]
    assert [out.log for out in outs] == [("Soft offline: disabled by /proc/sys/vm/enable_soft_offline",), ()]


def test_soft_offline_page__nowhere_to_go():
    mem = machine(size="1MiB")
    folios = mm.alloc_pages(mem, 0, 256)
    pfn = int(mem.pfn(folios)[9])
    out = mm.soft_offline_page(mem, pfn)
    assert out.rc == -12
    assert out.log[0].startswith(f"Soft offline: {pfn:#x}: page migration failed -12, type 0x")
    assert not (mem.state.pages["pg_flags"] & PageFlag.HWPOISON).any()
    mem.check()


def test_soft_offline_page__an_error_on_the_way():
    """The copy meets a latent error: the page stays, and memory_failure() will come for it."""
    mem = machine(contents=True)
    folio, pfn = a_page(mem)
    mm.inject_poison(mem, pfn=pfn)
    out = mm.soft_offline_page(mem, pfn)
    assert (out.rc, out.folio, int(mem.pfn(folio)[0])) == (-16, folio, pfn)
    work = mm.run_memory_failure_work(mem)
    assert set(work.pfn.tolist()) == {pfn}
    assert work.outcomes[0].page_type == "dirty LRU page"
    mem.check()


def test_format_page_flags__as_the_kernels_print_them():
    """Words of the recorded messages, but for bits that only the recorded pages have."""
    for kernel, layout, word in (
        ("6.1", None, "0xfffffc00a000c(uptodate|dirty|mappedtodisk|swapbacked|node=0|zone=1|lastcpupid=0x1fffff)"),
        (
            "6.12.117",
            FlagsLayout(node_bits=3, zone_bits=2, cpupid_bits=11),
            "0xfff000000020818(uptodate|dirty|owner_2|swapbacked|node=0|zone=1|lastcpupid=0x7ff)",
        ),
        ("7.3", None, "0xfffffc0020818(uptodate|dirty|owner_2|swapbacked|node=0|zone=1|lastcpupid=0x1fffff)"),
    ):
        mem = machine(kernel, "32MiB")
        folio = int(mm.alloc_pages(mem)[0])
        mm.set_folio(mem, folio, mapping="anon", dirty=True, isolated=True)
        pfn = int(mem.pfn(folio)[0])
        assert mem.zone_name(int(mem.state.pages["zone"][mem.index([pfn])[0]])) == "DMA32"
        assert format_page_flags(mem, pfn, layout) == word


def test_kpageflags__by_kind_of_page():
    mem = machine()
    _, base = a_page(mem, 9, mapping="anon", mapped_by=1)
    huge = int(mem.pfn(mm.alloc_hugetlb(mem, 1))[0])
    slab = int(mem.pfn(mm.alloc_pages(mem, 1, 1, "unmovable"))[0])
    mm.set_folio(mem, mm.alloc_pages(mem, 1, 1, "unmovable"), mapping="slab")
    words = mm.kpageflags(mem, [[base, base + 1], [huge, huge + 1], [slab, slab + 1]])
    assert mm.kpageflags(mem, slab + 2) == 1 << 15 | 1 << 7
    shared = 1 << 3 | 1 << 5 | 1 << 11 | 1 << 12 | 1 << 14 | 1 << 21 | 1 << 22 | 1 << 34
    assert words[0].tolist() == [shared | 1 << 15, shared | 1 << 16]
    assert words[1].tolist() == [1 << 15 | 1 << 17 | 1 << 3, 1 << 16 | 1 << 17 | 1 << 3]
    assert words[2].tolist() == [1 << 15, 1 << 16]
    old = machine("6.1")
    _, base = a_page(old, 9, mapping="anon", mapped_by=1)
    assert mm.kpageflags(old, base + 1) == 1 << 11 | 1 << 12 | 1 << 16 | 1 << 22
    with pytest.raises(mm.InputError, match="outside memory"):
        mm.kpageflags(mem, np.array([1 << 40]))
