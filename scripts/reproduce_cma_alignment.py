"""Reproduce the published tables of pageblock order and CMA alignment (PAGE_BLOCK_ORDER patch, Linux 6.16).

Prints published against modelled numbers and writes them as a Dataset and as a plot. Exit 1 if a row differs that is
not known to be in error.

    python scripts/reproduce_cma_alignment.py [--out cma_alignment.nc] [--plot cma_alignment.png]
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from memmodel.cli import run_command
from memmodel.report.panels import check_path
from memmodel.results.dataset import Column, build, check_target, save, stamp
from memmodel.results.variables import Variable
from memmodel.studies.cma_alignment import QUANTITIES, AlignmentRow, cma_alignment_rows
from memmodel.units import format_bytes

if TYPE_CHECKING:
    import xarray as xr

DIMS = ("configuration",)
LABELS = {
    "max_page_order": ("1", "MAX_PAGE_ORDER", "Largest order of the buddy allocator."),
    "pageblock_order": ("1", "pageblock order", "Order of a pageblock."),
    "cma_min_alignment_bytes": ("byte", "CMA minimum alignment", "CMA_MIN_ALIGNMENT_BYTES."),
    "cma_area_bytes": ("byte", "CMA area", "Size of the CMA area that the kernel makes of the one asked for."),
}
AGREEMENT = ("differs", "agrees", "source_in_error")


def label(row: AlignmentRow) -> str:
    """A configuration in a few words."""
    geo = row.geometry
    words = [f"{row.table}: {geo.arch} {format_bytes(geo.page_size_bytes)}"]
    if geo.page_block_max_order is not None:
        words.append(f"limit {geo.page_block_max_order}")
    if row.area_requested_bytes is not None:
        words.append(f"CMA of {format_bytes(row.area_requested_bytes)}")
    return ", ".join(words)


def agreement(row: AlignmentRow) -> str:
    return "source_in_error" if row.erratum else AGREEMENT[row.agrees]


def as_dataset(rows: tuple[AlignmentRow, ...]) -> "xr.Dataset":
    """One entry a configuration; NaN where the source gives no number."""

    def text(name: str, long_name: str, values: list[str]) -> Column:
        return Column(Variable(name, "str", "1", long_name, f"{long_name}.", DIMS), values)

    def number(name: str, units: str, long_name: str, doc: str, values: list[float | None]) -> Column:
        numbers = np.array([np.nan if value is None else value for value in values])
        return Column(Variable(name, "float64", units, long_name, doc, DIMS), numbers)

    geos = [row.geometry for row in rows]
    coordinates = [
        text("configuration", "configuration", [label(row) for row in rows]),
        text("table", "table that the row belongs to", [row.table for row in rows]),
        text("source", "source of the numbers", [row.source for row in rows]),
        text("erratum", "why the source's numbers do not hold", [row.erratum for row in rows]),
        text("arch", "architecture", [geo.arch for geo in geos]),
        text("kernel", "kernel", [geo.kernel for geo in geos]),
        number("page_size_bytes", "byte", "page size", "PAGE_SIZE.", [geo.page_size_bytes for geo in geos]),
        number("page_block_max_order", "1", "pageblock order limit", "CONFIG_PAGE_BLOCK_MAX_ORDER; NaN without one.",
               [geo.page_block_max_order for geo in geos]),
        number("area_requested_bytes", "byte", "CMA size asked for", "NaN where the row has no area.",
               [row.area_requested_bytes for row in rows]),
    ]  # fmt: skip
    data = [
        Column(Variable("agreement", "int8", "1", "published against modelled",
                        "Whether all numbers of the configuration are equal.", DIMS, AGREEMENT),
               [AGREEMENT.index(agreement(row)) for row in rows]),
    ]  # fmt: skip
    for name in QUANTITIES:
        units, long_name, doc = LABELS[name]
        data += [
            number(f"published_{name}", units, f"{long_name}, published", doc, [r.published.get(name) for r in rows]),
            number(f"modelled_{name}", units, f"{long_name}, modelled", doc, [r.modelled.get(name) for r in rows]),
        ]
    attrs = {"title": "Pageblock order and CMA alignment, published and modelled"}
    return build(coordinates, data, attrs | {"provenance": stamp({"script": Path(__file__).name})})


def print_table(rows: tuple[AlignmentRow, ...]) -> None:
    def shown(name: str, value: int) -> str:
        return format_bytes(value) if name.endswith("_bytes") else str(value)

    click.echo(f"{'configuration':<62}{'quantity':<25}{'published':>10}{'model':>10}")
    for row in rows:
        title = label(row)
        for name, value in row.published.items():
            got = row.modelled[name]
            verdict = "" if got == value else "  published in error, see below" if row.erratum else "  DIFFERS"
            click.echo(f"{title:<62}{name:<25}{shown(name, value):>10}{shown(name, got):>10}{verdict}")
            title = ""
    for row in rows:
        if row.erratum:
            older = row.geometry.replace(kernel="6.9")
            alignment = format_bytes(older.cma_min_alignment_bytes)
            click.echo(
                f"\nIn error: {label(row)}.\n"
                f"The source says pageblock order {row.published['pageblock_order']},"
                f" {format_bytes(row.published['cma_min_alignment_bytes'])}: {row.erratum}.\n"
                f"The model with kernel 6.9 gives {older.pageblock_order}, {alignment}."
            )


def draw(rows: tuple[AlignmentRow, ...], path: Path) -> None:
    """The CMA alignment of every table, and the areas of the booted kernels, published and modelled."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = (("cma_min_alignment_bytes", "CMA minimum alignment (MiB)"), ("cma_area_bytes", "CMA area (MiB)"))
    chosen = [[row for row in rows if name in row.published] for name, _ in panels]
    fig, axes = plt.subplots(
        2, 1, figsize=(9, 7.5), layout="constrained", height_ratios=[len(group) + 1 for group in chosen]
    )
    for ax, (name, title), group in zip(axes, panels, chosen, strict=True):
        y = np.arange(len(group))
        ax.plot(
            [r.published[name] / 2**20 for r in group], y, "o", ms=11, mfc="none", color="tab:blue", label="published"
        )
        ax.plot([r.modelled[name] / 2**20 for r in group], y, ".", ms=8, color="black", label="model")
        for at, row in enumerate(group):
            if row.erratum:
                ax.annotate("published row in error since 6.10", (row.published[name] / 2**20, at), (14, 0),
                            textcoords="offset points", va="center", color="tab:red")  # fmt: skip
        ax.set_yticks(y, [label(row) for row in group])
        ax.invert_yaxis()
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel(title)
        ax.grid(axis="x", alpha=0.3)
    axes[1].legend(loc="lower right")
    fig.suptitle("Pageblock order sets the CMA granule: published or recorded, and modelled")
    fig.savefig(path, dpi=150)
    plt.close(fig)


@click.command(help=__doc__)
@click.option("--out", default="cma_alignment.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
@click.option("--plot", default="cma_alignment.png", show_default=True, help="Plot to write (.png, .pdf, .svg).")
def main(out: str, plot: str) -> int:
    check_target(out)
    check_path(plot)
    rows = cma_alignment_rows()
    print_table(rows)
    save(as_dataset(rows), out)
    draw(rows, Path(plot))
    click.echo(f"\nwritten: {out}, {plot}")
    return 0 if all(row.agrees or row.erratum for row in rows) else 1


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_cma_alignment"))
