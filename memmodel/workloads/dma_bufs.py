"""A stream of dma-bufs from the system heap: one after the other, the oldest freed where they hold too much."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.jit import inlined, kernel, prefetch
from memmodel.kernels.folios import SLOT_BITS, drop_folio, new_folio
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.page_alloc import Request, alloc_row, free_row, mark_used
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.heaps import ORDERS
from memmodel.state.layout import NONE, Memory
from memmodel.state.machine import Machine
from memmodel.workloads.generator import Kind
from memmodel.workloads.loop import Requests
from memmodel.workloads.requests import request_table

__all__ = ["DmaBufRun", "run_dma_bufs"]

U = np.uint64
HEAP_ORDERS = tuple(np.uint64(order) for order in ORDERS)
N_ORDERS = len(ORDERS)
DMA_BUF = np.uint64(Kind.DMA_BUF)
GOT, FAILED = 0, 1
AHEAD = np.uint64(8)


class Rings(NamedTuple):
    """What is held, oldest first; both rings have a power of two of places."""

    slots: npt.NDArray[np.uint32]  # of the folios
    lengths: npt.NDArray[np.uint32]  # folios of each buffer
    places: npt.NDArray[np.uint64]  # first and behind the last folio, first and behind the last buffer
    held: npt.NDArray[np.int64]  # pages


@dataclass(frozen=True)
class DmaBufRun:
    """What became of the buffers."""

    n_bufs: int
    """Buffers that came whole."""
    n_failed: int
    """Buffers that did not (-ENOMEM), and were given back."""
    folios: dict[int, int]
    """Folios by order, those of buffers given back among them."""
    failed_requests: dict[int, int]
    """Requests that failed, by order: the next smaller one was tried then."""


@inlined
def free_buffer(mem: Memory, rings: Rings, cpu: U, newest: bool) -> None:
    """Free the oldest buffer, or the newest: its folios in their order."""
    mask, buffers = np.uint64(rings.slots.size - 1), np.uint64(rings.lengths.size - 1)
    places = rings.places
    if newest:
        places[3] -= ONE
        length = np.uint64(rings.lengths[places[3] & buffers])
        places[1] -= length
        first = np.uint64(places[1])
    else:
        length = np.uint64(rings.lengths[places[2] & buffers])
        first = np.uint64(places[0])
        places[0] += length
        places[2] += ONE
    for number in range(length):
        place = first + np.uint64(number)
        prefetch(mem.folios, np.uint64(rings.slots[(place + AHEAD + AHEAD) & mask]))
        prefetch(mem.pages, np.uint64(mem.folios[rings.slots[(place + AHEAD) & mask]].index))
        slot = np.uint64(rings.slots[place & mask])
        index = np.uint64(mem.folios[slot].index)
        rings.held[0] -= np.int64(ONE << (np.uint64(mem.pages[index].state) & ORDER_BITS))
        drop_folio(mem, slot)
        free_row(mem, index, cpu)


@inlined
def fill_buffer(mem: Memory, rings: Rings, requests: Requests, left: np.int64, counts: Any) -> np.int64:
    """The folios of one buffer, orders 8, 4, 0, none larger after a failure; pages that could not be had."""
    mask = np.uint64(rings.slots.size - 1)
    zonelist = requests.zonelists[DMA_BUF][: requests.n_zones[DMA_BUF]]
    length = np.uint64(0)
    for step in range(N_ORDERS):
        order = HEAP_ORDERS[step]
        asked = requests.fields[DMA_BUF, order]
        request = Request(order, asked.migratetype, asked.highest, asked.fast, asked.slow, asked.lru)
        while order <= mem.params.max_order and left >> np.int64(order):
            index = alloc_row(mem, zonelist, requests.cpu, request)
            if index == NONE:
                counts[FAILED, step] += 1
                break
            mark_used(mem, index, order)
            counts[GOT, step] += 1
            rings.slots[rings.places[1] & mask] = np.uint64(new_folio(mem, index)) & SLOT_BITS
            rings.places[1] += ONE
            length += ONE
            left -= np.int64(ONE << order)
            rings.held[0] += np.int64(ONE << order)
    rings.lengths[rings.places[3] & np.uint64(rings.lengths.size - 1)] = length
    rings.places[3] += ONE
    return left


@kernel
def _run(mem: Memory, rings: Rings, requests: Requests, sizes: Any, level: int, counts: Any) -> int:
    """All buffers, then all are freed; how many could not be had."""
    n_failed = 0
    for i in range(sizes.size):
        while rings.places[2] != rings.places[3] and rings.held[0] + sizes[i] > level:
            free_buffer(mem, rings, requests.cpu, False)
        if fill_buffer(mem, rings, requests, sizes[i], counts):
            n_failed += 1
            free_buffer(mem, rings, requests.cpu, True)
    while rings.places[2] != rings.places[3]:
        free_buffer(mem, rings, requests.cpu, False)
    return n_failed


def run_dma_bufs(mem: Machine, sizes: npt.ArrayLike, level: int, *, cpu: int = 0, node: int = 0) -> DmaBufRun:
    """Allocate buffers one after the other, in one compiled loop; in the end all are freed.

    Each is allocated as `dmabuf_alloc` does it, without reclaim and compaction.

    Parameters
    ----------
    mem
        Changed in place.
    sizes
        Of the buffers, in pages, 1 or more each, shape ``(buffers,)``.
    level
        Pages that they may hold together, 0 or more: the oldest are freed first where the next would bring them above
        it, but never the last.
    cpu, node
        Where they are asked for.

    Raises
    ------
    InputError
        If a size, the level, the CPU or the node is none.

    References
    ----------
    drivers/dma-buf/heaps/system_heap.c: system_heap_allocate, alloc_largest_available, Linux 6.12 (and 6.1).
    """
    wanted = np.asarray(sizes)
    if wanted.ndim != 1 or (wanted.size and (wanted.dtype.kind not in "iu" or wanted.min() < 1)):
        raise InputError("sizes of buffers are whole numbers of pages, 1 or more, in one row")
    level = whole_number(level, "level", 0, 1 << 62)
    requests = request_table(mem, node, mem.check_cpu(cpu))
    n_pages = mem.pfns.n_pages
    mem.reserve_folios(n_pages - int(mem.state.slots[0]))
    rings = Rings(
        slots=np.zeros(1 << n_pages.bit_length(), np.uint32),
        lengths=np.zeros(1 << min(n_pages, wanted.size).bit_length(), np.uint32),
        places=np.zeros(4, np.uint64),
        held=np.zeros(1, np.int64),
    )
    counts = np.zeros((2, N_ORDERS), np.int64)
    n_failed = int(_run(mem.state, rings, requests, np.ascontiguousarray(wanted, np.int64), level, counts))
    by_order = [dict(zip(ORDERS, row.tolist(), strict=True)) for row in counts]
    return DmaBufRun(wanted.size - n_failed, n_failed, *by_order)
