"""Errors in hugetlb folios: their bad pages, and what is left of a folio whose pages go back to the buddy.

mm/memory-failure.c (try_memory_failure_hugetlb, me_huge_page), mm/hugetlb.c (dissolve_free_hugetlb_folio), 6.12.117.
The list of a folio's bad pages is PG_hwpoison of the pages themselves; a node of that list never fails to be
allocated. No page of the memory map is optimised away (HVO).
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.failure_actions import (
    FAILED,
    HELD,
    HUGE,
    IGNORED,
    RECOVERED,
    REFERENCED,
    check_references,
    finish,
)
from memmodel.kernels.failure_unmap import unmap
from memmodel.kernels.folio_state import HUGETLBFS, POISON_ENTRIES, bits_of, mapping_of
from memmodel.kernels.folios import drop_folio, slot_of
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.page_alloc import free_block
from memmodel.kernels.page_flags import filtered
from memmodel.kernels.pcp import drain_all_pages
from memmodel.kernels.poisoning import take_page_off_buddy
from memmodel.state.failure_layout import Errno, MfType
from memmodel.state.layout import Feature, Kind, Memory, PageFlag

U = np.uint64
ZERO = np.uint64(0)
HWPOISON = np.uint64(PageFlag.HWPOISON)
HUGE_REPORTS, UNMAP_FAILED = np.uint64(Feature.MF_HUGE_REPORTS), np.uint64(Feature.MF_UNMAP_FAILED)
TYPE_FREE_HUGE, TYPE_UNMAP = np.uint64(MfType.FREE_HUGE), np.uint64(MfType.UNMAP_FAILED)
TYPE_ALREADY, NO_TYPE = np.uint64(MfType.ALREADY_POISONED), np.uint64(MfType.NO_TYPE)
EHWPOISON, EOPNOTSUPP = np.int64(Errno.EHWPOISON), np.int64(Errno.EOPNOTSUPP)
USED = np.uint64(Kind.USED << 4)


@inlined
def in_pool(mem: Memory, head: U, slot: U) -> bool:
    """Whether it is a free one of the pool."""
    bits = bits_of(mem, head, slot)
    free = not mem.folios[slot].mms and mapping_of(bits) != HUGETLBFS
    return bool(free) and bool(mem.pages[head].refcount == ONE)


@inlined
def count_poisoned(mem: Memory, head: U) -> U:
    """Bad pages of a folio."""
    n = ZERO
    for part in range(head, head + (ONE << (np.uint64(mem.pages[head].state) & ORDER_BITS))):
        if np.uint64(mem.pages[part].pg_flags) & HWPOISON:
            n += ONE
    return n


@inlined
def dissolve(mem: Memory, head: U, index: U, cpu: U) -> None:
    """The whole folio goes to the buddy, then one page leaves it again (__page_handle_poison)."""
    free_block(mem, head, cpu)
    drain_all_pages(mem, np.uint64(mem.pages[head].zone), cpu)
    take_page_off_buddy(mem, index, cpu)


@inlined
def hit_again(mem: Memory, index: U, known: bool, out: Any) -> None:
    """A folio that has a bad page already; 6.1 says nothing of a further one, and counts it all the same."""
    if known or not mem.params.features & HUGE_REPORTS:
        if not known:
            mem.failure[0].num_poisoned += 1
        out.type = TYPE_ALREADY
        out.result = FAILED
    else:
        finish(mem, index, out, HUGE, FAILED)
    out.rc = EHWPOISON


@inlined
def act_on_huge(mem: Memory, head: U, slot: U, index: U, cpu: U, out: Any) -> None:
    """An unmapped folio: of a file it stays in the page cache, else it is dissolved if nobody pins it."""
    page = mem.pages[head]
    if mapping_of(bits_of(mem, head, slot)) == HUGETLBFS:
        result = check_references(mem, head, out, ONE, RECOVERED)
        page.refcount = min(np.uint64(page.refcount) + ONE, HELD)
        finish(mem, index, out, HUGE, result)
    elif page.refcount > ONE:
        if page.refcount > ONE + ONE:
            out.users = np.uint64(page.refcount) - ONE - ONE
            out.notes = np.uint64(out.notes) | REFERENCED
        finish(mem, index, out, HUGE, FAILED)
    else:
        dissolve(mem, head, index, cpu)
        mem.folios[slot].index = index  # the handle is the bad page's from here on: what its users' entries point at
        mem.folios[slot].bits = POISON_ENTRIES
        mem.pages[index].next = slot
        finish(mem, index, out, HUGE, RECOVERED)


@outlined
def fail_huge(mem: Memory, head: U, index: U, flags: U, cpu: U, out: Any) -> None:
    """memory_failure() of a page of a hugetlb folio."""
    never_inline()
    page, slot = mem.pages[index], slot_of(mem, head)
    known, hit = bool(np.uint64(page.pg_flags) & HWPOISON), count_poisoned(mem, head)
    page.pg_flags = np.uint64(page.pg_flags) | HWPOISON
    if hit:
        hit_again(mem, index, known, out)
        return
    if filtered(mem, index):
        page.pg_flags = np.uint64(page.pg_flags) & ~HWPOISON
        out.rc = EOPNOTSUPP
        out.type = NO_TYPE
        return
    if in_pool(mem, head, slot):
        drop_folio(mem, slot)
        dissolve(mem, head, index, cpu)
        finish(mem, index, out, TYPE_FREE_HUGE, RECOVERED)
        return
    if not unmap(mem, head, slot, flags, out):
        finish(mem, index, out, TYPE_UNMAP, FAILED if mem.params.features & UNMAP_FAILED else IGNORED)
        return
    act_on_huge(mem, head, slot, index, cpu, out)
