"""Fit the numbers of migration, demotion and clearing to the published tables.

Residuals are relative, modelled over measured time less one, divided by each cell's relative error: its standard
deviation and `FLOOR` in quadrature.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memmodel.cost.machines import Machine
from memmodel.cost.migration import migration_of
from memmodel.cost.model import PAGE_BYTES, CopyCounts, direction_codes, price
from memmodel.cost.published_migration import ClearRate, MigrationRate, ThpCopy
from memmodel.errors import InputError

__all__ = [
    "FLOOR",
    "CellFit",
    "fit_cells",
    "fit_clear",
    "fit_dma",
    "fit_folio_size",
    "fit_slowdown",
    "fit_thp",
    "fit_threads",
]

Floats = NDArray[np.float64]

FLOOR = 0.03
"""Relative error added to the spread of a mean: a machine's series differ by as much. A choice, not a reading."""

PMD_PAGES = 512


@dataclass(frozen=True)
class CellFit:
    """Fitted numbers by name with their errors, and how well the cells are met."""

    values: dict[str, float]
    errors: dict[str, float]
    chi2: float
    dof: int
    residual_percent: Floats
    """Modelled rate above (+) or below (-) the published one, of each cell."""


def fit_cells(
    start: dict[str, float], predict: Callable[[Floats], Floats], measured_ns: Floats, relative_error: Floats
) -> CellFit:
    """Least squares of relative residuals; every number stays at zero or above.

    Raises
    ------
    InputError
        If there are fewer cells than numbers.
    """
    from scipy.optimize import least_squares

    guess = np.array(list(start.values()))
    if measured_ns.size < guess.size:
        raise InputError(f"{measured_ns.size} cells are too few for {guess.size} numbers: {', '.join(start)}")

    def residuals(x: Floats) -> Floats:
        return np.asarray((predict(x) / measured_ns - 1) / relative_error)

    best = least_squares(residuals, guess, bounds=(0, np.inf), x_scale=guess, ftol=1e-13, xtol=1e-13, gtol=1e-13)
    jacobian = np.asarray(best.jac, np.float64)
    errors = np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian)))
    return CellFit(
        dict(zip(start, map(float, best.x), strict=True)),
        dict(zip(start, map(float, errors), strict=True)),
        float(2 * best.cost),
        measured_ns.size - guess.size,
        np.asarray(100 * (measured_ns / predict(best.x) - 1)),
    )


def fit_folio_size(rates: Sequence[MigrationRate]) -> CellFit:
    """``folio + n (page + pte [below PMD order])`` for folios of n pages copied page by page."""
    n, measured, error = _folio_cells(rates)

    def predict(x: Floats) -> Floats:
        return np.asarray(x[0] + n * (x[1] + x[2] * (n < PMD_PAGES)))

    return fit_cells({"folio": 500.0, "page": 400.0, "pte": 200.0}, predict, measured, error)


def fit_threads(rates: Sequence[MigrationRate], machine: Machine) -> CellFit:
    """The socket's time and the gain of twice as many CCDs, as `memmodel.cost.offload` has it; the rest is given."""
    n, measured, error = _folio_cells(rates)
    part, page_ns = migration_of(machine), _page_ns(machine)
    if part.threads is None:
        raise InputError(f"machine {machine.name} has no migration.threads")
    ccds = np.minimum([rate.n for rate in rates], part.threads.ccds.value)

    def predict(x: Floats) -> Floats:
        return np.asarray(_besides(machine, n) + n * np.maximum(page_ns / x[1] ** np.log2(ccds), x[0]))

    return fit_cells({"socket": 100.0, "doubling": 1.6}, predict, measured, error)


def fit_dma(rates: Sequence[MigrationRate], machine: Machine) -> CellFit:
    """Time of 4 KiB by number of channels, and what folios below PMD order take more on each."""
    n, measured, error = _folio_cells(rates)
    channels = np.array([rate.n for rate in rates])
    known, which = np.unique(channels, return_inverse=True)

    def predict(x: Floats) -> Floats:
        copy = x[which] + (n < PMD_PAGES) * x[-1] / channels
        return np.asarray(_besides(machine, n) + n * copy)

    start = {f"channels.{count}": 400.0 / count**0.7 for count in known} | {"below_pmd": 300.0}
    return fit_cells(start, predict, measured, error)


def fit_thp(copies: Sequence[ThpCopy]) -> CellFit:
    """What the move of a THP takes besides its copy: of each call, each folio, and each folio dealt with alone."""
    n = np.array([row.n_folios for row in copies], np.float64)
    alone = np.array([1 / row.n_folios if row.batched else 1.0 for row in copies])
    copy = np.array([PMD_PAGES * PAGE_BYTES / row.copy_gb_per_s for row in copies])
    measured = np.array([PMD_PAGES * PAGE_BYTES / row.total_gb_per_s for row in copies]) - copy

    def predict(x: Floats) -> Floats:
        return np.asarray(x[0] / n + x[1] + x[2] * alone)

    start = {"call": 5000.0, "folio": 20000.0, "alone": 5000.0}
    return fit_cells(start, predict, measured, np.full(n.size, FLOOR))


def fit_slowdown(machine: Machine, kswapd_ns: Sequence[float], extents: Sequence[int], direction: str) -> CellFit:
    """How much slower THPs are copied in reclaim: one number for kswapd's time of a THP with each extent.

    A fixed time a folio in its place meets the two published times half as well: the patch saves more in kswapd than
    it does in move_pages(), as a slower copy would and a fixed time would not.
    """
    codes = direction_codes([direction] * len(extents))
    n_bytes = PMD_PAGES * PAGE_BYTES
    time = price(CopyCounts(n_bytes, extents, n_bytes / np.asarray(extents), 1, codes), machine)

    def predict(x: Floats) -> Floats:
        return np.asarray(x[0] * time.copy_ns + time.folio_overhead_ns)

    measured = np.asarray(kswapd_ns, np.float64)
    return fit_cells({"reclaim_slowdown": 1.2}, predict, measured, np.full(measured.size, FLOOR))


def fit_clear(rates: Sequence[ClearRate]) -> CellFit:
    """Clearing by demand faults: time of 4 KiB by extent, of a fault, and what scattered pages take more.

    A folio of 2 MiB is one extent with the series and its pages, in scattered order, without; one of 1 GiB is cleared
    in batches of 8 MiB where the kernel is not preemptible, and whole where it is.
    """
    by_page = np.array([rate.batch == "page" for rate in rates])
    whole = np.array([rate.preempt == "full" for rate in rates]) & ~by_page
    pages = np.array([rate.folio_kib / 4 for rate in rates])
    scattered = by_page & (pages <= PMD_PAGES)
    column = np.where(by_page, 0, np.where(whole, 2, 1))
    measured = np.array([PAGE_BYTES * 1e9 / 2**30 / rate.gib_per_s for rate in rates])
    error = np.hypot(np.nan_to_num([rate.sd / rate.gib_per_s for rate in rates]), FLOOR)

    def predict(x: Floats) -> Floats:
        return np.asarray(x[column] + x[3] / pages + x[4] * scattered)

    start = {"4 KiB": 220.0, "2 MiB": 210.0, "32 MiB": 90.0, "fault": 5000.0, "scattered": 80.0}
    return fit_cells(start, predict, measured, error)


def _folio_cells(rates: Sequence[MigrationRate]) -> tuple[Floats, Floats, Floats]:
    """Pages of a folio, its time and the relative error of each cell."""
    pages = np.array([rate.folio_kib / 4 for rate in rates])
    mean = np.array([rate.gb_per_s for rate in rates])
    spread = np.nan_to_num([rate.sd / rate.gb_per_s for rate in rates])
    return pages, pages * PAGE_BYTES / mean, np.hypot(spread, FLOOR)


def _page_ns(machine: Machine) -> float:
    return float(price(CopyCounts(PAGE_BYTES, PAGE_BYTES, 1, 0, 0), machine).copy_ns)


def _besides(machine: Machine, pages: Floats) -> Floats:
    """What a folio takes besides the copy."""
    part = migration_of(machine)
    pte = part.unmap_pte.value + part.remap_pte.value
    return np.asarray(machine.folio_overhead.value + pages * pte * (pages < PMD_PAGES))
