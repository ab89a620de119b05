"""Clear 1 GiB of folios at their faults: how fast, by the bytes that one call clears."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.cost.machines import Machine
from memmodel.cost.model import PAGE_BYTES, clear_ns, throughput_gib_per_s
from memmodel.geometry import PREEMPT_MODELS
from memmodel.mechanisms.copying import BATCHES
from memmodel.studies.registry import Parameter, Params, PricedStudy, Seeds

__all__ = ["STUDY", "block"]

CLEARED_BYTES = 1 << 30
PMD_ORDER = 9
MEASURED_ORDERS = (9, 18)  # 2 MiB and 1 GiB
UNMEASURED_EXTENTS = (8 << 20, 1 << 30)  # between the batch of the series' mails and a whole folio nothing was measured

PARAMETERS = (
    Parameter("folio_order", 9, "Order of the folios. 9 is a 2 MiB THP, 18 a 1 GiB page.", kind="int", range=(0, 18)),
    Parameter(
        "batch",
        "extent",
        "What one call clears. page: a page, as before the series; extent: clear_pages().",
        kind="choice",
        choices=BATCHES,
    ),
    Parameter(
        "batch_bytes",
        8 << 20,
        "Most that one call of clear_pages() clears where the kernel is not preemptible.",
        "byte",
        kind="int",
        range=(PAGE_BYTES, CLEARED_BYTES),
    ),
    Parameter(
        "preempt",
        "full",
        "Preemption model. none and voluntary cut an extent at batch_bytes.",
        kind="choice",
        choices=PREEMPT_MODELS,
    ),
)
OUTPUTS = (
    *("throughput_gib_per_s", "time_total_ns", "time_clear_ns", "time_fault_ns", "n_calls", "longest_stretch_bytes"),
    *("worst_nonpreemptible_ns", "calibrated"),
)


def block(params: Params, seeds: Seeds, *, machine: Machine) -> Mapping[str, npt.ArrayLike]:
    """Calls of each folio, then their price: nothing is random.

    A fault's own time is left out where the machine gives none, and below PMD order, where none was measured; such
    points are not calibrated.

    Raises
    ------
    InputError
        If the machine has no clear times.
    """
    order, by_page = params["folio_order"], params["batch"] == "page"
    preemptible = np.isin(params["preempt"], ("lazy", "full"))
    folio = np.int64(PAGE_BYTES) << order
    extent = np.where(by_page, PAGE_BYTES, np.where(preemptible, folio, np.minimum(folio, params["batch_bytes"])))
    whole, left = folio // extent, folio % extent
    scattered = by_page & (order > 0) & (order <= PMD_ORDER)
    n_folios = CLEARED_BYTES // folio
    folio_ns = clear_ns(whole * extent, extent, machine) + clear_ns(left, np.maximum(left, PAGE_BYTES), machine)
    folio_ns = folio_ns + scattered * folio / PAGE_BYTES * _value(machine.clear_scattered)
    fault_ns = n_folios * (order >= PMD_ORDER) * _value(machine.clear_fault)
    total_ns = n_folios * folio_ns + fault_ns
    stretch = np.where(preemptible, 0, extent)
    return {
        "throughput_gib_per_s": throughput_gib_per_s(np.full(order.size, CLEARED_BYTES), total_ns),
        "time_total_ns": total_ns,
        "time_clear_ns": n_folios * folio_ns,
        "time_fault_ns": fault_ns,
        "n_calls": n_folios * (whole + (left > 0)),
        "longest_stretch_bytes": stretch,
        "worst_nonpreemptible_ns": clear_ns(stretch, extent, machine),
        "calibrated": _calibrated(machine, order, extent),
    }


def _value(number: Any) -> float:
    return 0.0 if number is None else float(number.value)


def _calibrated(machine: Machine, order: npt.NDArray[Any], extent: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    numbers = [machine.clear_fault, machine.clear_scattered, *(number for _, number in machine.clear)]
    low, high = UNMEASURED_EXTENTS
    known = all(number is not None and number.how != "assumed" for number in numbers)
    return np.asarray(known & np.isin(order, MEASURED_ORDERS) & ((extent <= low) | (extent >= high)))


STUDY = PricedStudy(
    name="clear_pages",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/memory.c folio_zero_user; Ankur Arora's clear_pages() series (merged as 94962b2628)",
    default_machine="milan",
)
