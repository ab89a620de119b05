"""The built-in generators. Each keeps the pages that it holds near its level, and goes on at random once there.

Where sizes are "about" n they are uniform from 1 to 2n - 1.
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined
from memmodel.mechanisms.heaps import ORDERS as HEAP_ORDERS
from memmodel.workloads.generator import (
    POOLS,
    Kind,
    about,
    begin,
    below,
    chance,
    end_newest,
    end_oldest,
    end_random,
    join,
    nothing,
)

U = np.uint64
ZERO, ONE, FOUR = np.uint64(0), np.uint64(1), np.uint64(4)
N_POOLS = np.uint64(POOLS)
ANONYMOUS, PAGE_CACHE, SLAB = np.uint64(Kind.ANONYMOUS), np.uint64(Kind.PAGE_CACHE), np.uint64(Kind.RECLAIMABLE_SLAB)
KERNEL, PINNED, THP, DMA_BUF = (
    *(np.uint64(Kind.KERNEL), np.uint64(Kind.PINNED)),
    *(np.uint64(Kind.THP), np.uint64(Kind.DMA_BUF)),
)
COSTLY_ORDER = 3  # PAGE_ALLOC_COSTLY_ORDER: the most that SLUB asks for, and kernel bursts too


@inlined
def anonymous(work: Any) -> U:
    """Four processes at a time fault in single pages by turns; each is one of about `process_pages`.

    Above the level a random one exits. A fault that fails ends one (the OOM killer).
    """
    own = work.own  # [0..3] faults to come of the process that grows in the pool; [4] the pool of the last fault
    if work.failed:
        own[own[4]] = 0
        return end_random(np.uint64(own[4]))
    pool = below(work, N_POOLS)
    own[4] = np.int64(pool)
    if own[pool] > 0:
        own[pool] -= 1
        return join(ZERO, ANONYMOUS, pool)
    if work.room <= 0:
        return end_random(pool)
    own[pool] = about(work, work.settings[0]) - 1
    return begin(ZERO, ANONYMOUS, pool)


@inlined
def reclaim(work: Any) -> U:
    """The oldest file, or a random slab as often as slabs are among the lots: it takes the last object of one."""
    n_slabs = np.uint64(work.lots[1])
    if below(work, np.uint64(work.lots[0]) + n_slabs) < n_slabs:
        return end_random(ONE)
    return end_oldest(ZERO)


@inlined
def page_cache(work: Any) -> U:
    """Files of about `file_pages` are read page by page, and reclaimed above the level.

    Before a file, with `slab_chance`, a slab of inodes (order 3; order 0 if that fails) or dentries (order 0) comes,
    and perhaps another. With `drop_chance` as much is reclaimed as there are files (vm.drop_caches).
    """
    own = work.own  # [0] pages to come of the file; [1] lots to be dropped; [2] order of the slab just asked for
    if work.failed:
        if own[2] > 0:
            own[2] = 0
            return begin(ZERO, SLAB, ONE)
        own[0] = 0
        return reclaim(work)
    own[2] = 0
    if own[0] > 0:
        own[0] -= 1
        return join(ZERO, PAGE_CACHE, ZERO)
    if own[1] > 0 or work.room <= 0:
        own[1] = max(own[1] - 1, 0)
        return reclaim(work)
    if chance(work, work.settings[2]):
        own[1] = work.lots[0]
    if chance(work, work.settings[1]):
        if chance(work, 0.5):
            own[2] = min(COSTLY_ORDER, work.max_order)
        return begin(np.uint64(own[2]), SLAB, ONE)
    own[0] = about(work, work.settings[0]) - 1
    return begin(ZERO, PAGE_CACHE, ZERO)


@inlined
def kernel_bursts(work: Any) -> U:
    """Bursts of about `burst_requests` of orders 0 to 3: each order is the next with `larger_chance`.

    Below the level a request lives long with `long_chance`, or always while more than two bursts below; the others are
    freed after the burst, in random order. Then random long-lived ones are freed while more than a block of the largest
    order above the level, and else, at the level, one with `kernel_turnover`.
    """
    own = work.own  # [0] requests to come of the burst
    if work.failed:
        own[0] = 0
    if own[0] == 0:
        if work.lots[0] > 0:
            return end_random(ZERO)
        beyond = work.room < -(1 << COSTLY_ORDER)
        if beyond or (work.room <= 0 and chance(work, work.settings[3])):
            if not beyond:
                own[0] = about(work, work.settings[0])
            return end_random(ONE)
        own[0] = about(work, work.settings[0])
    own[0] -= 1
    order = 0
    while order < min(COSTLY_ORDER, work.max_order) and chance(work, work.settings[2]):
        order += 1
    long_lived = work.room > 2 * work.settings[0] or (work.room > 0 and chance(work, work.settings[1]))
    return begin(np.uint64(order), KERNEL, ONE if long_lived else ZERO)


@inlined
def pinned(work: Any) -> U:
    """Buffers of about `pinned_pages` single pages, asked for as movable and then held where they are.

    Above the level a random one goes: always while more than two buffers beyond it, else with `pinned_turnover`.
    """
    own = work.own  # [0] pages to come of the buffer
    if work.failed:
        own[0] = 0
        return end_random(ZERO)
    if own[0] > 0:
        own[0] -= 1
        return join(ZERO, PINNED, ZERO)
    if work.room <= 0:
        if work.room < -2 * work.settings[0] or chance(work, work.settings[1]):
            return end_random(ZERO)
        return nothing()
    own[0] = about(work, work.settings[0]) - 1
    return begin(ZERO, PINNED, ZERO)


@inlined
def thp_faults(work: Any) -> U:
    """Processes of about `huge_pages` THPs; where one fails, `fallback_pages` single pages are faulted in instead.

    Above the level a random process exits, and so it does if a single page fails.
    """
    own = work.own  # [0] THPs to come of the process; [1] single pages to come; [2] 1: the last request was for one
    if work.failed:
        if own[2]:
            own[0] = own[1] = 0
            return end_random(ZERO)
        own[1] = np.int64(work.settings[1])
    own[2] = 0
    if own[1] > 0:
        own[1] -= 1
        own[2] = 1
        return join(ZERO, ANONYMOUS, ZERO)
    if own[0] > 0:
        own[0] -= 1
        return join(np.uint64(work.pmd_order), THP, ZERO)
    if work.room <= 0:
        return end_random(ZERO)
    own[0] = about(work, work.settings[0]) - 1
    return begin(np.uint64(work.pmd_order), THP, ZERO)


@inlined
def next_heap_order(order: int) -> int:
    """The next smaller order that the system heap tries."""
    return HEAP_ORDERS[1] if order > HEAP_ORDERS[1] else HEAP_ORDERS[2]


@inlined
def dma_buf(work: Any) -> U:
    """Buffers of about `dma_buf_pages` from the system heap: orders 8, 4, 0, and no larger one after a smaller one.

    Above the level a random buffer is freed; one that cannot be completed is given back (-ENOMEM).
    """
    own = work.own  # [0] pages to come of the buffer; [1] order asked for; [2] 1: an answer is due; [3] 1: has a chunk
    if own[2]:
        own[2] = 0
        if not work.failed:
            own[0] -= 1 << own[1]
            own[3] = 1
        elif own[1] > 0:
            own[1] = next_heap_order(own[1])
        else:
            own[0] = 0
            return end_newest(ZERO) if own[3] else nothing()
    if own[0] == 0:
        if work.room <= 0:
            return end_random(ZERO)
        own[0] = about(work, work.settings[0])
        own[1] = HEAP_ORDERS[0]
        own[3] = 0
    while own[1] > 0 and (own[0] >> own[1] == 0 or own[1] > work.max_order):
        own[1] = next_heap_order(own[1])
    own[2] = 1
    order = np.uint64(own[1])
    return join(order, DMA_BUF, ZERO) if own[3] else begin(order, DMA_BUF, ZERO)


@inlined
def built_in(work: Any) -> U:
    """The generator that the record asks for, in the order of `memmodel.workloads.catalogue.WORKLOADS`."""
    code = work.code
    if code == 0:
        return anonymous(work)
    if code == 1:
        return page_cache(work)
    if code == 2:
        return kernel_bursts(work)
    if code == 3:
        return pinned(work)
    if code == 4:
        return thp_faults(work)
    return dma_buf(work)
