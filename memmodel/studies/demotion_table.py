"""The published kswapd experiment beside the study `demotion`."""

import math
from collections.abc import Mapping
from statistics import median

from memmodel.cost.machines import Machine
from memmodel.cost.published_migration import demotion_table
from memmodel.studies.comparison import Row
from memmodel.studies.sweep import run_study

__all__ = ["KERNELS", "demotion_rows", "direct_share"]

KERNELS = {"base": "page", "patched": "extent"}
SOURCE = "20261019-batpagecopy-v2-1-d75e7d0dfaae@amd.com"
REPLICATES = 10
_LOADED = "Gain of copies by extent beside a running load (modelled: idle)"
_TABLE = "kswapd demotes some 80 GB of THPs to CXL, EPYC Zen 6"


def direct_share(table: Mapping[tuple[str, str], float], kernel: str) -> float:
    """Published share of direct reclaim: what kswapd demoted is its CPU time over that of a GB."""
    by_kswapd = 1e3 * table[kernel, "kswapd_cpu"] / table[kernel, "kswapd_cpu_per_gb"]
    return table[kernel, "demoted_direct"] / (by_kswapd + table[kernel, "demoted_direct"])


def demotion_rows(machine: str | Machine = "zen6-cxl", seed: int = 0) -> tuple[Row, ...]:
    """Medians of ten runs, as published; a GB is read as 2**30 bytes.

    Calibrated are kswapd's CPU time a GB (one number, ``reclaim_slowdown``, for both kernels) and the patched kernel's
    share of direct reclaim (the writer's rate), and with it how far the share falls. All else is predicted from these.

    References
    ----------
    Shivank Garg, "[PATCH RFC v2] mm: introduce copy_mc_highpages() and batch copy in folio_mc_copy()", October 2026.
    """
    ds = run_study("demotion", {"batch": list(KERNELS.values())}, machine=machine, replicates=REPLICATES, seed=seed)
    table = demotion_table()

    def modelled(kernel: str, name: str) -> float:
        return float(median(ds[name].sel(batch=KERNELS[kernel]).values.tolist()))

    def row(label: str, published: float, model: float, units: str, calibrated: bool = False) -> Row:
        return Row(_TABLE, label, published, model, units, SOURCE, calibrated)

    rows = []
    for kernel in KERNELS:
        share, gib = modelled(kernel, "direct_share"), modelled(kernel, "pgdemote_direct") / 2**18
        rows += [
            row(f"{kernel}, kswapd CPU a GB", table[kernel, "kswapd_cpu_per_gb"],
                modelled(kernel, "kswapd_ms_per_gib"), "ms/GiB", True),
            row(f"{kernel}, kswapd CPU", table[kernel, "kswapd_cpu"], modelled(kernel, "time_kswapd_ns") / 1e9, "s"),
            row(f"{kernel}, share of direct reclaim", 100 * direct_share(table, kernel), 100 * share, "%",
                kernel == "patched"),
            row(f"{kernel}, demoted by direct reclaim", table[kernel, "demoted_direct"], gib, "GiB",
                kernel == "patched"),
            row(f"{kernel}, allocstall", table[kernel, "allocstall"], modelled(kernel, "allocstall"), "1"),
        ]  # fmt: skip
    published = direct_share(table, "base") / direct_share(table, "patched")
    left = modelled("patched", "direct_share")
    fall = modelled("base", "direct_share") / left if left else math.inf
    rows.append(row("base over patched, share of direct reclaim", published, fall, "1", True))
    return (*rows, *_loaded_rows(machine))


def _loaded_rows(machine: str | Machine) -> list[Row]:
    """How much faster moves by extent are while a load runs; the model's machine is idle: what differs is the load."""
    grid = {"direction": ["D0-CXL", "CXL-D0"], "folio_order": [9, 18], "batch": list(KERNELS.values())}
    ds = run_study("folio_copy", grid, machine=machine, seed=0)
    gain = ds["throughput_gib_per_s"].sel(batch="extent") / ds["throughput_gib_per_s"].sel(batch="page")
    copy = ds["time_copy_ns"].sel(batch="page") / ds["time_copy_ns"].sel(batch="extent")
    huge = float(copy.sel(direction="D0-CXL", folio_order=9))
    return [
        Row(_LOADED, label, published, model, "times", SOURCE, False)
        for label, published, model in (
            ("1 GB pages demoted, GUPS", 1.43, float(gain.sel(direction="D0-CXL", folio_order=18))),
            ("1 GB pages promoted, GUPS", 1.28, float(gain.sel(direction="CXL-D0", folio_order=18))),
            ("copy of a demoted THP, least of the tiering workloads", 1.18, huge),
            ("copy of a demoted THP, most of the tiering workloads", 1.49, huge),
        )
    ]
