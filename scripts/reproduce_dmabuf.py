"""Recompute the published dma-buf benchmark of the PAGE_BLOCK_ORDER patch, and count what the model's heap does.

Published are instructions of 100,000 allocations with pageblocks of order 10 and 7: no effect, once the row left out of
the mean is counted. The study `dmabuf` counts what the allocator does in the two kernels on the same load. Writes a
Dataset and a plot.

    python scripts/reproduce_dmabuf.py [--replicates 10] [--out dmabuf.nc] [--plot dmabuf.png]
"""

import sys
from typing import TYPE_CHECKING

import click
import numpy as np

from memmodel.cli import run_command
from memmodel.mechanisms.heaps import ORDERS
from memmodel.report.panels import COLOURS, check_path, new_figure, plain
from memmodel.report.panels import save as save_figure
from memmodel.results.dataset import check_target, save
from memmodel.studies.dmabuf_table import SOURCE, Paired, dmabuf_table, paired
from memmodel.studies.sweep import run_study

if TYPE_CHECKING:
    import xarray as xr

LIMITS = (10, 7)
GRID = {"page_size": ["16KiB", "4KiB"], "page_block_max_order": list(LIMITS)}
SHOWN = (
    *("n_bufs_failed", "n_folios_order_8", "n_folios_order_4", "n_folios_order_0", "n_failed_order_8"),
    *("n_failed_order_4", "pcp_refills", "buddy_splits", "extfrag_events"),
)


def line(label: str, row: Paired) -> str:
    return (
        f"{label:<44}{row.n:>3}{row.mean_10:>18,.0f}{row.mean_7:>18,.0f}{row.change_percent:>8.2f} %"
        f"{row.t:>7.2f}{row.p:>7.3f}"
    )


def print_published() -> None:
    table = dmabuf_table()
    run, text = table.malformed
    click.echo(f"Published ({SOURCE}): 16 KiB pages, ten runs of 100,000 allocations of 8 MiB to 4 KiB\n")
    click.echo(f"{'':<44}{'n':>3}{'order 10':>18}{'order 7':>18}{'change':>10}{'t':>7}{'p':>7}")
    click.echo(line("instructions, the nine whole rows", paired(table, leave_out=(run,))))
    click.echo(line("instructions, all ten rows", paired(table)))
    click.echo(line("instructions, without the first run", paired(table, leave_out=(1,))))
    click.echo(line("page faults", paired(table, "page_faults")))
    means = table.means["instructions", 10], table.means["instructions", 7]
    nine = table.runs["instructions", 7][np.arange(1, 11) != run].mean()
    click.echo(
        f"\nThe published mean of order 7, {means[1]:,.0f}, is that of nine rows ({nine:,.1f}): row {run}, {text!r},"
        f"\nlost its last digit and was left out. The published change is {100 * (means[1] / means[0] - 1):.2f} %, with"
        f" the tenth row it is\n{paired(table).change_percent:.2f} %. Paired over all ten rows p is"
        f" {paired(table).p:.3f}: no effect to reproduce. Instructions are not modelled."
    )


def print_modelled(ds: "xr.Dataset") -> None:
    """Means over the replicates, and the paired difference with its standard error."""
    n = ds.sizes["replicate"]
    for size in GRID["page_size"]:
        part = ds.sel(page_size=size)
        orders = [int(part["pageblock_order"].sel(page_block_max_order=limit)[0]) for limit in LIMITS]
        click.echo(
            f"\nModelled: {size} pages, {int(ds['n_allocations']):,} buffers, {n} runs, {ds['kernel'].item()};"
            f" limits {LIMITS[0]} and {LIMITS[1]}: pageblocks of order {orders[0]} and {orders[1]}"
        )
        click.echo(f"{'':<22}{f'limit {LIMITS[0]}':>14}{f'limit {LIMITS[1]}':>14}{'difference':>14}{'st. error':>12}")
        for name in SHOWN:
            before, after = (part[name].sel(page_block_max_order=limit).values for limit in LIMITS)
            error = (after - before).std(ddof=1) / np.sqrt(n)
            means = f"{before.mean():>14,.0f}{after.mean():>14,.0f}{(after - before).mean():>+14,.0f}"
            click.echo(f"{name:<22}{means}{error:>12,.0f}")


def draw(ds: "xr.Dataset", path: str) -> None:
    """The published runs in pairs, and the modelled shares of pages by order."""
    table = dmabuf_table()
    figure = new_figure(9, 4.5)
    left, right = figure.subplots(1, 2)
    pairs = [table.runs["instructions", order] / 1e9 for order in LIMITS]
    left.plot([0, 1], np.array(pairs), "o-", color=COLOURS[-2], lw=1, ms=4)
    left.plot([0, 1], [pair.mean() for pair in pairs], "s", color=COLOURS[0], ms=9)
    left.set_xticks([0, 1], [f"order {order}" for order in LIMITS])
    left.set_xlim(-0.3, 1.3)
    left.set_ylabel("instructions (1e9)")
    left.set_title(f"Published runs, paired: p = {paired(table).p:.3f}", fontsize=10)
    labels, bottoms = [], np.zeros(4)
    points = [(size, limit) for size in GRID["page_size"] for limit in LIMITS]
    pages = np.array([pages_by_order(ds, *point) for point in points])
    for i, order in enumerate(ORDERS):
        shares = 100 * pages[:, i] / pages.sum(axis=1)
        right.bar(range(4), shares, bottom=bottoms, color=COLOURS[i], label=f"order {order}")
        bottoms = bottoms + shares
    for size, limit in points:
        order = int(ds["pageblock_order"].sel(page_size=size, page_block_max_order=limit)[0])
        labels.append(f"{size}\npageblock {order}")
    right.set_xticks(range(4), labels)
    right.set_ylabel("share of the pages (%)")
    right.set_title("Modelled buffers by order", fontsize=10)
    right.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    for axes in (left, right):
        plain(axes, "y")
    save_figure(figure, path)


def pages_by_order(ds: "xr.Dataset", size: str, limit: int) -> list[float]:
    """Pages in folios of each order, mean of the runs."""
    part = ds.sel(page_size=size, page_block_max_order=limit).mean("replicate")
    return [float(part[f"n_folios_order_{order}"]) * 2**order for order in ORDERS]


@click.command(help=__doc__)
@click.option(
    "--replicates", default=10, type=click.IntRange(min=2), show_default=True, help="Runs of the model, two or more."
)
@click.option("--out", default="dmabuf.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
@click.option("--plot", default="dmabuf.png", show_default=True, help="Plot to write (.png, .pdf, .svg).")
def main(replicates: int, out: str, plot: str) -> None:
    check_target(out)
    check_path(plot)
    print_published()
    ds = run_study("dmabuf", GRID, replicates=replicates, seed=0, workers=2)
    print_modelled(ds)
    save(ds, out)
    draw(ds, plot)
    click.echo(f"\nwritten: {out}, {plot}")


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_dmabuf"))
