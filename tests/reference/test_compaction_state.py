"""The slow twin of what compaction remembers: deferral, skip bits, the search for sources, and what is suitable."""

from collections import OrderedDict

import pytest

from tests.reference.allocator_request import AllocFlags
from tests.reference.allocator_zone import HIGH, ISOLATE, LOW, MIN, MOVABLE, UNMOVABLE
from tests.reference.compaction import compact_gap, fragmentation_index, suit_allocation_order, suitable
from tests.reference.compaction_state import ALL_ORDERS, ASYNC, SYNC_LIGHT, Status, ZoneMemory, reset_isolation_suitable
from tests.reference.compaction_zones import build, events, memory_of, run_of, zone_of

USED = "u" * 16


# -- deferral ------------------------------------------------------------------------------------------------------


def test_deferred__twice_as_long_after_each_failure_up_to_64() -> None:
    memory = ZoneMemory()
    assert not memory.deferred(9)
    assert memory.considered == 1
    for shift in (1, 2, 3, 4, 5, 6, 6):
        memory.defer(9)
        assert (memory.considered, memory.defer_shift, memory.order_failed) == (0, shift, 0)
        answers = [memory.deferred(9) for _ in range((1 << shift) + 2)]
        assert answers == [True] * ((1 << shift) - 1) + [False] * 3
        assert memory.considered == 1 << shift
        assert memory.restarting(9) == (shift == 6)


def test_deferred__orders_below_the_one_that_failed_do_not_count() -> None:
    memory = ZoneMemory()
    memory.defer_reset(9, allocated=False)
    memory.defer_reset(3, allocated=False)
    assert memory.order_failed == 10
    assert not memory.deferred(9)
    assert memory.considered == 0
    memory.defer(4)
    assert memory.order_failed == 4
    assert memory.deferred(4)
    assert not memory.deferred(3)
    assert (memory.considered, memory.defer_shift) == (1, 1)
    memory.defer_reset(4, allocated=False)
    assert (memory.considered, memory.defer_shift, memory.order_failed) == (1, 1, 5)
    memory.defer_reset(4, allocated=True)
    assert (memory.considered, memory.defer_shift, memory.order_failed) == (0, 0, 5)


# -- the reset of skip bits ----------------------------------------------------------------------------------------


def reset(compactor, skip):
    memory = memory_of(compactor)
    memory.skip, memory.blockskip_flush = set(skip), True
    reset_isolation_suitable(zone_of(compactor), memory, compactor.pages)
    return memory


def test_reset__from_both_ends() -> None:
    """[16, 128): up from 16, down from 127. 16 has neither, 32 a movable page; 112 neither, 96 a free one."""
    words = [USED, "m" + "u" * 15, "m" + "u" * 7 + "." + "u" * 7, USED, "m" + "u" * 15, "." + "u" * 15, USED]
    memory = reset(build(" ".join(words)), range(16, 128, 16))
    assert (memory.init_migrate, memory.cached_migrate) == (32, [32, 32])
    assert (memory.init_free, memory.cached_free) == (111, 111)
    # up: 16 no, 32 a page to move, 48 either; down: 127 no, 111 a free one, 95 either
    assert memory.skip == {16, 64, 112}
    assert not memory.blockskip_flush


def test_reset__every_eighth_page_is_looked_at() -> None:
    """Movable pages at 17 and 20 and free ones at 33 and 36 are not seen: no distance is left between the scanners."""
    compactor = build(" ".join(["umuum" + "u" * 11, "u.uu." + "u" * 11]))
    memory = reset(compactor, [16, 32])
    assert memory.skip == {16, 32}
    assert (memory.init_migrate, memory.init_free) == (0, 0)
    assert (memory.cached_migrate, memory.cached_free) == ([32, 32], 31)


def test_reset__a_target_is_movable_but_for_sources_the_type_is_of_no_account() -> None:
    words = ["m" + "u" * 15, USED, USED, "." + "u" * 15]
    compactor = build(" ".join(words), types={16: UNMOVABLE, 64: UNMOVABLE})
    memory = reset(compactor, [16, 32, 48, 64])
    assert memory.skip == {32, 48, 64}
    assert (memory.init_migrate, memory.init_free) == (16, 0)
    assert (memory.cached_migrate, memory.cached_free) == ([48, 48], 47)


def test_reset__huge_pages_are_neither() -> None:
    compactor = build(" ".join(["m" * 16, "m" * 16, USED, "." + "u" * 15]))
    compactor.pages.make_compound(16, 5)
    memory = reset(compactor, [16, 32, 48, 64])
    assert memory.skip == {16, 32, 48}
    assert (memory.init_migrate, memory.init_free) == (0, 79)
    assert memory.cached_migrate == [48, 48]


def test_reset__only_if_a_request_asked() -> None:
    compactor = build(" ".join(["m" * 16, USED, "." + "u" * 15]))
    memory_of(compactor).skip = {16, 48}
    compactor.before_kswapd_sleeps()
    assert memory_of(compactor).skip == {16, 48}
    memory_of(compactor).blockskip_flush = True
    compactor.before_kswapd_sleeps()
    assert memory_of(compactor).skip == set()
    assert (memory_of(compactor).init_migrate, memory_of(compactor).init_free) == (16, 63)


# -- the search for sources ----------------------------------------------------------------------------------------


def with_list(order, pfns, n_blocks=32, **options):
    """A zone from 16 on whose scanners stand at `migrate` and 528."""
    compactor = build(" ".join([USED] * n_blocks), max_order=6)
    zone = zone_of(compactor)
    zone.lists[order, MOVABLE] = OrderedDict.fromkeys(pfns)
    zone.free_orders |= dict.fromkeys(pfns, order)
    migrate = options.pop("migrate", 16)
    run = run_of(compactor, order=options.pop("run_order", 5), **options)
    run.migrate_pfn, run.free_pfn, run.last_migrated = migrate, 528, 10**6
    return run


def test_find_source_block__in_the_lower_half_at_the_start_of_the_zone() -> None:
    """Bound 16 + 512 / 2 = 272. The block 272 is not below it, 48 is skipped, 80 is taken; it and they go last."""
    run = with_list(3, [272, 48, 88, 32])
    run.memory.skip.add(48)
    run.fast_search_fail = 2
    assert events(run.find_source_block()) == ([("rotated", 88, 3, "last")], (80, True))
    assert list(run.zone.lists[3, MOVABLE]) == [32, 272, 48, 88]
    assert (run.fast_search_fail, run.fast_start, run.migrate_pfn) == (0, 88, 16)
    run.memory.skip.discard(48)
    assert events(run.find_source_block()) == ([("rotated", 32, 3, "last")], (32, True))
    assert run.fast_start == 32
    run.memory.skip.add(32)
    assert events(run.find_source_block()) == ([("rotated", 48, 3, "last")], (48, True))
    assert run.fast_start == 32


def test_find_source_block__in_the_lowest_eighth_of_the_rest_elsewhere() -> None:
    """Bound 32 + 496 / 8 = 94, that is 80."""
    run = with_list(3, [88, 72], migrate=32)
    assert events(run.find_source_block()) == ([], (64, True))  # the last entry is last already


@pytest.mark.parametrize(("fail", "last"), [(4, 64), (6, 40), (5, 48)])
def test_find_source_block__the_entry_behind_the_limit_ends_it(fail: int, last: int) -> None:
    """Limits 3, 2 and 1: all entries are skipped, and what lies up to the next entry goes last."""
    run = with_list(3, [32, 40, 48, 64, 80])
    run.memory.skip.update([32, 48, 64, 80])
    run.fast_search_fail = fail
    found, (start, searched) = events(run.find_source_block())
    assert found == [("rotated", last, 3, "last")]
    assert (start, searched, run.fast_search_fail) == (16, False, fail + 1)


def test_find_source_block__other_orders_until_the_limit() -> None:
    run = with_list(4, [32, 48])
    run.zone.lists[3, MOVABLE] = OrderedDict.fromkeys([64])
    run.zone.free_orders[64] = 3
    run.memory.skip.update([32, 48])
    assert events(run.find_source_block()) == ([], (64, True))
    run.fast_search_fail = 5  # limit 2: reached by order 4
    assert events(run.find_source_block())[1] == (64, False)  # where the first search had found something


def test_find_source_block__earlier_finds_are_gone_back_to_once() -> None:
    run = with_list(3, [88])
    run.fast_start, run.migrate_pfn = 40, 32
    run.memory.skip.add(80)
    assert events(run.find_source_block()) == ([], (40, False))
    assert run.migrate_pfn == 40
    run.migrate_pfn = 64
    assert events(run.find_source_block()) == ([], (64, False))
    assert run.fast_start is None
    run.memory.skip.clear()
    run.migrate_pfn = 16
    assert events(run.find_source_block()) == ([], (80, True))
    assert run.fast_start is None


@pytest.mark.parametrize(
    "options",
    [
        {"ignore_skip": True},
        {"run_order": 3},
        {"migrate": 17},
        {"direct": True, "migratetype": UNMOVABLE},
        {"run_order": ALL_ORDERS},
    ],
)
def test_find_source_block__not_always(options: dict[str, object]) -> None:
    migrate = options.get("migrate", 16)
    run = with_list(2 if options.get("run_order") == 3 else 3, [88], **options)
    assert events(run.find_source_block()) == ([], (migrate, False))
    assert run.fast_search_fail == 0
    run = with_list(3, [88])
    run.finish_block = True
    assert events(run.find_source_block()) == ([], (16, False))


def test_find_source_block__kernel_requests_of_a_pageblock_or_more_search_in_7_2() -> None:
    run = with_list(3, [88], direct=True, migratetype=UNMOVABLE)
    run.newer = True
    assert events(run.find_source_block())[1] == (80, True)
    run.order, run.migrate_pfn = 3, 16
    assert events(run.find_source_block())[1] == (16, False)


# -- what is suitable ----------------------------------------------------------------------------------------------


def test_compact_gap() -> None:
    assert [compact_gap(zone_of(build("mmmm ....")), order) for order in (1, 4, 9)] == [4, 32, 1024]
    assert [compact_gap(zone_of(build("mmmm ....", "7.3")), order) for order in (1, 4, 9)] == [4, 32, 32]


def test_fragmentation_index__too_little_memory_or_fragmentation() -> None:
    zone = zone_of(build("uuuu uuuu"))
    assert fragmentation_index(zone, 2) == 0
    zone.lists = {(0, MOVABLE): OrderedDict.fromkeys([1])}
    assert fragmentation_index(zone, 1) == -500
    zone.lists = {(0, MOVABLE): OrderedDict.fromkeys(range(40)), (1, ISOLATE): OrderedDict.fromkeys(range(60))}
    assert fragmentation_index(zone, 2) == 1000 - (1000 + 160 * 1000 // 4) // 100
    assert fragmentation_index(zone, 1) == -1000


def zone_with(n_free, order=0, kernel="6.12.117"):
    """n_free pages in blocks of that order; marks 100, 150 and 200."""
    compactor = build("uuuu uuuu", kernel)
    zone = zone_of(compactor)
    zone.watermarks = {MIN: 100, LOW: 150, HIGH: 200}
    zone.free_pages.value = n_free
    zone.lists = {(order, MOVABLE): OrderedDict.fromkeys(range(0, n_free, 1 << order))}
    return compactor.allocator, zone


@pytest.mark.parametrize(
    ("kernel", "order", "n_free", "status"),
    [
        ("6.12.117", 2, 108, Status.SKIPPED),  # 100 + 8
        ("6.12.117", 2, 109, Status.CONTINUE),
        ("6.12.117", 4, 182, Status.SKIPPED),  # 150 + 32
        ("6.12.117", 4, 183, Status.CONTINUE),
        ("6.12.117", 5, 214, Status.SKIPPED),  # 150 + 64
        ("7.3", 5, 182, Status.SKIPPED),  # 100 + 50 + 32
        ("7.3", 5, 183, Status.CONTINUE),
        ("7.3", 2, 108, Status.SKIPPED),
        ("7.3", 2, 109, Status.CONTINUE),
    ],
)
def test_suitable__room_for_the_targets(kernel: str, order: int, n_free: int, status: Status) -> None:
    assert suitable(*zone_with(n_free, kernel=kernel), order, 2) == status


def test_suitable__boost_and_reserve_count() -> None:
    allocator, zone = zone_with(120)
    assert suitable(allocator, zone, 2, 2) == Status.CONTINUE
    zone.watermark_boost = 12
    assert suitable(allocator, zone, 2, 2) == Status.SKIPPED
    zone.watermark_boost, zone.lowmem_reserve = 0, (0, 0, 0, 12)
    assert suitable(allocator, zone, 2, 2) == Status.CONTINUE
    assert suitable(allocator, zone, 2, 3) == Status.SKIPPED


def test_suitable__costly_orders_need_fragmentation_too() -> None:
    """256 free pages: in blocks of 8 the index is 719, in blocks of 16 it is 438, and up to 500 is a lack of memory."""
    assert suitable(*zone_with(256, order=3), 5, 2) == Status.CONTINUE
    assert suitable(*zone_with(256, order=4), 5, 2) == Status.NOT_SUITABLE_ZONE
    allocator, zone = zone_with(256)
    zone.lists = {(4, MOVABLE): OrderedDict.fromkeys([0])}  # index 1000 - (1000 + 500) = -500
    assert suitable(allocator, zone, 5, 2) == Status.CONTINUE
    zone.lists = {(4, MOVABLE): OrderedDict.fromkeys([0, 32])}  # index 1000 - 2000 // 2 = 0
    assert suitable(allocator, zone, 5, 2) == Status.NOT_SUITABLE_ZONE
    zone.lists = {}
    assert suitable(allocator, zone, 5, 2) == Status.NOT_SUITABLE_ZONE
    zone.lists = {(4, MOVABLE): OrderedDict.fromkeys([0, 32, 64])}  # index 1000 - 2500 // 3 = 167
    assert suitable(allocator, zone, 5, 2) == Status.NOT_SUITABLE_ZONE
    assert suitable(allocator, zone, 3, 2) == Status.CONTINUE


def test_suit_allocation_order__says_whether_it_looked() -> None:
    flags = AllocFlags(mark=MIN)
    allocator, zone = zone_with(400, order=3)
    assert events(suit_allocation_order(allocator, zone, 3, 2, flags, ASYNC)) == ([], Status.SUCCESS)
    assert events(suit_allocation_order(allocator, zone, 5, 2, flags, ASYNC)) == (
        [("suitable", "continue")],
        Status.CONTINUE,
    )
    zone.lists = {}
    assert events(suit_allocation_order(allocator, zone, 5, 2, flags, ASYNC)) == (
        [("suitable", "not_suitable_zone")],
        Status.SKIPPED,
    )


def test_suit_allocation_order__7_2_hurries_past_what_only_cma_would_give() -> None:
    flags = AllocFlags(mark=MIN)
    allocator, zone = zone_with(400, order=3, kernel="7.3")
    zone.free_cma_pages.value = 300  # 100 free without them, 132 asked for
    for mode, cma, order, expected in [
        (ASYNC, False, 5, ([], Status.SKIPPED)),
        (ASYNC, True, 5, ([("suitable", "continue")], Status.CONTINUE)),
        (SYNC_LIGHT, False, 5, ([("suitable", "continue")], Status.CONTINUE)),
    ]:
        asked = AllocFlags(mark=MIN, cma=cma)
        assert events(suit_allocation_order(allocator, zone, order, 2, asked, mode)) == expected
    del zone.features
    zone.features = zone_of(build("mmmm ....")).features
    assert events(suit_allocation_order(allocator, zone, 5, 2, flags, ASYNC))[1] == Status.CONTINUE


# -- proactive compaction ------------------------------------------------------------------------------------------


def test_proactive__scores_and_marks() -> None:
    compactor, newer = build("uuuu uuuu", pmd_order=2), build("uuuu uuuu", "7.3", pmd_order=2)
    zone_of(compactor).lists = {
        (0, MOVABLE): OrderedDict.fromkeys(range(30)),
        (3, UNMOVABLE): OrderedDict.fromkeys(range(0, 80, 8)),
    }
    assert compactor.score(zone_of(compactor)) == 27  # 30 of 110
    assert compactor.node_score({2: 8}) == 8 * 27 // 9
    marks = []
    for proactiveness in (20, 100, 99, 0):
        compactor.proactiveness = newer.proactiveness = proactiveness
        marks += [(twin.low_mark(), twin.high_mark()) for twin in (compactor, newer)]
    assert marks == [(80, 90), (80, 90), (5, 15), (0, 0), (5, 15), (1, 1), (100, 100), (100, 100)]
    compactor.proactiveness = 80
    assert compactor.goes_on(zone_of(compactor)) == Status.CONTINUE
    assert not compactor.is_due({2: 8})
    assert compactor.is_due({2: 800}) == (800 * 27 // 801 > 30)
    compactor.proactiveness = 73
    assert compactor.goes_on(zone_of(compactor)) == Status.SUCCESS
    compactor.kswapd_runs = True
    assert compactor.goes_on(zone_of(compactor)) == Status.PARTIAL_SKIPPED
