"""unpoison_memory(): pages that injected errors took away come back (mm/memory-failure.c, 6.12.117)."""

import numpy as np

from memmodel.jit import inlined, kernel
from memmodel.kernels.buddy import free_one
from memmodel.kernels.folio_state import HUGETLB, OWN, bits_of, cached, count_references, mappers
from memmodel.kernels.folios import drop_folio, is_hugetlb, slot_of
from memmodel.kernels.freelist import ONE, ORDER_BITS, block_type
from memmodel.kernels.huge_failure import HWPOISON, count_poisoned
from memmodel.kernels.memory_failure import RESERVED
from memmodel.kernels.page_alloc import free_block
from memmodel.kernels.pageblock import KIND_BITS, containing_head
from memmodel.kernels.pcp import drain_all_pages
from memmodel.kernels.poisoning import LOST, TAKEN_OFF
from memmodel.state.failure_layout import Unpoison
from memmodel.state.layout import NONE, Kind, Memory

U = np.uint64
ZERO = np.uint64(0)
USED = np.uint64(Kind.USED << 4)
DONE, NOT_POISONED, GRABBED = Unpoison.DONE.value, Unpoison.NOT_POISONED.value, Unpoison.GRABBED.value
NOT_USERS, MAPPED, OF_FILE = Unpoison.NOT_USERS.value, Unpoison.MAPPED.value, Unpoison.OF_FILE.value


@inlined
def refusal(mem: Memory, index: U, head: U) -> int:
    """What stands in the way; DONE if nothing does. A hugetlb folio shows its errors on its first page only."""
    page, slot = mem.pages[head], slot_of(mem, head)
    huge = is_hugetlb(mem, head)
    flags = np.uint64(mem.pages[index].pg_flags)
    if (huge and (index != head or not count_poisoned(mem, head))) or (not huge and not flags & HWPOISON):
        return NOT_POISONED
    if count_references(mem, head) > ONE:
        return GRABBED
    if np.uint64(page.state) & KIND_BITS == RESERVED or np.uint64(page.pg_flags) & OWN:
        return NOT_USERS
    bits = bits_of(mem, head, slot)
    if np.uint64(page.state) & KIND_BITS == USED:
        if mappers(mem, slot, bits):
            return MAPPED
        if cached(bits):
            return OF_FILE
    return DONE


@inlined
def clear_poison(mem: Memory, index: U, head: U) -> None:
    """PG_hwpoison goes, of a hugetlb folio that of all its pages, and with it the count."""
    first, end = index, index + ONE
    if is_hugetlb(mem, head):
        first, end = head, head + (ONE << (np.uint64(mem.pages[head].state) & ORDER_BITS))
    for part in range(first, end):
        page = mem.pages[part]
        if np.uint64(page.pg_flags) & HWPOISON:
            page.pg_flags = np.uint64(page.pg_flags) & ~HWPOISON
            mem.failure[0].num_poisoned -= 1


@inlined
def give_back(mem: Memory, head: U, cpu: U) -> None:
    """The last reference is dropped: to the buddy lists if it was taken from them, else the way that any page goes."""
    page, slot = mem.pages[head], slot_of(mem, head)
    if is_hugetlb(mem, head):  # back in the pool
        page.refcount = ONE
        mem.folios[slot].mms = ZERO
        mem.folios[slot].bits = HUGETLB
        return
    if slot != NONE:
        drop_folio(mem, slot)
    taken_off = page.state == LOST and page.prev == TAKEN_OFF
    if page.state == LOST:
        page.state = USED
        page.next = NONE
    if taken_off:
        page.refcount = ZERO
        page.state = ZERO
        free_one(mem, head, cpu, ZERO, block_type(mem, head), False)
    else:
        free_block(mem, head, cpu)


@kernel
def unpoison_page(mem: Memory, index: U, cpu: U) -> int:
    """One unpoison_memory() of a page that exists, but for the lock that an error of the hardware puts on all."""
    head = containing_head(mem, index)
    problem = refusal(mem, index, head)
    if problem:
        return problem
    drain_all_pages(mem, np.uint64(mem.pages[index].zone), cpu)
    held = count_references(mem, head)
    clear_poison(mem, index, head)
    page = mem.pages[head]
    if held:
        give_back(mem, head, cpu)
    elif page.state == LOST:  # its owner had freed it, and so it was leaked: it stays nobody's
        page.state = USED
        page.next = NONE
    return DONE
