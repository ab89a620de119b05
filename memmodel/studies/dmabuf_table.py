"""The published dma-buf benchmark of the PAGE_BLOCK_ORDER patch, as posted, and what its rows say.

100,000 allocations of 8 MiB to 4 KiB on the system heap of a 16 KiB kernel, ten runs each with pageblocks of order 10
and 7, instructions and page faults by simpleperf.
"""

import csv
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["SOURCE", "DmaBufTable", "Paired", "dmabuf_table", "paired"]

SOURCE = "20250501052532.1903125-1-jyescas@google.com"
METRICS = ("instructions", "page_faults")


class DmaBufTable(NamedTuple):
    """Runs by (metric, pageblock order), and the means as published."""

    runs: dict[tuple[str, int], npt.NDArray[np.float64]]
    means: dict[tuple[str, int], float]
    malformed: tuple[int, str]
    """Run and text of the number that lost its last digit; among the runs it ends in 0, which is off by 7e-10."""


class Paired(NamedTuple):
    """Two settings compared run by run."""

    n: int
    mean_10: float
    mean_7: float
    change_percent: float
    """Of the means."""
    t: float
    p: float
    """Two-sided, of the paired t test."""


def dmabuf_table() -> DmaBufTable:
    """The rows of the first posting, April 2025."""
    text = (files("memmodel") / "studies" / "data" / "dmabuf.csv").read_text(encoding="utf-8")
    *rows, last = csv.DictReader(text.splitlines())
    runs, means, malformed = {}, {}, []
    for metric in METRICS:
        for order in (10, 7):
            name = f"{metric}_order_{order}"
            runs[metric, order] = np.array([_number(row[name]) for row in rows])
            means[metric, order] = _number(last[name])
            malformed += [(int(row["run"]), row[name]) for row in rows if _lost_digits(row[name])]
    return DmaBufTable(runs, means, *malformed)


def _lost_digits(text: str) -> int:
    """Digits missing in the last group of three."""
    *_, last = text.split(",")
    return 3 - len(last) if "," in text else 0


def _number(text: str) -> float:
    return float(text.replace(",", "") + "0" * _lost_digits(text))


def paired(table: DmaBufTable, metric: str = "instructions", leave_out: tuple[int, ...] = ()) -> Paired:
    """Order 7 against order 10, without some runs (numbered from 1)."""
    from scipy.stats import ttest_rel

    kept = np.array([run not in leave_out for run in range(1, table.runs[metric, 10].size + 1)])
    before, after = table.runs[metric, 10][kept], table.runs[metric, 7][kept]
    test = ttest_rel(after, before)
    change = 100 * (after.mean() / before.mean() - 1)
    numbers = (float(n) for n in (before.mean(), after.mean(), change, test.statistic, test.pvalue))
    return Paired(int(kept.sum()), *numbers)
