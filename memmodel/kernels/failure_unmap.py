"""Taking a bad page away from those who map it (hwpoison_user_mappings, unmap_poisoned_folio), 6.12.117."""

from typing import Any

import numpy as np

from memmodel.jit import inlined
from memmodel.kernels.folio_state import HUGETLB, LRU, POISON_ENTRIES, SWAPCACHE, bits_of, cached, mappers, mapping_of
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.state.failure_layout import MfFlag, MfNote
from memmodel.state.layout import FolioBit, Mapping, Memory, PageFlag

U = np.uint64
ZERO = np.uint64(0)
DIRTY, PTE_DIRTY = np.uint64(FolioBit.DIRTY), np.uint64(FolioBit.PTE_DIRTY)
MLOCKED, UNMAP_FAILS = np.uint64(FolioBit.MLOCKED), np.uint64(FolioBit.UNMAP_FAILS)
UNEVICTABLE = np.uint64(PageFlag.UNEVICTABLE)
RAMFS = np.uint64(Mapping.RAMFS)
FIRST_WRITTEN, LAST_WRITTEN = np.uint64(Mapping.BLOCK_DEVICE), np.uint64(Mapping.FILE)
MUST_KILL = np.uint64(MfFlag.MUST_KILL)
KEPT, WAS_CLEAN = np.uint64(MfNote.KEPT_IN_SWAP_CACHE), np.uint64(MfNote.WAS_CLEAN)
STAYS_MAPPED, COLLECTED = np.uint64(MfNote.STAYS_MAPPED), np.uint64(MfNote.COLLECTED)
FORCE_KILL = np.uint64(MfNote.FORCE_KILL)


@inlined
def collect(mem: Memory, head: U, slot: U, out: Any) -> None:
    """Note who maps the folio, for collect_procs()."""
    bits = bits_of(mem, head, slot)
    out.notes = np.uint64(out.notes) | COLLECTED
    out.mms = mappers(mem, slot, bits)
    out.file = ONE if cached(bits) else ZERO
    out.order = np.uint64(mem.pages[head].state) & ORDER_BITS


@inlined
def drops_clean(bits: U, flags: U) -> bool:
    """Whether the page can be read again from where it came: its users need not know."""
    mapping = mapping_of(bits)
    written_back = mapping >= FIRST_WRITTEN and mapping <= LAST_WRITTEN
    return bool(written_back) and not bits & (DIRTY | PTE_DIRTY) and not flags & MUST_KILL


@inlined
def unmap(mem: Memory, head: U, slot: U, flags: U, out: Any) -> bool:
    """Replace all PTEs: by hwpoison entries, in the swap cache by swap entries, of clean file pages by nothing.

    False if some are left.
    """
    folio, page = mem.folios[slot], mem.pages[head]
    bits = bits_of(mem, head, slot)
    if not mappers(mem, slot, bits) or not (np.uint64(page.pg_flags) & LRU or bits & HUGETLB):
        return True
    collect(mem, head, slot, out)
    notes, entries = np.uint64(out.notes), POISON_ENTRIES
    if bits & SWAPCACHE:
        notes |= KEPT
        entries = ZERO
    if drops_clean(bits, flags):
        notes |= WAS_CLEAN
        entries = ZERO
    if bits & PTE_DIRTY:
        bits = (bits & ~PTE_DIRTY) | DIRTY
    done = not bits & UNMAP_FAILS
    if not done:
        notes |= STAYS_MAPPED
    else:
        if bits & MLOCKED and mapping_of(bits) != RAMFS:  # munlocked, and evictable again
            page.pg_flags = np.uint64(page.pg_flags) & ~UNEVICTABLE
        bits = (bits & ~MLOCKED) | entries
        if not entries:
            folio.mms = ZERO
    if bits & DIRTY or flags & MUST_KILL or not done:
        notes |= FORCE_KILL
    folio.bits = bits
    out.notes = notes
    return done
