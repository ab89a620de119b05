"""The published copy table beside the model's, as a picture."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from memmodel.cost.published import published_copy_table
from memmodel.errors import InputError
from memmodel.report.panels import COLOURS, INK, check_path, footnote, new_figure, plain, save

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

__all__ = ["plot_copy_table"]

_MODEL = "throughput_gib_per_s"
_PUBLISHED = "published_throughput_gib_per_s"
_SD = "published_sd_gib_per_s"
_RESIDUAL = "residual_percent"
_TABLE_DIMS = ("direction", "folio_order", "batch")
_BATCH_TEXT = {"page": "page by page", "extent": "one extent a call"}
_FOLIO_TEXT = {9: "2 MB folios (THP)", 18: "1 GB folios (hugetlb)"}
_TARGET_PERCENT = 3.0


def plot_copy_table(ds: "xr.Dataset", path: str | os.PathLike[str]) -> None:
    """Draw published copy rates (bars, one standard deviation) and the model's (markers), with residuals below.

    Source of the published rates: Shivank Garg's mail that proposed copy_mc_highpages(), see `published_copy_table`.

    Parameters
    ----------
    ds
        Variables throughput_gib_per_s, published_throughput_gib_per_s, published_sd_gib_per_s and residual_percent over
        direction, folio_order and batch.
    path
        Picture to write; the suffix gives the format.

    Raises
    ------
    InputError
        If a variable or dimension is missing, or the picture cannot be written.
    """
    check_path(path)
    for name in (_MODEL, _PUBLISHED, _SD, _RESIDUAL):
        if name not in ds or set(ds[name].dims) != set(_TABLE_DIMS):
            raise InputError(f"plot_copy_table: {name} over {', '.join(_TABLE_DIMS)} is not in the Dataset")
    table = ds[[_MODEL, _PUBLISHED, _SD, _RESIDUAL]].transpose(*_TABLE_DIMS)
    orders = table["folio_order"].values.tolist()
    figure = new_figure(max(6.0, 4.1 * len(orders)), 6.2)
    head, body = figure.subfigures(2, 1, height_ratios=[1, 9], squeeze=False).flat
    axes = body.subplots(2, len(orders), sharex=True, sharey="row", height_ratios=[3, 1.4], squeeze=False)
    for (rate, residual), order in zip(axes.T, orders, strict=True):
        _draw_cells(rate, residual, table.sel(folio_order=order))
        rate.set_title(_FOLIO_TEXT.get(order, f"folios of order {order}"), fontsize=10)
    axes[0, 0].set_ylabel("move_pages() rate (GiB/s)")
    axes[1, 0].set_ylabel("model against\npublished (%)")
    axes[0, 0].set_ylim(0, 1.06 * float((table[_PUBLISHED] + table[_SD]).max()))
    reach = max(2 * _TARGET_PERCENT, float(np.nanmax(np.abs(table[_RESIDUAL])))) * 1.2
    axes[1, 0].set_ylim(-reach, reach)
    head.suptitle("Moving folios to another node: published and modelled rates", fontsize=12)
    _legend(head, [str(batch) for batch in table["batch"].values])
    footnote(body, _note(table))
    save(figure, path)


def _draw_cells(rate: "Axes", residual: "Axes", cells: "xr.Dataset") -> None:
    """One folio size: bars and markers above, residuals below; cells that the fit left out are hollow."""
    directions = [str(direction) for direction in cells["direction"].values]
    order = int(cells["folio_order"])
    unused = {(cell.direction, cell.folio_order, cell.batch) for cell in published_copy_table() if not cell.usable}
    width = 0.8 / cells.sizes["batch"]
    residual.axhspan(-_TARGET_PERCENT, _TARGET_PERCENT, color="#DDDDDD", lw=0)
    residual.axhline(0, color=INK, lw=0.8)
    for number, batch in enumerate(str(batch) for batch in cells["batch"].values):
        one = cells.isel(batch=number)
        colour = COLOURS[number % len(COLOURS)]
        for place, direction in enumerate(directions):
            at = place + (number - (cells.sizes["batch"] - 1) / 2) * width
            cell = one.isel(direction=place)
            hollow = (direction, order, batch) in unused
            face = "white" if hollow else colour
            rate.bar(
                at,
                float(cell[_PUBLISHED]),
                0.92 * width,
                yerr=float(cell[_SD]),
                color=face,
                edgecolor=colour,
                hatch="////" if hollow else None,
                alpha=0.75,
                error_kw={"ecolor": INK, "capsize": 2.5, "lw": 1},
            )
            aside = at + 0.25 * width  # leaves the error bar visible
            rate.plot(aside, float(cell[_MODEL]), "D", ms=5.5, mfc="black", mec="white", mew=0.8, zorder=4)
            sd_percent = 100 * float(cell[_SD] / cell[_PUBLISHED])
            residual.errorbar(at, float(cell[_RESIDUAL]), sd_percent, fmt="o", ms=5.5, mfc=face, color=colour, lw=1)
    for axes in (rate, residual):
        plain(axes, "y")
    residual.set_xticks(range(len(directions)), [direction.replace("-", " → ") for direction in directions])


def _legend(figure: "SubFigure", batches: list[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(fc=COLOURS[i % len(COLOURS)], alpha=0.75, label=f"published, {_BATCH_TEXT.get(batch, batch)}")
        for i, batch in enumerate(batches)
    ]
    handles += [
        Patch(fc="white", ec=COLOURS[0], hatch="////", label="left out of the fit"),
        Line2D([], [], ls="", marker="D", ms=6, mfc="black", mec="white", label="model"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=4, frameon=False, fontsize=9)


def _note(table: "xr.Dataset") -> str:
    cells = {(cell.direction, cell.folio_order, cell.batch): cell.usable for cell in published_copy_table()}
    stacked = table[_RESIDUAL].stack(cell=_TABLE_DIMS)
    used = np.array([cells.get(tuple(key), True) for key in stacked["cell"].values])
    percent = stacked.values[used & np.isfinite(stacked.values)]
    quality = f"rms {np.sqrt(np.mean(percent**2)):.1f} %, at most {np.abs(percent).max():.1f} %" if percent.size else ""
    return (
        "Published: S. Garg, [PATCH RFC v2] mm: introduce copy_mc_highpages(), EPYC Zen 6 with CXL, mean and standard "
        f"deviation of 10 runs. Model: memmodel, {quality} over the {percent.size} cells used. Grey band: ±3 %."
    )
