"""Fit a machine's numbers to measured copy times: a published table, or what `memmodel calibrate` measures on a host.

Residuals are logarithms of modelled over measured time, divided by each cell's relative error, so that a cell counts by
how well it is known and a rate and its inverse count alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memmodel.cost.machine_file import BYTES, NS_PER_FOLIO, NS_PER_PAGE
from memmodel.cost.machines import PAIRS, Machine, machine_from_dict
from memmodel.cost.model import PAGE_BYTES, interpolate, overlap
from memmodel.errors import InputError
from memmodel.units import format_bytes

__all__ = [
    "CopyCells",
    "Fit",
    "agrees",
    "fit_limit",
    "fit_overlap",
    "leave_one_out_percent",
    "machine_from_fit",
    "number_at",
]

Floats = NDArray[np.float64]


class CopyCells(NamedTuple):
    """Measured times, one entry a cell.

    Attributes
    ----------
    extent_bytes
        Bytes that one call of the primitive copied.
    pair
        Index into `PAIRS`.
    pages_per_folio
        4 KiB pages of one folio; infinite where the time is the copy's alone.
    ns_per_page
        Time of 4 KiB.
    relative_error
        Standard error over time.
    """

    extent_bytes: Floats
    pair: NDArray[np.intp]
    pages_per_folio: Floats
    ns_per_page: Floats
    relative_error: Floats

    def keep(self, mask: NDArray[np.bool_]) -> "CopyCells":
        """The cells where `mask` is true."""
        return CopyCells(
            self.extent_bytes[mask],
            self.pair[mask],
            self.pages_per_folio[mask],
            self.ns_per_page[mask],
            self.relative_error[mask],
        )


@dataclass(frozen=True)
class Fit:
    """Fitted numbers by their place in a machine's table ("memory.DRAM-DRAM", "core.4 KiB"), and how good they are."""

    values: dict[str, float]
    errors: dict[str, float]
    predict: Callable[[CopyCells], Floats]
    """Time of 4 KiB in ns for cells that need not be the fitted ones."""

    def residual_percent(self, cells: CopyCells) -> Floats:
        """Modelled rate above (+) or below (-) the measured one, percent."""
        return np.asarray(100.0 * (cells.ns_per_page / self.predict(cells) - 1.0))


def fit_overlap(cells: CopyCells, knot_bytes: Sequence[int], zero_knot: int = -1, exponent: float | None = None) -> Fit:
    """Fit form L: memory time by pair, core time at each of `knot_bytes`, folio overhead and exponent.

    Parameters
    ----------
    cells
        What was measured.
    knot_bytes
        Extents at which the core time is free, rising.
    zero_knot
        Index of the knot where the core time is zero; without one, core and memory time could not be told apart.
    exponent
        Keep the overlap exponent at this; needed where `cells` has one pair alone.

    Raises
    ------
    InputError
        If the cells are not positive numbers, or too few for the numbers wanted.
    """
    _check(cells)
    codes = np.unique(cells.pair)
    if exponent is None and codes.size == 1:
        raise InputError(
            "cells of one pair of memories do not tell how core and memory time overlap; give the exponent"
        )
    knots = np.asarray(knot_bytes, np.float64)
    free = np.delete(np.arange(knots.size), zero_knot)
    with_folios = bool(np.isfinite(cells.pages_per_folio).any())
    slow, fast = float(cells.ns_per_page.max()), float(cells.ns_per_page.min())
    start = {f"memory.{PAIRS[code]}": float(cells.ns_per_page[cells.pair == code].min()) for code in codes}
    start |= {f"core.{format_bytes(int(knots[i]))}": (slow + fast) / 2 for i in free}
    start |= {"folio_overhead": 10 * slow} if with_folios else {}
    start |= {"overlap_exponent": 2.0} if exponent is None else {}

    def predict(x: Floats, cells: CopyCells) -> Floats:
        memory = np.full(len(PAIRS), np.nan)
        memory[codes] = x[: codes.size]
        core = np.zeros(knots.size)
        core[free] = x[codes.size : codes.size + free.size]
        p = float(x[-1]) if exponent is None else exponent
        folio = x[codes.size + free.size] if with_folios else 0.0
        copy = overlap(interpolate(cells.extent_bytes, knots, core), memory[cells.pair], p)
        return np.asarray(copy + folio / cells.pages_per_folio)

    return _solve(start, predict, cells)


def fit_limit(cells: CopyCells, core_bytes: int, memory_bytes: Sequence[int]) -> Fit:
    """Fit form F: a core limit at `core_bytes`, memory times at `memory_bytes`, the price of a call and a folio.

    The core limit falls to zero at the first of `memory_bytes`, from where the memory alone decides.

    Raises
    ------
    InputError
        As `fit_overlap`.
    """
    _check(cells)
    codes = np.unique(cells.pair)
    slow = float(cells.ns_per_page.max())
    core_knots = [core_bytes, memory_bytes[0]]
    start = {f"limit.core.{format_bytes(core_bytes)}": float(np.median(cells.ns_per_page))}
    for code in codes:
        times = np.sort(cells.ns_per_page[cells.pair == code])
        guesses = np.linspace(times[len(times) // 2], times[0], len(memory_bytes))
        start |= {
            f"limit.memory.{PAIRS[code]}.{format_bytes(extent)}": float(guess)
            for extent, guess in zip(memory_bytes, guesses, strict=True)
        }
    start |= {"limit.per_call": slow / 20, "limit.folio_overhead": 10 * slow}

    def predict(x: Floats, cells: CopyCells) -> Floats:
        core = interpolate(cells.extent_bytes, core_knots, [x[0], 0.0])
        by_pair = np.reshape(x[1:-2], (codes.size, len(memory_bytes)))
        memory = np.full(cells.pair.shape, np.nan)
        for code, times in zip(codes, by_pair, strict=True):
            here = cells.pair == code
            memory[here] = interpolate(cells.extent_bytes[here], memory_bytes, times)
        per_page = x[-2] * PAGE_BYTES / cells.extent_bytes + x[-1] / cells.pages_per_folio
        return np.asarray(np.maximum(core, memory) + per_page)

    return _solve(start, predict, cells)


def leave_one_out_percent(fit: Callable[[CopyCells], Fit], cells: CopyCells) -> Floats:
    """Residual of each cell, percent, in the fit to all the others: how well the model predicts what it never saw."""
    everything = np.arange(cells.pair.size)
    return np.array([fit(cells.keep(everything != i)).residual_percent(cells)[i] for i in everything])


def machine_from_fit(name: str, about: str, fit: Fit, knot_bytes: Sequence[int], source: str) -> Machine:
    """The machine of an overlap fit; `source` says what was measured. What the fit left out is assumed, and says so.

    Raises
    ------
    InputError
        If a fitted number is out of the range that a machine file allows.
    """

    def number(value: float, unit: str, how: str = "fitted") -> dict[str, Any]:
        return {"value": value, "unit": unit, "source": source, "how": how}

    assumed = partial(number, how="assumed")
    table: dict[str, Any] = {
        "about": about,
        "memory": {},
        "core": {format_bytes(extent): assumed(0.0, NS_PER_PAGE) for extent in knot_bytes},
        "folio_overhead": assumed(0.0, NS_PER_FOLIO),
        "overlap_exponent": assumed(1.0, "1"),
        "largest_extent": number(float(max(knot_bytes)), BYTES, "published"),
    }
    for place, value in fit.values.items():
        group, _, key = place.partition(".")
        if key:
            table[group][key] = number(value, NS_PER_PAGE)
        else:
            table[group] = number(value, table[group]["unit"])
    return machine_from_dict(name, table, source)


def number_at(table: Any, place: str) -> float:
    """Value of a number of `Machine.as_dict` by its place, such as "memory.DRAM-DRAM"."""
    for key in place.split("."):
        table = table[key]
    return float(table["value"])


def agrees(value: float, written: float) -> bool:
    """Whether `value` rounds to `written` at the digits that `written` has."""
    decimals = len(repr(written).removesuffix(".0").partition(".")[2])
    return round(value, decimals) == written


def _check(cells: CopyCells) -> None:
    for label, array in zip(cells._fields, cells, strict=True):
        if label != "pair" and not np.all(array > 0):
            raise InputError(f"{label}: every cell must be a positive number")


def _solve(start: dict[str, float], predict: Callable[[Floats, CopyCells], Floats], cells: CopyCells) -> Fit:
    from scipy.optimize import least_squares

    names, guess = list(start), np.array(list(start.values()))
    if cells.pair.size < guess.size:
        raise InputError(f"{cells.pair.size} cells are too few for {guess.size} numbers: {', '.join(names)}")
    lower = [1.0 if name.endswith("exponent") else 0.0 for name in names]
    upper = [20.0 if name.endswith("exponent") else np.inf for name in names]

    def residuals(x: Floats) -> Floats:
        return np.asarray(np.log(predict(x, cells) / cells.ns_per_page) / cells.relative_error)

    best = least_squares(residuals, guess, bounds=(lower, upper), x_scale=guess, ftol=1e-13, xtol=1e-13, gtol=1e-13)
    jacobian = np.asarray(best.jac, np.float64)
    errors = np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian)))
    return Fit(
        dict(zip(names, map(float, best.x), strict=True)),
        dict(zip(names, map(float, errors), strict=True)),
        partial(predict, best.x),
    )
