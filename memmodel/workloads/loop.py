"""The loop that a workload runs in: a generator is asked, and the page allocator does what it says."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined, kernel, prefetch
from memmodel.kernels.folios import SEQUENCE_SHIFT, SLOT_BITS, drop_folio, new_folio
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.lru import add_lru
from memmodel.kernels.page_alloc import Request, alloc_row, free_row, mark_used
from memmodel.state.layout import NONE, Memory
from memmodel.workloads.built_in import built_in
from memmodel.workloads.generator import (
    BEGIN,
    END_NEWEST,
    END_RANDOM,
    FIELD,
    JOIN,
    KIND_SHIFT,
    NOTHING,
    ORDER_SHIFT,
    POOL_SHIFT,
    POOLS,
    below,
    fraction,
)
from memmodel.workloads.live import ALLOCATED, FAILED, FREED, HELD, N_KINDS, Live

__all__ = ["Requests", "run_built_in", "run_generator"]

U = np.uint64
ZERO = np.uint64(0)
ACTIONS, N_POOLS, KINDS = END_RANDOM + ONE, np.uint64(POOLS), np.uint64(N_KINDS)


class Requests(NamedTuple):
    """What requests of each kind are to the allocator."""

    fields: npt.NDArray[Any]  # request_dtype, [kinds, orders]
    zonelists: npt.NDArray[np.uint64]  # [kinds, zones]
    n_zones: npt.NDArray[np.uint64]  # [kinds]: how many of them count
    cpu: np.uint64


@inlined
def keep(mem: Memory, live: Live, number: U, pool: U, index: U, kind: U) -> None:
    """Enter a new folio in the open lot of a pool, or begin one with it."""
    work = live.works[number]
    handle = np.uint64(new_folio(mem, index))
    slot = handle & SLOT_BITS
    member = live.members[slot]
    member.sequence = handle >> SEQUENCE_SHIFT
    member.after = NONE
    member.kind = kind + ONE
    first = work.open[pool]
    if first == NONE:
        ring = live.rings[number, pool]
        ring[(work.head[pool] + np.uint64(work.lots[pool])) & np.uint64(ring.size - 1)] = slot
        work.lots[pool] += 1
        work.open[pool] = slot
        member.last = slot
        return
    live.members[live.members[first].last].after = slot
    live.members[first].last = slot


@inlined
def request_one(mem: Memory, live: Live, requests: Requests, number: U, word: U) -> None:
    """One request, counted; its folio is kept."""
    order, kind, pool = (word >> ORDER_SHIFT) & FIELD, (word >> KIND_SHIFT) & FIELD, (word >> POOL_SHIFT) & FIELD
    work = live.works[number]
    if word & FIELD == BEGIN:
        work.open[pool] = NONE
    asked = requests.fields[kind, order]
    index = NONE
    if requests.n_zones[kind]:
        request = Request(order, asked.migratetype, asked.highest, asked.fast, asked.slow, asked.lru)
        index = alloc_row(mem, requests.zonelists[kind][: requests.n_zones[kind]], requests.cpu, request)
    if index == NONE:
        work.failed = 1
        live.counts[FAILED, kind, order] += 1
        return
    mark_used(mem, index, order)
    if asked.lru:
        add_lru(mem, index, requests.cpu, order)
    keep(mem, live, number, pool, index, kind)
    live.counts[ALLOCATED, kind, order] += 1
    live.counts[HELD, kind, order] += 1
    work.pages += np.int64(ONE << order)
    work.debt = np.int64(ONE << order) - 1


@inlined
def take_lot(live: Live, number: U, pool: U, action: U) -> U:
    """Take the oldest, newest or a random lot out of a pool that has one; slot of its first folio."""
    work = live.works[number]
    ring = live.rings[number, pool]
    mask = np.uint64(ring.size - 1)
    n_lots = np.uint64(work.lots[pool])
    newest = (work.head[pool] + n_lots - ONE) & mask
    place = work.head[pool]
    if action == END_NEWEST:
        place = newest
    elif action == END_RANDOM:
        place = (place + below(work, n_lots)) & mask
    first = np.uint64(ring[place])
    if action >= END_NEWEST:
        ring[place] = ring[newest]
    else:
        work.head[pool] = (work.head[pool] + ONE) & mask
    work.lots[pool] -= 1
    if work.open[pool] == first:
        work.open[pool] = NONE
    return first


@inlined
def end_lot(mem: Memory, live: Live, cpu: U, number: U, word: U) -> None:
    """Free a lot, if the pool has one."""
    work = live.works[number]
    pool = (word >> POOL_SHIFT) & FIELD
    if work.lots[pool] == 0:
        return
    slot = take_lot(live, number, pool, word & FIELD)
    while slot != NONE:
        member = live.members[slot]
        after = np.uint64(member.after)
        if after != NONE:
            prefetch(live.members, after)
            prefetch(mem.folios, after)
        index = np.uint64(mem.folios[slot].index)
        order = np.uint64(mem.pages[index].state) & ORDER_BITS
        kind = np.uint64(member.kind) - ONE
        live.counts[FREED, kind, order] += 1
        live.counts[HELD, kind, order] -= 1
        work.pages -= np.int64(ONE << order)
        member.kind = ZERO
        drop_folio(mem, slot)
        free_row(mem, index, cpu)
        slot = after


@inlined
def whose_turn(works: Any) -> U:
    """The generator of the next operation: by weight, and one that asked for many pages sits out as many turns."""
    number = ZERO
    while works.size > 2:
        drawn = fraction(works[works.size - 1])
        number = ZERO
        while drawn >= works[number].up_to:
            number += ONE
        if works[number].debt <= 0:
            break
        works[number].debt -= 1
    return number


@inlined
def possible(mem: Memory, word: U) -> bool:
    """Whether an operation is one."""
    return (
        bool(word & FIELD < ACTIONS)
        and bool((word >> ORDER_SHIFT) & FIELD <= mem.params.max_order)
        and bool((word >> KIND_SHIFT) & FIELD < KINDS)
        and bool(word >> POOL_SHIFT < N_POOLS)
    )


@inlined
def run(mem: Memory, live: Live, requests: Requests, n_operations: int, settle: bool, generator: Any) -> None:
    """So many operations; or, to settle, until each generator has been at its level."""
    heading = 0
    for i in range(live.works.size - 1):
        heading += abs(live.works[i].heading)
    for _ in range(n_operations):
        if settle and heading == 0:
            return
        number = whose_turn(live.works)
        work = live.works[number]
        work.room = work.level - work.pages
        if work.heading * work.room <= 0 and work.heading != 0:
            work.heading = 0
            heading -= 1
        word = np.uint64(generator(work))
        if not possible(mem, word):
            live.totals[1] = np.int64(word)
            return
        live.totals[0] += 1
        work.failed = 0
        action = word & FIELD
        if action == BEGIN or action == JOIN:
            request_one(mem, live, requests, number, word)
        elif action != NOTHING:
            end_lot(mem, live, requests.cpu, number, word)


@kernel
def run_built_in(mem: Memory, live: Live, requests: Requests, n_operations: int, settle: bool) -> None:
    """The loop with built-in generators."""
    run(mem, live, requests, n_operations, settle, built_in)


@kernel
def run_generator(mem: Memory, live: Live, requests: Requests, n_operations: int, settle: bool, generator: Any) -> None:
    """The loop with a user's generator, a ``numba.cfunc`` of `SIGNATURE`."""
    run(mem, live, requests, n_operations, settle, generator)
