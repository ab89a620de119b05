"""The pieces of a compaction that a replay predicts: its migrations are followed page by page."""

from typing import Any

import numpy as np

from memmodel.jit import kernel
from memmodel.kernels.compact_control import Compact
from memmodel.kernels.compact_finished import (
    defer,
    defer_reset,
    deferred,
    suit_allocation_order,
)
from memmodel.kernels.compact_free import compaction_alloc, compaction_free, next_released, note_released
from memmodel.kernels.compaction import after_migration, begin_compaction, next_sources
from memmodel.kernels.folios import slot_of
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.lru import LRU_ISOLATED, add_lru, drain_lru_batch, put_back_folio
from memmodel.kernels.migration_folio import MLOCKED, NO_MIGRATE, OF_THE_FRAME, bits_of
from memmodel.kernels.page_alloc import free_block
from memmodel.kernels.replay_state import Course
from memmodel.kernels.request_log import move_ids
from memmodel.state.layout import NONE, Memory

U = np.uint64
ZERO = np.uint64(0)


@kernel
def start_run(mem: Memory, c: Compact) -> int:
    """From mm_compaction_begin to the first migration: CONTINUE, or how the run ends."""
    begin_compaction(mem, c)
    return next_sources(mem, c)


@kernel
def go_on(mem: Memory, c: Compact, rc: int) -> int:
    """From a migration to the next one."""
    return after_migration(mem, c, np.int64(rc))


@kernel
def suits(mem: Memory, c: Compact, zone: U, highest: U) -> int:
    """Whether a zone is worth compacting for the run's order."""
    control = c.control[0]
    return suit_allocation_order(mem, c, zone, np.uint64(control.order), highest, np.uint64(control.alloc_flags))


@kernel
def put_off(mem: Memory, zone: U, order: U) -> bool:
    """Whether compaction of the zone is put off this time."""
    return deferred(mem, zone, order)


@kernel
def note_failure(mem: Memory, zone: U, order: U) -> None:
    """A zone could not be compacted."""
    defer(mem, zone, order)


@kernel
def note_success(mem: Memory, zone: U, order: U, allocated: bool) -> None:
    """It could; a request that got its page of it begins anew."""
    defer_reset(mem, zone, order, allocated)
    if allocated:
        mem.zones[zone].blockskip_flush = ZERO


@kernel
def target_for(mem: Memory, c: Compact, source: U) -> U:
    """A target of a source's order: row, or NONE."""
    return compaction_alloc(mem, c, np.uint64(mem.pages[source].state) & ORDER_BITS)


@kernel
def return_target(mem: Memory, c: Compact, target: U) -> None:
    """A target that was not used."""
    compaction_free(mem, c, target, np.uint64(mem.pages[target].state) & ORDER_BITS)


@kernel
def never_moves(mem: Memory, index: U) -> bool:
    """Whether migration of the page must fail."""
    return bool(bits_of(mem, index) & NO_MIGRATE)


@kernel
def put_back(mem: Memory, cpu: U, rows: Any) -> None:
    """Sources that did not move, in the order of their list."""
    for index in rows:
        put_back_folio(mem, np.uint64(index), cpu)


@kernel
def move_page(mem: Memory, course: Course, source: U, target: U, cpu: U) -> None:
    """A page's contents go to its target, which joins the LRU batch; the source is free then."""
    page, old = mem.pages[target], mem.pages[source]
    order = np.uint64(old.state) & ORDER_BITS
    bits = bits_of(mem, source)
    slot = slot_of(mem, source)
    flags = np.uint64(old.pg_flags)
    page.pg_flags = (np.uint64(page.pg_flags) & OF_THE_FRAME) | (flags & ~OF_THE_FRAME)
    page.next = slot
    if slot != NONE:
        mem.folios[slot].index = target
    old.next = NONE
    for place in range(ONE << order):
        move_ids(course, source + np.uint64(place), target + np.uint64(place))
    if flags & LRU_ISOLATED:
        add_lru(mem, target, cpu, order)
        if bits & MLOCKED:
            drain_lru_batch(mem, cpu)
    free_block(mem, source, cpu)


@kernel
def released(mem: Memory, c: Compact) -> U:
    """The next block that the run isolated for nothing, ready to be freed: row, or NONE."""
    return next_released(mem, c)


@kernel
def free_released(mem: Memory, index: U, cpu: U) -> None:
    """It goes back to the allocator."""
    free_block(mem, index, cpu)


@kernel
def end_run(mem: Memory, c: Compact, highest: int) -> None:
    """After the last of them: the highest row, or -1."""
    note_released(mem, c, np.int64(highest))
