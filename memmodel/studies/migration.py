"""Move 1 GiB of folios of one size: how fast that is, copied by the CPU, by threads or by DMA channels."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from memmodel.cost.machines import DIRECTIONS, Machine
from memmodel.cost.model import throughput_gib_per_s
from memmodel.cost.offload import DmaChannels, Offload, Threads
from memmodel.mechanisms.copying import BATCHES
from memmodel.studies.migration_counts import HPAGE_PMD_ORDER, Plan, count_moves
from memmodel.studies.migration_prices import Columns, extent_bytes, migration_counts, times
from memmodel.studies.registry import Parameter, Params, PricedStudy, Seeds

__all__ = ["STUDY", "block"]

MOVED_PAGES = 1 << 18
COPIERS = ("cpu", "threads", "dma")
PARAMETERS = (
    Parameter("folio_order", 0, "Order of the folios. 9 is a THP.", kind="int", range=(0, HPAGE_PMD_ORDER)),
    Parameter("folios_per_call", MOVED_PAGES, "Folios of one migrate_pages().", kind="int", range=(1, MOVED_PAGES)),
    Parameter(
        "batch",
        "page",
        "What one call copies. page: mainline's call a page; extent: copy_mc_highpages().",
        kind="choice",
        choices=BATCHES,
    ),
    Parameter("copier", "cpu", "Who copies. threads and dma: n_copiers of them.", kind="choice", choices=COPIERS),
    Parameter("n_copiers", 1, "Threads or DMA channels.", kind="int", range=(1, 1024)),
    Parameter("placement", "spread", "Of threads over CCDs.", kind="choice", choices=("spread", "fill")),
    Parameter("n_cpus", 1, "CPUs that may hold translations.", kind="int", range=(1, 8192)),
    Parameter("direction", "D0-D1", "Source and target node.", kind="choice", choices=DIRECTIONS),
)
OUTPUTS = (
    *("throughput_gib_per_s", "pages_per_s", "n_flushes", "n_ipis", "n_ptes", "time_total_ns", "time_call_ns"),
    *("time_unmap_ns", "time_flush_ns", "time_copy_ns", "time_remap_ns", "time_folio_overhead_ns", "calibrated"),
)


def block(params: Params, seeds: Seeds, *, machine: Machine) -> Mapping[str, npt.ArrayLike]:
    """Count, then price, points of one copier together: nothing is random. Batches of 512 pages, as from 6.3 on."""
    columns: Columns = {}
    keys = list(zip(params["copier"].tolist(), params["n_copiers"].tolist(), params["placement"].tolist(), strict=True))
    for copier, n, placement in dict.fromkeys(keys):
        here = np.array([key == (copier, n, placement) for key in keys])
        offload: Offload | None = None
        if copier != "cpu":
            offload = Threads(n, placement) if copier == "threads" else DmaChannels(n)
        found = _moved({name: column[here] for name, column in params.items()}, machine, copier, offload)
        for name, column in found.items():
            columns.setdefault(name, np.zeros(len(keys), column.dtype))[here] = column
    return columns


def _moved(params: Params, machine: Machine, copier: str, offload: Offload | None) -> Columns:
    order = params["folio_order"]
    plan = Plan(MOVED_PAGES >> order, order, params["folios_per_call"], 512, params["n_cpus"], 0, True, False)
    moves = count_moves(plan)
    extent = extent_bytes(order, "extent" if copier == "dma" else params["batch"])
    counts = migration_counts(plan, moves, extent, params["direction"])
    found = times(counts, machine, False, offload)
    rate = throughput_gib_per_s(np.full(order.size, MOVED_PAGES << 12), found["time_total_ns"])
    numbers = {"n_flushes": moves.n_flushes, "n_ipis": moves.n_ipis, "n_ptes": moves.n_ptes}
    return {"throughput_gib_per_s": rate, **found, **numbers}


STUDY = PricedStudy(
    name="migration",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/migrate.c (Linux 6.12.117); the page migration offload series V2 to V5 (2025, 2026)",
    default_machine="zen3-32c",
)
