"""The study clear_pages: its calls, its step, and the published rates."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.studies.clear_table import clear_rows, gain_rows
from memmodel.studies.comparison import rms_percent

MIB = 1 << 20


def test_clear_pages__calls_and_stretches() -> None:
    grid = {"folio_order": [0, 9, 18], "batch": ["page", "extent"], "preempt": ["voluntary", "lazy"]}
    ds = mm.run_study("clear_pages", grid, seed=0)
    pages = 1 << 18
    assert (ds["n_calls"].sel(batch="page") == pages).all()
    assert ds["n_calls"].sel(batch="extent", preempt="voluntary").values.tolist() == [pages, 512, 128]
    assert ds["n_calls"].sel(batch="extent", preempt="lazy").values.tolist() == [pages, 512, 1]
    assert ds["longest_stretch_bytes"].sel(batch="extent", preempt="voluntary").values.tolist() == [
        4096, 2 * MIB, 8 * MIB
    ]  # fmt: skip
    assert (ds["longest_stretch_bytes"].sel(preempt="lazy") == 0).all()
    assert (ds["worst_nonpreemptible_ns"].sel(preempt="lazy") == 0).all()
    assert (ds["time_clear_ns"] + ds["time_fault_ns"] == ds["time_total_ns"]).all()


def test_clear_pages__by_hand() -> None:
    ds = mm.run_study("clear_pages", {"folio_order": [9, 18], "batch": ["page", "extent"]}, seed=0)
    total = ds["time_total_ns"]
    assert float(total.sel(folio_order=9, batch="page")) == pytest.approx(512 * (512 * (222.0 + 77.2) + 7936))
    assert float(total.sel(folio_order=9, batch="extent")) == pytest.approx(512 * (512 * 215.1 + 7936))
    assert float(total.sel(folio_order=18, batch="page")) == pytest.approx((1 << 18) * 222.0 + 7936)
    assert float(total.sel(folio_order=18, batch="extent")) == pytest.approx((1 << 18) * 90.0 + 7936)


def test_clear_pages__one_step_at_the_last_level_cache() -> None:
    sizes = [MIB, 8 * MIB, 31 * MIB, 32 * MIB, 1024 * MIB]
    ds = mm.run_study("clear_pages", {"batch_bytes": sizes, "folio_order": 18, "preempt": "none"}, seed=0)
    rates = ds["throughput_gib_per_s"].values
    assert rates[2] < 1.1 * rates[0]
    assert rates[3] > 2 * rates[1]
    assert rates[3] == pytest.approx(rates[4], rel=1e-3)
    assert ds["calibrated"].values.tolist() == [1, 1, 0, 0, 1]


def test_clear_pages__the_last_call_is_shorter() -> None:
    ds = mm.run_study("clear_pages", {"batch_bytes": 48 * MIB, "folio_order": 18, "preempt": "none"}, seed=0)
    assert ds["n_calls"] == 22  # 21 of 48 MiB and one of 16 MiB, which is below the step
    clear = 21 * 48 * 256 * 90.0 + 16 * 256 * 215.1
    assert float(ds["time_clear_ns"]) == pytest.approx(clear)


def test_clear_pages__machines() -> None:
    zen3 = mm.run_study("clear_pages", {"folio_order": [9, 18]}, machine="zen3", seed=0)
    assert (zen3["time_fault_ns"] == 0).all()
    assert (zen3["calibrated"] == 0).all()
    refused = mm.run_study("clear_pages", {}, machine="westmere", seed=0)
    assert refused["status"] == 1
    assert "no clear times" in refused.attrs["failures"]
    with pytest.raises(mm.InputError, match="uses no memory"):
        mm.run_study("clear_pages", memory=object())


def test_clear_pages__small_folios_are_marked() -> None:
    ds = mm.run_study("clear_pages", {"folio_order": [0, 8, 9, 18]}, seed=0)
    assert ds["calibrated"].values.tolist() == [0, 0, 1, 1]
    assert ds["time_fault_ns"].values[:2].tolist() == [0, 0]


def test_clear_rows__figures() -> None:
    rows = clear_rows()
    fitted = [row for row in rows if "7J13" in row.table]
    assert len(fitted) == 18
    assert rms_percent(fitted) < 3
    others = [row for row in rows if "other" in row.table]
    assert len(others) == 8
    assert not any(row.calibrated for row in others)
    assert max(abs(row.residual_percent) for row in others) < 20
    memset = [row for row in rows if "memset" in row.table]
    assert rms_percent(memset) < 0.1


def test_gain_rows__batches_gain_little_and_one_call_a_lot() -> None:
    rows = gain_rows()
    batches = [row for row in rows if "batches of 8 MiB" in row.label]
    whole = [row for row in rows if "whole" in row.label]
    assert len(batches) == 2
    assert all(1.01 < row.modelled < 1.06 for row in batches)
    assert len(whole) == 6
    assert all(row.modelled > 2.2 for row in whole)
    assert np.all([abs(row.residual_percent) < 20 for row in rows])
