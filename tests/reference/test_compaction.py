"""The slow twin of compaction on zones small enough to be worked out by hand (compaction_zones.py draws them)."""

from collections import OrderedDict

import pytest

from tests.reference.allocator_request import AllocFlags
from tests.reference.allocator_zone import CMA, MIN, MOVABLE, RECLAIMABLE, UNMOVABLE
from tests.reference.compaction_state import ALL_ORDERS, ASYNC, SYNC, SYNC_LIGHT, Status
from tests.reference.compaction_tasks import CompactionTask
from tests.reference.compaction_zones import build, compaction, events, memory_of, named, run_of, zone_of

# -- a whole run ---------------------------------------------------------------------------------------------------


def test_compact_memory__every_event_of_a_small_zone() -> None:
    """Pageblocks of 4 pages from 4 to 20: two pages move up, a third finds no target."""
    compactor = build("m.m. m... .... .m.m")
    found, _ = events(CompactionTask(compactor).compact_memory())
    assert found == [
        ("begin", 4, 4, 16, 20, "sync"),
        ("finished", "continue"),
        ("isolate_migratepages", 4, 8, 4, 2),
        ("isolated", 16, 0),
        ("isolated", 18, 0),
        ("isolate_freepages", 16, 19, 3, 2),
        ("free", 6),
        ("free", 4),
        ("migratepages", 2, 0),
        ("finished", "continue"),
        ("isolate_migratepages", 8, 12, 4, 1),
        ("isolate_freepages", 19, 20, 1, 0),
        ("migratepages", 0, 1),
        ("finished", "complete"),
        ("end", 4, 12, 12, 20, "sync", "complete"),
    ]
    zone, memory = zone_of(compactor), memory_of(compactor)
    assert (zone.free_orders[4], zone.free_orders[12]) == (2, 2)
    assert memory.cached_migrate == [4, 4]
    assert memory.cached_free == 16
    assert memory.skip == {16}
    assert compactor.pages.lru.batches == {0: [16, 18, 8]}
    assert not memory.blockskip_flush


def test_compact_memory__unused_targets_return_twice_and_are_released() -> None:
    """Two ramfs pages: tried together, then one by one, which gives back the same frame; all is freed at the end."""
    compactor = build("rr.. uuuu .... ...u")
    found, _ = events(CompactionTask(compactor).compact_memory())
    assert named(found, "isolated", "fictitious", "migratepages", "released", "free") == [
        ("isolated", 16, 1),
        ("fictitious", 16),
        ("fictitious", 17),
        ("fictitious", 17),
        ("fictitious", 17),
        ("migratepages", 0, 2),
        ("released", 17, 0),
        ("released", 16, 0),
    ]
    assert zone_of(compactor).free_orders == {6: 1, 12: 2, 16: 1, 18: 0}
    assert compactor.pages.lru.batches == {0: [5, 4]}
    assert memory_of(compactor).cached_free == 16


def test_compact_memory__asynchronous_modes_leave_ramfs_alone() -> None:
    for mode in (ASYNC, SYNC_LIGHT):
        compactor = build("rm.. .... ....")
        found, _ = events(compaction(compactor, 2, mode, whole_zone=True).scan_for_sources(4, 8))
        assert found == [("isolate_migratepages", 4, 8, 4, 1)]


def test_run__mlocked_pages_empty_the_batch() -> None:
    compactor = build("ml.. uuuu ...u")
    events(CompactionTask(compactor).compact_memory())
    # 5 (mlocked) goes first, to 12; 4 then goes to 13
    assert compactor.pages.mlocked == {12}
    assert compactor.allocator.lru == {12}
    assert compactor.pages.lru.batches == {0: [13]}


def test_run__no_target_and_the_scanners_apart_is_contended() -> None:
    """The watermark refuses the only free pages."""
    compactor = build("mm.. uuuu uuuu ...u")
    zone_of(compactor).watermarks["min"] = 5
    found, status = events(compaction(compactor, ALL_ORDERS, SYNC, whole_zone=True, ignore_skip=True).run())
    assert status == Status.CONTENDED
    assert named(found, "isolated", "isolate_freepages", "migratepages") == [
        ("isolate_freepages", 16, 16, 1, 0),
        ("migratepages", 0, 2),
    ]
    assert compactor.pages.lru.batches == {0: [5, 4]}
    zone_of(compactor).watermarks["min"] = 2  # 5 free > 2 + 2
    found, status = events(compaction(compactor, ALL_ORDERS, SYNC, whole_zone=True, ignore_skip=True).run())
    assert named(found, "isolated") == [("isolated", 16, 1)]


# -- begin and end -------------------------------------------------------------------------------------------------


def test_place_scanners__positions_never_set_are_the_ends_and_not_the_whole_zone() -> None:
    compactor = build("mmmm .... .... ....")
    run = compaction(compactor, 3, SYNC_LIGHT)
    run.place_scanners()
    assert (run.migrate_pfn, run.free_pfn, run.whole_zone) == (4, 16, False)
    assert memory_of(compactor).cached_migrate == [4, 4]
    assert memory_of(compactor).cached_free == 16
    memory_of(compactor).init_migrate = 4
    run = compaction(compactor, 3, SYNC_LIGHT)
    run.place_scanners()
    assert run.whole_zone


def test_place_scanners__each_mode_has_its_own() -> None:
    compactor = build("mmmm .... .... ....")
    memory_of(compactor).cached_migrate[:] = 12, 8
    memory_of(compactor).cached_free = 12
    for mode, expected in ((ASYNC, 12), (SYNC_LIGHT, 8)):
        run = compaction(compactor, 3, mode)
        run.place_scanners()
        assert (run.migrate_pfn, run.free_pfn) == (expected, 12)


@pytest.mark.parametrize(("direct", "flush"), [(True, True), (False, False)])
def test_finished__meeting_starts_anew_and_only_requests_ask_for_a_flush(direct: bool, flush: bool) -> None:
    compactor = build("mmmm .... .... ....")
    run = run_of(compactor, direct=direct)
    run.migrate_pfn, run.free_pfn = 8, 11
    assert run.finished() == Status.PARTIAL_SKIPPED
    run.whole_zone = True
    assert run.finished() == Status.COMPLETE
    assert memory_of(compactor).blockskip_flush is flush
    run.free_pfn = 12
    assert run.finished() == Status.NO_SUITABLE_PAGE


def test_finished__only_at_a_pageblock_and_by_what_the_type_may_claim() -> None:
    compactor = build("................ mmmmmmmmmmmmmmmm mmmmmmmmmmmmmmmm")
    zone = zone_of(compactor)
    zone.remove(16)
    for order, kind, status in [
        (3, MOVABLE, Status.NO_SUITABLE_PAGE),
        (4, MOVABLE, Status.SUCCESS),
        (4, CMA, Status.SUCCESS),
        (4, RECLAIMABLE, Status.SUCCESS),
    ]:
        zone.lists = {(order, kind): OrderedDict({16: None})}
        run = run_of(compactor, order=4, migratetype=MOVABLE)
        run.migrate_pfn, run.free_pfn = 16, 48
        assert run.finished() == status
        run.migrate_pfn = 17
        assert run.finished() == Status.CONTINUE
    # half the order of a pageblock is claimed by any type, less only by kernel memory
    for kind, order, status in [
        (MOVABLE, 1, Status.NO_SUITABLE_PAGE),
        (MOVABLE, 2, Status.SUCCESS),
        (UNMOVABLE, 1, Status.SUCCESS),
    ]:
        zone.lists = {(order, RECLAIMABLE): OrderedDict({16: None})}
        run = run_of(compactor, order=1, migratetype=kind)
        run.migrate_pfn, run.free_pfn = 16, 48
        assert run.finished() == status


def test_run__an_asynchronous_run_keeps_the_positions_equal_until_it_isolates() -> None:
    compactor = build("uuuu uuuu m... .... uuuu", held=True)
    memory_of(compactor).cached_migrate[:] = [4, 4]
    events(compaction(compactor, 3, ASYNC, direct=True, migratetype=MOVABLE).run())
    assert memory_of(compactor).cached_migrate == [4, 4]  # met
    compactor = build("uuuu uuuu uuuu .... uuuu uuuu")
    run = compaction(compactor, 3, ASYNC, direct=True, migratetype=MOVABLE)
    run.place_scanners()
    run.keep_equal = True
    events(run.once())
    assert memory_of(compactor).cached_migrate == [12, 12]


# -- sources -------------------------------------------------------------------------------------------------------


def test_scan_for_sources__stops_after_32_and_a_second_visit_takes_the_rest() -> None:
    compactor = build("m" * 64 + " " + "." * 64 + " " + "." * 64)
    run = run_of(compactor, order=6)
    assert events(run.scan_for_sources(64, 128)) == ([("isolate_migratepages", 64, 96, 32, 32)], None)
    assert memory_of(compactor).skip == {64}  # as soon as a page is taken
    assert memory_of(compactor).cached_migrate == [0, 0]
    assert run.sources[0] == (95, 0)
    run.finish_block = True
    compactor.allocator.lru.update(range(80, 96))
    assert events(run.scan_for_sources(80, 128)) == ([("isolate_migratepages", 80, 128, 48, 48)], None)
    assert memory_of(compactor).cached_migrate == [192, 192]  # behind the pageblock that follows


def test_scan_for_sources__an_empty_pageblock_is_skipped_from_now_on() -> None:
    compactor = build("u..u mmmm ....")
    run = run_of(compactor, order=2, mode=ASYNC)
    assert events(run.scan_for_sources(4, 8)) == ([("isolate_migratepages", 4, 8, 4, 0)], None)
    assert memory_of(compactor).skip == {4}
    assert memory_of(compactor).cached_migrate == [12, 0]


def test_scan_for_sources__hints_ignored_are_set_by_empty_pageblocks_alone() -> None:
    compactor = build("mmmm uuuu ....")
    run = run_of(compactor, order=ALL_ORDERS, mode=SYNC, ignore_skip=True)
    events(run.scan_for_sources(4, 8))
    assert memory_of(compactor).skip == set()
    events(run.scan_for_sources(8, 12))
    assert memory_of(compactor).skip == {8}
    memory_of(compactor).skip.clear()
    compactor.allocator.lru.update(range(4, 8))
    run.finish_block = True
    assert events(run.scan_for_sources(4, 8)) == ([("isolate_migratepages", 4, 8, 4, 4)], None)
    assert memory_of(compactor).skip == set()


def test_scan_for_sources__a_pageblock_with_the_bit_is_left_at_once() -> None:
    """The run goes on behind it."""
    compactor = build(".mmm .... ....")
    memory_of(compactor).skip.add(4)
    run = run_of(compactor, order=2)
    assert events(run.scan_for_sources(4, 8)) == ([("isolate_migratepages", 4, 8, 1, 0)], None)
    assert compactor.allocator.lru == {5, 6, 7}
    assert run.migrate_pfn == 8
    run.ignore_skip = True
    assert events(run.scan_for_sources(4, 8)) == ([("isolate_migratepages", 4, 8, 4, 3)], None)


def test_scan_for_sources__a_request_in_a_hurry_gives_up_a_chunk_that_cannot_become_free() -> None:
    """Chunks of 4 pages: [16, 20) is spoilt by 18, [20, 24) can be emptied, and the scan ends there."""
    compactor = build("mmummm.mmmmmmmmm ................ ................")
    run = run_of(compactor, order=2, mode=ASYNC, direct=True, migratetype=MOVABLE)
    assert events(run.scan_for_sources(16, 32)) == ([("isolate_migratepages", 16, 24, 7, 3)], None)
    assert compactor.pages.lru.batches == {0: [17, 16]}  # put back, and on no list for now
    assert [pfn for pfn, _ in run.sources] == [23, 21, 20]


def test_scan_for_sources__a_failure_with_nothing_taken_goes_on_at_the_next_chunk() -> None:
    compactor = build("ummmummmu...u... ................ ................")
    run = run_of(compactor, order=2, mode=ASYNC, direct=True, migratetype=MOVABLE)
    assert events(run.scan_for_sources(16, 32)) == ([("isolate_migratepages", 16, 32, 4, 0)], None)
    assert memory_of(compactor).skip == {16}


@pytest.mark.parametrize(
    ("letter", "mode", "options", "taken"),
    [
        ("m", ASYNC, {}, True),
        ("s", ASYNC, {}, True),
        ("s", ASYNC, {"fs": False}, False),
        ("m", ASYNC, {"fs": False}, True),
        ("l", ASYNC, {}, True),
        ("p", SYNC, {}, False),
        ("r", SYNC_LIGHT, {}, False),
        ("r", SYNC, {}, True),
        ("b", SYNC, {}, False),
        ("u", SYNC, {}, False),
    ],
)
def test_may_take__kinds_of_pages(letter: str, mode: int, options: dict[str, object], taken: bool) -> None:
    compactor = build(letter + "... .... ....")
    assert compaction(compactor, 2, mode, **options).may_take(4) == taken


def test_may_take__unevictable_and_written_pages() -> None:
    compactor = build("lm.. .... ....")
    compactor.unevictable_allowed = False
    compactor.pages.writeback.add(5)
    assert not compaction(compactor, 2, SYNC).may_take(4)
    assert not compaction(compactor, 2, SYNC_LIGHT).may_take(5)
    assert compaction(compactor, 2, SYNC).may_take(5)


@pytest.mark.parametrize(
    ("kernel", "order", "scanned"),
    [("6.12.117", 2, ([4, 4, 4], [0])), ("6.12.117", 3, ([4, 1, 2], [4])), ("6.1", 3, ([4, 4, 4], [0]))],
)
def test_scan_for_sources__compound_pages(kernel: str, order: int, scanned: tuple[list[int], list[int]]) -> None:
    """A folio of 4 pages moves whole in a compaction for more than that, since 6.10."""
    compactor = build("mmmmm... ........ ........", kernel)
    compactor.pages.make_compound(8, 2)
    run = run_of(compactor, order=order, mode=SYNC_LIGHT)
    found, _ = events(run.scan_for_sources(8, 16))
    n_taken = 5 if scanned[1] == [4] else 1
    n_scanned = 4 if kernel == "6.1" else 8  # before 6.6 what is passed whole counts as one
    assert found == [("isolate_migratepages", 8, 16, n_scanned, n_taken)]
    assert ((8, 2) in run.sources) == (n_taken == 5)


def test_suitable_source__by_generation() -> None:
    compactor = build("mmmm mmmm mmmm mmmm", types={4: UNMOVABLE, 8: CMA, 12: MOVABLE})
    newer = build("mmmm mmmm mmmm mmmm", "7.3", types={4: UNMOVABLE, 8: CMA, 12: MOVABLE})

    def found(compactor, mode, *, order=1, cma=False, **options):
        run = run_of(compactor, mode=mode, order=order, flags=AllocFlags(mark=MIN, cma=cma), **options)
        return [run.suitable_source(pfn) for pfn in (4, 8, 12)]

    movable, kernel = {"direct": True, "migratetype": MOVABLE}, {"direct": True, "migratetype": UNMOVABLE}
    for twin in (compactor, newer):
        assert found(twin, ASYNC) == [True, True, True]
        assert found(twin, ASYNC, cma=True, **movable) == [False, True, True]
        assert found(twin, SYNC_LIGHT, cma=True, **movable) == [True, True, True]
        assert found(twin, ASYNC, **kernel) == [True, False, False]
    assert found(compactor, SYNC_LIGHT, **kernel) == [True, True, True]
    assert found(newer, SYNC_LIGHT, **kernel) == [True, False, True]
    assert found(compactor, ASYNC, order=2, **kernel) == [True, False, False]
    assert found(newer, ASYNC, order=2, **kernel) == [False, False, True]


def test_isolate_sources__goes_on_behind_what_it_passes() -> None:
    """4: skipped; 8: of another type, which moves the positions on; 12 has pages; the free scanner stands at 20."""
    compactor = build("mmmm mmmm mmmm .... ....", types={8: UNMOVABLE})
    memory_of(compactor).skip.add(4)
    run = run_of(compactor, order=2, mode=ASYNC, direct=True, migratetype=MOVABLE)
    run.migrate_pfn, run.free_pfn = 4, 20
    found, _ = events(run.isolate_sources())
    assert found == [("isolate_migratepages", 12, 16, 4, 4)]
    assert memory_of(compactor).cached_migrate == [16, 0]  # by the pageblock at 8: behind the one that follows it
    run.migrate_pfn, run.free_pfn = 4, 11
    run.sources.clear()
    assert events(run.isolate_sources()) == ([], None)
    assert run.migrate_pfn == 8
