"""Compaction's targets: isolated when a source wants one, handed out, taken back, and released at the end.

mm/compaction.c (isolate_freepages, compaction_alloc, compaction_free, release_free_list), 6.12.117.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.compact_control import LARGE_FOLIOS, Compact, first_of_block
from memmodel.kernels.compact_free_scan import scan_linearly
from memmodel.kernels.compact_search import find_target_block
from memmodel.kernels.freelist import ONE, ORDER_BITS, link_after, unlink
from memmodel.kernels.isolation import ISOLATED
from memmodel.kernels.page_alloc import free_block
from memmodel.kernels.private_lists import private_list
from memmodel.state.layout import NONE, Memory

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)


@outlined
def isolate_freepages(mem: Memory, c: Compact) -> None:
    """More targets, by the free lists or else by scanning (isolate_freepages)."""
    never_inline()
    find_target_block(mem, c)
    if c.control[0].nr_free == 0:
        scan_linearly(mem, c)


@inlined
def first_held(mem: Memory, c: Compact, order: U) -> U:
    """Head of the private list of the smallest sufficient order that has a block, or NONE."""
    while order <= mem.params.max_order:
        head = private_list(mem, np.uint64(c.control[0].slot), order)
        if mem.pages[head].next != head:
            return head
        order += ONE
    return NONE


@inlined
def compaction_alloc(mem: Memory, c: Compact, order: U) -> U:
    """A target for a source: the lower part of the first block of the smallest sufficient order; row, or NONE.

    Not a call, whose arguments alone, the whole state, cost a sixth of a move.
    """
    head = first_held(mem, c, order)
    if head == NONE:
        isolate_freepages(mem, c)
        head = first_held(mem, c, order)
        if head == NONE:
            return NONE
    control = c.control[0]
    index = np.uint64(mem.pages[head].next)
    unlink(mem, index)
    rest = np.uint64(mem.pages[index].state) & ORDER_BITS
    while rest > order:
        rest -= ONE
        upper = index + (ONE << rest)
        mem.pages[upper].state = ISOLATED | rest
        link_after(mem, upper, private_list(mem, np.uint64(control.slot), rest))
    mem.pages[index].state = USED | order
    mem.pages[index].refcount = ONE
    control.nr_free -= np.int64(ONE << order)
    if mem.params.features & LARGE_FOLIOS:  # before, all of the batch is wanted anew
        control.nr_migrate -= np.int64(ONE << order)
    return index


@outlined
def compaction_free(mem: Memory, c: Compact, index: U, order: U) -> None:
    """A target that its source did not use goes to the head of the private list."""
    never_inline()
    control = c.control[0]
    mem.pages[index].state = ISOLATED | order
    mem.pages[index].refcount = ZERO
    link_after(mem, index, private_list(mem, np.uint64(control.slot), order))
    control.nr_free += np.int64(ONE << order)
    if mem.params.features & LARGE_FOLIOS:
        control.nr_migrate += np.int64(ONE << order)


@inlined
def next_released(mem: Memory, c: Compact) -> U:
    """The next block that was isolated for nothing, taken out to be freed: orders ascending; row, or NONE."""
    control = c.control[0]
    head = first_held(mem, c, ZERO)
    if head == NONE:
        return NONE
    index = np.uint64(mem.pages[head].next)
    unlink(mem, index)
    order = np.uint64(mem.pages[index].state) & ORDER_BITS
    mem.pages[index].state = USED | order
    mem.pages[index].refcount = ONE
    control.nr_free -= np.int64(ONE << order)
    return index


@inlined
def release(mem: Memory, c: Compact) -> None:
    """All of them go back, and the next run looks there again (release_free_list)."""
    control = c.control[0]
    highest = np.int64(-1)
    while True:
        index = next_released(mem, c)
        if index == NONE:
            break
        highest = max(highest, np.int64(index))
        free_block(mem, index, np.uint64(control.cpu))
    note_released(mem, c, highest)


@inlined
def note_released(mem: Memory, c: Compact, highest: I) -> None:
    """The pageblock of the highest block that was given back is looked at again."""
    zone = mem.zones[c.control[0].zone]
    if highest >= 0:
        zone.cached_free = max(np.int64(zone.cached_free), first_of_block(mem, highest))
