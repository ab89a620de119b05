"""THP success by pageblock order, with intervals, above what a CMA area is aligned to."""

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.report.panels import COLOURS, check_path, footnote, level_text, new_figure, plain, save

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Interval", "interval", "paired_difference", "plot_thp_success"]

X, LINE = "page_block_max_order", "unmovable"
LEVEL = 0.95


class Interval(NamedTuple):
    """Mean over replicates, and half the width of its interval of confidence; NaN for a single replicate."""

    mean: npt.NDArray[np.float64]
    half: npt.NDArray[np.float64]


def interval(array: "xr.DataArray") -> Interval:
    """95 % by Student's t, over the dimension ``replicate``.

    Raises
    ------
    InputError
        If there are no replicates.
    """
    from scipy.stats import t

    if "replicate" not in array.dims:
        raise InputError("an interval needs replicates")
    n = array.notnull().sum("replicate").values
    spread = array.std("replicate", ddof=1).values
    with np.errstate(invalid="ignore", divide="ignore"):
        half = t.ppf(0.5 + LEVEL / 2, n - 1) * spread / np.sqrt(n)
    return Interval(np.asarray(array.mean("replicate").values), np.asarray(half))


def paired_difference(array: "xr.DataArray", dim: str, level: object) -> Interval:
    """Each level of a dimension against one of them, replicate by replicate: they share their load.

    Raises
    ------
    InputError
        If there is no such level, or there are no replicates.
    """
    if dim not in array.dims or level not in array[dim].values:
        raise InputError(f"no {dim} {level!r} to compare with")
    return interval(array - array.sel({dim: level}))


def plot_thp_success(ds: "xr.Dataset", path: str | os.PathLike[str]) -> None:
    """Draw the share of faults that got a huge page, a line for each unmovable share, and the CMA granule below.

    Parameters
    ----------
    ds
        Of the study thp_success, over page_block_max_order, unmovable and replicates alone.
    path
        Picture to write; the suffix gives the format.

    Raises
    ------
    InputError
        If it is none such, or the picture cannot be written.
    """
    check_path(path)
    if "thp_compact_share" not in ds or set(ds["thp_compact_share"].dims) != {X, LINE, "replicate"}:
        raise InputError(f"plot_thp_success: thp_compact_share over {X}, {LINE} and replicate is not in the Dataset")
    share = ds["thp_compact_share"].transpose(LINE, X, "replicate")
    stats, best = interval(share), interval(ds["thp_bound_share"].transpose(LINE, X, "replicate"))
    figure = new_figure(8, 6.4)
    axes, below = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    orders = ds[X].values
    for number, level in enumerate(ds[LINE].values.tolist()):
        colour = COLOURS[number % len(COLOURS)]
        shifted = orders + 0.06 * (number - (ds.sizes[LINE] - 1) / 2)
        label = f"{level_text(ds[LINE], 100 * level)} % unmovable"
        axes.errorbar(
            shifted, stats.mean[number], stats.half[number], fmt="o-", ms=4, capsize=3, color=colour, label=label
        )
        axes.plot(shifted, best.mean[number], ":", lw=1, color=colour)
    axes.set_ylabel("share of huge page faults that got one")
    axes.set_ylim(0, 1.05)
    axes.legend(frameon=False, fontsize=8)
    granule = _granule_mib(ds)
    below.step(orders, granule, where="mid", color=COLOURS[0])
    below.set_yscale("log", base=2)
    below.set_ylabel("CMA granule (MiB)")
    below.set_xlabel("page_block_max_order")
    below.set_xticks(orders)
    for panel in (axes, below):
        plain(panel)
    text = f"Mean and 95 % interval of {ds.sizes['replicate']} replicates that share their load along the axis. "
    footnote(figure, text + "Dotted: what could come at best, by where unmovable pages lie.")
    save(figure, path)


def _granule_mib(ds: "xr.Dataset") -> npt.NDArray[np.float64]:
    """CMA_MIN_ALIGNMENT_BYTES of each order."""
    size = {"4KiB": 4, "16KiB": 16}[str(ds["page_size"].item())] / 1024
    order = ds["pageblock_order"].transpose(X, ...).values.reshape(ds.sizes[X], -1)[:, 0]
    return np.asarray(size * 2.0**order)
