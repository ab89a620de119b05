"""What an operation costs as memory grows, in ns and in cache misses; with --plot a figure as well.

python asv_benchmarks/scaling.py [--largest 256GiB] [--plot FILE.png]. The whole takes half a minute and 5 GB of memory.
"""

import argparse
from pathlib import Path

import numpy as np
from benchmarks.bench_scaling import SIZES, Scaling

TRACKED = {"order 0": "track_order_0", "order 9": "track_order_9", "a cache miss": "track_cache_miss"}


def measure(size: str) -> dict[str, float]:
    """The three figures of a zone, ns."""
    found = {}
    for name, method in TRACKED.items():
        benchmark = Scaling()
        benchmark.setup(size)
        found[name] = getattr(benchmark, method)(size)
    return found


def draw(sizes: list[str], rows: list[dict[str, float]], path: Path) -> None:
    """The costs, and their quotient."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, (costs, quotient) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name in TRACKED:
        costs.plot(sizes, [row[name] for row in rows], marker="o", label=name)
        if name != "a cache miss":
            quotient.plot(sizes, [row[name] / row["a cache miss"] for row in rows], marker="o", label=name)
    costs.set(title="Free and allocation, zone of", ylabel="ns", ylim=(0, None))
    quotient.set(title="In cache misses over as many bytes", ylabel="misses", ylim=(0, None))
    for axes in (costs, quotient):
        axes.tick_params(axis="x", rotation=45)
        axes.legend()
    figure.savefig(path, dpi=150)


def fit(rows: list[dict[str, float]]) -> str:
    """Order 0 as a straight line over the cache miss."""
    misses, costs = (np.array([row[name] for row in rows]) for name in ("a cache miss", "order 0"))
    slope, constant = np.polyfit(misses, costs, 1)
    worst = np.abs(constant + slope * misses - costs).max()
    return f"order 0: {constant:.0f} ns + {slope:.2f} misses, {worst:.0f} ns off at most"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what a free and an allocation cost as memory grows.")
    parser.add_argument("--largest", choices=SIZES, default=SIZES[-1], help="zone to stop at")
    parser.add_argument("--plot", type=Path, help="draw it to this file")
    arguments = parser.parse_args()
    sizes = SIZES[: SIZES.index(arguments.largest) + 1]
    print(f"{'zone':8}{'order 0':>10}{'order 9':>10}{'miss':>10}   ns     order 0 and 9 in misses")
    rows = []
    for size in sizes:
        rows.append(measure(size))
        zero, nine, miss = rows[-1].values()
        print(f"{size:8}{zero:10.1f}{nine:10.1f}{miss:10.1f}{zero / miss:14.2f}{nine / miss:10.2f}", flush=True)
    if len(rows) > 2:
        print(fit(rows))
    if arguments.plot:
        draw(sizes, rows, arguments.plot)


if __name__ == "__main__":
    main()
