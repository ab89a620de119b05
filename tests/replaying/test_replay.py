"""Recorded kernels predicted page for page, from what a replay may know; and what a wrong start or rule does to it."""

import lzma
import re

import numpy as np
import pytest

import memmodel as mm
from memmodel.replaying.plan import make_plan
from memmodel.replaying.replay import begin, find_hidden
from memmodel.replaying.start import read_start
from memmodel.sources.ftrace import read_trace
from memmodel.state.layout import MIGRATE_TYPES, PageFlag
from tests.replaying.recorded import CLOSED, CMA, FIRST, INFERRED, THP, consistent, lines_of, recording

# recording -> (kernel, allocations, of them failed, dumps compared)
RECORDINGS = {
    "R1-612gt": (None, 40216, 0, 14),
    "R1auto-612gt": (None, 46490, 55, 14),
    "R1cma-612gt": (None, 31732, 0, 6),
    "R1-73gt": ("7.3", 41804, 33, 14),
    "R1cma-73gt": ("7.3", 31559, 0, 6),
    "R5-73gt-pb7": ("7.3", 12385, 0, 6),
}
STRIPPED = ("R1-612gt", "R1auto-612gt", "R1cma-612gt")


def exact(report):
    """No wrong prediction, no dump that differs, and only what a replay may be given and infer."""
    consistent(report)
    assert report.mismatches == []
    assert report.problems == []
    assert [snapshot.differences for snapshot in report.snapshots if not snapshot.equal] == []
    assert not report.differs
    assert set(report.given) <= CLOSED
    assert set(report.inferred) <= INFERRED
    assert sum(report.inferred.values()) <= 50


def test_replay__first_step():
    report = mm.replay(FIRST / "trace.txt.xz", FIRST / "gt_snap.txt.xz")
    exact(report)
    assert report.allocations == 29755
    assert report.failed_allocations == report.lost_events == 0
    assert [snapshot.label for snapshot in report.snapshots] == ["t01"]
    assert dict(report.given) == {}
    assert sum(report.inferred.values()) == 4
    assert report.not_claimed == []


def test_replay__frees_and_cma_allocations():
    report = mm.replay(CMA / "trace.txt.xz", CMA / "gt_snap.txt.xz")
    exact(report)
    assert (report.allocations, report.frees) == (932, 5102)
    assert [snapshot.label for snapshot in report.snapshots] == ["c02.4", "c02.9", "c03a", "c03b"]
    assert dict(report.given) == {}


def test_replay__direct_compaction():
    report = mm.replay(THP / "trace.txt.xz", THP / "gt_snap.txt.xz")
    exact(report)
    assert (report.allocations, report.frees) == (19, 2176)
    assert [snapshot.label for snapshot in report.snapshots] == ["t07"]


@pytest.mark.parametrize("piece", [FIRST, CMA, THP], ids=lambda piece: piece.name)
def test_replay__dump_alone(piece, tmp_path):
    """Without kpageflags the LRU state at the start is inferred."""
    alone = tmp_path / "gt_snap.txt.xz"
    alone.write_bytes((piece / alone.name).read_bytes())
    report = mm.replay(piece / "trace.txt.xz", alone)
    exact(report)
    assert report.inferred["LRU state at the start"] == 1


def test_replay__start_is_not_changed_and_answers_are_equal():
    trace = read_trace(CMA / "trace.txt.xz")
    mem = read_start(CMA / "gt_snap.txt.xz", trace, None, None).memory
    before = mem.state.pages.copy()
    answers = [mm.replay(trace, mem).as_dict() for _ in range(2)]
    assert answers[0] == answers[1]
    assert np.array_equal(mem.state.pages, before)
    assert answers[0]["pfn_mismatches"] == 0
    assert answers[0]["snapshots"] == []  # a memory brings no dumps


# -- mutations ---------------------------------------------------------------------------------------------------------


def swapped(mem, head, i, j):
    """Two entries of a list change places."""
    after, rows = mem.state.pages["next"], []
    row = int(after[head])
    while row != head:
        rows.append(row)
        row = int(after[row])
    rows[i], rows[j] = rows[j], rows[i]
    chain = np.array([head, *rows, head])
    after[chain[:-1]] = chain[1:]
    mem.state.pages["prev"][chain[1:]] = chain[:-1]


def list_heads(mem, zone):
    return int(mem.state.params.n_pages) + zone * int(mem.state.params.heads_per_zone)


def swap_pcp(mem):
    """Two pages of the list of single movable pages."""
    n_lists = (int(mem.state.params.max_order) + 1) * MIGRATE_TYPES
    swapped(mem, list_heads(mem, 1) + n_lists + 1, 3, 4)


def swap_buddy(mem):
    """The first two free blocks of order 10."""
    swapped(mem, list_heads(mem, 1) + 10 * MIGRATE_TYPES + 1, 0, 1)


def no_lru(mem):
    mem.state.pages["pg_flags"] &= np.uint8(0xFF ^ PageFlag.LRU)


def no_boost(mem):
    params = mem.state.params._replace(watermark_boost_factor=np.uint64(0))
    mem.state = mem.state._replace(params=params)
    mem.state.zones["watermark_boost"] = 0


def no_reserve(mem):
    mem.state.zones["lowmem_reserve"] = 0


def no_marks(mem):
    mem.state.zones["watermark"] = 0


def lru_batch_of_one(mem):
    mem.state.lru["size"] = 1


def larger_batch(mem):
    mem.state.pcp["batch"] += 1


def higher_high(mem):
    for name in ("high", "high_min", "high_max"):
        mem.state.pcp[name] += 1


def exact_counters(mem):
    mem.state.zones["stat_threshold"] = 0


def nothing(mem):
    pass


def mutated(folder, change=nothing, kernel=None, other_kernel=None, trace=None):
    """(wrong predictions, dumps that differ) with the best hidden numbers."""
    trace = trace or read_trace(folder / "trace.txt.xz")
    base = read_start(folder / "gt_snap.txt.xz", trace, other_kernel or kernel, None)
    mem = base.memory.copy()
    change(mem)
    base = base._replace(memory=mem)
    plan = make_plan(mem, trace, base.first_row)
    run = begin(base, trace, plan, find_hidden(base, trace, plan, 0)[0], 0)
    report = run.run()
    run.mem.check()
    return report.pfn_mismatches, sum(not snapshot.equal for snapshot in report.snapshots)


# What one change does: wrong predictions, and dumps that differ. (0, 0): the piece cannot tell.
MUTATIONS = [
    (FIRST, swap_pcp, (1, 0)),  # one wrong page, and then in step again
    (FIRST, swap_buddy, (1024, 1)),
    (FIRST, larger_batch, (0, 1)),
    (FIRST, higher_high, (0, 1)),
    (FIRST, no_lru, (0, 0)),
    (FIRST, no_boost, (0, 0)),
    (FIRST, no_reserve, (0, 0)),
    (FIRST, no_marks, (0, 0)),
    (FIRST, lru_batch_of_one, (0, 0)),
    (FIRST, exact_counters, (0, 0)),
    (CMA, swap_pcp, (0, 0)),  # both leave and come back within the piece
    (CMA, swap_buddy, (94, 1)),
    (CMA, larger_batch, (7, 4)),
    (CMA, higher_high, (98, 4)),
    (CMA, no_marks, (101, 3)),
    (CMA, exact_counters, (156, 4)),
    (CMA, no_lru, (66, 0)),  # no folio to migrate
    (CMA, no_boost, (0, 0)),
    (CMA, no_reserve, (0, 0)),
    (THP, swap_pcp, (0, 1)),
    (THP, larger_batch, (0, 1)),
    (THP, exact_counters, (0, 1)),
]
# Other kernels' rules: the first step alone cannot tell them from 6.8 on.
KERNELS = [
    *((FIRST, "6.1", (0, 1)), (FIRST, "6.6", (0, 1)), (FIRST, "6.8", (0, 0)), (FIRST, "7.3", (0, 0))),
    *((CMA, "6.12", (0, 0)), (CMA, "7.3", (0, 2))),
    *((THP, "6.1", (0, 1)), (THP, "6.8", (0, 1)), (THP, "7.3", (0, 0))),
]


@pytest.mark.parametrize(("piece", "change", "told"), MUTATIONS)
def test_replay__mutation(piece, change, told):
    wrong, differ = mutated(piece, change)
    assert (wrong > 0, differ > 0) == (told[0] > 0, told[1] > 0)
    assert (wrong, differ) == told


@pytest.mark.parametrize(("piece", "kernel", "told"), KERNELS)
def test_replay__rules_of_another_kernel(piece, kernel, told):
    wrong, differ = mutated(piece, other_kernel=kernel)
    assert (wrong > 0, differ > 0) == (told[0] > 0, told[1] > 0)


# Whole recordings tell more: 6.12 with MIN marks, boosts and reserves at work.
RECORDED_MUTATIONS = [
    ("R1-612gt", no_lru),
    ("R1-612gt", no_boost),
    ("R1-612gt", no_marks),
    ("R1-612gt", exact_counters),
    ("R1auto-612gt", no_boost),
    ("R1auto-612gt", no_reserve),
    ("R1auto-612gt", exact_counters),
    ("R1cma-612gt", exact_counters),
    ("R1-73gt", no_lru),
    ("R1-73gt", no_boost),
    ("R1-73gt", no_reserve),
]
UNTOLD = [("R1-612gt", no_reserve), ("R1-612gt", lru_batch_of_one), ("R1auto-612gt", no_lru)]
RECORDED_KERNELS = [("R1-612gt", kernel) for kernel in ("6.1", "6.6", "6.8", "6.12", "7.3")] + [("R1auto-612gt", "7.3")]


@pytest.mark.parametrize(("name", "change"), RECORDED_MUTATIONS)
def test_replay__mutation_shows_in_a_recording(name, change):
    assert mutated(recording(name), change, RECORDINGS[name][0]) != (0, 0)


@pytest.mark.parametrize(("name", "change"), UNTOLD)
def test_replay__mutation_that_no_recording_shows(name, change):
    assert mutated(recording(name), change, RECORDINGS[name][0]) == (0, 0)


@pytest.mark.parametrize(("name", "kernel"), RECORDED_KERNELS)
def test_replay__rules_of_another_kernel_show_in_a_recording(name, kernel):
    assert mutated(recording(name), other_kernel=kernel) != (0, 0)


# -- whole recordings --------------------------------------------------------------------------------------------------

LINE = re.compile(r"\]\s+(\S+)\s+[\d.]+: (\w+): (.*)")
FREE = re.compile(r"pfn=0x([0-9a-f]+) order=(\d+)")
KEPT = {"__isolate_free_page", "compaction_alloc", "fast_isolate_freepages", "snap_write"}  # list operations by caller
TELLTALE = {"mm_page_alloc_zone_locked", "mm_page_pcpu_drain", "mm_page_alloc_extfrag"}


def direct_frees(lines):
    """Numbers of the softirq frees that no push on a per-CPU list follows before the page is on another list."""
    pending, direct = {}, set()
    for number, line in enumerate(lines):
        found = LINE.search(line)
        if not found:
            continue
        flags, name, rest = found.groups()
        if name == "mm_page_free":
            pfn, order = FREE.search(rest).groups()
            if flags[2] in "sS" and (int(order) <= 3 or order == "9"):
                pending[int(pfn, 16)] = number
        elif rest.startswith("gtp+ "):
            pending.pop(int(rest.split()[1]), None)
        elif name == "mm_page_alloc" or rest.startswith(("gt- ", "gtp- ")):
            pfn = int(FREE.search(rest)[1], 16) if name == "mm_page_alloc" else int(rest.split()[1])
            if pfn in pending:
                direct.add(pending.pop(pfn))
    return direct | set(pending.values())


def stripped(lines):
    """What a replay may know: requests, frees, marks, other subsystems' events, isolation and rotation by compaction.

    A softirq's free that went past a locked per-CPU list is told by a line of its own.
    """
    direct = direct_frees(lines)
    for number, line in enumerate(lines):
        found = LINE.search(line)
        if found and (found[2] in TELLTALE or (found[3].startswith("gt") and found[2] not in KEPT)):
            continue
        yield line
        if number in direct:
            pfn, order = FREE.search(found[3]).groups()
            yield line[: found.start(2)] + f"free_one_page: gtd {int(pfn, 16)} {order}\n"


@pytest.mark.parametrize("name", RECORDINGS)
def test_replay__recording(name, tmp_path):
    folder = recording(name)
    kernel, allocations, failed, n_dumps = RECORDINGS[name]
    report = mm.replay(folder / "trace.txt.xz", folder / "gt_snap.txt.xz", kernel=kernel)
    exact(report)
    assert (report.allocations, report.failed_allocations, len(report.snapshots)) == (allocations, failed, n_dumps)
    alone = tmp_path / "gt_snap.txt.xz"
    alone.write_bytes((folder / alone.name).read_bytes())
    without_files = mm.replay(folder / "trace.txt.xz", alone, kernel=kernel)
    exact(without_files)
    assert without_files.inferred["LRU state at the start"] == 1
    if name in STRIPPED:
        trace = tmp_path / "trace.txt"
        with lzma.open(folder / "trace.txt.xz", "rt", errors="replace") as file:
            trace.write_text("".join(stripped(list(file))))
        less = mm.replay(trace, folder / "gt_snap.txt.xz")
        exact(less)
        whole, less = report.as_dict(), less.as_dict()
        assert less["events"] < whole["events"]
        for same in ("allocations", "failed_allocations", "frees", "given", "inferred", "snapshots", "mismatches"):
            assert less[same] == whole[same]


def test_stripped__drops_what_a_replay_must_predict():
    first = [line.decode() for line in lines_of(FIRST)]
    assert list(stripped(first)) == first  # that piece was stripped before
