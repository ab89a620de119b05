"""Published numbers beside the model's: rows, what is made of them, and how they are shown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memmodel.results.dataset import Column, build, stamp
from memmodel.results.variables import Variable

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["KINDS", "Row", "as_dataset", "rms_percent", "text_lines", "worst"]

KINDS = ("predicted", "calibrated")
DIMS = ("row",)


@dataclass(frozen=True)
class Row:
    """One published number and the model's."""

    table: str
    label: str
    published: float
    modelled: float
    units: str
    source: str
    """Message-ID, commit or archive number."""
    calibrated: bool
    """Whether the number went into a fit; else the model predicts it."""
    sd: float = float("nan")

    @property
    def residual_percent(self) -> float:
        """Modelled above (+) or below (-) published."""
        return 100 * (self.modelled / self.published - 1)


def rms_percent(rows: Iterable[Row]) -> float:
    """Root mean square of the residuals."""
    return float(np.sqrt(np.mean([row.residual_percent**2 for row in rows])))


def worst(rows: Iterable[Row]) -> Row:
    """The row with the largest residual."""
    return max(rows, key=lambda row: abs(row.residual_percent))


def text_lines(rows: Sequence[Row]) -> Iterator[str]:
    """The rows as a table for the terminal, a block and its rms and worst row for each of their tables."""
    width = max(len(row.label) for row in rows) + 2
    for table in dict.fromkeys(row.table for row in rows):
        block = [row for row in rows if row.table == table]
        yield f"{table}\n  {'':<{width}}{'published':>20}{'model':>11}  {'':<9}{'residual':>9}"
        for row in block:
            spread = "" if np.isnan(row.sd) else f" ± {row.sd:.2f}"
            numbers = f"{_number(row.published) + spread:>20}{_number(row.modelled):>11}  {row.units:<9}"
            percent = round(row.residual_percent, 1) + 0.0  # no -0.0
            yield f"  {row.label:<{width}}{numbers}{percent:>+8.1f}%  {KINDS[row.calibrated]}"
        yield f"  {_summary(block)}\n"
    yield f"all: {_summary(rows)}"


def as_dataset(rows: Sequence[Row], title: str, script: str) -> "xr.Dataset":
    """One entry a row; numbers are in the units that the coordinate ``units`` names."""

    def text(name: str, long_name: str, values: list[str]) -> Column:
        return Column(Variable(name, "str", "1", long_name, f"{long_name}.", DIMS), values)

    def number(name: str, units: str, long_name: str, values: list[float]) -> Column:
        doc = f"{long_name}, each in the units that its row names." if units == "1" else f"{long_name}."
        return Column(Variable(name, "float64", units, long_name, doc, DIMS), values)

    coordinates = [
        text("row", "what was measured", [f"{row.table}: {row.label}" for row in rows]),
        text("table", "table that the row belongs to", [row.table for row in rows]),
        text("source", "source of the number", [row.source for row in rows]),
        text("row_units", "units of published and modelled", [row.units for row in rows]),
    ]
    kind = Variable("kind", "int8", "1", "role", "Whether the number went into a fit.", DIMS, KINDS)
    data = [
        number("published", "1", "published", [row.published for row in rows]),
        number("published_sd", "1", "published spread", [row.sd for row in rows]),
        number("modelled", "1", "modelled", [row.modelled for row in rows]),
        number("residual_percent", "percent", "model against published", [row.residual_percent for row in rows]),
        Column(kind, [int(row.calibrated) for row in rows]),
    ]
    return build(coordinates, data, {"title": title, "provenance": stamp({"script": script})})


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _summary(rows: Sequence[Row]) -> str:
    far = worst(rows)
    return (
        f"{len(rows)} rows, rms {rms_percent(rows):.1f} %, worst {far.residual_percent:+.1f} % ({far.label}, "
        f"{KINDS[far.calibrated]})"
    )
