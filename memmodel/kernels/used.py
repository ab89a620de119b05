"""Blocks in use, cut and joined: callers split what they were given and free parts, or free several blocks at once."""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.buddy import USED, free_pages_split, take_out_of_buddy
from memmodel.kernels.folios import forget_folio
from memmodel.kernels.freelist import FREE, ONE, ORDER_BITS, TYPES, unlink
from memmodel.kernels.isolation import ISOLATED
from memmodel.kernels.lru import leave_lru
from memmodel.kernels.pageblock import KIND_BITS, containing_head
from memmodel.kernels.pcp import LISTS, PCP
from memmodel.kernels.poisoning import LOST
from memmodel.state.layout import Kind, Memory, PageFlag

U = np.uint64
ZERO = np.uint64(0)
UNKNOWN = np.uint64(Kind.UNKNOWN << 4)
HWPOISON = np.uint64(PageFlag.HWPOISON)


@inlined
def is_used(mem: Memory, index: U) -> bool:
    """Whether a row begins a block in use, or one of which no source says what it is."""
    kind = np.uint64(mem.pages[index].state) & KIND_BITS
    return bool(kind == USED) or bool(kind == UNKNOWN)


@inlined
def cut_off(mem: Memory, head: U, part: U, order: U) -> None:
    """A part of a block in use becomes one of its own; the block's flags are its too, but errors are of their page."""
    page = mem.pages[part]
    page.state = USED | order
    page.pg_flags = np.uint64(page.pg_flags) | (np.uint64(mem.pages[head].pg_flags) & ~HWPOISON)
    page.refcount = ONE


@inlined
def split_used(mem: Memory, head: U, index: U, order: U) -> None:
    """Cut a block in use down to the part of that order which begins at `index`; all parts stay in use."""
    high = np.uint64(mem.pages[head].state) & ORDER_BITS
    while high > order:
        high -= ONE
        upper = head + (ONE << high)
        cut_off(mem, head, upper, high)
        mem.pages[head].state = USED | high
        if index >= upper:
            head = upper


@outlined
def reshape_used(mem: Memory, index: U, order: U) -> bool:
    """Cut or join blocks in use to one of this order."""
    never_inline()
    head = containing_head(mem, index)
    end = index + (ONE << order)
    if is_used(mem, head) and head + (ONE << (np.uint64(mem.pages[head].state) & ORDER_BITS)) >= end:
        split_used(mem, head, index, order)
        mem.pages[index].state = USED | order
        return True
    part = index
    while part < end:
        if not is_used(mem, part):
            return False
        part += ONE << (np.uint64(mem.pages[part].state) & ORDER_BITS)
    if part != end:
        return False
    part = index
    while part < end:
        size = ONE << (np.uint64(mem.pages[part].state) & ORDER_BITS)
        leave_lru(mem, part)  # only a folio's first page is on a list
        forget_folio(mem, part)
        mem.pages[part].state = ZERO
        part += size
    mem.pages[index].state = USED | order
    return True


@inlined
def make_used_block(mem: Memory, index: U, order: U) -> bool:
    """See to it that a block in use begins here and has this order; False if not all of it is in use."""
    return bool(mem.pages[index].state == USED | order) or reshape_used(mem, index, order)


@inlined
def take_off_pcp(mem: Memory, index: U) -> None:
    """Take a page off whichever per-CPU list it is on."""
    params = mem.params
    zone = np.uint64(mem.pages[index].zone)
    order = np.uint64(mem.pages[index].state) & ORDER_BITS
    head = np.uint64(mem.pages[index].next)
    while head < params.n_pages:  # list heads lie behind the pages
        head = np.uint64(mem.pages[head].next)
    lists = (params.max_order + ONE) * TYPES
    cpu = (head - params.n_pages - zone * params.heads_per_zone - lists) // LISTS
    unlink(mem, index)
    mem.pcp[zone * params.n_cpus + cpu].count -= ONE << order


@inlined
def free_rest(mem: Memory, head: U, index: U, cpu: U, high: U) -> None:
    """Free what a block, which is on no list, has beside one page."""
    mem.pages[head].state = ZERO
    while high > ZERO:
        high -= ONE
        upper = head + (ONE << high)
        if index >= upper:
            free_pages_split(mem, head, cpu, high, False)
            head = upper
        else:
            free_pages_split(mem, upper, cpu, high, False)


@inlined
def take_page_out(mem: Memory, index: U, cpu: U) -> bool:
    """Make a single page one that is in use, whatever the model held it to be; False if it was in use."""
    head = containing_head(mem, index)
    state = np.uint64(mem.pages[head].state)
    kind, order = state & KIND_BITS, state & ORDER_BITS
    if is_used(mem, head):
        split_used(mem, head, index, ZERO)
        leave_lru(mem, index)
        mem.pages[index].state = USED
        return False
    if kind == FREE:
        take_out_of_buddy(mem, index, cpu, ZERO)
    elif kind == PCP:
        take_off_pcp(mem, head)
        free_rest(mem, head, index, cpu, order)
    elif kind == ISOLATED:  # its other pages stay with nobody: in use too
        unlink(mem, head)
        mem.pages[head].state = USED | order
        split_used(mem, head, index, ZERO)
    elif kind != LOST:  # reserved or a hole: the zone manages more pages than it said
        mem.zones[mem.pages[index].zone].beyond_managed += 1
    mem.pages[index].state = USED
    mem.pages[index].refcount = ONE
    return True


@outlined
def force_used(mem: Memory, index: U, cpu: U, order: U) -> U:
    """See to it that a block in use of this order begins here; pages of it that were not in use."""
    never_inline()
    changed = ZERO
    page = index
    while page < index + (ONE << order):
        if take_page_out(mem, page, cpu):
            changed += ONE
        page += ONE
    make_used_block(mem, index, order)
    return changed
