"""Recorded trials: huge pages wanted in fragmented memory, one boot each, started from the dump before the first try.

What a task allocates between the dump and its tries, and what kswapd's shrinkers free, no file tells: the trials with
direct compaction need not all come out alike.
"""

import csv
import functools

import numpy as np
import pytest

import memmodel as mm
from memmodel.replaying.start import read_files
from tests.replaying.recorded import recording

PAGE_TABLE = "GFP_KERNEL|__GFP_ZERO|__GFP_ACCOUNT"
PAGE = "GFP_HIGHUSER_MOVABLE|__GFP_ZERO"
NOT_ALIKE = {  # trial: huge pages that the model gets, and the kernel
    "18-madvise-free30-unmov2048": (24, 25),
    "30-hugetlb-free30-unmov2048": (23, 24),
    "35-hugetlb-free50-unmov6144": (3, 2),
}
COUNTERS = ("compact_migrate_scanned", "compact_isolated", "pgmigrate_success")


def trials():
    with open(recording("R2-612gt") / "trials.csv", newline="") as file:
        return list(csv.DictReader(file))


def run(trial):
    """(huge pages, outcome of each fault as "1" or "0", growth of the counters)."""
    mem = mm.PhysicalMemory.from_snapshot(read_files(recording("R2-612gt") / trial["dir"] / "gt_snap.txt.xz")[0])
    before, wanted, each = dict(mem.vmstat()), int(trial["wanted"]), ""
    if trial["mode"] == "hugetlb":
        folios = mm.alloc_hugetlb(mem, wanted, compact=mm.try_to_compact_pages, kswapd=mm.WokenKswapd())
    else:
        folios = np.full(wanted, -1)
        for number in range(wanted):
            fault = mm.thp_fault(mem, 1, defrag=trial["mode"], compact=mm.try_to_compact_pages)
            folios[number] = fault.folios[0]
            each += "1" if fault.success[0] else "0"
            mm.alloc_pages(mem, 0, gfp=PAGE_TABLE)
            if not fault.success[0]:
                mm.alloc_pages(mem, 0, gfp=PAGE)
    mem.check()
    return int((folios >= 0).sum()), each, {name: mem.vmstat()[name] - before[name] for name in COUNTERS}


@functools.cache
def outcomes():
    """(trial, huge pages, each, counters) of all trials."""
    return [(trial, *run(trial)) for trial in trials()]


def is_alike(trial, got, each):
    return (got, each) == (int(trial["got"]), trial["each"])


def test_trials():
    apart = {
        trial["dir"]: (got, int(trial["got"])) for trial, got, each, _ in outcomes() if not is_alike(trial, got, each)
    }
    assert apart == NOT_ALIKE
    assert len(outcomes()) - len(apart) == 30


@pytest.mark.parametrize("counter", COUNTERS)
def test_trials__counters(counter):
    """Of the trials with direct compaction that come out alike, most count alike to two hundredths."""
    close = [
        abs(counts[counter] - int(trial[counter])) <= max(0.02 * int(trial[counter]), 50)
        for trial, got, each, counts in outcomes()
        if trial["mode"] != "never" and is_alike(trial, got, each)
    ]
    assert sum(close) >= 0.6 * len(close)
