"""The studies tlb_batch, migration and move_pages: against each other, and against published rates."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.cost.published_migration import published_migration_rates
from memmodel.errors import InputError
from memmodel.studies.copy_table import GRID, copy_table
from memmodel.studies.tlb_batch import STUDY


def test_tlb_batch__ipis_a_page():
    ds = mm.run_study("tlb_batch", {"kernel": ["6.1", "6.12.117"], "n_cpus": [1, 2, 16]}, seed=0)
    assert ds["n_ipis"].sel(kernel="6.1").values.tolist() == [0, 262144, 262144 * 15]
    assert ds["n_ipis"].sel(kernel="6.12.117").values.tolist() == [0, 512, 512 * 15]
    assert (ds["n_ptes"] == 262144).all()
    assert (
        float(ds["pages_per_s"].sel(n_cpus=16, kernel="6.12.117") / ds["pages_per_s"].sel(n_cpus=16, kernel="6.1")) > 2
    )


def test_tlb_batch__batching_costs_the_waiter():
    """One page is out of reach for its own move; one of a batch for about half of the batch's."""
    ds = mm.run_study("tlb_batch", {"batch_pages": [1, 64, 512]}, seed=0)
    assert (np.diff(ds["waiter_mean_ns"]) > 0).all()
    assert float(ds["waiter_worst_ns"][0]) == float(ds["waiter_mean_ns"][0])
    page_ns = float(ds["time_total_ns"][2]) / 262144
    assert float(ds["waiter_mean_ns"][2]) == pytest.approx(256 * page_ns, rel=0.05)


def test_tlb_batch__broadcast_needs_no_ipis():
    ds = mm.run_study("tlb_batch", {"flush_by": ["ipi", "invlpgb"], "kernel": "7.3", "folio_order": [0, 9]}, seed=0)
    assert (ds["n_ipis"].sel(flush_by="invlpgb") == 0).all()
    assert ds["n_flush_requests"].sel(flush_by="invlpgb").values.tolist() == [512, 262144]
    ds = mm.run_study("tlb_batch", {"flush_by": ["ipi", "invlpgb"]}, seed=0)
    assert ds["status"].values.tolist() == [0, 1]


def test_tlb_batch__a_call_for_each_page_gains_nothing():
    ds = mm.run_study("tlb_batch", {"kernel": ["6.1", "6.12.117"], "folios_per_call": [1, 512]}, seed=0)
    one = ds.sel(folios_per_call=1)
    assert (one["n_ipis"].sel(kernel="6.1") == one["n_ipis"].sel(kernel="6.12.117")).all()


def test_tlb_batch__lazy_cpus():
    ds = mm.run_study("tlb_batch", {"n_lazy": [0, 5, 15, 16]}, seed=0)
    assert ds["n_ipis"].values[:3].tolist() == [512 * 15, 512 * 10, 0]
    assert ds["status"].values.tolist() == [0, 0, 0, 1]
    with pytest.raises(InputError, match="uses no memory"):
        STUDY.bind({"memory": None, "machine": None})


def test_migration__the_published_sizes():
    rates = [
        r for r in published_migration_rates() if (r.table, r.impl, r.series) == ("folio_size", "page_by_page", "V3")
    ]
    orders = [(rate.folio_kib // 4).bit_length() - 1 for rate in rates]
    ds = mm.run_study("migration", {"folio_order": orders}, seed=0)
    published = np.array([rate.gb_per_s for rate in rates]) * 1e9 / 2**30
    residual = ds["throughput_gib_per_s"].values / published - 1
    assert orders == [0, 2, 4, 5, 6, 7, 8, 9]
    assert np.sqrt(np.mean(residual**2)) < 0.06


def test_migration__who_copies():
    grid = {"copier": ["cpu", "threads", "dma"], "n_copiers": [1, 16], "folio_order": [0, 9]}
    ds = mm.run_study("migration", grid, seed=0)
    huge = ds["throughput_gib_per_s"].sel(folio_order=9)
    assert float(huge.sel(copier="threads", n_copiers=16) / huge.sel(copier="threads", n_copiers=1)) > 3
    assert float(huge.sel(copier="dma", n_copiers=16)) > float(huge.sel(copier="threads", n_copiers=16))
    assert (huge.sel(copier="cpu", n_copiers=1) == huge.sel(copier="cpu", n_copiers=16)).all()
    assert (ds["calibrated"].sel(copier="dma") == 0).all()


def test_move_pages__the_16_cells_as_copied_alone():
    """One process on one CPU, THPs: no flush has a price of its own, so the algorithm must give what the copy gives."""
    ds = mm.run_study("move_pages", GRID, seed=0)
    table = copy_table()
    assert np.allclose(ds["throughput_gib_per_s"], table["throughput_gib_per_s"], rtol=1e-4)
    assert (ds["simulated"].sel(folio_order=9) == 1).all()
    assert (ds["simulated"].sel(folio_order=18) == 0).all()
    assert (ds["n_flushes"].sel(folio_order=9) == 512).all()
    assert (ds["n_flushes"].sel(folio_order=18) == 1).all()


def test_move_pages__errors_keep_pages_where_they_are():
    """Whichever worker has the point, and again in a rerun."""
    grid = {"folio_order": [0, 9], "poison_per_gib": [0.0, 10.0]}
    ds = mm.run_study("move_pages", grid, seed=1, workers=2, chunk=1)
    assert mm.rerun(ds).identical(ds)
    failed = ds["nr_failed"].sel(poison_per_gib=10.0).values
    assert (ds["nr_failed"].sel(poison_per_gib=0.0) == 0).all()
    assert 0 < failed[0] < 40
    assert failed[1] == 512 * failed[0]  # the same lines
    assert (ds["nr_succeeded"] + ds["nr_failed"] == 1 << 18).all()
    ds = mm.run_study("move_pages", {"folio_order": [9, 18], "poison_per_gib": 1.0}, seed=1)
    assert ds["status"].values.tolist() == [0, 1]
