"""The compaction cost of mmtests: all published rows, with the bug that they were made with."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.cost.compaction import compaction_cost, published_compaction_costs
from memmodel.geometry import Geometry

ROWS = published_compaction_costs()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.case)
def test_compaction_cost__published(row):
    assert int(compaction_cost(row.counters)) == row.cost


def test_compaction_cost__what_the_missing_term_would_add():
    """Up to 4.6 times the published number; where no free scan was counted nothing."""
    assert len(ROWS) == 22
    ratios = [compaction_cost(row.counters, free_scan=True) / compaction_cost(row.counters) for row in ROWS]
    scanned = [row.counters.get("compact_free_scanned", 0) for row in ROWS]
    assert [ratio > 1 for ratio in ratios] == [count > 0 for count in scanned]
    assert int(compaction_cost(ROWS[0].counters, free_scan=True)) == (
        int((7 * 168160492 + 19 * 7868232 + 1038 * 3781876 + 14 * 45817 + 7 * 2522142582) / 1e6)
    )
    assert max(ratios) == pytest.approx(4.64, abs=0.005)


def test_compaction_cost__arrays_and_vmstat():
    counts = np.array([0, 1000, 2000])
    assert compaction_cost({"pgmigrate_success": counts, "other": 3}).tolist() == [0, 1.038, 2.076]
    mem = mm.PhysicalMemory(Geometry(), "64MiB", nodes=2, seed=0)
    mm.migrate_pages(mem, mm.alloc_pages(mem, count=100), 1)
    assert compaction_cost(mem.vmstat()) == pytest.approx(100 * 1038 / 1e6)


@pytest.mark.parametrize(
    ("counters", "message"),
    [
        ({"pgfault": 3}, "no counter of compaction; one of: compact_migrate_scanned"),
        ({"pgmigrate_fail": -1}, "pgmigrate_fail -1; counts are whole numbers"),
        ({"pgmigrate_fail": 1.5}, "pgmigrate_fail 1.5"),
        ({"pgmigrate_fail": "many"}, "pgmigrate_fail 'many'"),
    ],
)
def test_compaction_cost__bad_input(counters, message):
    with pytest.raises(mm.InputError, match=message):
        compaction_cost(counters)
