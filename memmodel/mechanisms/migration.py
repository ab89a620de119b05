"""migrate_pages(): folios to other places, with the flushes, copies and failures on the way."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, one_of
from memmodel.kernels import copying, lru
from memmodel.kernels import migration as kernels
from memmodel.kernels.compact_control import Compact, control_dtype, said_dtype
from memmodel.kernels.copying import CopyRule
from memmodel.kernels.migration_job import Count, Errno, Job, List, Mode, Step
from memmodel.kernels.page_alloc import Request
from memmodel.kernels.tlb import TlbCount
from memmodel.mechanisms.buddy import as_handles, stale, whole_number
from memmodel.mechanisms.copying import STREAM_FROM_BYTES, copy_rule
from memmodel.mechanisms.request import requested
from memmodel.mechanisms.tlb import Tlb
from memmodel.sources.gfp import COMPOSITES, Gfp, parse_gfp
from memmodel.state.layout import HANDLE_SLOT, NONE
from memmodel.state.machine import Handles, Machine

__all__ = ["CALLERS", "MODES", "Caller", "MigrationOutcome", "lru_cache_disabled", "migrate_pages", "migration_job"]

NO_COMPACTION = Compact(
    np.zeros(0, control_dtype).view(np.recarray), np.zeros(0, np.uint64), np.zeros(0, said_dtype).view(np.recarray)
)
MODES = ("async", "sync_light", "sync")


@dataclass(frozen=True)
class Caller:
    """How one of the kernel's callers asks for migration."""

    mode: str
    reason: str
    """As the tracepoints print it."""
    gfp: str
    """Of targets that are single pages."""
    drains_lru: bool = False
    """lru_cache_disable(): all LRU-add batches are emptied, and bypassed meanwhile."""
    memalloc: bool = False
    """PF_MEMALLOC: no waiting for locks."""
    splits: bool = True
    """Whether a large folio that finds no target is split."""
    keeps_sources: bool = False
    """Whether the pages that are left stay in use, as the caller's."""


NO_RECLAIM = "__GFP_IO|__GFP_FS|__GFP_HARDWALL|__GFP_HIGHMEM|__GFP_MOVABLE"  # GFP_HIGHUSER_MOVABLE & ~__GFP_RECLAIM
ON_NODE = "GFP_HIGHUSER_MOVABLE|__GFP_THISNODE"
OFFLINING = "GFP_USER|__GFP_MOVABLE|__GFP_RETRY_MAYFAIL"
QUIETLY = f"{NO_RECLAIM}|__GFP_NOMEMALLOC|__GFP_NOWARN"
CALLERS = {
    "move_pages": Caller("sync", "syscall_or_cpuset", ON_NODE, drains_lru=True),
    "migrate_pages": Caller("sync", "syscall_or_cpuset", ON_NODE, drains_lru=True),
    "cpuset": Caller("sync", "syscall_or_cpuset", ON_NODE, drains_lru=True),
    "mbind": Caller("sync", "mempolicy_mbind", ON_NODE, drains_lru=True),
    "numa_balancing": Caller("async", "numa_misplaced", f"{QUIETLY}|__GFP_NORETRY|__GFP_THISNODE", splits=False),
    "demotion": Caller("async", "demotion", f"{QUIETLY}|GFP_NOWAIT|__GFP_THISNODE", memalloc=True),
    "compaction": Caller("async", "compaction", NO_RECLAIM),
    "contig_range": Caller("sync", "contig_range", OFFLINING, drains_lru=True),
    "memory_failure": Caller("sync", "memory_failure", OFFLINING, keeps_sources=True),
    "memory_hotplug": Caller("sync", "memory_hotplug", OFFLINING, drains_lru=True),
    "longterm_pin": Caller("sync", "longterm_pin", "GFP_USER|__GFP_MOVABLE|__GFP_NOWARN", drains_lru=True),
    "damon": Caller("async", "damon", f"{QUIETLY}|GFP_NOWAIT|__GFP_THISNODE"),
}
"""Callers by name: mode, reason and gfp flags as in 6.12."""


class Targets(NamedTuple):
    """Where targets come from, as a `Job` has it."""

    zonelist: npt.NDArray[np.uint64]
    small: Request
    large_zonelist: npt.NDArray[np.uint64]
    large: Request


@dataclass(frozen=True)
class MigrationOutcome:
    """What one call of migrate_pages() did."""

    rc: int
    """0: nothing is left on the caller's list; else folios that did not move, or -12 (-ENOMEM)."""
    nr_succeeded: int
    """Base pages, here and in nr_failed."""
    nr_failed: int
    nr_thp_succeeded: int
    """Folios of PMD order, here and in the next two."""
    nr_thp_failed: int
    nr_thp_split: int
    nr_split: int
    """Large folios that were split."""
    n_not_isolated: int
    """Folios on no LRU list: the system call migrate_pages(2) adds them to what it returns (6.12; 6.1 does not)."""
    n_flushes: int
    """Flush operations: local ones, and broadcasts."""
    n_ipis: int
    """CPUs interrupted, one by one."""
    status: npt.NDArray[np.int64]
    """By folio given: 0 moved, 2 not tried, 3 split, or the last errno: -11, -12, -16, -38, -95, -133."""
    counts: dict[str, int]
    """By phase: see `memmodel.kernels.migration_job.Count`."""
    flushes: dict[str, int]
    """By kind: see `memmodel.kernels.tlb.TlbCount`."""
    parts: Handles
    """Folios that splitting made, the pages behind the first of each; int64. -1: freed, for nobody else held it."""
    part_of: npt.NDArray[np.int64]
    """Place of the folio that each came from."""
    part_status: npt.NDArray[np.int64]
    """As `status`, by part."""
    mode: str
    reason: str

    def trace_line(self) -> str:
        """The tracepoint mm_migrate_pages, as 6.3 and later print it."""
        numbers = " ".join(
            f"{name}={getattr(self, name)}"
            for name in ("nr_succeeded", "nr_failed", "nr_thp_succeeded", "nr_thp_failed", "nr_thp_split", "nr_split")
        )
        return f"mm_migrate_pages: {numbers} mode=MIGRATE_{self.mode.upper()} reason={self.reason}"


def migrate_pages(  # noqa: PLR0913 - what, where to, who asks, and the machine's state, by keyword
    mem: Machine,
    folios: npt.ArrayLike,
    node: int,
    *,
    caller: str = "move_pages",
    mode: str | None = None,
    batch: int | None = None,
    cpu: int = 0,
    cpumask: Sequence[int] | None = None,
    lazy: Sequence[int] = (),
    tlb: Tlb | None = None,
    copy_batch: str = "extent",
    preempt: str | None = None,
    engine: str | None = None,
) -> MigrationOutcome:
    """Move folios to a node, as one list.

    A folio that moves keeps its handle. One that cannot stays where it is, on its LRU list again. Folios on no LRU list
    are not taken on, with status -EBUSY; hugetlb ones are.

    Parameters
    ----------
    mem
        Changed in place; pgmigrate_* and thp_migration_* count. Bytes move along where it has contents.
    folios
        Handles, shape ``(folios,)``, in the order of the list; none twice.
    node
        Where to.
    caller
        One of `CALLERS`: mode, reason, gfp flags of targets, and what is done to LRU batches before. "memory_failure",
        which keeps the pages that the folios leave, is for `soft_offline_page` alone.
    mode
        "async", "sync_light" or "sync", in place of the caller's.
    batch
        Base pages that make a list full; HPAGE_PMD_NR if not given.
    cpu
        CPU that migrates.
    cpumask, lazy
        CPUs that may hold translations of the (one) address space, and those that idle; `cpu` alone if not given.
    tlb
        In place of these two: several address spaces, or a state that goes on from call to call. Changed in place.
    copy_batch, preempt, engine
        As of `copy_rule`: how a folio is copied, and what becomes of an error. One that the engine does not survive is
        refused.

    Returns
    -------
    Counts, and each folio's status.

    Raises
    ------
    InputError
        If a handle is stale or given twice, a name or number is none, the caller is "memory_failure", or an error would
        stop the machine; nothing has been moved then.

    Notes
    -----
    Locks that other tasks hold are let go once this one sleeps on them, and writeback ends once it is waited for. What
    else stands in the way (`set_folio`) stays for the whole call. Targets come from the free lists: a node without free
    pages gives -ENOMEM, for reclaim and compaction on it are not part of this.

    References
    ----------
    mm/migrate.c: migrate_pages, Linux 6.12.117; before 6.3 (feature batched_migration) as in 6.1.192.
    """
    asked = CALLERS[one_of(caller, CALLERS, "caller")]
    if asked.keeps_sources:
        raise InputError(
            f"caller {caller} keeps the pages that folios leave; soft_offline_page moves and accounts for them"
        )
    if mode is not None:
        asked = replace(asked, mode=one_of(mode, MODES, "mode"))
    copies = (copy_batch, preempt, engine)
    return move_folios(
        mem, folios, node, asked, batch=batch, cpu=cpu, cpumask=cpumask, lazy=lazy, tlb=tlb, copies=copies
    )


def move_folios(  # noqa: PLR0913 - as migrate_pages
    mem: Machine,
    folios: npt.ArrayLike,
    node: int,
    asked: Caller,
    *,
    batch: int | None = None,
    cpu: int = 0,
    cpumask: Sequence[int] | None = None,
    lazy: Sequence[int] = (),
    tlb: Tlb | None = None,
    copies: tuple[str, str | None, str | None] = ("extent", None, None),
) -> MigrationOutcome:
    """migrate_pages() for any caller of the kernel."""
    on_cpu = mem.check_cpu(cpu)
    handles = as_handles(folios)
    rows = np.empty((2, handles.size), np.uint64)
    bad = kernels.rows_of(mem.state, handles, rows[0], rows[1])
    if bad >= 0:
        raise stale(handles[bad])
    if tlb is None:
        tlb = Tlb(mem.geometry, mem.cpus, [[cpu] if cpumask is None else cpumask], lazy=lazy)
    elif cpumask is not None or lazy:
        raise InputError("cpumask and lazy belong to a call without tlb")
    job = _job(mem, asked, node, rows, on_cpu, batch, copies)
    check_owners(mem, handles, tlb)
    before = tlb.state.counts.copy()
    with lru_cache_disabled(mem) if asked.drains_lru else nullcontext():
        rc = kernels.migrate_folios(mem.state, tlb.state, job, "batched_migration" not in mem.geometry.features)
    return _outcome(mem, job, rc, tlb.state.counts - before, handles.size, asked)


@contextmanager
def lru_cache_disabled(mem: Machine) -> Iterator[None]:
    """All LRU-add batches are emptied, and bypassed until the end (lru_cache_disable, lru_cache_enable)."""
    sizes = mem.state.lru["size"].copy()
    lru.set_lru_batch(mem.state, lru.BYPASSED)
    try:
        yield
    finally:
        mem.state.lru["size"] = sizes


def _job(
    mem: Machine,
    asked: Caller,
    node: int,
    rows: npt.NDArray[np.uint64],
    cpu: np.uint64,
    batch: int | None,
    copies: tuple[str, str | None, str | None],
) -> Job:
    """The work of one call, with room for all pages of all folios."""
    rule = copy_rule(mem.geometry, *copies)
    indices, orders = rows
    pages = np.uint64(1) << orders
    if not survives_errors(mem, rule):
        refuse_poisoned(mem, rule, kernels.first_poisoned(mem.state, indices, pages))
    n_pages = int(pages.sum())
    room = n_pages if np.any(orders) else indices.size
    if room > indices.size:
        mem.reserve_folios(room - indices.size)
    stream = bool(mem.state.contents.size) and n_pages << mem.geometry.page_shift >= STREAM_FROM_BYTES
    batch_pages = max_batch(mem) if batch is None else whole_number(batch, "batch", 1, mem.pfns.n_pages)
    job = new_job(mem, asked, node, room, cpu, rule, stream=stream, batch_pages=batch_pages)
    job.rows[: indices.size] = indices
    job.sizes[len(List)] = indices.size
    return job


def max_batch(mem: Machine) -> int:
    """NR_MAX_BATCHED_MIGRATION: a huge page, 512 without CONFIG_TRANSPARENT_HUGEPAGE."""
    return 1 << mem.geometry.hpage_pmd_order if mem.geometry.transparent_hugepage else 512


def survives_errors(mem: Machine, rule: CopyRule) -> bool:
    """Whether an error in what migration copies does not stop the machine."""
    return bool(rule.recovers) and "migration_mc_copy" in mem.geometry.features


def refuse_poisoned(mem: Machine, rule: CopyRule, row: int) -> None:
    """Refuse a call that would copy the page at this row; -1: there is none.

    Raises
    ------
    InputError
        Naming the page.
    """
    if row >= 0:
        why = f"kernel {mem.geometry.kernel}" if rule.recovers else "engine"
        raise InputError(f"pfn {int(mem.pfns.pfn(row))}: copying its error would stop the machine ({why})")


def refuse_latent(mem: Machine) -> None:
    """Refuse to move anything at all while a page has a latent error whose copy the kernel does not survive.

    Raises
    ------
    InputError
        If there is one: it need not lie in what is moved first.
    """
    if mem.state.ue_lines.size and not survives_errors(mem, copy_rule(mem.geometry)):
        raise InputError(f"copying a latent error would stop the machine (kernel {mem.geometry.kernel})")


def new_job(  # noqa: PLR0913 - who asks, where, and how
    mem: Machine,
    asked: Caller,
    node: int,
    room: int,
    cpu: np.uint64,
    rule: CopyRule,
    *,
    stream: bool = False,
    batch_pages: int | None = None,
) -> Job:
    """Work for migrate_pages() with no folio yet, and room for so many."""
    targets = targets_of(mem, asked, node)
    return Job(
        np.zeros(room, np.uint64),
        np.zeros(room, np.uint64),
        np.zeros(room, np.uint64),
        np.zeros(room, np.int64),
        np.full(room, -1, np.int64),
        np.full(room, Errno.NOT_TRIED, np.int64),
        np.zeros((len(List), room), np.uint64),
        np.zeros(len(List) + 1, np.int64),
        np.zeros(len(Count), np.int64),
        np.zeros(len(Step), np.int64),
        np.zeros((2, copying.LANES if stream else 0), np.uint64),
        *targets,
        rule,
        cpu,
        np.uint64(Mode[asked.mode.upper()]),
        np.uint64(max_batch(mem) if batch_pages is None else batch_pages),
        np.uint64(mem.geometry.hpage_pmd_order),
        np.uint64(mem.geometry.transparent_hugepage),
        np.uint64(asked.splits),
        np.uint64("split_partially_mapped" in mem.geometry.features),
        np.uint64(asked.reason == "longterm_pin"),
        np.uint64(asked.keeps_sources),
        np.uint64(asked.memalloc),
        NO_COMPACTION,
    )


def migration_job(mem: Machine, asked: Caller, room: int, cpu: np.uint64, compact: Compact) -> Job:
    """A job for many calls, each of folios with at most `room` pages in all, whose targets compaction finds."""
    node = int(mem.state.zones["node"][0])
    return new_job(mem, asked, node, room, cpu, copy_rule(mem.geometry, "extent"))._replace(compact=compact)


def targets_of(mem: Machine, asked: Caller, node: int) -> Targets:
    """Zones and requests of targets: single pages, and larger folios, which wake no kswapd (alloc_migration_target)."""
    small = parse_gfp(asked.gfp)
    large = Gfp(small.flags - COMPOSITES["__GFP_RECLAIM"] | COMPOSITES["GFP_TRANSHUGE"])
    return Targets(*requested(mem, small, 0, node, True), *requested(mem, large, 1, node, True))


def check_owners(mem: Machine, handles: Handles, tlb: Tlb) -> None:
    """Refuse folios of address spaces that the caller's masks leave out."""
    if tlb.cpus != mem.cpus:
        raise InputError(f"tlb is of {tlb.cpus} CPUs, this machine has {mem.cpus}")
    n_mms = len(tlb.state.masks)
    owners = np.bitwise_or.reduce(mem.state.folios["mms"][handles & HANDLE_SLOT], initial=0)
    if int(owners) >> n_mms:
        raise InputError(f"a folio is mapped by address space {int(owners).bit_length() - 1}; tlb has {n_mms}")


def _outcome(
    mem: Machine, job: Job, rc: int, flushes: npt.NDArray[np.int64], n_given: int, asked: Caller
) -> MigrationOutcome:
    counts = {count.name.lower(): int(job.counts[count]) for count in Count}
    kinds = {count.name.lower(): int(flushes[count]) for count in TlbCount}
    n_used = int(job.sizes[len(List)])
    rows = job.rows[n_given:n_used]
    parts, live = np.full(rows.size, -1), rows != NONE
    parts[live] = mem.handles(rows[live])
    return MigrationOutcome(
        rc=int(rc),
        nr_succeeded=counts["nr_succeeded"],
        nr_failed=counts["nr_failed"],
        nr_thp_succeeded=counts["nr_thp_succeeded"],
        nr_thp_failed=counts["nr_thp_failed"],
        nr_thp_split=counts["nr_thp_split"],
        nr_split=counts["nr_split"],
        n_not_isolated=counts["n_not_isolated"],
        n_flushes=kinds["local_mm"] + kinds["local_batch"] + kinds["broadcasts"],
        n_ipis=kinds["ipis"],
        status=job.status[:n_given],
        counts=counts,
        flushes=kinds,
        parts=parts,
        part_of=job.parents[n_given:n_used],
        part_status=job.status[n_given:n_used],
        mode=asked.mode,
        reason=asked.reason,
    )
