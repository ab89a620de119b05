"""Reproduce the published batch page copy table (copy_mc_highpages(), RFC v2): 2 MB and 1 GB folios, four directions.

Prints the 16 cells beside the model with their residuals, and writes them as a Dataset and as a plot.

    python scripts/reproduce_batch_page_copy.py [--out batch_page_copy.nc] [--plot batch_page_copy.png]
"""

import sys
from typing import TYPE_CHECKING

import click

from memmodel.cli import run_command
from memmodel.report.panels import check_path
from memmodel.report.plots import plot_copy_table
from memmodel.results.dataset import check_target, save
from memmodel.studies.copy_table import copy_table, fit_of

if TYPE_CHECKING:
    import xarray as xr

FOLIO = {9: "2 MB THP", 18: "1 GB hugetlb"}
CALL = {"page": "a page", "extent": "an extent"}


def print_table(ds: "xr.Dataset") -> None:
    """The cells used, how well they are met, and the others apart."""
    head = f"{'direction':<11}{'folios':<14}{'one call copies':<17}{'published GiB/s':>18}{'model':>9}{'residual':>10}"
    table = ds.stack(cell=ds["residual_percent"].dims)
    for used, title in (
        (1, head),
        (0, "\nNot used: its standard deviation of 14 % says that one of the runs was off."),
    ):
        click.echo(title)
        for i in range(table.sizes["cell"]):
            row = table.isel(cell=i)
            if row["cell_used"] == used:
                published = (
                    f"{float(row['published_throughput_gib_per_s']):.2f} ± {float(row['published_sd_gib_per_s']):.2f}"
                )
                click.echo(
                    f"{row['direction'].item():<11}{FOLIO[row['folio_order'].item()]:<14}{CALL[row['batch'].item()]:<17}"
                    f"{published:>18}{float(row['throughput_gib_per_s']):>9.2f}{float(row['residual_percent']):>+9.1f}%"
                )
    fit = fit_of(ds)
    click.echo(
        f"\n{fit.n_cells} cells used: rms {fit.rms_percent:.2f} %, none above {fit.worst_percent:.1f} %;"
        " machine zen6-cxl, seven fitted numbers."
    )


@click.command(help=__doc__)
@click.option("--out", default="batch_page_copy.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
@click.option("--plot", default="batch_page_copy.png", show_default=True, help="Plot to write (.png, .pdf, .svg).")
def main(out: str, plot: str) -> None:
    check_target(out)
    check_path(plot)
    ds = copy_table()
    print_table(ds)
    save(ds, out)
    plot_copy_table(ds, plot)
    click.echo(f"written: {out}, {plot}")


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_batch_page_copy"))
