"""Reproduce what a 4 MiB CMA pool of a driver takes at each page size (PAGE_BLOCK_ORDER patch, Linux 6.16).

Prints the published table beside the model: 4 MiB at 4 KiB pages, 32 MiB at 16 KiB, 512 MiB at 64 KiB, and 4 MiB again
at 16 KiB with the pageblock order limited to 7; the CMA granule of each; then what a machine of 4 GiB has left. The
granule at 4 KiB is the published one only for kernels before 6.10 without hugetlb: both are shown. Writes the study's
Dataset. Exit 1 if a pool differs.

    python scripts/reproduce_cma_waste.py [--out cma_waste.nc]
"""

import sys
from typing import Any

import click

from memmodel.cli import run_command
from memmodel.results.dataset import check_target, save
from memmodel.results.text import table
from memmodel.studies.cma_waste import STUDY, pools
from memmodel.studies.sweep import run_study
from memmodel.units import format_bytes

MIB = 1 << 20
# Page size, limit, kernel, huge pages; published pool and granule in MiB. 6.9 with THP alone is the table as first
# posted; 6.16 the one that was merged.
ROWS = (
    ("4KiB", 0, "6.9", "thp", 4, 4),
    ("4KiB", 0, "6.16", "thp", 4, 2),
    ("16KiB", 0, "6.16", "thp", 32, 32),
    ("64KiB", 0, "6.16", "thp", 512, 512),
    ("16KiB", 7, "6.16", "thp", 4, 2),
)
N_POOLS = (1, 4, 8)


def point(**changes: Any) -> dict[str, Any]:
    """The study's defaults, some of them changed."""
    return {parameter.name: parameter.default for parameter in STUDY.parameters} | changes


def compare() -> bool:
    """Print published against modelled pools; whether all are equal."""
    rows: list[tuple[object, ...]] = [
        ("page size", "limit", "kernel", "granule", "published", "pool of 4 MiB", "published", "wasted", "")
    ]
    equal = True
    for page_size, limit, kernel, huge_pages, pool_mib, granule_mib in ROWS:
        got = pools(point(page_size=page_size, page_block_max_order=limit, kernel=kernel, huge_pages=huge_pages))
        pool, granule, wasted = (
            format_bytes(int(got[name]))
            for name in ("cma_reserved_bytes", "cma_min_alignment_bytes", "cma_wasted_bytes")
        )
        published, published_granule = (format_bytes(n * MIB) for n in (pool_mib, granule_mib))
        same = (pool, granule) == (published, published_granule)
        equal &= same
        verdict = "" if same else "DIFFERS"
        rows.append((page_size, limit or None, kernel, granule, published_granule, pool, published, wasted, verdict))
    click.echo(table(rows))
    return equal


@click.command(help=__doc__)
@click.option("--out", default="cma_waste.nc", show_default=True, help="Dataset to write (.nc, .zarr).")
def main(out: str) -> int:
    check_target(out)
    equal = compare()
    grid = {"page_size": ["4KiB", "16KiB", "64KiB"], "page_block_max_order": [0, 5, 7], "n_pools": list(N_POOLS)}
    ds = run_study("cma_waste", grid, seed=0)
    click.echo("\nPools of 4 MiB on a machine of 4 GiB, kernel 7.3, in MiB:\n")
    rows: list[tuple[object, ...]] = [("page size", "limit", "pools", "CMA", "wasted", "left", "refused")]
    for (page_size, limit, n_pools), got in (
        (key, ds.sel(page_size=key[0], page_block_max_order=key[1], n_pools=key[2]))
        for key in ((p, b, n) for p in grid["page_size"] for b in grid["page_block_max_order"] for n in N_POOLS)
    ):
        names = ("cma_reserved_bytes", "cma_wasted_bytes", "non_cma_bytes")
        sizes = [int(got[name]) // MIB for name in names]
        rows.append((page_size, limit or None, n_pools, *sizes, int(got["n_pools_refused"])))
    click.echo(table(rows))
    save(ds, out)
    click.echo(f"\nwritten: {out}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(run_command(main, "reproduce_cma_waste"))
