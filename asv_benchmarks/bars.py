"""Run the benchmarks that have a bar once, and print each figure beside its bar.

python asv_benchmarks/bars.py [--quick]. A figure depends on the machine and on what else it does: nothing fails here.
"""

import argparse
import itertools
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import (
    bench_buddy,
    bench_compaction,
    bench_compile,
    bench_contig,
    bench_copying,
    bench_import,
    bench_migration,
    bench_page_alloc,
    bench_replaying,
    bench_state,
    bench_sweep,
    bench_thp_success,
)

# What is measured, with a place for each parameter, and the benchmark that does it.
ROWS = (
    ("folio_mc_copy, folios of {}, {} a call", bench_copying.FoliosAgainstMemcpy, "track_mechanism"),
    ("its compiled loop, folios of {}, {} a call", bench_copying.FoliosAgainstMemcpy, "track_kernel"),
    ("folio_mc_copy beyond the cache, folios of {}", bench_copying.BeyondTheCacheAgainstCopyto, "track_share"),
    ("folio_mc_copy beyond the cache, folios of {}", bench_copying.BeyondTheCacheAgainstMemcpy, "track_share"),
    ("order 0 in one request, buddy alone, memory {}", bench_buddy.BulkOrder0, "track_rate"),
    ("order 0 in one request, memory {}, {}", bench_page_alloc.BulkOrder0, "track_rate"),
    ("order 9, THP lists, alloc and free", bench_page_alloc.Order9, "track_alloc_free"),
    ("random pairs, buddy alone, {}, {} a call", bench_buddy.RandomFreeAllocAgainstC, "track_share"),
    ("random pairs, {}, {} a call, C twin: {}", bench_page_alloc.RandomFreeAllocAgainstC, "track_share"),
    ("migrate_pages, order 0", bench_migration.Order0, "track_rate"),
    ("migrate_pages with contents, THPs", bench_migration.ContentsAgainstMemcpy, "track_share"),
    ("cma_alloc of a free area, {} pages a request", bench_contig.CmaAlloc, "track_rate"),
    ("thp_success, a point of 4 GiB", bench_thp_success.Point, "track_seconds"),
    ("thp_success, two threads", bench_thp_success.TwoThreads, "track_speed_up"),
    ("compaction's scanners, {} zone", bench_compaction.Scanners, "track_scanned"),
    ("replay, {} trace", bench_replaying.Replay, "track_rate"),
    ("state of a zone", bench_state.BytesAPage, "track_bytes"),
    ("table of folios, {}", bench_state.BytesAFolio, "track_bytes"),
    ("1 TiB built", bench_state.BuildTerabyte, "track_build"),
    ("import of {}", bench_import.Import, "track_import"),
    ("memmodel --help", bench_import.Help, "track_help"),
    ("first {}, empty cache", bench_compile.FirstStudyCold, "track_cold"),
    ("first {}, warm cache", bench_compile.FirstStudyWarm, "track_warm"),
    ("10,000 points of folio_copy", bench_sweep.TenThousandPoints, "track_run_study"),
    ("12,000 points of tlb_batch", bench_sweep.TlbBatchGrid, "track_run_study"),
    ("two threads, {} points", bench_sweep.TwoThreads, "track_share"),
)


class Figure(NamedTuple):
    """A benchmark at one set of its parameters."""

    title: str
    benchmark: type
    method: str
    params: tuple[Any, ...]


def figures() -> Iterator[Figure]:
    """Every row at all its parameters."""
    for title, benchmark, method in ROWS:
        for params in itertools.product(*getattr(benchmark, "params", ())):
            yield Figure(title.format(*params), benchmark, method, params)


def measure(figure: Figure, quick: bool) -> float:
    """The figure, as asv would take it."""
    benchmark = figure.benchmark()
    if quick:
        benchmark.turns = 3
        benchmark.size = getattr(benchmark, "quick_size", getattr(benchmark, "size", None))
    run = {name: getattr(benchmark, name, lambda *params: None) for name in ("setup", figure.method, "teardown")}
    try:
        run["setup"](*figure.params)
        return run[figure.method](*figure.params)
    finally:
        run["teardown"](*figure.params)


def bar_of(figure: Figure) -> tuple[str, float]:
    """Which way the bar holds, and the bar."""
    way = "at_least" if hasattr(figure.benchmark, "at_least") else "at_most"
    bar = getattr(figure.benchmark, way)
    return way, bar[figure.params[0]] if isinstance(bar, dict) else bar


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the figures that have a bar, and whether they meet it.")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer turns, nothing slow")
    quick = parser.parse_args().quick
    if quick:
        os.environ["ASV_SKIP_SLOW"] = "1"
    print(f"{'':60}{'figure':>9}  {'bar':<9}{'met':<5}unit")
    for figure in figures():
        way, bar = bar_of(figure)
        try:
            value = measure(figure, quick)
        except NotImplementedError as reason:
            print(f"{figure.title:60}{'skipped':>9}  {reason}", flush=True)
            continue
        sign, met = (">=", value >= bar) if way == "at_least" else ("<=", value <= bar)
        answer = "n/a" if math.isnan(value) else "yes" if met else "no"  # nan: the machine was too busy to tell
        print(f"{figure.title:60}{value:9.3f}  {sign} {bar:<6g}{answer:<5}{figure.benchmark.unit}", flush=True)


if __name__ == "__main__":
    main()
