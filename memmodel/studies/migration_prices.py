"""From counted moves to time, for the studies that move equal folios."""

from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.cost.machines import Machine
from memmodel.cost.migration import MigrationCounts, pages_per_s, price_migration
from memmodel.cost.model import direction_codes
from memmodel.cost.offload import Offload
from memmodel.cost.waiting import folio_phases, waiter_ns
from memmodel.studies.migration_counts import Moves, Plan, ptes_per_folio, receivers

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
    """Time by phase, and the rate."""
    time = price_migration(counts, machine, broadcast=broadcast, offload=offload)
    return {
        "time_total_ns": time.total_ns,
        "time_call_ns": time.call_ns,
        "time_unmap_ns": time.unmap_ns,
        "time_flush_ns": time.flush_ns,
        "time_copy_ns": time.copy_ns,
        "time_remap_ns": time.remap_ns,
        "time_folio_overhead_ns": time.folio_ns,
        "pages_per_s": pages_per_s(counts.n_pages, time.total_ns),
        "calibrated": time.calibrated.astype(np.int8),
    }


def waits(plan: Plan, moves: Moves, extent: npt.ArrayLike, direction: npt.ArrayLike, machine: Machine) -> Columns:
    """How long the folios of the longest batch are out of reach."""
    phases = folio_phases(
        machine,
        pages_per_folio=1 << np.asarray(plan.folio_order, np.int64),
        ptes_per_folio=ptes_per_folio(plan.folio_order),
        extent_bytes=extent,
        direction=direction_codes(direction),
        n_receivers=receivers(plan.folio_order, plan.n_cpus, plan.n_lazy),
        broadcast=plan.broadcast,
    )
    wait = waiter_ns(moves.largest_batch, phases.unmap_ns, phases.flush_ns, phases.move_ns)
    return {"waiter_mean_ns": wait.mean_ns, "waiter_worst_ns": wait.worst_ns}
