"""What alloc_pages() and free_pages() run: many requests in a row, with folio handles."""

from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel, prefetch
from memmodel.kernels.folios import SLOT_BITS, drop_folio, mark_folios, marked_index, new_folio
from memmodel.kernels.freelist import FREE, ONE
from memmodel.kernels.lru import add_lru
from memmodel.kernels.page_alloc import Request, alloc_row, free_row, mark_used
from memmodel.state.layout import NONE, Memory

U = np.uint64


@kernel
def alloc_folios(mem: Memory, zonelist: Any, cpu: U, request: Request, handles: Any) -> int:
    """One request after the other, until one fails; how many succeeded.

    The table of folios must have room for all of `handles`.
    """
    for i in range(handles.size):
        index = alloc_row(mem, zonelist, cpu, request)
        if index == NONE:
            return i
        mark_used(mem, index, request.order)
        if request.lru:
            add_lru(mem, index, cpu, request.order)
        handles[i] = new_folio(mem, index)
    return int(handles.size)


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
def free_folios(mem: Memory, cpu: U, handles: Any) -> int:
    """Free folios in order, all or none; position of the first handle that is bad, or -1."""
    bad = mark_folios(mem, handles)
    if bad >= 0:
        return bad
    for i in range(handles.size):
        prefetch_free(mem, handles, i)
        if handles[i] == -1:
            continue
        index = marked_index(mem, handles[i])
        drop_folio(mem, np.uint64(handles[i]) & SLOT_BITS)
        free_row(mem, index, cpu)
    return -1
