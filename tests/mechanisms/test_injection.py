"""Injected errors and their repeal: madvise(), the files of debugfs and sysfs, and what is refused."""

import pytest

import memmodel as mm
from memmodel.mechanisms.page_access import truncate_page
from memmodel.state.layout import Kind
from tests.mechanisms.pages import a_page, machine
from tests.reference import views
from tests.reference.views import refused

SIMULATED = int(mm.MfFlag.SW_SIMULATED)
CALLER = mm.Task("victim", 80, 0, 0x7F0000001000)


# -- madvise() ---------------------------------------------------------------------------------------------------------


def test_madvise__page_by_page_and_whole_folios():
    mem = machine()
    _, thp = a_page(mem, 9, mapping="anon")
    _, single = a_page(mem)
    done = mm.madvise(mem, [*range(thp + 3, thp + 6), single], "MADV_SOFT_OFFLINE", CALLER)
    assert (done.rc, [out.pfn for out in done.outcomes]) == (0, [thp + 3, single])
    assert done.log == (
        f"Soft offlining pfn {thp + 3:#x} at process virtual address 0x7f0000001000",
        f"Soft offlining pfn {single:#x} at process virtual address 0x7f0000004000",
    )


def test_madvise__the_first_error_ends_it():
    mem = machine("7.3")
    (first, _), (second, pinned), (third, _) = a_page(mem), a_page(mem, mapping="ramfs", dirty=True), a_page(mem)
    pfns = mem.pfn([first, second, third]).tolist()
    done = mm.madvise(mem, pfns, "MADV_HWPOISON", CALLER)
    assert (done.rc, [out.pfn for out in done.outcomes]) == (-16, pfns[:2])
    assert (done.signal.si_code, done.signal.task) == (4, CALLER)
    assert done.outcomes[1].pfn == pinned


def test_madvise__6_1_does_not_act_as_if_the_caller_had_touched_it():
    for kernel, code in (("6.1", None), ("6.12.117", 4)):
        mem = machine(kernel)
        signal = mm.madvise(mem, a_page(mem)[1], "MADV_HWPOISON", CALLER).signal
        assert (signal and signal.si_code) == code


def test_madvise__refused():
    mem = machine()
    refused(mem, "pfn 900 is in no page table", mm.madvise, 900, "MADV_HWPOISON", CALLER)
    refused(mem, "unknown advice 'MADV_FREE'; one of: MADV_HWPOISON", mm.madvise, 0, "MADV_FREE", CALLER)
    refused(mem, "pfn 1099511627776 is in no page table", mm.madvise, 1 << 40, "MADV_HWPOISON", CALLER)


# -- files -------------------------------------------------------------------------------------------------------------


def test_hard_offline_page__is_an_error_of_the_hardware():
    mem = machine()
    done = mm.hard_offline_page(mem, 900 * 4096 + 77)
    assert (done.rc, done.outcomes[0].pfn, done.outcomes[0].page_type) == (0, 900, "free buddy page")
    again = mm.unpoison_memory(mem, 900)
    assert (again.rc, again.log) == (-95, ("Unpoison: 0x384: disabled after HW memory failure",))
    refused(mem, "address -1", mm.hard_offline_page, -1)


def test_hard_offline_page__outside_memory_ends_unpoisoning_too():
    mem = machine("6.1")
    assert mm.corrupt_pfn(mem, 900).rc == 0
    assert mm.hard_offline_page(mem, 1 << 60).rc == -6
    assert mm.unpoison_memory(mem, 900).log == ("Unpoison: Disabled after HW memory failure 0x384",)


def test_corrupt_pfn__no_such_memory():
    done = mm.corrupt_pfn(machine(), 1 << 40)
    assert (done.rc, done.log, done.outcomes) == (-6, (), ())


def test_run_memory_failure_work__an_error_that_a_copy_met_ends_unpoisoning():
    mem = machine(contents=True)
    (src, pfn), (dst, _) = a_page(mem), a_page(mem)
    mm.corrupt_pfn(mem, 900)
    mm.inject_poison(mem, pfn=pfn)
    mm.folio_mc_copy(mem, dst, src)
    mm.run_memory_failure_work(mem)
    assert mm.unpoison_memory(mem, 900).rc == -95


# -- unpoison ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
def test_unpoison_memory__back_where_it_was(kernel):
    mem = machine(kernel)
    before = views.free_lists(mem)
    for pfn in (900, 901, 4000, 17):
        mm.corrupt_pfn(mem, pfn)
    for pfn in (901, 900, 17, 4000):
        assert mm.unpoison_memory(mem, pfn).rc == 0
        mem.check()
    assert {key: sorted(pfns) for key, pfns in views.free_lists(mem).items()} == {
        key: sorted(pfns) for key, pfns in before.items()
    }
    old, new = "Unpoison: Page was already unpoisoned 0x11", "Unpoison: 0x11: page was already unpoisoned"
    assert mm.unpoison_memory(mem, 17).log == (old if kernel == "6.1" else new,)
    assert mm.unpoison_memory(mem, 1 << 40).rc == (-5 if kernel == "6.1" else -6)
    assert mm.memory_failure_stats(mem)[0]["total"] == 4  # events are not taken back


def test_unpoison_memory__a_page_taken_from_its_owner_is_freed():
    mem = machine()
    folio, pfn = a_page(mem)
    mm.corrupt_pfn(mem, pfn)
    assert mm.unpoison_memory(mem, pfn).rc == 0
    assert mm.kpageflags(mem, pfn) == 1 << 10
    refused(mem, "not live", mm.free_pages, folio)
    mem.check()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"pins": 1}, "someone grabs the hwpoison page"),
        ({"mapping": "shmem"}, "someone grabs the hwpoison page"),
        ({"mapping": "slab"}, None),
        ({"mapping": "page_table"}, None),
        ({"isolated": True}, "someone grabs the hwpoison page"),
    ],
)
def test_unpoison_memory__refused_by_the_kernel(options, line):
    mem = machine()
    _, pfn = a_page(mem, **options)
    mm.corrupt_pfn(mem, pfn)
    done = mm.unpoison_memory(mem, pfn)
    assert (done.rc, done.log) == (-16, () if line is None else (f"Unpoison: {pfn:#x}: {line}",))
    assert mm.hardware_corrupted_kib(mem) == 4
    mem.check()


@pytest.mark.parametrize(
    ("options", "line"),
    [({}, "someone maps the hwpoison page"), ({"mapping": "file", "mapped_by": ()}, "the hwpoison page has non-NULL")],
)
def test_unpoison_memory__of_pages_that_were_isolated_and_are_no_more(options, line):
    mem = machine()
    folio, pfn = a_page(mem, **options)
    mm.set_folio(mem, folio, isolated=True)
    assert mm.corrupt_pfn(mem, pfn).outcomes[0].result == "Ignored"
    mm.set_folio(mem, folio, isolated=False)
    assert mm.unpoison_memory(mem, pfn).log[0].startswith(f"Unpoison: {pfn:#x}: {line}")
    mem.check()


def test_unpoison_memory__a_page_that_its_owner_freed_stays_away():
    """The free path leaked it, as nobody but the error held it; unpoisoning does not bring it back."""
    mem = machine()
    folio = mm.alloc_pages(mem, 0, 1, "unmovable")
    pfn = int(mem.pfn(folio)[0])
    mm.corrupt_pfn(mem, pfn)
    mm.free_pages(mem, folio)
    assert mm.unpoison_memory(mem, pfn).rc == 0
    assert mem.state.pages["state"][mem.index([pfn])[0]] >> 4 == Kind.USED
    mem.check()
    rest = mm.alloc_pages(mem, 0, mem.pfns.n_pages)
    assert pfn not in mem.pfn(rest[rest >= 0])


# -- what comes later --------------------------------------------------------------------------------------------------


def test_access_page__files_that_look_at_the_error_tell_of_it_once():
    mem = machine()
    folio, pfn = a_page(mem, mapping="block_device", dirty=True)
    assert mm.corrupt_pfn(mem, pfn).rc == -16
    assert [mm.access_page(mem, folio, "fsync").errno for _ in range(2)] == [5, 0]
    assert not mm.kpageflags(mem, pfn) >> 4 & 1  # written out
    assert mm.access_page(mem, folio, "pread").errno == 0
    assert mm.access_page(mem, folio, "load", CALLER).log == (
        "MCE: Killing victim:80 due to hardware memory corruption fault at 7f0000001000",
    )
    assert mm.access_page(mem, folio).signal.lsb == 12
    refused(mem, "unknown access 'mmap'; one of: load, pread, fsync", mm.access_page, folio, "mmap")


def test_truncate_page__frees_good_pages_and_keeps_bad_ones():
    mem = machine()
    (good, _), (bad, pfn), (private, _) = a_page(mem, mapping="file"), a_page(mem, mapping="shmem"), a_page(mem)
    mm.corrupt_pfn(mem, pfn)
    truncate_page(mem, good)
    refused(mem, "not live", mm.free_pages, good)
    truncate_page(mem, bad)
    assert mem.state.pages["state"][mem.index([pfn])[0]] >> 4 == Kind.HWPOISON
    assert mm.unpoison_memory(mem, pfn).rc == 0
    refused(mem, "is no single page of page cache", truncate_page, private)
    mem.check()
