"""Requests: the walk over the zones, per-CPU lists or buddy, the reserve for urgent requests, and the free path.

mm/page_alloc.c (get_page_from_freelist, rmqueue, rmqueue_buddy, reserve_highatomic_pageblock, free_unref_page),
6.12.117.
"""

from typing import Any, NamedTuple

import numpy as np

from memmodel.jit import inlined, kernel, never_inline, outlined
from memmodel.kernels.buddy import USED, free_pages_split, take_smallest
from memmodel.kernels.fallback import NORMAL_MODE, rmqueue_one
from memmodel.kernels.freelist import (
    CMA,
    HIGHATOMIC,
    HYGIENE,
    ISOLATE,
    ONE,
    ORDER_BITS,
    account,
    block_type,
    count_free_cma,
    count_free_pages,
    free_list,
    move_free,
    set_block_types,
)
from memmodel.kernels.lru import leave_lru
from memmodel.kernels.pageblock import move_freepages_61, move_freepages_block, set_pageblock_type
from memmodel.kernels.pcp import (
    AUTOTUNE,
    pcp_add,
    pcp_allowed,
    pcp_free,
    pcp_list,
    pcp_pop,
    refill_length,
)
from memmodel.kernels.watermark import MARK_BITS, watermark_fast, watermark_ok
from memmodel.state.layout import NONE, Alloc, Feature, Kind, Memory, PageFlag, Vmstat, Wmark, ZoneFlag

U = np.uint64
ZERO = np.uint64(0)
HIGH, MIN = np.uint64(Wmark.HIGH), np.uint64(Wmark.MIN)
NO_WATERMARKS, NOFRAGMENT = np.uint64(Alloc.NO_WATERMARKS), np.uint64(Alloc.NOFRAGMENT)
ALL_RESERVES = np.uint64(Alloc.NO_WATERMARKS | Alloc.CMA | Alloc.KSWAPD)  # what is left of a request that may use them
ALLOC_HIGHATOMIC, KSWAPD = np.uint64(Alloc.HIGHATOMIC), np.uint64(Alloc.KSWAPD)
LAST_RESERVES = np.uint64(Alloc.OOM | Alloc.NON_BLOCK)
BOOSTED, BELOW_HIGH = np.uint64(ZoneFlag.BOOSTED_WATERMARK), np.uint64(ZoneFlag.BELOW_HIGH)
RECLAIM_ACTIVE = np.uint64(ZoneFlag.RECLAIM_ACTIVE)
UNUSUAL = BOOSTED | BELOW_HIGH | RECLAIM_ACTIVE
BY_BUDDY, ROUNDED = np.uint64(Feature.HIGHATOMIC_BY_BUDDY), np.uint64(Feature.HIGHATOMIC_ROUNDED)
SKIP_AWAKE, NEEDS_KSWAPD = np.uint64(Feature.SKIP_AWAKE_NODES), np.uint64(Feature.BOOST_NEEDS_KSWAPD)
HWPOISON, LOST = np.uint64(PageFlag.HWPOISON), np.uint64(Kind.HWPOISON << 4)
PGFREE, KSWAPD_WOKEN = np.uint64(Vmstat.PGFREE), np.uint64(Vmstat.KSWAPD_WOKEN)
REFILLS = np.uint64(Vmstat.PCP_REFILLS)
HUNDRED = np.int64(100)


class Request(NamedTuple):
    """What a caller asks for, as kernels take it."""

    order: np.uint64
    migratetype: np.uint64
    highest: np.uint64  # highest zone type that it may come from
    fast: np.uint64  # Alloc bits of the first attempt
    slow: np.uint64  # and of later ones
    lru: np.uint64  # 1: its pages go on an LRU list


@inlined
def refill_pcp(mem: Memory, zone: U, cpu: U, request: Request, flags: U) -> None:
    """Blocks onto the tail of a per-CPU list, in the order in which they are found (rmqueue_bulk).

    Before 6.10 NR_FREE_PAGES is counted once, at the end.
    """
    order, migratetype = request.order, request.migratetype
    head = pcp_list(mem, zone, cpu, order, migratetype)
    mode = NORMAL_MODE
    taken = np.int64(0)
    mem.vmstat[REFILLS] += 1
    for _ in range(refill_length(mem, zone, cpu, order)):
        index, mode = rmqueue_one(mem, zone, cpu, order, migratetype, flags, mode)
        if index == NONE:
            break
        pcp_add(mem, zone, cpu, index, order, np.uint64(mem.pages[head].prev))
        taken += np.int64(ONE << order)
        if not mem.params.features & HYGIENE and mem.pages[index].refcount == CMA:
            count_free_cma(mem, zone, cpu, -np.int64(ONE << order))
    if taken and not mem.params.features & HYGIENE:
        count_free_pages(mem, zone, cpu, -taken)


@outlined
def fill_and_pop(mem: Memory, zone: U, cpu: U, request: Request, flags: U) -> U:
    """Refill an empty per-CPU list and take its head; NONE if nothing came."""
    never_inline()
    refill_pcp(mem, zone, cpu, request, flags)
    head = pcp_list(mem, zone, cpu, request.order, request.migratetype)
    if mem.pages[head].next == head:
        return NONE
    return pcp_pop(mem, zone, cpu, head, request.order)


@inlined
def halve_counts(mem: Memory, zone: U, cpu: U) -> None:
    """An allocation forgets half of what was freed before."""
    pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
    if mem.params.features & AUTOTUNE:
        pcp.free_count = np.uint64(pcp.free_count) >> ONE
    else:
        pcp.free_factor = np.uint64(pcp.free_factor) >> ONE


@inlined
def rmqueue_pcplist(mem: Memory, zone: U, cpu: U, request: Request, flags: U) -> U:
    """The head of the CPU's list, refilled if it is empty."""
    halve_counts(mem, zone, cpu)
    head = pcp_list(mem, zone, cpu, request.order, request.migratetype)
    if mem.pages[head].next != head:
        return pcp_pop(mem, zone, cpu, head, request.order)
    if mem.params.features & BY_BUDDY and flags & ALLOC_HIGHATOMIC:
        return NONE
    return fill_and_pop(mem, zone, cpu, request, flags)


@outlined
def reserve_highatomic(mem: Memory, zone: U, cpu: U, index: U, order: U) -> None:
    """Keep the pageblock of a page for urgent requests, up to 1 % of the zone (reserve_highatomic_pageblock)."""
    never_inline()
    record = mem.zones[zone]
    pageblock = np.int64(ONE << mem.params.pageblock_order)
    most = np.int64(record.managed) // HUNDRED
    if mem.params.features & ROUNDED:
        most = (most + pageblock - 1) // pageblock * pageblock if most >= pageblock else np.int64(0)
    else:
        most += pageblock
    if record.reserved_highatomic >= most or block_type(mem, index) >= HIGHATOMIC:
        return
    if not mem.params.features & HYGIENE:  # one pageblock whatever the order, even where no free block of it can move
        record.reserved_highatomic += pageblock
        set_pageblock_type(mem, zone, index, HIGHATOMIC)
        move_freepages_61(mem, zone, cpu, index, HIGHATOMIC)
    elif order >= mem.params.pageblock_order:
        set_block_types(mem, index, order, HIGHATOMIC)
        record.reserved_highatomic += np.int64(ONE << order)
    elif move_freepages_block(mem, zone, cpu, index, HIGHATOMIC):
        record.reserved_highatomic += pageblock


@inlined
def unreserve_in(mem: Memory, zone: U, cpu: U, migratetype: U, order: U) -> bool:
    """Give the pageblock of the reserve's first free block of that order to requests of a type."""
    head = free_list(mem, zone, order, HIGHATOMIC)
    index = np.uint64(mem.pages[head].next)
    if index == head:
        return False
    record = mem.zones[zone]
    hygiene = bool(mem.params.features & HYGIENE)
    size = np.int64(ONE << max(order if hygiene else ZERO, mem.params.pageblock_order))
    if hygiene or block_type(mem, index) == HIGHATOMIC:
        record.reserved_highatomic -= min(size, np.int64(record.reserved_highatomic))
    if not hygiene:
        set_pageblock_type(mem, zone, index, migratetype)
        return bool(move_freepages_61(mem, zone, cpu, index, migratetype))
    if order < mem.params.pageblock_order:
        return move_freepages_block(mem, zone, cpu, index, migratetype)
    move_free(mem, index, cpu, HIGHATOMIC, migratetype)
    set_block_types(mem, index, order, migratetype)
    return True


@kernel
def unreserve_highatomic(mem: Memory, zonelist: Any, cpu: U, migratetype: U, force: bool) -> bool:
    """One pageblock of the reserve becomes the request's, but not a zone's last (unreserve_highatomic_pageblock)."""
    for zone in zonelist:
        reserved = np.int64(mem.zones[zone].reserved_highatomic)
        if not force and reserved <= np.int64(ONE << mem.params.pageblock_order):
            continue
        for order in range(mem.params.max_order + ONE):
            if unreserve_in(mem, zone, cpu, migratetype, np.uint64(order)):
                return True
    return False


@outlined
def rmqueue_buddy(mem: Memory, zone: U, cpu: U, request: Request, flags: U) -> U:
    """One block straight from the buddy lists."""
    never_inline()
    order = request.order
    index = NONE
    if flags & ALLOC_HIGHATOMIC:
        index = take_smallest(mem, zone, cpu, order, HIGHATOMIC)
    if index == NONE:
        index, _ = rmqueue_one(mem, zone, cpu, order, request.migratetype, flags, NORMAL_MODE)
    if index == NONE and flags & LAST_RESERVES:
        index = take_smallest(mem, zone, cpu, order, HIGHATOMIC)
    if index != NONE and not mem.params.features & HYGIENE:
        account(mem, zone, cpu, np.uint64(mem.pages[index].refcount), -np.int64(ONE << order))
    if index != NONE and flags & ALLOC_HIGHATOMIC and mem.params.features & BY_BUDDY and flags & MARK_BITS == MIN:
        reserve_highatomic(mem, zone, cpu, index, order)
    return index


@inlined
def rmqueue(mem: Memory, zone: U, cpu: U, request: Request, flags: U) -> U:
    """A page of the zone, by way of the CPU's list if the order has one."""
    index = NONE
    if pcp_allowed(mem, request.order):
        index = rmqueue_pcplist(mem, zone, cpu, request, flags)
    if index == NONE:
        index = rmqueue_buddy(mem, zone, cpu, request, flags)
    record = mem.zones[zone]
    may_wake = flags & KSWAPD or not mem.params.features & NEEDS_KSWAPD
    if np.uint64(record["flags"]) & BOOSTED and may_wake:
        record["flags"] = np.uint64(record["flags"]) & ~BOOSTED
        mem.vmstat[KSWAPD_WOKEN] += 1
    return index


@outlined
def may_use(mem: Memory, zone: U, request: Request, flags: U) -> bool:
    """Whether the zone has enough; since 6.7 failing the HIGH mark is remembered, and per-CPU lists shrink then."""
    never_inline()
    record = mem.zones[zone]
    if mem.params.features & AUTOTUNE and not np.uint64(record["flags"]) & BELOW_HIGH:
        if watermark_fast(mem, zone, request.order, HIGH, request.highest, flags):
            return True
        record["flags"] = np.uint64(record["flags"]) | BELOW_HIGH
    if flags & NO_WATERMARKS:
        return True
    return watermark_fast(mem, zone, request.order, flags & MARK_BITS, request.highest, flags)


@inlined
def try_zone(mem: Memory, zone: U, cpu: U, request: Request, flags: U) -> U:
    """A page of the zone if it has enough; until 7.1 an urgent request's pageblock is kept for such ones then."""
    if not may_use(mem, zone, request, flags):
        return NONE
    index = rmqueue(mem, zone, cpu, request, flags)
    if index != NONE and flags & ALLOC_HIGHATOMIC and not mem.params.features & BY_BUDDY:
        reserve_highatomic(mem, zone, cpu, index, request.order)
    return index


@outlined
def get_page_from_freelist(mem: Memory, zonelist: Any, cpu: U, request: Request, flags: U) -> U:
    """The first zone that has enough and a block; NONE if there is none.

    Where types must not mix (NOFRAGMENT) a second round may mix them, at the latest before another node's turn. Since
    7.2 nodes whose kswapd runs have their turn last.
    """
    never_inline()
    if zonelist.size == 0:
        return NONE
    first_node = mem.zones[zonelist[0]].node
    last_node = mem.zones[zonelist[zonelist.size - 1]].node
    skip = bool(mem.params.features & SKIP_AWAKE) and first_node != last_node
    skipped = False
    place = 0
    while True:
        if place == zonelist.size:
            if skip and skipped:
                skip = False
            elif flags & NOFRAGMENT:
                flags &= ~NOFRAGMENT
            else:
                return NONE
            place = 0
        zone = np.uint64(zonelist[place])
        if flags & NOFRAGMENT and mem.zones[zone].node != first_node:
            flags &= ~NOFRAGMENT
            place = 0
            continue
        place += 1
        if skip and np.uint64(mem.zones[zone]["flags"]) & RECLAIM_ACTIVE:
            skipped = True
            continue
        index = try_zone(mem, zone, cpu, request, flags)
        if index != NONE:
            return index


@inlined
def pcp_hit(mem: Memory, zonelist: Any, cpu: U, request: Request) -> U:
    """An order-0 page off the CPU's list where nothing stands in its way; NONE sends the request the whole way.

    It is what get_page_from_freelist() does if the first zone is above its high watermark and has a page on the list.
    Without it order-0 requests take twice as long.
    """
    zone = np.uint64(zonelist[0])
    record = mem.zones[zone]
    head = pcp_list(mem, zone, cpu, ZERO, request.migratetype)
    if request.order != ZERO or np.uint64(record["flags"]) & UNUSUAL or mem.pages[head].next == head:
        return NONE
    mark = np.int64(record.watermark[HIGH]) + np.int64(record.watermark_boost)
    if not watermark_ok(mem, zone, ZERO, mark, request.highest, request.fast):
        return NONE
    halve_counts(mem, zone, cpu)
    return pcp_pop(mem, zone, cpu, head, ZERO)


@inlined
def alloc_row(mem: Memory, zonelist: Any, cpu: U, request: Request) -> U:
    """All attempts of a request that neither reclaims nor compacts (__alloc_pages); row or NONE.

    One that may use all reserves ignores the watermarks in a third attempt only.
    """
    if zonelist.size == 0:
        return NONE
    index = pcp_hit(mem, zonelist, cpu, request)
    if index == NONE:
        index = get_page_from_freelist(mem, zonelist, cpu, request, request.fast)
    if index == NONE:
        index = get_page_from_freelist(mem, zonelist, cpu, request, request.slow & ~NO_WATERMARKS)
    if index == NONE and request.slow & NO_WATERMARKS:
        index = get_page_from_freelist(mem, zonelist, cpu, request, request.slow & ALL_RESERVES)
    return index


@outlined
def alloc_block(mem: Memory, zonelist: Any, cpu: U, request: Request) -> U:
    """alloc_row() where a call costs less than what is done between calls."""
    never_inline()
    return alloc_row(mem, zonelist, cpu, request)


@inlined
def mark_used(mem: Memory, index: U, order: U) -> None:
    """A block leaves the allocator."""
    page = mem.pages[index]
    page.state = USED | order
    page.refcount = ONE
    mem.vmstat[mem.zones[page.zone].zone_type] += np.int64(ONE << order)


@inlined
def leak(mem: Memory, index: U) -> None:
    """A poisoned page is not given back, on purpose, nor counted (free_pages_prepare).

    Its owner's reference goes. What is left is memory_failure()'s, and those of others.
    """
    page = mem.pages[index]
    if page.state != LOST:
        page.state = LOST
        page.refcount = max(np.uint64(page.refcount), ONE) - ONE
        page.prev = NONE


@inlined
def free_row(mem: Memory, index: U, cpu: U) -> None:
    """A used block comes back (free_unref_page): to the CPU's list if its order has one, else to the buddy."""
    page = mem.pages[index]
    order = np.uint64(page.state) & ORDER_BITS
    leave_lru(mem, index)
    if order == ZERO and np.uint64(page.pg_flags) & HWPOISON:
        leak(mem, index)
        return
    page.refcount = ZERO
    page.pg_flags = np.uint64(page.pg_flags) & HWPOISON
    mem.vmstat[PGFREE] += np.int64(ONE << order)
    migratetype = block_type(mem, index)
    if pcp_allowed(mem, order) and migratetype != ISOLATE:
        pcp_free(mem, np.uint64(page.zone), cpu, index, order, migratetype)
    else:
        page.state = ZERO
        free_pages_split(mem, index, cpu, order, False)


@outlined
def free_block(mem: Memory, index: U, cpu: U) -> None:
    """free_row() where a call costs less than what is done between calls."""
    never_inline()
    free_row(mem, index, cpu)
