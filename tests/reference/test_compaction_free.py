"""The slow twin of compaction's search for free blocks on zones worked out by hand (compaction_zones.py draws them)."""

from collections import OrderedDict, deque

import pytest

from tests.reference.allocator_zone import CMA, MOVABLE, UNMOVABLE
from tests.reference.compaction_state import ALL_ORDERS, ASYNC, SYNC, SYNC_LIGHT
from tests.reference.compaction_zones import build, events, memory_of, named, run_of, zone_of

USED = "u" * 16


def with_lists(lists, n_blocks=16, **options):
    """Pageblocks of 16 used pages from 16 on, and these free blocks: {order: [pfns, head first]}."""
    compactor = build(" ".join([USED] * n_blocks), **options)
    zone = zone_of(compactor)
    for order, pfns in lists.items():
        zone.lists[order, MOVABLE] = OrderedDict.fromkeys(pfns)
        zone.free_orders |= dict.fromkeys(pfns, order)
        zone.free_pages.value += len(pfns) << order
    return compactor


def searching(compactor, free_pfn=256, at_start=False, **options):
    """Sources from 16, targets below free_pfn: the preferred ones from 192, the others from 128 on."""
    run = run_of(compactor, **options)
    run.migrate_pfn, run.free_pfn = 16, free_pfn
    memory_of(compactor).init_free = 0 if at_start else 10**6
    memory_of(compactor).cached_free = free_pfn
    return run


def order_of_list(compactor, order):
    return list(zone_of(compactor).lists[order, MOVABLE])


# -- the search in the free lists ----------------------------------------------------------------------------------


def test_search_targets__takes_the_first_of_the_upper_quarter_from_the_tail() -> None:
    compactor = with_lists({2: [32, 200, 144, 64]})
    run = searching(compactor)
    run.fast_search_fail = 1
    assert events(run.search_targets())[0] == [
        ("rotated", 200, 2, "first"),
        ("isolated", 200, 2),
        ("fast_isolate_freepages", 128, 256, 6, 4),
    ]
    assert order_of_list(compactor, 2) == [144, 64, 32]
    assert (run.search_order, run.fast_search_fail, run.free_pfn) == (2, 0, 256)
    assert run.held == {2: deque([200])}


def test_search_targets__else_the_highest_of_the_upper_half() -> None:
    """The failures of before still count."""
    compactor = with_lists({2: [32, 144, 160, 64]})
    run = searching(compactor)
    run.fast_search_fail = 1
    assert events(run.search_targets())[0] == [
        ("rotated", 160, 2, "first"),
        ("isolated", 160, 2),
        ("fast_isolate_freepages", 128, 256, 7, 4),
    ]
    assert order_of_list(compactor, 2) == [64, 32, 144]
    assert (run.search_order, run.fast_search_fail) == (3, 1)


def test_search_targets__the_head_is_not_rotated() -> None:
    compactor = with_lists({2: [200, 64]})
    found, _ = events(searching(compactor).search_targets())
    assert found == [("isolated", 200, 2), ("fast_isolate_freepages", 128, 256, 5, 4)]


def test_search_targets__each_failure_begins_an_order_lower_and_halves_the_limit() -> None:
    """No block is high enough. With 4 failures the limit is 1: a walk visits the tail alone and makes it the head."""
    compactor = with_lists({3: [32, 40], 1: [64, 68, 72]})
    run = searching(compactor)
    run.fast_search_fail = 4
    assert events(run.search_targets())[0] == [
        ("rotated", 40, 3, "first"),
        ("rotated", 72, 1, "first"),
        ("fast_isolate_freepages", 128, 256, 2, 0),
    ]
    assert order_of_list(compactor, 1) == [72, 64, 68]
    assert (run.search_order, run.fast_search_fail) == (2, 5)
    assert events(run.search_targets())[0] == [  # 2, 1, 0, 3
        ("rotated", 68, 1, "first"),
        ("rotated", 32, 3, "first"),
        ("fast_isolate_freepages", 128, 256, 2, 0),
    ]
    assert run.search_order == 1
    run.search_order = 0
    events(run.search_targets())
    assert run.search_order == 3


def test_search_targets__a_candidate_halves_the_limit() -> None:
    """Limit 4 after two failures, and 2 from the candidate 128 on: 200 would be better, but stands third."""
    compactor = with_lists({3: [200, 72, 128]})
    run = searching(compactor)
    run.fast_search_fail = 2
    assert events(run.search_targets())[0] == [
        ("rotated", 128, 3, "first"),
        ("isolated", 128, 3),
        ("fast_isolate_freepages", 128, 256, 9, 8),
    ]


def test_search_targets__a_walk_that_reached_the_limit_halves_it() -> None:
    """4 of order 3, then 2 of order 2: there too 200 stands third."""
    compactor = with_lists({3: [40, 48, 56, 64, 72], 2: [200, 80, 100]})
    run = searching(compactor)
    run.fast_search_fail = 2
    assert events(run.search_targets())[0] == [
        ("rotated", 48, 3, "first"),
        ("rotated", 80, 2, "first"),
        ("fast_isolate_freepages", 128, 256, 6, 0),
    ]


def test_search_targets__a_walk_through_a_whole_list_leaves_it() -> None:
    compactor = with_lists({2: [32, 64, 48]})
    assert events(searching(compactor).search_targets())[0] == [("fast_isolate_freepages", 128, 256, 3, 0)]
    assert order_of_list(compactor, 2) == [32, 64, 48]


def test_search_targets__the_isolation_is_refused() -> None:
    compactor = with_lists({2: [200]})
    run = searching(compactor)
    zone_of(compactor).free_pages.value = 4  # not above 0 + 4
    assert events(run.search_targets())[0] == [("fast_isolate_freepages", 128, 256, 1, 0)]
    assert (run.search_order, run.fast_search_fail) == (1, 1)


def test_search_targets__the_start_of_a_scan_goes_to_the_highest_pageblock_seen() -> None:
    """A list of another type counts as free blocks of that order, but is not walked."""
    compactor = with_lists({0: [70, 100]})
    run = searching(compactor, at_start=True, free_pfn=96)
    run.n_wanted = 3
    # distance 80: preferred from 64 on (96 - 20 = 76), the others from 48 on
    found, _ = events(run.search_targets())
    assert found[:2] == [("rotated", 100, 0, "first"), ("isolated", 100, 0)]
    compactor = with_lists({0: [130]})
    run = searching(compactor, at_start=True)
    zone_of(compactor).free_pages.value = 0
    found, _ = events(run.search_targets())
    # refused; its pageblock 128 is not below 128: the scan begins there, and the pageblock itself is scanned
    assert named(found, "isolated") == []
    assert found == [("fast_isolate_freepages", 128, 256, 1, 0), ("isolate_freepages", 128, 130, 3, 0)]
    assert run.free_pfn == 128


@pytest.mark.parametrize(("direct", "free_pfn"), [(True, 128), (False, 256)])
def test_search_targets__a_request_that_sees_none_begins_in_the_middle(direct: bool, free_pfn: int) -> None:
    compactor = with_lists({0: [40]})
    run = searching(compactor, at_start=True, direct=direct, migratetype=MOVABLE)
    found, _ = events(run.search_targets())
    assert run.free_pfn == free_pfn
    around = [("isolate_freepages", 128, 144, 16, 0)] * direct
    assert found == [("fast_isolate_freepages", 128, 256, 1, 0), *around]
    assert memory_of(compactor).skip == ({128} if direct else set())
    assert memory_of(compactor).cached_free == 256


def test_search_targets__the_cached_position_follows_what_was_seen() -> None:
    compactor = with_lists({2: [200]})
    run = searching(compactor)
    memory_of(compactor).cached_free = 192
    events(run.search_targets())
    assert memory_of(compactor).cached_free == 176


def test_search_targets__the_rest_of_the_pageblock_but_not_in_a_hurry() -> None:
    for options, around in [
        ({}, [("isolated", 194, 0), ("isolated", 207, 0), ("isolate_freepages", 192, 208, 16, 2)]),
        ({"mode": ASYNC}, [("isolated", 194, 0), ("isolated", 207, 0), ("isolate_freepages", 192, 208, 16, 2)]),
        ({"mode": ASYNC, "direct": True}, []),
    ]:
        compactor = with_lists({2: [200], 0: [194, 207]})
        run = searching(compactor, **options)
        run.n_wanted = 7
        found, _ = events(run.search_targets())
        assert found == [("isolated", 200, 2), ("fast_isolate_freepages", 128, 256, 4, 4), *around]
        assert memory_of(compactor).skip == ({192} if around else set())
        assert memory_of(compactor).cached_free == 256
        assert run.free_pfn == 256


def test_isolate_targets__whatever_the_search_brought_saves_the_scan() -> None:
    compactor = with_lists({2: [200], 0: [250]})
    run = searching(compactor, mode=ASYNC, direct=True)
    run.n_wanted = 7
    assert named(events(run.isolate_targets())[0], "isolate_freepages") == []


# -- the linear scan -----------------------------------------------------------------------------------------------


def scanning(words, **options):
    """For any order: the lists are not searched."""
    kernel, types = options.pop("kernel", "6.12.117"), options.pop("types", None)
    run = run_of(build(words, kernel, types=types), order=ALL_ORDERS, **options)
    run.migrate_pfn, run.free_pfn = run.zone.start_pfn, run.last_block()
    run.memory.cached_free = run.free_pfn
    return run


def test_isolate_targets__goes_on_at_the_frame_where_it_left() -> None:
    run = scanning("uuuu uuuu u.uu .u.u", mode=SYNC)
    assert events(run.isolate_targets())[0] == [("isolated", 16, 0), ("isolate_freepages", 16, 17, 1, 1)]
    assert run.free_pfn == 17
    run.held.clear()
    run.n_free, run.n_wanted = 0, 2
    assert events(run.isolate_targets())[0] == [
        ("isolated", 18, 0),
        ("isolate_freepages", 17, 20, 3, 1),
        ("isolated", 13, 0),
        ("isolate_freepages", 12, 14, 2, 1),
    ]
    assert (run.free_pfn, run.memory.skip, run.memory.cached_free) == (14, {16}, 12)


def test_isolate_targets__enough_at_the_end_of_a_pageblock_goes_on_below() -> None:
    run = scanning("uuuu uuuu u.uu uuu.", mode=SYNC)
    assert events(run.isolate_targets())[0] == [("isolated", 19, 0), ("isolate_freepages", 16, 20, 4, 1)]
    assert (run.free_pfn, run.memory.skip, run.memory.cached_free) == (12, {16}, 12)


@pytest.mark.parametrize(("kernel", "cached_free"), [("6.12.117", 8), ("6.1", 12)])
def test_isolate_targets__runs_out_at_the_sources(kernel: str, cached_free: int) -> None:
    run = scanning("uuuu uuuu u.uu ....", mode=SYNC, kernel=kernel)
    run.migrate_pfn = 9
    run.n_wanted = 5
    assert events(run.isolate_targets())[0] == [("isolated", 13, 0), ("isolate_freepages", 12, 16, 4, 1)]
    # 16 is a whole free pageblock already: passed without an event
    assert (run.free_pfn, run.memory.skip, run.memory.cached_free) == (8, {12}, cached_free)


def test_isolate_targets__the_stride_doubles_over_empty_pageblocks() -> None:
    run = scanning(" ".join([USED] * 4 + ["u.u.u" + "u" * 11] + [USED]), mode=SYNC)
    run.n_wanted = 9
    found, _ = events(run.isolate_targets())
    # 96: every page; 80: every second page, which misses both free ones
    assert found == [
        ("isolate_freepages", 96, 112, 16, 0),
        ("isolate_freepages", 80, 96, 8, 0),
        ("isolate_freepages", 64, 80, 4, 0),
        ("isolate_freepages", 48, 64, 2, 0),
        ("isolate_freepages", 32, 48, 1, 0),
    ]


def test_isolate_targets__pages_found_bring_the_stride_back() -> None:
    run = scanning(" ".join([USED] * 3 + ["." + "u" * 15] + [USED] * 2), mode=ASYNC)
    run.n_wanted = 9
    found, _ = events(run.isolate_targets())
    assert found == [
        ("isolate_freepages", 96, 112, 1, 0),
        ("isolate_freepages", 80, 96, 1, 0),
        ("isolated", 64, 0),
        ("isolate_freepages", 64, 80, 1, 1),
        ("isolate_freepages", 48, 64, 16, 0),
        ("isolate_freepages", 32, 48, 8, 0),
    ]


def test_scan_for_targets__jumps_over_blocks_and_compound_pages() -> None:
    run = scanning("uuuuuuuu uuuuuuuu uuuu..uu")
    run.pages.make_compound(24, 2)
    run.n_wanted = 9
    found, (end, n_taken) = events(run.scan_for_targets(24, 32, 1))
    assert found == [("isolated", 28, 1), ("isolate_freepages", 24, 32, 8, 2)]
    assert (end, n_taken) == (32, 2)
    found, _ = events(run.scan_for_targets(24, 27, 1))  # it does not fit: its pages one by one
    assert found == [("isolate_freepages", 24, 27, 3, 0)]


def test_suitable_target__by_generation() -> None:
    types = {4: UNMOVABLE, 8: CMA}
    words = "uuuu uuuu ..uu ...."
    for kernel, order, expected in [
        ("6.12.117", 1, [False, True, False, False]),
        ("6.12.117", 2, [False, True, True, False]),
        ("6.12.117", ALL_ORDERS, [False, True, True, False]),
        ("6.1", 1, [False, True, True, False]),
    ]:
        compactor = build(words, kernel, types=types)
        run = run_of(compactor, order=order)
        assert [run.suitable_target(pfn) for pfn in (4, 8, 12, 16)] == expected
        run.ignore_suitable = True
        assert run.suitable_target(4)
        assert not run.suitable_target(16)


def test_isolate_targets__a_zone_that_begins_and_ends_amid_a_pageblock() -> None:
    """[5, 22): the last pageblock is cut short, the first is no target."""
    compactor = build(".uuuuuuu uuuuuuuu .uuuuuuu", start=5)
    zone = zone_of(compactor)
    zone.end_pfn = 22
    run = run_of(compactor, order=ALL_ORDERS, mode=SYNC)
    run.migrate_pfn, run.free_pfn, run.n_wanted = 5, run.last_block(), 2
    assert run.free_pfn == 16
    found, _ = events(run.isolate_targets())
    assert found == [("isolated", 21, 0), ("isolate_freepages", 16, 22, 6, 1), ("isolate_freepages", 8, 16, 8, 0)]
    assert run.free_pfn == 0


# -- the private lists ---------------------------------------------------------------------------------------------


def test_take_target__the_low_half_of_the_smallest_block() -> None:
    run = run_of(build("mmmm .... .... ...."), mode=SYNC)
    run.n_wanted = 8
    for pfn, order in ((16, 2), (14, 1), (8, 0)):
        run.hold(pfn, order)
    assert events(run.take_target(0)) == ([], 8)
    assert events(run.take_target(0)) == ([], 14)
    assert run.held == {2: deque([16]), 1: deque(), 0: deque([15])}
    assert events(run.take_target(1)) == ([], 16)
    assert run.held == {2: deque(), 1: deque([18]), 0: deque([15])}
    assert (run.n_free, run.n_wanted) == (3, 4)
    assert events(run.give_back(8, 0)) == ([("fictitious", 8)], None)
    assert run.held[0] == deque([8, 15])
    assert (run.n_free, run.n_wanted) == (4, 5)


def test_take_target__single_pages_from_the_last_one_down_before_6_10() -> None:
    run = run_of(build("mmmm .... .... ....", "6.1"), mode=SYNC)
    for pfn, order in ((8, 1), (12, 2)):
        run.hold(pfn, order)
    assert [events(run.take_target(0))[1] for _ in range(6)] == [15, 14, 13, 12, 9, 8]
    assert events(run.give_back(8, 0)) == ([], None)


def test_release__raises_the_cached_position_only() -> None:
    for cached_free, expected in ((4, 16), (20, 20)):
        compactor = build("mmmm mmmm mmmm .... ....")
        memory_of(compactor).cached_free = cached_free
        run = run_of(compactor, mode=SYNC)
        run.isolate(16, 2)
        assert zone_of(compactor).free_orders == {20: 2}
        events(run.take_target(0))
        assert events(run.release())[0] == [("released", 17, 0), ("released", 18, 1)]
        assert memory_of(compactor).cached_free == expected


def test_isolate__half_a_pageblock_makes_it_movable() -> None:
    compactor = build("uuuu uu..", types={8: UNMOVABLE})
    run = run_of(compactor, mode=SYNC)
    run.isolate(10, 1)
    assert zone_of(compactor).type_of(8) == MOVABLE


def test_isolate__the_watermark_has_no_boost_and_counts_cma() -> None:
    compactor = build("uuuu ....", types={8: CMA})
    zone = zone_of(compactor)
    run = run_of(compactor, mode=SYNC_LIGHT)
    zone.watermark_boost, zone.free_cma_pages.value, zone.free_pages.value = 100, 4, 5
    assert run.isolate(8, 2)
