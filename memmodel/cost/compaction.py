"""The "compaction cost" of mmtests: one number made of the compaction counters, in arbitrary units.

It prices nothing that the model knows: published tables of compaction series print it, and so it can be compared.
"""

import csv
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError

__all__ = ["FREE_SCAN_WEIGHT", "WEIGHTS", "CompactionCostRow", "compaction_cost", "published_compaction_costs"]

WEIGHTS: Mapping[str, int] = {
    "compact_migrate_scanned": 7,  # Ca
    "compact_isolated": 19,  # Ci
    "pgmigrate_success": 1038,  # Cmc
    "pgmigrate_fail": 14,  # Cmf
}
"""What the tool adds up, by the counters' names in /proc/vmstat."""
FREE_SCAN_WEIGHT = 7
"""Csm, of compact_free_scanned: the tool looks for it under a name that is in no file, and so it adds nothing."""
UNIT = 1_000_000


class CompactionCostRow(NamedTuple):
    """A published row."""

    case: str
    counters: Mapping[str, int]
    """Those that the source gives."""
    cost: int


def compaction_cost(
    counters: Mapping[str, npt.ArrayLike], *, free_scan: bool = False
) -> npt.NDArray[np.float64] | np.float64:
    """Cost of a run from its counters; published numbers are whole ones, rounded down.

    Parameters
    ----------
    counters
        By their names in /proc/vmstat, numbers or arrays of a shape; one that is not among them counts as 0, others do
        not matter. ``mem.vmstat()`` will do.
    free_scan
        Whether pages that the free scanner looked at are to count, as the tool means to and does not.

    Raises
    ------
    InputError
        If none of the counters is given, or one is negative or no number.

    References
    ----------
    gormanm/mmtests, MonitorMmtestsvmstat.pm.
    """
    weights = dict(WEIGHTS)
    if free_scan:
        weights["compact_free_scanned"] = FREE_SCAN_WEIGHT
    if not weights.keys() & counters.keys():
        raise InputError(f"no counter of compaction; one of: {', '.join(weights)}")
    total: npt.NDArray[np.int64] | np.int64 = np.int64(0)
    for name, weight in weights.items():
        total = total + weight * _counted(name, counters.get(name, 0))
    return total / UNIT


def _counted(name: str, value: npt.ArrayLike) -> npt.NDArray[np.int64]:
    counts = np.asarray(value)
    if counts.dtype.kind not in "iuf" or np.any(counts < 0) or np.any(counts != np.floor(counts)):
        raise InputError(f"{name} {value!r}; counts are whole numbers from 0 on")
    return counts.astype(np.int64)


def published_compaction_costs() -> tuple[CompactionCostRow, ...]:
    """22 rows of Vlastimil Babka's compaction series (2014 to 2016) and of migration alone."""
    text = (files("memmodel") / "studies" / "data" / "compaction_cost.csv").read_text(encoding="utf-8")
    rows = []
    for fields in csv.DictReader(text.splitlines()):
        case, cost = fields.pop("case"), int(fields.pop("cost"))
        rows.append(CompactionCostRow(case, {name: int(count) for name, count in fields.items() if count}, cost))
    return tuple(rows)
