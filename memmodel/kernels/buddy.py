"""The buddy core: merge on free, split on allocation, whole-pageblock claims, and the folio table.

Rules: mm/page_alloc.c (__free_one_page, expand, __rmqueue_smallest, try_to_claim_block), 6.12.117; the 6.1 behaviour
is Feature.FREELIST_HYGIENE switched off.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined, kernel, prefetch
from memmodel.kernels.freelist import (
    FREE,
    ONE,
    TYPES,
    account_free,
    add_free,
    block_type,
    del_free,
    free_list,
    is_free_head,
    set_block_types,
    unaccount_free,
)
from memmodel.state.layout import (
    MIGRATE_TYPES,
    NONE,
    SLOT_CHAINS,
    BlockBit,
    Feature,
    Kind,
    Memory,
    MigrateType,
    PageFlag,
    Vmstat,
)

U = np.uint64
ZERO = np.uint64(0)
USED = np.uint64(Kind.USED << 4)
ORDER_BITS = np.uint64(15)
HWPOISON = np.uint64(PageFlag.HWPOISON)
HYGIENE = np.uint64(Feature.FREELIST_HYGIENE)
FIRST_UNMERGEABLE = np.uint64(MigrateType.HIGHATOMIC)  # types below merge with each other above pageblock_order
MARK = np.uint64(1 << 31)
SLOT_BITS = np.uint64(0xFFFFFFFF)
SEQUENCE_SHIFT = np.uint64(32)
SEQUENCE_BITS = np.uint64(0x7FFFFFFF)
FIRST_CHAIN = np.uint64(2)
CHAIN_BITS = np.uint64(SLOT_CHAINS - 1)
PGFREE = np.uint64(Vmstat.PGFREE)
# fallbacks[][] of mm/page_alloc.c
FALLBACKS = ((2, 1), (2, 0), (0, 1))


@inlined
def merge_likely(mem: Memory, index: U, order: U, zone: U) -> bool:
    """Whether the next merge only waits for this block's buddy's neighbour (buddy_merge_likely)."""
    if order + ONE >= mem.params.max_order:
        return False
    higher = index & ~(ONE << order)
    return is_free_head(mem, higher ^ (ONE << (order + ONE)), order + ONE, zone)


@inlined
def free_one(mem: Memory, index: U, order: U, migratetype: U, to_tail: bool) -> None:
    """Merge a block as far as it goes and put it on its list (__free_one_page)."""
    params = mem.params
    zone = mem.pages[index].zone
    account_free(mem, zone, migratetype, ONE << order)
    while order < params.max_order:
        buddy = index ^ (ONE << order)
        if not is_free_head(mem, buddy, order, zone):
            break
        if order >= params.pageblock_order:
            buddy_type = block_type(mem, buddy)
            if buddy_type != migratetype:
                if migratetype >= FIRST_UNMERGEABLE or buddy_type >= FIRST_UNMERGEABLE:
                    break
                if params.features & HYGIENE:
                    set_block_types(mem, buddy, order, migratetype)
        del_free(mem, buddy, order)
        index &= buddy
        order += ONE
    add_free(mem, index, order, migratetype, to_tail or merge_likely(mem, index, order, zone))


@inlined
def free_pages_split(mem: Memory, index: U, order: U, to_tail: bool) -> None:
    """Free a block of any order straight to the buddy (free_one_page).

    Since 6.10 in pieces of at most a pageblock, each to its own block's type; before, whole to the first block's.
    """
    pageblock_order = mem.params.pageblock_order
    if order <= pageblock_order or not mem.params.features & HYGIENE:
        free_one(mem, index, order, block_type(mem, index), to_tail)
        return
    end = index + (ONE << order)
    while index < end:
        free_one(mem, index, pageblock_order, block_type(mem, index), to_tail)
        index += ONE << pageblock_order


@inlined
def expand(mem: Memory, index: U, low: U, high: U, migratetype: U) -> None:
    """Split down to `low`, each upper half to the head of its list; the lowest part is the caller's (expand)."""
    while high > low:
        high -= ONE
        upper = index + (ONE << high)
        add_free(mem, upper, high, migratetype, False)


@inlined
def take_block(mem: Memory, index: U, order: U, found: U, migratetype: U) -> None:
    """Take a free block of order `found` off its list and keep its lowest part (page_del_and_expand)."""
    del_free(mem, index, found)
    expand(mem, index, order, found, migratetype)
    unaccount_free(mem, mem.pages[index].zone, migratetype, ONE << order)


@inlined
def take_smallest(mem: Memory, zone: U, order: U, migratetype: U) -> U:
    """Head of the smallest sufficient list of this type, split; NONE if there is none (__rmqueue_smallest)."""
    found = order
    while found <= mem.params.max_order:
        head = free_list(mem, zone, found, migratetype)
        index = np.uint64(mem.pages[head].next)
        if index != head:
            take_block(mem, index, order, found, migratetype)
            return index
        found += ONE
    return NONE


@inlined
def claim_whole_block(mem: Memory, zone: U, order: U, migratetype: U) -> U:
    """Convert a free block of at least a pageblock from a fallback type, largest first, and split it."""
    if migratetype >= FIRST_UNMERGEABLE:
        return NONE
    found = mem.params.max_order
    lowest = max(order, mem.params.pageblock_order)
    while found >= lowest:
        for fallback in FALLBACKS[migratetype]:
            head = free_list(mem, zone, found, np.uint64(fallback))
            index = np.uint64(mem.pages[head].next)
            if index != head:
                set_block_types(mem, index, found, migratetype)
                take_block(mem, index, order, found, migratetype)
                return index
        if found == ZERO:
            break
        found -= ONE
    return NONE


@inlined
def new_folio(mem: Memory, index: U) -> np.int64:
    """A slot of the folio table for the folio that begins here; its handle."""
    slots = mem.slots
    chain = FIRST_CHAIN + (slots[0] & CHAIN_BITS)
    slot = slots[chain]
    if slot != NONE:
        after = np.uint64(mem.folios[slot].next)
        slots[chain] = after
        if after != NONE:
            prefetch(mem.folios, after)
    else:
        slot = slots[1]
        slots[1] += ONE
    slots[0] += ONE
    mem.folios[slot].index = index
    mem.pages[index].next = slot
    return np.int64(np.uint64(mem.folios[slot].sequence) << SEQUENCE_SHIFT | slot)


@inlined
def drop_folio(mem: Memory, slot: U) -> None:
    """Give a slot back; handles to it are stale from here on.

    Unused slots hang in several chains by turns, so that allocation meets the cache misses of one chain while it
    works on the others.
    """
    slots = mem.slots
    slots[0] -= ONE
    chain = FIRST_CHAIN + (slots[0] & CHAIN_BITS)
    folio = mem.folios[slot]
    folio.sequence = (np.uint64(folio.sequence) + ONE) & SEQUENCE_BITS
    folio.index = NONE
    folio.next = slots[chain]
    slots[chain] = slot


@kernel
def alloc_folios(mem: Memory, zonelist: Any, order: U, migratetype: U, handles: Any) -> int:
    """One request after the other: first zone of `zonelist` that has a block, else -1; how many succeeded.

    The table of folios must have room for all of `handles`.
    """
    n_allocated = 0
    for i in range(handles.size):
        index = NONE
        zone = ZERO
        for zone in zonelist:
            index = take_smallest(mem, zone, order, migratetype)
            if index == NONE:
                index = claim_whole_block(mem, zone, order, migratetype)
            if index != NONE:
                break
        if index == NONE:
            handles[i:] = -1  # nothing can come free within one request list
            break
        mem.pages[index].state = USED | order
        mem.pages[index].refcount = ONE
        handles[i] = new_folio(mem, index)
        mem.vmstat[mem.zones[zone].zone_type] += np.int64(ONE << order)
        n_allocated += 1
    return n_allocated


@inlined
def find_folio(mem: Memory, handle: np.int64) -> U:
    """Slot of a live folio, or NONE for a handle that is stale, of another memory, or no handle at all."""
    if handle < 0:
        return NONE
    bits = np.uint64(handle)
    slot = bits & SLOT_BITS
    if slot >= mem.slots[1]:
        return NONE
    folio = mem.folios[slot]
    if folio.sequence != bits >> SEQUENCE_SHIFT or folio.index == NONE:
        return NONE
    return slot


@kernel
def resolve_folios(mem: Memory, handles: Any, indices: Any, orders: Any) -> int:
    """First row and order of each folio; position of the first bad handle, or -1."""
    for i in range(handles.size):
        slot = find_folio(mem, handles[i])
        if slot == NONE:
            return i
        index = np.uint64(mem.folios[slot].index)
        indices[i] = index
        orders[i] = np.uint64(mem.pages[index].state) & ORDER_BITS
    return -1


@inlined
def unmark_folios(mem: Memory, handles: Any, n_handles: int) -> None:
    """Take back the marks of the first `n_handles` folios."""
    for i in range(n_handles):
        if handles[i] != -1:
            slot = np.uint64(handles[i]) & SLOT_BITS
            mem.folios[slot].index = np.uint64(mem.folios[slot].index) & ~MARK


@kernel
def mark_folios(mem: Memory, handles: Any) -> int:
    """Mark each folio, so that one given twice is found before anything changes; first bad position, or -1.

    Where one is bad all marks are taken back. -1, a failed request, is passed over here and in free_folios().
    """
    for i in range(handles.size):
        if handles[i] == -1:
            continue
        slot = find_folio(mem, handles[i])
        if slot == NONE or np.uint64(mem.folios[slot].index) & MARK:
            unmark_folios(mem, handles, i)
            return i
        mem.folios[slot].index = np.uint64(mem.folios[slot].index) | MARK
    return -1


@inlined
def marked_index(mem: Memory, handle: np.int64) -> U:
    """First row of a marked folio."""
    return np.uint64(mem.folios[np.uint64(handle) & SLOT_BITS].index) & ~MARK


@inlined
def prefetch_free(mem: Memory, handles: Any, i: int) -> None:
    """Bring in what freeing the folios some places on will touch.

    Random order-0 frees at 2^22 pages: 120 -> 50 ns each.
    """
    if i + 24 >= handles.size:
        return
    if handles[i + 24] >= 0:
        prefetch(mem.folios, np.uint64(handles[i + 24]) & SLOT_BITS)
    if handles[i + 12] >= 0:
        prefetch(mem.pages, marked_index(mem, handles[i + 12]))
    if handles[i + 6] >= 0:
        buddy = mem.pages[marked_index(mem, handles[i + 6]) ^ ONE]
        if buddy.state == FREE:
            prefetch(mem.pages, np.uint64(buddy.next))
            prefetch(mem.pages, np.uint64(buddy.prev))


@kernel
def free_folios(mem: Memory, handles: Any) -> None:
    """Free marked folios in order, straight to the buddy."""
    n_pages = ZERO
    for i in range(handles.size):
        prefetch_free(mem, handles, i)
        if handles[i] == -1:
            continue
        index = marked_index(mem, handles[i])
        page = mem.pages[index]
        order = np.uint64(page.state) & ORDER_BITS
        drop_folio(mem, np.uint64(handles[i]) & SLOT_BITS)
        page.refcount = ZERO
        if order == ZERO and np.uint64(page.pg_flags) & HWPOISON:
            page.state = np.uint64(Kind.HWPOISON << 4)  # leaked on purpose, and not counted: free_pages_prepare()
            continue
        page.state = ZERO
        n_pages += ONE << order
        free_pages_split(mem, index, order, False)
    mem.vmstat[PGFREE] += np.int64(n_pages)


@kernel
def free_ranges(mem: Memory, starts: Any, ends: Any) -> None:
    """Give ranges of rows to the buddy in maximal chunks, ascending, each to the tail (__free_pages_core at boot)."""
    params = mem.params
    for i in range(starts.size):
        index, end = starts[i], ends[i]
        while index < end:
            order = params.max_order
            while index & ((ONE << order) - ONE) or index + (ONE << order) > end:
                order -= ONE
            free_pages_split(mem, index, order, True)
            index += ONE << order


@kernel
def _count_lists(mem: Memory, counts: Any) -> None:
    """Length of every free list, by zone, migratetype and order."""
    params = mem.params
    for zone in range(mem.zones.size):
        for order in range(params.max_order + ONE):
            for migratetype in range(TYPES):
                head = free_list(mem, np.uint64(zone), np.uint64(order), np.uint64(migratetype))
                index = np.uint64(mem.pages[head].next)
                while index != head:
                    counts[zone, migratetype, order] += 1
                    index = np.uint64(mem.pages[index].next)


def count_free(mem: Memory) -> npt.NDArray[np.int64]:
    """Free blocks, shape ``(zones, migratetypes, orders)``."""
    counts = np.zeros((mem.zones.size, MIGRATE_TYPES, int(mem.params.max_order) + 1), np.int64)
    _count_lists(mem, counts)
    return counts


def count_blocks(mem: Memory) -> npt.NDArray[np.int64]:
    """Pageblocks as /proc/pagetypeinfo counts them, from each zone's first page on, shape ``(zones, migratetypes)``."""
    counts = np.zeros((mem.zones.size, MIGRATE_TYPES), np.int64)
    for zone, record in enumerate(mem.zones):
        rows = np.arange(int(record["start"]), int(record["end"]), 1 << int(mem.params.pageblock_order))
        blocks = mem.blocks[rows[mem.pages["zone"][rows] == zone] >> int(mem.params.pageblock_order)]
        blocks = blocks[blocks["bits"] & BlockBit.OFFLINE == 0]
        isolated = blocks["bits"] & BlockBit.ISOLATE != 0
        types = np.where(isolated, MigrateType.ISOLATE, blocks["migratetype"])
        counts[zone] = np.bincount(types, minlength=MIGRATE_TYPES)
    return counts
