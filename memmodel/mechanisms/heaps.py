"""The dma-buf heaps. System: one buffer of few large folios rather than many pages; CMA: all of it in one piece."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.mechanisms.buddy import Asked, allocate, free_pages, whole_number
from memmodel.mechanisms.cma import cma_alloc
from memmodel.mechanisms.cma_areas import CmaArea
from memmodel.mechanisms.contig import ContigOutcome
from memmodel.mechanisms.policies import CompactPolicy, ReclaimPolicy, Steps, refuse_compaction
from memmodel.sources.gfp import Gfp, parse_gfp
from memmodel.state.machine import Handles, Machine
from memmodel.units import parse_bytes

__all__ = ["CMA_ALIGNMENT", "DmaBuf", "cma_heap_alloc", "dmabuf_alloc", "dmabuf_free"]

CMA_ALIGNMENT = 8
"""CONFIG_CMA_ALIGNMENT: the order beyond which buffers are not aligned."""

ORDERS = (8, 4, 0)  # page orders, not sizes: a 64 KiB kernel tries 16 MiB first
SINGLE = "GFP_HIGHUSER|__GFP_ZERO"
LARGE = "__GFP_IO|__GFP_FS|__GFP_HARDWALL|__GFP_HIGHMEM|__GFP_ZERO|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP"  # no reclaim


class DmaBuf(NamedTuple):
    """A buffer of the system heap."""

    folios: Handles
    """Handles, in the order of the buffer, int64."""
    orders: npt.NDArray[np.int64]
    """Order of each."""
    size_bytes: int
    """Whole pages."""


def dmabuf_alloc(
    mem: Machine,
    size: int | str,
    *,
    node: int = 0,
    cpu: int = 0,
    reclaim: ReclaimPolicy | None = None,
    compact: CompactPolicy | None = None,
) -> DmaBuf | None:
    """Allocate a buffer: folios of order 8 while there are any and the rest needs it, then of order 4, then pages.

    Parameters
    ----------
    mem
        Changed in place.
    size
        Bytes, or text such as "16MiB"; rounded up to whole pages.
    node, cpu
        Where it is asked for.
    reclaim, compact
        As of `alloc_pages`. Order 8 neither reclaims nor compacts, and order 4 does in 6.1 only.

    Returns
    -------
    The buffer; None (-ENOMEM) where not all of it could be had. What came is given back then, and if a policy raises.

    Raises
    ------
    InputError
        If the size is none, another argument is outside its range, or as of `alloc_pages`; nothing has been done then.

    References
    ----------
    drivers/dma-buf/heaps/system_heap.c: system_heap_allocate, alloc_largest_available, Linux 6.12 (and 6.1).
    """
    page = mem.geometry.page_size_bytes
    n_pages = -(-parse_bytes(size) // page)
    orders = [order for order in ORDERS if order <= mem.geometry.max_page_order]
    steps = Steps(reclaim, compact)
    for order in orders:
        refuse_compaction(mem, steps, gfp_of(mem, order), order)
    parts: list[Handles] = []
    left = n_pages
    try:
        for order in orders:
            asked = Asked(order, gfp_of(mem, order), node, cpu)
            count = min(left, mem.pfns.n_pages + 1) >> order  # the request that fails is the last one
            folios = allocate(mem, asked, count, steps)
            parts.append(folios[folios >= 0])
            left -= parts[-1].size << order
    finally:
        if left and parts:  # or a policy has raised
            free_pages(mem, np.concatenate(parts), cpu=cpu)
    if left:
        return None
    return DmaBuf(np.concatenate(parts), np.repeat(orders, [part.size for part in parts]), n_pages * page)


def dmabuf_free(mem: Machine, buffer: DmaBuf, *, cpu: int = 0) -> None:
    """Give a buffer back, folio by folio in its order.

    Raises
    ------
    InputError
        If it was freed before, or is none.

    References
    ----------
    drivers/dma-buf/heaps/system_heap.c: system_heap_dma_buf_release, Linux 6.12.
    """
    if not isinstance(buffer, DmaBuf):
        raise InputError(f"{buffer!r} is no dma-buf")
    free_pages(mem, buffer.folios, cpu=cpu)


def gfp_of(mem: Machine, order: int) -> Gfp:
    """Flags of the heap's requests. 6.1 still let order 4 reclaim and compact, and made compound pages of all."""
    old = "dmabuf_order_4_light" not in mem.geometry.features
    if order == ORDERS[0] or (order and not old):
        return parse_gfp(LARGE)
    text = SINGLE + "|__GFP_COMP" * old + "|__GFP_NOWARN" * (order > 0)
    return parse_gfp(text)


def cma_heap_alloc(
    mem: Machine, area: CmaArea, size: int | str, *, cma_alignment: int = CMA_ALIGNMENT, cpu: int = 0
) -> ContigOutcome:
    """A buffer of the dma-buf CMA heap: all of it in one piece, aligned to its order up to CONFIG_CMA_ALIGNMENT.

    Parameters
    ----------
    mem, area, cpu
        As of `cma_alloc`.
    size
        Bytes, or text; rounded up to whole pages.
    cma_alignment
        CONFIG_CMA_ALIGNMENT, 2 to 12.

    Raises
    ------
    InputError
        If the size is none, or as of `cma_alloc`.

    References
    ----------
    drivers/dma-buf/heaps/cma_heap.c: cma_heap_allocate, Linux 6.12.
    """
    n_pages = -(-parse_bytes(size) // mem.geometry.page_size_bytes)
    most = whole_number(cma_alignment, "cma_alignment", 2, 12, "CONFIG_CMA_ALIGNMENT")
    return cma_alloc(mem, area, n_pages, min((n_pages - 1).bit_length(), most), cpu=cpu)
