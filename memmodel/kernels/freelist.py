"""Circular doubly linked lists inside `pages`, with sentinel heads behind the last page, as the kernel keeps them.

The sentinels remove every branch from link and unlink.
"""

import numpy as np

from memmodel.jit import inlined, prefetch
from memmodel.state.layout import BlockBit, Feature, Kind, Memory, MigrateType

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ONE = np.uint64(1)
FREE = np.uint64(Kind.FREE << 4)
ORDER_BITS = np.uint64(15)
TYPES = np.uint64(6)
HIGHATOMIC = np.uint64(MigrateType.HIGHATOMIC)
CMA = np.uint64(MigrateType.CMA)
ISOLATE = np.uint64(MigrateType.ISOLATE)
ISOLATE_BIT = np.uint64(BlockBit.ISOLATE)
HYGIENE, NO_MOBILITY = np.uint64(Feature.FREELIST_HYGIENE), np.uint64(Feature.NO_MOBILITY)


@inlined
def free_list(mem: Memory, zone: U, order: U, migratetype: U) -> U:
    """Row of the list head of free_list[order][migratetype]."""
    params = mem.params
    return params.n_pages + np.uint64(zone) * params.heads_per_zone + order * TYPES + migratetype


@inlined
def link_after(mem: Memory, index: U, before: U) -> None:
    """Insert a row behind `before`."""
    pages = mem.pages
    after = np.uint64(pages[before].next)
    pages[index].prev = before
    pages[index].next = after
    pages[before].next = index
    pages[after].prev = index


@inlined
def load_neighbours(mem: Memory, index: U) -> None:
    """Begin to load the entries beside a block on its list, which are written when it is taken off.

    Some blocks ahead: compaction of a fragmented zone 17 to 20 M pages/s.
    """
    page = mem.pages[index]
    if np.uint64(page.state) & ~ORDER_BITS == FREE:
        prefetch(mem.pages, np.uint64(page.next))
        prefetch(mem.pages, np.uint64(page.prev))


@inlined
def unlink(mem: Memory, index: U) -> None:
    """Take a row out of whichever list it is on."""
    pages = mem.pages
    before = np.uint64(pages[index].prev)
    after = np.uint64(pages[index].next)
    pages[before].next = after
    pages[after].prev = before


@inlined
def add_free(mem: Memory, index: U, order: U, migratetype: U, tail: bool) -> None:
    """Put a block on its free list (__add_to_free_list); counts it in nr_free, not in NR_FREE_PAGES."""
    zone = mem.pages[index].zone
    before = free_list(mem, zone, order, migratetype)
    if tail:
        before = np.uint64(mem.pages[before].prev)
    link_after(mem, index, before)
    mem.pages[index].state = FREE | order
    mem.zones[zone].nr_free[order] += ONE


@inlined
def del_free(mem: Memory, index: U, order: U) -> None:
    """Take a block off whichever free list it is on (__del_page_from_free_list)."""
    unlink(mem, index)
    mem.pages[index].state = np.uint64(0)
    mem.zones[mem.pages[index].zone].nr_free[order] -= ONE


@inlined
def is_free_head(mem: Memory, index: U, order: U, zone: U) -> bool:
    """Whether a free block of just this order begins here, in this zone (page_is_buddy)."""
    page = mem.pages[index]
    return bool(page.state == (FREE | order)) and bool(page.zone == zone)


@inlined
def block_type(mem: Memory, index: U) -> U:
    """Migratetype of the pageblock that holds this page (get_pageblock_migratetype)."""
    block = mem.blocks[index >> mem.params.pageblock_order]
    if np.uint64(block.bits) & ISOLATE_BIT:
        return ISOLATE
    return np.uint64(block.migratetype)


@inlined
def grouped_type(mem: Memory, migratetype: U) -> U:
    """What a pageblock becomes that is to be of this type: without mobility grouping those that merge are UNMOVABLE."""
    if mem.params.features & NO_MOBILITY and migratetype < HIGHATOMIC:
        return np.uint64(0)
    return migratetype


@inlined
def set_block_types(mem: Memory, index: U, order: U, migratetype: U) -> None:
    """Give all pageblocks of a block of at least pageblock_order this type (change_pageblock_range)."""
    migratetype = grouped_type(mem, migratetype)
    first = index >> mem.params.pageblock_order
    for block in range(first, first + (ONE << (order - mem.params.pageblock_order))):
        mem.blocks[block].migratetype = migratetype
        mem.blocks[block].bits = np.uint64(mem.blocks[block].bits) & ~ISOLATE_BIT


@inlined
def fold_difference(mem: Memory, zone: U, cpu: U) -> bool:
    """Bring a CPU's differences into the zone's counters, as when it goes idle (quiet_vmstat); True if any were."""
    pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
    folded = bool(pcp.free_diff != 0) or bool(pcp.cma_diff != 0)
    mem.zones[zone].free_pages += np.int64(pcp.free_diff)
    mem.zones[zone].free_cma += np.int64(pcp.cma_diff)
    pcp.free_diff = np.int64(0)
    pcp.cma_diff = np.int64(0)
    return folded


@inlined
def count_free_pages(mem: Memory, zone: U, cpu: U, delta: I) -> None:
    """NR_FREE_PAGES, by way of the CPU's difference: readers see it once it is beyond the threshold."""
    record = mem.zones[zone]
    pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
    difference = np.int64(pcp.free_diff) + delta
    if abs(difference) > record.stat_threshold:
        record.free_pages += difference
        difference = np.int64(0)
    pcp.free_diff = difference


@inlined
def count_free_cma(mem: Memory, zone: U, cpu: U, delta: I) -> None:
    """NR_FREE_CMA_PAGES, likewise (__mod_zone_page_state)."""
    record = mem.zones[zone]
    pcp = mem.pcp[zone * mem.params.n_cpus + cpu]
    difference = np.int64(pcp.cma_diff) + delta
    if abs(difference) > record.stat_threshold:
        record.free_cma += difference
        difference = np.int64(0)
    pcp.cma_diff = difference


@inlined
def account(mem: Memory, zone: U, cpu: U, migratetype: U, delta: I) -> None:
    """Count pages that went on (or, negative, off) a free list of this type (account_freepages)."""
    if migratetype == ISOLATE:
        return
    count_free_pages(mem, zone, cpu, delta)
    if migratetype == CMA:
        count_free_cma(mem, zone, cpu, delta)
    elif migratetype == HIGHATOMIC:
        mem.zones[zone].free_highatomic += delta


@inlined
def move_free(mem: Memory, index: U, cpu: U, old: U, new: U) -> None:
    """To the tail of another type's list (move_to_free_list); the caller sets the pageblock's type."""
    page = mem.pages[index]
    zone = np.uint64(page.zone)
    order = np.uint64(page.state) & ORDER_BITS
    unlink(mem, index)
    link_after(mem, index, np.uint64(mem.pages[free_list(mem, zone, order, new)].prev))
    if mem.params.features & HYGIENE:  # before, what moves is not counted
        account(mem, zone, cpu, old, -np.int64(ONE << order))
        account(mem, zone, cpu, new, np.int64(ONE << order))
