"""Copy 1 GiB of folios: how long it takes, and what becomes of those with a poisoned line."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.cost.machines import DIRECTIONS, Machine
from memmodel.cost.model import CopyCounts, direction_codes, price, throughput_gib_per_s
from memmodel.errors import InputError
from memmodel.geometry import PREEMPT_MODELS
from memmodel.kernels.copying import Total
from memmodel.mechanisms.copying import BATCHES, ENGINES
from memmodel.memory import PhysicalMemory
from memmodel.sources.records import Snapshot
from memmodel.studies.copy_counts import Counts, count, count_in_memory
from memmodel.studies.registry import Block, Parameter, Params, Seeds, Study

__all__ = ["STUDY"]

PARAMETERS = (
    Parameter(
        "direction",
        "D0-D1",
        "Source and target node. D0 and D1 are DRAM; with a memory it picks the price alone.",
        kind="choice",
        choices=DIRECTIONS,
    ),
    Parameter("folio_order", 9, "Order of the folios. 9 is a 2 MiB THP, 18 a 1 GiB page.", kind="int", range=(0, 18)),
    Parameter(
        "batch",
        "extent",
        "What one call copies. page: mainline's call a page; extent: copy_mc_highpages().",
        kind="choice",
        choices=BATCHES,
    ),
    Parameter(
        "preempt",
        "full",
        "Preemption model. none and voluntary cut an extent at 32 MiB.",
        kind="choice",
        choices=PREEMPT_MODELS,
    ),
    Parameter(
        "engine",
        "fast_string",
        "Copy primitive. Decides what becomes of an error; the price is that of the machine's own.",
        kind="choice",
        choices=tuple(ENGINES),
    ),
    Parameter("page_size", "4KiB", "Base page size.", kind="choice", choices=("4KiB", "16KiB", "64KiB")),
    Parameter(
        "poison_per_gib",
        0.0,
        "Poisoned lines a GiB of source. Poisson, uniform; the same for every level of the other parameters.",
        units="GiB-1",
        range=(0, 1e6),
        workload=True,
    ),
    Parameter(
        "drain_folios",
        1,
        "Folios copied between two runs of the CPU's memory_failure worker.",
        kind="int",
        range=(1, 1 << 30),
    ),
    Parameter(
        "form",
        "L",
        "Form of the cost model. L: core and memory overlap; F: the slower one.",
        kind="choice",
        choices=("L", "F"),
    ),
)
OUTPUTS = (
    *("throughput_gib_per_s", "time_total_ns", "time_copy_ns", "time_core_ns", "time_memory_ns"),
    *("time_folio_overhead_ns", "worst_nonpreemptible_ns", "longest_stretch_bytes", "n_calls", "n_resched"),
    *("bytes_moved", "folios_moved", "folios_failed", "folios_failed_share", "n_errors", "queue_dropped", "panicked"),
    *("alloc_failed", "calibrated"),
)


class FolioCopy(Study):
    """The study with its machine, and the memory it may start from."""

    def bind(self, context: Mapping[str, Any]) -> Block:
        """Counts come from copies in ``memory`` where there is one; ``machine`` prices them.

        Raises
        ------
        InputError
            If the memory is neither a PhysicalMemory nor a Snapshot, or a snapshot cannot be made one.
        """
        memory = context.get("memory")
        if isinstance(memory, Snapshot):
            memory = PhysicalMemory.from_snapshot(memory)
        if memory is not None and not isinstance(memory, PhysicalMemory):
            raise InputError(f"memory is a {type(memory).__name__}; give a PhysicalMemory or a Snapshot")
        return partial(block, machine=context["machine"], memory=memory)


def block(params: Params, seeds: Seeds, *, machine: Machine, memory: PhysicalMemory | None = None) -> Mapping[str, Any]:
    """Count, then price."""
    counts = count(params, seeds) if memory is None else count_in_memory(memory, params, seeds)
    return outputs(params, counts, machine)


def outputs(params: Params, counts: Counts, machine: Machine) -> dict[str, npt.NDArray[Any]]:
    """All outputs of the study: what was counted, and the time that `machine` takes for it."""
    totals = dict(zip(Total, counts.totals.T.astype(np.float64), strict=True))
    tried, failed = totals[Total.TRIED], totals[Total.FAILED]
    moved = tried - failed - totals[Total.PANICKED]
    bytes_moved = moved * (counts.points["n_pages"] << counts.points["page_shift"])
    times = times_of(params, counts, machine)
    return {
        "throughput_gib_per_s": throughput_gib_per_s(bytes_moved, times["time_total_ns"]),
        **times,
        "longest_stretch_bytes": totals[Total.STRETCH_BYTES],
        "n_calls": totals[Total.CALLS],
        "n_resched": totals[Total.RESCHED],
        "bytes_moved": bytes_moved,
        "folios_moved": moved,
        "folios_failed": failed,
        "folios_failed_share": np.divide(failed, tried, out=np.full(tried.size, np.nan), where=tried > 0),
        "n_errors": counts.n_errors,
        "queue_dropped": totals[Total.DROPPED],
        "panicked": totals[Total.PANICKED],
        "alloc_failed": counts.alloc_failed,
    }


def times_of(params: Params, counts: Counts, machine: Machine) -> dict[str, npt.NDArray[Any]]:
    """Times of the block's points, each by its own form of the cost model."""
    points, totals = counts.points, counts.totals.T
    whole = np.where(points["unit_pages"] > 0, np.minimum(points["unit_pages"], points["n_pages"]), points["n_pages"])
    extent = np.where(points["per_page"] > 0, 1, whole) << points["page_shift"]
    folio_bytes = points["n_pages"] << points["page_shift"]
    # The overhead of a folio was found on folios of some size; that of a smaller one is anybody's guess.
    measured = folio_bytes >= (machine.smallest_folio.value if machine.smallest_folio else 0)
    # What was measured is rep movs on 4 KiB pages; other engines and page sizes are priced as if they were that.
    measured &= (params["engine"] == "fast_string") & (params["page_size"] == "4KiB")
    stretch = totals[Total.STRETCH_BYTES]
    direction = direction_codes(params["direction"])
    work = CopyCounts(totals[Total.BYTES_WRITTEN], extent, totals[Total.CALLS], totals[Total.TRIED], direction)
    longest = CopyCounts(stretch, extent, -(-stretch // extent.astype(np.int64)), np.zeros_like(stretch), direction)
    times: dict[str, npt.NDArray[Any]] = {}
    for form in np.unique(params["form"]):
        here = params["form"] == form
        time = price(CopyCounts(*(np.asarray(array)[here] for array in work)), machine, str(form))
        wait = price(CopyCounts(*(np.asarray(array)[here] for array in longest)), machine, str(form))
        columns = {
            "time_total_ns": time.total_ns,
            "time_copy_ns": time.copy_ns,
            "time_core_ns": time.core_ns,
            "time_memory_ns": time.memory_ns,
            "time_folio_overhead_ns": time.folio_overhead_ns,
            "worst_nonpreemptible_ns": wait.copy_ns,
            "calibrated": (time.calibrated & measured[here]).astype(np.int8),
        }
        for name, column in columns.items():
            times.setdefault(name, np.zeros(here.size, column.dtype))[here] = column
    return times


STUDY = FolioCopy(
    name="folio_copy",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/util.c folio_mc_copy (Linux 6.12.117); the copy_mc_highpages() series, RFC v2, October 2026",
    default_machine="zen6-cxl",
)
