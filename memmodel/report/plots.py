"""Plots: a default picture of any sweep; the copy table's own is in `memmodel.report.copy_table`."""

import os
from collections.abc import Hashable
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from memmodel.errors import InputError
from memmodel.report.copy_table import plot_copy_table
from memmodel.report.panels import (
    COLOURS,
    axis_label,
    check_path,
    footnote,
    level_text,
    new_figure,
    plain,
    save,
    scale_axis,
)

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_copy_table", "plot_dataset"]

_MAX_LINES = 24
_MAX_PANELS = 12


def plot_dataset(ds: "xr.Dataset", path: str | os.PathLike[str], variable: str | None = None) -> None:
    """Draw one variable of a sweep along its largest numeric dimension, a line a level of the next, a panel of a third.

    Replicates become their mean and standard deviation. Coordinates that span decades get logarithmic axes. Of more
    than three swept dimensions the first three are drawn and the others kept at their first level; the title says so.

    Parameters
    ----------
    ds
        Any Dataset of memmodel.
    path
        Picture to write; the suffix gives the format.
    variable
        Its name; by default the first one that varies over all swept dimensions.

    Raises
    ------
    InputError
        If there is no such variable, nothing is swept, every point failed, or the picture cannot be written.
    """
    check_path(path)
    array = _chosen(ds, variable)
    notes: list[str] = []
    spread = None
    if "replicate" in array.dims:
        notes.append(f"mean and standard deviation of {array.sizes['replicate']} replicates")
        spread = array.std("replicate", skipna=True)
        array = array.mean("replicate", skipna=True, keep_attrs=True)
    array, roles = _reduced(array, notes)
    if not np.isfinite(array.values).any():
        raise InputError(f"plot: {array.name} has no finite value; every point failed")
    if spread is not None:
        spread = spread.isel({dim: 0 for dim in spread.dims if dim not in array.dims})
    x, line, panel = roles
    array = _cut(_cut(array, panel, _MAX_PANELS, notes), line, None if _is_numeric(array, line) else _MAX_LINES, notes)
    _draw_dataset(array, spread, (x, line, panel), [str(ds.attrs.get("title", "")), *notes], path)


def _chosen(ds: "xr.Dataset", variable: str | None) -> "xr.DataArray":
    numeric = [name for name, array in ds.data_vars.items() if array.dtype.kind in "fiub"]
    if variable is not None:
        if variable not in numeric:
            names = ", ".join(map(str, numeric)) or "none"
            raise InputError(f"plot: {variable!r} is not a variable with numbers; those are: {names}")
        return ds[variable].astype(np.float64, keep_attrs=True)
    measured = [name for name in numeric if "flag_values" not in ds[name].attrs] or numeric
    if not measured:
        raise InputError("plot: the Dataset has no variable with numbers")
    best = max(measured, key=lambda name: len(_swept(ds[name])))  # the first of equals
    return ds[best].astype(np.float64, keep_attrs=True)


def _swept(array: "xr.DataArray") -> list[Hashable]:
    return [dim for dim in array.dims if array.sizes[dim] > 1 and dim != "replicate"]


def _is_numeric(array: "xr.DataArray", dim: Hashable | None) -> bool:
    return dim is not None and array[dim].dtype.kind in "fiu"


def _reduced(array: "xr.DataArray", notes: list[str]) -> tuple["xr.DataArray", list[Hashable | None]]:
    """At most three swept dimensions, and which is the x axis, the lines, the panels."""
    swept = _swept(array)
    if not swept:
        raise InputError(f"plot: nothing is swept; {array.name} has one value, {array.values.flat[0]:g}")
    for dim in swept[3:]:
        notes.append(f"{dim} = {level_text(array[dim], array[dim].values[0])}, the first of {array.sizes[dim]}")
    array = array.isel({dim: 0 for dim in array.dims if dim not in swept[:3]})
    kept = swept[:3]
    x = max(kept, key=lambda dim: (_is_numeric(array, dim), array.sizes[dim]))
    roles: list[Hashable | None] = [x, *(dim for dim in kept if dim != x), None, None]
    return array, roles[:3]


def _cut(array: "xr.DataArray", dim: Hashable | None, limit: int | None, notes: list[str]) -> "xr.DataArray":
    if dim is None or limit is None or array.sizes[dim] <= limit:
        return array
    notes.append(f"the first {limit} of {array.sizes[dim]} levels of {dim}")
    return array.isel({dim: slice(limit)})


def _draw_dataset(
    array: "xr.DataArray",
    spread: "xr.DataArray | None",
    roles: tuple[Hashable | None, Hashable | None, Hashable | None],
    titles: list[str],
    path: str | os.PathLike[str],
) -> None:
    x, line, panel = roles
    n_panels = 1 if panel is None else array.sizes[panel]
    n_columns = 2 if n_panels == 4 else min(n_panels, 3)
    n_rows = -(-n_panels // n_columns)
    figure = new_figure(3.6 * n_columns + 2.2, 2.9 * n_rows + 1.3)
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= n_panels:
            axes.set_axis_off()
            continue
        here = {} if panel is None else {panel: number}
        _draw_lines(axes, array.isel(here), None if spread is None else spread.isel(here), x, line)
        if panel is not None:
            level = level_text(array[panel], array[panel].values[number])
            axes.set_title(f"{axis_label(array[panel])}: {level}", fontsize=9)
    _label_grid(grid, array, x, n_panels)
    _key(figure, grid, array, line)
    head = [titles[0] or axis_label(array), *titles[1:]]
    figure.suptitle("\n".join(fill(text, 24 * n_columns + 24) for text in head), fontsize=11)
    footnote(figure, ", ".join(_constants(array)))
    save(figure, path)


def _draw_lines(
    axes: "Axes", array: "xr.DataArray", spread: "xr.DataArray | None", x: Hashable | None, line: Hashable | None
) -> None:
    numeric = _is_numeric(array, x)
    places = array[x].values if numeric else np.arange(array.sizes[x])
    n_lines = 1 if line is None else array.sizes[line]
    for number, (colour, style) in enumerate(_styles(array, line)):
        here = {} if line is None else {line: number}
        values = array.isel(here).values
        # of few lines the earlier ones are wider, so that equal ones still show
        under = n_lines - 1 - number if numeric and n_lines <= len(COLOURS) else 0
        shift = 0.0 if numeric or n_lines == 1 else 0.5 * (number / (n_lines - 1) - 0.5)  # keep categories apart
        axes.errorbar(
            places + shift,
            values,
            yerr=None if spread is None else spread.isel(here).values,
            color=colour,
            ls=style if numeric else "none",
            marker="o",
            ms=(4 if len(places) <= 40 else 2) + 0.7 * under,
            lw=1.4 + 0.7 * under,
            capsize=2,
        )
    plain(axes)


def _styles(array: "xr.DataArray", line: Hashable | None) -> list[tuple[Any, str]]:
    """Colour and line style of each level: a palette for few or named levels, a colour map for many numbers."""
    n_lines = 1 if line is None else array.sizes[line]
    if _is_numeric(array, line) and n_lines > len(COLOURS):
        from matplotlib import colormaps

        return [(colormaps["viridis"](0.95 * i / (n_lines - 1)), "-") for i in range(n_lines)]
    styles = ("-", "--", ":", "-.")
    return [(COLOURS[i % len(COLOURS)], styles[i // len(COLOURS) % len(styles)]) for i in range(n_lines)]


def _label_grid(grid: Any, array: "xr.DataArray", x: Hashable | None, n_panels: int) -> None:
    first, coordinate = grid[0, 0], array[x]
    if _is_numeric(array, x):
        scale_axis(first.xaxis, coordinate)
    else:
        labels = [level_text(coordinate, value) for value in coordinate.values.tolist()]
        slanted = sum(map(len, labels)) > 36
        first.set_xticks(range(len(labels)), labels)
        for axes in grid.flat:
            axes.tick_params(axis="x", labelrotation=30 if slanted else 0)
    finite = array.values[np.isfinite(array.values)]
    if finite.min() > 0 and finite.max() / finite.min() >= 1000:
        first.set_yscale("log")
    elif finite.min() >= 0:
        first.set_ylim(bottom=0)
    for axes in grid[:, 0]:
        axes.set_ylabel(axis_label(array))
    for axes in grid.flat[max(0, n_panels - grid.shape[1]) : n_panels]:  # the lowest panel of each column
        axes.set_xlabel(axis_label(coordinate))
        axes.tick_params(axis="x", labelbottom=True)


def _key(figure: "Figure", grid: Any, array: "xr.DataArray", line: Hashable | None) -> None:
    """A legend beside the panels, or a colour bar where the lines are many numbers."""
    if line is None:
        return
    coordinate = array[line]
    if _is_numeric(array, line) and array.sizes[line] > len(COLOURS):
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        bar = figure.colorbar(ScalarMappable(Normalize(0, array.sizes[line] - 1), "viridis"), ax=grid)
        ticks = np.unique(np.linspace(0, array.sizes[line] - 1, 6).round().astype(int))
        bar.set_ticks(ticks.tolist(), labels=[level_text(coordinate, coordinate.values[i].item()) for i in ticks])
        bar.set_label(axis_label(coordinate))
        return
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, ls=style, marker="o", ms=4, label=level_text(coordinate, value))
        for (colour, style), value in zip(_styles(array, line), coordinate.values.tolist(), strict=True)
    ]
    figure.legend(handles=handles, title=axis_label(coordinate), loc="outside right center", frameon=False, fontsize=9)


def _constants(array: "xr.DataArray") -> list[str]:
    """The parameters that were not swept."""
    scalars = [coordinate for coordinate in array.coords.values() if coordinate.ndim == 0]
    return [f"{coordinate.name} = {level_text(coordinate, coordinate.values.item())}" for coordinate in scalars]
