"""What gfp flags mean to the allocator: the highest zone, the LRU lists, and the flags of both attempts."""

import numpy as np
import pytest

from memmodel.geometry import Geometry
from memmodel.mechanisms.request import DEFAULT_GFP, highest_zone, joins_lru, request_of
from memmodel.memory import PhysicalMemory
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import Alloc, MigrateType, Wmark, ZoneType

LOW, MIN = Alloc(Wmark.LOW), Alloc(Wmark.MIN)
KSWAPD, CMA = Alloc.KSWAPD, Alloc.CMA


def request(mem, gfp, order=0, node=0):
    return request_of(mem, parse_gfp(gfp), order, node, True)


@pytest.mark.parametrize(
    ("gfp", "x86_64", "generic"),
    [
        ("GFP_KERNEL", ZoneType.NORMAL, ZoneType.NORMAL),
        ("GFP_DMA", ZoneType.DMA, ZoneType.NORMAL),
        ("GFP_DMA32", ZoneType.DMA32, ZoneType.NORMAL),
        ("GFP_HIGHUSER", ZoneType.HIGHMEM, ZoneType.HIGHMEM),
        ("GFP_HIGHUSER_MOVABLE", ZoneType.MOVABLE, ZoneType.MOVABLE),
    ],
)
def test_highest_zone__only_where_it_is_configured(gfp, x86_64, generic):
    assert highest_zone(Geometry(), parse_gfp(gfp)) == x86_64
    assert highest_zone(Geometry(arch="generic"), parse_gfp(gfp)) == generic


@pytest.mark.parametrize(
    ("gfp", "joins"),
    [
        (DEFAULT_GFP["movable"], True),
        (DEFAULT_GFP["unmovable"], False),
        (DEFAULT_GFP["reclaimable"], False),
        ("GFP_HIGHUSER|__GFP_COMP", True),  # ramfs
        ("GFP_HIGHUSER", False),  # a dma-buf heap's single page
        ("GFP_HIGHUSER|__GFP_COMP|__GFP_ACCOUNT", False),  # a pipe buffer
        ("__GFP_HIGHMEM|__GFP_COMP|__GFP_NOWARN", False),  # the heap's larger ones cannot wait
    ],
)
def test_joins_lru__anonymous_memory_and_page_cache(gfp, joins):
    assert joins_lru(parse_gfp(gfp)) == joins


@pytest.mark.parametrize(
    ("gfp", "order", "fast", "slow"),
    [
        ("GFP_KERNEL", 0, KSWAPD | LOW, KSWAPD | MIN),
        ("GFP_HIGHUSER_MOVABLE", 0, KSWAPD | LOW | CMA, KSWAPD | MIN | CMA),
        ("GFP_ATOMIC", 0, KSWAPD | LOW, KSWAPD | MIN | Alloc.NON_BLOCK | Alloc.MIN_RESERVE),
        (
            "GFP_ATOMIC",
            1,
            KSWAPD | LOW,
            KSWAPD | MIN | Alloc.NON_BLOCK | Alloc.MIN_RESERVE | Alloc.HIGHATOMIC,
        ),
        ("GFP_ATOMIC|__GFP_NOMEMALLOC", 1, KSWAPD | LOW, KSWAPD | MIN | Alloc.MIN_RESERVE),
        ("GFP_NOWAIT", 2, KSWAPD | LOW, KSWAPD | MIN | Alloc.NON_BLOCK),
        ("GFP_KERNEL|__GFP_MEMALLOC", 0, KSWAPD | LOW, KSWAPD | MIN | Alloc.NO_WATERMARKS),
        ("__GFP_HIGH", 0, LOW, MIN | Alloc.NON_BLOCK | Alloc.MIN_RESERVE),
    ],
)
def test_request_of__flags_of_both_attempts(gfp, order, fast, slow):
    mem = PhysicalMemory(Geometry(arch="generic"), "64MiB", seed=0)
    made = request(mem, gfp, order)
    assert (Alloc(int(made.fast)), Alloc(int(made.slow))) == (fast, slow)
    assert (made.order, made.lru) == (order, 1)
    assert all(type(number) is np.uint64 for number in made)


def test_request_of__since_7_3_urgent_requests_use_the_reserve_at_once():
    mem = PhysicalMemory(Geometry(arch="generic", kernel="7.3"), "64MiB", seed=0)
    assert Alloc(int(request(mem, "GFP_ATOMIC", 1).fast)) == KSWAPD | LOW | Alloc.HIGHATOMIC


def test_request_of__a_build_without_cma():
    mem = PhysicalMemory(Geometry(arch="generic", cma=False), "64MiB", seed=0)
    assert Alloc(int(request(mem, "GFP_HIGHUSER_MOVABLE").fast)) == KSWAPD | LOW


def test_request_of__a_tiny_machine_has_one_type():
    tiny, usual = (PhysicalMemory(Geometry(arch="generic"), size, seed=0) for size in ("8MiB", "64MiB"))
    for gfp, migratetype in ((DEFAULT_GFP["movable"], 1), (DEFAULT_GFP["reclaimable"], 2), ("GFP_KERNEL", 0)):
        assert request(usual, gfp).migratetype == migratetype
        assert request(tiny, gfp).migratetype == MigrateType.UNMOVABLE
    assert Alloc(int(request(tiny, DEFAULT_GFP["movable"]).fast)) == KSWAPD | LOW  # and so never CMA


def test_request_of__types_are_not_mixed_in_normal_while_dma32_may_help():
    """Asked of the preferred zone: of node 1, which has no DMA32, requests of a machine with two nodes may mix."""
    one = PhysicalMemory(Geometry(), "6GiB", seed=0)
    two = PhysicalMemory(Geometry(), "8GiB", nodes=2, seed=0)
    low = PhysicalMemory(Geometry(), "1GiB", seed=0)
    for mem, node, avoids in ((one, 0, True), (two, 1, False), (low, 0, False)):
        for gfp in ("GFP_KERNEL", "GFP_HIGHUSER_MOVABLE"):
            made = request(mem, gfp, node=node)
            assert bool(int(made.fast) & Alloc.NOFRAGMENT) == avoids
            assert not int(made.slow) & Alloc.NOFRAGMENT
    assert not int(request(one, "GFP_DMA32").fast) & Alloc.NOFRAGMENT
    generic = PhysicalMemory(Geometry(arch="generic"), "1GiB", seed=0)
    assert not int(request(generic, "GFP_KERNEL").fast) & Alloc.NOFRAGMENT
