"""The study `dmabuf`, and the published table beside it."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.jit import JIT_ENABLED
from memmodel.studies.dmabuf import OUTPUTS, pages_of
from memmodel.studies.dmabuf_table import dmabuf_table, paired

SMALL = {"size_mib": 128, "fill": 0.2, "peak": 0.3, "held": 0.2, "sizes": "1MiB,64KiB,4KiB"}
SMALL["n_allocations"] = 300 if JIT_ENABLED else 20


@pytest.fixture(scope="module")
def ds():
    grid = {"page_block_max_order": [10, 7], "page_size": ["4KiB", "16KiB"], **SMALL}
    return mm.run_study("dmabuf", grid, replicates=2, seed=3)


def test_dmabuf__counts_add_up(ds):
    assert not ds["status"].any()
    assert set(OUTPUTS) <= set(ds.data_vars)
    assert ds["pageblock_order"].isel(replicate=0).values.tolist() == [[9, 10], [7, 7]]
    assert np.array_equal(ds["n_bufs"] + ds["n_bufs_failed"], np.full(ds["n_bufs"].shape, SMALL["n_allocations"]))
    assert (ds["pcp_refills"] > 0).any()
    assert (ds["buddy_splits"] > 0).all()


def test_dmabuf__pages_are_those_of_the_sizes(ds):
    """Levels of the limit share their random numbers: the same buffers, and as many pages, however they are made."""
    pages = sum(ds[f"n_folios_order_{order}"] * 2**order for order in (8, 4, 0))
    whole = ds["n_bufs_failed"].sum("page_block_max_order") == 0
    same = pages.sel(page_block_max_order=10) == pages.sel(page_block_max_order=7)
    assert bool(same.where(whole, other=True).all())
    assert whole.any()


def test_pages_of__sizes():
    assert pages_of("8MiB, 4KiB,20000", 16384).tolist() == [512, 1, 2]
    with pytest.raises(mm.InputError, match="sizes ' , '; a list such as"):
        pages_of(" , ", 4096)
    with pytest.raises(mm.InputError, match="sizes 'big'"):
        pages_of("1MiB,big", 4096)


def test_table__the_published_mean_is_of_nine_rows():
    table = dmabuf_table()
    assert table.malformed == (10, "13,683,587,37")
    for metric, order, tolerance in (("instructions", 10, 1), ("page_faults", 10, 0.5), ("page_faults", 7, 0.5)):
        assert table.runs[metric, order].mean() == pytest.approx(table.means[metric, order], abs=tolerance)
    nine = table.runs["instructions", 7][:9]
    assert round(nine.mean()) == table.means["instructions", 7] == 13_131_974_268
    assert table.runs["instructions", 7].mean() == pytest.approx(13_187_135_578, abs=1)


@pytest.mark.parametrize(
    ("leave_out", "n", "change", "p"), [((10,), 9, -5.19, 0.049), ((), 10, -4.46, 0.068), ((1,), 9, -2.98, 0.125)]
)
def test_table__paired_tests(leave_out, n, change, p):
    row = paired(dmabuf_table(), leave_out=leave_out)
    assert (row.n, round(row.change_percent, 2), round(row.p, 3)) == (n, change, p)
    assert row.t < 0
