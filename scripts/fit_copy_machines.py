"""Fit the copy cost model to the published batch-page-copy table and hold `machines.toml` against the fit.

Prints the fitted numbers beside the file's, the residual of every cell, the leave-one-out error, and the check on the
Zen 5 numbers of the patch's first version. Exit 1 if a fitted number of the file is not what the fit gives.

    python scripts/fit_copy_machines.py
"""

import sys
from functools import partial
from typing import Any

import numpy as np

from memmodel.cost.calibrate import (
    CopyCells,
    Fit,
    agrees,
    fit_limit,
    fit_overlap,
    leave_one_out_percent,
    number_at,
)
from memmodel.cost.machines import PAIR_OF_DIRECTION, load_machine
from memmodel.cost.model import CopyCounts, direction_codes, price, throughput_gib_per_s
from memmodel.cost.published import PublishedCell, published_copy_table

KNOT_BYTES = (4 << 10, 2 << 20, 32 << 20)

# 20260427142036.111940-2-shivankg@amd.com: move_pages() of 1 GB as 2 MB THP, EPYC 9655, GB/s base and patched, standard
# deviations; the number of runs is not stated, decimal GB is assumed
ZEN5 = {
    "D0-D1": (7.20, 0.03, 8.01, 0.02),
    "D1-D0": (7.21, 0.02, 7.95, 0.02),
    "D0-CXL": (11.12, 0.15, 13.07, 0.03),
    "CXL-D0": (9.10, 0.05, 9.49, 0.01),
}


def as_cells(published: tuple[PublishedCell, ...]) -> CopyCells:
    pages = np.array([2.0**cell.folio_order for cell in published])
    in_one_call = np.array([cell.batch == "extent" for cell in published])
    return CopyCells(
        extent_bytes=4096 * np.where(in_one_call, pages, 1.0),
        pair=np.array(PAIR_OF_DIRECTION)[direction_codes([cell.direction for cell in published])],
        pages_per_folio=pages,
        ns_per_page=np.array([cell.ns_per_page for cell in published]),
        relative_error=np.array([cell.relative_error for cell in published]),
    )


def report_fit(title: str, fit: Fit, table: dict[str, Any]) -> bool:
    print(f"{title}\n  {'number':<30}{'fitted':>10}{'error':>10}{'in file':>10}")
    good = True
    for place, value in fit.values.items():
        written = number_at(table, place)
        same = agrees(value, written)
        good &= same
        print(f"  {place:<30}{value:>10.3f}{fit.errors[place]:>10.3f}{written:>10g}{'' if same else '  differs'}")
    return good


def report_cells(published: tuple[PublishedCell, ...], counts: CopyCounts, left_out: np.ndarray) -> None:
    """The table as the file's numbers give it (not as the fit, which has more digits)."""
    machine = load_machine("zen6-cxl")
    rates = {form: throughput_gib_per_s(counts.bytes_copied, price(counts, machine, form).total_ns) for form in "LF"}
    means = np.array([cell.mean_gib_per_s for cell in published])
    print(f"\n  {'cell':<22}{'GiB/s':>7}{'sd':>6}{'L':>8}{'%':>7}{'F':>8}{'%':>7}{'left out, L %':>15}")
    for i, cell in enumerate(published):
        name = f"{cell.direction} {cell.folio} {cell.kernel}"
        columns = "".join(f"{rate[i]:>8.2f}{100 * (rate[i] / means[i] - 1):>7.1f}" for rate in rates.values())
        last = f"{left_out[i]:>15.1f}" if cell.usable else f"{'not used':>15}"
        print(f"  {name:<22}{cell.mean_gib_per_s:>7.2f}{cell.sd_gib_per_s:>6.2f}{columns}{last}")
    usable = np.array([cell.usable for cell in published])
    for form, rate in rates.items():
        percent = 100 * (rate / means - 1)[usable]
        print(f"  form {form}: rms {rms(percent):.2f} %, at worst {np.abs(percent).max():.2f} %")
    left = left_out[usable]
    print(f"  form L, cell left out: rms {rms(left):.2f} %, median {np.median(np.abs(left)):.2f} %")


def report_zen5() -> None:
    machine = load_machine("zen5-cxl")
    directions = np.array(list(ZEN5))
    counts = CopyCounts(2 << 20, [[4 << 10], [2 << 20]], [[512], [1]], 1, direction_codes(directions))
    print("\nzen5-cxl, ns saved per 4 KiB page of a 2 MB folio (a check: core and memory times are those of zen6-cxl)")
    print(f"  {'direction':<10}{'published':>16}{'L':>8}{'F':>8}   rate base, GB/s: published, L")
    time = {form: price(counts, machine, form).total_ns / 512 for form in "LF"}
    copy_ns = price(counts, machine).copy_ns
    rest_ns = []
    for i, direction in enumerate(directions):
        base, base_sd, patched, patched_sd = ZEN5[direction]
        saved = 4096 / base - 4096 / patched
        error = np.hypot(4096 / base**2 * base_sd, 4096 / patched**2 * patched_sd)
        forms = "".join(f"{times[0, i] - times[1, i]:>8.1f}" for times in time.values())
        rate = 4096 / time["L"][0, i]
        print(
            f"  {direction:<10}{saved:>9.1f} ± {error:<4.1f}{forms}{base:>21.2f}, {rate:.2f} ({rate / base - 1:+.0%})"
        )
        rest_ns += [512 * 4096 / base - copy_ns[0, i], 512 * 4096 / patched - copy_ns[1, i]]
    rest_us = np.array(rest_ns) / 1000
    print(
        f"  move of a folio less the copy: {rest_us.min():.0f} to {rest_us.max():.0f} us, mean {rest_us.mean():.1f} us"
    )


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def main() -> int:
    published = published_copy_table()
    cells = as_cells(published)
    usable = np.array([cell.usable for cell in published])
    fitted_cells = cells.keep(usable)
    overlap_fit = partial(fit_overlap, knot_bytes=KNOT_BYTES)
    table = load_machine("zen6-cxl").as_dict()
    good = report_fit("zen6-cxl, form L (overlap)", overlap_fit(fitted_cells), table)
    good &= report_fit("\nzen6-cxl, form F (limit)", fit_limit(fitted_cells, KNOT_BYTES[0], KNOT_BYTES[1:]), table)
    left_out = np.full(len(published), np.nan)
    left_out[usable] = leave_one_out_percent(overlap_fit, fitted_cells)
    n_bytes = cells.pages_per_folio * 4096
    codes = direction_codes([cell.direction for cell in published])
    counts = CopyCounts(n_bytes, cells.extent_bytes, n_bytes / cells.extent_bytes, 1, codes)
    report_cells(published, counts, left_out)
    report_zen5()
    print("\nmachines.toml agrees" if good else "\nmachines.toml does not agree with the fit")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
