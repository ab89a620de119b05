from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.sources.ftrace import Event, read_trace
from memmodel.sources.gfp import COMPOSITES, FLAGS, Gfp, parse_gfp

DATA = Path(__file__).parents[1] / "data"

# The bits that all kernels from 6.1 to 7.3 share.
BITS = {
    name: 1 << shift
    for shift, name in enumerate(
        "DMA HIGHMEM DMA32 MOVABLE RECLAIMABLE HIGH IO FS ZERO ATOMIC DIRECT_RECLAIM KSWAPD_RECLAIM WRITE NOWARN "
        "RETRY_MAYFAIL NOFAIL NORETRY MEMALLOC COMP NOMEMALLOC HARDWALL THISNODE ACCOUNT ZEROTAGS".split()
    )
}


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("__GFP_RECLAIM", 0xC00),
        ("GFP_DMA", 0x1),
        ("GFP_DMA32", 0x4),
        ("GFP_ATOMIC", 0x820),
        ("GFP_NOWAIT", 0x800),
        ("GFP_NOIO", 0xC00),
        ("GFP_NOFS", 0xC40),
        ("GFP_KERNEL", 0xCC0),
        ("GFP_KERNEL_ACCOUNT", 0x400CC0),
        ("GFP_USER", 0x100CC0),
        ("GFP_HIGHUSER", 0x100CC2),
        ("GFP_HIGHUSER_MOVABLE", 0x100CCA),
        ("GFP_TRANSHUGE_LIGHT", 0x1C20CA),
        ("GFP_TRANSHUGE", 0x1C24CA),
    ],
)
def test_parse_gfp__composites_have_the_kernels_bits(name, bits):
    assert sum(BITS[flag.removeprefix("__GFP_")] for flag in parse_gfp(name).flags) == bits
    assert name in COMPOSITES


def test_composites__all_are_tested_and_of_known_flags():
    assert len(COMPOSITES) == 14
    assert all(flags <= FLAGS for flags in COMPOSITES.values())
    assert {f"__GFP_{name}" for name in BITS} <= FLAGS


def test_parse_gfp__a_request_of_a_huge_page():
    gfp = parse_gfp("GFP_TRANSHUGE|__GFP_NORETRY|__GFP_THISNODE")
    assert (gfp.migratetype, gfp.highest_zone, gfp.is_movable, gfp.is_reclaimable) == (1, "Movable", True, False)
    assert (gfp.direct_reclaim, gfp.kswapd_reclaim, gfp.io, gfp.comp, gfp.nomemalloc) == (True, False, True, True, True)
    assert (gfp.noretry, gfp.thisnode, gfp.nofail, gfp.retry_mayfail, gfp.memalloc) == (True, True, False, False, False)
    assert (gfp.high, gfp.write) == (False, False)
    assert "__GFP_NOWARN" in gfp
    assert "__GFP_ZERO" not in gfp


@pytest.mark.parametrize("flag", ["HIGH", "MEMALLOC", "NOMEMALLOC", "NORETRY", "RETRY_MAYFAIL", "NOFAIL", "THISNODE"])
def test_gfp__one_flag_one_property(flag):
    names = ("high", "memalloc", "nomemalloc", "noretry", "retry_mayfail", "nofail", "thisnode", "write", "comp", "io")
    gfp = parse_gfp(f"__GFP_{flag}")
    assert [name for name in names if getattr(gfp, name)] == [flag.lower()]


@pytest.mark.parametrize(
    ("text", "zone", "migratetype"),
    [
        ("GFP_KERNEL", "Normal", 0),
        ("GFP_DMA", "DMA", 0),
        ("GFP_DMA32|__GFP_RECLAIMABLE", "DMA32", 2),
        ("GFP_HIGHUSER", "HighMem", 0),
        ("GFP_KERNEL|__GFP_MOVABLE", "Normal", 1),
        ("GFP_DMA|__GFP_MOVABLE", "DMA", 1),
        ("GFP_DMA32|__GFP_MOVABLE", "DMA32", 1),
        ("GFP_HIGHUSER_MOVABLE", "Movable", 1),
    ],
)
def test_gfp__zone_and_type(text, zone, migratetype):
    assert (parse_gfp(text).highest_zone, parse_gfp(text).migratetype) == (zone, migratetype)


@pytest.mark.parametrize("text", ["none", "0", "0x0", "", " "])
def test_parse_gfp__nothing(text):
    assert parse_gfp(text) == Gfp(frozenset())


def test_parse_gfp__bits_without_a_name_are_kept():
    gfp = parse_gfp("GFP_KERNEL | 0x2000000|0x8000000")
    assert gfp.unnamed_bits == 0xA000000
    assert gfp.flags == parse_gfp("GFP_KERNEL").flags


@pytest.mark.parametrize(
    ("order", "flags", "ends_early", "one_round"),
    [
        (3, "__GFP_NORETRY", False, True),
        (4, "__GFP_NORETRY", True, True),
        (3, "none", False, False),
        (4, "none", False, True),
        (4, "__GFP_RETRY_MAYFAIL", False, False),
    ],
)
def test_gfp__costly_orders(order, flags, ends_early, one_round):
    gfp = parse_gfp(flags)
    assert (gfp.is_costly_noretry(order), gfp.fails_after_first_round(order)) == (ends_early, one_round)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GFP_KERNEL|__GFP_ORANGE", "unknown gfp flag '__GFP_ORANGE'; one of: .*GFP_KERNEL"),
        ("gfp_kernel", "unknown gfp flag 'gfp_kernel'"),
        ("0xZ", "unknown gfp flag '0xZ'"),
        ("0x140cca", "bits 0x140cca have names"),
        ("GFP_DMA|GFP_DMA32", "asks for more than one zone"),
        ("__GFP_DMA|__GFP_HIGHMEM", "asks for more than one zone"),
        ("GFP_HIGHUSER_MOVABLE|__GFP_RECLAIMABLE", "both movable and reclaimable"),
        (0xCC0, "gfp 3264; flags are given by name"),
        ([], r"gfp \[\]; flags are given by name"),
    ],
)
def test_parse_gfp__refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_gfp(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(sorted(FLAGS | set(COMPOSITES)))))
def test_parse_gfp__is_the_union_of_its_names(names):
    flags = frozenset().union(*(COMPOSITES.get(name, {name}) for name in names))
    zones = flags & {"__GFP_DMA", "__GFP_DMA32", "__GFP_HIGHMEM"}
    if len(zones) > 1 or flags >= {"__GFP_MOVABLE", "__GFP_RECLAIMABLE"}:
        with pytest.raises(InputError, match=r"more than one zone|both movable"):
            parse_gfp("|".join(names))
    else:
        assert parse_gfp("|".join(names)).flags == flags


def test_parse_gfp__migratetype_is_the_one_that_the_kernel_prints():
    names = sorted(DATA.glob("trace_*.txt.xz"))
    seen = set()
    for trace in map(read_trace, names):
        types = trace.column(Event.MM_PAGE_ALLOC, "migratetype")
        flags = trace.column(Event.MM_PAGE_ALLOC, "gfp_flags")
        seen |= {(trace.strings[number], int(migratetype)) for number, migratetype in zip(flags, types, strict=True)}
    assert len(seen) > 20
    assert {migratetype for _, migratetype in seen} == {0, 1, 2}
    assert [(text, kind) for text, kind in seen if parse_gfp(text).migratetype != kind] == []
