"""Many single pages off one per-CPU list (alloc_pages_bulk, mm/page_alloc.c, 6.12.117)."""

from typing import Any

import numpy as np

from memmodel.jit import kernel
from memmodel.kernels.page_alloc import Request, fill_and_pop, mark_used
from memmodel.kernels.pcp import pcp_list, pcp_pop
from memmodel.kernels.slowpath import become_folio
from memmodel.state.layout import NONE, Memory

U = np.uint64


@kernel
def alloc_bulk(mem: Memory, zone: U, cpu: U, request: Request, flags: U, handles: Any) -> int:
    """Pages of one zone until its list cannot be refilled; how many came.

    __rmqueue_pcplist() alone: what was freed before is not halved, and a boosted zone wakes nobody.
    """
    head = pcp_list(mem, zone, cpu, request.order, request.migratetype)
    for i in range(handles.size):
        if mem.pages[head].next != head:
            index = pcp_pop(mem, zone, cpu, head, request.order)
        else:
            index = fill_and_pop(mem, zone, cpu, request, flags)
            if index == NONE:
                return i
        mark_used(mem, index, request.order)
        handles[i] = become_folio(mem, index, cpu, request)
    return int(handles.size)
