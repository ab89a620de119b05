"""Free pages on lists of the wrong type, and THP success build after build: 6.1, 6.12.117 and 7.3 on one made-up load.

Prints the published series beside the study `freelist_hygiene`, each with its slope and 95 % interval. Nothing is
fitted and the load is not theirs: compare directions, not numbers. Faults do not compact. Writes a Dataset and a plot.
Exit 1 if a kernel since 6.10 has a page on a list of the wrong type.

    python scripts/reproduce_freelist_hygiene.py [--runs 15] [--replicates 4] [--out h.nc] [--plot h.png]
"""

import csv
import sys
from importlib.resources import files
from typing import TYPE_CHECKING

import click
import numpy as np

from memmodel.cli import run_command
from memmodel.report.panels import COLOURS, check_path, new_figure, plain
from memmodel.report.panels import save as save_figure
from memmodel.results.dataset import check_target, save
from memmodel.studies.freelist_hygiene import Trend, trend
from memmodel.studies.sweep import run_study

if TYPE_CHECKING:
    import xarray as xr

KERNELS = ("6.1", "6.12.117", "7.3")
SERIES = {
    "before": "before defrag_mode",
    "after": "with defrag_mode",
}


def published() -> dict[str, np.ndarray]:
    """thp_fault_alloc of 15 runs, two kernels."""
    text = (files("memmodel") / "studies" / "data" / "freelist_hygiene.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return {name: np.array([float(row[name]) for row in rows]) for name in SERIES}


def line(label: str, fit: Trend, scale: float) -> str:
    verdict = "falls" if fit.falls else "rises" if fit.low > 0 else "neither"
    numbers = (
        f"{fit.mean * scale:>12,.1f}{fit.slope * scale:>10,.2f}{fit.low * scale:>10,.2f}{fit.high * scale:>10,.2f}"
    )
    return f"{label:<40}{numbers}  {verdict}"


def print_table(ds: "xr.Dataset") -> None:
    click.echo(f"{'':<40}{'mean':>12}{'a run':>10}{'95 % from':>10}{'to':>10}")
    for name, series in published().items():
        click.echo(line(f"published, {SERIES[name]}, THPs", trend(series), 1))
    for kernel in KERNELS:
        success = ds["thp_success"].sel(kernel=kernel).mean("replicate")
        click.echo(line(f"modelled, {kernel}, success in %", trend(success.values), 100))
    click.echo(f"\n{'':<12}{'pages on lists of the wrong type: mean':>40}{'most':>10}{'fallbacks a run':>18}")
    for kernel in KERNELS:
        part = ds.sel(kernel=kernel)
        wrong = part["type_mismatch_pages"]
        click.echo(
            f"{kernel:<12}{float(wrong.mean()):>40,.1f}{float(wrong.max()):>10,.1f}"
            f"{float(part['extfrag_events'].mean()):>18,.1f}"
        )


def draw(ds: "xr.Dataset", path: str) -> None:
    figure = new_figure(9, 4)
    left, right = figure.subplots(1, 2)
    for i, (name, series) in enumerate(published().items()):
        left.plot(np.arange(1, series.size + 1), series / 1e3, "o-", color=COLOURS[i], label=SERIES[name])
    left.set_ylabel("THP faults that got one (thousands)")
    left.set_title("Published", fontsize=10)
    for i, kernel in enumerate(KERNELS):
        success = 100 * ds["thp_success"].sel(kernel=kernel)
        right.plot(success["run"], success.mean("replicate"), "o-", color=COLOURS[i], label=kernel)
        right.fill_between(
            success["run"], success.min("replicate"), success.max("replicate"), color=COLOURS[i], alpha=0.15, lw=0
        )
    right.set_ylabel("THP faults that got one (%)")
    right.set_title("Modelled, a load of its own, no compaction", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("build")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        plain(axes, "y")
    save_figure(figure, path)


@click.command(help=__doc__)
@click.option("--runs", default=15, type=click.IntRange(min=3), show_default=True, help="Builds in one memory.")
@click.option("--replicates", default=4, type=click.IntRange(min=2), show_default=True, help="Memories, two or more.")
@click.option("--out", default="freelist_hygiene.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
@click.option("--plot", default="freelist_hygiene.png", show_default=True, help="Plot to write (.png, .pdf, .svg).")
def main(runs: int, replicates: int, out: str, plot: str) -> int:
    check_target(out)
    check_path(plot)
    grid = {"kernel": list(KERNELS), "run": list(range(1, runs + 1))}
    chunk = runs * replicates  # all runs of a kernel share their memories
    ds = run_study("freelist_hygiene", grid, replicates=replicates, seed=0, workers=2, chunk=chunk)
    print_table(ds)
    save(ds, out)
    draw(ds, plot)
    click.echo(f"\nwritten: {out}, {plot}")
    return int(bool((ds["type_mismatch_pages"].sel(kernel=list(KERNELS[1:])) > 0).any()))


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_freelist_hygiene"))
