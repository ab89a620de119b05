"""39 memory failures and soft offlines as three kernels were seen to handle them, each set up in the model.

Compared: return value, signals, second access, frames that moved, HardwareCorrupted, kpageflags, the log. What the
guest's program did is in the tables below. Hidden inputs, which no case can tell, stand beside them.
"""

import functools
import os
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.kernels import lru
from memmodel.mechanisms.page_access import truncate_page
from memmodel.mechanisms.page_flags import FlagsLayout
from memmodel.state.build import size_memory
from memmodel.state.sizing import Sysctls
from tests.reference import views
from tests.reference.buddy import Zone
from tests.reference.recorded_failures import KERNELS, NOT_COMPARED, Case, read_cases, read_recordings, read_trace

CASES = read_cases()
ADVICE = {"hwpoison": "MADV_HWPOISON", "soft_offline": "MADV_SOFT_OFFLINE"}
TWO = {"mapping": "anon", "mapped_by": (0, 1), "owner_2": False}
PAGES = {
    "anon": {"mapping": "anon"},
    "anon_mlocked": {"mapping": "anon", "mlocked": True},
    "thp_head": {"mapping": "anon"},
    "thp_tail": {"mapping": "anon"},
    "thp_two_processes": TWO,
    "anon_two_processes": TWO,
    "anon_two_processes_early_kill": TWO,
    "pinned_anon": {"mapping": "anon", "pins": 1},
    "shmem": {"mapping": "shmem"},
    "tmpfs_file": {"mapping": "shmem"},
    "ramfs_file": {"mapping": "ramfs", "pte_dirty": True},
    "blockdev_clean": {"mapping": "block_device"},
    "blockdev_dirty": {"mapping": "block_device", "pte_dirty": True},
    "anon_again": {"mapping": "anon"},
    "slab": {"mapping": "slab"},
    "page_table": {"mapping": "page_table"},
    "anon_of_init_late_kill": {"mapping": "anon"},
}
LARGE = ("thp", "hugetlb")
GONE_WITH_THE_PROCESS = ("shmem", "blockdev_clean", "blockdev_dirty")  # their files are

# CONFIG_BUFFER_HEAD is off in the kernel of R4-612gt: block devices go by iomap.
NO_BUFFER_HEADS = ("R4-612gt",)
# Where a page just touched, or put back, waits in a CPU's batch; 7.3 does not drain it when the process exits.
IN_BATCH, NOT_DRAINED_AT_EXIT = ("R4-612gt", "R4-73"), ("R4-73",)
# page->flags of a page that GUP has looked at; 7.3 has the multi-generational LRU, where a fault makes pages active.
REFERENCED, ACTIVE = ("R4-61", "R4-612gt", "R4-73"), ("R4-73",)
LAYOUTS = {"R4-612gt": FlagsLayout(node_bits=3, zone_bits=2, cpupid_bits=11)}  # its .config


def machine(case):
    """A small machine around the page, with the page as the guest had it; and its folio, or -1."""
    n_pages = 2048 if case.page.startswith(LARGE) else 128
    start = 0 if case.page == "beyond_memory" else case.pfn // n_pages * n_pages
    end = start + n_pages
    reserved = case.page in ("zero_page", "reserved")
    ranges = [(start, case.pfn), (case.pfn + 1, end)] if reserved else [(start, end)]
    zone = Zone(0, "DMA32", start, end, [(a, b) for a, b in ranges if a < b])
    mem = views.machine(Geometry(kernel=KERNELS[case.recording]), [zone])
    if reserved:
        mm.set_memory_failure(mem, **({"zero_page": case.pfn} if case.page == "zero_page" else {}))
        return mem, -1
    if case.page.startswith("free_buddy") or case.page == "beyond_memory":
        return mem, -1
    folio = folio_at(mem, case, n_pages)
    mem.state = size_memory(mem.state, mem.geometry, Sysctls(min_free_kbytes=0))  # with per-CPU lists from here on
    views.without_marks(mem)
    if case.page == "anon_of_init_late_kill" and case.recording in IN_BATCH:
        mm.set_folio(mem, folio, isolated=True)
        row = np.uint64(mem.index([case.pfn])[0])
        lru.put_back_lru(mem.state, np.uint64(0), row, row + np.uint64(1))
    return mem, folio


def folio_at(mem, case, n_pages):
    """The folio that holds the case's page; all others are free again."""
    order = 9 if case.page.startswith(LARGE) else 0
    if case.page == "hugetlb":
        folios = mm.alloc_hugetlb(mem, n_pages >> order)
    else:
        folios = mm.alloc_pages(mem, order, n_pages >> order)
    here = mem.pfn(folios) >> order == case.pfn >> order
    mm.free_pages(mem, folios[~here])
    folio = int(folios[here][0])
    options = dict(PAGES.get(case.page, {"mapping": "anon", "mapped_by": 0}))
    if options["mapping"] == "block_device" and case.recording in NO_BUFFER_HEADS:
        options["mapping"] = "block_device_iomap"
    if case.page == "pinned_anon":
        options |= {"referenced": case.recording in REFERENCED, "active": case.recording in ACTIVE}
    mm.set_folio(mem, folio, **options)
    return folio


def flags(mem, pfn):
    return int(mm.kpageflags(mem, pfn)) & ~NOT_COMPARED


def play_madvise(case, mem, folio):
    """What the guest's program does: madvise(), a touch, the other process's touch, pread() and fsync(), exit."""
    caller = mm.Task("victim", case.pid, 0, case.address)
    other = mm.Task("victim", case.other_pid, 1, case.address)
    tasks = [caller, other] if "two_processes" in case.page else [caller]
    if case.page == "zero_page" and case.how == "soft_offline":
        mm.madvise(mem, case.pfn, "MADV_HWPOISON", caller)  # hidden input: the hard case came before, on this frame
    if case.page.endswith("early_kill"):
        mm.set_memory_failure(mem, early_kill=True)
    kib, splits = mm.hardware_corrupted_kib(mem), mem.vmstat()["thp_split_page"]
    layout = LAYOUTS.get(case.recording)
    done = mm.madvise(mem, case.pfn, ADVICE[case.how], caller, tasks=tasks, layout=layout)
    signal, log = done.signal, [*done.log]
    sent = [*getattr(done.outcomes[0], "signals", ())]
    told = [each.task for each in sent]
    outcomes = [*done.outcomes]
    folio = done.outcomes[0].folio if folio >= 0 else -1
    touch = mm.access_page(mem, folio, "load", caller) if folio >= 0 else None
    got = {
        "rc": -1000 if signal else -1 if done.rc else 0,
        "errno": 0 if signal else -done.rc,
        "signal": signal.number if signal else 0,
        "si_code": signal.si_code if signal else 0,
        "lsb": signal.lsb if signal else 0,
        "second_signal": touch.signal.number if touch and touch.signal else 0,
        "second_si_code": touch.signal.si_code if touch and touch.signal else 0,
        "moved": int(bool(touch and touch.reread) or getattr(done.outcomes[0], "moved_to", -1) >= 0),
        "corrupted_kib": mm.hardware_corrupted_kib(mem) - kib,
        "n_splits": mem.vmstat()["thp_split_page"] - splits,
    }
    touches = [touch] if touch else []
    if len(tasks) == 2:
        end = mm.access_page(mem, folio, "load", other) if other not in told else None
        got["other_end"] = 2 if end is None else int(end.signal is not None)
        touches += [end] if end else []
    log += [line for each in touches for line in each.log]
    if case.page.endswith(("file", "clean", "dirty")):
        got |= {f"{how}_errno": mm.access_page(mem, folio, how).errno for how in ("pread", "fsync")}
    if case.page == "anon_again":
        again = mm.corrupt_pfn(mem, case.pfn)
        assert again.rc == -133
        log += again.log
        outcomes += again.outcomes
    leave(case, mem, folio)
    mem.check()
    got = case._replace(**got, flags_after=flags(mem, case.pfn), log=tuple(log))
    return got, outcomes, sent + [each.signal for each in touches if each.signal]


def leave(case, mem, folio):
    """The process exits: its files and memory go, pages that are poisoned stay."""
    if case.page == "pinned_anon" and case.how == "soft_offline":
        mm.set_folio(mem, folio, pins=0)
        if case.recording in NOT_DRAINED_AT_EXIT:
            mm.set_folio(mem, folio, mapped_by=())
        else:
            mm.free_pages(mem, folio)
    elif case.page in GONE_WITH_THE_PROCESS and case.how == "hwpoison":
        if not mm.access_page(mem, folio).reread:
            truncate_page(mem, folio)


def play_by_pfn(case, mem):
    """A write to corrupt-pfn or unpoison-pfn, after those of the cases before that were of the same frame."""
    inject = {"corrupt-pfn": mm.corrupt_pfn, "unpoison-pfn": mm.unpoison_memory}[case.how]
    if case.page == "free_buddy_again" or case.how == "unpoison-pfn":
        assert mm.corrupt_pfn(mem, case.pfn).rc == 0
    beyond = case.page == "beyond_memory"
    before, kib = case.flags_before if beyond else flags(mem, case.pfn), mm.hardware_corrupted_kib(mem)
    done = inject(mem, case.pfn)
    mem.check()
    got = case._replace(
        rc=-1 if done.rc else 0,
        errno=-done.rc,
        corrupted_kib=mm.hardware_corrupted_kib(mem) - kib,
        flags_before=before,
        flags_after=case.flags_after if beyond else flags(mem, case.pfn),
        log=done.log,
    )
    return got, done.outcomes, []


class Played(NamedTuple):
    got: Case
    outcomes: list  # of memory_failure() and soft_offline_page(), those before the case apart
    signals: list
    mem: mm.PhysicalMemory


@functools.cache
def play(case):
    mem, folio = machine(case)
    how = play_by_pfn(case, mem) if case.how.endswith("pfn") else play_madvise(case, mem, folio)
    return Played(*how, mem)


def compared(case):
    """Without the flags that are not asserted."""
    words = {name: getattr(case, name) for name in ("flags_before", "flags_after")}
    return case._replace(**{name: word & ~NOT_COMPARED for name, word in words.items() if word >= 0})


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.recording}-{case.how}-{case.page}")
def test_memory_failure__as_recorded(case):
    assert compared(play(case).got)._asdict() == compared(case)._asdict()


@pytest.mark.parametrize(("recording", "counted"), [("R4-612gt", (22, 4, 3, 0, 15)), ("R4-73", (22, 4, 2, 0, 16))])
def test_memory_failure_stats__as_recorded(recording, counted):
    """The node's counters at the end of a recording: what all cases add up to, soft offlines and repetitions apart."""
    totals = dict.fromkeys(("total", "ignored", "failed", "delayed", "recovered"), 0)
    for case in CASES:
        # What is played before a case to get there, and not part of it, is counted too: those are left out.
        if case.recording == recording and case.how in ("hwpoison", "corrupt-pfn") and case.page != "free_buddy_again":
            for name, number in mm.memory_failure_stats(play(case).mem)[0].items():
                totals[name] += number
    assert tuple(totals.values()) == counted


needs_records = pytest.mark.skipif("MEMMODEL_RECORDS" not in os.environ, reason="needs the whole recordings")


@needs_records
@pytest.mark.parametrize("recording", KERNELS)
def test_trace__as_recorded(recording):
    """The tracepoints: each event in its order, and which task got SIGBUS with which code."""
    events, signals = read_trace(os.environ["MEMMODEL_RECORDS"], recording)
    played = [play(case) for case in CASES if case.recording == recording]
    got = [getattr(outcome, "event", None) for each in played for outcome in each.outcomes]
    assert [event for event in got if event] == events
    sent = Counter((signal.task.pid, signal.si_code) for each in played for signal in each.signals)
    assert sent == Counter(signals)


@needs_records
def test_data__is_what_the_recordings_say():
    assert read_recordings(os.environ["MEMMODEL_RECORDS"]) == CASES
