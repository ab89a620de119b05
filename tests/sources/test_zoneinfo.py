from pathlib import Path

import pytest

from memmodel.errors import InputError
from memmodel.sources.zoneinfo import parse_zoneinfo

DATA = Path(__file__).parents[1] / "data"
TEXT = (DATA / "snap_73_two_nodes" / "zoneinfo").read_text()


def test_parse_zoneinfo__7_3_with_two_nodes_and_empty_zones():
    zones, nodes = parse_zoneinfo(TEXT, "zoneinfo")
    assert len(zones) == 10
    assert [key for key, zone in zones.items() if zone.present_pages] == [(0, "DMA"), (0, "DMA32"), (1, "DMA32")]
    zone = zones[1, "DMA32"]
    assert (zone.start_pfn, zone.end_pfn) == (65536, 65536 + 65501)
    assert (zone.present_pages, zone.managed_pages, zone.cma_pages, zone.free_pages) == (65501, 64420, 0, 58947)
    assert zone.watermarks == {"boost": 0, "min": 3192, "low": 3990, "high": 4788, "promo": 5586}
    assert zones[0, "DMA"].protection == (0, 191, 191, 191, 191)
    assert zone.vm_stats_threshold == 8
    assert [(p.cpu, p.count, p.high, p.batch, p.high_min, p.high_max) for p in zone.pcp] == [
        (0, 3043, 3233, 15, 1995, 4026),
        (1, 13, 236, 15, 1995, 4026),
    ]
    assert zone.counters["nr_free_pages_blocks"] == 58368
    assert zone.counters["reserved_highatomic"] == 0
    assert nodes[1]["nr_isolated_anon"] == 5
    assert zones[1, "DMA"].pcp == ()


def test_parse_zoneinfo__6_12_sets_without_limits():
    zones, _ = parse_zoneinfo((DATA / "snap_612_x86" / "zoneinfo").read_text(), "zoneinfo")
    zone = zones[0, "DMA32"]
    assert (zone.pcp[0].high, zone.pcp[0].high_min, zone.pcp[0].free_count) == (60, None, None)
    assert "reserved_highatomic" not in zone.counters


def test_parse_zoneinfo__6_1_has_no_promo():
    text = "\n".join(row for row in TEXT.split("\n") if not row.lstrip().startswith(("promo", "high_m", "reserved_")))
    zones, _ = parse_zoneinfo(text, "zoneinfo")
    assert set(zones[0, "DMA"].watermarks) == {"boost", "min", "low", "high"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Node 0, zone    DMA32", "Node 0, zone      DMA", "zoneinfo:120: found 'Node 0, zone DMA'; a zone comes once"),
        ("Node 0, zone      DMA\n", "", ":1: found '  per-node stats'; zoneinfo begins with"),
        ("  pages free     3808\n", "", "zoneinfo:81: found '        protection: (0, 191"),
        (
            "        managed  3840",
            "        managed  x",
            "zoneinfo:80: found '        managed  x'; this cannot stand here in",
        ),
        ("        managed  3840\n", "", "Node 0, zone DMA ends without managed"),
        ("        managed  3840\n", "        managed  3999\n", "has spanned 4095, present 3998, managed 3999"),
        ("protection: (0, 191,", "protection: (0 191,", "zoneinfo:82: found '        protection: (0 191"),
        ("              batch:    1\n", "", "Node 0, zone DMA ends without batch of cpu 0"),
        ("  start_pfn:           1\n", "", "Node 0, zone DMA ends without start_pfn"),
        ("      nr_free_pages 3808\n", "      nr_free_pages 3808\n" * 2, "found '      nr_free_pages 3808'"),
    ],
)
def test_parse_zoneinfo__malformed(old, new, message):
    assert old in TEXT
    with pytest.raises(InputError) as error:
        parse_zoneinfo(TEXT.replace(old, new, 1), "zoneinfo")
    assert message in str(error.value)
    assert str(error.value).startswith("zoneinfo:")
    assert "\n" not in str(error.value)


def test_parse_zoneinfo__cut_within_a_zone_is_refused():
    rows = TEXT.split("\n")
    zones = [line for line, row in enumerate(rows) if row.startswith("Node")]
    whole = {line - 1 for line in zones} | {line - 3 for line in zones}  # two 7.3 lines after start_pfn may be missing
    for line in range(1, 100):
        if line not in whole and line - 1 not in whole:
            with pytest.raises(InputError, match=r"^zoneinfo:\d+: [^\n]*$"):
                parse_zoneinfo("\n".join(rows[:line]), "zoneinfo")


def test_parse_zoneinfo__empty():
    with pytest.raises(InputError, match=r"^zoneinfo: no zone in it"):
        parse_zoneinfo("", "zoneinfo")
