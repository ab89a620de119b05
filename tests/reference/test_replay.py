"""The slow twin of the page allocator against recorded kernels: every page, every list, in order.

It is what compiled kernels are compared with, so it is itself held against Linux.
"""

import os
from pathlib import Path

import pytest

from tests.reference.replay import infer_alloc_factor, load
from tests.reference.replay_events import Trace

DATA = Path(__file__).parents[1] / "data" / "replay_612"
RECORDINGS = {"R1-612gt": (40216, 14), "R1auto-612gt": (46490, 14), "R1cma-612gt": (31732, 6)}
GIVEN = {"gt-", "gtH", "gtd"}


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


@pytest.mark.parametrize("recording", RECORDINGS)
def test_twin__predicts_a_recording(recording: str) -> None:
    records = os.environ.get("MEMMODEL_RECORDS")
    if not records:
        pytest.skip("MEMMODEL_RECORDS does not name the recordings")
    n_allocations, n_snapshots = RECORDINGS[recording]
    summary = replayed(Path(records) / recording)
    assert (summary["allocations"], summary["pfn_mismatches"]) == (n_allocations, 0)
    assert len(summary["snapshots"]) == n_snapshots
    assert not wrong_snapshots(summary)
    assert set(summary["given"]) <= GIVEN
