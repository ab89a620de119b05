"""Move base pages or larger folios: how many TLB flushes and IPIs that takes, how fast it is, how long others wait."""

from collections.abc import Mapping

import numpy.typing as npt

from memmodel.cost.machines import DIRECTIONS, Machine
from memmodel.errors import InputError
from memmodel.sources.features import PRESETS
from memmodel.studies.migration_counts import Moves, Plan, count_moves, is_batched
from memmodel.studies.migration_prices import Columns, extent_bytes, migration_counts, times, waits
from memmodel.studies.registry import Parameter, Params, PricedStudy, Seeds

__all__ = ["STUDY", "block", "counted"]

PARAMETERS = (
    Parameter("n_folios", 262144, "Folios moved. 262144 base pages are 1 GiB.", kind="int", range=(1, 1 << 30)),
    Parameter("folio_order", 0, "Order of the folios. 9 is a THP.", kind="int", range=(0, 18)),
    Parameter(
        "folios_per_call",
        262144,
        "Folios of one migrate_pages(). move_pages() begins a new one at each page that cannot be queued.",
        kind="int",
        range=(1, 1 << 30),
    ),
    Parameter(
        "batch_pages",
        512,
        "Base pages that are unmapped together. The kernel's limit is HPAGE_PMD_NR, 512.",
        kind="int",
        range=(1, 1 << 20),
    ),
    Parameter("n_cpus", 16, "CPUs that may hold translations. With the migrating one.", kind="int", range=(1, 8192)),
    Parameter("n_lazy", 0, "Of these, CPUs that idle.", kind="int", range=(0, 8191)),
    Parameter("kernel", "6.12.117", "Its rules.", kind="choice", choices=PRESETS),
    Parameter(
        "flush_by",
        "ipi",
        "How other CPUs are reached. invlpgb: by broadcast, from 6.15 on, where the CPUs have it.",
        kind="choice",
        choices=("ipi", "invlpgb"),
    ),
    Parameter("direction", "D0-D1", "Source and target node.", kind="choice", choices=DIRECTIONS),
)
OUTPUTS = (
    *("n_batches", "n_flushes", "n_flush_requests", "n_ipis", "n_ptes", "pages_per_s", "waiter_mean_ns"),
    *("waiter_worst_ns", "time_total_ns", "time_call_ns", "time_unmap_ns", "time_flush_ns", "time_copy_ns"),
    *("time_remap_ns", "time_folio_overhead_ns", "calibrated"),
)


def block(params: Params, seeds: Seeds, *, machine: Machine) -> Mapping[str, npt.ArrayLike]:
    """Count, then price: nothing is random, and a page is copied at a time."""
    return counted(params, machine, extent_bytes(params["folio_order"], "page"))


def counted(params: Params, machine: Machine, extent: npt.ArrayLike) -> Columns:
    """All outputs.

    Raises
    ------
    InputError
        If a kernel before 6.15 is to broadcast.
    """
    broadcast = params["flush_by"] == "invlpgb"
    if (broadcast & (params["kernel"] != "7.3")).any():
        raise InputError("flush_by invlpgb: of these kernels only 7.3 uses it (it came in 6.15)")
    plan = Plan(
        *(params["n_folios"], params["folio_order"], params["folios_per_call"], params["batch_pages"]),
        *(params["n_cpus"], params["n_lazy"], is_batched(params["kernel"]), broadcast),
    )
    moves = count_moves(plan)
    counts = migration_counts(plan, moves, extent, params["direction"])
    return {
        **_numbers(moves),
        **times(counts, machine, broadcast),
        **waits(plan, moves, extent, params["direction"], machine),
    }


def _numbers(moves: Moves) -> Columns:
    return {
        "n_batches": moves.n_batches,
        "n_flushes": moves.n_flushes,
        "n_flush_requests": moves.n_requests + moves.n_broadcasts,
        "n_ipis": moves.n_ipis,
        "n_ptes": moves.n_ptes,
    }


STUDY = PricedStudy(
    name="tlb_batch",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/migrate.c, mm/rmap.c, arch/x86/mm/tlb.c (Linux 6.1.192, 6.12.117, 7.3.4)",
    default_machine="zen3-32c",
)
