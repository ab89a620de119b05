"""Where zones lie, which row a pfn has, and arrays as the kernels expect them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.state.build import (
    ZoneSpan,
    empty_memory,
    from_arrays,
    grow_folios,
    made_up_spans,
    map_pfns,
    with_contents,
)
from memmodel.state.layout import MAX_COMPACTIONS, PRIVATE_LISTS, Kind, MigrateType, ZoneType

MIB, GIB = 1 << 20, 1 << 30
TINY = Geometry(arch="generic", max_page_order=4, page_block_max_order=2, transparent_hugepage=False)


def arrays_of(memory):
    return {name: array for name, array in memory._asdict().items() if name != "params"}


def spans_of(size, **options):
    geometry = Geometry(**{name: options.pop(name) for name in ("arch", "page_size", "highmem") if name in options})
    return [
        (span.node, span.zone_type.label, span.start_pfn, span.end_pfn)
        for span in made_up_spans(geometry, size, **options)
    ]


# -- zones -------------------------------------------------------------------------------------------------------------


def test_made_up_spans__x86_64_zones():
    assert spans_of(8 * GIB) == [(0, "DMA", 0, 4096), (0, "DMA32", 4096, 1 << 20), (0, "Normal", 1 << 20, 1 << 21)]
    assert spans_of(16 * MIB) == [(0, "DMA", 0, 4096)]
    assert spans_of(16 * MIB + 4096) == [(0, "DMA", 0, 4096), (0, "DMA32", 4096, 4097)]


def test_made_up_spans__arm64_ram_begins_at_a_gib():
    assert spans_of(4 * GIB, arch="arm64", page_size="16KiB") == [
        (0, "DMA", 1 << 16, 1 << 18),
        (0, "Normal", 1 << 18, 5 << 16),
    ]


def test_made_up_spans__highmem():
    assert spans_of(GIB, arch="generic", highmem=True) == [(0, "Normal", 0, 229376), (0, "HighMem", 229376, 1 << 18)]


def test_made_up_spans__nodes_and_movable_zone():
    assert spans_of(8 * GIB, nodes=2, movablecore=2 * GIB) == [
        (0, "DMA", 0, 4096),
        (0, "DMA32", 4096, 3 << 18),
        (0, "Movable", 3 << 18, 1 << 20),
        (1, "Normal", 1 << 20, 7 << 18),
        (1, "Movable", 7 << 18, 1 << 21),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 4097}, "not a multiple of 1 nodes x 4 KiB"),
        ({"size": 3 * 4096, "nodes": 2}, "not a multiple of 2 nodes"),
        ({"size": MIB, "nodes": 0}, "0 nodes"),
        ({"size": MIB, "nodes": -1}, "-1 nodes"),
        ({"size": MIB, "movablecore": MIB}, "movablecore"),
        ({"size": MIB, "movablecore": 100}, "movablecore"),
        ({"size": MIB, "movablecore": 4096, "nodes": 2}, "movablecore"),
    ],
)
def test_made_up_spans__bad_input(options, message):
    with pytest.raises(InputError, match=message):
        made_up_spans(Geometry(), **options)


# -- pfns --------------------------------------------------------------------------------------------------------------


@st.composite
def span_lists(draw):
    spans, pfn = [], draw(st.integers(0, 100))
    for i in range(draw(st.integers(1, 4))):
        end = pfn + draw(st.integers(1, 60))
        spans.append(ZoneSpan(i, ZoneType.NORMAL, pfn, end))
        pfn = end + draw(st.integers(0, 60))
    return spans


@settings(deadline=None, max_examples=100)
@given(spans=span_lists(), max_order=st.integers(0, 5))
def test_map_pfns__rows_keep_buddies_and_come_back(spans, max_order):
    pfns = map_pfns(spans, max_order)
    whole = 2**max_order
    held = sorted({pfn for span in spans for pfn in range(span.start_pfn // whole * whole, span.end_pfn)})
    held = sorted({pfn // whole * whole + i for pfn in held for i in range(whole)})
    assert pfns.n_pages == len(held)
    rows = pfns.index(held)
    assert rows.tolist() == list(range(len(held)))
    assert pfns.pfn(rows).tolist() == held
    assert ((rows - held) % whole == 0).all()  # so that a buddy's row is row ^ (1 << order)
    gaps = set(range(held[0], held[-1])) - set(held)
    for pfn in (-1, held[0] - 1, held[-1] + 1, *gaps):
        with pytest.raises(InputError, match=rf"^pfn {pfn} is outside memory; there are {held[0]}\.\."):
            pfns.index(pfn)


def test_index__numbers_of_any_width():
    pfns = map_pfns([ZoneSpan(0, ZoneType.NORMAL, 32, 64)], 4)
    assert pfns.index(np.uint64(40)) == 8
    assert pfns.index(np.array([33, 63], np.uint64)).tolist() == [1, 31]
    assert pfns.index(np.array([33, 63], np.uint8)).dtype == np.int64
    assert pfns.index([]).shape == (0,)
    for bad in (40.0, "40", True, None, [40.5], 1 << 80):
        with pytest.raises(InputError, match="a pfn is a whole number"):
            pfns.index(bad)
    with pytest.raises(InputError, match="is outside memory"):
        pfns.index(np.uint64(2**64 - 1))


# -- the arrays --------------------------------------------------------------------------------------------------------


def test_empty_memory__rows():
    spans = [ZoneSpan(0, ZoneType.NORMAL, 5, 20), ZoneSpan(1, ZoneType.MOVABLE, 70, 80)]
    memory, pfns = empty_memory(TINY, spans, cpus=3)
    assert pfns.starts.tolist() == [0, 64]
    assert int(memory.params.n_pages) == 48
    assert memory.zones["start"].tolist() == [5, 38]
    assert memory.zones["end"].tolist() == [20, 48]
    assert memory.zones["node"].tolist() == [0, 1]
    assert memory.pages["zone"][[5, 19, 38, 47]].tolist() == [0, 0, 1, 1]
    kinds = memory.pages["state"][:48] >> 4
    assert [row for row in range(48) if kinds[row] == Kind.HOLE] == [*range(5), *range(20, 38)]
    assert (memory.blocks.size, memory.pcp.size, memory.queues.size) == (12, 6, 3)
    assert set(memory.blocks["migratetype"].tolist()) == {MigrateType.MOVABLE}
    heads = np.arange(48, memory.pages.size)
    assert heads.size == 2 * (5 * 6 + 3 * 14) + MAX_COMPACTIONS * PRIVATE_LISTS
    assert memory.pages["next"][48:].tolist() == memory.pages["prev"][48:].tolist() == heads.tolist()


@pytest.mark.parametrize(
    ("spans", "cpus", "message"),
    [
        ([], 1, "no zone has any page"),
        ([ZoneSpan(0, ZoneType.NORMAL, 0, 16)], 0, "0 cpus; 1 to 4096"),
        ([ZoneSpan(0, ZoneType.NORMAL, 0, 16)], 5000, "5000 cpus"),
        ([ZoneSpan(0, ZoneType.NORMAL, 0, 1 << 31)], 1, "choose a larger page size"),
        ([ZoneSpan(i, ZoneType.NORMAL, 16 * i, 16 * i + 16) for i in range(256)], 1, "256 zones; at most 255"),
    ],
)
def test_empty_memory__bad_input(spans, cpus, message):
    with pytest.raises(InputError, match=message):
        empty_memory(TINY, spans, cpus)


@pytest.mark.parametrize("page_size", ["4KiB", "16KiB", "64KiB"])
def test_with_contents__pages_begin_on_cache_lines(page_size):
    geometry = TINY.replace(page_size=page_size)
    memory, _ = empty_memory(geometry, [ZoneSpan(0, ZoneType.NORMAL, 0, 16)])
    assert memory.contents.shape == (0, geometry.page_size_bytes)
    for _ in range(5):
        full = with_contents(memory)
        assert full.contents.shape == (16, geometry.page_size_bytes)
        assert full.contents.ctypes.data % 4096 == 0
        assert not full.contents.any()
        again = from_arrays(full.params, arrays_of(full))
        assert again.contents.ctypes.data % 4096 == 0


def test_from_arrays__owns_what_it_has():
    memory, _ = empty_memory(TINY, [ZoneSpan(0, ZoneType.NORMAL, 0, 32)])
    memory = with_contents(memory)
    own = from_arrays(memory.params, arrays_of(memory))
    for name in memory._fields[1:]:
        theirs, ours = getattr(memory, name), getattr(own, name)
        assert ours.tobytes() == theirs.tobytes()
        assert ours.dtype == theirs.dtype
        assert not np.shares_memory(ours, theirs)
        assert type(ours) is type(theirs)
        assert ours.flags.writeable
        assert ours.flags.c_contiguous


@pytest.mark.parametrize("name", ["pages", "zones", "slots", "contents", "vmstat"])
def test_from_arrays__refuses_other_arrays(name):
    memory, _ = empty_memory(TINY, [ZoneSpan(0, ZoneType.NORMAL, 0, 32)])
    arrays = arrays_of(memory)
    with pytest.raises(InputError, match=f"array {name} of the state"):
        from_arrays(memory.params, {**arrays, name: np.zeros(4, np.float32)})
    del arrays[name]
    with pytest.raises(InputError, match=f"array {name} of the state"):
        from_arrays(memory.params, arrays)


def test_grow_folios__keeps_what_there_is():
    memory, _ = empty_memory(TINY, [ZoneSpan(0, ZoneType.NORMAL, 0, 32)])
    assert grow_folios(memory, 0) is memory
    grown = grow_folios(memory, 10)
    assert grown.folios.size == 10
    grown.folios["index"] = np.arange(10)
    grown.slots[:2] = 10
    assert grow_folios(grown, 0) is grown
    more = grow_folios(grown, 5)
    assert more.folios.size == 15
    assert more.folios["index"][:10].tolist() == list(range(10))
    more.slots[0] = 8  # two slots came free again
    assert grow_folios(more, 7) is more
    assert grow_folios(more, 8).folios.size == 16
