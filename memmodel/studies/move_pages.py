"""Move 1 GiB with one move_pages() through the whole algorithm: what is counted on the way, and how fast that is."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.cost.machines import DIRECTIONS, Machine
from memmodel.cost.migration import MigrationCounts
from memmodel.cost.model import direction_codes, throughput_gib_per_s
from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.mechanisms.buddy import alloc_pages
from memmodel.mechanisms.copying import BATCHES
from memmodel.mechanisms.move_pages import move_pages
from memmodel.mechanisms.poisoning import inject_poison
from memmodel.mechanisms.tlb import Tlb
from memmodel.memory import PhysicalMemory
from memmodel.sources.features import PRESETS
from memmodel.studies.migration_counts import Plan, count_moves, is_batched
from memmodel.studies.migration_prices import Columns, extent_bytes, migration_counts, times
from memmodel.studies.registry import Parameter, Params, PricedStudy, Seeds, points_of

__all__ = ["STUDY", "block"]

MOVED_PAGES = 1 << 18
MEMORY = "3GiB"  # on two nodes: room for sources and targets
GIGANTIC = 11  # orders from here on are no blocks of the buddy allocator
PARAMETERS = (
    Parameter("direction", "D0-D1", "Source and target node.", kind="choice", choices=DIRECTIONS),
    Parameter(
        "folio_order",
        9,
        "Order of the folios. 9 is a THP; 18 a 1 GiB hugetlb page, whose counts are worked out.",
        kind="int",
        choices=(*range(10), 18),
    ),
    Parameter(
        "batch",
        "extent",
        "What one call copies. page: mainline's call a page; extent: copy_mc_highpages().",
        kind="choice",
        choices=BATCHES,
    ),
    Parameter("kernel", "6.12.117", "Its rules.", kind="choice", choices=PRESETS),
    Parameter("n_cpus", 1, "CPUs that may hold translations.", kind="int", range=(1, 64)),
    Parameter("poison_per_gib", 0.0, "Poisoned lines a GiB. Poisson, uniform.", "GiB-1", range=(0, 1e4), workload=True),
)
OUTPUTS = (
    *("throughput_gib_per_s", "pages_per_s", "nr_succeeded", "nr_failed", "n_flushes", "n_ipis", "n_ptes"),
    *("n_calls", "simulated"),
    *("time_total_ns", "time_call_ns", "time_unmap_ns", "time_flush_ns", "time_copy_ns", "time_remap_ns"),
    *("time_folio_overhead_ns", "calibrated"),
)


def block(params: Params, seeds: Seeds, *, machine: Machine) -> Mapping[str, npt.ArrayLike]:
    """One move a point, on a machine of two nodes; then the price."""
    rows = [
        _worked_out(point) if point["folio_order"] >= GIGANTIC else _simulated(point, seed)
        for point, seed in zip(points_of(params), seeds, strict=True)
    ]
    counts = MigrationCounts(*(np.array(column, np.float64) for column in zip(*(row[0] for row in rows), strict=True)))
    counts = counts._replace(direction=direction_codes(params["direction"]))
    found = times(counts, machine, False)
    columns: Columns = {name: np.array([row[1][name] for row in rows], np.float64) for name in rows[0][1]}
    rate = throughput_gib_per_s(columns["nr_succeeded"] * 4096, found["time_total_ns"])
    return {"throughput_gib_per_s": rate, **found, **columns, "n_calls": np.asarray(counts.n_copy_calls)}


def _simulated(point: Mapping[str, Any], seed: npt.NDArray[np.uint64]) -> tuple[MigrationCounts, dict[str, float]]:
    """By move_pages() itself."""
    order, n_cpus = point["folio_order"], point["n_cpus"]
    geometry = Geometry(kernel=point["kernel"])
    mem = PhysicalMemory(geometry, MEMORY, nodes=2, cpus=n_cpus, seed=0)
    folios = alloc_pages(mem, order, MOVED_PAGES >> order)
    if point["poison_per_gib"]:
        inject_poison(mem, rate_per_gib=point["poison_per_gib"], seed=np.random.SeedSequence(seed.tolist()))
    tlb = Tlb(geometry, n_cpus, [list(range(n_cpus))])
    out = move_pages(mem, folios, 1, tlb=tlb, copy_batch=point["batch"])
    counts = MigrationCounts(
        n_calls=len(out.calls),
        n_folios=out.total("n_unmapped_folios"),
        n_pages=out.total("n_copied"),
        n_ptes_unmapped=out.total("n_set"),
        n_ptes_remapped=out.total("n_removed"),
        n_flushes_full=out.total("local_full"),
        n_flushes_page=out.total("local_pages"),
        n_flush_requests=out.total("requests"),
        n_ipis=out.total("n_ipis"),
        n_copy_calls=out.total("n_copy_calls"),
        bytes_copied=out.total("n_copied") * 4096,
        extent_bytes=extent_bytes(order, point["batch"]),
        direction=0,
    )
    numbers = {name: out.total(name) for name in ("nr_succeeded", "nr_failed", "n_flushes", "n_ipis")}
    return counts, {**numbers, "n_ptes": out.total("n_set"), "simulated": 1}


def _worked_out(point: Mapping[str, Any]) -> tuple[MigrationCounts, dict[str, float]]:
    """From the numbers alone: such folios come from no free list.

    Raises
    ------
    InputError
        If errors are asked for.
    """
    if point["poison_per_gib"]:
        raise InputError(f"poison_per_gib with folio_order {point['folio_order']}: gigantic pages are not simulated")
    order = point["folio_order"]
    n_folios = max(MOVED_PAGES >> order, 1)
    plan = Plan(n_folios, order, n_folios, 512, point["n_cpus"], 0, bool(is_batched(point["kernel"])), False)
    moves = count_moves(plan)
    counts = migration_counts(plan, moves, extent_bytes(order, point["batch"]), point["direction"])
    numbers = {name: float(getattr(moves, name)) for name in ("n_flushes", "n_ipis", "n_ptes")}
    return counts, {**numbers, "nr_succeeded": float(moves.n_pages), "nr_failed": 0.0, "simulated": 0.0}


STUDY = PricedStudy(
    name="move_pages",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/migrate.c (Linux 6.12.117); the copy_mc_highpages() series, RFC v2, October 2026",
    default_machine="zen6-cxl",
)
