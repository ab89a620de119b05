"""Residuals of published numbers, as a picture."""

import os
from typing import TYPE_CHECKING

import numpy as np

from memmodel.errors import InputError
from memmodel.report.panels import COLOURS, INK, check_path, footnote, new_figure, plain, save

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["plot_comparison"]

_NEEDED = ("residual_percent", "kind", "table")
_MAX_LABELS = 60


def plot_comparison(ds: "xr.Dataset", path: str | os.PathLike[str]) -> None:
    """Draw the residual of every row, by table; what went into a fit is hollow.

    Each row has a line of its own where there are few of them; else a table's rows share a strip.

    Parameters
    ----------
    ds
        As `memmodel.studies.comparison.as_dataset` makes it.
    path
        Picture to write; the suffix gives the format.

    Raises
    ------
    InputError
        If a variable is missing, or the picture cannot be written.
    """
    check_path(path)
    for name in _NEEDED:
        if name not in ds or ds[name].dims != ("row",):
            raise InputError(f"plot_comparison: {name} over row is not in the Dataset")
    rows, tables = ds["row"].values.tolist(), ds["table"].values.tolist()
    names = list(dict.fromkeys(tables))
    if len(rows) <= _MAX_LABELS:
        places, marks, labels = np.arange(len(rows), dtype=float), np.arange(len(rows), dtype=float), rows
    else:
        shift = {name: iter(np.linspace(-0.28, 0.28, max(tables.count(name), 2))) for name in names}
        places = np.array([names.index(table) + next(shift[table]) for table in tables])
        marks, labels = np.arange(len(names), dtype=float), names
    figure = new_figure(9.5, 1.6 + (0.2 if labels is rows else 0.6) * len(labels))
    axes = figure.subplots()
    axes.axvline(0, color=INK, lw=0.8)
    percent, fitted = ds["residual_percent"].values, ds["kind"].values == 1
    for number, name in enumerate(names):
        here = np.array(tables) == name
        colour = COLOURS[number % len(COLOURS)]
        for chosen, face in ((here & fitted, "white"), (here & ~fitted, colour)):
            axes.plot(percent[chosen], places[chosen], "o", ms=4.5, mfc=face, mec=colour, mew=1.1)
    axes.set_yticks(marks, [str(label) for label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("model against published (%)")
    axes.set_title(str(ds.attrs.get("title", "")), fontsize=11, loc="right")
    plain(axes, "x")
    footnote(figure, "Filled: predicted. Hollow: the number went into a fit.")
    save(figure, path)
