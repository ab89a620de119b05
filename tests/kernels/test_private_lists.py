"""What a running compaction holds, against the twin that follows it by plain lists."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED, kernel
from memmodel.kernels.isolation import isolate_free_page
from memmodel.kernels.private_lists import (
    choose_targets,
    drop_held,
    give_back_target,
    hold,
    next_target,
    private_list,
)
from memmodel.kernels.replay_helpers import list_rows
from memmodel.state.layout import NONE, TARGETS, Kind
from tests.reference.replay_compaction import Compaction
from tests.reference.views import plain_memory

SMALL = Geometry(arch="generic", max_page_order=4, page_block_max_order=2, transparent_hugepage=False)
SLOT = np.uint64(2)
STEPS = st.lists(
    st.tuples(st.sampled_from(["isolate", "migrate", "next", "next", "back"]), st.integers(0, 999)), max_size=40
)


@kernel
def isolate(mem, slot, index):
    hold(mem, slot, index, isolate_free_page(mem, index, np.uint64(0)))


@kernel
def choose(mem, slot, n_sources):
    choose_targets(mem, slot, n_sources)


@kernel
def take_next(mem, slot):
    return next_target(mem, slot)


@kernel
def give_back(mem, slot, index):
    give_back_target(mem, slot, index)


@kernel
def drop(mem, index):
    return drop_held(mem, index)


@kernel
def head_of(mem, slot, order):
    return private_list(mem, slot, order)


def held(mem, order):
    rows = np.empty(int(mem.state.params.n_pages), np.int64)
    return rows[: list_rows(mem.state, head_of(mem.state, SLOT, np.uint64(order)), rows)].tolist()


@settings(max_examples=60 if JIT_ENABLED else 10)
@given(steps=STEPS)
def test_private_lists__as_the_twin(steps):
    mem = plain_memory(SMALL, 64 * 4096)
    first = int(mem.pfns.starts[0])
    zone = SimpleNamespace(pageblock_order=2, features=frozenset(), start_pfn=first)
    twin = Compaction(zone, 4, first)
    handed = []  # targets that sources have: rows
    for step, number in steps:
        free = np.flatnonzero(mem.state.pages["state"][: int(mem.state.params.n_pages)] >> 4 == Kind.FREE)
        if step == "isolate" and free.size and twin.targets is None:
            row = int(free[number % free.size])
            twin.isolate(row, int(mem.state.pages["state"][row]) & 15)
            isolate(mem.state, SLOT, np.uint64(row))
        elif step == "migrate":
            twin.end_migration()
            twin.n_sources = number % 6
            twin.start_migration()
            # what the last migration left handed out goes to nobody
            for row in held(mem, TARGETS):
                drop(mem.state, np.uint64(row))
                handed.append(row)
            twin.choose_targets()
            choose(mem.state, SLOT, np.uint64(number % 6))
        elif step == "next" and twin.targets is not None:
            row, expected = int(take_next(mem.state, SLOT)), twin.next_target()
            assert (None if row == NONE else row) == expected
            if expected is not None:
                handed.append(row)
        elif step == "back" and twin.targets:
            row = twin.targets[number % len(twin.targets)]
            twin.give_back(row)
            give_back(mem.state, SLOT, np.uint64(row))
        assert held(mem, TARGETS) == list(twin.targets or [])
        for order in range(int(mem.state.params.max_order) + 1):
            assert held(mem, order) == list(twin.held.get(order, []))
        mem.check()
    kinds = mem.state.pages["state"][handed]
    assert np.all(kinds == Kind.ISOLATED << 4)


def test_drop_held__leaves_the_list():
    mem = plain_memory(SMALL, 64 * 4096)
    isolate(mem.state, SLOT, np.uint64(16))
    assert held(mem, 4) == [16]
    assert int(drop(mem.state, np.uint64(16))) == 4
    assert held(mem, 4) == []
