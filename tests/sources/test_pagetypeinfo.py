from pathlib import Path

import numpy as np
import pytest

from memmodel.errors import InputError
from memmodel.sources.pagetypeinfo import format_pagetypeinfo, parse_pagetypeinfo
from memmodel.sources.records import MIGRATE_CMA, MIGRATE_ISOLATE, MIGRATE_MOVABLE

DATA = Path(__file__).parents[1] / "data"
TEXT = (DATA / "snap_612_x86" / "pagetypeinfo").read_text()


def rewrite(text):
    info = parse_pagetypeinfo(text, "pagetypeinfo")
    free = {key: zone.type_free for key, zone in info.zones.items()}
    return format_pagetypeinfo(
        info.pageblock_order, free, {key: zone.type_blocks for key, zone in info.zones.items()}, info.migratetypes
    )


def test_parse_pagetypeinfo__counts_by_type():
    info = parse_pagetypeinfo(TEXT, "pagetypeinfo")
    assert info.pageblock_order == 9
    assert info.migratetypes == (0, 1, 2, 3, 4, 5)
    zone = info.zones[0, "DMA32"]
    assert zone.type_free[MIGRATE_MOVABLE].tolist() == [7401, 1, 1, 1, 0, 0, 0, 0, 0, 0, 2]
    assert zone.type_blocks.tolist() == [24, 94, 2, 0, 0, 0]
    assert not zone.type_free_capped.any()
    assert zone.mixed_blocks is None


def test_parse_pagetypeinfo__a_kernel_without_cma_has_no_cma_row():
    text = "\n".join(row for row in TEXT.split("\n") if "type          CMA" not in row)
    text = text.replace("          CMA", "").replace("            0            0 \n", "            0 \n")
    info = parse_pagetypeinfo(text, "pagetypeinfo")
    assert info.migratetypes == (0, 1, 2, 3, 5)
    assert info.zones[0, "DMA32"].type_blocks.tolist() == [24, 94, 2, 0, 0, 0]
    assert info.zones[0, "DMA32"].type_free[[MIGRATE_CMA, MIGRATE_ISOLATE]].sum() == 0
    assert rewrite(text) == text


@pytest.mark.parametrize("folder", ["snap_612_x86", "snap_73_arm64_16k", "snap_73_two_nodes"])
def test_format_pagetypeinfo__gives_the_kernels_bytes(folder):
    text = (DATA / folder / "pagetypeinfo").read_text()
    assert rewrite(text) == text


def test_format_pagetypeinfo__a_list_that_the_kernel_stopped_counting():
    text = TEXT.replace("  7401 ", ">100000 ")
    zone = parse_pagetypeinfo(text, "pagetypeinfo").zones[0, "DMA32"]
    assert zone.type_free[MIGRATE_MOVABLE, 0] == 100000
    assert np.argwhere(zone.type_free_capped).tolist() == [[MIGRATE_MOVABLE, 0]]
    assert rewrite(text) == text
    free = np.zeros((6, 11), np.int64)
    free[0, :2] = 123456, 99999
    row = format_pagetypeinfo(9, {(0, "DMA"): free}, {(0, "DMA"): np.ones(6, np.int64)}).split("\n")[4]
    assert row.startswith("Node    0, zone      DMA, type    Unmovable >100000  99999      0 ")


def test_parse_pagetypeinfo__mixed_blocks_of_page_owner():
    mixed = (
        "\nNumber of mixed blocks     Unmovable      Movable  Reclaimable   HighAtomic          CMA      Isolate \n"
        "Node 0, zone      DMA            1            0            0            0            0            0 \n"
        "Node 0, zone    DMA32            3            2            1            0            0            0 \n"
    )
    zones = parse_pagetypeinfo(TEXT + mixed, "pagetypeinfo").zones
    assert zones[0, "DMA32"].mixed_blocks.tolist() == [3, 2, 1, 0, 0, 0]
    assert zones[0, "DMA32"].type_blocks.tolist() == [24, 94, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Page block order: 9\n", "", ":1: found 'Pages per block:  512'"),
        ("block:  512", "block:  511", ":2: found 'Pages per block:  511'"),
        ("order: 9", "order: 16", ":1: found 'Page block order: 16'"),
        ("order       0      1", "order       1      0", ":4: found 'Free pages count per"),
        ("type      Movable      1 ", "type      Mobile       1 ", ":6: found 'Mobile'; migratetypes are Unmovable,"),
        ("type      Movable      1      0 ", "type      Movable      1 ", ":6: found '10 counts'; the rows above"),
        ("7401", ">7401", ":12: found '>7401'; only \">100000\""),
        ("type  Reclaimable      0 ", "type      Movable      0 ", ":7: found 'Node 0, zone DMA, type Movable'"),
        ("type     Unmovable", "type     Unmovable      Reserve", ":18: found 'Reserve'; migratetypes are"),
        ("          24           94 ", "          24 ", ":20: found '5 counts'; 6 types are named above"),
        ("Node 0, zone    DMA32 ", "Node 0, zone      DMA ", ":20: found 'Node 0, zone DMA'; a zone comes once"),
        ("Node    0, zone      DMA, type      Isolate", "Node", ":10: found 'Node "),
    ],
)
def test_parse_pagetypeinfo__malformed(old, new, message):
    assert old in TEXT
    with pytest.raises(InputError) as error:
        parse_pagetypeinfo(TEXT.replace(old, new, 1), "pagetypeinfo")
    assert str(error.value).startswith("pagetypeinfo" + message)
    assert "\n" not in str(error.value)


def test_parse_pagetypeinfo__cut_anywhere_is_refused():
    last_row = TEXT.rindex("24           94            2            0            0            0")
    for length in range(0, last_row):
        with pytest.raises(InputError, match=r"^pagetypeinfo:\d+: [^\n]+$"):
            parse_pagetypeinfo(TEXT[:length], "pagetypeinfo")
