"""Compaction predicted from its rules: recorded runs event for event, and from no more than that they began."""

import lzma

import pytest

import memmodel as mm
from memmodel.replaying.plan import make_plan
from memmodel.replaying.replay import Hidden, begin
from memmodel.replaying.start import read_start
from memmodel.sources.ftrace import Event, read_trace
from tests.replaying.recorded import CMA, THP, event, lines_of, place_of, recording
from tests.replaying.test_replay import LINE, exact, stripped

# recording -> what compaction did: events compared, runs, pages that moved, unused targets, unused blocks released
RECORDINGS = {
    "R1-612gt": (21665, 11, 22912, 3852, 0),
    "R1auto-612gt": (9001, 8, 12130, 119, 58),
    "R1-73gt": (8771, 31, 12050, 1024, 0),
    "R5-73gt-pb7": (5931, 2, 5026, 0, 0),
}
STRIPPED = ("R1-612gt", "R1auto-612gt", "R5-73gt-pb7")
NAMES = ("compaction events", "compaction runs", "sources moved", "unused targets", "unused blocks released")
STARTS = ("mm_compaction_begin", "mm_compaction_try_to_compact_pages", "mm_compaction_kcompactd_wake")
OF_COMPACTION = (
    *("__isolate_free_page", "compaction_alloc", "fast_isolate_freepages", "fast_find_migrateblock"),
    "isolate_migratepages_block",
)


def without_compaction(lines):
    """A stripped trace of which nothing is left that compaction did, but that it began."""
    for line in stripped(lines):
        found = LINE.search(line)
        name = found[2] if found else ""
        if name not in OF_COMPACTION and (not name.startswith("mm_compaction_") or name in STARTS):
            yield line


def predicted(report):
    """What the report says of compaction."""
    return tuple(report.predicted[name] for name in NAMES)


def remembered(report):
    """Deferral, cached positions and skip hints are compared at each dump, and equal."""
    return report.snapshots and all(snapshot.compaction_equal is True for snapshot in report.snapshots)


@pytest.mark.parametrize("name", RECORDINGS)
def test_predicted__recording(name, tmp_path):
    folder = recording(name)
    report = mm.replay(folder / "trace.txt.xz", folder / "gt_snap.txt.xz", compaction="predicted")
    exact(report)
    assert remembered(report)
    assert predicted(report) == RECORDINGS[name]
    assert not any("isolated" in what or "rotated" in what for what in report.given)
    if name in STRIPPED:
        trace = tmp_path / "trace.txt"
        with lzma.open(folder / "trace.txt.xz", "rt", errors="replace") as file:
            trace.write_text("".join(without_compaction(list(file))))
        less = mm.replay(trace, folder / "gt_snap.txt.xz")  # predicted, for nothing else can be done
        exact(less)
        assert remembered(less)
        assert predicted(less)[1:] == RECORDINGS[name][1:]
        assert predicted(less)[0] < predicted(report)[0] / 100
        assert (less.allocations, less.frees) == (report.allocations, report.frees)
        assert set(less.given) <= {"softirq free past a locked per-CPU list (gtd)"}


COUNTERS = ("compact_migrate_scanned", "compact_free_scanned", "compact_isolated", "pgmigrate_success")


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("R1-612gt", {}),
        # One search of the free lists was made while another task had its turn, before which the model has made it.
        ("R1auto-612gt", {"compact_migrate_scanned": 4}),
        ("R1-73gt", {}),
    ],
)
def test_predicted__counters(name, off):
    """What /proc/vmstat counted from the first snapshot to the last."""
    folder = recording(name)
    trace = read_trace(folder / "trace.txt.xz")
    base = read_start(folder / "gt_snap.txt.xz", trace, None, None)
    plan = make_plan(base.memory, trace, base.first_row, predicts=True)
    run = begin(base, trace, plan, Hidden(0, True), 0)
    run.run()
    first, last = (
        dict(line.split() for line in (folder / "snap" / label / "vmstat").read_text().splitlines())
        for label in ("t00", "t14")
    )
    mine = run.mem.vmstat()
    differ = {name: mine[name] - int(last[name]) + int(first[name]) for name in COUNTERS}
    assert {name: number for name, number in differ.items() if number} == off


def test_predicted__direct_compaction():
    report = mm.replay(THP / "trace.txt.xz", THP / "gt_snap.txt.xz", compaction="predicted")
    exact(report)
    assert remembered(report)
    assert predicted(report)[1:] == (4, 2176, 0, 0)
    given = mm.replay(THP / "trace.txt.xz", THP / "gt_snap.txt.xz")
    assert (given.allocations, given.frees) == (report.allocations, report.frees)
    assert given.predicted == {}


def replay_of(lines, tmp_path, **options):
    trace = tmp_path / "trace.txt"
    trace.write_bytes(b"".join(lines))
    return mm.replay(trace, THP / "gt_snap.txt.xz", compaction="predicted", **options)


def one_try(lines, tmp_path):
    """The report of the first guess at what the start hides: none is free of differences, and all take their time."""
    path = tmp_path / "trace.txt"
    path.write_bytes(b"".join(lines))
    trace = read_trace(path)
    start = read_start(THP / "gt_snap.txt.xz", trace, None, None)
    plan = make_plan(start.memory, trace, start.first_row, predicts=True)
    return begin(start, trace, plan, Hidden(0, True), 0).run()


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("nr_scanned=32 nr_taken=32", "nr_scanned=33 nr_taken=32"),
        ("ret=no_suitable_page", "ret=continue"),
        ("status=success", "status=complete"),
        ("nr_migrated=32", "nr_migrated=31"),
    ],
)
def test_predicted__one_number_off(text, instead, tmp_path):
    """A trace that says something else of one event has one wrong prediction, at its line."""
    lines = list(lines_of(THP))
    place = place_of(lines, text)
    lines[place] = lines[place].replace(text.encode(), instead.encode())
    report = replay_of(lines, tmp_path)
    assert dict(report.n_mismatches) == {"compaction event": 1}
    assert report.mismatches[0].line == place + 1


def test_predicted__a_free_that_compaction_did_not_make(tmp_path):
    lines = list(lines_of(THP))
    place = place_of(lines, "mm_page_free:", 40)
    pfn = int(lines[place].split(b"pfn=0x")[1].split()[0], 16)
    lines[place] = lines[place].replace(f"pfn={pfn:#x}".encode(), f"pfn={pfn - 700:#x}".encode())
    report = replay_of(lines, tmp_path)
    assert report.n_mismatches["compaction"] > 0
    assert report.mismatches[0].line <= place + 1
    assert f"pfn {pfn}" in report.mismatches[0].text


def test_predicted__no_end(tmp_path):
    """A trace that ends amid a compaction says so."""
    lines = list(lines_of(THP))
    report = replay_of(lines[: place_of(lines, "mm_migrate_pages:")], tmp_path)
    assert [problem.text for problem in report.problems] == ["a compaction that has no end"]


def test_predicted__a_compaction_out_of_nowhere(tmp_path):
    """One more run than the model knows of: its frees are missing, and nothing breaks."""
    lines = list(lines_of(THP))
    begin = "mm_compaction_begin: zone_start=0x1000 migrate_pfn=0x1000 free_pfn=0xfe00 zone_end=0xffdd, mode=sync"
    report = one_try([*lines, event(begin, comm="sh", pid=99)], tmp_path)
    assert [problem.text for problem in report.problems] == ["a compaction that has no end"]
    assert report.predicted["compaction runs"] == 5


@pytest.mark.parametrize("wrong", ["nid=3 order=9 classzone_idx=DMA32", "nid=0 order=9 classzone_idx=High"])
def test_predicted__a_kcompactd_that_cannot_be_is_left_out(wrong, tmp_path):
    woken = event(f"mm_compaction_kcompactd_wake: {wrong}", comm="kcompactd0", pid=23)
    report = replay_of([*lines_of(THP), woken], tmp_path)
    assert [problem.text.partition(":")[0] for problem in report.problems] == ["a kcompactd that cannot be"]
    assert not report.mismatches


def test_predicted__a_kcompactd_for_a_zone_that_the_machine_does_not_have(tmp_path):
    """It looks at the zones below."""
    woken = event("mm_compaction_kcompactd_wake: nid=0 order=9 classzone_idx=Movable", comm="kcompactd0", pid=23)
    report = one_try([*lines_of(THP), woken], tmp_path)
    assert {problem.text for problem in report.problems} <= {"a compaction that has no end"}


def test_predicted__migrations_of_cma_are_followed_too(tmp_path):
    lines = list(lines_of(CMA))
    place = place_of(lines, "mm_migrate_pages: ")
    assert b"nr_succeeded=1" in lines[place]
    lines[place] = lines[place].replace(b"nr_succeeded=1", b"nr_succeeded=0")
    for changed, kinds in ((lines_of(CMA), set()), (lines, {"wrong CMA sources"})):
        trace = tmp_path / "trace.txt"
        trace.write_bytes(b"".join(changed))
        report = mm.replay(trace, CMA / "gt_snap.txt.xz", compaction="predicted")
        assert {kind for kind in report.n_mismatches if "CMA" in kind} == kinds


def test_predicted__refuses_another_word():
    with pytest.raises(mm.InputError, match="compaction"):
        mm.replay(THP / "trace.txt.xz", THP / "gt_snap.txt.xz", compaction="guessed")


def test_stripped_trace_has_no_compaction(tmp_path):
    """What the tests above replay: begins alone are left of what compaction says."""
    trace = tmp_path / "trace.txt"
    trace.write_text("".join(without_compaction([line.decode() for line in lines_of(THP)])))
    left = read_trace(trace)
    assert left.rows(Event.MM_COMPACTION_BEGIN).size == 4
    assert not left.rows(Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES, Event.MM_COMPACTION_END).size
    assert not left.rows(Event.LIST_DELETE, Event.LIST_ROTATE_FIRST).size
