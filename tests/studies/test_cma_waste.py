"""Pools for drivers: what they take by page size and pageblock order."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.results.variables import PointStatus
from memmodel.studies.cma_waste import STUDY, pools

MIB, GIB = 1 << 20, 1 << 30


def point(**changes):
    return pools({parameter.name: parameter.default for parameter in STUDY.parameters} | changes)


@pytest.mark.parametrize(
    ("changes", "pool_mib", "granule_mib"),
    [
        ({"page_size": "4KiB"}, 4, 2),
        ({"page_size": "4KiB", "kernel": "6.9", "huge_pages": "thp"}, 4, 4),
        ({"page_size": "4KiB", "kernel": "6.9", "huge_pages": "hugetlb"}, 4, 2),
        ({"page_size": "4KiB", "huge_pages": "none"}, 4, 4),
        ({"page_size": "16KiB"}, 32, 32),
        ({"page_size": "16KiB", "page_block_max_order": 7}, 4, 2),
        ({"page_size": "64KiB"}, 512, 512),
        ({"page_size": "64KiB", "page_block_max_order": 5}, 4, 2),
    ],
)
def test_pools__published_pool_of_4_mib(changes, pool_mib, granule_mib):
    got = point(**changes)
    assert (got["cma_reserved_bytes"], got["cma_min_alignment_bytes"]) == (pool_mib * MIB, granule_mib * MIB)
    assert got["cma_wasted_bytes"] == (pool_mib - 4) * MIB
    assert got["non_cma_bytes"] == 4 * GIB - pool_mib * MIB


def test_pools__room_runs_out():
    got = point(page_size="64KiB", n_pools=10)
    assert (got["n_pools_refused"], got["non_cma_bytes"]) == (2, 0)
    assert got["cma_wasted_share"] == 508 / 512
    got = point(page_size="64KiB", n_pools=3, declared="device_tree")
    assert (got["n_pools_refused"], got["cma_reserved_bytes"], got["cma_wasted_share"]) == (3, 0, 0)
    got = point(page_size="64KiB", pool_kib=512 << 10, declared="device_tree")
    assert (got["n_pools_refused"], got["cma_wasted_bytes"]) == (0, 0)


def test_study__sweeps():
    ds = mm.run_study(
        "cma_waste", {"page_size": ["4KiB", "16KiB", "64KiB"], "page_block_max_order": [0, 7, 12]}, seed=1
    )
    reserved = ds["cma_reserved_bytes"].values / MIB
    assert np.array_equal(reserved, [[4, 4, np.nan], [32, 4, np.nan], [512, 8, 256]], equal_nan=True)
    assert (ds["status"].values == PointStatus.REFUSED_INPUT).tolist() == np.isnan(reserved).tolist()
