"""alloc_contig_range(): what it came to, and the ranges that a request tries one after the other."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.kernels import contig as kernels
from memmodel.kernels.contig_task import ContigCount, Task, Why
from memmodel.kernels.copying import CopyRule
from memmodel.kernels.migration import first_poisoned
from memmodel.kernels.migration_job import Count, Job
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.copying import copy_rule
from memmodel.mechanisms.migration import CALLERS, Caller, new_job, refuse_poisoned, survives_errors, targets_of
from memmodel.mechanisms.request import requested
from memmodel.mechanisms.tlb import MAX_MMS, Tlb
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import HANDLE_SLOT, NONE, FolioBit, Kind, PageFlag, ZoneType
from memmodel.state.machine import Machine

__all__ = ["Contig", "ContigOutcome", "ContigRange", "give_back", "range_of"]

CLUSTER = 32  # COMPACT_CLUSTER_MAX: from so many pages on a batch takes no more
NEVER = 1 << 62
HUGE = "GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_NOWARN|__GFP_THISNODE|__GFP_RETRY_MAYFAIL"
REASONS = {
    Why.ISOLATED: "isolated already",
    Why.CMA: "CMA pageblock",
    Why.CUT_BY_ZONE: "pageblock of two zones",
    Why.STRADDLES: "straddling compound page",
    Why.NO_TARGET: "no target",
    Why.SIGNAL: "fatal signal",
    Why.NOT_WHOLE: "free block beyond the range",
}


BY_FLAG = {
    PageFlag.SLAB: "slab",
    PageFlag.TABLE: "page table",
    PageFlag.LRU_ISOLATED: "isolated by another task",
}
BY_BITS = {
    FolioBit.WRITEBACK: "writeback",
    FolioBit.LOCKED: "locked",
    FolioBit.INACCESSIBLE: "inaccessible",
    FolioBit.HUGETLB: "hugetlb",
    FolioBit.DIRTY | FolioBit.NO_MIGRATE_FOLIO: "dirty",
}
ALL_BITS = sum(FolioBit)
COUNTS = [count.name.lower() for count in Count]
CONTIG_COUNTS = [count.name.lower() for count in ContigCount]


class ContigRange(NamedTuple):
    """Single pages in a row that somebody has got; `free_contig_range` gives them back."""

    pfn: int
    n_pages: int


@dataclass(frozen=True)
class ContigOutcome:
    """What a request for contiguous pages came to."""

    errno: int
    """0, or -4 (-EINTR), -12 (-ENOMEM), -16 (-EBUSY), -22 (-EINVAL)."""
    pages: ContigRange | None
    """What it got: the handle that is given back. None if it failed."""
    reason: str
    """What stood in the way of the last range tried: "pinned", "slab", "no target" ...; empty if nothing did."""
    where: int
    """pfn of the page that did, or -1."""
    n_attempts: int
    """Ranges tried."""
    n_isolated_blocks: int
    """Pageblocks isolated, here and below in all of them."""
    n_batches: int
    """Calls of migrate_pages()."""
    n_migrated: int
    """Base pages that moved."""
    n_failed: int
    """Base pages that did not, by try."""
    n_dropped: int
    """Base pages of clean page cache; handles of these folios are stale."""
    n_replaced: int
    """Base pages of free hugetlb folios, for which the pool got others."""
    n_freed: int
    """Base pages before and behind the range that came along and went back."""
    counts: dict[str, int]
    """Of all migrations: see `memmodel.kernels.migration_job.Count`."""

    @property
    def pfn(self) -> int:
        """First page frame number, or -1."""
        return self.pages.pfn if self.pages else -1


class Contig:
    """Ranges tried one after the other for one request."""

    def __init__(  # noqa: PLR0913 - who asks, how, and the machine's state, by keyword
        self,
        mem: Machine,
        zone: int,
        cpu: int,
        *,
        cma: bool = False,
        whole: bool = False,
        tlb: Tlb | None = None,
        fatal_signal: int | None = None,
        copies: tuple[str, str | None, str | None] = ("extent", None, None),
    ) -> None:
        self.mem, self.cpu = mem, mem.check_cpu(cpu)
        node = int(mem.state.zones[zone]["node"])
        self.rule: CopyRule = copy_rule(mem.geometry, *copies)
        self.tlb = _tlb(mem, cpu, tlb)
        room = CLUSTER + (1 << mem.geometry.max_page_order)
        self.job: Job = new_job(mem, _caller(mem, zone), node, room, self.cpu, self.rule)
        huge_zones, huge = requested(mem, parse_gfp(HUGE), 1, node, False)
        signal = NEVER if fatal_signal is None else whole_number(fatal_signal, "fatal_signal", 0, NEVER)
        self.task = Task(
            zone=np.uint64(zone),
            cpu=self.cpu,
            start=np.uint64(0),
            end=np.uint64(0),
            cma=np.uint64(cma),
            whole=np.uint64(whole),
            signal_after=np.uint64(signal),
            one_by_one=np.uint64("batched_migration" not in mem.geometry.features),
            huge=huge,
            huge_zones=huge_zones,
            counts=np.zeros(len(ContigCount), np.int64),
        )
        self.n_attempts, self.errno = 0, 0

    def go_to(self, zone: int) -> None:
        """The next ranges are of another zone."""
        node = int(self.mem.state.zones[zone]["node"])
        self.job = self.job._replace(**targets_of(self.mem, _caller(self.mem, zone), node)._asdict())
        huge_zones, _ = requested(self.mem, parse_gfp(HUGE), 1, node, False)
        self.task = self.task._replace(zone=np.uint64(zone), huge_zones=huge_zones)

    def refuse(self, first: int, end: int) -> None:
        """Refuse ranges within these rows for what the kernel would not survive, or the model does not do.

        Raises
        ------
        InputError
            If a folio in them has an error whose copy stops the machine, or, before 6.10, is larger than a pageblock.
        """
        mem = self.mem
        shift = mem.geometry.pageblock_order
        first, end = first >> shift << shift, min(-(-end >> shift) << shift, mem.pfns.n_pages)
        if mem.state.ue_lines.size and not survives_errors(mem, self.rule):
            rows, sizes = _folios(mem, first, end)
            refuse_poisoned(mem, self.rule, first_poisoned(mem.state, rows, sizes))
        if "freelist_hygiene" not in mem.geometry.features and shift < mem.geometry.max_page_order:
            _, large = kernels.folios_in(mem.state, np.uint64(first), np.uint64(end))
            if large != NONE:
                raise InputError(
                    f"pfn {int(mem.pfns.pfn(large))}: a movable folio of more than a pageblock; kernel"
                    f" {mem.geometry.kernel} migrates it before it isolates, which is not modelled"
                )

    def attempt(self, first: int, end: int) -> int:
        """alloc_contig_range() of these rows: 0 or an errno."""
        rows = np.uint64(first), np.uint64(end)
        large, _ = kernels.folios_in(self.mem.state, *rows)
        if large:
            self.mem.reserve_folios(int(large))
        self.task.counts[ContigCount.WHY] = Why.NOTHING
        task = self.task._replace(start=rows[0], end=rows[1])
        counts = self.job.counts
        before = counts.copy()
        counts[:] = 0  # /proc/vmstat gets them once
        self.errno = int(kernels.alloc_contig_range(self.mem.state, self.tlb.state, self.job, task))
        most = max(before[Count.MAX_UNMAPPED], counts[Count.MAX_UNMAPPED])
        counts += before
        counts[Count.MAX_UNMAPPED] = most
        self.n_attempts += 1
        return self.errno

    def outcome(self, errno: int, pages: ContigRange | None) -> ContigOutcome:
        """What all attempts together came to."""
        counts = dict(zip(COUNTS, self.job.counts.tolist(), strict=True))
        done = dict(zip(CONTIG_COUNTS, self.task.counts.tolist(), strict=True))
        why = Why(done["why"]) if errno else Why.NOTHING
        return ContigOutcome(
            errno=errno,
            pages=pages,
            reason=_reason(self.mem, why, done["where"]),
            where=int(self.mem.pfns.pfn(done["where"])) if why != Why.NOTHING else -1,
            n_attempts=self.n_attempts,
            n_isolated_blocks=done["n_isolated_blocks"],
            n_batches=done["n_batches"],
            n_migrated=counts["nr_succeeded"],
            n_failed=counts["nr_failed"],
            n_dropped=done["n_dropped"],
            n_replaced=done["n_replaced"],
            n_freed=done["n_freed"],
            counts=counts,
        )


def _caller(mem: Machine, zone: int) -> Caller:
    """contig_range, with targets in HighMem and ZONE_MOVABLE for pages that lie there (alloc_migration_target)."""
    asked = CALLERS["contig_range"]
    if int(mem.state.zones["zone_type"][zone]) not in (int(ZoneType.HIGHMEM), int(ZoneType.MOVABLE)):
        return asked
    return Caller(asked.mode, asked.reason, f"{asked.gfp}|__GFP_HIGHMEM", drains_lru=True)


def _tlb(mem: Machine, cpu: int, tlb: Tlb | None) -> Tlb:
    """The user's, if it has all address spaces that map folios; else one where only this CPU has translations.

    Raises
    ------
    InputError
        If it is of another machine or leaves one out.
    """
    if tlb is None:
        known = mem.requests.get(("contig", cpu))  # making it takes as long as ten allocations
        if known is None:
            known = mem.requests["contig", cpu] = Tlb(mem.geometry, mem.cpus, [[cpu]] * MAX_MMS)
        return known
    if tlb.cpus != mem.cpus:
        raise InputError(f"tlb is of {tlb.cpus} CPUs, this machine has {mem.cpus}")
    used = mem.state.folios[: int(mem.state.slots[1])]
    owners = int(np.bitwise_or.reduce(used["mms"][used["index"] != NONE], initial=0))
    if owners >> len(tlb.state.masks):
        raise InputError(
            f"a folio is mapped by address space {owners.bit_length() - 1}; tlb has {len(tlb.state.masks)}"
        )
    return tlb


def _folios(mem: Machine, first: int, end: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """First rows and sizes of the folios in use, of which a copy may be made."""
    states = mem.state.pages["state"][first:end]
    heads = np.flatnonzero(states >> 4 == Kind.USED)
    flags = mem.state.pages["pg_flags"][first:end][heads]
    slots = mem.state.pages["next"][first:end][heads].astype(np.int64) & HANDLE_SLOT
    there = slots < int(mem.state.slots[1])
    huge = np.zeros(heads.size, np.bool_)
    huge[there] = mem.state.folios["bits"][slots[there]] & FolioBit.HUGETLB != 0
    moves = (flags & (PageFlag.LRU | PageFlag.LRU_BATCH) != 0) | huge
    rows = heads[moves]
    return (rows + first).astype(np.uint64), np.uint64(1) << (states[rows] & 15).astype(np.uint64)


def _reason(mem: Machine, why: Why, row: int) -> str:
    """What stood in the way, in words."""
    if why == Why.NOTHING:
        return ""
    if why in REASONS:
        return REASONS[why]
    while why == Why.UNMOVABLE and mem.state.pages["state"][row] >> 4 == Kind.TAIL:
        row -= 1
    return _kind_of_page(mem, row) or ("LRU batch" if why == Why.UNMOVABLE else "did not move")


def _kind_of_page(mem: Machine, row: int) -> str:
    """Why a page neither is free nor moves; nothing if it is on its way to an LRU list."""
    page = mem.state.pages[row]
    flags, kind = PageFlag(int(page["pg_flags"])), Kind(int(page["state"]) >> 4)
    if kind == Kind.HWPOISON or flags & PageFlag.HWPOISON:
        return "hwpoison"
    if kind != Kind.USED:
        return "tail of a compound page" if kind == Kind.TAIL else kind.name.lower()
    handle = int(mem.handles(row)[0])
    bits = FolioBit(int(mem.state.folios["bits"][handle & HANDLE_SLOT]) & ALL_BITS) if handle >= 0 else FolioBit(0)
    size = np.array([1 << (int(page["state"]) & 15)], np.uint64)
    names = [name for flag, name in BY_FLAG.items() if flags & flag]
    names += ["pinned"] * (int(page["refcount"]) > 1)
    names += [name for mask, name in BY_BITS.items() if bits & mask == mask]
    names += ["latent error"] * (first_poisoned(mem.state, np.array([row], np.uint64), size) >= 0)
    names.append("" if flags & (PageFlag.LRU | PageFlag.LRU_BATCH) else "unmovable")
    return names[0]


def range_of(pages: ContigRange) -> tuple[int, int]:
    """First pfn and number of pages of a range.

    Raises
    ------
    InputError
        If it is none.
    """
    if not isinstance(pages, tuple) or len(pages) != len(ContigRange._fields):
        raise InputError(f"{pages!r} is no range of pages: (pfn, number of pages)")
    return whole_number(pages[0], "pfn", 0, NEVER), whole_number(pages[1], "n_pages", 1, NEVER)


def give_back(mem: Machine, first: int, n_pages: int, cpu: np.uint64) -> None:
    """free_contig_range() of rows.

    Raises
    ------
    InputError
        If one of them is no single page in use; nothing has been freed then.
    """
    bad = kernels.free_contig_range(mem.state, np.uint64(first), np.uint64(first + n_pages), cpu)
    if bad != NONE:
        raise InputError(f"pfn {int(mem.pfns.pfn(bad))} is not in use as a single page of a contiguous range")
