"""Latent hardware errors, and the work that memory_failure_queue() leaves behind."""

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.kernels import poisoning as kernels
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.failure_signals import Task
from memmodel.mechanisms.memory_failure import MAX_PFN, FailureOutcome, failure_flags, memory_failure
from memmodel.mechanisms.soft_offline import OfflineOutcome, soft_offline_page
from memmodel.state.failure_layout import MfFlag, MfType
from memmodel.state.layout import MF_QUEUE_SLOTS, Kind
from memmodel.state.machine import Machine

__all__ = ["LINE_SHIFT", "FailureWork", "inject_poison", "memory_failure_queue", "run_memory_failure_work"]

LINE_SHIFT = 6  # hardware reports and poisons 64-byte lines
GIB = 1 << 30


def inject_poison(
    mem: Machine,
    pfn: npt.ArrayLike | None = None,
    line: npt.ArrayLike = 0,
    *,
    address: npt.ArrayLike | None = None,
    rate_per_gib: float | None = None,
    seed: int | np.random.SeedSequence | None = None,
) -> npt.NDArray[np.int64]:
    """Poison 64-byte lines: the next copy or scrub that reads one takes a machine check. PG_hwpoison stays clear.

    Parameters
    ----------
    mem
        Changed in place.
    pfn, line
        Pages, and lines within them (0 to page size / 64 - 1); arrays broadcast.
    address
        Physical byte addresses in place of pfn and line.
    rate_per_gib
        Expected lines a GiB of present memory (Poisson, uniform) in place of either.
    seed
        Of the generator; if not given, it follows from the memory's seed and how many lines are poisoned already.

    Returns
    -------
    Physical addresses of the lines, ascending, each once, shape ``(lines,)``.

    Raises
    ------
    InputError
        If a place is outside memory or in a hole, or not just one of pfn, address, rate_per_gib is given.
    """
    if (pfn is not None) + (address is not None) + (rate_per_gib is not None) != 1:
        raise InputError("give just one of pfn (with line), address, rate_per_gib")
    if (pfn is None and np.any(line)) or (rate_per_gib is None and seed is not None):
        raise InputError("line goes with pfn, seed with rate_per_gib")
    shift = mem.geometry.page_shift
    lines_per_page = 1 << (shift - LINE_SHIFT)
    if rate_per_gib is not None:
        rows, lines = _random_lines(mem, rate_per_gib, seed)
    else:
        if address is not None:
            byte = np.asarray(address)
            if byte.dtype.kind not in "iu":
                raise InputError(f"a physical address is a whole number, not {byte.dtype}")
            pfn, line = byte >> shift, byte >> LINE_SHIFT & (lines_per_page - 1)
        try:
            pages, lines = np.broadcast_arrays(np.asarray(pfn), np.asarray(line))
        except ValueError:
            raise InputError("pfn and line are numbers, or arrays whose shapes broadcast") from None
        wrong = (lines < 0) | (lines >= lines_per_page) if lines.dtype.kind in "iu" else np.ones(lines.shape, bool)
        if np.any(wrong):
            raise InputError(f"line {lines[wrong].flat[0]}; 0 to {lines_per_page - 1} lie in a page")
        rows = mem.index(pages)
        holes = mem.state.pages["state"][rows] >> 4 == Kind.HOLE
        if np.any(holes):
            raise InputError(f"pfn {pages[holes].flat[0]} is a hole: there is no memory")
    added = np.unique(rows.astype(np.uint64) << np.uint64(shift - LINE_SHIFT) | lines.astype(np.uint64))
    state = mem.state
    mem.state = state._replace(ue_lines=np.union1d(state.ue_lines, added))
    bad = np.unique(added >> np.uint64(shift - LINE_SHIFT))
    np.bitwise_or.at(state.ue_pages, bad >> np.uint64(6), np.uint64(1) << (bad & np.uint64(63)))
    return line_addresses(mem, added)


def line_addresses(mem: Machine, lines: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Physical addresses of line numbers as `ue_lines` holds them."""
    shift = mem.geometry.page_shift - LINE_SHIFT
    numbers = lines.astype(np.int64)
    return mem.pfns.pfn(numbers >> shift) << mem.geometry.page_shift | (numbers & ((1 << shift) - 1)) << LINE_SHIFT


def _random_lines(
    mem: Machine, rate_per_gib: float, seed: int | np.random.SeedSequence | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows and lines, uniform over present memory; a page as often as its share, as a Poisson process."""
    if not isinstance(rate_per_gib, Real) or not 0 <= rate_per_gib <= GIB >> LINE_SHIFT:
        raise InputError(f"rate_per_gib {rate_per_gib!r}; 0 to {GIB >> LINE_SHIFT} lines are possible")
    if seed is None:  # the memory's own, another one after each line that there is
        seed = np.random.SeedSequence(mem.seed, spawn_key=(mem.state.ue_lines.size,))
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InputError(f"seed {seed!r}; a whole number, 0 or more, is possible") from None
    zones, shift = mem.state.zones, mem.geometry.page_shift
    rows = []
    for zone in zones:
        # Holes get their share too, and lose it again: what is left is uniform over the pages that are there.
        span = int(zone["end"] - zone["start"])
        n_lines = rng.poisson(rate_per_gib * (span << shift) / GIB)
        drawn = rng.integers(int(zone["start"]), int(zone["end"]), n_lines)
        rows.append(drawn[mem.state.pages["state"][drawn] >> 4 != Kind.HOLE])
    all_rows = np.concatenate(rows)
    return all_rows, rng.integers(0, 1 << (shift - LINE_SHIFT), all_rows.size)


@dataclass(frozen=True)
class FailureWork:
    """What a CPU's worker did, one entry a queue entry, in order."""

    pfn: npt.NDArray[np.int64]
    """Page frame numbers taken from the queue."""
    already_poisoned: npt.NDArray[np.bool_]
    """The page had PG_hwpoison before."""
    taken_off_buddy: npt.NDArray[np.bool_]
    """The page was free and has left the allocator."""
    outcomes: tuple[FailureOutcome | OfflineOutcome, ...]
    """What memory_failure(), or soft_offline_page(), did with each."""


def memory_failure_queue(mem: Machine, pfn: int, *, flags: int = 0, cpu: int = 0) -> bool:
    """Leave a page to the worker of a CPU, as code does that may not sleep.

    Parameters
    ----------
    mem
        Changed in place.
    pfn
        The bad page.
    flags
        `MfFlag`; with SOFT_OFFLINE the worker offlines the page instead.
    cpu
        Whose queue.

    Returns
    -------
    Whether there was room: a queue holds 16, and drops the newest.

    Raises
    ------
    InputError
        If an argument is outside its range.

    References
    ----------
    mm/memory-failure.c: memory_failure_queue, Linux 6.12.117.
    """
    row = int(mem.index([whole_number(pfn, "pfn", 0, MAX_PFN)])[0])
    return bool(kernels.queue_entry(mem.state, mem.check_cpu(cpu), np.uint64(row), np.uint64(failure_flags(flags))))


def run_memory_failure_work(mem: Machine, cpu: int = 0, *, tasks: Iterable[Task] = ()) -> FailureWork:
    """Drain one CPU's memory_failure queue: `memory_failure` for each entry, first in, first out.

    Parameters
    ----------
    mem
        Changed in place.
    cpu
        Whose queue.
    tasks
        The processes whose address spaces may map the pages.

    Raises
    ------
    InputError
        If there is no such CPU, or as `memory_failure`: then that entry is the next one.

    References
    ----------
    mm/memory-failure.c: memory_failure_work_func, Linux 6.12.117.
    """
    number, given = mem.check_cpu(cpu), tuple(tasks)
    queue = mem.state.queues[int(number)]
    outcomes: list[FailureOutcome | OfflineOutcome] = []
    while queue["count"]:
        head = int(queue["head"])
        pfn, flags = int(mem.pfns.pfn([queue["index"][head]])[0]), int(queue["flags"][head])
        if flags & MfFlag.SOFT_OFFLINE:
            outcomes.append(soft_offline_page(mem, pfn, cpu=cpu))
        else:
            outcomes.append(memory_failure(mem, pfn, flags=flags, cpu=cpu, tasks=given))
        queue["head"], queue["count"] = (head + 1) % MF_QUEUE_SLOTS, queue["count"] - 1
    kinds = [getattr(outcome, "page_type", "") for outcome in outcomes]
    return FailureWork(
        np.array([outcome.pfn for outcome in outcomes], np.int64),
        np.array([kind == MfType.ALREADY_POISONED.label for kind in kinds], np.bool_),
        np.array([kind == MfType.BUDDY.label for kind in kinds], np.bool_),
        tuple(outcomes),
    )
