"""Latent errors, the queue of 16, and pages taken off the buddy, against the slow twins."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED
from memmodel.kernels import poisoning as kernels
from memmodel.state.layout import Kind
from tests.reference import buddy as reference
from tests.reference import poisoning, views
from tests.reference.parts import alone

MAX_ORDER = 10
queue_failure = alone(kernels.queue_failure)
first_bad_page, first_bad_line = alone(kernels.first_bad_page), alone(kernels.first_bad_line)


def queue_of(mem, cpu=0):
    """The entries of a CPU's ring, oldest first."""
    ring = mem.state.queues[cpu]
    places = (int(ring["head"]) + np.arange(int(ring["count"]))) % 16
    return ring["index"][places].tolist()


def places_in_a_block(order):
    """Every place in a small block, the ends, the middle and some others in a large one (fewer with the JIT off)."""
    some = {0, 2**order // 2, 2**order - 1}
    if JIT_ENABLED:
        some |= set(range(2**order)) if order <= 4 else set(random.Random(order).choices(range(2**order), k=6))
    return sorted(some)


@pytest.mark.parametrize("order", range(MAX_ORDER + 1))
def test_drain_failures__one_page_leaves_a_block_of_each_order(order):
    """Oracle 9: a block of each order below is left, the zone loses one page, and nobody ever gets it again."""
    start = views.plain_memory(Geometry(arch="generic"), 2048 * 4096, seed=0)
    small = mm.alloc_pages(start, order, 2048 >> order)
    victim = small[(2048 >> order) // 2 + (order < MAX_ORDER)]  # its buddy stays in use
    base = int(start.pfn(victim)[0])
    for place in places_in_a_block(order):
        mem, target = start.copy(), base + place
        mm.inject_poison(mem, pfn=target)
        mm.folio_mc_copy(mem, small[0], victim, engine="fragile")
        mm.free_pages(mem, victim)
        assert int(mem.state.zones["free_pages"][0]) == 2**order
        work = mm.run_memory_failure_work(mem)
        assert (work.pfn.tolist(), work.taken_off_buddy.tolist()) == ([target], [True])
        mem.check()
        lists = {o: pfns for (_, o, _), pfns in views.free_lists(mem).items() if pfns}
        assert [len(pfns) for pfns in lists.values()] == [1] * order
        assert sorted(lists) == list(range(order))
        covered = {pfn + i for o, pfns in lists.items() for pfn in pfns for i in range(2**o)}
        assert covered == set(range(base, base + 2**order)) - {target}
        assert int(mem.state.zones["free_pages"][0]) == 2**order - 1
        assert views.pages_of_kind(mem, Kind.HWPOISON) == {target}
        got = mm.alloc_pages(mem, 0, 2**order)
        assert (got >= 0).sum() == 2**order - 1
        assert target not in mem.pfn(got[got >= 0]).tolist()
        mm.free_pages(mem, [*got, *small[small != victim]])
        mem.check()
        assert int(mem.state.zones["free_pages"][0]) == 2047
        rest = mm.alloc_pages(mem, 0, 2048)
        assert target not in mem.pfn(rest[rest >= 0]).tolist()


@settings(deadline=None, max_examples=60)
@given(pfn=st.integers(0, 149), hygiene=st.booleans(), seed=st.integers(0, 1000), n=st.integers(0, 60))
def test_drain_failures__free_pages_as_the_twin(pfn, hygiene, seed, n):
    """Any page of a fragmented memory: the same halves at the same places of the lists."""
    geometry = Geometry(
        arch="generic",
        max_page_order=5,
        page_block_max_order=3,
        transparent_hugepage=False,
        features={} if hygiene else views.BEFORE_6_10,
    )
    zones = [reference.Zone(0, "Normal", 0, 150, [(0, 150)])]
    mem, twin = views.machine(geometry, zones), reference.Buddy(zones, 5, 3, hygiene)
    folios = mm.alloc_pages(mem, 0, n)
    pfns = [twin.alloc(0, reference.MOVABLE) for _ in range(n)]
    order = random.Random(seed).sample(range(n), n // 2)
    mm.free_pages(mem, folios[order])
    for i in order:
        twin.free(pfns[i])
    queue = poisoning.FailureQueue()
    for _ in range(2):
        assert queue_failure(mem.state, np.uint64(0), np.uint64(mem.index(pfn))) == queue.put(pfn)
    work = mm.run_memory_failure_work(mem)
    expected = queue.work(twin)
    assert list(zip(work.pfn, work.already_poisoned, work.taken_off_buddy, strict=True)) == expected
    assert views.free_lists(mem) == twin.lists
    mem.check()


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.one_of(st.just("work"), st.integers(1, 20)), max_size=12))
def test_queue_failure__ring(small_memory, steps):
    """However often it wraps round: first in first out, the 17th is dropped."""
    mem, queue = small_memory.copy(), poisoning.FailureQueue()
    twin = reference.Buddy([reference.Zone(0, "Normal", 0, 64, [(0, 64)])], 4, 2)
    pfn = 0
    for step in steps:
        if step == "work":
            work = mm.run_memory_failure_work(mem)
            assert work.pfn.tolist() == [done[0] for done in queue.work(twin)]
        else:
            for _ in range(step):
                assert queue_failure(mem.state, np.uint64(0), np.uint64(pfn)) == queue.put(pfn)
                pfn = (pfn + 7) % 64
        assert queue_of(mem) == queue.entries
        assert int(mem.state.queues["dropped"][0]) == queue.n_dropped


@pytest.fixture(scope="module")
def small_memory():
    geometry = Geometry(arch="generic", max_page_order=4, page_block_max_order=2, transparent_hugepage=False)
    return views.plain_memory(geometry, 64 * 4096, seed=0)


@settings(deadline=None, max_examples=200)
@given(
    bad=st.lists(st.integers(0, 383), max_size=6),
    span=st.tuples(st.integers(0, 384), st.integers(0, 384)).map(sorted),
)
def test_first_bad_page__as_a_search_page_by_page(wide_memory, bad, span):
    mem = wide_memory.copy()
    mm.inject_poison(mem, pfn=np.array(bad, np.int64))
    start, end = span
    found = first_bad_page(mem.state, np.uint64(start), np.uint64(end))
    assert found == next((page for page in range(start, end) if page in bad), end)


@settings(deadline=None, max_examples=100)
@given(places=st.lists(st.tuples(st.integers(0, 383), st.integers(0, 63)), min_size=1, max_size=12))
def test_first_bad_line__the_lowest_of_the_page(wide_memory, places):
    mem = wide_memory.copy()
    mm.inject_poison(mem, pfn=[page for page, _ in places], line=[line for _, line in places])
    for page, _ in places:
        found = first_bad_line(mem.state, np.uint64(page))
        assert found == min(line for other, line in places if other == page)


@pytest.fixture(scope="module")
def wide_memory():
    """384 pages: six words of the bitmap."""
    return views.plain_memory(Geometry(arch="generic"), 384 * 4096, seed=0)
