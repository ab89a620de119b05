"""Traces that are cut, damaged, or of another machine: each flaw is said with its line, and memory stays lawful."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.errors import InputError
from tests.replaying.recorded import CMA, FIRST, PIECES, THP, event, lines_of, place_of, run_of

N_HEAD = 12  # lines of comments
SHORT = 3000  # lines of the first step
PAGE = "page=0000000076022381 "
BEGIN = "mm_compaction_begin: zone_start=0x1000 migrate_pfn=0x1000 free_pfn=0xfe00 zone_end=0xffdd, mode=sync"
END = BEGIN.replace("begin", "end") + " status=complete"
SCAN = "mm_compaction_isolate_migratepages: range=({:#x} ~ {:#x}) nr_scanned=512 nr_taken={}"
TRY = "mm_compaction_try_to_compact_pages: order={} gfp_mask={} priority=0"
CMA_START = "cma_alloc_start: name=reserved count={} align=0"
CMA_FINISH = "cma_alloc_finish: name=reserved pfn=0xde00 page=000000001fdfc8fe count=1 align=0 errorno=0"
RELEASE = "cma_release: name=reserved pfn={:#x} page=000000001fdfc8fe count={}"


def alloc(pfn, order=0, gfp="GFP_KERNEL"):
    return event(f"mm_page_alloc: {PAGE}pfn={pfn:#x} order={order} migratetype=0 gfp_flags={gfp}")


def free(pfn, order=0, batched=""):
    return event(f"mm_page_free{batched}: {PAGE}pfn={pfn:#x} order={order}")


def with_lines(*lines, piece=FIRST, n=200):
    """The first `n` lines of a piece, then these; the number of the first of them."""
    return [*lines_of(piece)[:n], *lines], n + 1


def told(*lines, piece=FIRST, n=200):
    """(problems, mismatches) at those lines, with line numbers from 0."""
    changed, first = with_lines(*lines, piece=piece, n=n)
    report = run_of(piece, changed).report
    problems = [(problem.line - first, problem.text) for problem in report.problems if problem.line >= first]
    return problems, [(miss.line - first, miss.kind) for miss in report.mismatches if miss.line >= first]


def replayed(tmp_path, data, piece=FIRST):
    path = tmp_path / "trace.txt"
    path.write_bytes(data if isinstance(data, bytes) else b"".join(data))
    return mm.replay(path, piece / "gt_snap.txt.xz"), path


def refused(tmp_path, data, start=FIRST / "gt_snap.txt.xz", **options):
    """The one line of the InputError."""
    path = tmp_path / "trace.txt"
    path.write_bytes(data if isinstance(data, bytes) else b"".join(data))
    with pytest.raises(InputError) as caught:
        mm.replay(path, start, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(path), "trace.txt")


AFTER_CMA = place_of(lines_of(CMA), "cma_alloc_finish") + 1


# -- what is left out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (alloc(0xFFFFFF), "pfn 0xffffff is outside memory"),
        (free(0x10000), "pfn 0x10000 is outside memory"),
        (alloc(0x5001, 1), "pfn 0x5001 is no multiple of its order"),
        (alloc(0x5000, 200), "order 200; 0 to 10 are possible"),
        (free(0x5000, 11), "order 11; 0 to 10 are possible"),
        (alloc(0, 10), "the block at pfn 0x0 is in no zone"),
        (free(0xFFDD), "the block at pfn 0xffdd is in no zone"),
        (event("mm_page_free: page=0000000000000000 pfn=0x0 order=0"), "is"),
        (free(0x5000, batched="_batched"), "an mm_page_free_batched without its mm_page_free"),
        (event(END), "the end of a compaction that has no beginning"),
        (event(BEGIN), "a compaction that has no end"),
        (event(BEGIN.replace("zone_start=0x1000", "zone_start=0x99999")), "zone_start 0x99999 is outside memory"),
        (event(BEGIN.replace("migrate_pfn=0x1000", "migrate_pfn=0x99999")), "migrate_pfn 0x99999 is outside memory"),
        (event(SCAN.format(0x1200, 0x1000, 0)), "a scan that cannot be"),
        (event(SCAN.format(0x1000, 0x99999, 1)), "a scan that cannot be"),
        (event(SCAN.format(0x1000, 0x1200, 513)), "a scan that cannot be"),
        (event(TRY.format(200, "GFP_KERNEL")), "order 200; 0 to 10 are possible"),
        (event("mm_compaction_kcompactd_wake: nid=0 order=77 classzone_idx=DMA32"), "order 77; 0 to 10 are possible"),
        (event(CMA_START.format(1)), "an event of a CMA area, and the start has none"),
        (event(CMA_FINISH), "an event of a CMA area, and the start has none"),
        (event(RELEASE.format(0xDE00, 1)), "an event of a CMA area, and the start has none"),
    ],
)
def test_replay__event_that_cannot_be_is_left_out(line, text):
    problems, mismatches = told(line)
    assert [place for place, _ in problems] == [0]
    assert text in problems[0][1]
    assert mismatches == []


def test_replay__problem_is_in_the_report_with_file_and_line(tmp_path):
    changed, first = with_lines(alloc(0x5000, 200))
    report, path = replayed(tmp_path, changed)
    assert report.as_dict()["problems"] == [f"{path}:{first}: order 200; 0 to 10 are possible"]
    assert f"{path}:{first}: events left out, the first of 1" in report.not_claimed
    assert f"{path}:{first}: order 200" in report.text()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (event(CMA_START.format(0)), "a CMA request that cannot be"),
        (event(CMA_START.format(-5)), "a CMA request that cannot be"),
        (event(CMA_FINISH), "of a CMA allocation that has no beginning"),
        (event(RELEASE.format(0x99999, 1)), "a CMA release outside memory"),
        (event(RELEASE.format(0xDE00, 1 << 40)), "a CMA release outside memory"),
    ],
)
def test_replay__cma_event_that_cannot_be(line, text):
    problems, _ = told(line, piece=CMA, n=AFTER_CMA)
    assert [place for place, _ in problems] == [0]
    assert text in problems[0][1]


def test_replay__cma_allocation_within_another():
    problems, _ = told(event(CMA_START.format(16)), event(CMA_START.format(600)), piece=CMA, n=AFTER_CMA)
    assert problems == [(1, "a CMA allocation while another one has no end")]


def test_replay__two_compactions_of_one_task():
    problems, _ = told(event(BEGIN), event(BEGIN), event(END))
    assert problems == [(1, "a compaction of a task whose last one has no end")]


def test_replay__ten_compactions_at_once():
    problems, _ = told(*(event(BEGIN, pid=50 + n) for n in range(10)), *(event(END, pid=50 + n) for n in range(10)))
    more = [(place, text) for place, text in problems if place < 10]
    assert more == [(place, "more than 4 compactions at one time") for place in range(4, 10)]
    assert [place for place, text in problems if "no beginning" in text] == list(range(14, 20))


def test_replay__kswapd_that_woke_before_the_start():
    wake = event("mm_vmscan_kswapd_wake: nid=0 order=3", comm="kswapd0", pid=24)
    lines = list(lines_of(FIRST)[:SHORT])
    report = run_of(FIRST, [*lines[:N_HEAD], wake, *lines[N_HEAD:]]).report
    assert not report.differs or report.snapshots
    assert report.pfn_mismatches == 0
    assert "end of a kswapd run" not in report.inferred


# -- what the model can only be put right about ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "places"),
    [
        ([free(0x7800), free(0x7800)], [0, 1]),  # free at the start, so both are unseen
        ([alloc(0x34F9)], [0]),  # in use since the first request
        ([free(0x34F9), free(0x34F9)], [1]),
        ([free(0x34F9, batched=""), free(0x34F9, batched="_batched"), free(0x34F9)], [2]),
        ([free(0x7800, 10)], [0]),  # a whole free block
        ([free(0x0100)], [0]),
    ],
)
def test_replay__use_that_contradicts_the_model(lines, places):
    problems, mismatches = told(*lines)
    assert problems == []
    assert [place for place, _ in mismatches] == places


def test_replay__double_free_is_told(tmp_path):
    changed, first = with_lines(free(0x34F9), free(0x34F9))
    report, path = replayed(tmp_path, changed)
    assert report.n_mismatches == {"free of a page not in use": 1}
    assert report.mismatches[0].line == first + 1
    assert f"{path}:{first + 1}: the first wrong prediction: what follows is put in step" in report.not_claimed


def test_replay__page_that_came_late_keeps_memory_lawful():
    """A request that found its page in a later attempt, of which the trace does not tell."""
    begin = event("mm_vmscan_direct_reclaim_begin: order=0 gfp_flags=GFP_KERNEL")
    end = event("mm_vmscan_direct_reclaim_end: nr_reclaimed=32")
    changed, _ = with_lines(begin, end)
    assert run_of(FIRST, changed).report.n_mismatches["missed failure"] == 1


# -- cut and damaged files ---------------------------------------------------------------------------------------------


def test_replay__cut_in_mid_line(tmp_path):
    data = b"".join(lines_of(FIRST)[:500])[:-40]
    report, path = replayed(tmp_path, data)
    assert report.pfn_mismatches == 0
    assert f"{path}:500: the line is cut: the trace says nothing from here on" in report.not_claimed
    assert any(text.startswith("1 later states of the dump are not compared") for text in report.not_claimed)


def test_replay__lost_events(tmp_path):
    lines = list(lines_of(FIRST)[:500])
    lines[100:110] = [b"CPU:0 [LOST 10 EVENTS]\n"]
    report, path = replayed(tmp_path, lines)
    assert report.lost_events == 10
    assert f"{path}:101: 10 events of CPU 0 are lost: what follows rests on a guess" in report.not_claimed
    assert report.pfn_mismatches > 0


def test_replay__overwritten_events(tmp_path):
    lines = list(lines_of(FIRST)[:500])
    lines[2] = lines[2].replace(b"703384/703384", b"703384/703400")
    report, path = replayed(tmp_path, lines)
    assert report.lost_events == 16
    assert f"{path}: 16 events were overwritten before the first line" in report.not_claimed


def test_replay__dump_without_its_mark(tmp_path):
    lines = [line for line in lines_of(FIRST)[:500] if b"gt S" not in line and b"gt E" not in line]
    lines = [line for line in lines if b"snap t00" not in line]
    report, path = replayed(tmp_path, lines)
    assert f"{path}: no mark of t00: the trace is taken to begin where the start was read" in report.not_claimed


def test_replay__nothing_after_the_mark(tmp_path):
    lines = list(lines_of(FIRST))
    kept = [*lines[:N_HEAD], lines[place_of(lines, "mm_page_alloc")], lines[place_of(lines, "gt S t00")]]
    assert refused(tmp_path, kept) == "trace.txt: no event after the mark of the start"


def test_replay__no_kmem_events(tmp_path):
    text = refused(tmp_path, [*lines_of(FIRST)[:N_HEAD], event("tracing_mark_write: hello")])
    assert text == "trace.txt: no mm_page_alloc or mm_page_free event; the group kmem must be traced"


@pytest.mark.parametrize("data", [b"", b"\x00\xff\x7fELF" * 50, b"\xfd7zXZ\x00 no", b"\n\n\n", bytes(range(256)) * 8])
def test_replay__no_trace(tmp_path, data):
    assert refused(tmp_path, data).startswith("trace.txt")


def test_replay__unknown_gfp_flag(tmp_path):
    for line in (alloc(0x5000, gfp="__GFP_NEW"), event(TRY.format(9, "__GFP_NEW"))):
        changed, first = with_lines(line)
        assert refused(tmp_path, changed).startswith(f"trace.txt:{first}: unknown gfp flag '__GFP_NEW'")


def test_replay__more_cpus_than_the_start_has(tmp_path):
    changed, first = with_lines(event("mm_vmscan_kswapd_sleep: nid=0", cpu=3))
    assert refused(tmp_path, changed) == f"trace.txt:{first}: an event of CPU 3; the start has the lists of 1 CPU(s)"


def test_replay__unknown_node(tmp_path):
    assert "node 7" in refused(tmp_path, lines_of(FIRST)[:500], node=7)


def test_replay__start_that_is_no_state(tmp_path):
    junk = tmp_path / "dump"
    for data in (b"", b"\x00\x01junk\n", b"S t00 12 nonsense\n"):
        junk.write_bytes(data)
        assert "dump" in refused(tmp_path, lines_of(FIRST)[:500], start=junk)
    assert "missing" in refused(tmp_path, lines_of(FIRST)[:500], start=tmp_path / "missing")


def test_replay__start_of_another_machine(tmp_path):
    """The trace of a larger machine: pages outside are left out, and the rest is one miss after the other."""
    lines = [line.replace(b" pfn=0x", b" pfn=0x1") for line in lines_of(FIRST)[:500]]
    report, _ = replayed(tmp_path, lines)
    assert all("outside memory" in problem.text for problem in report.problems)
    assert len(report.problems) > 400
    assert report.allocations == 0


# -- anything at all ---------------------------------------------------------------------------------------------------

places = st.integers(0, 1 << 20)
EDITS = st.lists(st.tuples(st.sampled_from(["delete", "double", "move", "swap", "free"]), places, places), max_size=60)


@settings(max_examples=25)
@given(piece=st.sampled_from(PIECES), edits=EDITS)
def test_replay__damaged_anyhow(piece, edits):
    lines = list(lines_of(piece)[:SHORT])
    for edit, first, second in edits:
        i, j = (N_HEAD + place % (len(lines) - N_HEAD) for place in (first, second))
        if edit == "delete":
            del lines[i]
        elif edit == "double":
            lines.insert(j, lines[i])
        elif edit == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif edit == "move":
            lines.insert(j, lines.pop(i))
        elif b"mm_page_alloc:" in lines[i]:
            lines.insert(j, lines[i].replace(b"mm_page_alloc", b"mm_page_free").split(b" migratetype")[0] + b"\n")
    run_of(piece, lines)


FOREIGN = [
    *(event(BEGIN), event(END), event(SCAN.format(0x1000, 0x1200, 32)), event(SCAN.format(0xE000, 0xE200, 512))),
    *(event("mm_migrate_pages_start: mode=MIGRATE_SYNC reason=compaction"),),
    *(event("mm_compaction_migratepages: nr_migrated=10 nr_failed=3"),),
    *(event("mm_compaction_finished: node=0 zone=DMA32    order=9 ret=continue"),),
    *(event(TRY.format(9, "GFP_TRANSHUGE_LIGHT|__GFP_DIRECT_RECLAIM")), event(TRY.format(0, "GFP_HIGHUSER_MOVABLE"))),
    *(event("mm_vmscan_direct_reclaim_begin: order=0 gfp_flags=GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO"),),
    *(event("mm_vmscan_direct_reclaim_end: nr_reclaimed=32"),),
    *(event(BEGIN, comm="kcompactd0", pid=23), event(END, comm="kcompactd0", pid=23)),
    *(event("mm_vmscan_kswapd_wake: nid=0 order=3", comm="kswapd0", pid=24),),
    *(event(CMA_START.format(600)), event(CMA_FINISH), event(RELEASE.format(0xDE02, 30))),
]


@settings(max_examples=25)
@given(
    piece=st.sampled_from(PIECES),
    kernel=st.sampled_from([None, "7.3"]),
    inserted=st.lists(st.tuples(st.sampled_from(FOREIGN), places), min_size=1, max_size=40),
)
def test_replay__events_where_they_do_not_belong(piece, kernel, inserted):
    lines = list(lines_of(piece)[:SHORT])
    for line, place in inserted:
        lines.insert(N_HEAD + place % (len(lines) - N_HEAD), line)
    run_of(piece, lines, kernel)


def test_replay__order_of_a_batched_free_says_nothing():
    lines = [free(0x34F9), free(0x34F9, 3, "_batched"), free(0x34F9), free(0x34F9, 3, "_batched")]
    assert told(*lines) == ([], [(2, "free of a page not in use")])


def test_replay__orders_that_do_not_belong():
    lines = [
        line.replace(b"order=0", b"order=3") if n % 7 == 0 else line for n, line in enumerate(lines_of(THP)[:SHORT])
    ]
    assert run_of(THP, lines).report.pfn_mismatches > 0
