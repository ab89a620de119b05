"""ftrace text (trace, trace_pipe) as a table of arrays.

The lines are as the kernel prints them by default: ``comm-pid [cpu] flags seconds.micros: event: fields``, with the
option irq-info and a clock in seconds. What is read of the fields is in `memmodel.sources.ftrace_events`.
"""

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.sources.ftrace_bytes import Texts
from memmodel.sources.ftrace_events import FIELDS, FORMATS, TEXT_FIELDS, Event, event_name, programs
from memmodel.sources.ftrace_scanner import ABSENT, N_FIELDS, Columns, scan_lines, state_dtype
from memmodel.sources.reading import PathLike, read_bytes, refuse, sha256
from memmodel.sources.records import BoolArray, IntArray

__all__ = [
    "ABSENT",
    "FIELDS",
    "FORMATS",
    "TEXT_FIELDS",
    "Context",
    "Event",
    "Lost",
    "Trace",
    "parse_trace",
    "read_trace",
]

_NOT_BLANK = re.compile(rb"\S")
_ENTRIES = re.compile(r"# *entries-in-buffer/entries-written: *(\d+)/(\d+)")
_LOST = re.compile(r"CPU:(\d+) \[LOST (?:(\d+) )?EVENTS\]\s*")


class Context(IntEnum):
    """What the CPU was doing (latency flag 3); a hard interrupt may have come upon a softirq."""

    TASK = 0
    SOFTIRQ = 1
    HARDIRQ = 2
    NMI = 3


@dataclass(frozen=True)
class Lost:
    """Events of a CPU that its buffer did not hold, at this line; `n_events` is None where the kernel did not know."""

    line: int
    cpu: int
    n_events: int | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """The events of a trace in their order, a row each.

    `line` counts from 1. `time_ns` is the trace's own clock (exact to microseconds). `preempt_depth` is the nesting of
    preempt_disable(). `event` has `Event` numbers, `context` those of `Context`; `comm` are numbers of `strings`.
    `fields[row, column]` are the fields, `FIELDS[event][name]` is their column: pfn, order and migratetype of any event
    are columns 0, 1 and 2, ABSENT is a field that the event has not. Fields in `TEXT_FIELDS` are numbers of `strings`.
    pfn is -1 where the page is NULL: an allocation that failed. Migratetypes are the kernel's: one that is built
    without CMA calls ISOLATE 4, and a trace does not tell.

    `unknown` counts the events of other names. `overwritten` is how many events the buffer had lost before it was read
    (header entries-in-buffer/entries-written), `lost` are the gaps between those that are there. `truncated` is the
    line number of a last line that is cut, and was left out.
    """

    line: IntArray
    cpu: npt.NDArray[np.uint16]
    pid: npt.NDArray[np.int32]
    time_ns: IntArray
    irqs_off: BoolArray
    context: npt.NDArray[np.uint8]
    preempt_depth: npt.NDArray[np.uint8]
    event: npt.NDArray[np.uint8]
    comm: npt.NDArray[np.int32]
    fields: IntArray
    strings: tuple[str, ...]
    unknown: Mapping[str, int]
    lost: tuple[Lost, ...]
    overwritten: int
    truncated: int | None
    source: str
    sha256: str

    def __len__(self) -> int:
        return int(self.line.size)

    def rows(self, *events: Event) -> IntArray:
        """Rows of these events, ascending."""
        found: IntArray = np.flatnonzero(np.isin(self.event, events))
        return found

    def column(self, event: Event, field: str) -> IntArray:
        """One field of all the events of a kind, in the order of `rows`."""
        column: IntArray = self.fields[self.event == event, FIELDS[event][field]]
        return column

    def values(self, row: int) -> dict[str, int | str]:
        """The fields of one row by name, numbers and texts, without absent ones."""
        columns = FIELDS[Event(self.event[row])]
        found = {name: int(self.fields[row, at]) for name, at in columns.items() if self.fields[row, at] != ABSENT}
        return {name: self.strings[value] if name in TEXT_FIELDS else value for name, value in found.items()}


def read_trace(path: PathLike) -> Trace:
    """The events in a file of ftrace text, which may be compressed (.gz, .xz, .zst).

    Raises
    ------
    InputError
        If the file cannot be read, is no ftrace text, or a line other than the last is cut or is not what the kernel
        prints for its event: the message has its number. A last line without an end, or that cannot be read, is left
        out and is `Trace.truncated`.
    """
    data, digest = read_bytes(path)
    return parse_trace(data, os.fspath(path), digest)


def parse_trace(data: bytes, source: str, digest: str | None = None) -> Trace:
    """The events in the bytes of a trace; `source` names them in complaints, `digest` is their SHA-256 if it is known.

    Raises
    ------
    InputError
        As `read_trace`.
    """
    if not data:
        raise InputError(f"{source}: the file is empty")
    n_lines, end = data.count(b"\n"), data.rfind(b"\n") + 1
    columns, texts = _columns(n_lines), _texts(n_lines, len(data))
    state = np.zeros(1, state_dtype).view(np.recarray)
    good = scan_lines(np.frombuffer(data, np.uint8), end, programs(), texts, columns, state)
    found = state[0]
    asides = _Asides(data, columns.asides[: found.n_asides])
    truncated: int | None = None
    if asides.bad or not good:
        truncated, offset, name = asides.bad or (int(found.line), int(found.offset), int(found.name))
        line_end = data.index(b"\n", offset)
        if _NOT_BLANK.search(data, line_end):
            raise refuse(source, truncated, _decode(data[offset:line_end]).strip(), _expected(name))
    elif _NOT_BLANK.search(data, end):
        truncated = n_lines + 1
    strings = _strings(texts, int(found.n_texts))
    unknown = {strings[i]: int(texts.n_unknown[i]) for i in np.flatnonzero(texts.n_unknown[: len(strings)])}
    if not (found.n_rows or unknown or asides.headed or asides.lost):
        raise refuse(source, truncated or 1, _decode(data[:80]).strip(), f"{_expected(-1)}, and there is none in it")
    return Trace(
        **{name: column[: found.n_rows] for name, column in columns._asdict().items() if name != "asides"},
        strings=strings,
        unknown=unknown,
        lost=tuple(asides.lost),
        overwritten=asides.overwritten,
        truncated=truncated,
        source=source,
        sha256=digest or sha256(data),
    )


class _Asides:
    """What the lines say that are no events; `bad` is (line, offset, -1) of one that says nothing."""

    def __init__(self, data: bytes, lines: IntArray) -> None:
        self.headed, self.overwritten, self.lost = False, 0, list[Lost]()
        self.bad: tuple[int, int, int] | None = None
        for line, offset in lines.tolist():
            text = _decode(data[offset : data.index(b"\n", offset)])
            if entries := _ENTRIES.match(text):
                self.overwritten += max(0, int(entries[2]) - int(entries[1]))
            self.headed |= bool(entries) or text.startswith("# tracer:")
            if lost := _LOST.fullmatch(text):
                self.lost.append(Lost(line, int(lost[1]), int(lost[2]) if lost[2] else None))
            elif not text.startswith("#"):
                self.bad = self.bad or (line, offset, -1)


def _columns(n_lines: int) -> Columns:
    """Room for as many events as there are lines; memory that is not written to costs nothing."""
    kinds = {"line": "i8", "cpu": "u2", "pid": "i4", "time_ns": "i8", "irqs_off": "?", "context": "u1"}
    kinds |= {"preempt_depth": "u1", "event": "u1", "comm": "i4"}
    columns = {name: np.empty(n_lines, kind) for name, kind in kinds.items()}
    return Columns(**columns, fields=np.empty((n_lines, N_FIELDS), np.int64), asides=np.empty((n_lines, 2), np.int64))


def _texts(n_lines: int, n_bytes: int) -> Texts:
    """Room for all the strings of `n_lines`, and for the names of the events."""
    n_name_bytes = programs().names.size
    n_strings = 5 * n_lines + n_name_bytes
    return Texts(
        slots=np.zeros(1 << (2 * n_strings).bit_length(), np.int32),
        start=np.zeros(n_strings + 1, np.int64),
        text=np.empty(n_bytes + n_name_bytes, np.uint8),
        n_unknown=np.zeros(n_strings, np.int64),
    )


def _strings(texts: Texts, n_strings: int) -> tuple[str, ...]:
    bounds = texts.start[: n_strings + 1].tolist()
    return tuple(_decode(texts.text[begin:end].tobytes()) for begin, end in itertools.pairwise(bounds))


def _decode(data: bytes) -> str:
    """Bytes as text; a comm may have any bytes."""
    return data.decode("utf-8", "backslashreplace")


def _expected(name: int) -> str:
    """What should be there: the formats of the name with this number, or (-1) a line as the kernel prints it."""
    if name < 0:
        return "a line of a trace is 'comm-pid [cpu] flags seconds.micros: event: fields'"
    known = programs()
    events = sorted({Event(event) for event in known.event[known.first[name] : known.first[name + 1]]})
    texts = [re.sub("{([^}:]*)[^}]*}", r"<\1>", text) for event in events for text in FORMATS[event]]
    return f"the fields of {event_name(events[0])} are {' or '.join(texts)}"
