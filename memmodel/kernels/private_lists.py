"""The free blocks that a running compaction holds, and how migration uses them up as targets.

struct compact_control's freepages and compaction_alloc(), compaction_free() of mm/compaction.c, 6.12.117. All sources
of a migration get their targets before the first of them moves; a target that its source does not use goes back to
the head of the list of single pages.
"""

import numpy as np

from memmodel.jit import inlined
from memmodel.kernels.freelist import ONE, ORDER_BITS, link_after, unlink
from memmodel.kernels.isolation import ISOLATED
from memmodel.state.layout import NONE, NR_ORDERS, PRIVATE_LISTS, TARGETS, Memory

U = np.uint64
ZERO = np.uint64(0)
LISTS, HANDED = np.uint64(PRIVATE_LISTS), np.uint64(TARGETS)


@inlined
def private_list(mem: Memory, slot: U, order: U) -> U:
    """Row of the head of a compaction's list of an order, or of the targets that its sources have (TARGETS)."""
    return mem.params.private_heads + slot * LISTS + order


@inlined
def hold(mem: Memory, slot: U, index: U, order: U) -> None:
    """Keep a block that was just isolated."""
    link_after(mem, index, np.uint64(mem.pages[private_list(mem, slot, order)].prev))


@inlined
def take_target(mem: Memory, slot: U) -> U:
    """A single page for a source: the lowest of the first block of the smallest order (compaction_alloc)."""
    for order in range(NR_ORDERS):
        head = private_list(mem, slot, np.uint64(order))
        index = np.uint64(mem.pages[head].next)
        if index != head:
            unlink(mem, index)
            rest = np.uint64(order)
            while rest > ZERO:
                rest -= ONE
                upper = index + (ONE << rest)
                mem.pages[upper].state = ISOLATED | rest
                link_after(mem, upper, private_list(mem, slot, rest))
            mem.pages[index].state = ISOLATED
            return index
    return NONE


@inlined
def choose_targets(mem: Memory, slot: U, n_sources: U) -> None:
    """One target for each source."""
    for _ in range(n_sources):
        index = take_target(mem, slot)
        if index == NONE:
            break
        link_after(mem, index, np.uint64(mem.pages[private_list(mem, slot, HANDED)].prev))
        mem.pages[index].refcount = ONE


@inlined
def next_target(mem: Memory, slot: U) -> U:
    """The target of the next source that moves, or NONE.

    Sources that fail all together are tried once more, one by one (migrate_pages_sync): each takes a target then.
    """
    head = private_list(mem, slot, HANDED)
    index = np.uint64(mem.pages[head].next)
    if index == head:
        return take_target(mem, slot)
    unlink(mem, index)
    mem.pages[index].refcount = ZERO
    return index


@inlined
def give_back_target(mem: Memory, slot: U, index: U) -> None:
    """A source did not use its target (compaction_free): it goes to the head of the list of single pages."""
    unlink(mem, index)
    mem.pages[index].refcount = ZERO
    mem.pages[index].state = ISOLATED
    link_after(mem, index, private_list(mem, slot, ZERO))


@inlined
def drop_held(mem: Memory, index: U) -> U:
    """Take a held block out of its private list, to be freed for real: its order."""
    unlink(mem, index)
    mem.pages[index].refcount = ZERO
    return np.uint64(mem.pages[index].state) & ORDER_BITS
