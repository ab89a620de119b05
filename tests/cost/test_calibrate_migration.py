"""Fits find again the numbers that made the times, and meet the published ones as the sheets say."""

from dataclasses import replace

import numpy as np
import pytest

from memmodel.cost.calibrate_migration import fit_cells, fit_clear, fit_dma, fit_folio_size, fit_thp, fit_threads
from memmodel.cost.machines import load_machine
from memmodel.cost.published_migration import (
    MigrationRate,
    published_clear_rates,
    published_migration_rates,
    published_thp_copies,
)
from memmodel.errors import InputError

ZEN3 = load_machine("zen3-32c")


def rates_of(impl: str, *series: str) -> list[MigrationRate]:
    rates = [rate for rate in published_migration_rates() if rate.table == "folio_size" and rate.impl == impl]
    return [rate for rate in rates if not series or rate.series in series]


@pytest.mark.parametrize(
    ("series", "folio", "page", "pte", "chi2"),
    [
        (("V3",), 480, 383, 241, 1.1),
        (("V4",), 555, 375, 228, 2.5),
        (("V5",), 653, 370, 202, 0.1),
        ((), 575, 375, 220, 13.1),
    ],
)
def test_fit_folio_size__each_series_and_all(
    series: tuple[str, ...], folio: float, page: float, pte: float, chi2: float
) -> None:
    fit = fit_folio_size(rates_of("page_by_page", *series))
    assert list(fit.values.values()) == [pytest.approx(x, abs=1) for x in (folio, page, pte)]
    assert fit.chi2 == pytest.approx(chi2, abs=0.06)


def test_fit_folio_size__without_the_pte_the_points_are_not_met() -> None:
    rates = rates_of("page_by_page")
    pages = np.array([rate.folio_kib / 4 for rate in rates])
    measured = pages * 4096 / [rate.gb_per_s for rate in rates]
    error = np.hypot([rate.sd / rate.gb_per_s for rate in rates], 0.03)
    fit = fit_cells({"folio": 500.0, "page": 400.0}, lambda x: x[0] + pages * x[1], measured, error)
    assert fit.chi2 == pytest.approx(426, abs=1)


def test_fit_folio_size__finds_what_made_the_times() -> None:
    made = [
        replace_rate(rate, 700 + rate.folio_kib / 4 * (300 + 150 * (rate.folio_kib < 2048)))
        for rate in rates_of("page_by_page")
    ]
    fit = fit_folio_size(made)
    assert list(fit.values.values()) == pytest.approx([700, 300, 150])
    assert fit.chi2 < 1e-12
    assert np.allclose(fit.residual_percent, 0, atol=1e-6)


def replace_rate(rate: MigrationRate, folio_ns: float) -> MigrationRate:
    return rate._replace(gb_per_s=rate.folio_kib * 1024 / folio_ns)


def test_fit_threads_and_dma__as_well_as_the_module_says() -> None:
    threads = fit_threads(rates_of("threads", "V3"), ZEN3)
    assert threads.chi2 / threads.dof == pytest.approx(1.30, abs=0.01)
    dma = fit_dma(rates_of("dma", "V3", "V4", "V5"), ZEN3)
    assert dma.chi2 / dma.dof > 10  # said: no simple form
    with pytest.raises(InputError, match=r"zen6-cxl has no migration\.threads"):
        fit_threads(rates_of("threads"), load_machine("zen6-cxl"))
    with pytest.raises(InputError, match="zen3 has no migration part"):
        fit_dma(rates_of("dma"), load_machine("zen3"))


def test_fit_thp__three_groups() -> None:
    fit = fit_thp([row for row in published_thp_copies() if row.folio_kib == 2048 and row.impl == "threads"])
    call, folio, alone = fit.values.values()
    groups = {1: call + folio + alone, 16: call / 16 + folio + alone}
    assert groups == {1: pytest.approx(35.3e3, rel=0.01), 16: pytest.approx(30.4e3, rel=0.02)}
    assert call / 16 + folio + alone / 16 == pytest.approx(24.05e3, rel=0.002)


def test_fit_clear__a_step_and_two_costs_of_a_fault() -> None:
    rates = [rate for rate in published_clear_rates() if rate.cpu == "EPYC 7J13"]
    fit = fit_clear(rates)
    assert fit.chi2 / fit.dof < 1
    assert fit.values["4 KiB"] / fit.values["2 MiB"] == pytest.approx(1.03, abs=0.01)
    assert fit.values["2 MiB"] / fit.values["32 MiB"] == pytest.approx(2.39, abs=0.02)


def test_fit_cells__refuses_too_few() -> None:
    with pytest.raises(InputError, match="1 cells are too few for 2 numbers: a, b"):
        fit_cells({"a": 1.0, "b": 1.0}, lambda x: x[:1], np.ones(1), np.ones(1))


def test_cell_fit__is_frozen() -> None:
    fit = fit_cells({"a": 1.0}, lambda x: x * np.ones(2), np.array([1.0, 3.0]), np.ones(2))
    assert fit.dof == 1
    assert replace(fit, chi2=0.0).chi2 == 0.0
