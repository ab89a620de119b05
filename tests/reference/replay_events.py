"""The events of an ftrace text, as far as a replay of the page allocator needs them, and what only later events tell.

List operations of an instrumented kernel stand in the text as `gt...` words. A replay may know those of GIVEN alone;
`gtd pfn order` marks a free that found its page set locked and went straight to the buddy lists.
"""

import lzma
import re
from itertools import pairwise
from typing import NamedTuple

# The task's name may hold blanks and dashes: the last "-pid" before the CPU ends it.
LINE = re.compile(r"^\s*(.+)-(\d+)\s+\[(\d+)\]\s+(\S+)\s+([\d.]+): (\w+): (.*)$")
LOST = re.compile(r"LOST (\d+) EVENTS")
FIELD = re.compile(r"(\w+)=(\S+)")
OPERATION = re.compile(r"gt\S*( |$)")
# Functions whose operations are taken from the trace: compaction's and CMA's isolation, compaction's rotation.
GIVEN = frozenset({"__isolate_free_page", "compaction_alloc", "fast_isolate_freepages"})
ROTATES = "move_freelist_tail"  # only where rotations are predicted
DRAINERS = "mm_page_free", "mm_page_free_batched", "mm_page_pcpu_drain"
PAUSE_S = 0.15  # a trace without a line for so long: the CPUs were idle


class Event(NamedTuple):
    """One line of the trace; `name` is the event, or the function that an operation was made in."""

    line: int
    task: str
    cpu: int
    in_softirq: bool
    name: str
    text: str
    time_s: float

    @property
    def context(self):
        """Who runs: a softirq on top of a task is not that task."""
        return self.task, self.in_softirq

    @property
    def fields(self):
        return dict(FIELD.findall(self.text))

    @property
    def page(self):
        """(first pfn, order) of an mm_page_* event; a failed allocation has pfn 0."""
        fields = self.fields
        return int(fields["pfn"], 16), int(fields["order"])

    @property
    def scan(self):
        """(first pfn, pfn behind the last, pages taken) of compaction's isolate events."""
        start, _, end = self.text.removeprefix("range=(").split(")")[0].split()
        return int(start, 16), int(end, 16), int(self.fields["nr_taken"])

    @property
    def operation(self):
        """The words of a list operation ("gt-", pfn, ...), numbers as numbers; () for other events."""
        if not OPERATION.match(self.text):
            return ()
        return tuple(int(word) if word.isdigit() else word for word in self.text.split())


def open_text(path):
    return lzma.open(path, "rt", errors="replace") if str(path).endswith(".xz") else open(path, errors="replace")


def read_events(path):
    """All events of a trace from the first snapshot mark on, and the number of events that it says are lost."""
    events, n_lost, started = [], 0, False
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            match = LINE.match(line)
            if match is None:
                lost = LOST.search(line)
                n_lost += int(lost[1]) if lost else 0
                continue
            name, pid, cpu, flags, time, event, text = match.groups()
            started = started or text.startswith("gt S ")
            if started:
                softirq = flags[2] in "sH"
                events.append(Event(number, f"{name}-{pid}", int(cpu), softirq, event, text, float(time)))
    return events, n_lost


class Trace:
    """What a replay may know of a trace, whole or stripped of what the allocator must predict."""

    def __init__(self, path, given=GIVEN):
        events, self.n_lost = read_events(path)
        direct = lines_of_direct_frees(events)
        self.events = [event for event in events if not event.operation or known(event, given)]
        self.direct = {index for index, event in enumerate(self.events) if event.line in direct}
        self.batched = batched_frees(self.events)
        self.kswapd_ends = kswapd_ends(self.events)
        self.scan_starts = scan_starts(self.events)
        self.released = released_ranges(self.events)
        self.vmstat_runs = vmstat_runs(self.events)
        at = {event.line: index for index, event in enumerate(self.events)}
        self.interrupts = {
            at[cause]: {n_blocks: [at[line] for line in lines] for n_blocks, lines in parts.items()}
            for cause, parts in interrupts(events).items()
        }
        self.early = {index for parts in self.interrupts.values() for indices in parts.values() for index in indices}
        pairs = enumerate(pairwise(self.events), 1)
        self.pauses = {index for index, (before, after) in pairs if after.time_s - before.time_s > PAUSE_S}


def known(event, given):
    return event.name in given or event.operation[0] == "gt"


def lines_of_direct_frees(events):
    """Lines of the softirq frees that found the page set locked: marked, or seen as never pushed."""
    waiting, lines, previous = {}, set(), None
    whole = any(event.operation[:1] == ("gtp+",) for event in events)
    for event in events:
        words = event.operation
        if words[:1] == ("gtd",):
            lines.add(previous.line)
        elif event.name == "mm_page_free" and event.in_softirq and whole:
            waiting[event.page[0]] = event.line
        elif words[:1] == ("gtp+",):
            waiting.pop(words[1], None)
        elif words[:1] in (("gt-",), ("gtp-",)) and words[1] in waiting:
            lines.add(waiting.pop(words[1]))
        previous = event
    return lines | set(waiting.values())


def batched_frees(events):
    """Indices of the mm_page_free events whose page is pushed later, at its mm_page_free_batched."""
    last, batched = {}, set()
    for index, event in enumerate(events):
        if event.name == "mm_page_free":
            last[event.page[0]] = index
        elif event.name == "mm_page_free_batched":
            batched.add(last.pop(event.page[0]))
    return batched


def kswapd_ends(events):
    """Indices of the events before which a run of kswapd has ended.

    No event tells it: the run is over when another task shows up after kswapd's last own event before it wakes again
    or sleeps.
    """
    ends, running, last = set(), False, None
    for index, event in enumerate(events):
        if not event.task.startswith("kswapd") or event.in_softirq:
            continue
        if running and event.name in ("mm_vmscan_kswapd_wake", "mm_vmscan_kswapd_sleep"):
            ends.add(last + 1)
            running = False
        running = running or event.name == "mm_vmscan_kswapd_wake"
        last = index
    return ends | ({last + 1} if running else set())


def scan_starts(events):
    """For each mm_compaction_finished index the first pfn that the task's next scan for sources looked at, or None."""
    starts, waiting = {}, {}
    for index, event in enumerate(events):
        if event.name == "mm_compaction_finished":
            starts[index] = None
            waiting[event.task] = index
        elif event.name == "mm_compaction_isolate_migratepages" and event.task in waiting:
            starts[waiting.pop(event.task)] = event.scan[0]
    return starts


def released_ranges(events):
    """For each mm_page_free index of a cma_release, which comes after them: the range at its last page, else None."""
    found, releases = {}, {}
    for index in reversed(range(len(events))):
        event = events[index]
        if event.name == "cma_release":
            releases[event.task] = int(event.fields["pfn"], 16), int(event.fields["count"])
        elif event.name == "mm_page_free" and event.task in releases and not event.in_softirq:
            first, n_pages = releases[event.task]
            offset = event.page[0] - first
            if 0 <= offset < n_pages:
                found[index] = (first, n_pages) if offset == n_pages - 1 else None
            if offset == 0:
                del releases[event.task]
    return found


def vmstat_runs(events):
    """Indices of the first page that a kworker drains without having freed one: the vmstat worker's."""
    runs, last = set(), {}
    for index, event in enumerate(events):
        if not event.task.startswith("kworker") or event.in_softirq:
            continue
        name, at = last.get(event.task, ("", index))
        if event.name == "mm_page_pcpu_drain" and ((name == event.name and at < index - 1) or name not in DRAINERS):
            runs.add(index)
        last[event.task] = event.name, index
    return runs


def interrupts(events):
    """The softirq events amid a task's drain: line of the free that drains -> {blocks drained before: lines}."""
    found, frees, drains = {}, {}, {}  # drains: task -> (line of its free, blocks drained, softirq lines since)
    for event in events:
        kind, *pfn = event.operation[:2] or (event.name,)
        cause, n_drained, waiting = drains.get(event.task, (None, 0, ()))
        if kind in DRAINERS[:2]:
            frees[event.page[0]] = event.line
        if event.in_softirq:
            if kind == event.name:
                drains[event.task] = cause, n_drained, (*waiting, event.line)
        elif kind == "gtp+":
            drains[event.task] = frees.get(*pfn), 0, ()
        elif kind == "gtpd":
            if cause and waiting:
                found.setdefault(cause, {})[n_drained] = waiting
            drains[event.task] = cause, n_drained + 1, ()
        elif kind == event.name != "mm_page_pcpu_drain":
            drains.pop(event.task, None)
    return found
