"""The published batch page copy table beside the model's: the sweep that reproduces a measurement."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memmodel.cost.machines import DIRECTIONS, Machine
from memmodel.cost.published import published_copy_table
from memmodel.results.dataset import Column, extend
from memmodel.results.variables import Variable
from memmodel.studies.sweep import run_study

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["CopyTableFit", "copy_table", "fit_of"]

DIMS = ("direction", "folio_order", "batch")
GRID: dict[str, list[Any]] = {"direction": list(DIRECTIONS), "folio_order": [9, 18], "batch": ["page", "extent"]}
PUBLISHED = Variable(
    "published_throughput_gib_per_s", "float64", "GiB s-1", "published copy rate", "Mean of the runs.", DIMS
)
SPREAD = Variable(
    "published_sd_gib_per_s", "float64", "GiB s-1", "published spread", "Standard deviation over the runs.", DIMS
)
RESIDUAL = Variable(
    "residual_percent", "float64", "percent", "model against published", "100 (model / published - 1).", DIMS
)
USED = Variable(
    "cell_used",
    "int8",
    "1",
    "cell used for the fit",
    "0 for a cell whose spread says that one of its runs was off.",
    DIMS,
    flags=("shown_apart", "used"),
)


@dataclass(frozen=True)
class CopyTableFit:
    """How the model meets the cells used, in percent of the published rate."""

    n_cells: int
    rms_percent: float
    worst_percent: float


def copy_table(machine: str | Machine = "zen6-cxl", workers: int = 1) -> "xr.Dataset":
    """Sweep `folio_copy` over the table's 16 cells, with the published rates and the residuals.

    References
    ----------
    Shivank Garg, "[PATCH RFC v2] mm: introduce copy_mc_highpages() and batch copy in folio_mc_copy()", October 2026:
    one move_pages() call on EPYC Zen 6 with CXL, as 2 MiB THPs or 1 GiB hugetlb pages, mean of ten runs.
    """
    ds = run_study("folio_copy", GRID, machine=machine, seed=0, workers=workers)
    cells = {(cell.direction, cell.folio_order, cell.batch): cell for cell in published_copy_table()}
    table = [
        cells[direction, order, batch]
        for direction in GRID["direction"]
        for order in GRID["folio_order"]
        for batch in GRID["batch"]
    ]
    shape = tuple(len(levels) for levels in GRID.values())
    published = np.array([cell.mean_gib_per_s for cell in table]).reshape(shape)
    columns = [
        Column(PUBLISHED, published),
        Column(SPREAD, np.array([cell.sd_gib_per_s for cell in table]).reshape(shape)),
        Column(RESIDUAL, 100 * (ds["throughput_gib_per_s"].values / published - 1)),
        Column(USED, np.array([cell.usable for cell in table]).reshape(shape)),
    ]
    return extend(ds, columns)


def fit_of(ds: "xr.Dataset") -> CopyTableFit:
    """Residuals of `copy_table` over the cells used."""
    residual = ds["residual_percent"].values[ds["cell_used"].values == 1]
    return CopyTableFit(residual.size, float(np.sqrt(np.mean(residual**2))), float(np.abs(residual).max()))
