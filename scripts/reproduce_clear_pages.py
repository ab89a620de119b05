"""Reproduce the published rates of the clear_pages() series: demand faults of 2 MiB and 1 GiB folios, and memset.

Prints every rate beside the model, then what an extent gains over clearing page by page: little by batches of 8 MiB,
2.3 to 2.6 times by one call for 1 GiB. Writes a Dataset and a plot.

    python scripts/reproduce_clear_pages.py [--out clear_pages.nc] [--plot clear_pages.png]
"""

import sys
from pathlib import Path

import click

from memmodel.cli import run_command
from memmodel.cost.published_migration import published_clear_rates
from memmodel.report.comparison import plot_comparison
from memmodel.report.panels import check_path
from memmodel.results.dataset import check_target, save
from memmodel.studies.clear_table import clear_rows, gain_rows
from memmodel.studies.comparison import as_dataset, text_lines
from memmodel.studies.sweep import run_study

TITLE = "Clearing folios: published and modelled"
BATCHES_MIB = (2, 8, 16, 31, 32, 64, 1024)


def print_step() -> None:
    """A 1 GiB folio on a kernel that is not preemptible, by the bytes that one call clears."""
    grid = {"batch_bytes": [mib << 20 for mib in BATCHES_MIB], "folio_order": 18, "preempt": "none"}
    ds = run_study("clear_pages", grid, seed=0)
    click.echo("\nPredicted: 1 GiB folios, kernel not preemptible, by the batch (where the step is, is assumed):")
    for mib, rate, wait in zip(
        BATCHES_MIB, ds["throughput_gib_per_s"].values, ds["worst_nonpreemptible_ns"].values, strict=True
    ):
        click.echo(f"  {mib:>5} MiB{rate:>8.1f} GiB/s, at most {wait / 1e6:>6.2f} ms without rescheduling")


def print_icelake() -> None:
    pairs = {(r.folio_kib, r.batch): r.gib_per_s for r in published_clear_rates() if "Icelake" in r.cpu}
    gains = [pairs[size, "extent"] / pairs[size, "page"] for size in (2048, 1 << 20)]
    click.echo(
        f"\nNot modelled: Icelakex 8358, which gains {gains[0]:.2f} times with 2 MiB folios and {gains[1]:.2f} times"
        " with 1 GiB: no step."
    )


@click.command(help=__doc__)
@click.option("--out", default="clear_pages.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
@click.option("--plot", default="clear_pages.png", show_default=True, help="Plot to write (.png, .pdf, .svg).")
def main(out: str, plot: str) -> None:
    check_target(out)
    check_path(plot)
    rows = (*clear_rows(), *gain_rows())
    *tables, summary = text_lines(rows)
    click.echo("\n".join(tables).rstrip())
    print_step()
    print_icelake()
    click.echo(f"\n{summary}")
    ds = as_dataset(rows, TITLE, Path(__file__).name)
    save(ds, out)
    plot_comparison(ds, plot)
    click.echo(f"written: {out}, {plot}")


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_clear_pages"))
