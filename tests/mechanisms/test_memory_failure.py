"""memory_failure() where no recording goes: repetition, settings, who is told, what the machine keeps of it."""

import pickle

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.state.layout import Kind, PageFlag
from tests.mechanisms.pages import a_page, machine, state_of
from tests.reference import views
from tests.reference.views import refused

SIMULATED, REQUIRED = int(mm.MfFlag.SW_SIMULATED), int(mm.MfFlag.SW_SIMULATED | mm.MfFlag.ACTION_REQUIRED)
HELD = int(mm.MfFlag.SW_SIMULATED | mm.MfFlag.COUNT_INCREASED)
ANON, THP = 1 << 12, 1 << 22


def task(number=0, **options):
    return mm.Task(f"task{number}", 100 + number, number, **{"address": 0x7F0000001000, **options})


# -- again -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
def test_memory_failure__twice_counts_once(kernel):
    mem = machine(kernel)
    for pfn in (700, a_page(mem)[1], int(mem.pfn(mm.alloc_pages(mem, migratetype="unmovable"))[0])):
        first, second = (mm.memory_failure(mem, pfn, flags=SIMULATED) for _ in range(2))
        assert (first.counted, second.counted, second.rc, second.result) == (True, False, -133, "Failed")
        old = f"Memory failure: {pfn:#x}: already hardware poisoned"
        new = f"Memory failure: {pfn:#x}: recovery action for already poisoned page: Failed"
        assert second.log == ((old,) if kernel == "6.1" else (new,))
        event = f"memory_failure_event: pfn {pfn:#x}: recovery action for already poisoned: Failed"
        assert second.event == (None if kernel == "6.1" else event)
    assert mm.hardware_corrupted_kib(mem) == 12
    assert mm.memory_failure_stats(mem)[0]["total"] == 3
    mem.check()


def test_memory_failure__met_again_by_a_task():
    """kill_accessing_process(): told where it still has the page or an entry for it, not where it was dropped."""
    mem = machine()
    _, taken = a_page(mem)
    _, dropped = a_page(mem, mapping="file")
    for pfn in (taken, dropped):
        mm.memory_failure(mem, pfn, flags=SIMULATED)
    again = mm.memory_failure(mem, taken, flags=REQUIRED, current=task())
    assert (again.rc, [(s.si_code, s.lsb, s.task.pid) for s in again.signals]) == (-133, [(4, 12, 100)])
    assert again.log[0].endswith("Sending SIGBUS to task0:100 due to hardware memory corruption")
    assert mm.memory_failure(mem, taken, flags=REQUIRED, current=task(1)).rc == 0
    assert mm.memory_failure(mem, taken, flags=REQUIRED).rc == -14
    assert mm.memory_failure(mem, taken, flags=REQUIRED, current=task(address=None)).signals == ()
    assert mm.memory_failure(mem, dropped, flags=REQUIRED, current=task()).rc == 0


@pytest.mark.parametrize(("kernel", "counted", "line"), [("6.1", False, "already h"), ("7.3", True, "recovery action")])
def test_memory_failure__another_page_of_a_pinned_huge_page(kernel, counted, line):
    """A hugetlb folio that could not be dissolved has a list of bad pages; 6.1 counts a second one and says nothing."""
    mem = machine(kernel)
    folio = int(mm.alloc_hugetlb(mem, 1)[0])
    mm.set_folio(mem, folio, mapped_by=0, pins=1)
    pfn = int(mem.pfn(folio)[0])
    out = [mm.memory_failure(mem, pfn + place, flags=SIMULATED) for place in (5, 5, 7)]
    assert [(o.rc, o.result) for o in out] == [(-16, "Failed"), (-133, "Failed"), (-133, "Failed")]
    assert [o.counted for o in out] == [True, False, counted]
    assert out[2].log[-1].startswith(f"Memory failure: {pfn + 7:#x}: {line}")
    assert mm.hardware_corrupted_kib(mem) == 8
    assert mm.kpageflags(mem, pfn) >> 19 & 1
    mem.check()
    assert mm.unpoison_memory(mem, pfn + 5).rc == -16  # only the first page shows it
    mm.set_folio(mem, folio, pins=0)
    assert mm.unpoison_memory(mem, pfn).rc == 0
    assert mm.hardware_corrupted_kib(mem) == 0
    mem.check()


# -- who is told -------------------------------------------------------------------------------------------------------


def test_memory_failure__early_kill_is_the_machines_or_the_tasks():
    tasks = [task(0), task(1, early_kill=True), task(2, early_kill=False), task(3)]
    for early, told in ((False, [101]), (True, [100, 101])):
        mem = machine()
        mm.set_memory_failure(mem, early_kill=early)
        _, pfn = a_page(mem, mapped_by=(0, 1, 2))
        out = mm.memory_failure(mem, pfn, flags=SIMULATED, tasks=tasks)
        assert [(s.task.pid, s.number, s.si_code) for s in out.signals] == [(pid, 7, 5) for pid in told]


def test_memory_failure__the_current_task_meets_it_the_others_hear_of_it():
    mem = machine()
    tasks = [task(0), task(1, early_kill=True), task(2)]
    _, pfn = a_page(mem, mapped_by=(0, 1, 2))
    out = mm.memory_failure(mem, pfn, flags=REQUIRED, tasks=tasks, current=tasks[0])
    assert [(s.task.pid, s.si_code) for s in out.signals] == [(100, 4), (101, 5)]


def test_memory_failure__a_task_whose_address_is_not_known_is_killed():
    mem = machine()
    _, pfn = a_page(mem)
    out = mm.memory_failure(mem, pfn, flags=SIMULATED, tasks=[task(0, address=None, early_kill=True)])
    assert [(s.number, s.si_code) for s in out.signals] == [(9, 0)]
    assert out.log[0].endswith("forcibly killing task0:100 because of failure to unmap corrupted page")


def test_memory_failure__clean_pages_kill_nobody():
    mem = machine()
    _, pfn = a_page(mem, mapping="file")
    out = mm.memory_failure(mem, pfn, flags=REQUIRED, tasks=[task(early_kill=True)], current=task(early_kill=True))
    assert (out.signals, out.page_type, out.result) == ((), "clean LRU page", "Recovered")
    assert mm.access_page(mem, out.folio, "load", task()).reread


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117"])
def test_memory_failure__a_pinned_thp_stays_whole(kernel):
    mem = machine(kernel)
    folio, pfn = a_page(mem, 9, mapping="anon", pins=1)
    out = mm.memory_failure(mem, pfn + 77, flags=REQUIRED, tasks=[task()], current=task())
    if kernel == "6.1":
        assert (out.rc, out.result, out.signals) == (-16, "Ignored", ())
    else:
        assert (out.rc, out.result, [(s.si_code, s.lsb) for s in out.signals]) == (-133, "Failed", [(4, 21)])
    assert (out.folio, out.parts.size, mem.vmstat()["thp_split_page_failed"]) == (folio, 0, 1)
    assert mm.access_page(mem, folio).signal is None  # still mapped
    mem.check()


# -- splits ------------------------------------------------------------------------------------------------------------


def test_memory_failure__a_thp_is_split_into_folios_of_their_own():
    mem = machine()
    folio, pfn = a_page(mem, 9, mapping="anon", mapped_by=3, dirty=True, pte_dirty=False)
    out = mm.memory_failure(mem, pfn + 77, flags=SIMULATED)
    assert (out.parts.size, int(out.parts[0]), int(out.parts[77])) == (512, folio, out.folio)
    assert mem.pfn(out.parts).tolist() == list(range(pfn, pfn + 512))
    assert mem.vmstat()["thp_split_page"] == 1
    words = mm.kpageflags(mem, np.arange(pfn, pfn + 512))
    assert len(set(words[np.arange(512) != 77].tolist())) == 1
    assert not words[0] & THP
    assert words[77] & ANON
    mm.free_pages(mem, out.parts)
    mem.check()
    assert int(mem.state.zones["free_pages"].sum()) == mem.pfns.n_pages - 1


def test_memory_failure__a_least_order_stops_the_split():
    for kernel, parts, order in (("7.3", 4, 2), ("6.12.117", 0, 4)):
        mem = machine(kernel)
        _, pfn = a_page(mem, 4, mapping="file", min_order=2)
        out = mm.memory_failure(mem, pfn + 9, flags=REQUIRED, tasks=[task()], current=task())
        assert (out.page_type, out.rc, out.parts.size) == ("unsplit thp", -133, parts)
        assert out.signals[0].lsb == 12 + order
        assert mm.soft_offline_page(mem, pfn).log == (f"Soft offline: {pfn:#x}: thp split failed",)
        mem.check()


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "parts"), [("6.1", 512), ("6.12.117", 0), ("7.3", 0)])
def test_set_memory_failure__the_filter_lets_pages_go(kernel, parts):
    """Since 6.12 it is asked before a THP is split."""
    mem = machine(kernel)
    _, pfn = a_page(mem, 9)
    mm.set_memory_failure(mem, filter_flags=(1 << 7, 1 << 7))  # slab pages alone
    out = mm.memory_failure(mem, pfn + 3, flags=SIMULATED)
    assert (out.rc, out.page_type, out.result, out.log, out.counted) == (-95, "", "", (), False)
    assert out.parts.size == parts
    assert mm.corrupt_pfn(mem, pfn).rc == 0
    assert mm.madvise(mem, pfn, "MADV_HWPOISON", task()).rc == 0
    assert mm.soft_offline_page(mem, pfn).rc == -95
    huge = int(mem.pfn(mm.alloc_hugetlb(mem, 1))[0])
    assert mm.memory_failure(mem, huge + 1, flags=SIMULATED).rc == -95
    assert mm.hardware_corrupted_kib(mem) == 0
    mem.check()
    mm.set_memory_failure(mem, filter_flags=(0, 0))
    assert mm.memory_failure(mem, pfn + 3, flags=SIMULATED).rc == 0


def test_set_memory_failure__without_recovery_the_machine_stops():
    mem = machine()
    mm.set_memory_failure(mem, recovery=False)
    before = views.frozen(mem)
    for pfn in (5, 1 << 30):
        out = mm.memory_failure(mem, pfn)
        assert (out.panic, out.log) == (True, (f"Kernel panic - not syncing: Memory failure on page {pfn:x}",))
    assert views.frozen(mem) == before


def test_set_memory_failure__panic_for_the_kernels_own_pages():
    mem = machine("7.3")
    slab, other = mm.alloc_pages(mem, 0, 2, "unmovable")
    mm.set_folio(mem, slab, mapping="slab")
    mm.set_memory_failure(mem, panic_on_unrecoverable=True)
    assert [mm.memory_failure(mem, int(mem.pfn(f)[0])).panic for f in (slab, other)] == [True, False]


def test_set_memory_failure__refused():
    mem, old = machine("7.3"), machine("6.1")
    refused(mem, "unknown setting 'late_kill'; one of: recovery, early_kill", mm.set_memory_failure, late_kill=True)
    refused(old, "kernel 6.1 has no vm setting for enable_s", mm.set_memory_failure, enable_soft_offline=True)
    refused(old, "kernel 6.1 has no vm setting for panic", mm.set_memory_failure, panic_on_unrecoverable=True)
    refused(mem, "filter word -1", mm.set_memory_failure, filter_flags=(-1, 0), early_kill=True)
    refused(mem, "pfn 5 is no reserved page", mm.set_memory_failure, zero_page=5)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pfn": -1}, "pfn -1"),
        ({"pfn": 1.5}, "pfn 1.5"),
        ({"pfn": 5, "flags": 256}, "flags 256; MfFlag values, together at most 0xff"),
        ({"pfn": 5, "flags": True}, "flags True"),
        ({"pfn": 5, "cpu": 9}, "cpu 9"),
        ({"pfn": 5, "tasks": [1]}, "task 1; a Task(comm, pid, mm, address) is possible"),
        ({"pfn": 5, "tasks": 3}, "tasks 3; a sequence of Task"),
        ({"pfn": 5, "current": "init"}, "task 'init'"),
        ({"pfn": 5, "flags": HELD}, "pfn 5: COUNT_INCREASED goes with a page that somebody can hold"),
    ],
)
def test_memory_failure__refused(options, message):
    refused(machine(), message, mm.memory_failure, **options)


def test_memory_failure__pages_of_which_nothing_is_known(small_geometry):
    mem = views.plain_memory(small_geometry, "1MiB", seed=0)
    mem.state.pages["state"][16:32] = Kind.UNKNOWN << 4
    refused(mem, "pfn 17: no source says what this page is", mm.memory_failure, 17)
    refused(mem, "pfn 17: no source says what this page is", mm.soft_offline_page, 17)
    mem.state.pages["state"][16:32] = Kind.HOLE << 4
    out = mm.memory_failure(mem, 17, flags=SIMULATED)
    assert (out.rc, out.log) == (-6, ("Memory failure: 0x11: memory outside kernel control",))
    assert mm.soft_offline_page(mem, 17).rc == -5
    assert mm.soft_offline_page(mem, 1 << 40).rc == -6


# -- the machine's state -----------------------------------------------------------------------------------------------


def test_memory_failure__per_cpu_lists_are_drained_first():
    mem = mm.PhysicalMemory(Geometry(), "64MiB", cpus=2, seed=0)
    folios = mm.alloc_pages(mem, count=8, cpu=1)
    pfn = int(mem.pfn(folios)[3])
    mm.free_pages(mem, folios, cpu=1)
    assert state_of(mem, pfn) == Kind.PCP
    assert mm.memory_failure(mem, pfn, cpu=0).page_type == "free buddy page"
    zone = mem.state.pages["zone"][mem.index([pfn])[0]]
    assert mem.state.pcp["count"].reshape(-1, 2)[zone].tolist() == [0, 0]
    mem.check()


def test_memory_failure__free_huge_pages_lose_one_page():
    mem = machine()
    folio = int(mm.alloc_hugetlb(mem, 1)[0])
    pfn, free = int(mem.pfn(folio)[0]), int(mem.state.zones["free_pages"].sum())
    out = mm.memory_failure(mem, pfn + 100)
    assert (out.page_type, out.result, out.folio) == ("free huge page", "Recovered", -1)
    assert int(mem.state.zones["free_pages"].sum()) == free + 511
    refused(mem, "not live", mm.free_pages, folio)
    mem.check()


def test_memory_failure__kept_in_copies_and_files(tmp_path):
    mem = machine(cpus=2)
    mm.set_memory_failure(mem, early_kill=True, filter_flags=(1 << 7, 0))
    _, pfn = a_page(mem, mapping="shmem", mapped_by=(0, 2))
    mm.memory_failure(mem, pfn)
    mm.memory_failure(mem, 900)
    mm.memory_failure_queue(mem, 901, flags=int(mm.MfFlag.SOFT_OFFLINE), cpu=1)
    mem.save(tmp_path / "state.npz")
    for other in (mem.copy(), pickle.loads(pickle.dumps(mem)), mm.load(tmp_path / "state.npz")):
        assert other.digest == mem.digest
        assert mm.hardware_corrupted_kib(other) == 8
        assert mm.unpoison_memory(other, 900).rc == -95
        assert [o.rc for o in mm.run_memory_failure_work(other, 1).outcomes] == [0]
        assert other.digest != mem.digest
        other.restore(mem)
        assert views.frozen(other) == views.frozen(mem)


def test_run_memory_failure_work__offlines_where_the_entry_says_so():
    mem = machine()
    folio, pfn = a_page(mem)
    assert mm.memory_failure_queue(mem, pfn, flags=int(mm.MfFlag.SOFT_OFFLINE))
    assert mm.memory_failure_queue(mem, 500)
    work = mm.run_memory_failure_work(mem, tasks=[task()])
    assert work.pfn.tolist() == [pfn, 500]
    assert work.taken_off_buddy.tolist() == [False, True]
    assert work.outcomes[0].moved_to == mem.pfn(folio)[0]
    assert [mm.memory_failure_queue(mem, 600 + n) for n in range(17)] == [True] * 16 + [False]


def test_memory_failure__pages_of_a_snapshot(data):
    """Folios that nobody has a handle of get one; the flags of kpageflags say what they are."""
    mem = mm.PhysicalMemory.from_snapshot(mm.read_snapshot(data / "snap_612_x86"))
    flags, kinds = (mem.state.pages[name][: mem.pfns.n_pages] for name in ("pg_flags", "state"))
    used, anon = kinds == Kind.USED << 4, PageFlag.LRU | PageFlag.ANON
    for wanted, page_type in (
        (used & (flags == anon), "dirty LRU page"),
        (used & (flags == PageFlag.LRU), "clean LRU page"),
        (used & (flags == PageFlag.SLAB), "get hwpoison page"),
        (used & (flags == PageFlag.TABLE), "get hwpoison page"),
        (kinds == Kind.RESERVED << 4, "get hwpoison page"),
    ):
        pfn = int(mem.pfns.pfn([np.flatnonzero(wanted)[0]])[0])
        assert mm.memory_failure(mem, pfn, flags=SIMULATED).page_type == page_type
        mem.check()
    assert mm.hardware_corrupted_kib(mem) == 20


@pytest.fixture
def data(request):
    return request.config.rootpath / "tests" / "data"
