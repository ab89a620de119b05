"""Blocks in use cut, joined, and made up where the model had none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED, kernel
from memmodel.kernels.isolation import isolate_free_page
from memmodel.kernels.lru import add_lru
from memmodel.kernels.private_lists import hold
from memmodel.kernels.used import force_used, is_used, make_used_block
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import Kind, PageFlag

ZERO = np.uint64(0)
SMALL = Geometry(arch="generic", max_page_order=4, page_block_max_order=2, transparent_hugepage=False)
N_PAGES = 64


@kernel
def make(mem, index, order):
    return make_used_block(mem, index, order)


@kernel
def force(mem, index, order):
    return force_used(mem, index, ZERO, order)


@kernel
def used(mem, index):
    return is_used(mem, index)


@kernel
def to_lru(mem, index, order):
    add_lru(mem, index, ZERO, order)


@kernel
def isolate(mem, index):
    hold(mem, ZERO, index, isolate_free_page(mem, index, ZERO))


def kinds(mem):
    """Kind of each page."""
    state = mem.state.pages["state"][: int(mem.state.params.n_pages)]
    heads = np.maximum.accumulate(np.where(state != 0, np.arange(state.size), 0))
    return (state >> 4)[heads]


def put_in_use(mem, row, order, lru):
    """A free block is in use, by no folio that anyone has a handle of."""
    force(mem.state, np.uint64(row), np.uint64(order))
    if lru:
        to_lru(mem.state, np.uint64(row), np.uint64(order))


@pytest.fixture
def memory():
    return PhysicalMemory(SMALL, N_PAGES * 4096, seed=1)


def drawn(memory, blocks, n_pcp, isolated):
    """A machine with blocks in use, pages on per-CPU lists, and a block that compaction holds."""
    mem = memory.copy()
    for row, order, lru in blocks:
        row = row >> order << order
        if np.all(kinds(mem)[row : row + (1 << order)] == Kind.FREE):
            put_in_use(mem, row, order, lru)
    folios = mm.alloc_pages(mem, 0, n_pcp)
    mm.free_pages(mem, folios[folios >= 0])
    free = np.flatnonzero(mem.state.pages["state"][:N_PAGES] >> 4 == Kind.FREE)
    if free.size and isolated is not None:
        isolate(mem.state, np.uint64(free[isolated % free.size]))
    mem.check()
    return mem


MACHINE = {
    "blocks": st.lists(st.tuples(st.integers(0, N_PAGES - 1), st.integers(0, 4), st.booleans()), max_size=8),
    "n_pcp": st.integers(0, 12),
    "isolated": st.none() | st.integers(0, 99),
}


@settings(max_examples=100 if JIT_ENABLED else 15)
@given(row=st.integers(0, N_PAGES - 1), order=st.integers(0, 4), **MACHINE)
def test_make_used_block__if_all_of_it_is_in_use(row, order, blocks, n_pcp, isolated):
    mem = drawn(PhysicalMemory(SMALL, N_PAGES * 4096, seed=1), blocks, n_pcp, isolated)
    row = row >> order << order
    before = kinds(mem)
    whole = bool(np.all(before[row : row + (1 << order)] == Kind.USED))
    assert bool(make(mem.state, np.uint64(row), np.uint64(order))) == whole
    assert np.array_equal(kinds(mem), before)  # nothing comes into use or out of it
    if whole:
        assert mem.state.pages["state"][row] == Kind.USED << 4 | order
    mem.check()


@settings(max_examples=100 if JIT_ENABLED else 15)
@given(row=st.integers(0, N_PAGES - 1), order=st.integers(0, 4), **MACHINE)
def test_force_used__takes_what_was_not_in_use(row, order, blocks, n_pcp, isolated):
    mem = drawn(PhysicalMemory(SMALL, N_PAGES * 4096, seed=1), blocks, n_pcp, isolated)
    row = row >> order << order
    there = slice(row, row + (1 << order))
    before = kinds(mem)
    changed = int(force(mem.state, np.uint64(row), np.uint64(order)))
    after = kinds(mem)
    assert mem.state.pages["state"][row] == Kind.USED << 4 | order
    assert np.all(after[there] == Kind.USED)
    assert changed <= np.count_nonzero(before[there] != Kind.USED)
    assert (changed > 0) == bool(np.any(before[there] != Kind.USED))
    was_used = before == Kind.USED
    assert np.all(after[was_used] == Kind.USED)
    mem.check()


def test_make_used_block__joined_pages_leave_the_lru_lists(memory):
    for row in range(4):
        put_in_use(memory, row, 0, lru=True)
    assert bool(make(memory.state, ZERO, np.uint64(2)))
    flags = memory.state.pages["pg_flags"][:4]
    assert not np.any(flags[1:] & (PageFlag.LRU | PageFlag.LRU_BATCH))
    memory.check()


def test_force_used__page_in_a_batch_leaves_it(memory):
    put_in_use(memory, 5, 0, lru=True)
    assert memory.state.lru["count"][0] == 1
    assert int(force(memory.state, np.uint64(5), ZERO)) == 0
    assert memory.state.lru["count"][0] == 0
    memory.check()


def test_force_used__reserved_page_is_beyond_managed(memory):
    put_in_use(memory, 7, 0, lru=False)
    memory.state.pages["state"][7] = Kind.RESERVED << 4
    memory.state.zones["managed"] -= np.uint64(1)
    memory.check()
    assert int(force(memory.state, np.uint64(7), ZERO)) == 1
    assert memory.state.zones["beyond_managed"].tolist()[0] == 1
    memory.check()


def test_force_used__lost_page_stays_counted(memory):
    put_in_use(memory, 7, 0, lru=False)
    memory.state.pages["state"][7] = Kind.HWPOISON << 4
    memory.check()
    assert int(force(memory.state, np.uint64(7), ZERO)) == 1
    memory.check()


def test_is_used__unknown_counts_as_used(memory):
    put_in_use(memory, 3, 0, lru=False)
    assert bool(used(memory.state, np.uint64(3)))
    memory.state.pages["state"][3] = Kind.UNKNOWN << 4
    assert bool(used(memory.state, np.uint64(3)))
    assert not bool(used(memory.state, np.uint64(32)))
