"""The compiled scanner of ftrace text: bytes in, columns out, the formats of the events as little programs.

It reads one line after the other and stops at the first that is none. The names of the events are strings 0, 1, ... of
the table that also takes the texts of the trace, so that finding a name is finding its events.

A program is a row of instructions `kind << 8 | value`. The value of LITERAL is the byte that must be there (a blank:
one or more of them), of the others the column that takes what was read.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined, kernel
from memmodel.sources.ftrace_bytes import (
    BLANK,
    BRACKET,
    COLON,
    DASH,
    DOT,
    END_BRACKET,
    HASH,
    NEWLINE,
    ZERO,
    Texts,
    before_blanks,
    decimal,
    hexadecimal,
    number_of,
    skip_blanks,
    skip_word,
)

__all__ = ["ABSENT", "DECIMAL", "END", "FUNCTION", "HEX", "LITERAL", "N_FIELDS", "POINTER", "TEXT", "WORD"]
__all__ += ["Columns", "Programs", "scan_lines", "state_dtype"]

N_FIELDS = 8
PFN = 0  # its column in every event that has one
FUNCTION = N_FIELDS - 1  # column of a list operation's function
ABSENT = -(1 << 63)  # no such field in this event, or not in this kernel's format of it

LITERAL, DECIMAL, HEX, WORD, TEXT, POINTER, END = range(7)
COMM_WIDTH = 16  # a wider one is the rest of another line
GT = (103, 116)


class Programs(NamedTuple):
    """The formats. Those of name i are `first[i]` to `first[i + 1]`, to be tried in this order."""

    names: npt.NDArray[np.uint8]  # of events, then words of list operations; each ends with a newline
    n_events: int  # how many of the names are events'
    first: npt.NDArray[np.int64]
    event: npt.NDArray[np.int64]  # by format: the event that it is
    start: npt.NDArray[np.int64]  # by format: where its program begins in `code`
    code: npt.NDArray[np.int64]


class Columns(NamedTuple):
    """One entry a line that is an event, but `asides`: (line, offset) of those that begin with # or CPU:."""

    line: npt.NDArray[np.int64]
    cpu: npt.NDArray[np.uint16]
    pid: npt.NDArray[np.int32]
    time_ns: npt.NDArray[np.int64]
    irqs_off: npt.NDArray[np.bool_]
    context: npt.NDArray[np.uint8]
    preempt_depth: npt.NDArray[np.uint8]
    event: npt.NDArray[np.uint8]
    comm: npt.NDArray[np.int32]
    fields: npt.NDArray[np.int64]
    asides: npt.NDArray[np.int64]


state_dtype = np.dtype(
    [
        ("n_rows", "i8"),
        ("n_asides", "i8"),
        ("n_texts", "i8"),
        ("line", "i8"),  # the line at hand: where the scan stopped, the one that is none of ours
        ("offset", "i8"),  # where it begins, or its name where it has one
        ("name", "i8"),  # the number of the name, or -1
    ]
)


@inlined
def fixed_part(data: Any, at: int, end: int) -> tuple[int, int, int, int, int]:
    """``-pid [cpu] flags time: `` at the dash `at`: its end (-1: it is none), pid, cpu, where the flags are, time.

    comm has at most 15 bytes, which is less than this part has, and no byte of it but the first is a dash: what matches
    first is the only one.
    """
    nothing = -1, 0, 0, 0, 0
    stop, pid = decimal(data, at + 1, end)
    bracket = skip_blanks(data, stop, end)
    if stop == at + 1 or stop > at + 10 or bracket == stop or bracket >= end or data[bracket] != BRACKET:
        return nothing
    stop, cpu = decimal(data, bracket + 1, end)
    if stop == bracket + 1 or cpu > 0xFFFF or end - stop < 2 or data[stop] != END_BRACKET or data[stop + 1] != BLANK:
        return nothing
    flags = stop + 2
    stop = skip_word(data, flags, end)
    if not flags_fit(data, flags, stop):
        return nothing
    first = skip_blanks(data, stop, end)
    stop, seconds = decimal(data, first, end)
    if stop == first or stop > first + 9 or stop >= end or data[stop] != DOT:
        return nothing
    first = stop + 1
    stop, micros = decimal(data, first, end)
    if stop != first + 6 or end - stop < 2 or data[stop] != COLON or data[stop + 1] != BLANK:
        return nothing
    return stop + 2, pid, cpu, flags, seconds * 1_000_000_000 + micros * 1000


@inlined
def flags_fit(data: Any, at: int, end: int) -> bool:
    """Whether these are four or five latency flags: . or a letter, then . or a hex digit."""
    if end - at < 4 or end - at > 5:
        return False
    for i in range(at, end):
        byte = int(data[i])
        letter = 97 <= byte <= 122 or 65 <= byte <= 90
        digit = 48 <= byte <= 57 or 97 <= byte <= 102
        if byte != DOT and not (letter if i < at + 3 else digit):
            return False
    return True


@inlined
def put_flags(columns: Columns, row: int, data: Any, at: int) -> None:
    """Interrupts off, the context (0 task, 1 softirq, 2 hard interrupt, 3 NMI) and the depth of preempt_disable()."""
    columns.irqs_off[row] = data[at] == 100 or data[at] == 68  # d, D
    byte = int(data[at + 2])
    context = 0
    if byte == 115:  # s
        context = 1
    elif byte == 104 or byte == 72:  # h, H: in a softirq
        context = 2
    elif byte == 122 or byte == 90:  # z, Z: in a hard interrupt
        context = 3
    columns.context[row] = context
    columns.preempt_depth[row] = hexadecimal(data, at + 3, at + 4)[1]


@inlined
def field(data: Any, at: int, end: int, kind: int, stop_at: int) -> tuple[int, int]:
    """Where the field of this kind that begins at `at` ends, and its number; of a pointer 0 if it is NULL."""
    if kind == DECIMAL:
        minus = 1 if at < end and data[at] == DASH else 0
        stop, value = decimal(data, at + minus, end)
        return (at if stop == at + minus else stop), (-value if minus else value)
    if kind == HEX:
        return hexadecimal(data, at, end)
    stop, value = at, 0
    while stop < end and data[stop] != stop_at:
        value |= int(data[stop]) ^ ZERO
        stop += 1
    return stop, value


@inlined
def matches(code: Any, step: int, data: Any, at: int, end: int, out: tuple[Any, int, Texts, Any]) -> bool:
    """Whether data[at:end] has this format; its fields go to a row of `out`, which is cleared."""
    fields, row, texts, state = out
    for i in range(N_FIELDS):
        fields[row, i] = ABSENT
    null = False
    while code[step] >> 8 != END:
        kind, value = code[step] >> 8, code[step] & 255
        step += 1
        if kind == LITERAL:
            if at >= end or data[at] != value:
                return False
            at = skip_blanks(data, at + 1, end) if value == BLANK else at + 1
            continue
        stop, number = field(data, at, end, kind, (code[step] & 255) if kind == TEXT else BLANK)
        if stop == at and kind != TEXT:
            return False
        if kind == POINTER:
            null = number == 0
        elif kind == WORD or kind == TEXT:
            number = number_of(texts, state, data, at, before_blanks(data, at, stop))
        if kind != POINTER:
            fields[row, value] = number
        at = stop
    if null:
        fields[row, PFN] = -1
    return at == end


@inlined
def scan_name(programs: Programs, texts: Texts, state: Any, data: Any, at: int, end: int) -> tuple[int, int, int]:
    """`name: payload`: where the payload begins (-1: this is none), the name's number, and the number of the name
    that has the formats: a list operation comes under the name of its function, its own name is the first word.
    """
    stop = at
    while stop < end and data[stop] != COLON and data[stop] != BLANK:
        stop += 1
    if stop == at or stop == end or data[stop] != COLON or (stop + 1 < end and data[stop + 1] != BLANK):
        return -1, -1, -1
    name = number_of(texts, state, data, at, stop)
    at = min(stop + 2, end)
    if name >= programs.n_events and end - at > 1 and data[at] == GT[0] and data[at + 1] == GT[1]:
        stop = skip_word(data, at, end)
        word = number_of(texts, state, data, at, stop)
        if word >= programs.n_events and word < programs.first.size - 1:
            return skip_blanks(data, stop, end), name, word
    return at, name, name


@inlined
def is_aside(data: Any, begin: int, end: int) -> bool:
    """Whether the line begins with # or CPU:, as no line does that has a task (comm is padded to 16 bytes)."""
    if data[begin] == HASH:
        return True
    if end - begin < 4 or data[begin + 3] != COLON:
        return False
    return bool(data[begin] == 67 and data[begin + 1] == 80 and data[begin + 2] == 85)


@inlined
def scan_event(programs: Programs, texts: Texts, columns: Columns, state: Any, data: Any, span: Any) -> int:
    """Scan the line from its name on; as `scan_line`, but for what lies before the name."""
    at, end = span
    row = int(state[0].n_rows)
    payload, name, known = scan_name(programs, texts, state, data, at, end)
    if payload < 0:
        return -1
    if known >= programs.first.size - 1:
        texts.n_unknown[name] += 1
        return 0
    state[0].name = known
    for i in range(programs.first[known], programs.first[known + 1]):
        if matches(programs.code, programs.start[i], data, payload, end, (columns.fields, row, texts, state)):
            columns.line[row] = state[0].line
            columns.event[row] = programs.event[i]
            if known != name:
                columns.fields[row, FUNCTION] = name
            return 1
    return -1


@inlined
def scan_line(programs: Programs, texts: Texts, columns: Columns, state: Any, data: Any, span: Any) -> int:
    """1: the line is an event and its row is filled; 0: it is something else that may be; -1: it is none of ours."""
    begin, end = span
    at = comm = skip_blanks(data, begin, end)
    if at == end:
        return 0
    if is_aside(data, begin, end):
        columns.asides[state[0].n_asides, 0] = state[0].line
        columns.asides[state[0].n_asides, 1] = begin
        state[0].n_asides += 1
        return 0
    after = -1
    pid = cpu = flags = time_ns = 0
    last = min(end, begin + COMM_WIDTH + 1)
    while at < last and after < 0:
        if data[at] == DASH:
            after, pid, cpu, flags, time_ns = fixed_part(data, at, end)
        at += 1
    if after < 0:
        return -1
    state[0].offset = after
    found = scan_event(programs, texts, columns, state, data, (after, end))
    if found == 1:
        row = int(state[0].n_rows)
        columns.cpu[row] = cpu
        columns.pid[row] = pid
        columns.time_ns[row] = time_ns
        columns.comm[row] = number_of(texts, state, data, comm, at - 1)
        put_flags(columns, row, data, flags)
    return found


@kernel
def scan_lines(data: Any, n_bytes: int, programs: Programs, texts: Texts, columns: Columns, state: Any) -> bool:
    """Scan the first `n_bytes` of `data`, whose last is a newline; whether all the lines are ours.

    There is room in `columns` for as many entries as there are lines, and in `texts` for five strings a line.
    """
    names = programs.names
    begin = 0 * n_bytes  # a literal 0 would have everything compiled twice
    for i in range(names.size):
        if names[i] == NEWLINE:
            number_of(texts, state, names, begin, i)
            begin = i + 1
    begin = 0 * n_bytes
    while begin < n_bytes:
        end = begin
        while data[end] != NEWLINE:
            end += 1
        state[0].line += 1
        state[0].offset = begin
        state[0].name = -1
        found = scan_line(programs, texts, columns, state, data, (begin, before_blanks(data, begin, end)))
        if found < 0:
            return False
        state[0].n_rows += found
        begin = end + 1
    return True
