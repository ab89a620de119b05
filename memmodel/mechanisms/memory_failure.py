"""memory_failure(): what the kernel does about a page that has gone bad."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memmodel.errors import InputError
from memmodel.kernels import memory_failure as kernels
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.failure_signals import (
    BUS_MCEERR_AR,
    SIGBUS,
    Signal,
    Task,
    check_tasks,
    collected,
    signals,
)
from memmodel.mechanisms.gigantic import refuse_gigantic
from memmodel.state.failure_layout import Errno, MfFlag, MfNote, MfResult, MfType, Refused, event_dtype
from memmodel.state.layout import NONE, FolioBit
from memmodel.state.machine import Handles, Machine

__all__ = ["FailureOutcome", "block_of", "fail_row", "failure_flags", "handles_of", "memory_failure", "row_of"]

MAX_PFN = (1 << 52) - 1
# Plain numbers and words: with enums a failure of a free page takes twice as long.
FIRST_LINES = (
    (int(MfNote.UNHANDLABLE), "unhandlable page."),
    (int(MfNote.KEPT_IN_SWAP_CACHE), "keeping poisoned page in swap cache"),
    (int(MfNote.WAS_CLEAN), "corrupted page was clean: dropped without side effects"),
)
ACTION_LINES = (
    (int(MfNote.UNKNOWN_STATE), "Unknown page state"),
    (int(MfNote.PUNCH_FAILED), "Failed to punch page: -5"),
    (int(MfNote.NOT_INVALIDATED), "Failed to invalidate"),
)
NOT_PLAIN = sum(note for note, _ in FIRST_LINES + ACTION_LINES) | int(MfNote.STAYS_MAPPED | MfNote.REFERENCED)
COLLECTED, FORCE_KILL = int(MfNote.COLLECTED), int(MfNote.FORCE_KILL)
STAYS_MAPPED, REFERENCED, COUNTED = int(MfNote.STAYS_MAPPED), int(MfNote.REFERENCED), int(MfNote.COUNTED)
SPLIT, NOBODY = int(MfNote.SPLIT), int(NONE)
KERNEL, UNSPLIT, ALREADY = int(MfType.KERNEL), int(MfType.UNSPLIT_THP), int(MfType.ALREADY_POISONED)
NO_TYPE, IGNORED, EHWPOISON = int(MfType.NO_TYPE), int(MfResult.IGNORED), int(Errno.EHWPOISON)
TYPES, RESULTS = [kind.label for kind in MfType], [result.label for result in MfResult]
NO_EVENT = np.zeros(1, event_dtype).view(np.recarray)
NO_PARTS = np.empty(0, np.int64)
EVERY_FLAG = sum(MfFlag)


class Event(NamedTuple):
    """A record of event_dtype."""

    rc: int
    type: int
    result: int
    notes: int
    users: int
    mms: int
    file: int
    order: int
    head: int
    slot: int
    whole: int
    whole_order: int


@dataclass(frozen=True)
class FailureOutcome:
    """What one memory_failure() did."""

    pfn: int
    rc: int
    """What it returned: 0, -6 (no such memory), -14, -16 (not recovered), -95 (filtered), -133 (poisoned already)."""
    page_type: str
    """What the page was taken for, in the words of the log; empty where it was not looked at."""
    result: str
    """Ignored, Failed, Delayed or Recovered; empty likewise."""
    counted: bool
    """Whether it is one more corrupted page and one more event of its node."""
    signals: tuple[Signal, ...]
    log: tuple[str, ...]
    """Lines of the kernel's log, without time."""
    folio: int
    """Handle of the folio that the page is of now, which stands for the mappings that its users had; -1: none."""
    parts: Handles
    """Where a large folio was split: handles of all its parts, in order, else empty."""
    panic: bool
    """The machine would have stopped here."""

    @property
    def event(self) -> str | None:
        """The tracepoint memory_failure_event, as ftrace prints it; None where the kernel has none."""
        if not self.page_type or not self.log or "recovery action" not in self.log[-1]:
            return None
        what = self.page_type.removesuffix(" page") if self.page_type.startswith("already p") else self.page_type
        return f"memory_failure_event: pfn {self.pfn:#x}: recovery action for {what}: {self.result}"


def memory_failure(
    mem: Machine,
    pfn: int,
    *,
    flags: int = 0,
    cpu: int = 0,
    tasks: Iterable[Task] = (),
    current: Task | None = None,
) -> FailureOutcome:
    """Handle an error of the hardware, or an injected one, in a page.

    Free pages leave the allocator. Pages in use are taken away from those who map them; what becomes of them depends on
    what they are (`set_folio`). PG_hwpoison stays on all of them, and they count as HardwareCorrupted.

    Parameters
    ----------
    mem
        Changed in place.
    pfn
        The bad page.
    flags
        `MfFlag`: 0 is an error that nobody has met yet (a scrubber's), ACTION_REQUIRED one that `current` has.
        Without SW_SIMULATED no page is unpoisoned any more.
    cpu
        Where it runs.
    tasks
        The processes whose address spaces may map the page, in the order in which they were created.
    current
        The one that runs.

    Returns
    -------
    Return value, what the page was taken for and what became of it, signals and log lines.

    Raises
    ------
    InputError
        If an argument is outside its range; if no source says what the page is, or it is of ZONE_DEVICE or of a
        gigantic page (not modelled); nothing has changed then.

    Notes
    -----
    Locks and writeback are waited for, and have ended afterwards. The zone's per-CPU lists are drained for any page
    whose reference has to be taken, and LRU batches where the page may be in one. A handle of a folio that is split is
    that of its first part from then on, `parts` has the others; one of a dissolved hugetlb folio that of the bad page.

    References
    ----------
    mm/memory-failure.c: memory_failure, Linux 6.12.117; what 6.1.192 and 7.3.4 do otherwise are features mf_*. KSM
    pages, DAX and guest_memfd are not modelled.
    """
    number = failure_flags(flags)
    on_cpu = mem.check_cpu(cpu)
    given = check_tasks(tasks, current)
    pfn = whole_number(pfn, "pfn", 0, MAX_PFN)
    row = row_of(mem, pfn)
    if row < 0:
        return _outside(mem, pfn, number)
    refuse_gigantic(mem, row, "its failure is not modelled")
    return fail_row(mem, row, pfn, number, on_cpu, given, current)


def failure_flags(flags: int) -> int:
    """The MF_ flags as a number.

    Raises
    ------
    InputError
        If there are others among them.
    """
    if not isinstance(flags, int | np.integer) or isinstance(flags, bool) or not 0 <= flags <= EVERY_FLAG:
        raise InputError(f"flags {flags!r}; MfFlag values, together at most {EVERY_FLAG:#x}, are possible")
    return int(flags)


def row_of(mem: Machine, pfn: int) -> int:
    """Row of a page, or -1 where there is no memory map."""
    pfns = mem.pfns
    segment = int(pfns.starts.searchsorted(pfn, "right")) - 1
    if segment < 0 or pfn >= pfns.ends[segment]:
        return -1
    return pfn - int(pfns.starts[segment]) + int(pfns.rows[segment])


def block_of(mem: Machine, row: int) -> tuple[int, int]:
    """First row and order of the block that a row is in."""
    states = mem.state.pages["state"]
    for order in range(mem.geometry.max_page_order + 1):
        head = row >> order << order
        if states[head]:
            return head, int(states[head]) & 15
    return row, 0


def handles_of(mem: Machine, first: int, order: int) -> Handles:
    """Handles of all live folios among the 2**order rows from `first` on, ascending."""
    handles = mem.handles(np.arange(first, first + (1 << order)))
    return handles[handles >= 0]


def _outside(mem: Machine, pfn: int, flags: int) -> FailureOutcome:
    """Nothing that the kernel manages."""
    if not mem.state.failure["recovery"][0]:
        return _panic(pfn)
    if not flags & MfFlag.SW_SIMULATED:
        mem.state.failure["hw_memory_failure"] = 1
    line = f"Memory failure: {pfn:#x}: memory outside kernel control"
    return FailureOutcome(pfn, int(Errno.ENXIO), "", "", False, (), (line,), -1, NO_PARTS, False)


def _panic(pfn: int) -> FailureOutcome:
    """vm.memory_failure_recovery is 0."""
    line = f"Kernel panic - not syncing: Memory failure on page {pfn:x}"
    return FailureOutcome(pfn, 0, "", "", False, (), (line,), -1, NO_PARTS, True)


def fail_row(
    mem: Machine, row: int, pfn: int, flags: int, cpu: np.uint64, tasks: Sequence[Task], current: Task | None
) -> FailureOutcome:
    """One memory_failure() of a page that has a row."""
    event = NO_EVENT.copy()
    index, bits = np.uint64(row), np.uint64(flags)
    refused = int(kernels.fail_page(mem.state, index, bits, cpu, event))
    if refused > 0:
        mem.reserve_folios(refused)
        refused = int(kernels.fail_page(mem.state, index, bits, cpu, event))
    if refused == Refused.PANIC:
        return _panic(pfn)
    if refused == Refused.HOLE:
        return _outside(mem, pfn, flags)
    if refused:
        raise InputError(f"pfn {pfn}: {REFUSALS[Refused(refused)]}")
    return _outcome(mem, pfn, flags, Event(*event.item(0)), tasks, current)


REFUSALS = {
    Refused.UNKNOWN: "no source says what this page is, so that its failure is not modelled",
    Refused.DEVICE: "pages of ZONE_DEVICE (DAX) are not modelled yet",
    Refused.NOT_HELD: "COUNT_INCREASED goes with a page that somebody can hold, not a free one",
}


def _outcome(
    mem: Machine, pfn: int, flags: int, event: Event, tasks: Sequence[Task], current: Task | None
) -> FailureOutcome:
    """What the kernel's part did, in words, and the signals that follow from it."""
    kind, notes, features = event.type, event.notes, mem.geometry.features
    rc, sent = event.rc, _signals(mem, flags, event, tasks, current) if notes & COLLECTED else []
    if rc == EHWPOISON and kind != UNSPLIT:
        rc, sent = _accessing(mem, event, flags, current)
    panic = kind == KERNEL and event.result == IGNORED and "mf_panic_sysctl" in features
    start = f"Memory failure: {pfn:#x}: "
    return FailureOutcome(
        pfn,
        rc,
        TYPES[kind],
        RESULTS[event.result] if kind != NO_TYPE else "",
        bool(notes & COUNTED),
        tuple(sent),
        tuple([start + line for line in _log(features, event, sent)]),
        -1 if event.slot == NOBODY else int(mem.state.folios["sequence"][event.slot]) << 32 | event.slot,
        handles_of(mem, event.whole, event.whole_order) if notes & SPLIT else NO_PARTS,
        panic and bool(mem.state.failure["panic_unrecoverable"][0]),
    )


def _signals(mem: Machine, flags: int, event: Event, tasks: Sequence[Task], current: Task | None) -> list[Signal]:
    """What those get that mapped the page."""
    if not event.notes & FORCE_KILL or not tasks:
        return []
    early = bool(mem.state.failure["early_kill"][0])
    found = collected(tasks, current, event.mms, bool(event.file), flags, early)
    kills = bool(event.notes & STAYS_MAPPED) and "mf_unmap_failed" not in mem.geometry.features
    return signals(found, current, flags, event.order + mem.geometry.page_shift, kills)


def _accessing(mem: Machine, event: Event, flags: int, current: Task | None) -> tuple[int, list[Signal]]:
    """A page that was poisoned before: the task that has met it again is told (kill_accessing_process)."""
    if not flags & MfFlag.ACTION_REQUIRED:
        return EHWPOISON, []
    if current is None:
        return int(Errno.EFAULT), []
    if event.slot == NOBODY or not int(mem.state.folios["mms"][event.slot]) >> current.mm & 1:
        return 0, []
    bits, shift = int(mem.state.folios["bits"][event.slot]), mem.geometry.page_shift
    if bits & FolioBit.HUGETLB:
        shift += int(mem.state.pages["state"][event.head]) & 15
    return EHWPOISON, [Signal(current, SIGBUS, BUS_MCEERR_AR, shift)] if current.address else []


def _log(features: frozenset[str], event: Event, sent: Sequence[Signal]) -> list[str]:
    """The lines behind the pfn, in their order."""
    kind, notes = event.type, event.notes
    action = f"recovery action for {TYPES[kind]}: {RESULTS[event.result]}"
    if kind == NO_TYPE:
        return []
    if kind == ALREADY and "mf_already_reported" not in features:
        return ["already hardware poisoned", *[signal.line for signal in sent]]
    if not sent and not notes & NOT_PLAIN:
        return [action]
    lines = [line for note, line in FIRST_LINES if notes & note]
    if notes & STAYS_MAPPED:
        folio = "folio " if "mf_unmap_failed" in features else ""
        lines.append(f"failed to unmap page ({folio}mapcount={event.mms.bit_count()})")
    lines += [signal.line for signal in sent]
    lines += [line for note, line in ACTION_LINES if notes & note]
    if notes & REFERENCED:
        lines.append(f"{TYPES[kind]} still referenced by {event.users} users")
    return [*lines, action]
