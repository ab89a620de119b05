"""Recorded CMA allocations: what a replay predicts of each, and cma_alloc() itself in their place."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.replaying.plan import make_plan
from memmodel.replaying.replay import Hidden, begin
from memmodel.replaying.start import read_start
from memmodel.sources.ftrace import read_trace
from memmodel.state.build import with_area
from memmodel.state.layout import Kind, PageFlag
from tests.reference import views
from tests.replaying.recorded import CMA, lines_of, place_of, recording, run_of

RECORDINGS = {"R1cma-612gt": (None, 2), "R1cma-73gt": ("7.3", 2)}  # kernel, alloc_factor at the start
TOLD = (b"__isolate_free_page", b"mm_compaction_isolate_")  # what a replay predicts and a trace may tell


def begun(folder, kernel, alloc_factor):
    trace = read_trace(folder / "trace.txt.xz")
    base = read_start(folder / "gt_snap.txt.xz", trace, kernel, None)
    return begin(base, trace, make_plan(base.memory, trace, base.first_row), Hidden(alloc_factor, True), 0)


def with_the_area(mem, follower):
    """A copy of the memory whose CMA pageblocks are an area with the follower's bitmap."""
    other = mem.copy()
    area = follower.area
    other.state = with_area(other.state, int(other.index(area.start)), area.used.size, 0, area.zone)
    words = np.packbits(area.used, bitorder="little").view(np.uint64)
    other.state.area_bits[:] = words
    other.state.areas[0]["available"] = np.count_nonzero(~area.used)
    return other


def lists_of(mem):
    """All that a dump would tell, and the LRU lists."""
    return {
        "free": views.free_lists(mem),
        "types": views.block_types(mem),
        "waiting": views.pages_of_kind(mem, Kind.PCP),
        "lru": (mem.state.pages["pg_flags"][: mem.pfns.n_pages] & PageFlag.LRU).tobytes(),
        "pcp": mem.state.pcp["count"].tolist(),
        "zones": [mem.state.zones[name].tolist() for name in ("free_pages", "free_cma", "nr_free")],
    }


def allocations_by_cma_alloc(run):
    """Run it with cma_alloc() on a copy at each beginning; (request, outcome, what differs at the end) of each."""
    follower, found, waiting = run.cma, [], []
    on_start, on_finish = follower.on_start, follower.on_finish

    def start(row):
        values = run.trace.values(row)
        mem = with_the_area(run.mem, follower)
        count = int(values["count"])
        waiting.append((count, mm.cma_alloc(mem, mm.cma_areas(mem)[0], count, int(values["align"])), mem))
        on_start(row)

    def finish(row):
        on_finish(row)
        count, out, mem = waiting.pop()
        values = run.trace.values(row)
        assert out.errno == values["errorno"]
        if out.errno == 0:
            assert out.pfn == values["pfn"]
        mine, theirs = lists_of(mem), lists_of(run.mem)
        found.append((count, out, [name for name in mine if mine[name] != theirs[name]]))

    follower.on_start, follower.on_finish = start, finish
    report = run.run()
    assert not report.differs
    for count, out, _ in waiting:  # 6.12 has no event of the end of a request for more than the area
        assert (count, out.errno) == (100000, -12)
    return found


def exact(found):
    assert found
    for count, out, different in found:
        assert (count, different) == (count, [])
        assert out.errno == 0 or out.n_attempts == 0


def test_cma_alloc__as_recorded_piece():
    exact(allocations_by_cma_alloc(begun(CMA, None, 0)))


@pytest.mark.parametrize("name", RECORDINGS)
def test_cma_alloc__as_recorded(name):
    found = allocations_by_cma_alloc(begun(recording(name), *RECORDINGS[name]))
    exact(found)
    assert [count for count, *_ in found][:10] == [1, 1, 16, 64, 100, 256, 512, 1000, 2048, 3]


# -- what a replay predicts --------------------------------------------------------------------------------------------


def changed(text, old, new, nth=0):
    """The piece's lines, one of those with a text changed."""
    lines = list(lines_of(CMA))
    place = place_of(lines, text, nth)
    assert old.encode() in lines[place]
    lines[place] = lines[place].replace(old.encode(), new.encode())
    return lines


def kinds_of(lines):
    """Wrong predictions by kind, but for pages that are put right later."""
    return {kind for kind in run_of(CMA, lines).report.n_mismatches if "CMA" in kind}


def test_replay__cma_without_what_it_predicts():
    lines = [line for line in lines_of(CMA) if not any(text in line for text in TOLD)]
    assert len(lines) < len(lines_of(CMA)) - 100
    report = run_of(CMA, lines).report
    assert not report.differs
    assert dict(report.given) == {}
    assert len(report.snapshots) == 4


@pytest.mark.parametrize(
    ("text", "old", "new", "kind"),
    [
        ("__isolate_free_page: gt- 56833 0", "56833", "56834", "wrong CMA blocks"),
        ("isolate_migratepages: range=(0xde02", "nr_taken=16", "nr_taken=15", "wrong CMA sources"),
        ("mm_migrate_pages: ", "nr_succeeded=1", "nr_succeeded=0", "wrong CMA sources"),
        ("cma_alloc_finish", "pfn=0xde00", "pfn=0xde01", "wrong CMA range"),
        ("cma_alloc_finish", "errorno=0", "errorno=-16", "missed CMA failure"),
    ],
)
def test_replay__cma_that_is_not_as_predicted(text, old, new, kind):
    assert kind in kinds_of(changed(text, old, new))


def test_replay__cma_range_that_is_not_free_in_the_model():
    lines = list(lines_of(CMA))
    del lines[place_of(lines, "mm_page_free: page=0000000029703728 pfn=0xde01")]
    assert kinds_of(lines) >= {"missed CMA success", "wrong CMA sources"}
