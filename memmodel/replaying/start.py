"""Where a replay begins: the memory, the dumps to compare, the place in the trace."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.memory import PhysicalMemory
from memmodel.sources.freelists import parse_free_lists
from memmodel.sources.ftrace import Event, Trace
from memmodel.sources.procfs import parse_version
from memmodel.sources.reading import PathLike, read_text
from memmodel.sources.records import FreeLists, Snapshot
from memmodel.sources.snapshot import read_snapshot

__all__ = ["Start", "end_row", "read_files", "read_start"]


class Start(NamedTuple):
    """Where a replay begins."""

    memory: PhysicalMemory
    dumps: list[FreeLists]
    """Of the free lists; the first is the memory."""
    first_row: int
    """Of the trace: what comes after the dump was taken; 0 if no mark says where that is."""
    label: str
    """Of the mark; a memory has none."""


def read_start(
    start: PhysicalMemory | Snapshot | PathLike, trace: Trace, kernel: str | None, geometry: Geometry | None
) -> Start:
    """The memory to begin with, and the row behind the mark of its dump.

    Raises
    ------
    InputError
        If the trace has no event of the kmem group, or none after the start, or the start is no state.
    """
    if not np.any(np.isin(trace.event, [Event.MM_PAGE_ALLOC, Event.MM_PAGE_FREE])):
        raise InputError(f"{trace.source}: no mm_page_alloc or mm_page_free event; the group kmem must be traced")
    memory, dumps = _memory(start, kernel, geometry)
    label = "" if isinstance(start, (PhysicalMemory, Snapshot)) else Path(start).name
    row = _first_row(trace, dumps, label)
    if row >= len(trace):
        raise InputError(f"{trace.source}: no event after the mark of the start")
    return Start(memory, dumps, row, dumps[0].label if dumps else label)


def _memory(
    start: PhysicalMemory | Snapshot | PathLike, kernel: str | None, geometry: Geometry | None
) -> tuple[PhysicalMemory, list[FreeLists]]:
    if isinstance(start, PhysicalMemory):
        return start, []
    dumps: list[FreeLists] = []
    if not isinstance(start, Snapshot):
        start, dumps = read_files(start)
    elif start.free_lists is not None:
        dumps = [start.free_lists]
    return PhysicalMemory.from_snapshot(start, geometry, kernel=kernel), dumps


def read_files(path: PathLike) -> tuple[Snapshot, list[FreeLists]]:
    """A snapshot folder, or a dump.

    In a recording's folder (gt_snap, snap/LABEL, version) what lies beside them is read too: the /proc files of the
    dump's first label, and which kernel it was.
    """
    here = Path(path)
    if here.is_dir():
        recording = here / "../.." if here.absolute().parent.name == "snap" else here
        snapshot = _name_kernel(read_snapshot(path), recording / "version")
        return snapshot, [] if snapshot.free_lists is None else [snapshot.free_lists]
    text, digest = read_text(path)
    dumps = list(parse_free_lists(text, os.fspath(path)))
    beside = here.parent / "snap" / dumps[0].label
    files = read_snapshot(beside) if beside.is_dir() else Snapshot(zones={})
    files = _name_kernel(replace(files, files={os.fspath(path): digest, **files.files}), here.parent / "version")
    return replace(files, free_lists=dumps[0]), dumps


def _name_kernel(snapshot: Snapshot, version: Path) -> Snapshot:
    """The snapshot with the kernel's name from a /proc/version outside its folder, if there is one."""
    if snapshot.kernel is not None or not version.is_file():
        return snapshot
    text, digest = read_text(version)
    kernel = parse_version(text, os.fspath(version))
    return replace(snapshot, kernel=kernel, files={**snapshot.files, os.fspath(version): digest})


def _first_row(trace: Trace, dumps: Sequence[FreeLists], label: str) -> int:
    """The row behind the mark of the start's dump, or of its folder; 0 if the trace has none."""
    if dumps:
        for row in trace.rows(Event.DUMP_BEGIN).tolist():
            if trace.values(row)["label"] == dumps[0].label:
                return int(row) + 1
    return _mark(trace, f"snap {label} end") + 1


def end_row(trace: Trace, end: Snapshot | PathLike | None) -> int | None:
    """The row of the mark that the end snapshot begins to be read, if the trace has it."""
    if end is None or isinstance(end, Snapshot):
        return None
    row = _mark(trace, f"snap {Path(end).name} begin")
    return None if row < 0 else row


def _mark(trace: Trace, text: str) -> int:
    """Row of the first mark with this text, or -1."""
    for row in trace.rows(Event.TRACING_MARK_WRITE).tolist():
        if str(trace.values(row)["text"]).strip() == text:
            return int(row)
    return -1
