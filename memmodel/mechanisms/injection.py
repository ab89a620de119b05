"""How errors are injected and taken back: madvise(), the files of debugfs/hwpoison and of sysfs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from memmodel.errors import InputError, one_of
from memmodel.kernels import unpoison as kernels
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.cma import is_cma_allocated
from memmodel.mechanisms.failure_signals import Signal, Task
from memmodel.mechanisms.gigantic import refuse_gigantic
from memmodel.mechanisms.memory_failure import MAX_PFN, FailureOutcome, block_of, memory_failure, row_of
from memmodel.mechanisms.page_flags import FlagsLayout
from memmodel.mechanisms.soft_offline import OfflineOutcome, soft_offline_page
from memmodel.state.failure_layout import Errno, MfFlag, Unpoison
from memmodel.state.layout import Kind, PageFlag
from memmodel.state.machine import Machine

__all__ = [
    "ADVICE",
    "Injection",
    "corrupt_pfn",
    "hard_offline_page",
    "madvise",
    "unpoison_memory",
]

ADVICE = ("MADV_HWPOISON", "MADV_SOFT_OFFLINE")
MAX_ADDRESS = (1 << 64) - 1
REASONS = {
    Unpoison.NOT_POISONED: ("Page was already unpoisoned", "page was already unpoisoned"),
    Unpoison.GRABBED: ("Someone grabs the hwpoison page", "someone grabs the hwpoison page"),
    Unpoison.MAPPED: ("Someone maps the hwpoison page", "someone maps the hwpoison page"),
    Unpoison.OF_FILE: ("the hwpoison page has non-NULL mapping", "the hwpoison page has non-NULL mapping"),
}


@dataclass(frozen=True)
class Injection:
    """What a system call or a write to a file did."""

    rc: int
    """0, or the negative errno."""
    outcomes: tuple[FailureOutcome | OfflineOutcome, ...]
    """One entry a page that was gone for."""
    signal: Signal | None
    """What the caller gets before it is back from the call."""
    log: tuple[str, ...]


def madvise(
    mem: Machine,
    pfns: int | Iterable[int],
    advice: str,
    caller: Task,
    *,
    cpu: int = 0,
    tasks: Iterable[Task] = (),
    layout: FlagsLayout | None = None,
) -> Injection:
    """madvise() of pages of the caller, which holds a reference of each meanwhile.

    Parameters
    ----------
    mem
        Changed in place.
    pfns
        The pages of the range, in the order of their addresses, which begin at the caller's `address`. Behind a page of
        a large folio all that follow in it are passed over.
    advice
        "MADV_HWPOISON" or "MADV_SOFT_OFFLINE".
    caller
        The task. Since 6.12 it meets the error as if it had touched the page (MF_ACTION_REQUIRED).
    cpu
        Where it runs.
    tasks
        Other processes that may map the pages, and the caller among them; the caller alone if none is given.
    layout
        As of `soft_offline_page`.

    Returns
    -------
    The first error that is not -95 (-EOPNOTSUPP) ends the call and is its result.

    Raises
    ------
    InputError
        If an argument is outside its range, a page is free, or of a gigantic page (not modelled).

    References
    ----------
    mm/madvise.c: madvise_inject_error, Linux 6.12.117.
    """
    hard = one_of(advice, ADVICE, "advice") == ADVICE[0]
    given = tuple(tasks) or (caller,)
    numbers = [pfns] if isinstance(pfns, int | np.integer) else list(pfns)
    for pfn in numbers:
        _check_held(mem, pfn)
    address, size = caller.address or 0, mem.geometry.page_size_bytes
    outcomes: list[FailureOutcome | OfflineOutcome] = []
    log: list[str] = []
    rc, place = 0, 0
    while place < len(numbers) and not rc:
        pfn, at = int(numbers[place]), address + place * size
        place += _step(mem, numbers, place)
        if hard:
            log.append(f"Injecting memory failure for pfn {pfn:#x} at process virtual address {at:#x}")
            flags = MfFlag.COUNT_INCREASED | MfFlag.SW_SIMULATED
            if "madvise_action_required" in mem.geometry.features:
                flags |= MfFlag.ACTION_REQUIRED
            outcomes.append(memory_failure(mem, pfn, flags=flags, cpu=cpu, tasks=given, current=caller))
        else:
            log.append(f"Soft offlining pfn {pfn:#x} at process virtual address {at:#x}")
            outcomes.append(soft_offline_page(mem, pfn, cpu=cpu, layout=layout))
        log += outcomes[-1].log
        rc = _returned(outcomes[-1])
    sent = [signal for outcome in outcomes for signal in getattr(outcome, "signals", ()) if signal.task == caller]
    return Injection(rc, tuple(outcomes), sent[0] if sent else None, tuple(log))


def _check_held(mem: Machine, pfn: int) -> None:
    """Refuse pages that cannot be in a page table."""
    row = row_of(mem, whole_number(pfn, "pfn", 0, MAX_PFN))
    kind = Kind.HOLE if row < 0 else int(mem.state.pages["state"][block_of(mem, row)[0]]) >> 4
    if kind in (Kind.HOLE, Kind.FREE, Kind.PCP):
        raise InputError(f"pfn {pfn} is in no page table: it is free or not there")
    refuse_gigantic(mem, row, "its failure is not modelled")


def _returned(outcome: FailureOutcome | OfflineOutcome) -> int:
    """What the caller gets of a page's result: a page that the filter keeps is no error."""
    return 0 if outcome.rc == Errno.EOPNOTSUPP else outcome.rc


def _step(mem: Machine, numbers: Sequence[int], place: int) -> int:
    """Places from one page to the next one that is of another folio."""
    row = row_of(mem, int(numbers[place]))
    head, order = block_of(mem, row)
    step = 1
    while place + step < len(numbers) and row_of(mem, int(numbers[place + step])) >> order == head >> order:
        step += 1
    return step


def corrupt_pfn(mem: Machine, pfn: int, *, cpu: int = 0, tasks: Iterable[Task] = ()) -> Injection:
    """Write a pfn to hwpoison/corrupt-pfn in debugfs: an injected error that nobody has met.

    Raises
    ------
    InputError
        As `memory_failure`.

    References
    ----------
    mm/hwpoison-inject.c: hwpoison_inject, Linux 6.12.117.
    """
    pfn = whole_number(pfn, "pfn", 0, MAX_PFN)
    if row_of(mem, pfn) < 0:
        return Injection(int(Errno.ENXIO), (), None, ())
    done = memory_failure(mem, pfn, flags=MfFlag.SW_SIMULATED, cpu=cpu, tasks=tasks)
    return Injection(_returned(done), (done,), None, (f"Injecting memory failure at pfn {pfn:#x}", *done.log))


def hard_offline_page(mem: Machine, address: int, *, cpu: int = 0, tasks: Iterable[Task] = ()) -> Injection:
    """Write a physical address to /sys/devices/system/memory/hard_offline_page: taken for an error of the hardware.

    Raises
    ------
    InputError
        As `memory_failure`.

    References
    ----------
    drivers/base/memory.c: hard_offline_page_store, Linux 6.12.117.
    """
    pfn = whole_number(address, "address", 0, MAX_ADDRESS) >> mem.geometry.page_shift
    done = memory_failure(mem, pfn, cpu=cpu, tasks=tasks)
    return Injection(_returned(done), (done,), None, done.log)


def unpoison_memory(mem: Machine, pfn: int, *, cpu: int = 0) -> Injection:
    """Take an injected error back: what a write to hwpoison/unpoison-pfn does.

    The page goes to the free lists that it was taken from, or is freed like any other. Those whose mappings it was
    taken from get SIGBUS all the same. The nodes' counters of events keep it.

    Parameters
    ----------
    mem
        Changed in place.
    pfn
        The page; of a hugetlb folio the first one, and all its errors go.
    cpu
        Where it runs: pages are freed there.

    Returns
    -------
    Return value and log; no outcomes.

    Raises
    ------
    InputError
        If an argument is outside its range, or the page is of a gigantic page or somebody has it from a CMA area (not
        modelled).

    Notes
    -----
    The handle of a folio whose page comes back is stale. The kernel limits how often it says so.

    References
    ----------
    mm/memory-failure.c: unpoison_memory, Linux 6.12.117.
    """
    on_cpu, pfn = mem.check_cpu(cpu), whole_number(pfn, "pfn", 0, MAX_PFN)
    row, features = row_of(mem, pfn), mem.geometry.features
    if row < 0:
        return Injection(int(Errno.ENXIO if "unpoison_valid_pfn" in features else Errno.EIO), (), None, ())
    refuse_gigantic(mem, row, "its errors are not modelled")
    if mem.state.failure["hw_memory_failure"][0]:
        line = _unpoison_line(mem, pfn, ("Disabled after HW memory failure", "disabled after HW memory failure"))
        return Injection(int(Errno.EOPNOTSUPP), (), None, (line,))
    page = mem.state.pages[row]
    if page["pg_flags"] & PageFlag.HWPOISON and page["refcount"] == 1 and is_cma_allocated(mem, row):
        raise InputError(f"pfn {pfn} is allocated from a CMA area: the kernel would free it under its owner")
    end = Unpoison(kernels.unpoison_page(mem.state, np.uint64(row), on_cpu))
    if end == Unpoison.DONE:
        words = ("Software-unpoisoned page", "software-unpoisoned page")
        return Injection(0, (), None, (_unpoison_line(mem, pfn, words),))
    told = () if end == Unpoison.NOT_USERS else (_unpoison_line(mem, pfn, REASONS[end]),)
    return Injection(int(Errno.EBUSY), (), None, told)


def _unpoison_line(mem: Machine, pfn: int, words: tuple[str, str]) -> str:
    """A line of the log, in the old form and the new one."""
    old, new = words
    if "mf_log_pfn_first" in mem.geometry.features:
        return f"Unpoison: {pfn:#x}: {new}"
    return f"Unpoison: {old} {pfn:#x}"
