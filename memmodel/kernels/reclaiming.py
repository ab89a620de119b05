"""Which folios of a list one batch of reclaim takes."""

from typing import Any

import numpy as np

from memmodel.jit import kernel
from memmodel.kernels.folios import find_folio
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.state.layout import NONE, Memory

GONE = np.int64(-1)


@kernel
def pick_folios(mem: Memory, listed: Any, first: int, zones: Any, picked: Any) -> tuple[int, int]:
    """Take the first folios of these zones off a list, until they have as many pages as `picked` has room for.

    Stale handles go as well. Returns the folios picked and their pages.
    """
    n_picked, n_pages = 0, 0
    for i in range(first, listed.size):
        if listed[i] == GONE:
            continue
        slot = find_folio(mem, listed[i])
        if slot == NONE:
            listed[i] = GONE
            continue
        page = mem.pages[mem.folios[slot].index]
        for zone in zones:
            if zone == page.zone:
                picked[n_picked] = listed[i]
                listed[i] = GONE
                n_picked += 1
                n_pages += int(ONE << (np.uint64(page.state) & ORDER_BITS))
        if n_pages >= picked.size:
            break
    return n_picked, n_pages
