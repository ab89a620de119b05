"""Recorded pieces, whole recordings, and replays of lines that a test has changed."""

import functools
import lzma
import os
from pathlib import Path

import pytest

from memmodel.replaying.plan import make_plan
from memmodel.replaying.replay import Hidden, begin
from memmodel.replaying.start import read_start
from memmodel.sources.ftrace import parse_trace

DATA = Path(__file__).parents[1] / "data"
FIRST = DATA / "replay_612"  # 116 MiB are written
CMA = DATA / "replay_612_cma"  # CMA allocations of movable pages, and frees
THP = DATA / "replay_612_thp"  # direct compaction for huge pages
PIECES = (FIRST, CMA, THP)
RECORDS = os.environ.get("MEMMODEL_RECORDS")
CLOSED = {  # all that a replay may be given, and infer
    "free block isolated by compaction or CMA",
    "free list rotated by compaction",
    "softirq free past a locked per-CPU list (gtd)",
    "run of the vmstat worker",
}
INFERRED = {
    "alloc_factor of the per-CPU sets at the start",
    "counter differences at the start",
    "run of the vmstat worker before the first request",
    "zone flags at the start",
    "LRU state at the start",
    "LRU-add batch at the start",
    "end of a kswapd run",
    "counter differences folded on an idle CPU",
}


def recording(name):
    """Folder of a recording, or the test is skipped."""
    if RECORDS is None:
        pytest.skip("MEMMODEL_RECORDS is not set: the recordings are not here whole")
    return Path(RECORDS) / name


@functools.cache
def lines_of(folder):
    """Lines of its trace."""
    return tuple(lzma.open(folder / "trace.txt.xz", "rb").read().splitlines(keepends=True))


def event(text, *, comm="init", pid=1, cpu=0, flags=".....", at="9.000000"):
    """A line as the kernel prints it."""
    return f"{comm:>16}-{pid:<7} [{cpu:03}] {flags} {at:>12}: {text}\n".encode()


def place_of(lines, text, nth=0):
    """Number of the nth line that has this text."""
    return [number for number, line in enumerate(lines) if text.encode() in line][nth]


def run_of(folder, lines, kernel=None):
    """A run of these lines from the start of the folder; the laws of memory hold after it, and the counts agree."""
    trace = parse_trace(b"".join(lines), "trace.txt")
    base = read_start(folder / "gt_snap.txt.xz", trace, kernel, None)
    plan = make_plan(base.memory, trace, base.first_row)
    run = begin(base, trace, plan, Hidden(0, True), 0)
    report = run.run()
    run.mem.check()
    consistent(report)
    return run


def consistent(report):
    """What the report counts agrees with itself."""
    assert report.pfn_mismatches == sum(report.n_mismatches.values()) >= len(report.mismatches)
    assert report.differs or report.pfn_mismatches == 0
    n_told = report.allocations + report.failed_allocations + report.frees + report.n_unused_targets
    assert 0 <= n_told <= report.events
    assert all(count >= 0 for count in (*report.given.values(), *report.inferred.values()))
    assert set(report.given) <= CLOSED
    assert set(report.inferred) <= INFERRED
