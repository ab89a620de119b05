"""Reproduce TLB flush batching of migrate_pages(): recorded flushes and IPIs, and the published gain.

Prints flushes and flush requests of every recorded phase, Linux 6.1, 6.12 and 7.3, as recorded and as the model counts
them; then the published numbers of the series that brought batching, with both readings of its "99.1 %".

    python scripts/reproduce_tlb_batch.py [--out tlb_batch.nc] [--plot tlb_batch.png]
"""

import sys
from pathlib import Path

import click

from memmodel.cli import run_command
from memmodel.report.comparison import plot_comparison
from memmodel.report.panels import check_path
from memmodel.results.dataset import check_target, save
from memmodel.results.text import table
from memmodel.studies.comparison import as_dataset, text_lines
from memmodel.studies.sweep import run_study
from memmodel.studies.tlb_phases import NUMBERS, Phase, model_phase, recorded_phases
from memmodel.studies.tlb_table import reading_lines, tlb_batch_rows

TITLE = "TLB flush batching: published and modelled"
SHOWN = ("flush_ops", "ipi_requests")
KERNELS = ("61", "612", "73")


def print_phases() -> None:
    """Flushes and requests by phase, recorded / model, and where any number differs."""
    phases = list(recorded_phases())
    models = {(phase.kernel, phase.group, phase.name): model_phase(phase) for phase in phases}
    names = list(dict.fromkeys((phase.group, phase.name) for phase in phases))
    by_key = {(phase.kernel, phase.group, phase.name): phase for phase in phases}
    rows = [("phase", *(f"{kernel} {number}" for kernel in KERNELS for number in SHOWN))]
    for group, name in names:
        cells = [
            pair(by_key[kernel, group, name], models[kernel, group, name], number)
            for kernel in KERNELS
            for number in SHOWN
        ]
        rows.append((f"{group}.{name}", *cells))
    click.echo("Recorded, where it differs / the model: pages migrated, calls, return values and statuses are equal.")
    click.echo(table(rows))
    differ = [
        (phase, number)
        for phase in phases
        for number in NUMBERS
        if phase.numbers[number] != models[phase.kernel, phase.group, phase.name].numbers[number]
    ]
    numbers = ", ".join(sorted({number for _, number in differ})) or "none"
    click.echo(f"\n{len(phases)} phases of 4 kernels, {len(NUMBERS)} numbers each: {len(differ)} differ ({numbers}).")
    click.echo("An idle CPU was out of the mask for a while there, at moments that no number tells.\n")


def pair(recorded: Phase, model: Phase, number: str) -> str:
    """One number, or both."""
    mine, theirs = model.numbers[number], recorded.numbers[number]
    return str(mine) if mine == theirs else f"{theirs} / {mine}"


def print_study() -> None:
    """What a batch gains and costs, by CPUs."""
    grid = {"batch_pages": [1, 32, 512], "n_cpus": [2, 16, 64]}
    ds = run_study("tlb_batch", grid, seed=0)
    rows = [("batch, pages", "CPUs", "IPIs", "pages/s", "flush, share of time", "out of reach: mean us", "worst us")]
    for batch in grid["batch_pages"]:
        for cpus in grid["n_cpus"]:
            point = ds.sel(batch_pages=batch, n_cpus=cpus)
            share = float(point["time_flush_ns"] / point["time_total_ns"])
            waits = (f"{float(point[name]) / 1e3:.1f}" for name in ("waiter_mean_ns", "waiter_worst_ns"))
            rows.append((batch, cpus, int(point["n_ipis"]), round(float(point["pages_per_s"])), f"{share:.3f}", *waits))
    click.echo("1 GiB of base pages on zen3-32c; an IPI round is assumed to take 1 us and 0.2 us a receiver:")
    click.echo(table(rows))


@click.command(help=__doc__)
@click.option("--out", default="tlb_batch.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
@click.option("--plot", default="tlb_batch.png", show_default=True, help="Plot to write (.png, .pdf, .svg).")
def main(out: str, plot: str) -> None:
    check_target(out)
    check_path(plot)
    print_phases()
    for line in reading_lines():
        click.echo(line)
    rows = tlb_batch_rows()
    *tables, summary = text_lines(rows)
    click.echo("\n" + "\n".join(tables))
    print_study()
    click.echo(f"\n{summary}")
    ds = as_dataset(rows, TITLE, Path(__file__).name)
    save(ds, out)
    plot_comparison(ds, plot)
    click.echo(f"written: {out}, {plot}")


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_tlb_batch"))
