"""The study folio_copy: its counts against real copies, its times against the source's arithmetic."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.studies.copy_table import copy_table, fit_of
from tests.reference.views import plain_memory

GRID = {
    "folio_order": [0, 4, 9],
    "batch": ["page", "extent"],
    "preempt": ["none", "full"],
    "engine": ["fragile", "powerpc", "memcpy"],
    "poison_per_gib": [0.0, 4000.0],
}


def test_folio_copy__counts_of_clean_gib() -> None:
    ds = mm.run_study(
        "folio_copy", {"folio_order": [0, 9, 18], "batch": ["page", "extent"], "preempt": ["none", "full"]}
    )
    pages = 1 << 18
    assert ds["folios_moved"].sel(batch="page", preempt="none").values.tolist() == [pages, 512, 1]
    assert (ds["bytes_moved"] == 1 << 30).all()
    assert (ds["n_calls"].sel(batch="page") == pages).all()
    assert ds["n_calls"].sel(batch="extent", preempt="none").values.tolist() == [pages, 512, 32]
    assert ds["n_calls"].sel(batch="extent", preempt="full").values.tolist() == [pages, 512, 1]
    assert ds["n_resched"].sel(batch="page", preempt="none").values.tolist() == [0, 512 * 511, pages - 1]
    assert ds["n_resched"].sel(batch="extent", preempt="none").values.tolist() == [0, 0, 31]
    assert ds["longest_stretch_bytes"].sel(batch="extent", preempt="none").values.tolist() == [4096, 2 << 20, 32 << 20]
    assert (ds["longest_stretch_bytes"].sel(preempt="full") == 0).all()
    assert (ds["worst_nonpreemptible_ns"].sel(preempt="full") == 0).all()


def test_folio_copy__counts_equal_copies_in_a_memory() -> None:
    """The counts from error places alone are those that copies in a memory give, folio by folio."""
    mem = plain_memory(mm.Geometry(arch="generic"), "64MiB", seed=0)
    n_folios = 32
    src, dst = (mm.alloc_pages(mem, order=8, count=n_folios) for _ in range(2))
    first = mem.pfn(src)
    assert (np.diff(first) == 256).all()
    rng = np.random.default_rng(5)
    lines = np.unique(rng.integers(0, n_folios * 256 * 64, 20))
    mm.inject_poison(mem, pfn=first[0] + lines // 64, line=lines % 64)

    for batch in ("page", "extent"):
        for preempt in ("none", "full"):
            for engine in ("fragile", "memcpy"):
                from memmodel.kernels.copying import count_points
                from memmodel.mechanisms.copying import copy_rule
                from memmodel.studies.copy_counts import POINT, _totals

                out = mm.folio_mc_copy(mem, dst, src, batch=batch, preempt=preempt, engine=engine)
                rule = copy_rule(mem.geometry, batch, preempt, engine)
                point = np.zeros(1, POINT)
                point[0] = (*rule, 256, 12, n_folios, 4)
                bad, where = np.unique(lines // (256 * 64), return_index=True)
                errors = (lines[where] % (256 * 64) * 64).astype(np.uint64)
                totals = np.zeros((1, 8), np.int64)
                count_points(point.view(np.recarray), np.array([0, bad.size]), bad, errors, totals)
                assert totals[0].tolist() == _totals(out, 20, 4), (batch, preempt, engine)


def test_folio_copy__errors_are_shared_by_compared_levels() -> None:
    ds = mm.run_study("folio_copy", GRID, seed=7, replicates=2)
    n_errors = ds["n_errors"].sel(poison_per_gib=4000.0)
    assert (n_errors == n_errors.isel(folio_order=0, batch=0, preempt=0, engine=0)).all()
    assert len(np.unique(n_errors.values)) == 2  # one number a replicate
    assert (ds["n_errors"].sel(poison_per_gib=0.0) == 0).all()


def test_folio_copy__failures() -> None:
    ds = mm.run_study("folio_copy", GRID, seed=7).sel(poison_per_gib=4000.0)
    recovered = ds.sel(engine=["fragile", "powerpc"])
    # 4000 lines in 2**18 pages: nearly each hits a page of its own, and every THP has some
    assert (abs(recovered["folios_failed"].sel(folio_order=0) - 3970) < 250).all()
    assert (recovered["folios_failed"].sel(folio_order=9) > 505).all()
    assert (recovered["panicked"] == 0).all()
    assert (ds["panicked"].sel(engine="memcpy") == 1).all()
    assert (ds["folios_failed"].sel(engine="memcpy") == 0).all()
    assert (ds["folios_moved"].sel(engine="memcpy", folio_order=0) < 2000).all()


def test_folio_copy__queue_drops_only_behind_a_late_worker() -> None:
    ds = mm.run_study(
        "folio_copy", {"drain_folios": [1, 16, 1 << 20], "folio_order": 0, "poison_per_gib": 1000}, seed=3
    )
    dropped = ds["queue_dropped"].values
    assert dropped[0] == dropped[1] == 0
    assert dropped[2] == ds["folios_failed"].values[2] - 16


def test_folio_copy__refuses_a_folio_larger_than_the_gib() -> None:
    ds = mm.run_study("folio_copy", {"folio_order": [14, 15], "page_size": "64KiB"})
    assert ds["status"].values.tolist() == [0, 1]
    assert np.isnan(ds["throughput_gib_per_s"].values[1])
    assert "folio_order 15" in ds.attrs["failures"]


def test_folio_copy__from_a_memory() -> None:
    mem = plain_memory(mm.Geometry(arch="generic"), "64MiB", seed=0)
    before = mem.to_procfs()
    ds = mm.run_study("folio_copy", {"folio_order": [0, 9, 11], "poison_per_gib": [0, 2000.0]}, memory=mem, seed=1)
    clean = ds.sel(poison_per_gib=0)
    assert clean["folios_moved"].values[:2].tolist() == [8192, 16]
    assert clean["alloc_failed"].values[:2].tolist() == [(1 << 18) - 8192, 512 - 16]
    assert ds["status"].sel(folio_order=11).values.tolist() == [1, 1]
    assert (ds["folios_failed"].sel(poison_per_gib=2000).values[:2] > 5).all()
    assert mem.to_procfs() == before
    with pytest.raises(mm.InputError, match="memory is a str"):
        mm.run_study("folio_copy", memory="folder")


def test_folio_copy__a_memory_keeps_what_its_watermarks_say() -> None:
    mem = mm.PhysicalMemory(mm.Geometry(), size="64MiB", seed=0)
    ds = mm.run_study("folio_copy", {"folio_order": [0, 9]}, memory=mem, seed=1)
    for order, moved in zip((0, 9), ds["folios_moved"].values, strict=True):
        folios = mm.alloc_pages(mem.copy(), order, 1 << 14)
        given = int((folios != -1).sum())
        assert 0 < moved == given // 2 < 1 << (13 - order)


def test_folio_copy__memory_of_another_page_size() -> None:
    mem = mm.PhysicalMemory(mm.Geometry(page_size="16KiB"), size="64MiB", seed=0)
    ds = mm.run_study("folio_copy", {"page_size": ["4KiB", "16KiB"], "folio_order": 2}, memory=mem)
    assert ds["status"].values.tolist() == [1, 0]


def test_copy_table__meets_the_published_cells() -> None:
    ds = copy_table()
    fit = fit_of(ds)
    assert fit.n_cells == 15
    assert fit.rms_percent <= 3.0
    assert fit.worst_percent <= 7.0
    assert ds["published_throughput_gib_per_s"].sel(direction="D0-CXL", folio_order=18, batch="extent") == 44.10
    assert ds["cell_used"].sel(direction="D1-D0", folio_order=18, batch="page") == 0
    assert (ds["calibrated"] == 1).all()


def test_folio_copy__small_folios_are_marked_as_extrapolated() -> None:
    ds = mm.run_study("folio_copy", {"folio_order": [0, 8, 9, 18]})
    assert ds["calibrated"].values.tolist() == [0, 0, 1, 1]


def test_rerun__refuses_another_memory() -> None:
    mem = mm.PhysicalMemory(mm.Geometry(), size="64MiB", seed=0)
    ds = mm.run_study("folio_copy", {"folio_order": [0, 9]}, memory=mem, seed=1)
    assert mm.rerun(ds, memory=mem).identical(ds)
    with pytest.raises(mm.InputError, match="give memory="):
        mm.rerun(ds, memory=mm.PhysicalMemory(mm.Geometry(), size="128MiB", seed=0))
    mm.alloc_pages(mem, count=1)
    with pytest.raises(mm.InputError, match="give memory="):
        mm.rerun(ds, memory=mem)


def test_folio_copy__errors_of_a_memory_are_those_of_the_sources() -> None:
    mem = plain_memory(mm.Geometry(arch="generic"), "256MiB", seed=0)
    ds = mm.run_study("folio_copy", {"poison_per_gib": 80.0, "folio_order": 9}, memory=mem, seed=1, replicates=20)
    assert (ds["folios_moved"] + ds["folios_failed"] == 64).all()
    assert 5 < float(ds["n_errors"].mean()) < 15  # 128 MiB of sources


def test_folio_copy__prices_that_nobody_measured_are_marked() -> None:
    grid = {"engine": ["fast_string", "fragile", "memcpy"], "page_size": ["4KiB", "16KiB"]}
    assert mm.run_study("folio_copy", grid)["calibrated"].values.tolist() == [[1, 0], [0, 0], [0, 0]]
