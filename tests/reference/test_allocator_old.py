"""The slow twins of the older allocators, on zones small enough to be worked out by hand.

Where the newer kernel can be in the same state, it is asked too: it must do something else.
"""

from collections import OrderedDict
from random import Random

import pytest

from tests.reference.allocator import Allocator
from tests.reference.allocator_fallback import Finder
from tests.reference.allocator_fallback_old import Finder61, Finder610, Ungrouped, ungrouped
from tests.reference.allocator_pcp import PcpSet
from tests.reference.allocator_pcp_old import Allocator61, PcpSet61
from tests.reference.allocator_request import AllocFlags, Request
from tests.reference.allocator_zone import (
    CMA,
    HIGHATOMIC,
    ISOLATE,
    LOW,
    MOVABLE,
    RECLAIMABLE,
    UNMOVABLE,
    Capture,
    Zone,
    ZoneCounter,
)
from tests.reference.allocator_zone_old import (
    ListTypedZone,
    UngroupedBlocks,
    UngroupedZone,
    Zone61,
    page_group_by_mobility_disabled,
)

KSWAPD = AllocFlags(mark=LOW, kswapd=True)


class UngroupedZone61(UngroupedBlocks, Zone61):
    pass


class UngroupedFinder(Ungrouped, Finder):
    pass


class UngroupedFinder61(Ungrouped, Finder61):
    pass


def build(kind, types, free, end=None, start=0, pageblock_order=3, max_order=4, managed_pages=64):
    """`types` by pageblock from pfn 0 on; `free` is {(order, migratetype): [pfns, head first]}."""
    n_free = {key: len(pfns) << key[0] for key, pfns in free.items() if key[1] != ISOLATE}
    return kind(
        name="Normal",
        index=2,
        start_pfn=start,
        end_pfn=end or len(types) << pageblock_order,
        managed_pages=managed_pages,
        max_order=max_order,
        pageblock_order=pageblock_order,
        watermarks={"min": 4, "low": 8, "high": 100},
        lowmem_reserve=(0, 0, 0, 0),
        free_pages=ZoneCounter(sum(n_free.values()), threshold=0),
        free_cma_pages=ZoneCounter(sum(n for (_, type_), n in n_free.items() if type_ == CMA), threshold=0),
        block_types={block << pageblock_order: type_ for block, type_ in enumerate(types)},
        lists={key: OrderedDict.fromkeys(pfns) for key, pfns in free.items()},
        free_orders={pfn: order for (order, _), pfns in free.items() for pfn in pfns},
        operations=[],
    )


def lists(zone):
    return {key: list(pfns) for key, pfns in zone.lists.items() if pfns}


def types(zone):
    return list(zone.block_types.values())


def found(kind, finder, order, migratetype, *state, lru=(), **shape):
    """(pfn, lists, pageblock types, boost) after one request."""
    zone = build(kind, *state, **shape)
    pfn = finder(zone, KSWAPD, set(lru), 15000).find(order, migratetype)
    return pfn, lists(zone), types(zone), zone.watermark_boost


# -- frees (__free_one_page, free_one_page) ----------------------------------------------------------------------


def test_free_direct__61_frees_a_large_block_whole():
    old, new = (build(kind, [MOVABLE, UNMOVABLE], {}) for kind in (Zone61, Zone))
    old.free_direct(0, 4)
    new.free_direct(0, 4)
    assert (lists(old), types(old)) == ({(4, MOVABLE): [0]}, [MOVABLE, UNMOVABLE])
    assert (lists(new), types(new)) == ({(4, UNMOVABLE): [0]}, [UNMOVABLE, UNMOVABLE])


def test_free_one__61_merges_types_above_a_pageblock_and_keeps_them():
    blocks = [MOVABLE, MOVABLE, RECLAIMABLE, UNMOVABLE]
    zone = build(Zone61, blocks, {(4, MOVABLE): [0]}, max_order=5)
    zone.free_one(16, 4, RECLAIMABLE)
    assert (lists(zone), types(zone)) == ({(5, RECLAIMABLE): [0]}, blocks)

    assert zone.take_smallest(3, RECLAIMABLE) == 0
    assert lists(zone) == {(4, RECLAIMABLE): [16], (3, RECLAIMABLE): [8]}
    zone.free_direct(0, 3)  # under its pageblock's type; its buddies come along from the other lists
    assert (lists(zone), types(zone)) == ({(5, MOVABLE): [0]}, blocks)


def test_free_one__61_asks_the_type_of_the_buddys_pageblock_not_of_its_list():
    zone = build(Zone61, [HIGHATOMIC, MOVABLE], {(3, MOVABLE): [0]})
    zone.free_one(8, 3, MOVABLE)
    assert lists(zone) == {(3, MOVABLE): [8, 0]}


def test_captures__61_never_gives_a_piece_of_a_movable_pageblock():
    old, new = (build(kind, [MOVABLE], {}) for kind in (Zone61, Zone))
    for zone in (old, new):
        zone.capture = Capture(order=1, migratetype=MOVABLE)
        zone.free_one(2, 1, MOVABLE)
    assert (old.capture.pfn, lists(old)) == (None, {(1, MOVABLE): [2]})
    assert (new.capture.pfn, lists(new)) == (2, {})


# -- 6.1's fallback (__rmqueue_fallback, steal_suitable_fallback) ------------------------------------------------


def test_find__61_moves_the_free_blocks_even_if_the_pageblock_is_refused():
    # 3 free and 5 movable pages: nothing in it is like an unmovable page, and 3 < 4.
    state = [MOVABLE, MOVABLE], {(1, MOVABLE): [2], (0, MOVABLE): [6]}
    expected = 6, {(1, UNMOVABLE): [2]}, [MOVABLE, MOVABLE], 8
    assert found(Zone61, Finder61, 0, UNMOVABLE, *state, lru=(0, 1, 4, 5, 7)) == expected
    # The newer one tries two heads, so it boosts twice, and takes page 6 out of the movable list.
    newer = 6, {(1, MOVABLE): [2]}, [MOVABLE, MOVABLE], 16
    assert found(Zone, Finder, 0, UNMOVABLE, *state, lru=(0, 1, 4, 5, 7)) == newer


def test_find__61_takes_the_pageblock_if_half_is_free_or_alike():
    state = [MOVABLE, MOVABLE], {(1, MOVABLE): [2], (0, MOVABLE): [6]}
    expected = 6, {(1, UNMOVABLE): [2]}, [UNMOVABLE, MOVABLE], 8
    assert found(Zone61, Finder61, 0, UNMOVABLE, *state, lru=(0, 1, 4, 5)) == expected


def test_find__61_judges_by_the_pageblocks_type_not_by_the_list():
    # On a MOVABLE list within an UNMOVABLE pageblock: the 6 pages in use do not count as alike.
    state = [UNMOVABLE], {(1, MOVABLE): [2]}
    assert found(Zone61, Finder61, 1, RECLAIMABLE, *state) == (2, {}, [UNMOVABLE], 8)


def test_find__61_walks_from_the_block_on_where_the_zone_starts_inside():
    state = [MOVABLE, MOVABLE], {(1, MOVABLE): [6], (0, MOVABLE): [4]}
    # Pages 0 to 5 are not looked at and so count as alike; 4 stays where it is.
    expected = 6, {(0, MOVABLE): [4]}, [UNMOVABLE, MOVABLE], 8
    assert found(Zone61, Finder61, 1, UNMOVABLE, *state, start=4) == expected
    newer = 6, {(0, MOVABLE): [4]}, [MOVABLE, MOVABLE], 8
    assert found(Zone, Finder, 1, UNMOVABLE, *state, start=4) == newer


def test_find__61_moves_one_block_alone_where_the_zone_ends_inside():
    state = [MOVABLE, MOVABLE], {(1, MOVABLE): [8], (0, MOVABLE): [10]}
    expected = 8, {(0, UNMOVABLE): [9], (0, MOVABLE): [10]}, [MOVABLE, MOVABLE], 8
    assert found(Zone61, Finder61, 0, UNMOVABLE, *state, end=12) == expected
    assert found(Zone, Finder, 0, UNMOVABLE, *state, end=12)[0] == 10


def test_find__61_boosts_for_a_single_page_too():
    state = [UNMOVABLE], {(0, UNMOVABLE): [5]}
    assert found(Zone61, Finder61, 0, MOVABLE, *state) == (5, {}, [UNMOVABLE], 8)
    assert found(Zone, Finder, 0, MOVABLE, *state) == (5, {}, [UNMOVABLE], 0)


def test_find__61_leaves_the_rest_of_a_single_page_on_the_requests_list():
    zone = build(Zone61, [UNMOVABLE], {(1, UNMOVABLE): [4]}, pageblock_order=4)
    assert Finder61(zone, KSWAPD, set(), 15000).find(0, MOVABLE) == 4
    assert lists(zone) == {(0, MOVABLE): [5]}
    assert zone.flags == {"BOOSTED"}
    zone.free_direct(4, 0)
    assert lists(zone) == {(1, UNMOVABLE): [4]}


def test_find__61_puts_a_single_page_at_the_tail():
    zone = build(Zone61, [UNMOVABLE], {(1, UNMOVABLE): [4], (1, MOVABLE): [8]}, pageblock_order=4)
    Finder61(zone, KSWAPD, set(), 15000).refill_lists(4, 1, MOVABLE)
    assert lists(zone) == {(1, MOVABLE): [8, 4]}


def test_find__61_takes_the_smallest_for_movable_if_the_largest_cannot_take_its_pageblock():
    state = [UNMOVABLE], {(1, UNMOVABLE): [4], (0, UNMOVABLE): [9]}
    expected = 9, {(1, UNMOVABLE): [4]}, [UNMOVABLE], 16
    assert found(Zone61, Finder61, 0, MOVABLE, *state, pageblock_order=4) == expected
    assert found(Zone, Finder, 0, MOVABLE, *state, pageblock_order=4)[3] == 0


def test_find__61_moves_a_whole_pageblock_before_it_takes():
    zone = build(Zone61, [MOVABLE], {(3, MOVABLE): [0]})
    assert Finder61(zone, KSWAPD, set(), 15000).find(2, UNMOVABLE) == 0
    assert zone.operations == [
        ("gtB", 0, UNMOVABLE),
        ("gtm", 0, 3, MOVABLE, UNMOVABLE),
        ("gt-", 0, 3, UNMOVABLE),
        ("gt+", 4, 2, UNMOVABLE, 0),
    ]
    assert (types(zone), zone.watermark_boost) == ([UNMOVABLE], 0)


@pytest.mark.parametrize("order", [1, 3])
def test_find__61_takes_no_pageblock_of_the_reserve(order):
    # A page freed before its pageblock was reserved: on a MOVABLE list in a HIGHATOMIC pageblock.
    zone = build(Zone61, [HIGHATOMIC], {(order, MOVABLE): [0]})
    assert Finder61(zone, KSWAPD, set(), 15000).find(order, UNMOVABLE) == 0
    assert (types(zone), zone.watermark_boost) == ([HIGHATOMIC], 0)


# -- 6.1's per-CPU lists -----------------------------------------------------------------------------------------


def test_drain__61_uses_the_type_of_when_the_page_was_freed():
    zone = build(Zone61, [MOVABLE, MOVABLE], {}, pageblock_order=4)
    pcp = PcpSet61.of(zone, batch=2, high=8)
    pcp.free(0, 0, MOVABLE)
    pcp.free(2, 0, MOVABLE)
    zone.set_type(0, UNMOVABLE)
    pcp.drain(1, 1)
    assert lists(zone) == {(0, MOVABLE): [0]}
    zone.set_type(16, ISOLATE)
    pcp.drain(1, 1)
    assert lists(zone) == {(0, MOVABLE): [0], (0, UNMOVABLE): [2]}


def test_drain__61_returns_cma_pages_of_the_movable_list_to_cma():
    zone = build(Zone61, [CMA], {}, pageblock_order=4)
    pcp = PcpSet61.of(zone, batch=2, high=8)
    pcp.free(0, 0, CMA)
    assert list(pcp.lists[1]) == [0]
    pcp.drain_all()
    assert (lists(zone), zone.free_cma_pages.value) == ({(0, CMA): [0]}, 1)


def test_refill__61_pages_remember_the_list_they_came_from():
    zone = build(Zone61, [UNMOVABLE], {(1, UNMOVABLE): [4]}, pageblock_order=4)
    pcp = PcpSet61.of(zone, batch=2, high=8)
    assert pcp.alloc(0, MOVABLE, Finder61(zone, KSWAPD, set(), 15000)) == 4
    assert list(pcp.lists[1]) == [5]
    pcp.drain_all()
    assert (lists(zone), types(zone)) == ({(0, MOVABLE): [5]}, [UNMOVABLE])


def test_refill__61_counts_free_pages_at_its_end():
    state = [MOVABLE, CMA], {(3, MOVABLE): [0], (3, CMA): [8]}
    flags = AllocFlags(mark=LOW, cma=True)
    old, new = (build(kind, *state) for kind in (Zone61, Zone))
    # 8 of 16 are CMA: not more than half. Each page taken would tip the balance, if it was counted.
    old_pcp = PcpSet61.of(old, batch=4, high=100)
    new_pcp = PcpSet(new, batch=4, high=100, high_min=100, high_max=100, hpage_pmd_order=9)
    old_pcp.refill(0, MOVABLE, Finder61(old, flags, set(), 15000))
    new_pcp.refill(0, MOVABLE, Finder(new, flags, set(), 15000))
    assert list(old_pcp.lists[1]) == [0, 1, 2, 3]
    assert list(new_pcp.lists[1]) == [0, 8, 1, 9]
    assert (old.free_pages.value, old.free_cma_pages.value, old_pcp.count) == (12, 8, 4)


def test_free__61_drains_twice_as_much_each_time():
    zone = build(Zone61, [MOVABLE], {}, pageblock_order=4)
    pcp = PcpSet61.of(zone, batch=2, high=8)
    drained = []
    for pfn in range(14):
        n_pages = pcp.count + 1
        if pcp.free(pfn, 0, MOVABLE):
            drained.append((pfn, n_pages - pcp.count))
    assert drained == [(7, 2), (9, 4), (13, 6)]
    assert [pfn for name, pfn, *_ in zone.operations if name == "gtpd"] == list(range(12))
    assert pcp.free_factor == 2

    # One allocation halves the factor; as long as it is not 0, a page of order 1 to 3 empties the set.
    assert pcp.alloc(0, MOVABLE, None) == 13
    assert pcp.free_factor == 1
    assert pcp.free(14, 1, MOVABLE)
    assert (pcp.count, [operation[1] for operation in zone.operations if operation[0] == "gtpd"][-2:]) == (0, [14, 12])


def test_drain_mark__61_reclaim_keeps_four_batches():
    pcp = PcpSet61.of(build(Zone61, [MOVABLE], {}), batch=7, high=100)
    assert (pcp.drain_mark(False), pcp.drain_mark(True)) == (100, 0)
    pcp.zone.flags.add("RECLAIM_ACTIVE")
    assert pcp.drain_mark(False) == 28


def test_refill_length__61_is_the_batch():
    zone = build(Zone61, [MOVABLE], {}, pageblock_order=9, max_order=10)
    pcp = PcpSet61.of(zone, batch=63, high=1898)
    assert [pcp.refill_length(order) for order in (0, 0, 1, 2, 3, 9)] == [63, 63, 31, 15, 7, 2]
    assert PcpSet61.of(zone, batch=1, high=4).refill_length(3) == 1
    assert (pcp.allowed(9), pcp.allowed(8), pcp.pindex(9, RECLAIMABLE), pcp.pindex(9, CMA)) == (True, False, 12, 13)


# -- 6.1's callers -----------------------------------------------------------------------------------------------


def allocator61(zone):
    return Allocator61([zone], {(2, 0): PcpSet61.of(zone, batch=2, high=8)})


@pytest.mark.parametrize(("config_cma", "migratetype", "n_pcp_pages"), [(True, 1, 0), (False, 1, 1), (True, 0, 1)])
def test_rmqueue__61_who_may_not_have_cma_goes_past_the_movable_list(config_cma, migratetype, n_pcp_pages):
    zone = build(Zone61, [migratetype], {(3, migratetype): [0]})
    zone.flags.add("BOOSTED")
    allocator = allocator61(zone)
    allocator.config_cma = config_cma
    request = Request(0, migratetype, frozenset())
    assert allocator.rmqueue(zone, request, AllocFlags(mark=None), 0) == 0
    assert allocator.pcp[2, 0].count == n_pcp_pages
    assert zone.free_pages.value == 7 - n_pcp_pages
    assert not zone.flags  # though this caller has no ALLOC_KSWAPD


def test_reserve_highatomic__61_limit():
    old, new = (build(kind, [MOVABLE], {}, managed_pages=1000) for kind in (Zone61, Zone))
    for reserve, zone in ((Allocator61.reserve_highatomic, old), (Allocator.reserve_highatomic, new)):
        zone.nr_reserved_highatomic = 16
        reserve(zone, 0, 1)
    assert (old.nr_reserved_highatomic, types(old)) == (24, [HIGHATOMIC])  # 16 < 1000 // 100 + 8
    assert (new.nr_reserved_highatomic, types(new)) == (16, [MOVABLE])
    old.set_type(0, MOVABLE)
    Allocator61.reserve_highatomic(old, 0, 1)
    assert (old.nr_reserved_highatomic, types(old)) == (24, [MOVABLE])


def test_reserve_highatomic__61_one_pageblock_of_a_small_zone_or_a_large_page():
    zone = build(Zone61, [MOVABLE, MOVABLE], {})
    Allocator61.reserve_highatomic(zone, 0, 4)
    assert (zone.nr_reserved_highatomic, types(zone)) == (8, [HIGHATOMIC, MOVABLE])


def test_reserve_highatomic__61_even_if_the_zone_ends_inside():
    zone = build(Zone61, [MOVABLE, MOVABLE], {(0, MOVABLE): [10]}, end=12)
    Allocator61.reserve_highatomic(zone, 8, 1)
    assert (zone.nr_reserved_highatomic, types(zone)) == (8, [MOVABLE, HIGHATOMIC])
    assert lists(zone) == {(0, MOVABLE): [10]}


def test_unreserve_highatomic__61():
    zone = build(Zone61, [HIGHATOMIC, HIGHATOMIC], {(0, HIGHATOMIC): [10], (1, HIGHATOMIC): [2, 12]})
    zone.nr_reserved_highatomic = 16
    allocator, request = allocator61(zone), Request(0, UNMOVABLE, frozenset())
    assert allocator.unreserve_highatomic(request)
    assert (types(zone), zone.nr_reserved_highatomic) == ([HIGHATOMIC, UNMOVABLE], 8)
    assert lists(zone) == {(0, UNMOVABLE): [10], (1, UNMOVABLE): [12], (1, HIGHATOMIC): [2]}
    assert not allocator.unreserve_highatomic(request)  # the last one stays


def test_unreserve_highatomic__61_goes_on_until_something_moves():
    # Block 10 sits where the zone ends inside the pageblock; 2 is on the reserve's list alone, its pageblock is not.
    zone = build(Zone61, [MOVABLE, HIGHATOMIC], {(0, HIGHATOMIC): [10], (1, HIGHATOMIC): [2]}, end=12)
    zone.nr_reserved_highatomic = 24
    assert allocator61(zone).unreserve_highatomic(Request(0, UNMOVABLE, frozenset()))
    assert (types(zone), zone.nr_reserved_highatomic) == ([UNMOVABLE, UNMOVABLE], 16)
    assert lists(zone) == {(0, HIGHATOMIC): [10], (1, UNMOVABLE): [2]}


def test_watermark_ok__61_subtracts_what_is_reserved():
    zone = build(Zone61, [MOVABLE, MOVABLE], {(3, MOVABLE): [0]})  # 8 free pages
    zone.nr_reserved_highatomic = 8
    flags = AllocFlags(mark=LOW)
    assert not Allocator61.watermark_ok(zone, 0, 4, 2, flags)
    assert Allocator.watermark_ok(zone, 0, 4, 2, flags)
    assert Allocator61.watermark_ok(zone, 0, 4, 2, AllocFlags(mark=LOW, min_reserve=True))


def test_isolate_free_page__61_leaves_the_rest_of_the_pageblock_on_its_list():
    zone = build(Zone61, [UNMOVABLE], {(2, UNMOVABLE): [4], (1, UNMOVABLE): [0]})
    assert allocator61(zone).isolate_free_page(4) == 2
    assert (lists(zone), types(zone), zone.free_pages.value) == ({(1, UNMOVABLE): [0]}, [MOVABLE], 2)


# -- 6.10 to 6.14 ------------------------------------------------------------------------------------------------


def test_find__610_takes_a_page_of_the_largest_block_whose_pageblock_is_refused():
    state = [MOVABLE, MOVABLE], {(1, MOVABLE): [2], (0, MOVABLE): [6]}
    lru = 0, 1, 4, 5, 7
    expected = 2, {(0, MOVABLE): [3, 6]}, [MOVABLE, MOVABLE], 8
    assert found(Zone, Finder610, 0, UNMOVABLE, *state, lru=lru) == expected
    assert found(Zone, Finder, 0, UNMOVABLE, *state, lru=lru)[::3] == (6, 16)


def test_find__610_takes_the_pageblock_as_612_does():
    state = [MOVABLE, MOVABLE], {(1, MOVABLE): [2], (0, MOVABLE): [6]}
    expected = 6, {(1, UNMOVABLE): [2]}, [UNMOVABLE, MOVABLE], 8
    assert found(Zone, Finder610, 0, UNMOVABLE, *state, lru=(0, 1, 4, 5)) == expected
    assert found(Zone, Finder610, 2, UNMOVABLE, [MOVABLE], {(3, MOVABLE): [0]}) == (
        0,
        {(2, UNMOVABLE): [4]},
        [UNMOVABLE],
        0,
    )


def test_find__610_boosts_for_a_single_page_too():
    state = [UNMOVABLE], {(1, UNMOVABLE): [4], (0, UNMOVABLE): [9]}
    expected = 9, {(1, UNMOVABLE): [4]}, [UNMOVABLE], 16
    assert found(Zone, Finder610, 0, MOVABLE, *state, pageblock_order=4) == expected


def test_find__610_remembers_nothing_from_block_to_block():
    expected = {Finder610: 8, Finder: 3}
    for kind, pfn in expected.items():
        zone = build(Zone, [MOVABLE, UNMOVABLE], {(0, MOVABLE): [2, 3]})
        finder = kind(zone, KSWAPD, {0, 1, 4, 5, 6, 7}, 15000)
        assert finder.find(0, UNMOVABLE) == 2
        zone.free_one(8, 0, UNMOVABLE)
        assert finder.find(0, UNMOVABLE) == pfn


@pytest.mark.parametrize(("kind", "finder"), [(Zone61, Finder61), (Zone, Finder610)])
def test_find__old_nofragment_wants_whole_pageblocks(kind, finder):
    zone = build(kind, [MOVABLE], {(2, MOVABLE): [4]})
    assert finder(zone, AllocFlags(mark=LOW, nofragment=True), set(), 15000).find(0, UNMOVABLE) is None
    assert (lists(zone), zone.watermark_boost) == ({(2, MOVABLE): [4]}, 0)


# -- mobility grouping off ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "finder"), [(UngroupedZone, UngroupedFinder), (UngroupedZone61, UngroupedFinder61)])
def test_find__ungrouped_every_claim_succeeds(kind, finder):
    state = [MOVABLE, MOVABLE], {(0, MOVABLE): [7, 3]}
    lru = set(range(16)) - {3, 7}  # too few free pages, and all others movable
    expected = 3, {(0, UNMOVABLE): [7]}, [UNMOVABLE, MOVABLE], 8
    assert found(kind, finder, 0, MOVABLE, *state, lru=lru) == expected
    assert found(Zone, Finder, 0, UNMOVABLE, *state, lru=lru)[2] == [MOVABLE, MOVABLE]


def test_set_type__ungrouped():
    zone = build(UngroupedZone, [MOVABLE, MOVABLE], {(3, MOVABLE): [0]})
    zone.move_free_blocks(0, RECLAIMABLE)
    assert (types(zone), lists(zone)) == ([UNMOVABLE, MOVABLE], {(3, RECLAIMABLE): [0]})
    zone.set_type(8, HIGHATOMIC)
    assert types(zone) == [UNMOVABLE, HIGHATOMIC]


def test_free_one__ungrouped_merged_block_on_the_list_of_the_freed_page():
    zone = build(UngroupedZone, [UNMOVABLE, MOVABLE], {(3, UNMOVABLE): [0]})
    zone.free_direct(8, 3)
    assert (types(zone), lists(zone)) == ([UNMOVABLE, MOVABLE], {(4, MOVABLE): [0]})
    assert zone.remove(0) == (4, MOVABLE)


def test_ungrouped__request_is_unmovable_and_has_no_cma():
    request = ungrouped(Request.parse(0, MOVABLE, "GFP_HIGHUSER_MOVABLE"))
    assert (request.migratetype, AllocFlags.slow(request).cma) == (UNMOVABLE, False)
    assert request.highest_zone == 3  # the gfp bits still say where it may come from


@pytest.mark.parametrize(("managed_pages", "high", "expected"), [(47, 0, True), (48, 0, False), (48, 1, True)])
def test_page_group_by_mobility_disabled(managed_pages, high, expected):
    zone = build(Zone, [MOVABLE], {}, managed_pages=managed_pages)
    zone.watermarks["high"] = high
    assert page_group_by_mobility_disabled([zone], n_migratetypes=6) is expected


def test_move__since_610_counts_out_and_in_again():
    # -1 - 2 folds to -3, then + 2 folds too: the sum is the same, what readers see is not. 6.1 counts nothing.
    for kind, expected in ((ListTypedZone, (1, {0: 0})), (Zone61, (2, {0: -1}))):
        zone = build(kind, [MOVABLE], {(1, UNMOVABLE): [2]})
        zone.free_pages = ZoneCounter(2, threshold=1)
        zone.free_pages.differences[0] = -1
        zone.move(2, MOVABLE)
        assert (zone.free_pages.value, zone.free_pages.differences) == expected
        assert lists(zone) == {(1, MOVABLE): [2]}


# -- everything together -----------------------------------------------------------------------------------------


def test_allocator61__no_page_is_lost():
    random = Random(61)
    kinds = [MOVABLE] * 8 + [CMA] * 4 + [RECLAIMABLE] * 4
    zone = build(Zone61, kinds, {(5, MOVABLE): [0, 32], (5, CMA): [64], (5, RECLAIMABLE): [96]}, max_order=5)
    allocator, in_use, n_wrong_lists = allocator61(zone), {}, 0
    for _ in range(3000):
        if random.random() < 0.52:
            order, migratetype = random.choice((0, 0, 0, 1, 2, 3, 4)), random.choice((UNMOVABLE, MOVABLE, RECLAIMABLE))
            flags = AllocFlags(mark=None, kswapd=True, cma=migratetype == MOVABLE)
            pfn = allocator.rmqueue(zone, Request(order, migratetype, frozenset()), flags, 0)
            if pfn is not None:
                in_use[pfn] = order
                allocator.lru.update(range(pfn, pfn + (1 << order)) if migratetype == MOVABLE else ())
        elif in_use:
            pfn = random.choice(list(in_use))
            order = in_use.pop(pfn)
            allocator.lru -= set(range(pfn, pfn + (1 << order)))
            allocator.free_pages(pfn, order, 0)
        pcp = allocator.pcp[2, 0]
        blocks = [(pfn, order) for (order, _), pfns in zone.lists.items() for pfn in pfns]
        on_pcp = [(pfn, pcp.order_of(index)) for index, pfns in enumerate(pcp.lists) for pfn in pfns]
        pages = [p for pfn, order in [*blocks, *on_pcp, *in_use.items()] for p in range(pfn, pfn + (1 << order))]
        assert sorted(pages) == list(range(128))
        assert pcp.count == sum(1 << order for _, order in on_pcp)
        assert zone.free_pages.value == sum(1 << order for _, order in blocks)
        assert zone.free_cma_pages.value == sum(len(zone.list_of(order, CMA)) << order for order in range(6))
        assert dict(blocks) == zone.free_orders
        assert {pfn: type_ for (_, type_), pfns in zone.lists.items() for pfn in pfns} == zone.free_types
        n_wrong_lists += any(zone.type_of(pfn) != type_ for pfn, type_ in zone.free_types.items())
    assert n_wrong_lists > 100
