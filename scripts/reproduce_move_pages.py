"""Reproduce the published batch page copy table through move_pages() itself: THPs and 1 GB pages, four directions.

Prints the 16 cells beside the model with their residuals. The THPs go through the whole of migrate_pages() on a machine
of two nodes, which counts copies and flushes; the counts of gigantic pages are worked out. Writes a Dataset.

    python scripts/reproduce_move_pages.py [--out move_pages.nc]
"""

import sys

import click
import numpy as np

from memmodel.cli import run_command
from memmodel.results.dataset import check_target, save
from memmodel.results.text import table
from memmodel.studies.copy_table import GRID, copy_table
from memmodel.studies.sweep import run_study

FOLIO = {9: "512 THPs", 18: "1 GB hugetlb"}
CALL = {"page": "a page", "extent": "an extent"}


@click.command(help=__doc__)
@click.option("--out", default="move_pages.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
def main(out: str) -> None:
    check_target(out)
    ds, published = run_study("move_pages", GRID, seed=0), copy_table()
    rows = [("direction", "folios", "one call copies", "flushes", "copy calls", "published GiB/s", "model", "residual")]
    used = []
    for direction in GRID["direction"]:
        for order in GRID["folio_order"]:
            for batch in GRID["batch"]:
                where = {"direction": direction, "folio_order": order, "batch": batch}
                cell, theirs = ds.sel(where), published.sel(where)
                rate, read = float(cell["throughput_gib_per_s"]), float(theirs["published_throughput_gib_per_s"])
                residual = 100 * (rate / read - 1)
                note = "" if theirs["cell_used"] else " (a run off)"
                if not note:
                    used.append(residual)
                counts = (f"{float(cell[name]):.0f}" for name in ("n_flushes", "n_calls"))
                shown = (f"{read:.2f}", f"{rate:.2f}", f"{residual:+.1f} %{note}")
                rows.append((direction, FOLIO[order], CALL[batch], *counts, *shown))
    click.echo(table(rows))
    rms, worst = np.sqrt(np.mean(np.square(used))), max(used, key=abs)
    click.echo(f"\n{len(used)} cells used: rms {rms:.2f} %, worst {worst:+.1f} %; machine zen6-cxl.")
    save(ds, out)
    click.echo(f"written: {out}")


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_move_pages"))
