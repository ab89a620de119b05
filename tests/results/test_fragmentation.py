from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.memory import PhysicalMemory
from memmodel.results.dataset import provenance
from memmodel.results.fragmentation import extfrag_for_order, fragmentation_index, proactive_score, unusable_free_index
from memmodel.results.zones import zone_dataset
from memmodel.sources.records import Snapshot, ZoneSnapshot
from memmodel.state import fragmentation as kernel

# Linux 6.12.117, x86-64, 256 MiB; the second zone's pages are counted once more as another node's.
DMA = [1, 0, 0, 0, 0, 2, 1, 1, 0, 0, 1]
DMA32 = [2029, 48, 0, 2, 1, 2, 1, 3, 2, 1, 0]
PRESENT = [3998, 61405, 61405]
LABELS = ["0:DMA", "0:DMA32", "1:DMA32"]
MEASURES = (unusable_free_index, fragmentation_index, extfrag_for_order)


def snapshot(present=PRESENT, **changes):
    rows = zip([(0, "DMA"), (0, "DMA32"), (1, "DMA32")], [DMA, DMA32, DMA32], present, strict=True)
    zones = [
        ZoneSnapshot(node=node, name=name, nr_free=np.array(nr_free), present_pages=pages)
        for (node, name), nr_free, pages in rows
    ]
    given = {"page_size_bytes": 4096, "files": {"/some/where/buddyinfo": "ab12"}} | changes
    return Snapshot(zones={zone.key: zone for zone in zones}, **given)


def array(**coords):
    return xr.DataArray([DMA, DMA32, DMA32], {"zone": LABELS, "order": range(11), **coords}, ("zone", "order"))


PLACED = array(present_pages=("zone", PRESENT))


def memory():
    zones = np.zeros(3, [("node", "u8"), ("present", "u8")])
    zones["present"] = PRESENT
    return SimpleNamespace(buddyinfo=array, state=SimpleNamespace(zones=zones), geometry=Geometry())


def test_indices__values_and_labels():
    unusable = unusable_free_index(snapshot())
    assert unusable.dims == ("zone", "order")
    assert unusable.sel(zone="0:DMA").values.tolist() == [0] * 6 + [50, 100, 200, 200, 200]  # as the kernel printed
    assert unusable.sel(zone="0:DMA32").values.tolist() == [0, 549, 575, 575, 579, 584, 601, 618, 722, 861, 1000]
    assert fragmentation_index(snapshot()).sel(zone="0:DMA32").values.tolist() == [-1000] * 10 + [998]
    assert extfrag_for_order(snapshot()).sel(zone="0:DMA32", order=9) == 86
    for measure, units in zip(MEASURES, ("1e-3", "1e-3", "percent"), strict=True):
        found = measure(snapshot())
        assert found.dtype == np.int64
        assert found.name == measure.__name__
        assert found.attrs["units"] == units
        assert found.attrs["long_name"]
        assert "integers" in found.attrs["comment"]


def test_indices__the_same_from_every_source():
    for measure in MEASURES:
        expected = measure(snapshot())
        for source in (memory(), array(), array().transpose("order", "zone").astype(float)):
            xr.testing.assert_identical(measure(source), expected)


def test_indices__counts_over_time():
    times = xr.concat([array(), array() * 2, array() * 0], "time").assign_coords(time=[10, 20, 30])
    found = fragmentation_index(times.transpose("order", "zone", "time"))
    assert found.dims == ("zone", "time", "order")
    assert found.sel(time=30).values.tolist() == [[0] * 11] * 3
    assert (
        found.sel(time=20, zone="0:DMA32").values.tolist()
        == kernel.fragmentation_index([2 * n for n in DMA32]).tolist()
    )
    alone = extfrag_for_order(xr.DataArray(DMA32, dims="order"))
    assert alone.values.tolist() == kernel.extfrag_for_order(DMA32).tolist()
    assert alone["order"].values.tolist() == list(range(11))


@pytest.mark.parametrize("order", [None, 4])
def test_proactive_score__the_same_from_every_source(order):
    # order 9: DMA has 20, DMA32 86; node 0 is 3998 * 20 // 65404 + 61405 * 86 // 65404
    at = order or 9
    for source in (snapshot(), memory(), PLACED):
        ds = proactive_score(source, at if source is PLACED else order)
        zones = kernel.fragmentation_score_zone([DMA, DMA32, DMA32], at)
        assert ds["fragmentation_score_zone"].values.tolist() == zones.tolist()
        shares = [PRESENT[0] * zones[0] // 65404, PRESENT[1] * zones[1] // 65404, PRESENT[2] * zones[2] // 61406]
        assert ds["fragmentation_score_zone_weighted"].values.tolist() == shares
        assert ds["fragmentation_score_node"].sel(node=0) == shares[0] + shares[1]
        assert ds["fragmentation_score_node"].sel(node=1) == shares[2]
        assert ds["zone"].values.tolist() == LABELS
        assert ds["present_pages"].values.tolist() == PRESENT
        assert all(ds[name].attrs["units"] == "percent" for name in ds.data_vars)
    if order is None:
        assert ds["fragmentation_score_zone"].values.tolist() == [20, 86, 86]
        assert ds["fragmentation_score_node"].values.tolist() == [1 + 80, 85]


def test_proactive_score__says_where_its_order_is_from():
    assert proactive_score(snapshot()).attrs["order_from"] == "order 9: taken from x86_64 with pages of 4 KiB"
    arm64 = proactive_score(snapshot(page_size_bytes=16384))
    assert arm64.attrs["order_from"] == "order 11: taken from arm64 with pages of 16 KiB"
    assert arm64["fragmentation_score_zone"].values.tolist() == [100] * 3  # no block is as large
    assert proactive_score(memory()).attrs["order_from"] == "order 9: of the memory's geometry"
    given = proactive_score(snapshot(), 4)
    assert given.attrs["order_from"] == "order 4: given"
    assert provenance(given)["inputs"] == [{"file": "buddyinfo", "sha256": "ab12"}]
    assert provenance(given)["order"] == 4


def test_proactive_score__counts_over_time():
    times = xr.concat([array(), array() * 0], "time").assign_coords(time=[10, 20], present_pages=("zone", PRESENT))
    ds = proactive_score(times.transpose("order", "time", "zone"), 9)
    assert ds["fragmentation_score_node"].dims == ("time", "node")
    assert ds["fragmentation_score_node"].values.tolist() == [[81, 85], [0, 0]]
    assert ds["time"].values.tolist() == [10, 20]
    assert "order" not in ds.coords


def test_measures__of_a_memory():
    mem = PhysicalMemory(Geometry(), "64MiB", nodes=2, seed=1)
    for measure in (unusable_free_index, extfrag_for_order):
        assert measure(mem).dims == ("zone", "order")
        assert not measure(mem).any()
    assert (fragmentation_index(mem) == -1000).all()
    ds = proactive_score(mem)
    assert ds["node"].values.tolist() == [0, 1]
    assert not ds["fragmentation_score_node"].any()
    assert ds["present_pages"].sum() == (64 << 20) // 4096


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"buddyinfo": 1}, "a dict has no free blocks"),
        (snapshot().zones, "has no free blocks"),
        (xr.DataArray([1, 2], dims="zone"), "free blocks over zone; one has to be order"),
        (xr.DataArray(1), "free blocks over no dimension"),
        (array().isel(order=slice(3, None)), r"free blocks of orders \[3, 4"),
        (-PLACED, "nr_free has -1"),
        (PLACED / 2, "nr_free has 0.5"),
        (zone_dataset(snapshot())["nr_free"].where(False).assign_coords(PLACED.coords), "nr_free has nan"),
        (Snapshot(zones={}), "the snapshot has no zone"),
        (Snapshot(zones={(0, "DMA"): ZoneSnapshot(node=0, name="DMA", free_pages=7)}), "Node 0, zone DMA: no file"),
    ],
)
def test_measures__refused(source, message):
    for measure in (*MEASURES, lambda source: proactive_score(source, 9)):
        with pytest.raises(InputError, match=message) as refusal:
            measure(source)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("source", "order", "message"),
    [
        (snapshot([3998, None, 61405]), 9, "Node 0, zone DMA32: no file gives its present pages"),
        (snapshot(page_size_bytes=None), None, "the order of a PMD is not known here"),
        (PLACED, None, "the order of a PMD is not known here"),
        (array(), 9, "give them as a coordinate present_pages"),
        (array(present_pages=61405), 9, "give them as a coordinate present_pages"),
        (array(present_pages=("zone", [1, -1, 1])), 9, "present_pages has -1"),
        (array().assign_coords(zone=["DMA", "a:b", ""]), 9, "zone 'DMA': the label of a zone"),
        (array().drop_vars("zone"), 9, "dimension zone with labels"),
        (array().isel(zone=0), 9, "dimension zone with labels"),
        (array().expand_dims("node"), 9, "dimension zone with labels"),
        (snapshot(), -1, "order has -1"),
        (snapshot(), "PMD", "order is of type"),
        (snapshot(), [9, 10], "one order of a PMD"),
    ],
)
def test_proactive_score__refused(source, order, message):
    with pytest.raises(InputError, match=message) as refusal:
        proactive_score(source, order)
    assert "\n" not in str(refusal.value)
