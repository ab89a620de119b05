"""Reproduce the published kswapd experiment: some 80 GB of THPs demoted to CXL, base kernel and with batch page copy.

Prints the numbers beside the study `demotion` (medians of ten runs), what is calibrated and what predicted, and how the
share of direct reclaim hangs on the writer's rate. Writes a Dataset and a plot.

    python scripts/reproduce_demotion.py [--out demotion.nc] [--plot demotion.png]
"""

import sys
from pathlib import Path

import click

from memmodel.cli import run_command
from memmodel.cost.demotion import THP_BYTES, demotion_times, steady_demotion
from memmodel.cost.machines import load_machine
from memmodel.report.comparison import plot_comparison
from memmodel.report.panels import check_path
from memmodel.results.dataset import check_target, save
from memmodel.studies.comparison import as_dataset, text_lines
from memmodel.studies.demotion_table import KERNELS, demotion_rows
from memmodel.studies.registry import find_study

TITLE = "Demotion by kswapd and by direct reclaim: published and modelled"
WRITE_GIB_PER_S = (20.0, 21.0, 22.0, 22.3, 22.5, 23.0, 24.0, 25.0)


def print_crossing() -> None:
    """The fluid's share of direct reclaim by the writer's rate: it falls where kswapd's rate crosses it."""
    machine = load_machine("zen6-cxl")
    times = {kernel: demotion_times(machine, batch) for kernel, batch in KERNELS.items()}
    rates = {kernel: THP_BYTES / 2**30 / time.kswapd_ns * 1e9 for kernel, time in times.items()}
    default = find_study("demotion").parameter("write_gib_per_s").default
    click.echo(
        f"\nkswapd demotes {rates['base']:.1f} GiB/s (base) and {rates['patched']:.1f} GiB/s (patched). Share of direct"
        f" reclaim in the steady\nstate, by the writer's rate (the study's is {default:g} GiB/s):"
    )
    for rate in WRITE_GIB_PER_S:
        write_ns = THP_BYTES / 2**30 / rate * 1e9
        shares = [float(steady_demotion(write_ns, *times[kernel][:2]).direct_share) for kernel in KERNELS]
        fall = f"{shares[0] / shares[1]:>8.1f} times less" if shares[1] else "   none left"
        click.echo(f"  {rate:>5.1f} GiB/s{100 * shares[0]:>8.1f} %{100 * shares[1]:>8.2f} %{fall}")


def print_roles() -> None:
    click.echo(
        "\nCalibrated: copies in reclaim take 1.19 times as long (kswapd's CPU a GB, one number for both kernels); the"
        "\nwriter's rate (the patched kernel's share of direct reclaim, which 5 % of that rate take from 0 to 3 %)."
        "\nAssumed: the writer's own demotions take what move_pages() takes; the spread of single times."
        "\nPredicted: all else. That the share falls by more than 20 times is the crossing of the two rates, not the"
        "\n1.4 times faster copy; how far it falls hangs on the writer's rate."
    )


@click.command(help=__doc__)
@click.option("--out", default="demotion.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
@click.option("--plot", default="demotion.png", show_default=True, help="Plot to write (.png, .pdf, .svg).")
def main(out: str, plot: str) -> None:
    check_target(out)
    check_path(plot)
    rows = demotion_rows()
    *tables, summary = text_lines(rows)
    click.echo("\n".join(tables).rstrip())
    print_crossing()
    print_roles()
    click.echo(f"\n{summary}")
    save(as_dataset(rows, TITLE, Path(__file__).name), out)
    plot_comparison(as_dataset(rows, TITLE, Path(__file__).name), plot)
    click.echo(f"written: {out}, {plot}")


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_demotion"))
