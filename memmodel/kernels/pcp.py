"""Per-CPU page lists: refills, frees and drains, with the marks that decide when and how much.

mm/page_alloc.c (rmqueue_pcplist, nr_pcp_alloc, free_unref_page_commit, nr_pcp_high, nr_pcp_free, free_pcppages_bulk),
6.12.117; before 6.7 `high` is fixed (Feature.PCP_AUTOTUNE off).
"""

import numpy as np

from memmodel.jit import inlined, kernel, never_inline, outlined
from memmodel.kernels.buddy import MOVABLE, free_one
from memmodel.kernels.freelist import (
    HIGHATOMIC,
    HYGIENE,
    ONE,
    ORDER_BITS,
    TYPES,
    block_type,
    fold_difference,
    link_after,
    load_neighbours,
    unlink,
)
from memmodel.kernels.watermark import leave_below_high
from memmodel.state.layout import NR_PCP_LISTS, Feature, Kind, Memory, PcpFlag, ZoneFlag, ZoneType

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
PCP = np.uint64(Kind.PCP << 4)
LISTS = np.uint64(NR_PCP_LISTS)
COSTLY_ORDER = np.uint64(3)  # PAGE_ALLOC_COSTLY_ORDER
MIGRATE_PCPTYPES = np.uint64(3)
THP_LISTS = np.uint64(12)
AUTOTUNE = np.uint64(Feature.PCP_AUTOTUNE)
HALF_MIN = np.uint64(Feature.PCP_FREE_HIGH_HALF_MIN)
IN_BATCHES = np.uint64(Feature.PCP_FREE_IN_BATCHES)
FREED_HIGH_ORDER = np.uint64(PcpFlag.PREV_FREE_HIGH_ORDER)
LARGE_CACHE = np.uint64(PcpFlag.FREE_HIGH_BATCH)
BELOW_HIGH, RECLAIM_ACTIVE = np.uint64(ZoneFlag.BELOW_HIGH), np.uint64(ZoneFlag.RECLAIM_ACTIVE)
ZONE_MOVABLE = np.uint64(ZoneType.MOVABLE)


@inlined
def clamp(value: I, low: I, high: I) -> I:
    """As the kernel's: where low > high, a value between them becomes high."""
    return high if value >= high else max(value, low)


@inlined
def pcp_allowed(mem: Memory, order: U) -> bool:
    """Whether the order has per-CPU lists (pcp_allowed_order)."""
    return bool(order <= COSTLY_ORDER) or bool(order == mem.params.pcp_thp_order)


@inlined
def pcp_list(mem: Memory, zone: U, cpu: U, order: U, migratetype: U) -> U:
    """Row of the list's head (order_to_pindex); types that have no list use MOVABLE's."""
    params = mem.params
    if migratetype >= HIGHATOMIC:
        migratetype = MOVABLE
    pindex = order * MIGRATE_PCPTYPES + migratetype
    if order > COSTLY_ORDER:
        pindex = THP_LISTS + np.uint64(migratetype == MOVABLE)
    first = params.n_pages + zone * params.heads_per_zone + (params.max_order + ONE) * TYPES
    return first + cpu * LISTS + pindex


@inlined
def refill_length(mem: Memory, zone: U, cpu: U, order: U) -> I:
    """Blocks that a refill asks for (nr_pcp_alloc): order 0 doubles each time while nothing is freed."""
    pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
    batch = np.int64(pcp.batch)
    length = batch
    if mem.params.features & AUTOTUNE:
        high_min, high_max = np.int64(pcp.high_min), np.int64(pcp.high_max)
        high = clamp(np.int64(pcp.high), high_min, high_max)
        pcp.high = high
        if high < batch:
            return np.int64(1)
        if order == ZERO:
            length = batch << np.int64(pcp.alloc_factor)
        if high_min != high_max and not np.uint64(mem.zones[zone]["flags"]) & BELOW_HIGH:
            high = min(high + length, high_max)
            pcp.high = high
        if order == ZERO:
            limit = max(high - np.int64(pcp.count) - batch, batch)
            if length <= limit and pcp.alloc_factor < mem.params.pcp_batch_scale_max:
                pcp.alloc_factor += ONE
            length = min(length, limit)
    if length > 1:
        length = max(length >> np.int64(order), np.int64(2))
    return length


@inlined
def pcp_pop(mem: Memory, zone: U, cpu: U, head: U, order: U) -> U:
    """Take the head of a list that is not empty."""
    index = np.uint64(mem.pages[head].next)
    unlink(mem, index)
    mem.pcp[zone * mem.params.n_cpus + cpu].count -= ONE << order
    return index


@inlined
def pcp_add(mem: Memory, zone: U, cpu: U, index: U, order: U, before: U) -> None:
    """Put a page behind `before` on a per-CPU list."""
    link_after(mem, index, before)
    mem.pages[index].state = PCP | order
    mem.pcp[zone * mem.params.n_cpus + cpu].count += ONE << order


@outlined
def drain_pcp(mem: Memory, zone: U, cpu: U, runs_on: U, n_pages: I, head: U) -> None:
    """Back to the buddy from the tails, one list after the other from this one on (free_pcppages_bulk).

    A list is emptied before the next one's turn. Before 6.10 a page goes to the type that its pageblock had when it
    came here, unless something in the zone is isolated.
    """
    never_inline()
    params = mem.params
    pcp = mem.pcp[zone * params.n_cpus + cpu]
    first = pcp_list(mem, zone, cpu, ZERO, ZERO)
    n_pages = min(n_pages, np.int64(pcp.count))
    while n_pages > 0:
        index = np.uint64(mem.pages[head].prev)
        if index == head:
            head = head + ONE if head + ONE < first + LISTS else first
            continue
        page = mem.pages[index]
        order = np.uint64(page.state) & ORDER_BITS
        ahead = np.uint64(mem.pages[page.prev].prev)
        if ahead < params.n_pages:
            load_neighbours(mem, ahead ^ ONE)
        unlink(mem, index)
        n_pages -= np.int64(ONE << order)
        pcp.count -= ONE << order
        migratetype = np.uint64(page.refcount)
        if params.features & HYGIENE or mem.zones[zone].nr_isolate_pageblock:
            migratetype = block_type(mem, index)
        page.state = ZERO
        page.refcount = ZERO
        free_one(mem, index, runs_on, order, migratetype, False)


@inlined
def drain_all_pcp(mem: Memory, zone: U, cpu: U, runs_on: U) -> bool:
    """Empty a CPU's lists of a zone; False if nothing was on them."""
    count = np.int64(mem.pcp[zone * mem.params.n_cpus + cpu].count)
    if count:
        drain_pcp(mem, zone, cpu, runs_on, count, pcp_list(mem, zone, cpu, ZERO, ZERO))
    return bool(count)


@inlined
def high_shrunk(mem: Memory, zone: U, cpu: U, by: I) -> None:
    """Lower `high` by so much, not below high_min."""
    pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
    pcp.high = max(np.int64(pcp.high) - by, np.int64(pcp.high_min))


@inlined
def drain_mark(mem: Memory, zone: U, cpu: U, free_high: bool) -> I:
    """The count from which a free drains (nr_pcp_high); it tunes `high` on the way."""
    pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
    flags = np.uint64(mem.zones[zone]["flags"])
    batch, count = np.int64(pcp.batch), np.int64(pcp.count)
    if not mem.params.features & AUTOTUNE:
        if free_high:
            return np.int64(0)
        return min(batch << 2, np.int64(pcp.high)) if flags & RECLAIM_ACTIVE else np.int64(pcp.high)
    high_min, high_max = np.int64(pcp.high_min), np.int64(pcp.high_max)
    high = clamp(np.int64(pcp.high), high_min, high_max)
    pcp.high = high
    if high == 0:
        return high
    freed = max(np.int64(pcp.free_count), batch)
    if free_high:
        high_shrunk(mem, zone, cpu, batch << np.int64(mem.params.pcp_batch_scale_max))
        return np.int64(0)
    if flags & RECLAIM_ACTIVE:
        high_shrunk(mem, zone, cpu, freed)
        return min(batch << 2, np.int64(pcp.high))
    if high_min == high_max:
        return high
    if flags & BELOW_HIGH:
        high_shrunk(mem, zone, cpu, freed)
        return max(count, high_min)
    if count >= high:
        needed = np.int64(pcp.free_count) + batch
        if np.int64(pcp.high) < needed:
            pcp.high = clamp(needed, high_min, high_max)
    return high


@inlined
def drain_length(mem: Memory, zone: U, cpu: U, high: I, free_high: bool) -> I:
    """Pages that the drain takes (nr_pcp_free)."""
    pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
    batch, count = np.int64(pcp.batch), np.int64(pcp.count)
    scale = np.int64(mem.params.pcp_batch_scale_max)
    if mem.params.features & AUTOTUNE:
        if free_high:
            return min(count, batch << scale)
        return np.int64(1) if high < batch else clamp(np.int64(pcp.free_count), batch, high - batch)
    if free_high:
        return count
    if high < batch:
        return np.int64(1)
    length = batch << np.int64(pcp.free_factor)
    if length < high - batch and pcp.free_factor < mem.params.pcp_batch_scale_max:
        pcp.free_factor += ONE
    return clamp(length, batch, high - batch)


@inlined
def counts_as_run(mem: Memory, zone: U, cpu: U, order: U) -> bool:
    """Note a free; True if it is one of a run of larger blocks, after which all goes back at once (free_high)."""
    pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
    high_order = bool(order > ZERO) and bool(order <= COSTLY_ORDER)
    if not mem.params.features & AUTOTUNE:
        return high_order and bool(pcp.free_factor > ZERO)
    batch = np.int64(pcp.batch)
    pcp.alloc_factor = np.uint64(pcp.alloc_factor) >> ONE
    flags = np.uint64(pcp["flags"])
    enough = batch + np.int64(pcp.high_min) // 2 if mem.params.features & HALF_MIN else batch
    free_high = high_order and bool(flags & FREED_HIGH_ORDER) and bool(np.int64(pcp.free_count) >= enough)
    if flags & LARGE_CACHE and np.int64(pcp.count) < batch:
        free_high = False
    pcp["flags"] = flags | FREED_HIGH_ORDER if high_order else flags & ~FREED_HIGH_ORDER
    if np.int64(pcp.free_count) < batch << np.int64(mem.params.pcp_batch_scale_max):
        pcp.free_count += ONE << order
    return free_high


@outlined
def drain_after_free(mem: Memory, zone: U, cpu: U, n_pages: I, head: U) -> None:
    """The drain that a free causes; since 7.2 in pieces, each from the same list on."""
    never_inline()
    if mem.params.features & IN_BATCHES:
        batch = np.int64(mem.pcp[zone * mem.params.n_cpus + cpu].batch)
        while n_pages > 0 and mem.pcp[zone * mem.params.n_cpus + cpu].count:
            drain_pcp(mem, zone, cpu, cpu, min(n_pages, batch), head)
            n_pages -= batch
    else:
        drain_pcp(mem, zone, cpu, cpu, n_pages, head)
    if mem.params.features & AUTOTUNE:
        leave_below_high(mem, zone, ZONE_MOVABLE)


@inlined
def pcp_free(mem: Memory, zone: U, cpu: U, index: U, order: U, migratetype: U) -> None:
    """Push a page, then drain if there are too many (free_unref_page_commit)."""
    head = pcp_list(mem, zone, cpu, order, migratetype)
    pcp_add(mem, zone, cpu, index, order, head)
    mem.pages[index].refcount = migratetype
    free_high = counts_as_run(mem, zone, cpu, order)
    high = drain_mark(mem, zone, cpu, free_high)
    if np.int64(mem.pcp[zone * mem.params.n_cpus + cpu].count) >= high:
        drain_after_free(mem, zone, cpu, drain_length(mem, zone, cpu, high, free_high), head)


@kernel
def drain_all_pages(mem: Memory, zone: U, runs_on: U) -> bool:
    """Empty the lists of a zone, CPUs ascending; of all zones, ascending, for a zone beyond the last.

    The CPU that asks does it all, and keeps the counter differences. False if nothing was on them.
    """
    drained = False
    for cpu in range(mem.params.n_cpus):
        for number in range(mem.zones.size):
            if np.uint64(number) == zone or zone >= np.uint64(mem.zones.size):
                drained |= drain_all_pcp(mem, np.uint64(number), np.uint64(cpu), runs_on)
    return drained


@kernel
def refresh_cpu_vm_stats(mem: Memory, cpu: U) -> None:
    """The vmstat worker, every vm.stat_interval: fold the differences; since 6.7 `high` decays towards high_min.

    decay_pcp_high(): what is above it goes back, in pieces of a batch.
    """
    for number in range(mem.zones.size):
        zone = np.uint64(number)
        fold_difference(mem, zone, cpu)
        pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
        batch, high, high_min = np.int64(pcp.batch), np.int64(pcp.high), np.int64(pcp.high_min)
        if not mem.params.features & AUTOTUNE:
            continue
        scale = np.int64(mem.params.pcp_batch_scale_max)
        if high > high_min:
            high = max(np.int64(pcp.count) - (batch << scale), high - (high >> 3), high_min)
            pcp.high = high
        surplus = np.int64(pcp.count) - high
        while surplus > 0:
            drain_pcp(mem, zone, cpu, cpu, min(surplus, batch), pcp_list(mem, zone, cpu, ZERO, ZERO))
            surplus -= batch
