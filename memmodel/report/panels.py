"""What the plots share: the figure, colours, axis scales and labels, and the saving."""

import os
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memmodel.errors import InputError
from memmodel.units import format_bytes

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, SubFigure

__all__ = [
    "COLOURS",
    "INK",
    "axis_label",
    "check_path",
    "footnote",
    "level_text",
    "new_figure",
    "plain",
    "save",
    "scale_axis",
]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F", "#000000")
"""Okabe and Ito's palette without its yellow: told apart by colour-blind readers."""

INK = "#333333"

_DECADES = 100
_MAX_TICKS = 9
_UNIT_TEXT = {"1": "", "": "", "GiB s-1": "GiB/s", "byte": "bytes"}


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a file that could not be written, before anything is drawn.

    Raises
    ------
    InputError
        If the suffix is no picture format, the directory is missing, or matplotlib is.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'memmodel[plot]'") from None
    target = Path(path)
    formats = sorted(FigureCanvasBase.get_supported_filetypes())
    if target.suffix.lower().removeprefix(".") not in formats:
        raise InputError(f"{target}: no picture format; end the name in one of: {', '.join(formats)}")
    if not target.parent.is_dir():
        raise InputError(f"{target}: there is no directory {target.parent}")


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure in inches that needs no display and leaves pyplot's state alone."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write the figure; the suffix of `path` gives the format.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    try:
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def axis_label(array: "xr.DataArray") -> str:
    """Long name and unit, as an axis shows them."""
    name = str(array.attrs.get("long_name") or array.name).replace("_", " ")
    units = str(array.attrs.get("units", ""))
    unit = _UNIT_TEXT.get(units, units)
    return f"{name} ({unit})" if unit else name


def level_text(array: "xr.DataArray", value: Any) -> str:
    """One level of a coordinate, in words."""
    if array.attrs.get("units") == "byte" and float(value).is_integer():
        return format_bytes(int(value))
    if isinstance(value, float | np.floating):
        return f"{value:g}"
    return str(value)


def scale_axis(axis: "Axis", coordinate: "xr.DataArray") -> None:
    """Logarithmic where the coordinate spans decades (symmetric if it has a zero), with ticks at few levels."""
    levels = coordinate.values.astype(np.float64)
    positive = levels[levels > 0]
    spans = positive.size > 1 and positive.max() / positive.min() >= _DECADES
    base = 2 if spans and np.all(np.log2(positive) % 1 == 0) else 10
    set_scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    if spans and levels.min() > 0:
        set_scale("log", base=base)
    elif spans and levels.min() == 0:
        set_scale("symlog", base=base, linthresh=float(positive.min()))
    if levels.size <= _MAX_TICKS:
        axis.set_ticks(levels.tolist(), labels=[level_text(coordinate, x) for x in coordinate.values.tolist()])
        axis.set_ticks([], minor=True)
    elif coordinate.attrs.get("units") == "byte":
        from matplotlib.ticker import LogLocator

        if spans:
            axis.set_major_locator(LogLocator(base=base, numticks=6))  # "128 MiB" is wide
        axis.set_major_formatter(lambda value, _: level_text(coordinate, round(value)))
    elif coordinate.dtype.kind in "iu" and not spans:
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(integer=True))


def plain(axes: "Axes", grid: Literal["both", "x", "y"] = "both") -> None:
    """Light grid lines behind the data, no box."""
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color="#E5E5E5", lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def footnote(figure: "Figure | SubFigure", text: str) -> None:
    """Small print along the bottom: sources, parameters that were not swept."""
    wide = int(figure.bbox.width / figure.dpi * 16)
    figure.supxlabel(fill(text, wide), x=0.01, ha="left", fontsize=7.5, color=INK)
