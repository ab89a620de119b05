"""The studies thp_success and compaction: pairing, bounds, what compaction brings, and the counters between them."""

import numpy as np
import pytest
import xarray as xr

import memmodel as mm
from memmodel.cost.machines import load_machine
from memmodel.cost.model import CopyCounts, price
from memmodel.report.thp_success import interval, paired_difference, plot_thp_success

SMALL = {"size_mib": 64, "churn": 1.0}


@pytest.fixture(scope="module")
def ds():
    grid = {"page_block_max_order": [3, 9], "unmovable": [0.0, 0.3], "fragmenter": ["kernel", "holes"]}
    return mm.run_study("thp_success", {**grid, **SMALL}, replicates=3, seed=1, progress=False)


def test_thp_success__bounds(ds):
    share, light, bound = (ds[name] for name in ("thp_compact_share", "thp_light_share", "thp_bound_share"))
    assert bool(((share >= 0) & (share <= 1)).all())
    assert bool((share <= bound + 1e-9).all())  # no more than places without unmovable pages
    assert float((share - light).mean()) > 0.05  # compaction brings some
    assert bool((ds["pageblock_order"].sel(page_block_max_order=3) == 3).all())
    assert bool((ds["thp_order"] == 9).all())


def test_thp_success__unmovable_pages_cost_huge_pages(ds):
    spread = ds["thp_compact_share"].sel(fragmenter="holes").mean("replicate")
    assert bool((spread.sel(unmovable=0.0) > spread.sel(unmovable=0.3) + 0.1).all())
    assert float(ds["mixed_share"].sel(unmovable=0.0).max()) == 0


def test_thp_success__isolates_two_pages_for_each_that_moves(ds):
    ratio = ds["isolated_per_migrated"].where(ds["pgmigrate_success"] > 1000)
    assert 1.95 < float(ratio.mean()) < 2.2


def test_thp_success__replicates_share_their_load():
    """The kernel's configuration is no part of the load: a machine without pageblock effects has the same points."""
    grid = {"page_block_max_order": [9, 10], **SMALL}  # both come to order 9
    ds = mm.run_study("thp_success", grid, replicates=2, seed=3, progress=False)
    for name, array in ds.data_vars.items():
        if name != "status":
            np.testing.assert_array_equal(array.isel(page_block_max_order=0), array.isel(page_block_max_order=1))
    assert not bool(
        (ds["compact_migrate_scanned"].isel(replicate=0) == ds["compact_migrate_scanned"].isel(replicate=1)).all()
    )


@pytest.mark.parametrize("page_size", ["4KiB", "16KiB"])
@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
def test_thp_success__page_sizes_and_kernels(page_size, kernel):
    settings = {"page_size": page_size, "kernel": kernel, "size_mib": 256, "churn": 0.2, "fill": 0.5}
    ds = mm.run_study("thp_success", settings, seed=0, progress=False)
    assert int(ds["status"]) == 0
    assert int(ds["thp_order"]) == {"4KiB": 9, "16KiB": 11}[page_size]
    assert int(ds["compact_stall"]) > 0


def test_compaction__what_each_does():
    how = ["compact_memory", "kcompactd", "async", "sync_light"]
    settings = {"how": how, "size_mib": 256, "churn": 1.0, "unmovable": 0.05}
    ds = mm.run_study("compaction", settings, replicates=2, seed=5, progress=False)
    assert bool((ds["huge_blocks_before"] == ds["huge_blocks_before"].isel(how=0)).all())  # the same load
    whole = ds.sel(how="compact_memory")
    assert float(whole["huge_blocks_after"].sum()) > float(whole["huge_blocks_before"].sum()) + 10
    assert bool((whole["compact_migrate_scanned"] >= ds["compact_migrate_scanned"]).all())
    assert bool((ds["compaction_cost"] >= 0).all())
    moved = ds["pgmigrate_success"] > 500
    assert bool((ds["isolated_per_migrated"].where(moved) < 2.5).where(moved, True).all())


def test_compaction__time_of_the_migrations():
    """By the machine's prices: a page is unmapped, copied and mapped again, and flushed on the CPU that compacts."""
    settings = {"size_mib": 128, "churn": 0.5, "unmovable": [0.05, 0.3]}
    ds = mm.run_study("compaction", settings, seed=5, progress=False)
    time, machine = ds["time_migrations_ns"], load_machine("zen3-32c")
    assert (time.attrs["units"], time.attrs["long_name"]) == ("ns", "time of compaction's migrations")
    assert "scanning is not priced" in time.attrs["comment"]
    phases = ("call", "unmap", "flush", "copy", "remap", "folio_overhead")
    np.testing.assert_allclose(sum(ds[f"time_{phase}_ns"] for phase in phases), time)
    moved = ds["pgmigrate_success"]
    assert bool((moved > 500).all())
    np.testing.assert_allclose(ds["time_remap_ns"], moved * machine.migration.remap_pte.value)
    counts = CopyCounts(moved * 4096, 4096, moved, moved, 0)
    np.testing.assert_allclose(ds["time_copy_ns"], price(counts, machine).copy_ns)
    calls = ds["time_call_ns"] / machine.migration.call.value
    assert bool((calls == calls.round()).all())
    assert bool((calls >= moved / 2 ** ds["pageblock_order"]).all())  # no list is longer
    other = mm.run_study("compaction", settings, seed=5, machine="arm64-128c", progress=False)
    assert bool((other["pgmigrate_success"] == moved).all())
    assert bool((other["time_migrations_ns"] > time).all())
    none = mm.run_study("compaction", {"how": "kcompactd", "size_mib": 64, "fill": 0.0}, seed=5, progress=False)
    assert (float(none["pgmigrate_success"]), float(none["time_migrations_ns"])) == (0, 0)


def test_interval__of_known_numbers():
    array = xr.DataArray([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]], dims=("x", "replicate"))
    found = interval(array)
    np.testing.assert_allclose(found.mean, [2, 5])
    np.testing.assert_allclose(found.half, [4.302653 / np.sqrt(3), 0], rtol=1e-6)  # t(0.975, 2)
    change = paired_difference(array.assign_coords(x=[7, 9]), "x", 9)
    np.testing.assert_allclose(change.mean, [-3, 0])
    with pytest.raises(mm.InputError, match="no x 8 to compare with"):
        paired_difference(array.assign_coords(x=[7, 9]), "x", 8)
    with pytest.raises(mm.InputError, match="replicates"):
        interval(array.isel(replicate=0))


def test_plot(ds, tmp_path):
    plot_thp_success(ds.sel(fragmenter="kernel"), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(mm.InputError, match="page_block_max_order, unmovable and replicate"):
        plot_thp_success(ds, tmp_path / "q.png")
    assert not (tmp_path / "q.png").exists()
