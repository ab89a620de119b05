"""The catalogue: every variable that a memmodel Dataset may hold, named, typed and explained once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from memmodel.errors import InputError

__all__ = ["VARIABLES", "PointStatus", "Variable", "catalogue", "variable"]


class PointStatus(IntEnum):
    """What became of one point of a sweep."""

    OK = 0
    REFUSED_INPUT = 1  # an InputError at this point alone
    INVARIANT_BROKEN = 2  # the model contradicted a law of physical memory
    ERROR = 3  # anything else


@dataclass(frozen=True)
class Variable:
    """One named quantity of a Dataset."""

    name: str
    """The kernel's word where it has one; a quantity ends in its unit, a count begins with ``n_``."""
    dtype: str
    """NumPy's name of the type; counts are ``float64``, so that a failed point can be NaN; ``str`` is text."""
    units: str
    """In the spelling of UDUNITS, ``"1"`` where there is none."""
    long_name: str
    """What an axis of a plot would say."""
    doc: str
    """One or two sentences for who meets the number without having run the study."""
    dims: tuple[str, ...] = ()
    """Dimensions of its own; those of a sweep are added by the sweep."""
    flags: tuple[str, ...] = ()
    """For an integer code: the meanings of 0, 1, 2 ..., one word each."""


def catalogue(*groups: Iterable[Variable]) -> Mapping[str, Variable]:
    """Read-only mapping of name to variable.

    Raises
    ------
    InputError
        If a name is registered twice.
    """
    by_name: dict[str, Variable] = {}
    for entry in (entry for group in groups for entry in group):
        if entry.name in by_name:
            raise InputError(f"variable {entry.name!r} is registered twice")
        by_name[entry.name] = entry
    return MappingProxyType(by_name)


def variable(name: str) -> Variable:
    """The catalogue's entry for `name`.

    Raises
    ------
    InputError
        If no variable of that name is registered.
    """
    if name not in VARIABLES:
        raise InputError(f"variable {name!r} is not registered in memmodel/results/variables.py")
    return VARIABLES[name]


_SWEEP = (
    Variable(
        "status",
        "int8",
        "1",
        "outcome of the point",
        "0 where the point was computed; otherwise the other variables are NaN there and this says why.",
        flags=tuple(code.name.lower() for code in PointStatus),
    ),
    Variable("case", "int64", "1", "listed case", "Position of the point in the list of cases.", ("case",)),
    Variable(
        "replicate",
        "int64",
        "1",
        "replicate",
        "Repetition of the same point with fresh random numbers.",
        ("replicate",),
    ),
)

_FOLIO_COPY = (
    Variable("throughput_gib_per_s", "float64", "GiB s-1", "copy rate", "Bytes moved over the time that it took."),
    Variable("time_total_ns", "float64", "ns", "time in all", "From the first folio to the last, overheads included."),
    Variable("time_copy_ns", "float64", "ns", "time copying", "The part of the time spent inside the copy routine."),
    Variable(
        "time_core_ns", "float64", "ns", "time bound by the core", "What the instructions of the copy alone would take."
    ),
    Variable(
        "time_memory_ns",
        "float64",
        "ns",
        "time bound by memory",
        "What the transfer between the two memories alone would take.",
    ),
    Variable(
        "time_folio_overhead_ns",
        "float64",
        "ns",
        "time outside the copy",
        "Per-folio work around the copy: calls, locks, page table changes.",
    ),
    Variable("n_calls", "float64", "1", "calls of the copy routine", "How often the copy routine was entered."),
    Variable("n_resched", "float64", "1", "points of rescheduling", "How often cond_resched() was reached."),
    Variable(
        "worst_nonpreemptible_ns",
        "float64",
        "ns",
        "longest time without rescheduling",
        "The longest time for which no other task could have run on this CPU.",
    ),
    Variable(
        "longest_stretch_bytes",
        "float64",
        "byte",
        "longest stretch without rescheduling",
        "Most bytes copied between two chances to reschedule.",
    ),
    Variable("folios_moved", "float64", "1", "folios moved", "Folios whose copy succeeded."),
    Variable("folios_failed", "float64", "1", "folios failed", "Folios whose copy met an uncorrectable error."),
    Variable("folios_failed_share", "float64", "1", "share of folios failed", "folios_failed over all folios tried."),
    Variable("bytes_moved", "float64", "byte", "bytes moved", "Bytes of the folios whose copy succeeded."),
    Variable(
        "queue_dropped",
        "float64",
        "1",
        "errors dropped",
        "Errors lost because the CPU's memory_failure queue of 16 was full.",
    ),
    Variable(
        "panicked",
        "float64",
        "1",
        "machine panicked",
        "1 where an error met an engine that cannot survive it: the copy ended there.",
    ),
    Variable("n_errors", "float64", "1", "poisoned lines", "64-byte lines that were given a latent hardware error."),
    Variable("alloc_failed", "float64", "1", "failed allocations", "Folios for which no target could be allocated."),
    Variable(
        "calibrated",
        "int8",
        "1",
        "inside the measured range",
        "1 where the machine's costs come from measurements that span this extent and this size of folio, 0 where they "
        "are extrapolated (and at a failed point).",
        flags=("extrapolated", "measured"),
    ),
)

_SNAPSHOT = (
    Variable("zone", "str", "1", "zone", "Node and name of the zone: 0:Normal.", ("zone",)),
    Variable("order", "int64", "1", "order", "Order of a block of 2**order pages.", ("order",)),
    Variable("nr_free", "float64", "1", "free blocks", "Free blocks of each order (nr_free).", ("zone", "order")),
    Variable("free_bytes", "float64", "byte", "free memory", "Memory on the zone's free lists.", ("zone",)),
    Variable("managed_pages", "float64", "1", "managed pages", "Pages that the buddy allocator manages.", ("zone",)),
    Variable(
        "largest_order", "float64", "1", "largest free order", "Order of the largest free block; NaN: none.", ("zone",)
    ),
    Variable(
        "extfrag_index",
        "float64",
        "1",
        "fragmentation index",
        "Would a failure at this order be for want of memory (towards 0) or for fragmentation (towards 1); "
        "-1: it would not fail.",
        ("zone", "order"),
    ),
    Variable(
        "unusable_index",
        "float64",
        "1",
        "unusable free space index",
        "Share of the free memory that is in blocks too small for a request of this order.",
        ("zone", "order"),
    ),
)

_FRAGMENTATION = (
    Variable("pageblock_order", "float64", "1", "pageblock order", "Order of a pageblock, as the limit leaves it."),
    Variable("free_pages", "float64", "1", "free pages", "Pages on the free lists of the machine."),
    Variable("pcp_pages", "float64", "1", "pages on per-CPU lists", "Free pages that no index counts."),
    *(
        Variable(
            f"free_pages_{name}", "float64", "1", f"free {name} pages", f"Pages of the zone on lists of type {name}."
        )
        for name in ("unmovable", "movable", "reclaimable")
    ),
    *(
        Variable(
            f"free_pages_{name}_at_order",
            "float64",
            "1",
            f"free {name} pages of the order",
            f"Pages of the zone in free blocks of type {name} and of just this order.",
        )
        for name in ("unmovable", "movable", "reclaimable")
    ),
    Variable(
        "unusable_free_index",
        "float64",
        "1e-3",
        "unusable free space index",
        "Share of the zone's free memory that is in blocks too small for a request of this order, in thousandths.",
    ),
    Variable(
        "fragmentation_index",
        "float64",
        "1e-3",
        "fragmentation index",
        "Would a failure at this order be for want of memory (towards 0) or for fragmentation (towards 1000); "
        "-1000: it would not fail.",
    ),
    Variable(
        "extfrag_for_order",
        "float64",
        "percent",
        "external fragmentation",
        "Share of the zone's free memory that is in blocks below this order.",
    ),
    Variable(
        "fragmentation_score_node",
        "float64",
        "percent",
        "fragmentation score of the node",
        "Proactive compaction of the node starts when this is above its high mark, 90 by default.",
    ),
    *(
        Variable(f"n_pageblocks_{name}", "float64", "1", f"{name} pageblocks", f"Pageblocks {doc}.")
        for name, doc in (
            ("free", "in which nothing is used"),
            ("movable", "in which all that is used is on LRU lists"),
            ("unmovable", "in which nothing that is used is on an LRU list"),
            ("mixed", "in which used pages of both sorts lie"),
        )
    ),
    Variable(
        "thp_success_share",
        "float64",
        "1",
        "share of THPs that came",
        "Share of the THP requests at the end that succeeded without compaction.",
    ),
    Variable("n_requests", "float64", "1", "requests", "Requests of the load, failed ones among them."),
    Variable("n_requests_failed", "float64", "1", "failed requests", "Requests of the load that found no page."),
    Variable("settled", "float64", "1", "level reached", "1 where every workload of the mix was at its level last."),
)

_DEMOTION = (
    Variable(
        "kswapd_ms_per_gib",
        "float64",
        "ms GiB-1",
        "kswapd's CPU time a GiB",
        "CPU time of kswapd over what it demoted; NaN where that is nothing.",
    ),
    Variable(
        "direct_share",
        "float64",
        "1",
        "share of direct reclaim",
        "Share of the demoted THPs that the writer demoted itself.",
    ),
    Variable(
        "direct_share_fluid",
        "float64",
        "1",
        "share of direct reclaim in the steady state",
        "The same in closed form, for a run that never ends.",
    ),
    Variable("allocstall", "float64", "1", "stalls", "Allocations that had to reclaim: one THP demoted by each."),
    Variable("pgdemote_kswapd", "float64", "1", "pages demoted by kswapd", "4 KiB pages of the THPs."),
    Variable("pgdemote_direct", "float64", "1", "pages demoted by the writer", "4 KiB pages of the THPs."),
    Variable("time_kswapd_ns", "float64", "ns", "kswapd's CPU time", "While it demotes; it sleeps otherwise."),
    Variable("time_stalled_ns", "float64", "ns", "time in direct reclaim", "The part of the writer's time so spent."),
    Variable(
        "time_to_first_stall_ns", "float64", "ns", "time to the first stall", "From the start; NaN where none comes."
    ),
    Variable("n_kswapd_wakes", "float64", "1", "runs of kswapd", "How often the low watermark woke it."),
)

_CLEAR_PAGES = (
    Variable("time_clear_ns", "float64", "ns", "time clearing", "The part of the time spent in clear_pages()."),
    Variable("time_fault_ns", "float64", "ns", "time of faults", "What the folios' faults take besides."),
)

_MIGRATION = (
    Variable("nr_succeeded", "float64", "1", "pages moved", "Base pages that moved."),
    Variable("nr_failed", "float64", "1", "pages not moved", "Base pages of folios that did not."),
    Variable("n_batches", "float64", "1", "batches", "Lists of folios unmapped together, one flush each."),
    Variable("n_flushes", "float64", "1", "TLB flushes", "Those on the migrating CPU, and broadcasts."),
    Variable("n_flush_requests", "float64", "1", "flushes that ask others", "Those that go to other CPUs too."),
    Variable("n_ipis", "float64", "1", "TLB flush IPIs", "Interrupts received for them, all CPUs together."),
    Variable("n_ptes", "float64", "1", "migration PTEs", "PTEs replaced by migration entries; a THP's PMD is none."),
    Variable("pages_per_s", "float64", "s-1", "pages a second", "Base pages moved over the time that it took."),
    Variable("time_call_ns", "float64", "ns", "time of calls", "Fixed time of migrate_pages()."),
    Variable("time_unmap_ns", "float64", "ns", "time of unmapping", "Migration entries in place of mappings."),
    Variable("time_flush_ns", "float64", "ns", "time of TLB flushes", "Local flushes, and waiting for other CPUs."),
    Variable("time_remap_ns", "float64", "ns", "time of mapping again", "Mappings in place of migration entries."),
    Variable("waiter_mean_ns", "float64", "ns", "mean time out of reach", "From a folio's unmap to its new mapping."),
    Variable("waiter_worst_ns", "float64", "ns", "longest time out of reach", "The most that a thread may wait."),
    Variable(
        "simulated",
        "int8",
        "1",
        "how it was counted",
        "Whether the algorithm ran on a machine of pages, or its counts were worked out from the numbers alone.",
        flags=("worked_out", "simulated"),
    ),
)

_MEMORY_FAILURE = (
    Variable("pages_lost", "float64", "1", "pages lost", "Base pages out of use for good (HardwareCorrupted)."),
    Variable("blocks_2mib_lost", "float64", "1", "2 MiB blocks lost", "Aligned 2 MiB that hold a page out of use."),
    Variable("blocks_1gib_lost", "float64", "1", "1 GiB blocks lost", "Aligned 1 GiB that hold a page out of use."),
    Variable(
        "pages_with_data_lost",
        "float64",
        "1",
        "pages whose data are lost",
        "Base pages whose content nobody can read again; a hugetlb page is lost whole.",
    ),
    Variable("tasks_signalled", "float64", "1", "tasks signalled", "Processes that got a signal at once."),
    Variable("tasks_hit", "float64", "1", "tasks that lost data", "Processes that die when they touch what is lost."),
    Variable("n_recovered", "float64", "1", "recovered", "Memory failures with this result, or pages moved away."),
    Variable("n_failed", "float64", "1", "failed", "Memory failures with this result, or pages that did not move."),
    Variable("n_ignored", "float64", "1", "ignored", "Memory failures with this result."),
)

_CMA_WASTE = (
    Variable(
        "cma_min_alignment_bytes", "float64", "byte", "CMA granule", "CMA areas begin and end on multiples of it."
    ),
    Variable("cma_reserved_bytes", "float64", "byte", "CMA memory", "Memory of all areas that the kernel made."),
    Variable("cma_wasted_bytes", "float64", "byte", "CMA memory not asked for", "The part of it that rounding added."),
    Variable("cma_wasted_share", "float64", "1", "share of CMA memory not asked for", "0 where no area was made."),
    Variable(
        "non_cma_bytes",
        "float64",
        "byte",
        "memory outside CMA",
        "What is left for unmovable and reclaimable allocations; the kernel's own image is not taken off.",
    ),
    Variable("n_pools_refused", "float64", "1", "pools refused", "For want of room, or by a size that does not fit."),
)

_DMABUF = (
    Variable("n_bufs", "float64", "1", "dma-bufs", "Buffers that came whole."),
    Variable("n_bufs_failed", "float64", "1", "dma-bufs that failed", "Buffers that did not (-ENOMEM)."),
    *(
        Variable(
            f"n_folios_order_{order}", "float64", "1", f"folios of order {order}", "Folios that buffers are made of."
        )
        for order in (8, 4, 0)
    ),
    *(
        Variable(
            f"n_failed_order_{order}",
            "float64",
            "1",
            f"failed requests of order {order}",
            "Requests after which the next smaller order was tried.",
        )
        for order in (8, 4)
    ),
    Variable("pcp_refills", "float64", "1", "refills of per-CPU lists", "Empty per-CPU lists filled from the buddy."),
    Variable("buddy_splits", "float64", "1", "splits", "Free blocks cut in two for a request, step by step."),
    Variable("extfrag_events", "float64", "1", "fallbacks", "Blocks that came from another type's list."),
)

_HYGIENE = (
    Variable("thp_success", "float64", "1", "share of THP faults that got one", "Over all bursts of the run."),
    Variable("n_thp_faults", "float64", "1", "THP faults", "Of all bursts of the run."),
    Variable(
        "type_mismatch_pages",
        "float64",
        "1",
        "pages on lists of the wrong type",
        "Free pages on a list of another migratetype than their pageblock's, mean over the bursts.",
    ),
)

_COMPACTION = (
    Variable("thp_order", "float64", "1", "order of a huge page", "HPAGE_PMD_ORDER: what a huge page fault asks for."),
    Variable(
        "thp_compact_share",
        "float64",
        "1",
        "share of huge page faults that got one",
        "With direct compaction, nothing to reclaim.",
    ),
    Variable(
        "thp_light_share",
        "float64",
        "1",
        "share that is there without compaction",
        "Huge pages that are free already, over those asked for.",
    ),
    Variable(
        "thp_bound_share",
        "float64",
        "1",
        "share that could come at best",
        "Aligned regions in which nothing is unmovable, over the huge pages asked for.",
    ),
    Variable("n_thp_requests", "float64", "1", "huge pages asked for", "One fault each."),
    Variable("mixed_share", "float64", "1", "share of mixed pageblocks", "With movable and other pages in use."),
    Variable(
        "unmovable_block_share",
        "float64",
        "1",
        "share of pageblocks with unmovable pages",
        "Pageblocks that compaction cannot empty.",
    ),
    *(
        Variable(name, "float64", "1", label, doc)
        for name, label, doc in (
            ("compact_stall", "direct compactions", "Requests that compacted (/proc/vmstat compact_stall)."),
            ("compact_success", "direct compactions that helped", "Those that got their page then."),
            ("compact_migrate_scanned", "pages scanned for sources", "Of all runs of compaction."),
            ("compact_free_scanned", "pages scanned for targets", "Of all runs of compaction."),
            ("compact_isolated", "pages isolated", "Both sources and targets."),
            ("pgmigrate_success", "pages migrated", "Base pages that moved."),
            ("pgmigrate_fail", "pages not migrated", "Base pages that did not."),
            ("compact_runs", "runs of compaction", "A zone each."),
            ("huge_blocks_before", "free huge pages before", "Huge pages that are free as one block."),
            ("huge_blocks_after", "free huge pages after", "Huge pages that are free as one block."),
        )
    ),
    Variable(
        "isolated_per_migrated",
        "float64",
        "1",
        "isolated per migrated page",
        "About 2 where nothing is isolated in vain: a source and a target for each page that moves.",
    ),
    Variable(
        "compaction_cost", "float64", "1", "compaction cost", "mmtests' sum of the counters, in its arbitrary units."
    ),
    Variable(
        "time_migrations_ns",
        "float64",
        "ns",
        "time of compaction's migrations",
        "Of the calls, unmapping, flushing, copying and mapping again, by the machine's prices. Not all of compaction: "
        "no source has a rate for its scanners, and scanning is not priced.",
    ),
)

VARIABLES: Mapping[str, Variable] = catalogue(
    *(
        _SWEEP,
        _FOLIO_COPY,
        _SNAPSHOT,
        _FRAGMENTATION,
        _DEMOTION,
        _CLEAR_PAGES,
        _MIGRATION,
        _MEMORY_FAILURE,
        _CMA_WASTE,
        _DMABUF,
        _HYGIENE,
        _COMPACTION,
    )
)
