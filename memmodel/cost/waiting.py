"""What others feel of a migration: the wait of who touches a page on its way, the receivers' IPIs, the bandwidth."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memmodel.cost.machines import Machine
from memmodel.cost.migration import MigrationCounts, migration_of, optional_ns, price_migration
from memmodel.errors import InputError

__all__ = ["FolioPhases", "WaiterTime", "bandwidth_share", "folio_phases", "receivers_ns", "waiter_ns"]

Floats = NDArray[np.float64]


class FolioPhases(NamedTuple):
    """What one folio of a batch adds to each loop over the batch, and the flush between the loops; ns."""

    unmap_ns: Floats
    flush_ns: Floats
    move_ns: Floats


class WaiterTime(NamedTuple):
    """How long the folios of a batch are out of reach; ns.

    Attributes
    ----------
    mean_ns, worst_ns
        From a folio's unmap to its remap: mean over the batch, and the longest.
    blocked_share
        Chance that an access to some folio of the batch, at a random moment of the batch's run, has to wait.
    wait_ns
        Mean wait of the accesses that have to.
    """

    mean_ns: Floats
    worst_ns: Floats
    blocked_share: Floats
    wait_ns: Floats


def waiter_ns(n_folios: ArrayLike, unmap_ns: ArrayLike, flush_ns: ArrayLike, move_ns: ArrayLike) -> WaiterTime:
    """How long folios are out of reach if a batch is unmapped, flushed once, then copied and remapped one by one.

    Folio i of n, from 0, waits for the unmap of the ``n - i - 1`` behind it, for the flush, and for ``i + 1`` moves. A
    batch of 1 is a migration folio by folio: each waits for the flush and its own move.

    Parameters
    ----------
    n_folios
        Folios of the batch: base pages up to 512, or one THP.
    unmap_ns, move_ns
        Time that each folio takes in the first loop (unmap) and in the second (copy and remap).
    flush_ns
        Of the flush between the loops.

    Raises
    ------
    InputError
        If a batch has no folio, or a time is negative or not a number.

    References
    ----------
    mm/migrate.c: migrate_pages_batch, Linux 6.12.117; a faulting thread waits in migration_entry_wait.
    """
    n = np.asarray(n_folios, np.float64)
    unmap, flush, move = (np.asarray(value, np.float64) for value in (unmap_ns, flush_ns, move_ns))
    if not np.all((n >= 1) & (n % 1 == 0)):
        raise InputError("n_folios: a batch has a whole number of folios, 1 or more")
    for name, value in (("unmap_ns", unmap), ("flush_ns", flush), ("move_ns", move)):
        if not np.all((value >= 0) & np.isfinite(value)):
            raise InputError(f"{name} is not a time in ns")
    first, step = (n - 1) * unmap + flush + move, move - unmap  # out of reach: first + i * step
    mean = first + (n - 1) / 2 * step
    worst = np.maximum(first, flush + n * move)
    mean_square = mean**2 + (n**2 - 1) / 12 * step**2
    run = n * (unmap + move) + flush
    share = np.divide(mean, run, out=np.zeros(np.broadcast(mean, run).shape), where=run > 0)
    wait = np.divide(mean_square, 2 * mean, out=np.zeros(np.broadcast(mean, mean_square).shape), where=mean > 0)
    return WaiterTime(*np.broadcast_arrays(mean, worst, share, wait))


def folio_phases(
    machine: Machine,
    *,
    pages_per_folio: ArrayLike = 1,
    ptes_per_folio: ArrayLike = 1,
    extent_bytes: ArrayLike = 4096,
    direction: ArrayLike = 0,
    n_receivers: ArrayLike = 0,
    broadcast: ArrayLike = False,
) -> FolioPhases:
    """Prices of one folio's phases for `waiter_ns`: one full flush, an IPI round if it has receivers.

    The folio overhead falls half into the first loop (allocation, locks) and half into the second (LRU, free): no
    source tells how much of it goes where. Pages are of 4 KiB.

    Raises
    ------
    InputError
        As `price_migration`.
    """
    n_bytes = 4096.0 * np.asarray(pages_per_folio)
    extent = np.minimum(extent_bytes, n_bytes)
    requests = np.asarray(n_receivers) > 0
    counts = MigrationCounts(
        n_calls=0,
        n_folios=1,
        n_pages=pages_per_folio,
        n_ptes_unmapped=ptes_per_folio,
        n_ptes_remapped=ptes_per_folio,
        n_flushes_full=1,
        n_flushes_page=0,
        n_flush_requests=requests,
        n_ipis=n_receivers,
        n_copy_calls=n_bytes / extent,
        bytes_copied=n_bytes,
        extent_bytes=extent,
        direction=direction,
    )
    time = price_migration(counts, machine, broadcast=broadcast)
    half = time.folio_ns / 2
    return FolioPhases(time.unmap_ns + half, time.flush_ns, time.copy_ns + time.remap_ns + half)


def receivers_ns(n_ipis: ArrayLike, machine: Machine) -> Floats:
    """Time that the receivers of flush IPIs lose, all CPUs together.

    Raises
    ------
    InputError
        If the machine has no such number.
    """
    return np.asarray(np.asarray(n_ipis, np.float64) * optional_ns(machine, "ipi_handler").value)


def bandwidth_share(bytes_copied: ArrayLike, time_ns: ArrayLike, machine: Machine) -> Floats:
    """Share of the copy rate that the machine can reach, which a copy of `bytes_copied` in `time_ns` takes from others.

    Raises
    ------
    InputError
        If the machine has no such limit, or no time passed.
    """
    limit = migration_of(machine).copy_limit
    if limit is None:
        raise InputError(
            f"machine {machine.name} has no migration.copy_limit: no source gives what it can copy at most"
        )
    time = np.asarray(time_ns, np.float64)
    if not np.all(time > 0):
        raise InputError("time_ns: no time passed")
    return np.asarray(np.asarray(bytes_copied, np.float64) / time / limit.value)
