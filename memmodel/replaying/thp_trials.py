"""Recorded trials, one boot each: huge pages wanted in fragmented memory, from the dump before the first try.

What the task allocates between the dump and its tries, and what kswapd's shrinkers free, no file tells.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memmodel.errors import InputError
from memmodel.mechanisms.buddy import alloc_pages
from memmodel.mechanisms.compaction import try_to_compact_pages
from memmodel.mechanisms.huge_pages import thp_fault
from memmodel.mechanisms.hugetlb import pool_folios
from memmodel.mechanisms.kswapd import WokenKswapd
from memmodel.mechanisms.policies import Steps
from memmodel.memory import PhysicalMemory
from memmodel.replaying.start import read_files
from memmodel.sources.reading import read_text, refuse

__all__ = ["Trial", "run_trials"]

PAGE_TABLE = "GFP_KERNEL|__GFP_ZERO|__GFP_ACCOUNT"
PAGE = "GFP_HIGHUSER_MOVABLE|__GFP_ZERO"
COUNTERS = ("compact_stall", "compact_migrate_scanned", "compact_free_scanned", "compact_isolated", "pgmigrate_success")
COLUMNS = ("dir", "mode", "wanted", "got", "each", *COUNTERS)


class Trial(NamedTuple):
    """One boot, and the model in its place."""

    name: str
    mode: str
    """"never", "madvise" (transparent_hugepage/defrag) or "hugetlb" (nr_hugepages)."""
    wanted: int
    recorded: int
    """Huge pages that came."""
    modelled: int
    recorded_each: str
    """"1" or "0" for each fault; empty for hugetlb."""
    modelled_each: str
    counters: dict[str, tuple[int, int]]
    """Growth of compaction's counters: recorded, modelled."""

    @property
    def alike(self) -> bool:
        """Whether each try came out as recorded."""
        return (self.recorded, self.recorded_each) == (self.modelled, self.modelled_each)


def run_trials(folder: Path) -> list[Trial]:
    """All trials of a recording: its trials.csv, and the dump in each one's folder.

    Raises
    ------
    InputError
        If a file cannot be read, or the table has not the columns that are needed.
    """
    table = str(folder / "trials.csv")
    text, _ = read_text(table)
    rows = list(csv.DictReader(text.splitlines()))
    for line, row in enumerate(rows, 2):
        missing = [name for name in COLUMNS if row.get(name) is None]
        if missing:
            raise InputError(f"{table}:{line}: no {', '.join(missing)}")
        for name in ("wanted", "got", *COUNTERS):
            if not row[name].isdecimal():
                raise refuse(table, line, row[name], f"{name} is a whole number")
    return [_run(folder, row) for row in rows]


def _run(folder: Path, row: dict[str, str]) -> Trial:
    mem = PhysicalMemory.from_snapshot(read_files(folder / row["dir"] / "gt_snap.txt.xz")[0])
    before, wanted = mem.vmstat(), int(row["wanted"])
    if row["mode"] == "hugetlb":
        folios = pool_folios(mem, wanted, steps=Steps(compact=try_to_compact_pages, kswapd=WokenKswapd()))
        got, each = int(np.count_nonzero(folios >= 0)), ""
    else:
        each = "".join("1" if _fault(mem, row["mode"]) else "0" for _ in range(wanted))
        got = each.count("1")
    after = mem.vmstat()
    counters = {name: (int(row[name]), after[name] - before[name]) for name in COUNTERS}
    return Trial(row["dir"], row["mode"], wanted, int(row["got"]), got, row["each"], each, counters)


def _fault(mem: PhysicalMemory, defrag: str) -> bool:
    """One touch of a new mapping: a huge page with a page table in reserve, or a page table and a page."""
    huge = bool(thp_fault(mem, 1, defrag=defrag, compact=try_to_compact_pages).success[0])
    alloc_pages(mem, 0, gfp=PAGE_TABLE)
    if not huge:
        alloc_pages(mem, 0, gfp=PAGE)
    return huge
