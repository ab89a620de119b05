"""The slow twin of who compacts and when, on zones worked out by hand (compaction_zones.py draws them)."""

from collections import OrderedDict

import pytest

from tests.reference.allocator_zone import MOVABLE, RECLAIMABLE, UNMOVABLE
from tests.reference.compaction_state import ASYNC, SYNC_LIGHT, Status
from tests.reference.compaction_tasks import PRIORITY_ASYNC, PRIORITY_FULL, PRIORITY_LIGHT, CompactionTask
from tests.reference.compaction_zones import build, compaction, events, memory_of, named, request, run_of, zone_of

HALF = "m" * 8 + "." * 8
USED = "u" * 16


def with_room(words, **options):
    """A zone in which a compaction is suitable: it has thousands of single free pages that no scanner ever meets."""
    compactor = build(words, **options)
    zone = zone_of(compactor)
    zone.free_pages.value += 5000
    zone.lists[0, RECLAIMABLE] = OrderedDict.fromkeys(range(10**6, 10**6 + 5000))
    zone.managed_pages = 5000
    return compactor


# -- requests ------------------------------------------------------------------------------------------------------


def test_direct__capture_from_the_drain_is_seen_a_batch_later() -> None:
    """What leaves 16 waits in the page set until the scanner is past it; the drain makes the block, which is taken.

    The second search for sources finds none and goes back to where the first one did, which is skipped by now.
    """
    words = ["." * 8 + "m" * 8, "m" + "u" * 15, USED, USED, "." * 12 + "u" * 4]
    compactor = with_room(" ".join(words), held=True)
    task = CompactionTask(compactor)
    found, result = events(task.direct(request(4), PRIORITY_LIGHT))
    assert (result, task.captured) == (Status.SUCCESS, 16)
    seen = named(found, "isolate_migratepages", "migratepages", "drain", "finished", "end", "defer_reset", "free")
    assert seen == [
        ("finished", "no_suitable_page"),
        ("isolate_migratepages", 16, 32, 16, 8),
        *[("free", pfn) for pfn in range(31, 23, -1)],
        ("migratepages", 8, 0),
        ("drain", 8),
        ("finished", "no_suitable_page"),
        ("isolate_migratepages", 32, 48, 16, 1),
        ("free", 32),
        ("migratepages", 1, 0),
        ("end", 16, 48, 80, 96, "sync", "success"),
        ("defer_reset", "Normal", 4, 5, 1, 1),
    ]
    assert 16 not in zone_of(compactor).free_orders
    assert zone_of(compactor).capture is None


def test_direct__a_capture_by_the_page_set_itself_ends_it_at_once() -> None:
    """Nothing is held back: the last source that moves completes the block."""
    compactor = with_room(" ".join([HALF, HALF, USED, USED, "." * 12 + "u" * 4]))
    task = CompactionTask(compactor)
    found, _ = events(task.direct(request(4), PRIORITY_LIGHT))
    assert task.captured == 16
    assert [event[0] for event in found[-3:]] == ["migratepages", "end", "defer_reset"]
    assert named(found, "isolate_migratepages", "drain") == [("isolate_migratepages", 16, 32, 16, 8)]


@pytest.mark.parametrize(
    ("priority", "status", "deferral"),
    [
        (PRIORITY_ASYNC, "partial_skipped", []),
        (PRIORITY_LIGHT, "partial_skipped", [("defer", "Normal", 4, 0, 0, 2)]),
        (PRIORITY_FULL, "complete", [("defer", "Normal", 4, 0, 0, 2)]),
    ],
)
def test_direct__failures_of_a_hurried_request_are_not_held_against_the_zone(
    priority: int, status: str, deferral: list[tuple[object, ...]]
) -> None:
    compactor = with_room(" ".join([USED, "mu" * 8, USED]))
    found, _ = events(CompactionTask(compactor).direct(request(4), priority))
    assert named(found, "end")[0][-1] == status
    assert named(found, "defer") == deferral
    assert memory_of(compactor).blockskip_flush
    again, result = events(CompactionTask(compactor).direct(request(4), PRIORITY_ASYNC))
    if deferral:
        assert (again, result) == ([("deferred", "Normal", 4, 0, 1, 2)], Status.DEFERRED)
    else:
        assert ("suitable", "continue") in again
    memory_of(compactor).defer_shift = 5
    again, _ = events(CompactionTask(compactor).direct(request(4), PRIORITY_FULL))
    assert ("suitable", "continue") in again


def test_direct__nothing_to_do_is_a_success() -> None:
    compactor = build(" ".join(["." * 16, USED]))
    found, result = events(CompactionTask(compactor).direct(request(4), PRIORITY_ASYNC))
    assert (found, result) == ([("defer_reset", "Normal", 4, 5, 1, 1)], Status.SUCCESS)


def test_direct__too_little_memory_is_skipped_and_counts_as_considered() -> None:
    compactor = build(" ".join([HALF, USED]))
    memory_of(compactor).defer_shift = 1
    memory_of(compactor).considered = 1
    found, result = events(CompactionTask(compactor).direct(request(4), PRIORITY_LIGHT))
    assert (found, result) == ([("suitable", "skipped")], Status.SKIPPED)
    assert (memory_of(compactor).considered, memory_of(compactor).defer_shift) == (2, 1)


def test_direct__after_64_deferrals_the_skip_bits_go() -> None:
    compactor = with_room(" ".join([USED, HALF, "." + "u" * 15]))
    memory = memory_of(compactor)
    memory.defer_shift, memory.considered, memory.skip, memory.blockskip_flush = 6, 62, {32, 48}, True
    found, _ = events(CompactionTask(compactor).direct(request(4), PRIORITY_LIGHT))
    assert found == [("deferred", "Normal", 4, 0, 63, 64)]
    found, _ = events(CompactionTask(compactor).direct(request(4), PRIORITY_LIGHT))
    assert named(found, "begin") == [("begin", 16, 32, 63, 64, "sync")]


def test_page_allocated__forgets_the_failures() -> None:
    compactor = build("mmmm ....")
    memory = memory_of(compactor)
    memory.defer_shift, memory.considered, memory.order_failed, memory.blockskip_flush = 3, 2, 0, True
    assert compactor.page_allocated(zone_of(compactor), 9) == ("defer_reset", "Normal", 9, 10, 0, 1)
    assert (memory.defer_shift, memory.blockskip_flush) == (0, False)


# -- kcompactd and all of memory -----------------------------------------------------------------------------------


def test_kcompactd__a_failure_drains_and_defers() -> None:
    compactor = with_room(" ".join([USED, "mu" * 8, USED]), held=True)
    allocator = compactor.allocator
    task = CompactionTask(compactor)
    found = []
    for event in task.kcompactd(4, 3):
        found.append(event)
        if event == ("finished", "partial_skipped"):
            allocator.free_pages(33, 0, 0)  # by another task
        if event[0] == "end":
            assert task.run.drain_next
            assert allocator.pcp[2, 0].count == 1
    assert found[-3:] == [
        ("end", 16, 48, 48, 64, "sync", "partial_skipped"),
        ("drain", 1),
        ("defer", "Normal", 4, 0, 0, 2),
    ]
    assert found[:2] == [("suitable", "continue")] * 2
    assert allocator.pcp[2, 0].count == 0
    assert not memory_of(compactor).blockskip_flush
    assert events(CompactionTask(compactor).kcompactd(4, 3))[0] == [("deferred", "Normal", 4, 0, 1, 2)]
    assert events(CompactionTask(compactor).kcompactd(4, 1))[0] == []


def test_kcompactd__a_success_ends_at_the_pageblock() -> None:
    compactor = with_room(" ".join([HALF, HALF, USED, "." * 12 + "u" * 4]))
    found, _ = events(CompactionTask(compactor).kcompactd(4, 2))
    assert named(found, "finished", "drain", "defer_reset", "end") == [
        ("finished", "no_suitable_page"),
        ("drain", 0),
        ("finished", "success"),
        ("end", 16, 32, 64, 80, "sync", "success"),
        ("defer_reset", "Normal", 4, 5, 1, 1),
    ]


def test_node_suitable() -> None:
    compactor = with_room(" ".join([HALF, HALF]))
    assert events(compactor.node_suitable(4, 2)) == ([("suitable", "continue")], True)
    assert events(compactor.node_suitable(4, 1)) == ([], False)
    assert events(compactor.node_suitable(3, 2)) == ([], False)  # it has such a block


def test_compact_memory__empties_the_batches_first() -> None:
    compactor = build("bu.. uuuu ...u")
    batches = compactor.pages.lru.batches
    batches[1] = batches.pop(0)  # of another CPU
    found, _ = events(CompactionTask(compactor).compact_memory())
    assert ("isolate_migratepages", 4, 8, 3 + 1, 1) in found
    assert ("free", 4) in found


def test_proactive__ends_when_the_zone_is_good_enough() -> None:
    compactor = build(" ".join([HALF, HALF, USED, "." * 12 + "u" * 4]), pmd_order=4)
    compactor.proactiveness = 55  # good enough at 45 per cent; 12 of 28 are 42
    found, _ = events(CompactionTask(compactor).proactive())
    assert named(found, "finished")[-1] == ("finished", "success")
    assert named(found, "isolate_migratepages") == [("isolate_migratepages", 16, 32, 16, 8)]
    assert compactor.score(zone_of(compactor)) == 42


def test_proactive__not_while_kswapd_runs() -> None:
    compactor = build(" ".join([HALF, HALF, USED]))
    compactor.kswapd_runs = True
    found, _ = events(CompactionTask(compactor).proactive())
    assert named(found, "finished", "isolate_migratepages") == [("finished", "partial_skipped")]


# -- batches and their failures ------------------------------------------------------------------------------------


def test_once__a_failure_takes_the_rest_of_the_pageblock() -> None:
    """A pinned shmem page fails in both tries; what is left of its pageblock is taken with it the next time."""
    compactor = build(" ".join(["s" * 64, "m" * 64, "u" * 64, "." * 40 + "u" * 24]))
    compactor.pages.pinned.add(70)
    run = run_of(compactor, order=6, mode=SYNC_LIGHT)
    run.last_migrated = 10**6
    run.migrate_pfn, run.free_pfn, run.memory.cached_free = 64, 256, 256
    found, status = events(run.once())
    assert status is None
    assert named(found, "isolate_migratepages", "migratepages") == [
        ("isolate_migratepages", 64, 96, 32, 32),
        ("migratepages", 31, 1),
        ("isolate_migratepages", 96, 128, 32, 32),
        ("migratepages", 9, 23),
    ]
    assert run.finish_block


@pytest.mark.parametrize(("pmd_order", "last_migrated"), [(6, 0), (9, 64)])
def test_once__no_drain_helps_a_huge_page_where_some_pages_stayed(pmd_order: int, last_migrated: int) -> None:
    compactor = build(" ".join(["s" * 32 + "u" * 32, "u" * 64, "u" * 64, "." * 40 + "u" * 24]), pmd_order=pmd_order)
    compactor.pages.pinned.add(70)
    run = run_of(compactor, order=6, mode=SYNC_LIGHT)
    run.last_migrated, run.migrate_pfn, run.free_pfn = 10**6, 64, 256
    found, _ = events(run.once())
    assert named(found, "isolate_migratepages")[1:] == [("isolate_migratepages", 96, 128, 32, 0)]
    assert run.last_migrated == last_migrated
    assert run.drain_next == (last_migrated > 0)


def test_loop__one_drain_until_something_has_moved_again() -> None:
    compactor = with_room(" ".join(["m" + "u" * 15, USED, USED, USED, "." * 12 + "u" * 4]))
    found, _ = events(CompactionTask(compactor).kcompactd(4, 2))
    assert len(named(found, "isolate_migratepages")) == 4
    assert len(named(found, "drain")) == 2  # the other one when it has failed


def test_once__nothing_is_rescanned_where_hints_are_ignored() -> None:
    compactor = build(" ".join(["s" * 64, "m" * 64, "u" * 64, "." * 40 + "u" * 24]))
    compactor.pages.pinned.add(70)
    run = run_of(compactor, order=6, mode=SYNC_LIGHT, ignore_skip=True)
    run.last_migrated = 10**6
    run.migrate_pfn, run.free_pfn = 64, 256
    found, _ = events(run.once())
    assert named(found, "migratepages") == [("migratepages", 31, 1)]


@pytest.mark.parametrize(
    ("kernel", "mode", "n_fictitious", "frees"),
    [("6.12.117", SYNC_LIGHT, 2, [66, 64]), ("6.12.117", ASYNC, 1, [66, 64]), ("6.1", SYNC_LIGHT, 0, [66, 64])],
)
def test_migrate__a_failing_page_in_the_middle(kernel: str, mode: int, n_fictitious: int, frees: list[int]) -> None:
    compactor = build(" ".join(["u" * 64] * 4), kernel)
    compactor.pages.pinned.add(65)
    run = run_of(compactor, order=6, mode=mode)
    run.sources.extend([(66, 0), (65, 0), (64, 0)])
    for pfn in (200, 202, 204):
        run.hold(pfn, 0)
    found, (n_moved, out) = events(run.migrate())
    assert (n_moved, out) == (2, False)
    assert list(run.sources) == [(65, 0)]
    assert [pfn for _, pfn in named(found, "free")] == frees
    assert len(named(found, "fictitious")) == n_fictitious
    if kernel == "6.1":  # one after the other: the target of the page that failed serves the next one
        assert list(run.held[0]) == [200]
        assert compactor.pages.lru.batches == {0: [204, 202]}
    else:
        assert list(run.held[0]) == [202]
        assert compactor.pages.lru.batches == {0: [200, 204]}


def test_migrate__a_large_folio_needs_a_large_target() -> None:
    compactor = build(" ".join(["mmmmmmmm", "uuuuuuuu", "uuuuuuuu"]))
    compactor.pages.make_compound(12, 2)
    run = run_of(compactor, order=3, mode=SYNC_LIGHT)
    run.sources.extend([(12, 2), (8, 0)])
    run.n_wanted = 5
    run.hold(28, 2)
    run.hold(24, 1)
    found, result = events(run.migrate())
    assert found == [("free", 12), ("free", 8)]
    assert result == (5, False)
    assert compactor.pages.orders == {28: 2}
    assert compactor.pages.tails == {29, 30, 31}
    assert compactor.allocator.lru >= {28, 29, 30, 31}  # a large folio empties the batch
    assert compactor.pages.lru.batches == {0: [24]}
    assert zone_of(compactor).free_orders[12] == 2
    assert run.held[0] == type(run.held[0])([25])


def test_migrate__at_most_512_pages_at_a_time() -> None:
    compactor = build(" ".join(["u" * 1024] * 3))
    run = run_of(compactor, order=6, mode=SYNC_LIGHT)
    run.sources.extend((pfn, 0) for pfn in range(1624, 1024, -1))
    for pfn in range(2048, 2648):
        run.hold(pfn, 0)
    n_held = []
    for event in run.migrate():
        n_held.append(len(run.held[0]))
        assert event[0] == "free"
    assert n_held == [88] * 512 + [0] * 88


def test_drain_is_due__behind_the_range_of_the_request() -> None:
    run = compaction(build("mmmm mmmm mmmm"), 3, SYNC_LIGHT)
    run.last_migrated, run.migrate_pfn = 4, 9
    assert run.drain_is_due()
    run.migrate_pfn = 7
    assert not run.drain_is_due()
    run.last_migrated, run.migrate_pfn = 0, 12
    assert not run.drain_is_due()


def test_has_block__its_own_type_alone_where_nothing_is_claimed() -> None:
    compactor = build(" ".join(["." + "u" * 15, USED]), types={16: UNMOVABLE})
    assert not run_of(compactor, order=0, migratetype=MOVABLE).has_block(0)
    assert run_of(compactor, order=0, migratetype=UNMOVABLE).has_block(0)
    assert run_of(compactor, order=0, migratetype=RECLAIMABLE).has_block(0)
