"""Reproduce the published moves by folio size: the page migration offload series (V2 to V5) and Zi Yan's THPs of 2019.

Prints every cell beside the model with its residual: page by page, with threads and with DMA channels, by placement, by
folios a call; then what the fits leave. Writes a Dataset and a plot.

    python scripts/reproduce_folio_size.py [--out folio_size.nc] [--plot folio_size.png]
"""

import sys
from pathlib import Path

import click
import numpy as np

from memmodel.cli import run_command
from memmodel.cost.calibrate_migration import FLOOR, fit_folio_size
from memmodel.cost.published_migration import published_migration_rates, published_thp_copies
from memmodel.report.comparison import plot_comparison
from memmodel.report.panels import check_path
from memmodel.results.dataset import check_target, save
from memmodel.studies.comparison import as_dataset, text_lines
from memmodel.studies.folio_size import folio_size_rows, thp_copy_rows

TITLE = "Moves of folios by size: published and modelled rates"


def print_constants() -> None:
    """Whether the time of a THP besides its copy is a constant, as the source's rows have it."""
    copies = [row for row in published_thp_copies() if row.folio_kib == 2048 and row.impl == "threads"]
    groups = {
        "one THP, 5 rows": [row for row in copies if row.n_folios == 1],
        "16 THPs one by one, 4 rows": [row for row in copies if row.n_folios > 1 and not row.batched],
        "both, 9 rows": [row for row in copies if not row.batched],
        "16 THPs together, 4 rows": [row for row in copies if row.batched],
    }
    click.echo("\nTime of a THP besides its copy as one constant (the middle of the rows), 2019:")
    for name, rows in groups.items():
        rest = np.array([row.rest_ns for row in rows]) / 1e3
        copy = np.array([2.097152e3 / row.copy_gb_per_s for row in rows])
        constant = (rest.min() + rest.max()) / 2
        total = 100 * ((copy + rest) / (copy + constant) - 1)
        click.echo(
            f"  {name:<28}{constant:>6.1f} us, rows within {100 * (rest.max() / constant - 1):.1f} %;"
            f" total rate within {np.abs(total).max():.1f} %"
        )


@click.command(help=__doc__)
@click.option("--out", default="folio_size.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
@click.option("--plot", default="folio_size.png", show_default=True, help="Plot to write (.png, .pdf, .svg).")
def main(out: str, plot: str) -> None:
    check_target(out)
    check_path(plot)
    rows = (*folio_size_rows(), *thp_copy_rows())
    ds = as_dataset(rows, TITLE, Path(__file__).name)
    *tables, summary = text_lines(rows)
    click.echo("\n".join(tables))
    by_page = [rate for rate in published_migration_rates() if rate.impl == "page_by_page"]
    baseline = [rate for rate in by_page if rate.table == "folio_size"]
    fit = fit_folio_size(baseline)
    click.echo(
        f"\nBaseline by folio size: {len(baseline)} points, {len(fit.values)} numbers, chi2 {fit.chi2:.1f},"
        f" chi2/dof {fit.chi2 / fit.dof:.2f} (spread of each cell and {100 * FLOOR:.0f} % in quadrature)."
    )
    print_constants()
    click.echo(f"\n{summary}")
    save(ds, out)
    plot_comparison(ds, plot)
    click.echo(f"written: {out}, {plot}")


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_folio_size"))
