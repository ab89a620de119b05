"""THP success against the pageblock order: what a smaller pageblock costs, and what CMA gets for it.

A machine is filled, emptied and kept churning; then all of its free memory is asked for as huge pages, with direct
compaction and nothing to reclaim. Prints, for each unmovable share, the share of faults that got a huge page with its
95 % interval, the difference to pageblocks of a huge page with the interval of the paired replicates, what compaction
did, and the CMA granule. The kernel's min_free_kbytes grows with the pageblock, which leaves less to take: the second
table holds it fixed. Writes the Datasets and a picture.

    python scripts/thp_success.py [--replicates 10] [--size-mib 1024] [--page-size 4KiB] [--out thp_success.nc]
"""

import sys
from pathlib import Path
from typing import Any

import click

from memmodel.cli import run_command
from memmodel.report.panels import check_path
from memmodel.report.thp_success import Interval, interval, paired_difference, plot_thp_success
from memmodel.results.dataset import check_target, save
from memmodel.results.text import table
from memmodel.studies.sweep import run_study

ORDERS = {"4KiB": [1, 3, 5, 7, 9], "16KiB": [1, 3, 5, 7, 9, 11]}
UNMOVABLE = [0.02, 0.1, 0.3]
FIXED_KIB = {"4KiB": 16384, "16KiB": 16384}


def text(found: Interval, *place: int) -> str:
    """Mean and half width."""
    return f"{found.mean[place]:6.3f} ± {found.half[place]:.3f}"


def show(page_size: str, fixed: int, options: dict[str, Any], replicates: int, workers: int) -> Any:
    """Run a sweep and print its table."""
    grid = {"page_block_max_order": ORDERS[page_size], "unmovable": UNMOVABLE}
    settings = {**grid, "page_size": page_size, "min_free_kbytes": fixed, **options}
    ds = run_study("thp_success", settings, replicates=replicates, seed=0, workers=workers)
    share = ds["thp_compact_share"].transpose("unmovable", "page_block_max_order", "replicate")
    found, change = interval(share), paired_difference(share, "page_block_max_order", ORDERS[page_size][-1])
    head = ("unmovable", "limit", "order", "success", "against the largest", "best", "mixed blocks", "scanned a THP")
    rows: list[tuple[object, ...]] = [(*head, "isolated/migrated")]
    mean = ds.mean("replicate")
    for i, unmovable in enumerate(UNMOVABLE):
        for j, limit in enumerate(ORDERS[page_size]):
            here = mean.sel(unmovable=unmovable, page_block_max_order=limit)
            got = max(float(here["thp_compact_share"] * here["n_thp_requests"]), 1)
            scanned = float(here["compact_migrate_scanned"] + here["compact_free_scanned"]) / got
            row = (unmovable, limit, int(here["pageblock_order"]), text(found, i, j), text(change, i, j))
            more = (f"{float(here['thp_bound_share']):.3f}", f"{float(here['mixed_share']):.3f}", f"{scanned:.0f}")
            rows.append((*row, *more, f"{float(here['isolated_per_migrated']):.2f}"))
    what = f"min_free_kbytes {fixed}" if fixed else "min_free_kbytes as the kernel works it out"
    click.echo(f"\n{page_size} pages, huge pages of order {int(ds['thp_order'].max())}, {what}:\n")
    click.echo(table(rows))
    return ds


@click.command(help=__doc__)
@click.option("--replicates", default=10, show_default=True, type=click.IntRange(2))
@click.option("--size-mib", default=1024, show_default=True, type=int)
@click.option("--page-size", default="4KiB", show_default=True, type=click.Choice(list(ORDERS)))
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1))
@click.option("--out", default="thp_success.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
@click.option("--plot", default="thp_success.png", show_default=True, help="Picture to write.")
def main(replicates: int, size_mib: int, page_size: str, workers: int, out: str, plot: str) -> int:
    check_target(out)
    check_path(plot)
    target = Path(out)
    other = target.with_name(f"{target.stem}_fixed_reserve{target.suffix}")
    check_target(str(other))
    options: dict[str, Any] = {"size_mib": size_mib}
    own = show(page_size, 0, options, replicates, workers)
    fixed = show(page_size, FIXED_KIB[page_size], options, replicates, workers)
    save(own, out)
    save(fixed, str(other))
    plot_thp_success(fixed, plot)
    click.echo(f"\nwritten: {out}, {other}, {plot} (the fixed reserve)")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, "thp_success"))
