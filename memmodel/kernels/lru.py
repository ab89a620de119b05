"""LRU-add batches: which allocated pages are on an LRU list, and so count as movable when a pageblock is claimed.

mm/swap.c (folio_add_lru, lru_add_drain_cpu), 6.12.117: a new folio waits in its CPU's batch and is on no list yet.
"""

from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.state.layout import Kind, Memory, PageFlag

U = np.uint64
ZERO = np.uint64(0)
LRU = np.uint64(PageFlag.LRU)
LRU_BATCH = np.uint64(PageFlag.LRU_BATCH)
LRU_ISOLATED = np.uint64(PageFlag.LRU_ISOLATED)
BYPASSED = np.uint64(1)  # a batch of one
USED, KIND_BITS = np.uint64(Kind.USED << 4), np.uint64(0xF0)


@inlined
def drain_lru_batch(mem: Memory, cpu: U) -> None:
    """All folios of the batch go on their lists (lru_add_drain_cpu)."""
    batch = mem.lru[cpu]
    for place in range(np.uint64(batch.count)):
        page = mem.pages[batch.index[place]]
        page.pg_flags = (np.uint64(page.pg_flags) & ~LRU_BATCH) | LRU
    batch.count = ZERO


@inlined
def add_lru(mem: Memory, index: U, cpu: U, order: U) -> None:
    """A new folio; a large one, or the last that the batch has room for, empties it (folio_add_lru)."""
    batch = mem.lru[cpu]
    batch.index[batch.count] = index
    batch.count += ONE
    page = mem.pages[index]
    page.pg_flags = np.uint64(page.pg_flags) | LRU_BATCH
    if order or batch.count >= batch["size"]:
        drain_lru_batch(mem, cpu)


@inlined
def leave_lru(mem: Memory, index: U) -> None:
    """A folio is freed. A batch holds its folios: if this one was in one, that was emptied before."""
    page = mem.pages[index]
    if np.uint64(page.pg_flags) & LRU_BATCH:
        for number in range(mem.params.n_cpus):
            cpu = np.uint64(number)
            batch = mem.lru[cpu]
            for place in range(np.uint64(batch.count)):
                if batch.index[place] == index:
                    drain_lru_batch(mem, cpu)
                    break
    page.pg_flags = np.uint64(page.pg_flags) & ~(LRU | LRU_ISOLATED)


@inlined
def isolate_folio(mem: Memory, index: U) -> bool:
    """A folio leaves its LRU list to be migrated (folio_isolate_lru); False if it is on none."""
    page = mem.pages[index]
    flags = np.uint64(page.pg_flags)
    if flags & LRU:
        page.pg_flags = (flags & ~LRU) | LRU_ISOLATED
    return bool(flags & LRU)


@inlined
def put_back_folio(mem: Memory, index: U, cpu: U) -> None:
    """A folio that did not move returns to its list by way of the batch (folio_putback_lru)."""
    page = mem.pages[index]
    flags = np.uint64(page.pg_flags)
    if flags & LRU_ISOLATED:
        page.pg_flags = flags & ~LRU_ISOLATED
        if np.uint64(page.state) & KIND_BITS == USED:
            add_lru(mem, index, cpu, np.uint64(page.state) & ORDER_BITS)


@kernel
def drain_lru(mem: Memory, cpu: U) -> None:
    """lru_add_drain() on that CPU."""
    drain_lru_batch(mem, cpu)


@kernel
def set_on_lru(mem: Memory, rows: Any, flag: U) -> None:
    """Folios of any place get this one of the LRU flags, or none (0): lists and batches are left as by a free."""
    for index in rows:
        leave_lru(mem, index)
        page = mem.pages[index]
        page.pg_flags = np.uint64(page.pg_flags) | flag


@inlined
def set_batches(mem: Memory, size: U) -> None:
    """Empty all batches, and give them another size; `BYPASSED` is lru_cache_disable()."""
    for cpu in range(mem.params.n_cpus):
        drain_lru_batch(mem, np.uint64(cpu))
        mem.lru[cpu]["size"] = size


@kernel
def set_lru_batch(mem: Memory, size: U) -> None:
    """set_batches() where Python calls it."""
    set_batches(mem, size)


@kernel
def isolate_lru(mem: Memory, first: U, end: U) -> None:
    """The folios of a range that are on an LRU list become migration sources."""
    for index in range(first, end):
        isolate_folio(mem, np.uint64(index))


@kernel
def put_back_lru(mem: Memory, cpu: U, first: U, end: U) -> None:
    """Sources of a range that did not move return by way of the batch, the last first (putback_movable_pages)."""
    index = end
    while index > first:
        index -= ONE
        put_back_folio(mem, index, cpu)
