"""The study demotion: against the closed form and the published table."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.cost.machines import load_machine, machine_from_dict
from memmodel.studies.comparison import rms_percent
from memmodel.studies.demotion_table import demotion_rows


def test_demotion__direct_share_falls_where_the_rates_cross() -> None:
    ds = mm.run_study("demotion", {"batch": ["page", "extent"]}, replicates=5, seed=0)
    base, patched = (ds["direct_share"].sel(batch=batch).median() for batch in ("page", "extent"))
    assert float(base) > 0.15
    assert float(base / patched) > 20
    faster = mm.run_study("demotion", {"batch": ["page", "extent"], "write_gib_per_s": 22.0}, seed=0)
    assert (faster["direct_share"].sel(batch="extent") == 0).all()
    assert np.isnan(faster["time_to_first_stall_ns"].sel(batch="extent")).all()


def test_demotion__agrees_with_the_fluid_over_a_grid() -> None:
    grid = {"write_gib_per_s": [18.0, 20.0, 22.0, 24.0, 30.0, 40.0], "batch": ["page", "extent"]}
    ds = mm.run_study("demotion", grid, seed=3)
    demoted = (ds["pgdemote_kswapd"] + ds["pgdemote_direct"]) / 512
    bound = (4194 / 512 + 2) / demoted + 4 * 0.1 / np.sqrt(demoted)
    assert (abs(ds["direct_share"] - ds["direct_share_fluid"]) <= bound).all()


def test_demotion__steady_share_does_not_hang_on_the_watermarks() -> None:
    grid = {"watermark_scale_factor": [10, 50, 200], "batch": "page"}
    ds = mm.run_study("demotion", grid, seed=0)
    assert float(ds["direct_share"].max() - ds["direct_share"].min()) < 0.01
    assert (np.diff(ds["time_to_first_stall_ns"].values) > 0).all()


def test_demotion__one_thp_a_stall() -> None:
    ds = mm.run_study("demotion", {"write_gib_per_s": [20.0, 25.0]}, seed=0)
    assert (ds["pgdemote_direct"] == 512 * ds["allocstall"]).all()
    assert (ds["time_stalled_ns"] > 0.9 * ds["allocstall"] * 100_000).all()
    assert (ds["calibrated"] == 1).all()


def test_demotion__levels_share_their_random_times() -> None:
    ds = mm.run_study("demotion", {"batch": ["page", "extent"], "spread": [0.0, 0.3]}, seed=5, replicates=2)
    wake = ds["time_total_ns"] - ds["time_stalled_ns"]  # the writer's own time: the same draws whatever the batch
    assert (wake.sel(batch="page") == wake.sel(batch="extent")).all()
    assert (wake.sel(spread=0.3, replicate=0) != wake.sel(spread=0.3, replicate=1)).all()
    assert (wake.sel(spread=0.0, replicate=0) == wake.sel(spread=0.0, replicate=1)).all()


def test_demotion__workers_change_no_byte() -> None:
    grid = {"write_gib_per_s": [20.0, 22.5, 25.0], "batch": ["page", "extent"]}
    one, two = (mm.run_study("demotion", grid, seed=1, replicates=3, workers=n, chunk=2) for n in (1, 2))
    assert one.identical(two)
    assert mm.rerun(one).identical(one)


def test_demotion__other_machines_and_directions() -> None:
    ds = mm.run_study("demotion", {"direction": ["D0-CXL", "CXL-D0"], "batch": "page"}, seed=0)
    assert float(ds["kswapd_ms_per_gib"].sel(direction="CXL-D0")) > float(
        ds["kswapd_ms_per_gib"].sel(direction="D0-CXL")
    )
    refused = mm.run_study("demotion", {"batch": "page"}, machine="zen5-cxl", seed=0)
    assert refused["status"] == 1
    assert "no migration part" in refused.attrs["failures"]
    with pytest.raises(mm.InputError, match="uses no memory"):
        mm.run_study("demotion", memory=object())


def test_demotion__refuses_a_node_without_room() -> None:
    ds = mm.run_study("demotion", {"node_gib": [0.004, 1.0], "watermark_scale_factor": 3000}, seed=0)
    assert ds["status"].values.tolist() == [1, 0]
    assert "two THPs above its high watermark" in ds.attrs["failures"]


def test_demotion_rows__figures() -> None:
    rows = {row.label: row for row in demotion_rows()}
    assert len(rows) == 15
    for kernel in ("base", "patched"):
        assert abs(rows[f"{kernel}, kswapd CPU a GB"].residual_percent) <= 3
        assert abs(rows[f"{kernel}, kswapd CPU"].residual_percent) <= 5
        assert not rows[f"{kernel}, kswapd CPU"].calibrated
    assert rows["base over patched, share of direct reclaim"].modelled > 20
    assert abs(rows["base, allocstall"].residual_percent) < 15
    assert rows["patched, allocstall"].residual_percent < -40  # the known miss
    assert abs(rows["1 GB pages promoted, GUPS"].residual_percent) < 3
    assert rows["1 GB pages demoted, GUPS"].residual_percent > 40  # beside the load both take the same memory


def test_demotion_rows__a_machine_without_contention_misses_kswapds_time() -> None:
    table = load_machine("zen6-cxl").as_dict()
    table["migration"]["reclaim_slowdown"]["value"] = 1.0
    rows = demotion_rows(machine_from_dict("mine", table, "test"))
    assert rms_percent(row for row in rows if "CPU a GB" in row.label) > 10
