"""Fit migration, demotion and clearing to the published tables and hold `machines.toml` against the fits.

Prints every fitted number beside the file's, chi2 and residuals, and what no number is fitted to: the batching of TLB
flushes in units of the old time of a page. Exit 1 if a fitted number of the file is not what the fit gives.

    python scripts/fit_migration_machines.py
"""

import sys
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from memmodel.cost.calibrate import agrees, number_at
from memmodel.cost.calibrate_migration import (
    CellFit,
    fit_clear,
    fit_dma,
    fit_folio_size,
    fit_slowdown,
    fit_thp,
    fit_threads,
)
from memmodel.cost.demotion import THP_BYTES, demotion_times, steady_demotion
from memmodel.cost.machines import load_machine
from memmodel.cost.published_migration import (
    MigrationRate,
    demotion_table,
    published_clear_rates,
    published_migration_rates,
    published_thp_copies,
)
from memmodel.studies.clear_table import FITTED_CPU
from memmodel.studies.comparison import text_lines
from memmodel.studies.demotion_table import KERNELS, direct_share
from memmodel.studies.registry import find_study
from memmodel.studies.tlb_table import reading_lines, tlb_batch_rows

EXTENTS = {"base": 4 << 10, "patched": 2 << 20}


def report(title: str, fit: CellFit, machine: str, places: dict[str, str]) -> bool:
    """The fit beside the machine's numbers; `places` says where each is ("/2" after it: half of the fitted one)."""
    table = load_machine(machine).as_dict()
    percent = fit.residual_percent
    print(f"{title}\n  {'number':<34}{'fitted':>10}{'error':>10}{'in file':>10}")
    good = True
    for name, value in fit.values.items():
        place, _, half = places.get(name, name).partition("/")
        parts = 2 if half else 1
        written = number_at(table, place)
        same = agrees(value / parts, written)
        good &= same
        print(
            f"  {place:<34}{value / parts:>10.3f}{fit.errors[name] / parts:>10.3f}{written:>10g}"
            f"{'' if same else '  differs'}"
        )
    print(
        f"  {percent.size} cells, chi2 {fit.chi2:.1f}, chi2/dof {fit.chi2 / fit.dof:.2f}, rms"
        f" {np.sqrt(np.mean(percent**2)):.1f} %, worst {percent[np.abs(percent).argmax()]:+.1f} %\n"
    )
    return good


def fit_zen3() -> bool:
    def rates(keep: Callable[[MigrationRate], bool]) -> list[MigrationRate]:
        return [rate for rate in published_migration_rates() if rate.table == "folio_size" and keep(rate)]

    machine = load_machine("zen3-32c")
    size = fit_folio_size(rates(lambda rate: rate.impl == "page_by_page"))
    threads = fit_threads(rates(lambda rate: rate.impl == "threads" and rate.series == "V3"), machine)
    dma = fit_dma(rates(lambda rate: rate.impl == "dma" and rate.series != "V2"), machine)
    places = {"folio": "folio_overhead", "page": "memory.DRAM-DRAM", "pte": "migration.unmap_pte/2"}
    good = report("zen3-32c, by folio size: folio + n (page + PTE, below 2 MiB)", size, "zen3-32c", places)
    places = {name: f"migration.threads.{name}" for name in threads.values}
    good &= report("zen3-32c, copied by threads", threads, "zen3-32c", places)
    places = {name: f"migration.dma.{name}" for name in dma.values}
    return good & report("zen3-32c, copied by DMA", dma, "zen3-32c", places)


def fit_haswell() -> bool:
    rows = [row for row in published_thp_copies() if row.folio_kib == 2048 and row.impl == "threads"]
    places = {"call": "migration.call", "folio": "folio_overhead", "alone": "migration.flush_full"}
    return report("haswell-2s, a THP besides its copy", fit_thp(rows), "haswell-2s", places)


def fit_milan() -> bool:
    rates = [rate for rate in published_clear_rates() if rate.cpu == FITTED_CPU]
    places = {name: f"clear.{name}" for name in ("4 KiB", "2 MiB", "32 MiB")}
    places |= {"fault": "clear_fault", "scattered": "clear_scattered"}
    return report("milan, clearing at demand faults", fit_clear(rates), "milan", places)


def fit_zen6() -> bool:
    """Kswapd's slowdown, and the writer's rate that the study starts from."""
    machine, table = load_machine("zen6-cxl"), demotion_table()
    per_thp = [1e6 * table[kernel, "kswapd_cpu_per_gb"] * THP_BYTES / 2**30 for kernel in KERNELS]
    fit = fit_slowdown(machine, per_thp, list(EXTENTS.values()), "D0-CXL")
    good = report("zen6-cxl, kswapd", fit, "zen6-cxl", {"reclaim_slowdown": "migration.reclaim_slowdown"})
    wanted = direct_share(table, "patched")
    times = demotion_times(machine, KERNELS["patched"])

    def excess(rate: float) -> float:
        write_ns = THP_BYTES / 2**30 / rate * 1e9
        return float(steady_demotion(write_ns, times.kswapd_ns, times.direct_ns).direct_share) - wanted

    rate = float(brentq(excess, 1.0, 100.0))
    written = find_study("demotion").parameter("write_gib_per_s").default
    same = agrees(rate, float(written))
    print(
        f"study demotion, write_gib_per_s: {rate:.2f} for a share of direct reclaim of {100 * wanted:.2f} % (patched);"
        f" default {written:g}{'' if same else '  differs'}\n"
    )
    return good & same


def main() -> int:
    fits = [fit_zen3(), fit_haswell(), fit_zen6(), fit_milan()]
    print("TLB flush batching (no machine: shares of the old time of a page)")
    print("\n".join(reading_lines()), end="\n\n")
    print("\n".join(text_lines(tlb_batch_rows())))
    good = all(fits)
    print("\nmachines.toml agrees" if good else "\nmachines.toml does not agree with the fits")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
