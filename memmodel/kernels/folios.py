"""The table of live folios: handles that go stale when a folio is freed, in chains of unused slots."""

from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel, prefetch
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.state.layout import HANDLE_SLOT, NONE, SLOT_CHAINS, FolioBit, Memory

U = np.uint64
MARK = np.uint64(1 << 31)
SLOT_BITS = np.uint64(HANDLE_SLOT)
SEQUENCE_SHIFT = np.uint64(32)
SEQUENCE_BITS = np.uint64(0x7FFFFFFF)
FIRST_CHAIN = np.uint64(2)
CHAIN_BITS = np.uint64(SLOT_CHAINS - 1)
HUGETLB = np.uint64(FolioBit.HUGETLB)


@inlined
def new_folio(mem: Memory, index: U) -> np.int64:
    """A slot of the folio table for the folio that begins here; its handle."""
    slots = mem.slots
    chain = FIRST_CHAIN + (slots[0] & CHAIN_BITS)
    slot = slots[chain]
    if slot != NONE:
        after = np.uint64(mem.folios[slot].mms)
        slots[chain] = after
        if after != NONE:
            prefetch(mem.folios, after)
    else:
        slot = slots[1]
        slots[1] += ONE
    slots[0] += ONE
    mem.folios[slot].index = index
    mem.folios[slot].mms = ONE  # the first address space, and nothing special
    mem.folios[slot].bits = np.uint64(0)
    mem.pages[index].next = slot
    return np.int64(np.uint64(mem.folios[slot].sequence) << SEQUENCE_SHIFT | slot)


@inlined
def new_folio_as(mem: Memory, index: U, mms: U, bits: U) -> np.int64:
    """The same for a folio that these address spaces map, with these FolioBits."""
    handle = new_folio(mem, index)
    slot = np.uint64(handle) & SLOT_BITS
    mem.folios[slot].mms = mms
    mem.folios[slot].bits = bits
    return handle


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
    folio.mms = slots[chain]
    slots[chain] = slot


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


@inlined
def mark_folios(mem: Memory, handles: Any) -> int:
    """Mark each folio, so that one given twice is found before anything changes; first bad position, or -1.

    Where one is bad all marks are taken back. -1, a failed request, is passed over here and in free_folios().
    """
    for i in range(handles.size):
        ahead = i + 16
        if ahead < handles.size and np.uint64(handles[ahead]) & SLOT_BITS < mem.slots[1]:
            prefetch(mem.folios, np.uint64(handles[ahead]) & SLOT_BITS)  # random frees at 16 GiB: 92 -> 87 ns
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
def slot_of(mem: Memory, index: U) -> U:
    """Slot of the live folio that begins at a row, or NONE: pages that were only replayed have none."""
    slot = np.uint64(mem.pages[index].next)
    if slot < mem.slots[1] and mem.folios[slot].index == index:
        return slot
    return NONE


@inlined
def is_hugetlb(mem: Memory, head: U) -> bool:
    """Whether a hugetlb folio begins here."""
    slot = slot_of(mem, head)
    return slot != NONE and bool(np.uint64(mem.folios[slot].bits) & HUGETLB)


@kernel
def count_parts(mem: Memory) -> int:
    """Folios that there would be more if all large ones below the pageblock's order were split."""
    n_parts = np.int64(0)
    for slot in range(mem.slots[1]):
        index = mem.folios[slot].index
        if index != NONE:
            order = np.uint64(mem.pages[index].state) & ORDER_BITS
            if order < mem.params.pageblock_order:
                n_parts += np.int64(ONE << order) - 1
    return int(n_parts)


@inlined
def forget_folio(mem: Memory, index: U) -> None:
    """Give back the slot of a folio, if one begins here."""
    slot = slot_of(mem, index)
    if slot != NONE:
        drop_folio(mem, slot)
