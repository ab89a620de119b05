"""The slow twin of the page allocator against recorded kernels: every page, every list, in order.

It is what compiled kernels are compared with, so it is itself held against Linux.
"""

import os
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.reference.replay import infer_alloc_factor, infer_hidden, load, load_predicted
from tests.reference.replay_events import GIVEN as GIVEN_IN
from tests.reference.replay_events import ROTATES, Trace
from tests.reference.replay_predicted import recorded_counts

DATA = Path(__file__).parents[1] / "data" / "replay_612"
takes_long = pytest.mark.skipif(not LONG, reason="plain Python over a long recording: with MEMMODEL_LONG=1")
RECORDINGS = (
    pytest.param("R1-612gt", 40216, 14, marks=takes_long),
    pytest.param("R1auto-612gt", 46490, 14, marks=takes_long),
    ("R1cma-612gt", 31732, 6),
)
GIVEN = {"gt-", "gtH", "gtd"}
COMPACTIONS = (  # frees of pages that moved, and mm_page_free of targets that went unused
    pytest.param("R1-612gt", 22912, 3852, marks=takes_long),
    ("R1auto-612gt", 12130, 119),
    pytest.param("R1-73gt", 12050, 1024, marks=takes_long),
    ("R5-73gt-pb7", 5026, 0),
)


def replayed(folder: Path) -> dict[str, object]:
    trace = Trace(next(folder.glob("trace.txt*")))
    _, replay = infer_alloc_factor(load(folder), trace)
    return replay.score.summary(trace)


def wrong_snapshots(summary: dict[str, object]) -> list[object]:
    return [snapshot for snapshot in summary["snapshots"] if not all(snapshot.values())]


def test_twin__predicts_the_first_step() -> None:
    summary = replayed(DATA)
    assert summary["allocations"] > 29000
    assert summary["pfn_mismatches"] == 0
    assert [snapshot["label"] for snapshot in summary["snapshots"]] == ["t01"]
    assert not wrong_snapshots(summary)


def test_twin__a_wrong_start_shows() -> None:
    states, *rest = load(DATA)
    zone = states[0].zones[1]
    pcp = zone.pcp[0].lists[1]
    pcp[[3, 4]] = pcp[[4, 3]]
    _, replay = infer_alloc_factor((states, *rest), Trace(DATA / "trace.txt.xz"))
    assert len(replay.score.mismatches) > 0


@pytest.mark.parametrize(("recording", "n_allocations", "n_snapshots"), RECORDINGS)
def test_twin__predicts_a_recording(recording: str, n_allocations: int, n_snapshots: int) -> None:
    records = os.environ.get("MEMMODEL_RECORDS")
    if not records:
        pytest.skip("MEMMODEL_RECORDS does not name the recordings")
    summary = replayed(Path(records) / recording)
    assert (summary["allocations"], summary["pfn_mismatches"]) == (n_allocations, 0)
    assert len(summary["snapshots"]) == n_snapshots
    assert not wrong_snapshots(summary)
    assert set(summary["given"]) <= GIVEN


def replayed_compaction(folder: Path) -> tuple[dict[str, object], dict[str, object], dict[str, object]]:
    """(summary, the events predicted, the events recorded), by step."""
    trace = Trace(next(folder.glob("trace.txt*")), GIVEN_IN | {ROTATES})
    start = load(folder)
    _, replay = infer_hidden(start, trace, known=load_predicted(folder, start[0]))
    return replay.score.summary(trace), replay.counts, recorded_counts(trace)


@pytest.mark.parametrize(("recording", "n_frees", "n_fictitious"), COMPACTIONS)
def test_twin__predicts_compaction(recording: str, n_frees: int, n_fictitious: int) -> None:
    """Every event of it, each free block taken and each list rotated; positions, skip bits and LRU flags."""
    records = os.environ.get("MEMMODEL_RECORDS")
    if not records:
        pytest.skip("MEMMODEL_RECORDS does not name the recordings")
    summary, predicted, recorded = replayed_compaction(Path(records) / recording)
    assert summary["pfn_mismatches"] == 0
    assert not wrong_snapshots(summary)
    freed = ("free", "fictitious", "released")  # mm_page_free, in order
    for step, counts in recorded.items():
        assert {name: n for name, n in predicted[step].items() if name not in freed} == counts
    assert predicted.keys() == recorded.keys()
    assert sum(counts["free"] for counts in predicted.values()) == n_frees
    assert sum(counts["fictitious"] for counts in predicted.values()) == n_fictitious
    assert not set(summary["given"]) & {"gt-", "gtH"}
