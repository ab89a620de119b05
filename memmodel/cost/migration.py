"""From counts of migrations to time, phase by phase: call, unmap, flush, copy, remap, and the rest of each folio.

Every phase is linear in its counts, so that the price of two moves together is the sum of their prices; only the copy
knows more (extent and direction, see `memmodel.cost.model`). Counts come from the kernels, or by hand.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memmodel.cost.machine_parts import Migration
from memmodel.cost.machines import Machine, Number
from memmodel.cost.model import CopyCounts, price
from memmodel.cost.offload import Offload, offload_copy_ns
from memmodel.errors import InputError

__all__ = ["MigrationCounts", "MigrationTime", "migration_of", "optional_ns", "pages_per_s", "price_migration"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class MigrationCounts(NamedTuple):
    """What a migration did; the arrays broadcast against each other. What is tried twice is counted twice.

    Attributes
    ----------
    n_calls
        Calls of migrate_pages().
    n_folios
        Folios unmapped to be moved.
    n_pages
        Base pages of the folios whose copy was tried: 1 for each try of an order-0 folio. No price hangs on it; see
        `pages_per_s`.
    n_ptes_unmapped, n_ptes_remapped
        PTEs replaced by migration entries, and back; a PMD-mapped THP has none.
    n_flushes_full, n_flushes_page
        Flushes on the migrating CPU: of the whole address space, and single pages of partial ones.
    n_flush_requests
        Flushes that had to reach other CPUs: IPI rounds, or broadcasts.
    n_ipis
        IPIs received, all CPUs together.
    n_copy_calls
        Calls of the copy primitive.
    bytes_copied, extent_bytes, direction
        As in `CopyCounts`. A DMA channel copies a folio at once: there the extent is the folio.
    """

    n_calls: ArrayLike
    n_folios: ArrayLike
    n_pages: ArrayLike
    n_ptes_unmapped: ArrayLike
    n_ptes_remapped: ArrayLike
    n_flushes_full: ArrayLike
    n_flushes_page: ArrayLike
    n_flush_requests: ArrayLike
    n_ipis: ArrayLike
    n_copy_calls: ArrayLike
    bytes_copied: ArrayLike
    extent_bytes: ArrayLike
    direction: ArrayLike


class MigrationTime(NamedTuple):
    """Times of the migrating CPU in ns, all of the counts' common shape.

    Attributes
    ----------
    call_ns
        Fixed time of the calls.
    unmap_ns, flush_ns, copy_ns, remap_ns
        The phases in their order.
    folio_ns
        What each folio takes besides: allocation, locks, LRU, free.
    total_ns
        Their sum.
    calibrated
        True where the copy's time is (see `CopyTime`) and no number that counts here is assumed; never with offload.
    """

    call_ns: Floats
    unmap_ns: Floats
    flush_ns: Floats
    copy_ns: Floats
    remap_ns: Floats
    folio_ns: Floats
    total_ns: Floats
    calibrated: Bools


def price_migration(
    counts: MigrationCounts,
    machine: Machine,
    form: str = "L",
    *,
    broadcast: ArrayLike = False,
    offload: Offload | None = None,
) -> MigrationTime:
    """Time that the migrating CPU of `machine` takes for `counts`.

    Parameters
    ----------
    counts
        What was done.
    machine
        One that has a migration part.
    form
        Of the copy model, as for `price`.
    broadcast
        Where flushes reach other CPUs by INVLPGB and not by IPIs (AMD, Linux 6.15): there the IPIs of `counts` are not
        sent.
    offload
        Who copies in place of the migrating CPU, which waits.

    Raises
    ------
    InputError
        If the machine lacks a number that is needed, or a count is negative or not a number.

    References
    ----------
    mm/migrate.c: migrate_pages_batch, migrate_folio_unmap, migrate_folio_move, Linux 6.12.117;
    arch/x86/mm/tlb.c: arch_tlbbatch_flush, broadcast_tlb_flush (6.15).
    """
    part = migration_of(machine)
    *numbers, direction, by_broadcast = _checked(counts, broadcast)
    calls, folios, _, unmapped, remapped, full, by_page, requests, ipis, copy_calls, n_bytes, extent = numbers
    copy = price(CopyCounts(n_bytes, extent, copy_calls, folios, direction), machine, form)
    copy_ns = copy.copy_ns if offload is None else offload_copy_ns(copy.copy_ns, n_bytes, extent, machine, offload)
    by_ipi = 1 - by_broadcast
    remote = [(requests * by_ipi, part.flush_request), (ipis * by_ipi, part.flush_receiver)]
    if by_broadcast.any():
        remote.append((requests * by_broadcast, optional_ns(machine, "flush_broadcast")))
    terms = {
        "call": [(calls, part.call)],
        "unmap": [(folios, part.unmap_folio), (unmapped, part.unmap_pte)],
        "flush": [(full, part.flush_full), (by_page, part.flush_page), *remote],
        "remap": [(remapped, part.remap_pte)],
    }
    time = {name: sum((count * number.value for count, number in pairs), 0.0) for name, pairs in terms.items()}
    phases = [time["call"], time["unmap"], time["flush"], copy_ns, time["remap"], copy.folio_overhead_ns]
    known = copy.calibrated if offload is None else np.zeros(copy.calibrated.shape, np.bool_)
    for pairs in terms.values():
        for count, number in pairs:
            if number.how == "assumed" and number.value:  # 0: no term, no claim
                known = known & (count == 0)
    return MigrationTime(*np.broadcast_arrays(*phases, sum(phases), known))


def pages_per_s(n_pages: ArrayLike, time_ns: ArrayLike) -> Floats:
    """Pages a second; NaN where no time passed."""
    n, time = np.broadcast_arrays(np.asarray(n_pages, np.float64), np.asarray(time_ns, np.float64))
    rate = np.full(n.shape, np.nan)
    np.divide(n * 1e9, time, out=rate, where=time > 0)
    return rate


def migration_of(machine: Machine) -> Migration:
    """The machine's migration part.

    Raises
    ------
    InputError
        If it has none.
    """
    if machine.migration is None:
        raise InputError(f"machine {machine.name} has no migration part: nothing is known of its moves but the copy")
    return machine.migration


def optional_ns(machine: Machine, name: str) -> Number:
    """A number of the migration part that not every machine has.

    Raises
    ------
    InputError
        If this one has not.
    """
    number: Number | None = getattr(migration_of(machine), name)
    if number is None:
        raise InputError(f"machine {machine.name} has no migration.{name}: no source gives it")
    return number


def _checked(counts: MigrationCounts, broadcast: ArrayLike) -> list[NDArray[np.float64]]:
    """The counts as float arrays of one shape, checked; the directions stay codes. Last, 1 where flushes broadcast."""
    for name, value in zip(counts._fields[:-1], counts[:-1], strict=True):
        array = np.asarray(value, np.float64)
        bad = ~((array >= 0) & np.isfinite(array))
        if bad.any():
            raise InputError(f"{name}: {array[bad].flat[0]:g} is not a count")
    try:
        floats = (np.asarray(x, np.float64) for x in counts[:-1])
        broadcasts = np.asarray(broadcast, np.bool_).astype(np.float64)
        arrays = np.broadcast_arrays(*floats, np.asarray(counts.direction), broadcasts)
    except ValueError:
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in zip(counts._fields, counts, strict=True))
        raise InputError(f"the counts do not broadcast: {shapes}") from None
    return list(arrays)
