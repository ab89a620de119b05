"""Copies that others make for the migrating CPU: several threads, or DMA channels.

Threads: a CCD's memory path is full with one of them, so what counts is how many CCDs they are on. Twice as many copy
``doubling`` times as fast, up to what the socket allows: ``t = max(own / doubling**log2(n_ccds), socket)`` for 4 KiB,
``own`` being the time of the migrating CPU alone. DMA: a time by number of channels, what a folio below PMD order takes
more on each, and a fixed time a batch.

Neither is exact. No simple form meets the published tables: 1, 2, 4, 8 CCDs copy 10.6, 17.2, 29.9 and 37 GB/s, and one
DMA channel is slower with 16 and 64 KiB folios than with 4 KiB ones. scripts/reproduce_folio_size.py prints by how much
each cell is missed.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memmodel.cost.machine_parts import DmaCopy, ThreadCopy
from memmodel.cost.machines import Machine
from memmodel.cost.model import PAGE_BYTES
from memmodel.errors import InputError, one_of

__all__ = ["PLACEMENTS", "DmaChannels", "Offload", "Threads", "ccds_used", "offload_copy_ns"]

Floats = NDArray[np.float64]

PLACEMENTS = ("spread", "fill")
PMD_BYTES = 2 << 20


@dataclass(frozen=True)
class Threads:
    """Copy by several threads at once; `placement` spreads them over CCDs, or fills one after the other."""

    n_threads: ArrayLike
    placement: str = "spread"


@dataclass(frozen=True)
class DmaChannels:
    """Copy by DMA channels; `n_batches` is how often they are set to work (0 leaves their fixed time out)."""

    n_channels: ArrayLike
    n_batches: ArrayLike = 1


Offload: TypeAlias = Threads | DmaChannels


def offload_copy_ns(
    own_ns: ArrayLike, n_bytes: ArrayLike, extent_bytes: ArrayLike, machine: Machine, offload: Offload
) -> Floats:
    """Time until `n_bytes` are copied.

    Parameters
    ----------
    own_ns
        Time that the migrating CPU would take.
    n_bytes, extent_bytes
        What is copied, and how much of it a DMA channel copies at once: a folio.
    machine
        One whose migration part has ``threads``, or ``dma``.
    offload
        Who copies.

    Raises
    ------
    InputError
        If the machine has no such part, or that many threads or channels were never measured.

    References
    ----------
    Shivank Garg, "Accelerate page migration with batch copying and hardware offload", RFC V2 to V5 (2025, 2026).
    """
    part = machine.migration
    pages = np.asarray(n_bytes, np.float64) / PAGE_BYTES
    if isinstance(offload, Threads):
        if part is None or part.threads is None:
            raise InputError(f"machine {machine.name} has no migration.threads: copies by several threads are unknown")
        faster = part.threads.doubling.value ** np.log2(ccds_used(offload, part.threads))
        return np.asarray(np.maximum(np.asarray(own_ns, np.float64) / faster, pages * part.threads.socket.value))
    if part is None or part.dma is None:
        raise InputError(f"machine {machine.name} has no migration.dma: copies by DMA are unknown")
    page_ns = _channel_ns(offload, part.dma, np.asarray(extent_bytes) < PMD_BYTES)
    return np.asarray(pages * page_ns + np.asarray(offload.n_batches, np.float64) * part.dma.batch.value)


def ccds_used(offload: Threads, part: ThreadCopy) -> Floats:
    """CCDs that the threads are on.

    Raises
    ------
    InputError
        If the placement is unknown, or there is no room for so many threads, or for none.
    """
    one_of(offload.placement, PLACEMENTS, "placement")
    n = np.asarray(offload.n_threads, np.float64)
    room = part.ccd_threads.value * part.ccds.value
    bad = ~((n >= 1) & (n <= room) & (n % 1 == 0))
    if bad.any():
        raise InputError(f"{n[bad].flat[0]:g} threads; whole numbers from 1 to {room:.0f} have room")
    if offload.placement == "fill":
        return np.asarray(np.ceil(n / part.ccd_threads.value))
    return np.minimum(n, part.ccds.value)


def _channel_ns(offload: DmaChannels, part: DmaCopy, below_pmd: NDArray[np.bool_]) -> Floats:
    """Time of 4 KiB: linear in log2(channels) between the numbers that were measured."""
    counts = np.array([count for count, _ in part.channels], np.float64)
    times = np.array([number.value for _, number in part.channels])
    n = np.asarray(offload.n_channels, np.float64)
    bad = ~((n >= counts[0]) & (n <= counts[-1]))
    if bad.any():
        raise InputError(
            f"{n[bad].flat[0]:g} DMA channels; from {counts[0]:.0f} to {counts[-1]:.0f} were measured on this machine"
        )
    return np.asarray(np.interp(np.log2(n), np.log2(counts), times) + below_pmd * part.below_pmd.value / n)
