"""Gigantic pages that are one compound page (since 6.12).

mm/page_alloc.c (__free_pages_ok, split_large_buddy), 6.12.117 and 7.3.4.
"""

import numpy as np

from memmodel.jit import kernel
from memmodel.kernels.buddy import free_pages_split
from memmodel.kernels.freelist import ONE
from memmodel.kernels.page_alloc import HWPOISON, PGFREE
from memmodel.state.layout import Memory

U = np.uint64
ZERO = np.uint64(0)


@kernel
def free_compound(mem: Memory, first: U, order: U, cpu: U) -> None:
    """The page goes to the buddy past the CPU's lists, pageblock by pageblock, poisoned pages too."""
    for row in range(first, first + (ONE << order)):
        page = mem.pages[row]
        page.state = ZERO
        page.refcount = ZERO
        page.pg_flags = np.uint64(page.pg_flags) & HWPOISON
    mem.vmstat[PGFREE] += np.int64(ONE << order)
    free_pages_split(mem, first, cpu, order, False)
