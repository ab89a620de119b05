"""The optional part of a machine about migration: what the move of folios costs besides the copy."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from memmodel.cost.machine_file import Number

__all__ = ["DmaCopy", "Migration", "ThreadCopy", "migration_part"]


@dataclass(frozen=True)
class ThreadCopy:
    """How fast several threads copy: a CCD is full with one of them, the socket caps them all.

    Attributes
    ----------
    ccd_threads, ccds
        Threads that a CCD has room for, and CCDs that threads are spread over.
    socket
        Time of 4 KiB that no number of threads comes under.
    doubling
        How much faster twice as many CCDs copy.
    """

    ccd_threads: Number
    ccds: Number
    socket: Number
    doubling: Number

    def as_dict(self) -> dict[str, Any]:
        """Nested dict of the TOML table."""
        return {field.name: getattr(self, field.name).as_dict() for field in fields(self)}


@dataclass(frozen=True)
class DmaCopy:
    """How fast DMA channels copy.

    Attributes
    ----------
    batch
        Time that a batch takes whatever its size.
    below_pmd
        What 4 KiB of a folio below PMD order take in addition on one channel.
    channels
        Time of 4 KiB of PMD-sized folios, by number of channels.
    """

    batch: Number
    below_pmd: Number
    channels: tuple[tuple[int, Number], ...]

    def as_dict(self) -> dict[str, Any]:
        """Nested dict of the TOML table."""
        channels = {str(count): number.as_dict() for count, number in self.channels}
        return {"batch": self.batch.as_dict(), "below_pmd": self.below_pmd.as_dict(), "channels": channels}


@dataclass(frozen=True)
class Migration:
    """What the move of folios costs besides the copy and the folio overhead.

    Attributes
    ----------
    call
        Of a call of migrate_pages().
    unmap_folio, unmap_pte, remap_pte
        To unmap a folio and each PTE, and to map a PTE again.
    flush_full, flush_page
        Of a flush of everything and of one page on the migrating CPU.
    flush_request, flush_receiver
        An IPI round of r receivers takes ``flush_request + r * flush_receiver``.
    flush_broadcast
        Of a broadcast invalidation (INVLPGB), in place of the round.
    ipi_handler
        Time that a receiver loses to an IPI.
    copy_limit
        Copy rate that the machine does not exceed.
    reclaim_slowdown
        How much longer a copy takes in reclaim, beside the thread that fills the memory.
    threads, dma
        Copy offload.
    """

    call: Number
    unmap_folio: Number
    unmap_pte: Number
    remap_pte: Number
    flush_full: Number
    flush_page: Number
    flush_request: Number
    flush_receiver: Number
    flush_broadcast: Number | None = None
    ipi_handler: Number | None = None
    copy_limit: Number | None = None
    reclaim_slowdown: Number | None = None
    threads: ThreadCopy | None = None
    dma: DmaCopy | None = None

    def as_dict(self) -> dict[str, Any]:
        """Nested dict of the TOML table."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.as_dict() for name, value in values.items() if value is not None}


def migration_part(parsed: Mapping[str, Any]) -> Migration:
    """The part from what `parse_machine` found."""
    found = dict(parsed)
    for key, part in (("threads", ThreadCopy), ("dma", DmaCopy)):
        if key in found:
            found[key] = part(**found[key])
    return Migration(**found)
