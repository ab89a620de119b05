"""The table of page states, what each does with the page, and the counters of results.

mm/memory-failure.c (identify_page_state, me_*, truncate_error_folio, has_extra_refcount, action_result), 6.12.117.
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined
from memmodel.kernels.folio_state import (
    ANON,
    KERNEL,
    LRU,
    NOTHING,
    OF_FILE,
    ON_LRU,
    SHMEM,
    SWAPCACHE,
    cached,
    count_references,
    mappers,
    mapping_of,
    with_mapping,
)
from memmodel.kernels.freelist import ONE
from memmodel.kernels.poisoning import LOST
from memmodel.state.failure_layout import Errno, MfNote, MfResult, MfType
from memmodel.state.layout import NONE, Feature, FolioBit, Mapping, Memory, PageFlag

U = np.uint64
ZERO = np.uint64(0)
HELD = np.uint64(255)  # the most references that a page has room for
EBUSY = np.int64(Errno.EBUSY)
DIRTY, MLOCKED, ACTIVE = np.uint64(FolioBit.DIRTY), np.uint64(FolioBit.MLOCKED), np.uint64(FolioBit.ACTIVE)
WRITEBACK, ERROR, OWNER_2 = np.uint64(FolioBit.WRITEBACK), np.uint64(FolioBit.ERROR), np.uint64(FolioBit.OWNER_2)
MAPPING_EIO, UPTODATE = np.uint64(FolioBit.MAPPING_EIO), np.uint64(FolioBit.UPTODATE)
UNEVICTABLE = np.uint64(PageFlag.UNEVICTABLE)
IOMAP = np.uint64(Mapping.BLOCK_DEVICE_IOMAP)
NO_PG_ERROR, UNKNOWN_IGNORED = np.uint64(Feature.NO_PG_ERROR), np.uint64(Feature.MF_UNKNOWN_IGNORED)
IGNORED, FAILED = np.uint64(MfResult.IGNORED), np.uint64(MfResult.FAILED)
DELAYED, RECOVERED = np.uint64(MfResult.DELAYED), np.uint64(MfResult.RECOVERED)
DIRTY_SWAPCACHE, CLEAN_SWAPCACHE = np.uint64(MfType.DIRTY_SWAPCACHE), np.uint64(MfType.CLEAN_SWAPCACHE)
CLEAN_MLOCKED, CLEAN_UNEVICTABLE = np.uint64(MfType.CLEAN_MLOCKED_LRU), np.uint64(MfType.CLEAN_UNEVICTABLE_LRU)
CLEAN_LRU, HUGE, UNKNOWN = np.uint64(MfType.CLEAN_LRU), np.uint64(MfType.HUGE), np.uint64(MfType.UNKNOWN)
UNKNOWN_STATE, PUNCH_FAILED = np.uint64(MfNote.UNKNOWN_STATE), np.uint64(MfNote.PUNCH_FAILED)
NOT_INVALIDATED, REFERENCED = np.uint64(MfNote.NOT_INVALIDATED), np.uint64(MfNote.REFERENCED)
COUNTED = np.uint64(MfNote.COUNTED)


@inlined
def finish(mem: Memory, index: U, out: Any, mf_type: U, result: U) -> None:
    """Count what became of the page (action_result); an ignored error is a corrupted page too."""
    mem.failure[0].num_poisoned += 1
    node = mem.node_failures[mem.zones[mem.pages[index].zone].node]
    node.total += 1
    if result == IGNORED:
        node.ignored += 1
    elif result == FAILED:
        node.failed += 1
    elif result == DELAYED:
        node.delayed += 1
    else:
        node.recovered += 1
    out.type = mf_type
    out.result = result
    out.notes = np.uint64(out.notes) | COUNTED
    out.rc = EBUSY if result < DELAYED else np.int64(0)


@inlined
def hold(mem: Memory, index: U, slot: U) -> None:
    """The reference that memory_failure() took stays: a page that nobody else owns is out of reach for good."""
    page, bits = mem.pages[index], np.uint64(mem.folios[slot].bits)
    in_use = mappers(mem, slot, bits) or cached(bits) or mapping_of(bits) == KERNEL
    if in_use or bits & SWAPCACHE or np.uint64(page.pg_flags) & ON_LRU:
        page.refcount = min(np.uint64(page.refcount) + ONE, HELD)
    else:
        page.state = LOST
        page.prev = NONE


@inlined
def table_type(bits: U, flags: U) -> U:
    """The first row of the table that fits, of those for user memory; pairs of rows differ in DIRTY."""
    clean = ZERO if bits & DIRTY else ONE
    if bits & SWAPCACHE:
        return DIRTY_SWAPCACHE + clean
    if bits & MLOCKED:
        return CLEAN_MLOCKED - ONE + clean
    if flags & UNEVICTABLE:
        return CLEAN_UNEVICTABLE - ONE + clean
    if flags & LRU:
        return CLEAN_LRU - ONE + clean
    return UNKNOWN


@inlined
def delete_from_lru(mem: Memory, index: U, slot: U) -> bool:
    """Off its LRU list, no longer active or unevictable; False if it was on none."""
    page = mem.pages[index]
    flags = np.uint64(page.pg_flags)
    if not flags & LRU:
        return False
    page.pg_flags = flags & ~(LRU | UNEVICTABLE)
    mem.folios[slot].bits = np.uint64(mem.folios[slot].bits) & ~ACTIVE
    return True


@inlined
def check_references(mem: Memory, index: U, out: Any, allowed: U, result: U) -> U:
    """FAILED where more references are left than memory_failure()'s and those allowed (has_extra_refcount)."""
    users = count_references(mem, index)
    if users <= allowed:
        return result
    out.users = users - allowed
    out.notes = np.uint64(out.notes) | REFERENCED
    return FAILED


@inlined
def can_evict(mem: Memory, index: U, bits: U) -> bool:
    """Whether a page that nobody but its file and the caller holds can be dropped (mapping_evict_folio)."""
    return not bits & (DIRTY | WRITEBACK) and bool(count_references(mem, index) == ONE)


@inlined
def drop_from_file(mem: Memory, index: U, slot: U, out: Any) -> U:
    """Take a page out of its file as the mapping's error_remove operation does; the result (truncate_error_folio)."""
    folio = mem.folios[slot]
    bits = np.uint64(folio.bits)
    mapping = mapping_of(bits)
    if mapping == SHMEM:  # stays in the page cache
        return RECOVERED
    if mapping == OF_FILE:
        folio.bits = with_mapping(bits & ~(DIRTY | OWNER_2), NOTHING)
        return RECOVERED
    if mapping == IOMAP:
        out.notes = np.uint64(out.notes) | PUNCH_FAILED
        return FAILED
    if can_evict(mem, index, bits):
        folio.bits = with_mapping(bits, NOTHING)
        return RECOVERED
    out.notes = np.uint64(out.notes) | NOT_INVALIDATED
    return FAILED


@inlined
def act_on_lru_page(mem: Memory, slot: U, index: U, dirty: bool, out: Any) -> U:
    """Anonymous pages and the page cache (me_pagecache_dirty, me_pagecache_clean)."""
    folio = mem.folios[slot]
    bits = np.uint64(folio.bits)
    if dirty:
        if not mem.params.features & NO_PG_ERROR:
            bits |= ERROR
        if cached(bits):
            bits |= MAPPING_EIO
        folio.bits = bits
    delete_from_lru(mem, index, slot)
    if mapping_of(bits) == ANON:
        return RECOVERED
    if not cached(bits):
        return FAILED
    kept = mapping_of(bits) == SHMEM
    result = drop_from_file(mem, index, slot, out)
    return check_references(mem, index, out, ONE if kept else ZERO, result)


@inlined
def act_on_swapcache(mem: Memory, slot: U, index: U, dirty: bool, out: Any) -> U:
    """A dirty page stays in the swap cache for its users to find; a clean one is read again from swap."""
    folio = mem.folios[slot]
    if dirty:
        folio.bits = np.uint64(folio.bits) & ~(DIRTY | UPTODATE)
        if delete_from_lru(mem, index, slot):
            return check_references(mem, index, out, ONE, DELAYED)
        return check_references(mem, index, out, ZERO, FAILED)
    folio.bits = np.uint64(folio.bits) & ~SWAPCACHE
    result = RECOVERED if delete_from_lru(mem, index, slot) else FAILED
    return check_references(mem, index, out, ZERO, result)


@inlined
def act(mem: Memory, slot: U, index: U, saved: U, saved_flags: U, out: Any) -> None:
    """Find the page's row of the table, by its flags as they are now, then as they were, and do what it says."""
    bits = np.uint64(mem.folios[slot].bits)
    mf_type = table_type(bits, np.uint64(mem.pages[index].pg_flags))
    if mf_type == UNKNOWN:
        mf_type = table_type(saved | (bits & DIRTY), saved_flags)
    dirty = mf_type & ONE == DIRTY_SWAPCACHE & ONE
    if mf_type == UNKNOWN:
        out.notes = np.uint64(out.notes) | UNKNOWN_STATE
        result = IGNORED if mem.params.features & UNKNOWN_IGNORED else FAILED
    elif mf_type <= CLEAN_SWAPCACHE:
        result = act_on_swapcache(mem, slot, index, dirty, out)
    else:
        result = act_on_lru_page(mem, slot, index, dirty, out)
    hold(mem, index, slot)
    finish(mem, index, out, mf_type, result)
