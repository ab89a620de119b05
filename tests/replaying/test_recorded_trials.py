"""Recorded trials for huge pages in fragmented memory: which come out as in the kernel, and how compaction counts."""

import functools

import pytest

import memmodel as mm
from memmodel.replaying.thp_trials import COLUMNS, COUNTERS, run_trials
from tests.replaying.recorded import recording

NOT_ALIKE = {  # trial: huge pages that the model gets, and the kernel
    "18-madvise-free30-unmov2048": (24, 25),
    "30-hugetlb-free30-unmov2048": (23, 24),
    "35-hugetlb-free50-unmov6144": (3, 2),
}


@functools.cache
def trials():
    return run_trials(recording("R2-612gt"))


def test_trials():
    assert len(trials()) == 33
    assert {trial.name: (trial.modelled, trial.recorded) for trial in trials() if not trial.alike} == NOT_ALIKE


def test_trials__all_alike_without_direct_compaction():
    never = [trial for trial in trials() if trial.mode == "never"]
    assert len(never) == 11
    assert all(trial.alike for trial in never)
    assert all(pair == (0, 0) for trial in never for pair in trial.counters.values())


def test_trials__every_counter_alike():
    compacting = [trial for trial in trials() if trial.mode != "never"]
    assert len(compacting) == 22
    assert sum(all(mine == real for real, mine in trial.counters.values()) for trial in compacting) == 7


@pytest.mark.parametrize("counter", COUNTERS)
def test_trials__counters(counter):
    """Of the trials with direct compaction that come out alike, most count alike to two hundredths."""
    pairs = [trial.counters[counter] for trial in trials() if trial.mode != "never" and trial.alike]
    close = [abs(mine - real) <= max(0.02 * real, 50) for real, mine in pairs]
    assert sum(close) >= 0.6 * len(close)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["dir,mode", "a,never"], "trials.csv:2: no wanted, got, each"),
        ([",".join(COLUMNS), "a,never,5,x,11000,0,0,0,0,0"], "trials.csv:2: found 'x'; got is a whole number"),
        ([",".join(COLUMNS), "a,never,5,2,11000,0,0,0,0,0"], "gt_snap"),
        (None, "trials.csv"),
    ],
)
def test_trials__what_cannot_be_read_is_refused(rows, message, tmp_path):
    if rows is not None:
        (tmp_path / "trials.csv").write_text("\n".join(rows))
    with pytest.raises(mm.InputError, match=message):
        run_trials(tmp_path)
