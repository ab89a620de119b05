import lzma
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memmodel.errors import InputError
from memmodel.sources.freelists import format_free_lists, parse_free_lists, read_free_lists, write_free_lists
from memmodel.sources.records import MIGRATE_CMA, MIGRATE_ISOLATE

DATA = Path(__file__).parents[1] / "data"
RECORDS = os.environ.get("MEMMODEL_RECORDS")

ZONE = (
    "Z 0 DMA start=1 spanned=31 present=30 managed=28 free=9 cma_free=0 nr_free_highatomic=0 "
    "reserved_highatomic=0 min=1 low=2 high=3"
)
COMPACTION = (
    "C 0 DMA considered=1 defer_shift=2 order_failed=3 cached_free=4 cached_migrate_async=5 cached_migrate_sync=6 "
    "blockskip_flush=1 watermark_boost=7"
)
SMALL = f"""\
S a 1000 pageblock_order=2 max_order=8 page_shift=12 nr_pcp_lists=14 migrate_types=5
{ZONE}
F 0 DMA 0 0 nr=2 : 7
F 0 DMA 0 4 nr=2 : 13
F 0 DMA 3 1 nr=1 : 16
{COMPACTION}
P 0 DMA 0 count=3 high=60 batch=15 free_count=2 high_min=50 high_max=70
L 0 DMA 0 1 : 9 8
L 0 DMA 0 2 : 25
B 0 DMA 0 2 0
B 0 DMA 4 0 1
B 0 DMA 12 4 0
B 0 DMA 16 1 0
"""
SMALL += f"E a {len(SMALL)}\n"


def test_parse_free_lists__every_line():
    (state,) = parse_free_lists(SMALL, "dump")
    assert (state.label, state.time_ns, state.page_shift, state.n_pcp_lists) == ("a", 1000, 12, 14)
    assert (state.pageblock_order, state.max_order, state.n_migratetypes, state.order_known) == (2, 8, 5, True)
    (zone,) = state.zones
    assert (zone.key, zone.start_pfn, zone.end_pfn, zone.present_pages, zone.managed_pages) == (
        (0, "DMA"),
        1,
        32,
        30,
        28,
    )
    assert {key: pfns.tolist() for key, pfns in zone.lists.items()} == {
        (0, 0): [7],
        (0, MIGRATE_ISOLATE): [13],  # this kernel has no CMA: its type 4 is ISOLATE
        (3, 1): [16],
    }
    assert zone.block_pfns.tolist() == [0, 4, 12, 16]
    assert zone.block_migratetypes.tolist() == [2, 0, MIGRATE_ISOLATE, 1]
    assert zone.block_skip.tolist() == [False, True, False, False]
    assert zone.watermarks == {"min": 1, "low": 2, "high": 3}
    assert zone.watermark_boost == 7
    assert zone.compaction.compact_order_failed == 3
    assert zone.compaction.compact_cached_migrate_pfn_sync == 6
    (pcp,) = zone.pcp
    assert (pcp.count, pcp.high, pcp.batch, pcp.free_count, pcp.high_min, pcp.high_max) == (3, 60, 15, 2, 50, 70)
    assert {index: pfns.tolist() for index, pfns in pcp.lists.items()} == {1: [9, 8], 2: [25]}
    assert format_free_lists(state) == SMALL


def test_read_free_lists__states_of_a_cma_allocation():
    states = read_free_lists(DATA / "gt_snap_612.txt.xz")
    assert [state.label for state in states] == ["c00", "c01", "c02.4", "c02.9", "c03a", "c03b", "c05"]
    dma, dma32 = states[0].zones
    assert dma.lists[10, 1].tolist() == [1024, 2048, 3072]
    assert dma32.lists[9, MIGRATE_CMA].tolist() == [64512, 56832]
    assert np.bincount(dma32.block_migratetypes, minlength=6).tolist() == [24, 78, 2, 0, 16, 0]
    assert dma32.type_free(11).sum(axis=0).tolist() == [2, 1, 2, 3, 2, 0, 2, 2, 1, 5, 34]


@pytest.mark.parametrize("name", ["gt_snap_612.txt.xz", "gt_snap_73_pb7.txt.xz"])
def test_write_free_lists__gives_the_same_bytes(tmp_path, name):
    write_free_lists(tmp_path / "dump", read_free_lists(DATA / name))
    with lzma.open(DATA / name, "rt") as file:
        recorded = file.read()
    assert (tmp_path / "dump").read_text() == recorded.replace("\n\n", "\n")


def test_write_free_lists__what_is_not_known_is_left_out(tmp_path):
    (state,) = parse_free_lists(SMALL, "dump")
    zone = replace(state.zones[0], free_pages=None, watermarks={}, compaction=None, pcp=())
    write_free_lists(tmp_path / "dump", [replace(state, zones=(zone,), order_known=False)])
    (back,) = read_free_lists(tmp_path / "dump")
    assert not back.order_known
    assert back.zones[0].free_pages is None
    assert back.zones[0].compaction is None
    assert back.zones[0].watermarks == {}


def test_format_free_lists__what_the_format_cannot_say():
    (state,) = parse_free_lists(SMALL, "dump")
    with pytest.raises(InputError, match="label 'two words'"):
        format_free_lists(replace(state, label="two words"))
    zone = replace(state.zones[0], lists={(0, MIGRATE_CMA): np.array([13])})
    with pytest.raises(InputError, match="a kernel with 5 migratetypes has no type CMA"):
        format_free_lists(replace(state, zones=(zone,)))


@pytest.mark.parametrize(
    ("line", "new", "message"),
    [
        (1, "F 0 DMA 0 0 nr=1 : 7", "a state begins with S"),
        (1, "S a x pageblock_order=2", "a state begins with S"),
        (1, "S a 1 pageblock_order=9 max_order=8 page_shift=12 nr_pcp_lists=14 migrate_types=5", "0 < pageblock_order"),
        (1, "S a 1 pageblock_order=2 max_order=8 page_shift=12 nr_pcp_lists=14", "migrate_types= is missing"),
        (2, "Z 0 DMA start=1 spanned=31 spare=3", "'spare=3' is not one of start= spanned="),
        (2, "Z 0 DMA start=1 spanned=0", "a zone spans at least one page"),
        (3, "F 0 DMA 0 0 nr=2 : 32", "pfn 32 with order 0 is not an aligned block inside it"),
        (3, "F 0 DMA 1 0 nr=1 : 7", "pfn 7 with order 1 is not an aligned block"),
        (3, "F 0 DMA 0 5 nr=2 : 7", "the migratetype, a number below 5"),
        (3, "F 0 DMA 9 0 nr=2 : 7", "the order, a number below 9"),
        (3, "F 0 DMA 0 0 nr=3 : 7", "nr= is the same for all lists of an order, and was 3 above"),
        (5, "F 0 DMA 3 1 nr=2 : 16", "the lists of order 3 have 1 blocks in all, not nr=2"),
        (3, "F 0 DMA 0 0 nr=2 : 13", "pfn 13 is on two lists"),
        (5, "F 0 DMA 3 1 nr=2 : 16 16", "pfn 16 is on two lists, or twice"),
        (3, "F 0 DMA 0 0 nr=2 :", "a colon, and pfns follow"),
        (3, "F 0 DMA 0 0 nr=2 : 7x", "a colon, and pfns follow"),
        (3, "F 0 DMA 0 0 7", "nr= with a number"),
        (3, "F 0 Normal 0 0 nr=2 : 7", "zone Normal has no line Z"),
        (3, "X 0 DMA 0 0 nr=2 : 7", "lines of a state are Z, F, C, P, L, B and E"),
        (3, "", "lines of a state are Z"),
        (4, "F 0 DMA 0 0 nr=2 : 6", "each free list has one line"),
        (5, "F 0 DMA 3 1 nr=1 : 24", "pfn 25 is on two lists"),
        (6, "C 0 DMA considered=1", "defer_shift= is missing"),
        (8, "L 0 DMA 1 1 : 9 8", "below the line P of its CPU"),
        (8, "L 0 DMA 0 14 : 9 8", "the pindex, a number below 14"),
        (8, "L 0 DMA 0 1 : 9 16", "pfn 16 is on two lists"),
        (8, "L 0 DMA 0 1 : 99999999999999999999999", "a colon, and pfns follow"),
        (10, "B 0 DMA 2 2 0", "are aligned to 4 pages"),
        (10, "B 0 DMA 4 2 2", "the skip bit, a number below 2"),
        (11, "B 0 DMA 0 0 1", "pageblocks of the zone ascend"),
        (14, "E b 589", "E a 589"),
        (14, "E a 588", "state a has 589 bytes before its end"),
        (14, "", "lines of a state are Z"),
    ],
)
def test_parse_free_lists__malformed(line, new, message):
    lines = SMALL.splitlines()
    lines[line - 1] = new
    with pytest.raises(InputError) as error:
        parse_free_lists("\n".join(lines), "dump")
    assert str(error.value).startswith("dump:")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_parse_free_lists__cut_anywhere_is_refused():
    text = SMALL
    for length in range(len(text) - 1):
        with pytest.raises(InputError, match=r"^dump:[^\n]*$"):
            parse_free_lists(text[:length], "dump")


@pytest.mark.skipif(not RECORDS, reason="MEMMODEL_RECORDS is not set")
def test_read_free_lists__all_recordings_are_given_back():
    paths = sorted(Path(RECORDS).glob("**/gt_snap.txt.xz"))
    for path in paths:
        with lzma.open(path, "rt") as file:
            recorded = file.read()
        assert "".join(map(format_free_lists, read_free_lists(path))) == recorded.replace("\n\n", "\n"), path
    assert len(paths) == 41
