"""Memory failures as kernels were seen to handle them: a line a case in tests/data, read from the recordings of R4."""

import csv
import lzma
import re
from pathlib import Path
from typing import NamedTuple

KERNELS = {"R4-61": "6.1", "R4-612gt": "6.12.117", "R4-73": "7.3"}
DATA = Path(__file__).parent.parent / "data" / "memory_failures.csv"
NOT_COMPARED = 1 << 2 | 1 << 6  # REFERENCED and ACTIVE depend on when pages were touched


class Case(NamedTuple):
    """One case of one kernel. -1: it does not apply."""

    recording: str
    how: str
    page: str
    pfn: int
    rc: int  # -1000: a signal came out of the call
    errno: int
    signal: int
    si_code: int
    lsb: int
    second_signal: int
    second_si_code: int
    moved: int
    corrupted_kib: int
    flags_before: int
    flags_after: int
    pread_errno: int
    fsync_errno: int
    n_splits: int
    other_end: int  # of another process that maps the page: 0 it lives, 1 killed by touching it, 2 killed before
    pid: int
    other_pid: int
    address: int
    log: tuple[str, ...]


def read_cases(path=DATA):
    """The cases of the data file."""
    with path.open() as file:
        return [_typed(row) for row in csv.DictReader(file)]


def _typed(row):
    words = {"recording", "how", "page", "log"}
    fields = {name: value if name in words else int(value, 0) for name, value in row.items()}
    return Case(**{**fields, "log": tuple(filter(None, row["log"].split(" | ")))})


def write_cases(cases, path):
    """The data file."""
    hexadecimal = {"flags_before", "flags_after", "address"}
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(Case._fields)
        for case in cases:
            fields = case._replace(log=" | ".join(case.log))._asdict()
            out.writerow(hex(v) if name in hexadecimal and v >= 0 else v for name, v in fields.items())


def read_recordings(records):
    """The same cases from whole recordings."""
    cases = []
    for recording in KERNELS:
        folder = Path(records) / recording
        lines = _log_by_case(folder)
        for text in (folder / "results.txt").read_text().splitlines():
            if " CASE " in text:
                cases.append(_case(recording, text, lines.pop(0)))
    return cases


def read_trace(records, recording):
    """What a recording's trace says: memory_failure_event lines, and (pid, si_code) of each SIGBUS."""
    text = lzma.open(Path(records) / recording / "trace.txt.xz", "rt", errors="replace").read()
    events = re.findall(r"memory_failure_event: pfn .*", text)
    signals = re.findall(r"signal_generate: sig=7 errno=\d+ code=(\d+) comm=\S+ pid=(\d+)", text)
    return events, [(int(pid), int(code)) for code, pid in signals]


def _log_by_case(folder):
    """The log's lines about memory failures, in as many lists as there are cases.

    A case begins with the line of its injection; the one beyond memory has none. Its place follows from the order of
    the cases.
    """
    wanted = (
        "Injecting memory failure",
        "Memory failure: ",
        "MCE: Killing",
        "Soft offlin",
        "soft offline",
        "Unpoison: ",
    )
    starts = ("Injecting memory failure for", "Soft offlining", "Injecting memory failure at", "Unpoison: ")
    names = [line.split()[2:4] for line in (folder / "results.txt").read_text().splitlines() if " CASE " in line]
    lists = []
    for line in lzma.open(folder / "dmesg.txt.xz", "rt"):
        text = re.sub(r"^<\d>\[[^\]]*\] ", "", line.rstrip("\n"))
        if not text.startswith((*wanted, "soft_offline_page: ")):
            continue
        if lists and names[len(lists) - 1][1] == "anon_again" and text.startswith("Injecting memory failure at"):
            lists[-1].append(text)  # that case has two
        elif text.startswith(starts):
            if names[len(lists)][1] == "beyond_memory":
                lists.append([])
            lists.append([text])
        else:
            lists[-1].append(text)
    return lists


def _end_of_other(text):
    """It touches the page a second after it was made."""
    found = re.search(r"other process status=(\w+) .*?(?:after ([\d.]+) s|thp)", text)
    if found is None:
        return -1
    return 0 if found[1] == "0" else 1 if float(found[2] or 1) > 0.5 else 2


def _number(pattern, text, default=-1):
    found = re.search(pattern, text)
    return default if found is None else int(found[1], 0)


def _case(recording, text, log):
    _, _, how, page, rest = text.split(maxsplit=4)
    first, _, second = rest.partition(" then: ")
    pids = [int(pid) for line in log for pid in re.findall(r" (?:to|Killing) \w+:(\d+) ", line)]
    pid = pids[0] if pids else 0
    pfn, new_pfn = _number(r"pfn=(\d+)", first), _number(r"new_pfn=(\d+)", second)
    rc = _number(r" rc=(-?\d+)", first)
    read, read_errno = _number(r"pread=(-?\d+)", second, None), _number(r"pread=-?\d+ errno=(\d+)", second)
    return Case(
        recording,
        how,
        page,
        pfn,
        rc if second or rc >= 0 else -1,
        _number(r"errno=(\d+)", first) if second else max(-rc, 0),
        *(_number(rf"{name}=(\d+)", first) for name in ("signal", "si_code", "lsb")),
        *(_number(rf"{name}=(\d+)", second) for name in ("signal", "si_code")),
        -1 if new_pfn < 0 else int(new_pfn not in (0, pfn)),
        _number(r"HardwareCorrupted_kB=([+-]\d+)", rest),
        _number(r"kpageflags (0x\w+) ->", rest),
        _number(r"kpageflags_after=(0x\w+|0)", rest) if second else _number(r"-> (0x\w+|0)", rest),
        -1 if read is None else read_errno,
        _number(r"fsync=(\d+)", second),
        _number(r"thp_split_page\+(\d+)", second, 0),
        _end_of_other(second),
        pid,
        next((other for other in pids if other != pid), 0),
        _number(r"virtual address (0x\w+)", " ".join(log)),
        tuple(log),
    )
