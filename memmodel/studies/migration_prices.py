"""From counted moves to time, for the studies that move equal folios."""

from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.cost.machines import Machine
from memmodel.cost.migration import MigrationCounts, pages_per_s, price_migration
from memmodel.cost.model import direction_codes
from memmodel.cost.offload import Offload
from memmodel.cost.waiting import folio_phases, waiter_ns
from memmodel.studies.migration_counts import HPAGE_PMD_ORDER, Moves, Plan

__all__ = ["extent_bytes", "migration_counts", "times", "waits"]

Columns = dict[str, npt.NDArray[Any]]
PAGE_BYTES = 4096


def extent_bytes(order: npt.ArrayLike, copy_batch: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Bytes that one call of the copy routine copies: a page, or the folio."""
    return PAGE_BYTES << np.where(np.asarray(copy_batch) == "page", 0, order).astype(np.int64)


def migration_counts(plan: Plan, moves: Moves, extent: npt.ArrayLike, direction: npt.ArrayLike) -> MigrationCounts:
    """Moves as the cost model takes them; `direction` by name."""
    n_bytes = moves.n_pages * PAGE_BYTES
    return MigrationCounts(
        n_calls=moves.n_calls,
        n_folios=plan.n_folios,
        n_pages=moves.n_pages,
        n_ptes_unmapped=moves.n_ptes,
        n_ptes_remapped=moves.n_ptes,
        n_flushes_full=moves.n_full,
        n_flushes_page=moves.n_page,
        n_flush_requests=moves.n_requests + moves.n_broadcasts,
        n_ipis=moves.n_ipis,
        n_copy_calls=n_bytes // np.asarray(extent),
        bytes_copied=n_bytes,
        extent_bytes=extent,
        direction=direction_codes(direction),
    )


def times(
    counts: MigrationCounts, machine: Machine, broadcast: npt.ArrayLike, offload: Offload | None = None
) -> Columns:
    """Time by phase, and the rate; points with and without broadcast flushes apart."""
    arrays = np.broadcast_arrays(*counts, broadcast)
    by_broadcast = arrays[-1].astype(np.bool_)
    columns: Columns = {}
    for kind in np.unique(by_broadcast):
        here = by_broadcast == kind
        work = MigrationCounts(*(array[here] for array in arrays[:-1]))
        time = price_migration(work, machine, broadcast=bool(kind), offload=offload)
        found: Columns = {
            "time_total_ns": time.total_ns,
            "time_call_ns": time.call_ns,
            "time_unmap_ns": time.unmap_ns,
            "time_flush_ns": time.flush_ns,
            "time_copy_ns": time.copy_ns,
            "time_remap_ns": time.remap_ns,
            "time_folio_overhead_ns": time.folio_ns,
            "pages_per_s": pages_per_s(work.n_pages, time.total_ns),
            "calibrated": time.calibrated.astype(np.int8),
        }
        for name, column in found.items():
            columns.setdefault(name, np.zeros(here.shape, column.dtype))[here] = column
    return columns


def waits(plan: Plan, moves: Moves, extent: npt.ArrayLike, direction: npt.ArrayLike, machine: Machine) -> Columns:
    """How long the folios of the longest batch are out of reach."""
    order, cpus, lazy = (np.asarray(array) for array in (plan.folio_order, plan.n_cpus, plan.n_lazy))
    receivers = np.where(order == HPAGE_PMD_ORDER, cpus - 1, cpus - 1 - lazy)
    ptes = np.where(order == HPAGE_PMD_ORDER, 0, np.where(order > HPAGE_PMD_ORDER, 1, 1 << np.minimum(order, 9)))
    arrays = np.broadcast_arrays(
        *(1 << order, ptes, extent, direction_codes(direction), receivers, moves.largest_batch, plan.broadcast)
    )
    columns: Columns = {}
    for kind in np.unique(arrays[-1]):
        here = arrays[-1] == kind
        pages, entries, copied, codes, reached, batch = (array[here] for array in arrays[:-1])
        phases = folio_phases(
            machine,
            pages_per_folio=pages,
            ptes_per_folio=entries,
            extent_bytes=copied,
            direction=codes,
            n_receivers=reached,
            broadcast=bool(kind),
        )
        wait = waiter_ns(batch, phases.unmap_ns, phases.flush_ns, phases.move_ns)
        for name, column in (("waiter_mean_ns", wait.mean_ns), ("waiter_worst_ns", wait.worst_ns)):
            columns.setdefault(name, np.zeros(here.shape))[here] = column
    return columns
