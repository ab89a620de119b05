"""The dma-buf system heap: orders 8, 4, 0, its flags by generation, and all or nothing."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.mechanisms.heaps import gfp_of
from memmodel.memory import PhysicalMemory
from tests.reference import views
from tests.reference.views import refused


@pytest.fixture
def mem():
    return views.plain_memory(Geometry(arch="generic"), "64MiB", seed=0)


@pytest.mark.parametrize(
    ("page_size", "size", "orders"),
    [
        ("4KiB", "1MiB", [8]),
        ("4KiB", "3MiB", [8] * 3),
        ("4KiB", 1, [0]),
        ("4KiB", 65536 + 8193, [4, 0, 0, 0]),
        ("4KiB", (1 << 20) - 4096, [4] * 15 + [0] * 15),
        ("16KiB", "4MiB", [8]),
        ("16KiB", "256KiB", [4]),
        ("16KiB", "5MiB", [8] + [4] * 4),
        ("64KiB", "17MiB", [8, 4]),
        ("64KiB", "192KiB", [0] * 3),
    ],
)
def test_dmabuf_alloc__page_orders_not_sizes(page_size, size, orders):
    mem = views.plain_memory(Geometry(arch="arm64", page_size=page_size), "1GiB", seed=0)
    buffer = mm.dmabuf_alloc(mem, size)
    assert buffer.orders.tolist() == orders
    assert buffer.size_bytes == sum(mem.geometry.page_size_bytes << order for order in orders)
    rows = mem.index(mem.pfn(buffer.folios))
    assert (mem.state.pages["state"][rows] & 15).tolist() == orders
    assert (mem.state.blocks["migratetype"][rows >> mem.geometry.pageblock_order] == 0).all()
    assert not mem.state.pages["pg_flags"].any()  # on no LRU list
    mem.check()
    mm.dmabuf_free(mem, buffer)
    mem.check()
    assert int(mem.state.zones["free_pages"].sum()) == int(mem.state.zones["managed"].sum())


def test_dmabuf_alloc__smaller_orders_where_memory_is_fragmented(mem):
    """Every other block of order 4 is free: no order 8 after the first failure, whatever comes free."""
    folios = mm.alloc_pages(mem, 4, 1024)
    mm.free_pages(mem, folios[::2])
    buffer = mm.dmabuf_alloc(mem, "2MiB")
    assert buffer.orders.tolist() == [4] * 32
    mm.free_pages(mem, folios[1::2][:4])
    small = mm.alloc_pages(mem, 4, 1024)
    mm.free_pages(mem, small)
    assert mm.dmabuf_alloc(mem, "128KiB").orders.tolist() == [4, 4]


def test_dmabuf_alloc__single_pages_last(mem):
    folios = mm.alloc_pages(mem, count=16384)
    mm.free_pages(mem, folios[::2])
    assert mm.dmabuf_alloc(mem, "64KiB").orders.tolist() == [0] * 16


def test_dmabuf_alloc__gives_back_what_it_got(mem):
    before = int(mem.state.zones["free_pages"][0])
    assert mm.dmabuf_alloc(mem, "65MiB") is None
    assert mm.dmabuf_alloc(mem, "1000TiB") is None
    mem.check()
    assert int(mem.state.zones["free_pages"][0]) == before
    assert mm.dmabuf_alloc(mem, "64MiB").orders.tolist() == [8] * 64


def test_dmabuf_alloc__orders_beyond_max_page_order(small_geometry):
    mem = views.plain_memory(small_geometry, 64 * 4096, seed=0)
    assert mm.dmabuf_alloc(mem, 33 * 4096).orders.tolist() == [4, 4, 0]
    mem = views.plain_memory(small_geometry.replace(max_page_order=3), 64 * 4096, seed=0)
    assert mm.dmabuf_alloc(mem, 33 * 4096).orders.tolist() == [0] * 33


def heap_flags(kernel, order):
    mem = views.plain_memory(Geometry(kernel=kernel), "64MiB", seed=0)
    return gfp_of(mem, order)


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
def test_dmabuf_alloc__flags(kernel):
    old = kernel == "6.1"
    large, middle, single = (heap_flags(kernel, order) for order in (8, 4, 0))
    assert not large.direct_reclaim
    assert not large.kswapd_reclaim
    assert large.noretry
    assert middle.direct_reclaim == middle.kswapd_reclaim == old
    assert middle.noretry == (not old)
    assert single.direct_reclaim
    assert (large.comp, middle.comp, single.comp) == (True, True, old)
    assert {flags.migratetype for flags in (large, middle, single)} == {0}
    assert {flags.highest_zone for flags in (large, middle, single)} == {"HighMem"}


@pytest.mark.parametrize(("kernel", "calls"), [("6.1", [4, 0]), ("6.12.117", [0])])
def test_dmabuf_alloc__who_reclaims(kernel, calls):
    """In 6.1 order 4 still did."""
    mem = PhysicalMemory(Geometry(arch="generic", kernel=kernel), "64MiB", seed=0)
    mm.alloc_pages(mem, count=16384)
    asked = []

    def reclaim(mem, request):
        asked.append(request.order)
        return 0

    assert mm.dmabuf_alloc(mem, "1MiB", reclaim=reclaim) is None
    assert list(dict.fromkeys(asked)) == calls


def test_dmabuf_alloc__a_policy_that_raises_loses_nothing():
    mem = PhysicalMemory(Geometry(arch="generic"), "64MiB", seed=0)
    folios = mm.alloc_pages(mem, count=16384)
    mm.free_pages(mem, folios[:3000])
    free = int(mem.state.zones["free_pages"].sum() + mem.state.pcp["count"].sum())

    def reclaim(mem, request):
        raise mm.InputError("no more")

    for ask in (
        lambda: mm.dmabuf_alloc(mem, "32MiB", reclaim=reclaim),
        lambda: mm.alloc_pages(mem, 0, 9000, reclaim=reclaim),
    ):
        with pytest.raises(mm.InputError, match="no more"):
            ask()
        mem.check()
        assert int(mem.state.zones["free_pages"].sum() + mem.state.pcp["count"].sum()) == free


@views.large
def test_dmabuf_alloc__with_reclaim():
    mem = PhysicalMemory(Geometry(arch="generic"), "64MiB", seed=0)
    folios = mm.alloc_pages(mem, count=16384)
    random = np.random.default_rng(0)
    random.shuffle(folios)
    buffer = mm.dmabuf_alloc(mem, "8MiB", reclaim=mm.LeastRecentlyAllocated(folios))
    assert buffer.size_bytes == 8 << 20
    mem.check()


def test_dmabuf_free__twice(mem):
    buffer = mm.dmabuf_alloc(mem, "1MiB")
    mm.dmabuf_free(mem, buffer)
    refused(mem, "is not live", mm.dmabuf_free, buffer)
    refused(mem, "None is no dma-buf", mm.dmabuf_free, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size 0 is not positive"),
        ({"size": "much"}, "size 'much'"),
        ({"size": 1.5}, "size 1.5"),
        ({"size": "1MiB", "node": 3}, "node 3"),
        ({"size": "1MiB", "cpu": 3}, "cpu 3"),
        ({"size": "1MiB", "compact": 3}, "are functions, not 3"),
    ],
)
def test_dmabuf_alloc__bad_input(mem, options, message):
    refused(mem, message, mm.dmabuf_alloc, **options)
