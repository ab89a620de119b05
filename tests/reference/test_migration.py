"""The slow twin of migrate_pages() against what recorded kernels counted, and against what they must keep."""

from errno import EAGAIN, EBUSY, ENOMEM, EOPNOTSUPP
from random import Random

import pytest

from tests.reference.migration import ASYNC, SYNC, SYNC_LIGHT, Folio, Migrator, demote_folio_list
from tests.reference.migration_steps import EHWPOISON
from tests.reference.tlb import INIT_MM, KERNELS, Kernel, Tlb

SELF, CHILD = 1, 2  # mms
ONE_CPU, TWO_CPUS = {SELF: {0}}, {SELF: {0, 1}}
NEWER = ["6.12.117", "7.3"]
SYSCALL = "syscall_or_cpuset"
FIRST_TARGET = 1 << 30  # pfn


class Node:
    """Where destinations come from: endless, or so many folios of some orders."""

    def __init__(self, room=None):
        self.room, self.taken, self.freed = room, [], []
        self.next_pfn = FIRST_TARGET

    def alloc(self, order):
        if self.room is not None:
            if self.room.get(order, 0) == 0:
                return None
            self.room[order] -= 1
        pfn, self.next_pfn = self.next_pfn, self.next_pfn + (1 << order)
        self.taken.append((pfn, order))
        return pfn

    def free(self, pfn, order):
        self.freed.append((pfn, order))


def base_pages(count, **marks):
    return [Folio(pfn=pfn, owners={SELF}, **marks) for pfn in range(count)]


def large(count, order=9, **marks):
    return [Folio(pfn=(1 + at) << order, order=order, owners={SELF}, **marks) for at in range(count)]


def migrator(kernel="6.12.117", masks=ONE_CPU, room=None, lazy=(), loaded=None, **options):
    kernel, node = KERNELS[kernel], Node(room)
    tlb = Tlb(masks, lazy, loaded, kernel)
    return Migrator(kernel, tlb, node.alloc, node.free, **options), tlb, node


def migrate(folios, mode=SYNC, reason=SYSCALL, **world):
    """(the outcome, the TLB, the node of the destinations)."""
    task, tlb, node = migrator(**world)
    return task.migrate_pages(folios, mode, reason), tlb, node


def pinned_of_64():
    folios = base_pages(64)
    for folio in folios[::4]:
        folio.pins = 1
    return folios


# -- what was recorded: flushes of each phase, by kernel and by who else is in the mask ----------------------------

PHASES = {  # name: (pages of each call, flushes where each is immediate, flushes where they are deferred)
    "one_call": ([1024], 1024, 2),
    "calls_of_32": ([32] * 32, 1024, 32),
    "one_page_a_call": ([1] * 128, 128, 128),
    "mbind_move": ([1024], 1024, 2),
    "half_absent": ([1] * 512, 512, 512),
    "migrate_pages_self": ([1573], 1573, 4),
    "migrate_pages_self, own config": ([1445], 1445, 3),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("masks", [ONE_CPU, TWO_CPUS], ids=["1cpu", "2cpu"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_migrate_pages__flushes_of_base_pages_as_recorded(kernel, masks, phase):
    calls, immediate, deferred = PHASES[phase]
    task, tlb, _ = migrator(kernel, masks)
    reason = "mempolicy_mbind" if phase == "mbind_move" else SYSCALL
    outcomes = [task.migrate_pages(base_pages(n), SYNC, reason) for n in calls]
    defers = masks == TWO_CPUS and kernel in NEWER
    n = sum(calls)
    assert [outcome.rc for outcome in outcomes] == [0] * len(calls)
    assert sum(outcome.nr_succeeded for outcome in outcomes) == n
    assert sum(outcome.n_set for outcome in outcomes) == n
    assert sum(outcome.n_removed for outcome in outcomes) == n
    assert tlb.flush_ops == (deferred if defers else immediate)
    assert (tlb.local_mm, tlb.local_batch) == ((0, deferred) if defers else (immediate, 0))
    assert (tlb.local_pages, tlb.local_full) == ((0, deferred) if defers else (immediate, 0))
    assert tlb.requests == tlb.ipis == tlb.remote == (tlb.flush_ops if masks == TWO_CPUS else 0)


@pytest.mark.parametrize("masks", [ONE_CPU, TWO_CPUS], ids=["1cpu", "2cpu"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_migrate_pages__8_thps_as_recorded(kernel, masks):
    outcome, tlb, _ = migrate(large(8), kernel=kernel, masks=masks)
    assert (outcome.rc, outcome.nr_succeeded, outcome.nr_thp_succeeded) == (0, 4096, 8)
    assert (outcome.n_set, outcome.n_removed, outcome.n_copied) == (0, 0, 4096)
    assert (tlb.local_mm, tlb.local_batch, tlb.local_full, tlb.local_pages) == (8, 0, 8, 0)
    assert tlb.requests == tlb.remote == (8 if masks == TWO_CPUS else 0)
    assert outcome.max_unmapped == 512


PINNED = [  # kernel, masks, immediate, deferred, migration PTEs = destinations (pgalloc)
    ("6.1", ONE_CPU, 208, 0, 208),
    ("6.1", TWO_CPUS, 208, 0, 208),
    ("6.12.117", ONE_CPU, 80, 0, 80),
    ("6.12.117", TWO_CPUS, 16, 1, 80),
    ("7.3", ONE_CPU, 80, 0, 80),
    ("7.3", TWO_CPUS, 16, 1, 80),
]


@pytest.mark.parametrize(("kernel", "masks", "immediate", "deferred", "entries"), PINNED)
def test_migrate_pages__16_of_64_pinned_as_recorded(kernel, masks, immediate, deferred, entries):
    outcome, tlb, node = migrate(pinned_of_64(), kernel=kernel, masks=masks)
    assert (outcome.rc, outcome.nr_succeeded, outcome.nr_failed) == (16, 48, 16)
    assert (tlb.local_mm, tlb.local_batch) == (immediate, deferred)
    assert tlb.requests == (tlb.flush_ops if masks == TWO_CPUS else 0)
    assert outcome.n_set == outcome.n_removed == outcome.n_targets == len(node.taken) == entries
    assert len(node.freed) == entries  # 48 sources, and every destination of a pinned page
    assert outcome.n_copied == 48
    assert [folio.pfn for folio in outcome.left] == list(range(0, 64, 4))
    assert {folio.status for folio in outcome.left} == {-EAGAIN}


@pytest.mark.parametrize("masks", [ONE_CPU, TWO_CPUS], ids=["1cpu", "2cpu"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_migrate_pages__shared_move_all_as_recorded(kernel, masks):
    """Nobody runs on the child's mm: its PTEs cost no flush."""
    folios = [Folio(pfn=pfn, owners={SELF, CHILD}) for pfn in range(512)]
    outcome, tlb, _ = migrate(folios, kernel=kernel, masks={**masks, CHILD: set()})
    assert (outcome.rc, outcome.nr_succeeded, outcome.n_set, outcome.n_removed) == (0, 512, 1024, 1024)
    defers = masks == TWO_CPUS and kernel in NEWER
    assert (tlb.local_mm, tlb.local_batch) == ((0, 1) if defers else (512, 0))
    assert outcome.max_unmapped == (512 if kernel in NEWER else 1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_migrate_pages__one_thread_that_once_ran_elsewhere_as_recorded(kernel):
    """The other CPU idles with the mm loaded until munmaps, which free tables, take it out of the mask."""
    task, tlb, _ = migrator(kernel, TWO_CPUS, lazy={1})
    for calls, flushes in ([1024], 2), ([32] * 32, 32), ([1] * 128, 128):
        before = tlb.flush_ops
        for n in calls:
            task.migrate_pages(base_pages(n), SYNC, SYSCALL)
        assert tlb.flush_ops - before == (flushes if kernel in NEWER else sum(calls))
    assert (tlb.requests, tlb.ipis) == (tlb.flush_ops, 0)

    n_munmaps = 2 if kernel == "7.3" else 1
    for n in range(1, n_munmaps + 1):
        assert tlb.masks[SELF] == {0, 1}
        tlb.flush_range(SELF, 0, 8, tables_freed=True)
        assert (tlb.ipis, tlb.remote, tlb.loaded[1]) == (n, 0, INIT_MM)
    assert tlb.masks[SELF] == {0}
    assert tlb.wrong_cpu == n_munmaps - 1

    before, requests = tlb.local_mm, tlb.requests
    task.migrate_pages(base_pages(1024), SYNC, "mempolicy_mbind")
    assert (tlb.local_mm - before, tlb.requests - requests) == (1024, 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_migrate_pages__8_thps_under_a_thread_that_wakes_and_sleeps_as_recorded(kernel):
    """It runs once between any two THPs, so each finds its CPU lazy again: 8 IPIs and no remote shootdown."""
    task, tlb, node = migrator(kernel, TWO_CPUS, lazy={1})

    def alloc(order):
        tlb.run(SELF, 1)
        tlb.idle(1)
        return node.alloc(order)

    task.alloc = alloc
    task.migrate_pages(large(8), SYNC, SYSCALL)
    assert (tlb.local_mm, tlb.requests, tlb.ipis, tlb.remote, tlb.wrong_cpu) == (8, 8, 8, 0, 0)


@pytest.mark.parametrize(("kernel", "kicks"), [("6.1", 1), ("6.12.117", 1), ("7.3", 2)])
def test_migrate_pages__8_thps_under_a_thread_that_sleeps_on(kernel, kicks):
    _, tlb, _ = migrate(large(8), kernel=kernel, masks=TWO_CPUS, lazy={1})
    assert (tlb.local_mm, tlb.requests, tlb.ipis, tlb.remote) == (8, kicks, kicks, 0)
    assert tlb.wrong_cpu == kicks - 1
    assert tlb.masks[SELF] == {0}


@pytest.mark.parametrize("kernel", KERNELS)
def test_migrate_pages__base_pages_do_not_wake_a_sleeper(kernel):
    _, tlb, _ = migrate(base_pages(1024), kernel=kernel, masks=TWO_CPUS, lazy={1})
    assert tlb.requests == tlb.flush_ops == (2 if kernel in NEWER else 1024)
    assert tlb.ipis == 0
    assert tlb.masks[SELF] == {0, 1}


# -- batches -------------------------------------------------------------------------------------------------------


def test_migrate_pages__oracle_11_one_deferred_flush_a_batch_that_unmapped_something():
    folios = [*base_pages(512, writeback=True), *base_pages(513), *base_pages(300, protnone=True)]
    outcome, tlb, _ = migrate(folios, ASYNC, masks=TWO_CPUS)
    assert (tlb.local_batch, tlb.local_mm, outcome.max_unmapped) == (2, 0, 512)
    assert (outcome.n_set, outcome.nr_failed, outcome.rc) == (813, 512, 512)
    _, tlb, _ = migrate(large(7), ASYNC, masks=TWO_CPUS)
    assert (tlb.local_batch, tlb.local_mm) == (0, 7)


def test_migrate_pages__corrected_oracle_11_all_kinds_of_flushes_add_up():
    others = [Folio(pfn=pfn, owners={CHILD}) for pfn in range(2000, 2007)]  # loaded here, nowhere else
    hugetlb = large(3, hugetlb=True)
    pinned = [Folio(pfn=pfn, owners={SELF}, pins=1) for pfn in range(3000, 3005)]
    masks = {SELF: {1, 2}, CHILD: {0}}
    _, tlb, _ = migrate([*base_pages(600), *others, *hugetlb, *large(2), *pinned], masks=masks)
    assert (tlb.local_mm, tlb.local_batch) == (7, 0)  # SELF is not loaded here
    batches = 3  # 512 pages; 88 and 7 with the first THP; the second THP alone; the pinned ones
    assert tlb.requests == len(hugetlb) + 2 + batches + len(pinned)


@pytest.mark.parametrize("kernel", NEWER)
def test_next_batch__511_base_pages_and_a_thp_go_together(kernel):
    outcome, tlb, _ = migrate([*base_pages(511), *large(1)], ASYNC, kernel=kernel, masks=TWO_CPUS)
    assert outcome.max_unmapped == 1023
    assert (tlb.local_mm, tlb.local_batch) == (1, 1)
    assert tlb.local_full == 1  # the THP's flush did for the base pages what the batch's had to do


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [("6.1", [[0, 0, 0], [2], [2], [1, 0, 0], [3], [0]]), ("7.3", [[0, 0, 0, 2], [2], [1, 0, 0], [3], [0]])],
)
def test_next_batch__the_folio_that_crosses(kernel, sizes):
    task, _, _ = migrator(kernel, batch=4)
    orders = [0, 0, 0, 2, 2, 1, 0, 0, 3, 0]
    todo = [Folio(pfn=16 * at, order=order) for at, order in enumerate(orders)]
    batches = []
    while todo:
        batches.append([folio.order for folio in task.next_batch(todo, [])])
    assert batches == sizes


def test_migrate_pages__61_has_one_folio_unmapped_at_a_time():
    folios = [*base_pages(600), *large(3)]
    outcome, _, _ = migrate(folios, kernel="6.1")
    assert outcome.max_unmapped == 512
    assert migrate(base_pages(600), kernel="6.1")[0].max_unmapped == 1


def test_invlpgb__broadcasts_and_interrupts_nobody():
    node, kernel = Node(), Kernel(lazy_kick_leaves=False, invlpgb=True)
    tlb = Tlb(TWO_CPUS, kernel=kernel)
    Migrator(kernel, tlb, node.alloc, node.free).migrate_pages([*base_pages(1024), *large(2)], ASYNC, "demotion")
    assert (tlb.broadcasts, tlb.requests, tlb.ipis, tlb.flush_ops) == (4, 0, 0, 0)

    tlb.masks[SELF] = {0}
    Migrator(kernel, tlb, node.alloc, node.free).migrate_pages(base_pages(10), ASYNC, "demotion")
    assert (tlb.broadcasts, tlb.flush_ops, tlb.local_pages) == (4, 10, 10)


# -- obstacles (3.4) -----------------------------------------------------------------------------------------------

OBSTACLES = [  # mark, mode, PF_MEMALLOC, status, lock waits, writeback waits, destinations taken
    ("locked", ASYNC, False, -EAGAIN, 0, 0, 10),
    ("locked", SYNC_LIGHT, False, 0, 1, 0, 4),
    ("locked", SYNC, False, 0, 1, 0, 4),
    ("locked", SYNC_LIGHT, True, -EAGAIN, 0, 0, 10),
    ("locked", SYNC, True, -EAGAIN, 0, 0, 10),
    ("writeback", ASYNC, False, -EBUSY, 0, 0, 1),
    ("writeback", SYNC_LIGHT, False, -EBUSY, 0, 0, 2),
    ("writeback", SYNC, False, 0, 0, 1, 2),
    ("writeback", SYNC, True, 0, 0, 1, 2),
    ("inaccessible", ASYNC, False, -EOPNOTSUPP, 0, 0, 1),
    ("inaccessible", SYNC, False, -EOPNOTSUPP, 0, 0, 2),
    ("bad", ASYNC, False, -EHWPOISON, 0, 0, 1),
    ("bad", SYNC_LIGHT, False, -EHWPOISON, 0, 0, 2),
]


@pytest.mark.parametrize(("mark", "mode", "memalloc", "status", "lock_waits", "writeback_waits", "targets"), OBSTACLES)
def test_unmap__obstacles(mark, mode, memalloc, status, lock_waits, writeback_waits, targets):
    (folio,) = base_pages(1, **{mark: True})
    outcome, _, node = migrate([folio], mode, memalloc=memalloc)
    assert (folio.status, outcome.rc) == (status, int(status < 0))
    assert (outcome.lock_waits, outcome.writeback_waits) == (lock_waits, writeback_waits)
    assert outcome.n_targets == len(node.taken) == len(node.freed) == targets
    assert (outcome.nr_succeeded, outcome.nr_failed) == ((1, 0) if status == 0 else (0, 1))
    if status == 0:
        assert not getattr(folio, mark)


OBSTACLES_61 = [  # one step, in the caller's mode, that sleeps from the fourth pass on
    ("locked", ASYNC, False, -EAGAIN, 0, 0, 10),
    ("locked", SYNC_LIGHT, False, 0, 1, 0, 4),
    ("locked", SYNC, True, -EAGAIN, 0, 0, 10),
    ("writeback", SYNC_LIGHT, False, -EBUSY, 0, 0, 1),
    ("writeback", SYNC, False, 0, 0, 1, 4),
    ("inaccessible", SYNC, False, -EOPNOTSUPP, 0, 0, 1),
    ("bad", SYNC, False, -EHWPOISON, 0, 0, 1),
]


@pytest.mark.parametrize(
    ("mark", "mode", "memalloc", "status", "lock_waits", "writeback_waits", "targets"), OBSTACLES_61
)
def test_unmap__obstacles_61(mark, mode, memalloc, status, lock_waits, writeback_waits, targets):
    (folio,) = base_pages(1, **{mark: True})
    outcome, _, _ = migrate([folio], mode, kernel="6.1", memalloc=memalloc)
    assert (folio.status, outcome.rc) == (status, int(status < 0))
    assert (outcome.lock_waits, outcome.writeback_waits, outcome.n_targets) == (lock_waits, writeback_waits, targets)


def test_move__dirty_pages_of_a_file_system_that_cannot_move_them():
    dirty, clean = base_pages(2, no_migrate_folio=True, file=True)
    dirty.dirty = True
    outcome, _, _ = migrate([dirty, clean])
    assert (dirty.status, clean.status, outcome.rc, outcome.n_copied) == (-EBUSY, 0, 1, 1)


def test_unmap__a_folio_that_nobody_else_holds_is_done():
    (folio,) = base_pages(1, orphan=True, locked=True, writeback=True)
    outcome, _, node = migrate([folio], ASYNC)
    assert (outcome.rc, outcome.nr_succeeded, outcome.n_copied, folio.status, folio.pfn) == (0, 1, 0, 0, 0)
    assert (node.taken, node.freed) == ([], [(0, 0)])


@pytest.mark.parametrize(
    ("kernel", "mode", "targets"),
    [("6.12.117", ASYNC, 1), ("7.3", SYNC_LIGHT, 2), ("6.12.117", SYNC, 2), ("6.1", ASYNC, 10), ("6.1", SYNC, 10)],
)
def test_move__oracle_13_a_pinned_folio_is_never_copied(kernel, mode, targets):
    (folio,) = base_pages(1, pins=1)
    outcome, tlb, _ = migrate([folio], mode, kernel=kernel)
    assert (folio.status, folio.pfn, outcome.rc) == (-EAGAIN, 0, 1)
    assert (outcome.n_copied, outcome.n_moves) == (0, 10)  # with two steps 3 + 7
    assert outcome.n_targets == outcome.n_set == outcome.n_removed == tlb.flush_ops == targets


@pytest.mark.parametrize(
    ("kernel", "mode", "times"),
    [("6.12.117", ASYNC, 1), ("6.12.117", SYNC_LIGHT, 2), ("7.3", SYNC, 2), ("6.1", SYNC, 1)],
)
def test_move__oracle_14_a_poisoned_source_is_met_once_a_step(kernel, mode, times):
    page, huge = base_pages(1, bad=True) + large(1, bad=True, hugetlb=True)
    assert migrate([page], mode, kernel=kernel)[0].n_poisoned == times
    assert migrate([huge], mode, kernel=kernel)[0].n_poisoned == 1
    assert (page.status, huge.status) == (-EHWPOISON, -EHWPOISON)


def test_migrate_sync__those_that_stayed_on_the_list_come_first():
    inaccessible, pinned, locked, good = base_pages(4)
    inaccessible.inaccessible, pinned.pins, locked.locked = True, 1, True
    folios = [inaccessible, pinned, locked, good]
    outcome, _, _ = migrate(folios, SYNC, memalloc=True)
    assert outcome.left == [locked, inaccessible, pinned]
    outcome, _, _ = migrate([inaccessible, pinned, locked], ASYNC)
    assert outcome.left == [inaccessible, pinned, locked]
    assert (outcome.rc, outcome.nr_failed) == (3, 3)


def test_free__order_of_sources_and_destinations():
    first, pinned, last = base_pages(3)
    pinned.pins = 1
    _, _, node = migrate([first, pinned, last], ASYNC)
    target = node.taken[1]
    assert node.freed == [(0, 0), (2, 0), target]  # the pinned one's, after all passes
    first, pinned, last = base_pages(3)
    pinned.pins = 1
    _, _, node = migrate([first, pinned, last], ASYNC, kernel="6.1")
    assert node.freed == [(0, 0), node.taken[1], (2, 0), *node.taken[3:]]


def test_free__a_page_that_goes_bad_is_left_to_the_one_who_asked():
    good, pinned = base_pages(2)
    pinned.pins = 1
    _, _, node = migrate([good, pinned], SYNC, "memory_failure")
    assert good.status == 0
    assert sorted(node.freed) == sorted(node.taken[1:])


# -- hugetlb -------------------------------------------------------------------------------------------------------


def test_hugetlb_pass__comes_first_and_flushes_each():
    folios = [*base_pages(2), *large(2, hugetlb=True)]
    outcome, tlb, node = migrate(folios, masks=TWO_CPUS)
    assert [order for _, order in node.taken] == [9, 9, 0, 0]
    assert (outcome.rc, outcome.nr_succeeded) == (0, 1026)
    assert (outcome.nr_thp_succeeded, outcome.nr_thp_failed) == (0, 0)
    assert (outcome.n_set, tlb.local_mm, tlb.local_pages, tlb.local_batch) == (4, 2, 2, 1)


@pytest.mark.parametrize(
    ("mode", "mark", "status", "targets"),
    [
        (SYNC, {"locked": True}, 0, 4),
        (SYNC_LIGHT, {"locked": True}, -EAGAIN, 10),
        (ASYNC, {"locked": True}, -EAGAIN, 10),
        (SYNC, {"pins": 2}, -EAGAIN, 10),
        (SYNC, {"writeback": True}, 0, 1),
        (SYNC, {"bad": True}, -EHWPOISON, 1),
        (SYNC, {"orphan": True}, 0, 0),
    ],
)
def test_hugetlb_pass__obstacles(mode, mark, status, targets):
    (folio,) = large(1, hugetlb=True, **mark)
    outcome, _, _ = migrate([folio], mode)
    assert (folio.status, outcome.rc, outcome.n_targets) == (status, int(status < 0), targets)
    assert outcome.nr_failed == (512 if status else 0)


def test_hugetlb_pass__without_a_destination_ends_the_call():
    bad, locked, poor, never = large(4, hugetlb=True)
    bad.bad = locked.locked = True
    (page,) = base_pages(1)
    outcome, _, _ = migrate([page, bad, locked, poor, never], ASYNC, room={9: 2, 0: 1})
    assert (outcome.rc, outcome.nr_failed, outcome.nr_succeeded) == (-ENOMEM, 3 * 512, 0)
    assert outcome.left == [bad, page, locked, poor, never]
    assert [folio.status for folio in outcome.left] == [-EHWPOISON, None, -EAGAIN, -ENOMEM, None]


# -- no memory, and splits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [ASYNC, SYNC])
@pytest.mark.parametrize("kernel", KERNELS)
def test_migrate_pages__thp_where_only_base_pages_are_left(kernel, mode):
    (thp,) = large(1)
    outcome, tlb, _ = migrate([thp], mode, kernel=kernel, masks=TWO_CPUS, room={0: 512})
    assert (outcome.rc, outcome.nr_succeeded, outcome.nr_failed, outcome.left) == (0, 512, 0, [])
    assert (outcome.nr_thp_succeeded, outcome.nr_thp_failed) == (0, 1)
    assert (outcome.nr_thp_split, outcome.nr_split) == (1, 1)
    assert (tlb.local_mm, tlb.local_batch) == ((1, 1) if kernel in NEWER else (513, 0))
    pfns = [piece.pfn for piece in outcome.pieces]
    assert len(pfns) == 512
    assert outcome.pieces[-1] is thp
    assert pfns == sorted(pfns)  # the last tail took the first destination, the head the last one


@pytest.mark.parametrize("mode", [ASYNC, SYNC])
@pytest.mark.parametrize("kernel", NEWER)
def test_migrate_pages__thp_where_100_base_pages_are_left(kernel, mode):
    outcome, _, _ = migrate(large(1), mode, kernel=kernel, room={0: 100})
    assert (outcome.rc, outcome.nr_succeeded, outcome.nr_failed) == (1, 100, 1)
    assert (outcome.nr_thp_failed, outcome.nr_thp_split, outcome.nr_split) == (1, 1, 1)
    assert [folio.status for folio in outcome.left] == [-ENOMEM] + [None] * 411
    assert [folio.pfn for folio in outcome.left] == [*range(512 + 411, 512, -1), 512]


def test_migrate_pages__61_reports_that_the_pieces_found_no_memory():
    outcome, _, _ = migrate(large(1), kernel="6.1", room={0: 100})
    assert (outcome.rc, outcome.nr_succeeded, outcome.nr_failed) == (-ENOMEM, 100, 1)


def test_migrate_pages__61_order_of_what_is_left():
    bad, pinned, poor = base_pages(3)
    bad.bad, pinned.pins = True, 1
    (split,) = large(1, order=1, bad=True)
    outcome, _, _ = migrate([bad, split, pinned], kernel="6.1", room={0: 99})
    assert outcome.left == [pinned, bad, *outcome.pieces]

    (split,) = large(1, order=1)
    outcome, _, _ = migrate([bad, split, poor], kernel="6.1", room={0: 1})
    assert (outcome.rc, outcome.left) == (-ENOMEM, [*outcome.pieces, bad, poor])


@pytest.mark.parametrize("kernel", KERNELS)
def test_migrate_pages__failed_pieces_count_as_one_folio(kernel):
    """Nor do pieces get a second step, whatever the mode."""
    outcome, _, _ = migrate(large(1, order=2, bad=True), SYNC, kernel=kernel, room={0: 9}, pmd_order=2)
    assert (outcome.rc, outcome.nr_failed, outcome.n_poisoned, len(outcome.left)) == (1, 4, 4, 4)


@pytest.mark.parametrize(("kernel", "status"), [("6.1", -EAGAIN), ("6.12.117", -EBUSY)])
def test_migrate_pages__pieces_are_tried_once_in_async_mode_in_61_in_the_callers(kernel, status):
    """Told by pieces that are locked or written back as soon as they exist."""
    task, _, node = migrator(kernel, room={0: 99})
    pieces_of = task.pieces

    def pieces(folio):
        first, second, *others = pieces_of(folio)
        first.writeback = second.locked = True
        return [first, second, *others]

    task.pieces = pieces
    outcome = task.migrate_pages(large(1, order=2), SYNC, SYSCALL)
    assert (outcome.rc, outcome.nr_succeeded, outcome.nr_failed) == (1, 2, 2)
    assert (outcome.writeback_waits, outcome.lock_waits, len(node.taken)) == (0, 0, 4)
    assert sorted(folio.status for folio in outcome.left) == sorted([status, -EAGAIN])


@pytest.mark.parametrize("mode", [ASYNC, SYNC])
@pytest.mark.parametrize(("reason", "rc", "n_split"), [("numa_misplaced", -ENOMEM, 0), ("demotion", 0, 1)])
def test_migrate_pages__oracle_15_thp_without_a_destination_is_split(reason, rc, n_split, mode):
    outcome, _, _ = migrate(large(1), mode, reason, room={0: 512})
    assert (outcome.rc, outcome.nr_thp_split, outcome.nr_split) == (rc, n_split, n_split)
    assert outcome.nr_failed == (512 if rc else 0)
    assert outcome.nr_thp_failed == 1


@pytest.mark.parametrize("mode", [ASYNC, SYNC])
def test_migrate_batch__without_memory_moves_what_is_unmapped_and_stops(mode):
    folios = base_pages(6)
    folios[0].locked = True
    outcome, tlb, _ = migrate(folios, mode, masks=TWO_CPUS, room={0: 3})
    assert (outcome.rc, outcome.nr_succeeded, outcome.nr_failed) == (-ENOMEM, 2, 2)  # the locked one, the poor one
    assert outcome.left == [folios[0], *folios[3:]]
    assert [folio.status for folio in folios] == [-EAGAIN, 0, 0, -ENOMEM, None, None]
    assert tlb.local_batch == 1


def test_migrate_pages__without_memory_leaves_later_batches_alone():
    folios = base_pages(10)
    folios[1].bad = True
    outcome, _, _ = migrate(folios, ASYNC, room={0: 6}, batch=4)
    assert outcome.left == [folios[1], *folios[6:]]
    assert (outcome.rc, outcome.nr_succeeded, outcome.nr_failed) == (-ENOMEM, 5, 2)


@pytest.mark.parametrize(
    ("mark", "reason", "status", "rc", "targets"),
    [
        ({"pins": 1}, SYSCALL, -ENOMEM, -ENOMEM, 1),
        ({"pins": 1}, "longterm_pin", -ENOMEM, 1, 1),
        ({"writeback": True}, "longterm_pin", -ENOMEM, -ENOMEM, 1),
        ({"locked": True}, "longterm_pin", -ENOMEM, 1, 1),
    ],
)
def test_is_split_instead__a_pin_is_retried_where_pages_are_to_be_pinned_for_long(mark, reason, status, rc, targets):
    (thp,), (page,) = large(1, **mark), base_pages(1)
    outcome, _, node = migrate([page, thp], ASYNC, reason, room={0: 1})
    assert (thp.status, outcome.rc, outcome.nr_failed, outcome.nr_thp_failed) == (status, rc, 512, 1)
    assert (page.status, len(node.taken)) == (0, targets)


@pytest.mark.parametrize(
    ("mode", "mark", "n_split", "lock_waits"),
    [
        (ASYNC, {}, 1, 0),
        (ASYNC, {"locked": True}, 0, 0),
        (SYNC, {"locked": True}, 1, 1),
        (SYNC, {"writeback": True}, 0, 0),
        (SYNC, {"pins": 1}, 0, 0),
    ],
)
def test_is_split_first__partially_mapped(mode, mark, n_split, lock_waits):
    (thp,) = large(1, pte_mapped=True, partially_mapped=True, **mark)
    outcome, _, _ = migrate([thp], mode)
    assert (outcome.nr_split, outcome.nr_thp_split, outcome.lock_waits) == (n_split, n_split, lock_waits)
    if n_split:
        assert (outcome.rc, outcome.nr_succeeded, outcome.nr_failed, outcome.nr_thp_failed) == (0, 512, 0, 1)
    elif "writeback" in mark:
        assert (outcome.rc, outcome.nr_thp_succeeded, outcome.nr_failed) == (0, 1, 0)
    else:
        assert (outcome.rc, outcome.nr_failed, outcome.nr_thp_failed) == (1, 512, 1)


def test_is_split_first__neither_two_pages_nor_61():
    assert migrate(large(1, order=1, partially_mapped=True))[0].nr_split == 0
    assert migrate(large(1, order=2, partially_mapped=True))[0].nr_split == 1
    assert migrate(large(1, order=2, partially_mapped=True), kernel="6.1")[0].nr_split == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_is_split_first__thps_where_they_cannot_move(kernel):
    good, pinned = large(2)
    pinned.pins = 1
    (smaller,) = large(1, order=4)
    outcome, _, _ = migrate([good, pinned, smaller], ASYNC, kernel=kernel, thp_migration=False)
    assert (outcome.nr_succeeded, outcome.nr_failed, outcome.rc) == (512 + 16, 512, 2)
    assert (outcome.nr_thp_failed, outcome.nr_thp_split, outcome.nr_split) == (2, 1, 1)
    assert (outcome.left, pinned.status) == ([pinned], -EAGAIN)


def test_migrate_sync__splits_of_the_first_step_count_others_do_not():
    thp, holes = large(2)
    holes.pte_mapped = holes.partially_mapped = True
    thp.bad = True
    outcome, _, _ = migrate([holes, thp], SYNC)
    assert (outcome.nr_succeeded, outcome.nr_failed, outcome.rc) == (512, 512, 2)
    assert (outcome.nr_thp_failed, outcome.nr_thp_split, outcome.n_poisoned) == (2, 1, 2)
    assert outcome.left == [thp]


def test_set_migration_entries__of_a_large_folio_mapped_by_ptes():
    outcome, tlb, _ = migrate(large(1, pte_mapped=True), masks=TWO_CPUS)
    assert (outcome.n_set, outcome.n_removed, outcome.nr_thp_succeeded) == (512, 512, 1)
    assert (tlb.local_mm, tlb.local_batch) == (0, 1)
    outcome, tlb, _ = migrate(large(2, order=4))
    assert (outcome.n_set, outcome.nr_thp_succeeded, tlb.local_mm, tlb.local_pages) == (32, 0, 32, 32)


def test_set_migration_entries__no_access_no_flush_but_for_a_pmd():
    outcome, tlb, _ = migrate([*base_pages(8, protnone=True), *large(1, protnone=True)], ASYNC, "numa_misplaced")
    assert (outcome.nr_succeeded, outcome.n_set, tlb.flush_ops) == (520, 8, 1)


# -- what holds always ---------------------------------------------------------------------------------------------

MARKS = ["locked", "writeback", "inaccessible", "protnone", "orphan", "bad", "pte_mapped", "partially_mapped"]


def some_folios(rng):
    folios = []
    for at in range(rng.randrange(1, 40)):
        marks = {mark: True for mark in MARKS if rng.random() < 0.06}
        pins = 0 if "orphan" in marks or rng.random() < 0.9 else 1
        order = rng.choice([0, 0, 0, 1, 2, 3])
        owners = set() if "orphan" in marks else set(rng.sample([SELF, CHILD, 3], rng.randrange(4)))
        hugetlb = order == 3 and rng.random() < 0.3
        folios.append(Folio(pfn=at << 4, order=order, owners=owners, pins=pins, hugetlb=hugetlb, **marks))
    return folios


def some_world(rng, kernel):
    room = {order: rng.randrange(30) for order in range(4)} if rng.random() < 0.4 else None
    masks = {mm: {cpu for cpu in range(4) if rng.random() < 0.4} for mm in (SELF, CHILD, 3)}
    options = {"batch": 8, "pmd_order": 3, "thp_migration": rng.random() < 0.8, "memalloc": rng.random() < 0.3}
    return migrator(kernel, masks, room, {cpu for cpu in range(1, 4) if rng.random() < 0.3}, **options)


def check_folios(out, folios, n_pages):
    """Every folio is either moved or left, and what is returned says which (oracle 12)."""
    moved = [folio for folio in folios if folio.status == 0]
    assert sorted(map(id, [*moved, *out.left])) == sorted(map(id, folios))
    assert (out.rc == 0) == (not out.left)
    assert out.nr_succeeded == sum(folio.n_pages for folio in moved)
    assert sum(folio.n_pages for folio in folios) == n_pages
    assert out.n_copied == sum(folio.n_pages for folio in moved if not folio.orphan)
    if out.rc >= 0 and not out.pieces:
        assert out.rc == len(out.left)
        assert out.nr_failed == sum(folio.n_pages for folio in out.left)


def check_pages(out, folios, node):
    """No page is lost, none is freed twice."""
    moved = [folio for folio in folios if folio.status == 0]
    targets = {folio.pfn for folio in moved if not folio.orphan}
    assert len(node.freed) == len(set(node.freed))
    assert {pfn for pfn, _ in node.taken} - {pfn for pfn, _ in node.freed} == targets
    assert sum(1 << order for pfn, order in node.freed if pfn < FIRST_TARGET) == out.nr_succeeded
    assert len(node.taken) == out.n_targets


def check_flushes(out, task, tlb):
    """Nothing stays unmapped, nothing stays to be flushed."""
    batched = task.kernel.batched_migration
    assert (out.n_set, task.n_unmapped, tlb.flush_required) == (out.n_removed, 0, False)
    assert out.max_unmapped <= (15 if batched else 8)
    assert tlb.local_batch == 0 or batched
    assert tlb.ipis <= 3 * tlb.requests
    assert tlb.remote + tlb.wrong_cpu <= tlb.ipis + tlb.flush_ops


@pytest.mark.parametrize("mode", [ASYNC, SYNC_LIGHT, SYNC])
@pytest.mark.parametrize("kernel", KERNELS)
def test_migrate_pages__keeps_its_books(kernel, mode):
    signs = set()
    for seed in range(300):
        rng = Random(seed)
        folios = some_folios(rng)
        task, tlb, node = some_world(rng, kernel)
        n_pages = sum(folio.n_pages for folio in folios)
        out = task.migrate_pages(folios, mode, rng.choice(["demotion", "longterm_pin", "numa_misplaced"]))
        signs.add((out.rc > 0) - (out.rc < 0))
        everyone = [*folios, *(piece for piece in out.pieces if piece not in folios)]
        check_folios(out, everyone, n_pages)
        check_pages(out, everyone, node)
        check_flushes(out, task, tlb)
    assert signs == {-1, 0, 1}


@pytest.mark.parametrize("proactive", [False, True])
def test_demote_folio_list__oracle_16_counts_what_moved_whatever_is_returned(proactive):
    folios = [*base_pages(3), *large(2)]
    folios[1].pins = folios[3].pins = 1
    task, _, _ = migrator(room={0: 3, 9: 2})
    reclaimed, to_swap, kept = demote_folio_list(task, folios, proactive)
    assert reclaimed == 2 + 512
    assert (kept if proactive else to_swap) == [folios[1], folios[3]]
    assert (to_swap if proactive else kept) == []

    task, _, _ = migrator(room={0: 1})
    assert demote_folio_list(task, base_pages(3))[0] == 1
    assert task.out.rc == -ENOMEM


def test_migrate_pages__refuses_what_no_kernel_knows():
    with pytest.raises(ValueError, match="lazily"):
        migrate(base_pages(1), "lazily")
    with pytest.raises(ValueError, match="boredom"):
        migrate(base_pages(1), SYNC, "boredom")
