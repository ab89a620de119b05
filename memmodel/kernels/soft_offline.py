"""soft_offline_page(): pages that may go bad leave before they do (mm/memory-failure.c, 6.12.117)."""

import numpy as np

from memmodel.jit import inlined, kernel
from memmodel.kernels.failure_actions import can_evict
from memmodel.kernels.folio_state import (
    HUGETLB,
    LRU,
    NOTHING,
    OWN,
    SWAPCACHE,
    bits_of,
    cached,
    drain_lru_all,
    mappers,
    own_slot,
    with_mapping,
)
from memmodel.kernels.folios import drop_folio, is_hugetlb, new_folio_as, slot_of
from memmodel.kernels.freelist import FREE, ONE, ORDER_BITS
from memmodel.kernels.huge_failure import HWPOISON, dissolve, in_pool
from memmodel.kernels.lru import leave_lru
from memmodel.kernels.memory_failure import USED, WAITED_FOR, split_large
from memmodel.kernels.page_alloc import leak
from memmodel.kernels.page_flags import filtered
from memmodel.kernels.pageblock import KIND_BITS, containing_head
from memmodel.kernels.pcp import drain_all_pages
from memmodel.kernels.poisoning import LOST, take_page_off_buddy
from memmodel.state.failure_layout import Offline
from memmodel.state.layout import NONE, FolioBit, Memory

U = np.uint64
ZERO = np.uint64(0)
OWNER_2, DIRTY, PTE_DIRTY = (np.uint64(bit) for bit in (FolioBit.OWNER_2, FolioBit.DIRTY, FolioBit.PTE_DIRTY))
GONE = np.uint64(FolioBit.PTE_DIRTY | FolioBit.MLOCKED | FolioBit.ACTIVE)
DONE, INVALIDATED, TO_MIGRATE = Offline.DONE.value, Offline.INVALIDATED.value, Offline.TO_MIGRATE.value
UNHANDLABLE, FILTERED, UNSPLIT = Offline.UNHANDLABLE.value, Offline.FILTERED.value, Offline.UNSPLIT.value


@inlined
def mark_poisoned(mem: Memory, index: U) -> None:
    """PG_hwpoison, and one more corrupted page; nodes count errors only."""
    page = mem.pages[index]
    page.pg_flags = np.uint64(page.pg_flags) | HWPOISON
    mem.failure[0].num_poisoned += 1


@inlined
def drop_clean(mem: Memory, index: U, slot: U) -> bool:
    """A clean page of the page cache that nobody maps is forgotten: it can be read again (mapping_evict_folio)."""
    bits = np.uint64(mem.folios[slot].bits)
    if bits & SWAPCACHE or not cached(bits) or mappers(mem, slot, bits) or not can_evict(mem, index, bits):
        return False
    leave_lru(mem, index)
    mem.folios[slot].bits = with_mapping(bits, NOTHING)
    keep(mem, index)
    return True


@inlined
def keep(mem: Memory, index: U) -> None:
    """A page that nobody uses any more is held for good."""
    page = mem.pages[index]
    page.state = LOST
    page.refcount = ONE
    page.prev = NONE
    mark_poisoned(mem, index)


@kernel
def offline_page(mem: Memory, index: U, cpu: U) -> int:
    """All of soft_offline_page() but migration. The folio table must have room for the page's folio in pieces."""
    drain_all_pages(mem, np.uint64(mem.pages[index].zone), cpu)
    head = containing_head(mem, index)
    page = mem.pages[head]
    huge = is_hugetlb(mem, head)
    if np.uint64(page.state) & KIND_BITS == USED and not np.uint64(page.pg_flags) & (LRU | OWN):
        drain_lru_all(mem)
    usable = np.uint64(page.state) & KIND_BITS == USED and np.uint64(page.pg_flags) & LRU
    if filtered(mem, index):
        return FILTERED
    if np.uint64(page.state) & KIND_BITS == FREE:
        take_page_off_buddy(mem, index, cpu)
        mark_poisoned(mem, index)
        return DONE
    if huge and in_pool(mem, head, slot_of(mem, head)):
        drop_folio(mem, slot_of(mem, head))
        dissolve(mem, head, index, cpu)
        mark_poisoned(mem, index)
        return DONE
    if huge:
        return TO_MIGRATE
    if not usable or np.uint64(page.pg_flags) & OWN:
        return UNHANDLABLE
    slot = own_slot(mem, head)
    if np.uint64(page.state) & ORDER_BITS and not split_large(mem, slot, head):
        return UNSPLIT
    slot = slot_of(mem, index)
    mem.folios[slot].bits = bits_of(mem, index, slot) & ~WAITED_FOR
    return INVALIDATED if drop_clean(mem, index, slot) else TO_MIGRATE


@inlined
def left_bits(bits: U) -> U:
    """What a page shows after its content has moved: of a file's page dirtiness moves too, of others it is a copy."""
    if bits & HUGETLB:
        return with_mapping(ZERO, NOTHING)
    if cached(bits):
        return with_mapping(bits & ~(GONE | DIRTY), NOTHING)
    if bits & PTE_DIRTY:
        bits |= DIRTY
    return bits & ~(GONE | OWNER_2)


@kernel
def keep_vacated(mem: Memory, index: U, cpu: U, bits: U) -> int:
    """The page that migration left is held; the handle of what it was. The folio table must have room for one.

    Migration leaves a single page to its caller. A hugetlb folio went to the allocator, from which one of its pages is
    taken.
    """
    page = mem.pages[index]
    if page.state == USED and slot_of(mem, index) == NONE:
        keep(mem, index)
    else:
        drain_all_pages(mem, np.uint64(page.zone), cpu)
        if not take_page_off_buddy(mem, index, cpu):
            return -1
        mark_poisoned(mem, index)
    return int(new_folio_as(mem, index, ZERO, left_bits(bits)))


@kernel
def drop_poisoned(mem: Memory, slot: U) -> None:
    """A poisoned page leaves its file, whose reference goes; what is left of it is memory_failure()'s."""
    index = np.uint64(mem.folios[slot].index)
    bits = np.uint64(mem.folios[slot].bits)
    leave_lru(mem, index)
    mem.folios[slot].bits = with_mapping(bits & ~(GONE | DIRTY | OWNER_2), NOTHING)
    mem.folios[slot].mms = ZERO
    leak(mem, index)
