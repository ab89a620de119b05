import numpy as np
import pytest

from memmodel.errors import InputError
from memmodel.results.zones import file_digests, zone_dataset, zone_rows
from memmodel.sources.records import Snapshot, ZoneSnapshot

# Zone Normal of a real desktop: order-10 requests fail for fragmentation.
NR_FREE = np.array([5, 3, 0, 2, 0, 0, 0, 0, 0, 0, 0])


def snapshot(**changes):
    zones = (
        ZoneSnapshot(node=0, name="DMA", free_pages=17, managed_pages=3840),
        ZoneSnapshot(node=0, name="Normal", nr_free=NR_FREE, managed_pages=1000),
        ZoneSnapshot(node=1, name="Normal", nr_free=np.zeros(11, np.int64)),
    )
    given = {"page_size_bytes": 4096, "pageblock_order": 9, "files": {"/some/where/buddyinfo": "ab12"}}
    return Snapshot(zones={zone.key: zone for zone in zones}, **given | changes)


def test_zone_rows__counts_and_indices():
    dma, normal, empty = zone_rows(snapshot())
    free_pages = 5 + 3 * 2 + 2 * 8
    assert (normal["node"], normal["zone"], normal["free_pages"]) == (0, "Normal", free_pages)
    assert normal["free_bytes"] == free_pages * 4096
    assert normal["largest_order"] == 3
    assert normal["nr_free"] == NR_FREE.tolist()
    assert normal["managed_pages"] == 1000
    assert normal["extfrag_index"][3] == -1.0
    assert normal["extfrag_index"][9] == 0.895  # 1000 - (1000 + 27000 // 512) // 10
    assert normal["unusable_index"] == [0.0, 0.185, 0.407, 0.407, *[1.0] * 7]
    assert dma["nr_free"] is None
    assert dma["extfrag_index"] is None
    assert dma["free_bytes"] == 17 * 4096
    assert empty["largest_order"] is None
    assert empty["free_pages"] == 0


def test_zone_rows__unknown_page_size():
    assert [row["free_bytes"] for row in zone_rows(snapshot(page_size_bytes=None))] == [None] * 3


def test_zone_dataset__nan_where_no_file_says():
    ds = zone_dataset(snapshot())
    assert ds["zone"].values.tolist() == ["0:DMA", "0:Normal", "1:Normal"]
    assert ds["nr_free"].sel(zone="0:Normal").values.tolist() == NR_FREE.tolist()
    assert np.isnan(ds["nr_free"].sel(zone="0:DMA")).all()
    assert np.isnan(ds["largest_order"].sel(zone="1:Normal"))
    assert ds["largest_order"].sel(zone="0:Normal") == 3
    assert '"inputs": [{"file": "buddyinfo", "sha256": "ab12"}]' in ds.attrs["provenance"]
    assert all(values.attrs["units"] and values.attrs["long_name"] for values in ds.variables.values())


def test_zone_dataset__no_free_lists():
    zone = ZoneSnapshot(node=0, name="DMA", free_pages=17)
    with pytest.raises(InputError, match="buddyinfo or pagetypeinfo"):
        zone_dataset(Snapshot(zones={zone.key: zone}))


def test_file_digests__of_anything():
    assert file_digests(object()) == []
