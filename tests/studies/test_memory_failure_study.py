"""The study memory_failure: what errors take, by what is done about them."""

import numpy as np

import memmodel as mm

SMALL = {"memory_gib": 0.25, "errors_per_gib": 200.0}


def run(**grid):
    return mm.run_study("memory_failure", {**SMALL, **grid}, seed=3)


def test_memory_failure__the_same_errors_by_policy():
    ds = run(policy=["late_kill", "early_kill", "soft_offline"])
    assert (ds["n_errors"] == ds["n_errors"][0]).all()
    assert (ds["pages_lost"] == ds["pages_lost"][0]).all()
    assert ds["tasks_signalled"].values.tolist()[0] == 0
    assert float(ds["tasks_signalled"].sel(policy="early_kill")) == float(ds["tasks_hit"].sel(policy="early_kill")) > 10
    soft = ds.sel(policy="soft_offline")
    assert (float(soft["tasks_hit"]), float(soft["pages_with_data_lost"]), float(soft["n_failed"])) == (0, 0, 0)


def test_memory_failure__by_backing():
    ds = run(backing=["anon", "shmem", "file", "hugetlb"])
    data = ds["pages_with_data_lost"].values
    assert data[2] == 0  # clean: read again from the file
    assert 0 < data[0] == data[1] < ds["pages_lost"][0]
    assert data[3] % 512 == 0
    assert data[3] > 50 * data[0]
    assert ds["pages_lost"].values.tolist() == [ds["pages_lost"].values[0]] * 4
    assert (ds["n_recovered"] + ds["n_failed"] + ds["n_ignored"] == ds["pages_lost"]).all()


def test_memory_failure__blocks():
    ds = run(folio_order=[0, 9], errors_per_gib=[0.0, 200.0])
    assert (ds.sel(errors_per_gib=0.0).drop_vars("status").to_array() == 0).all()
    hit = ds.sel(errors_per_gib=200.0)
    assert (hit["pages_lost"] == hit["pages_lost"][0]).all()  # THPs are split: one page is lost
    assert (hit["blocks_2mib_lost"] <= hit["pages_lost"]).all()
    assert (hit["blocks_1gib_lost"] == 1).all()


def test_memory_failure__reruns():
    ds = run(policy=["late_kill", "soft_offline"], kernel=["6.1", "7.3"])
    assert mm.rerun(ds).identical(ds)
    assert np.isfinite(ds["n_recovered"]).all()
