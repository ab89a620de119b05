"""Circular doubly linked lists inside `pages`, with sentinel heads behind the last page, as the kernel keeps them.

The sentinels remove every branch from link and unlink.
"""

import numpy as np

from memmodel.jit import inlined
from memmodel.state.layout import BlockBit, Kind, Memory, MigrateType

U = np.uint64
ONE = np.uint64(1)
FREE = np.uint64(Kind.FREE << 4)
TYPES = np.uint64(6)
ISOLATE = np.uint64(MigrateType.ISOLATE)
ISOLATE_BIT = np.uint64(BlockBit.ISOLATE)


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
def set_block_types(mem: Memory, index: U, order: U, migratetype: U) -> None:
    """Give all pageblocks of a block of at least pageblock_order this type (change_pageblock_range)."""
    first = index >> mem.params.pageblock_order
    for block in range(first, first + (ONE << (order - mem.params.pageblock_order))):
        mem.blocks[block].migratetype = migratetype
        mem.blocks[block].bits = np.uint64(mem.blocks[block].bits) & ~ISOLATE_BIT


@inlined
def account_free(mem: Memory, zone: U, migratetype: U, n_pages: U) -> None:
    """NR_FREE_PAGES and NR_FREE_CMA_PAGES, after pages went on (account_freepages)."""
    if migratetype == ISOLATE:
        return
    mem.zones[zone].free_pages += n_pages
    if migratetype == np.uint64(MigrateType.CMA):
        mem.zones[zone].free_cma += n_pages


@inlined
def unaccount_free(mem: Memory, zone: U, migratetype: U, n_pages: U) -> None:
    """The same, after pages went off."""
    if migratetype == ISOLATE:
        return
    mem.zones[zone].free_pages -= n_pages
    if migratetype == np.uint64(MigrateType.CMA):
        mem.zones[zone].free_cma -= n_pages
