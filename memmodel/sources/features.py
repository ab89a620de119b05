"""What changed between kernels, by name; the only place that compares versions.

A feature is a behaviour that the model follows. It is in every kernel from `since` on and in the stable series
named by `backports`. Where the release is known only to lie within a range, the feature counts as absent there
and `version_notes` says so.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from memmodel.errors import GeometryError

__all__ = [
    "DEFAULT_KERNEL",
    "FEATURES",
    "PRESETS",
    "Feature",
    "kernel_features",
    "kernel_version",
    "select_features",
    "version_notes",
]

Version = tuple[int, int, int]

PRESETS = ("6.1", "6.12.117", "7.3")
"""The kernels whose source and recordings the model was checked against; any other X.Y[.Z] works too."""

DEFAULT_KERNEL = "6.12.117"

_OLDEST_READ: Version = (6, 1, 0)
_AFTER_NEWEST_READ: Version = (7, 4, 0)


@dataclass(frozen=True)
class Feature:
    """One named change of the kernel."""

    since: Version
    """First release that has it (or the oldest one it was read in, see `unsure`)."""
    doc: str
    """What it changes, in one line."""
    backports: tuple[Version, ...] = ()
    """Stable releases from which on their X.Y series has it too."""
    unsure: tuple[Version, Version] | None = None
    """Kernels from the first up to but without the second may have it; they count as without."""

    def is_in(self, version: Version) -> bool:
        """Whether a kernel of that version has the feature."""
        return version >= self.since or any(version[:2] == b[:2] and version >= b for b in self.backports)


_READ_IN_6_12: tuple[Version, Version] = ((6, 2, 0), (6, 12, 0))
_READ_IN_7_2: tuple[Version, Version] = ((6, 13, 0), (7, 2, 0))
_READ_IN_7_3: tuple[Version, Version] = ((6, 13, 0), (7, 3, 0))

FEATURES: Mapping[str, Feature] = {
    "cma_pageblock_alignment": Feature((5, 19, 0), "CMA areas align to a pageblock, not to the largest block"),
    "batched_migration": Feature((6, 3, 0), "migrate_pages() unmaps and flushes up to 512 base pages together"),
    "max_order_inclusive": Feature((6, 4, 0), "CONFIG_ARCH_FORCE_MAX_ORDER is the largest order, not one more"),
    "pcp_autotune": Feature((6, 7, 0), "per-CPU lists tune their high mark (high_min, high_max, alloc_factor)"),
    "compaction_counts_pages": Feature(
        (6, 6, 0),
        "what compaction's scanners pass over whole counts as scanned, and a marked pageblock is left at once",
        unsure=((6, 2, 0), (6, 6, 0)),
    ),
    "compaction_rescans": Feature(
        (6, 6, 0),
        "a pageblock of which a page did not move is finished at once; before, the rest of it is left out",
        unsure=((6, 2, 0), (6, 6, 0)),
    ),
    "mthp": Feature((6, 8, 0), "anonymous faults may take large folios below the PMD order"),
    "large_folio_compaction": Feature(
        (6, 10, 0), "compaction moves large folios whole", unsure=((6, 9, 0), (6, 10, 0))
    ),
    "freelist_hygiene": Feature((6, 10, 0), "a free block is always on the list of its pageblock's migratetype"),
    "thp_pageblock": Feature((6, 10, 0), "THP alone brings pageblock_order down to the PMD order"),
    "pcp_pmd_order": Feature(
        (6, 12, 0), "the THP per-CPU lists hold HPAGE_PMD_ORDER, not pageblock_order", unsure=((6, 2, 0), (6, 12, 0))
    ),
    "lru_batch_31": Feature((6, 12, 0), "LRU-add batches hold 31 folios, not 15", unsure=((6, 2, 0), (6, 12, 0))),
    "highatomic_rounded": Feature(
        (6, 12, 0),
        "the reserve for urgent requests is whole pageblocks, none in zones of less than a hundred",
        unsure=((6, 2, 0), (6, 12, 0)),
    ),
    "free_highatomic": Feature(
        (6, 12, 0),
        "watermarks leave out the free pages of that reserve, not all of it",
        unsure=((6, 2, 0), (6, 12, 0)),
    ),
    "migration_mc_copy": Feature(
        (6, 11, 0),
        "migration copies with machine-check recovery (folio_mc_copy); before, an error stops the machine",
        unsure=((6, 2, 0), (6, 11, 0)),
    ),
    "khugepaged_mc_copy": Feature(
        (6, 12, 0),
        "khugepaged copies with machine-check recovery, and leaves a range with an error as it is",
        unsure=((6, 2, 0), (6, 12, 0)),
    ),
    "split_partially_mapped": Feature(
        (6, 12, 0),
        "migration splits a folio that waits for it (deferred_split_queue) instead of moving it whole",
        unsure=((6, 2, 0), (6, 12, 0)),
    ),
    "dmabuf_order_4_light": Feature(
        (6, 12, 0),
        "the dma-buf system heap asks for order 4 without reclaim, and makes no compound pages of single ones",
        unsure=((6, 2, 0), (6, 12, 0)),
    ),
    "boost_needs_kswapd": Feature(
        (6, 12, 0),
        "only requests with __GFP_KSWAPD_RECLAIM wake kswapd for a boosted zone",
        unsure=((6, 2, 0), (6, 12, 0)),
    ),
    "claim_steal": Feature(
        (6, 15, 0),
        "the fallback claims whole pageblocks first, then steals single blocks, and remembers the mode",
        backports=((6, 12, 117),),
        unsure=((6, 12, 0), (6, 12, 117)),
    ),
    "defrag_mode": Feature((6, 15, 0), "vm.defrag_mode and the counter nr_free_pages_blocks"),
    "page_block_order": Feature((6, 16, 0), "CONFIG_PAGE_BLOCK_ORDER limits pageblock_order"),
    "flush_skips_other_mm": Feature(
        (6, 14, 0),
        "a TLB flush of an address space leaves out CPUs of its mask that have loaded another one",
        backports=((6, 12, 117),),
        unsure=((6, 2, 0), (6, 12, 117)),
    ),
    "mm_cpumask_lazy": Feature(
        (6, 14, 0),
        "a CPU leaves mm_cpumask when a flush finds another address space there, not when it loads one",
        unsure=((6, 13, 0), (6, 14, 0)),
    ),
    "invlpgb": Feature((6, 15, 0), "TLB flushes by INVLPGB, where the CPUs have it"),
    "isolate_bit": Feature((6, 17, 0), "ISOLATE is a bit of the pageblock; the migratetype below it survives"),
    "page_block_max_order": Feature((6, 17, 0), "the limit is called CONFIG_PAGE_BLOCK_MAX_ORDER"),
    "pcp_free_high_half_min": Feature(
        (6, 18, 0),
        "a run of frees counts as one from batch + high_min / 2 pages on, not from batch",
        unsure=((6, 13, 0), (6, 18, 0)),
    ),
    "pcp_free_in_batches": Feature(
        (7, 2, 0), "per-CPU lists drain in pieces of batch pages, dropping the lock between", unsure=_READ_IN_7_2
    ),
    "highatomic_by_buddy": Feature(
        (7, 2, 0), "urgent requests make the reserve in rmqueue_buddy() and refill no list", unsure=_READ_IN_7_2
    ),
    "highatomic_fast_path": Feature(
        (7, 3, 0), "urgent requests may use the reserve in their first attempt", unsure=((6, 13, 0), (7, 3, 0))
    ),
    "pageblock_order_sources": Feature(
        (7, 2, 0),
        "a direct compaction for a pageblock or more looks for sources as a movable one does",
        unsure=_READ_IN_7_2,
    ),
    "skip_awake_nodes": Feature(
        (6, 18, 0), "nodes whose kswapd runs are tried in a second round", unsure=((6, 13, 0), (6, 18, 0))
    ),
    "contig_free_chunks": Feature(
        (7, 2, 0), "contiguous ranges are freed in maximal aligned chunks, not page by page", unsure=_READ_IN_7_2
    ),
    "gigantic_compound": Feature(
        (6, 12, 0),
        "gigantic pages are one compound page from the start, and freed by pageblock past the per-CPU lists",
        unsure=_READ_IN_6_12,
    ),
    "cma_oversize_uncounted": Feature(
        (6, 12, 0), "a request for more than its whole CMA area is no cma_alloc_fail", unsure=_READ_IN_6_12
    ),
    "cma_available_count": Feature(
        (7, 2, 0),
        "CMA allocations stop at once if the area has fewer pages left, and are busy, not out of memory, if none"
        " was tried; all that fail count",
        unsure=_READ_IN_7_2,
    ),
    "compact_gap_capped": Feature((7, 2, 0), "compact_gap() is at most 32 pages", unsure=_READ_IN_7_2),
    "proactive_scaled": Feature(
        (7, 2, 0),
        "the marks of the fragmentation score lie closer together where proactiveness is high",
        unsure=_READ_IN_7_2,
    ),
    "compact_suitable_mark": Feature(
        (7, 2, 0),
        "compaction needs room for its targets above the request's own watermark, costly async ones at once",
        unsure=_READ_IN_7_2,
    ),
    "compact_first_once": Feature(
        (7, 2, 0), "the slow path is one loop; costly NORETRY requests get a round of reclaim", unsure=_READ_IN_7_2
    ),
    "mf_get_type": Feature(
        (6, 12, 0), 'pages that memory_failure() cannot take are of type "get hwpoison page"', unsure=_READ_IN_6_12
    ),
    "mf_kernel_first": Feature(
        (7, 3, 0), "memory_failure() tells reserved, slab and page table pages apart first", unsure=_READ_IN_7_3
    ),
    "mf_always_get": Feature(
        (7, 3, 0), "memory_failure() looks at a page that its caller holds like at any other", unsure=_READ_IN_7_3
    ),
    "mf_already_reported": Feature(
        (6, 12, 0), "a page already poisoned is reported as one more failed action", unsure=_READ_IN_6_12
    ),
    "mf_unsplit_kills": Feature(
        (6, 12, 0), "an unsplit THP has failed, not been ignored, and its users are signalled", unsure=_READ_IN_6_12
    ),
    "mf_unmap_failed": Feature(
        (6, 12, 0), "a page that stays mapped has failed, not been ignored: SIGBUS, not SIGKILL", unsure=_READ_IN_6_12
    ),
    "mf_unknown_ignored": Feature(
        (6, 12, 0), "pages in an unknown state are ignored, not failed", unsure=_READ_IN_6_12
    ),
    "mf_filter_first": Feature((6, 12, 0), "hwpoison_filter() is asked before a THP is split", unsure=_READ_IN_6_12),
    "mf_huge_reports": Feature(
        (6, 12, 0), "a further bad page of a hugetlb folio is reported as a failed huge page", unsure=_READ_IN_6_12
    ),
    "mf_min_order": Feature(
        (7, 3, 0), "large folios of files with a least order are split down to that", unsure=_READ_IN_7_3
    ),
    "mf_panic_sysctl": Feature(
        (7, 3, 0), "vm.panic_on_unrecoverable_memory_failure: a panic for the kernel's own pages", unsure=_READ_IN_7_3
    ),
    "madvise_action_required": Feature(
        (6, 12, 0), "MADV_HWPOISON hits its caller as an access would (MF_ACTION_REQUIRED)", unsure=_READ_IN_6_12
    ),
    "cma_untried_ebusy": Feature(
        (7, 2, 0), "cma_alloc() that finds no free run at all is EBUSY, not ENOMEM", unsure=_READ_IN_7_2
    ),
    "cma_log_node": Feature((6, 12, 0), "the log line of a CMA area ends in its node", unsure=_READ_IN_6_12),
    "cma_log_as_asked": Feature(
        (7, 3, 0), "and has the size that was asked for, not what it was rounded to, and no node", unsure=_READ_IN_7_3
    ),
    "rmem_not_reusable_enodev": Feature(
        (7, 2, 0), "a shared pool that is not for CMA is ENODEV to it, not EINVAL", unsure=_READ_IN_7_2
    ),
    "enable_soft_offline": Feature((6, 12, 0), "vm.enable_soft_offline", unsure=_READ_IN_6_12),
    "unpoison_valid_pfn": Feature((6, 12, 0), "unpoisoning no page at all is ENXIO, not EIO", unsure=_READ_IN_6_12),
    "mf_log_pfn_first": Feature(
        (6, 12, 0), "log lines of unpoisoning and soft offlining name the pfn first", unsure=_READ_IN_6_12
    ),
    "no_pg_error": Feature((6, 12, 0), "pages have no PG_error", unsure=_READ_IN_6_12),
    "page_flags_6_12": Feature(
        (6, 12, 0), "PG_ bits in the order of 6.12: owner_2 in place of mappedtodisk", unsure=_READ_IN_6_12
    ),
    "kpageflags_of_folio": Feature(
        (6, 12, 0), "kpageflags shows folios' flags on all their pages", unsure=_READ_IN_6_12
    ),
    "kpageflags_ksm": Feature((6, 12, 0), "kpageflags shows KSM on every anonymous page", unsure=_READ_IN_6_12),
    "kpageflags_ksm_exact": Feature((7, 3, 0), "and no more does so", unsure=_READ_IN_7_3),
}
"""Feature name -> `Feature`, oldest first."""


def kernel_version(kernel: str) -> Version:
    """The leading numbers of a kernel's name: ``"7.3.4+deb13-arm64-16k"`` is (7, 3, 4), ``"6.1"`` is (6, 1, 0).

    Raises
    ------
    GeometryError
        If the name does not begin with X.Y.
    """
    match = re.match(r"\s*v?(\d{1,3})\.(\d{1,4})(?:\.(\d{1,4}))?(?!\d)", kernel) if isinstance(kernel, str) else None
    if match is None:
        raise GeometryError(
            f'kernel {kernel!r} has no version; write it as text that begins with X.Y, such as "6.12.117"'
        )
    return int(match[1]), int(match[2]), int(match[3] or 0)


def kernel_features(kernel: str) -> frozenset[str]:
    """Names of the features that a kernel has.

    Raises
    ------
    GeometryError
        If `kernel` does not begin with X.Y.
    """
    version = kernel_version(kernel)
    return frozenset(name for name, feature in FEATURES.items() if feature.is_in(version))


def select_features(kernel: str, features: Iterable[str] | Mapping[str, bool] | None) -> frozenset[str]:
    """The features of a kernel, after the user's changes.

    Parameters
    ----------
    kernel
        Names the preset.
    features
        None keeps the preset; a mapping name -> bool changes single features of it; any other iterable of names
        replaces it.

    Raises
    ------
    GeometryError
        If a name is not in `FEATURES`.
    """
    preset = kernel_features(kernel)
    if features is None:
        return preset
    names = [features] if isinstance(features, str) else list(features)
    for name in names:
        if name not in FEATURES:
            raise GeometryError(f"unknown feature {name!r}; one of: {', '.join(FEATURES)}")
    if isinstance(features, Mapping):
        return frozenset(name for name in FEATURES if features.get(name, name in preset))
    return frozenset(names)


def version_notes(kernel: str) -> list[str]:
    """What is not known about a kernel, one line a remark; empty for the `PRESETS`."""
    version = kernel_version(kernel)
    notes = []
    if version < _OLDEST_READ:
        notes.append(f"kernel {kernel}: kernels before 6.1 were not read; what no feature names is as in 6.1")
    if version >= _AFTER_NEWEST_READ:
        notes.append(f"kernel {kernel}: kernels after 7.3 were not read; it is taken to be as 7.3")
    unsure = [name for name, f in FEATURES.items() if f.unsure and f.unsure[0] <= version < f.unsure[1]]
    if unsure:
        notes.append(f"kernel {kernel}: not known whether it has {', '.join(unsure)}; taken as absent")
    return notes
