r"""A model of Linux physical memory: pages where Linux places them, thousands of points in seconds.

::

    .config  DTS  /proc text  kernel log  ftrace text        machines.toml            grid
         \    |    |            |          /                      |                    |
          sources  ->  geometry  ->  state  ->  mechanisms  ->  cost  ->  studies  ->  Dataset -> report / CLI
                                                  |                          |
                                               kernels (count events)     results (names every variable)

Names are imported when they are first used, so that ``import memmodel`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memmodel.errors import GeometryError, InputError, InvariantError, MemmodelError
    from memmodel.geometry import Geometry
    from memmodel.kernels.compact_control import CompactResult
    from memmodel.mechanisms.buddy import alloc_pages, free_pages
    from memmodel.mechanisms.bulk import alloc_pages_bulk
    from memmodel.mechanisms.cma import cma_alloc, cma_release
    from memmodel.mechanisms.cma_areas import CmaArea, cma_areas, cma_reserve
    from memmodel.mechanisms.cma_verdicts import CmaVerdict, cma_granule_bounds, cma_verdicts
    from memmodel.mechanisms.compaction import (
        CompactionOutcome,
        compact_memory,
        compact_zone,
        run_kcompactd,
        run_proactive_compaction,
        try_to_compact_pages,
    )
    from memmodel.mechanisms.contig import ContigOutcome, ContigRange
    from memmodel.mechanisms.contig_pages import alloc_contig_pages, free_contig_range
    from memmodel.mechanisms.copying import CopyOutcome, copy_mc_highpages, folio_mc_copy
    from memmodel.mechanisms.failure_settings import hardware_corrupted_kib, memory_failure_stats, set_memory_failure
    from memmodel.mechanisms.failure_signals import Signal, Task
    from memmodel.mechanisms.folio_state import set_folio
    from memmodel.mechanisms.gigantic import GiganticPage, gigantic_pages
    from memmodel.mechanisms.gigantic_pool import GiganticOutcome, free_gigantic
    from memmodel.mechanisms.heaps import DmaBuf, cma_heap_alloc, dmabuf_alloc, dmabuf_free
    from memmodel.mechanisms.huge_pages import ThpFaults, fault_thp, mthp_stats, thp_fault, thp_gfp
    from memmodel.mechanisms.hugetlb import alloc_hugetlb
    from memmodel.mechanisms.injection import Injection, corrupt_pfn, hard_offline_page, madvise, unpoison_memory
    from memmodel.mechanisms.khugepaged import Collapse, khugepaged_collapse
    from memmodel.mechanisms.kswapd import KswapdRun, LeastRecentlyAllocated, WokenKswapd, run_kswapd
    from memmodel.mechanisms.memblock import MemoryMap
    from memmodel.mechanisms.memory_failure import FailureOutcome, memory_failure
    from memmodel.mechanisms.migration import MigrationOutcome, migrate_pages
    from memmodel.mechanisms.move_pages import Entry, MovePagesOutcome, move_pages
    from memmodel.mechanisms.page_access import PageAccess, access_page
    from memmodel.mechanisms.page_flags import FlagsLayout, kpageflags
    from memmodel.mechanisms.percpu import drain_all_pages, vmstat_update
    from memmodel.mechanisms.poisoning import FailureWork, inject_poison, memory_failure_queue, run_memory_failure_work
    from memmodel.mechanisms.policies import (
        Compaction,
        CompactPriority,
        CompactRequest,
        ReclaimRequest,
    )
    from memmodel.mechanisms.reserved_memory import ReservedMemory, reserved_memory
    from memmodel.mechanisms.soft_offline import OfflineOutcome, soft_offline_page
    from memmodel.mechanisms.tlb import Tlb
    from memmodel.memory import PhysicalMemory, load
    from memmodel.replaying.replay import replay
    from memmodel.replaying.what_if import what_if
    from memmodel.sources.cmalog import CmaLog, read_cma_log
    from memmodel.sources.devicetree import DeviceTree, read_device_tree
    from memmodel.sources.ftrace import read_trace
    from memmodel.sources.snapshot import read_snapshot
    from memmodel.state.failure_layout import MfFlag
    from memmodel.studies.sweep import rerun, run_study, sweep
    from memmodel.workloads.fragment import FragmentOutcome, fragment
    from memmodel.workloads.run import WorkloadOutcome, run_workload

__version__ = "0.1.0"

_HOME = {
    "memmodel.errors": ("GeometryError", "InputError", "InvariantError", "MemmodelError"),
    "memmodel.geometry": ("Geometry",),
    "memmodel.kernels.compact_control": ("CompactResult",),
    "memmodel.mechanisms.buddy": ("alloc_pages", "free_pages"),
    "memmodel.mechanisms.bulk": ("alloc_pages_bulk",),
    "memmodel.mechanisms.cma_verdicts": ("CmaVerdict", "cma_granule_bounds", "cma_verdicts"),
    "memmodel.mechanisms.compaction": (
        *("CompactionOutcome", "compact_memory", "compact_zone", "run_kcompactd", "run_proactive_compaction"),
        "try_to_compact_pages",
    ),
    "memmodel.mechanisms.cma": ("cma_alloc", "cma_release"),
    "memmodel.mechanisms.cma_areas": ("CmaArea", "cma_areas", "cma_reserve"),
    "memmodel.mechanisms.contig": ("ContigOutcome", "ContigRange"),
    "memmodel.mechanisms.contig_pages": ("alloc_contig_pages", "free_contig_range"),
    "memmodel.mechanisms.copying": ("CopyOutcome", "copy_mc_highpages", "folio_mc_copy"),
    "memmodel.mechanisms.failure_settings": ("hardware_corrupted_kib", "memory_failure_stats", "set_memory_failure"),
    "memmodel.mechanisms.failure_signals": ("Signal", "Task"),
    "memmodel.mechanisms.folio_state": ("set_folio",),
    "memmodel.mechanisms.gigantic": ("GiganticPage", "gigantic_pages"),
    "memmodel.mechanisms.gigantic_pool": ("GiganticOutcome", "free_gigantic"),
    "memmodel.mechanisms.heaps": ("DmaBuf", "cma_heap_alloc", "dmabuf_alloc", "dmabuf_free"),
    "memmodel.mechanisms.huge_pages": ("ThpFaults", "fault_thp", "mthp_stats", "thp_fault", "thp_gfp"),
    "memmodel.mechanisms.hugetlb": ("alloc_hugetlb",),
    "memmodel.mechanisms.khugepaged": ("Collapse", "khugepaged_collapse"),
    "memmodel.mechanisms.injection": ("Injection", "corrupt_pfn", "hard_offline_page", "madvise", "unpoison_memory"),
    "memmodel.mechanisms.kswapd": ("KswapdRun", "LeastRecentlyAllocated", "WokenKswapd", "run_kswapd"),
    "memmodel.mechanisms.memblock": ("MemoryMap",),
    "memmodel.mechanisms.memory_failure": ("FailureOutcome", "memory_failure"),
    "memmodel.mechanisms.page_access": ("PageAccess", "access_page"),
    "memmodel.mechanisms.page_flags": ("FlagsLayout", "kpageflags"),
    "memmodel.mechanisms.migration": ("MigrationOutcome", "migrate_pages"),
    "memmodel.mechanisms.move_pages": ("Entry", "MovePagesOutcome", "move_pages"),
    "memmodel.mechanisms.percpu": ("drain_all_pages", "vmstat_update"),
    "memmodel.mechanisms.poisoning": (
        *("FailureWork", "inject_poison", "memory_failure_queue", "run_memory_failure_work"),
    ),
    "memmodel.mechanisms.policies": (*("CompactPriority", "CompactRequest", "Compaction", "ReclaimRequest"),),
    "memmodel.mechanisms.reserved_memory": ("ReservedMemory", "reserved_memory"),
    "memmodel.mechanisms.soft_offline": ("OfflineOutcome", "soft_offline_page"),
    "memmodel.mechanisms.tlb": ("Tlb",),
    "memmodel.memory": ("PhysicalMemory", "load"),
    "memmodel.replaying.replay": ("replay",),
    "memmodel.replaying.what_if": ("what_if",),
    "memmodel.sources.cmalog": ("CmaLog", "read_cma_log"),
    "memmodel.sources.devicetree": ("DeviceTree", "read_device_tree"),
    "memmodel.sources.ftrace": ("read_trace",),
    "memmodel.sources.snapshot": ("read_snapshot",),
    "memmodel.state.failure_layout": ("MfFlag",),
    "memmodel.studies.sweep": ("rerun", "run_study", "sweep"),
    "memmodel.workloads.fragment": ("FragmentOutcome", "fragment"),
    "memmodel.workloads.run": ("WorkloadOutcome", "run_workload"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CmaArea",
    "CmaLog",
    "CmaVerdict",
    "Collapse",
    "CompactPriority",
    "CompactRequest",
    "CompactResult",
    "Compaction",
    "CompactionOutcome",
    "ContigOutcome",
    "ContigRange",
    "CopyOutcome",
    "DeviceTree",
    "DmaBuf",
    "Entry",
    "FailureOutcome",
    "FailureWork",
    "FlagsLayout",
    "FragmentOutcome",
    "Geometry",
    "GeometryError",
    "GiganticOutcome",
    "GiganticPage",
    "Injection",
    "InputError",
    "InvariantError",
    "KswapdRun",
    "LeastRecentlyAllocated",
    "MemmodelError",
    "MemoryMap",
    "MfFlag",
    "MigrationOutcome",
    "MovePagesOutcome",
    "OfflineOutcome",
    "PageAccess",
    "PhysicalMemory",
    "ReclaimRequest",
    "ReservedMemory",
    "Signal",
    "Task",
    "ThpFaults",
    "Tlb",
    "WokenKswapd",
    "WorkloadOutcome",
    "__version__",
    "access_page",
    "alloc_contig_pages",
    "alloc_hugetlb",
    "alloc_pages",
    "alloc_pages_bulk",
    "cma_alloc",
    "cma_areas",
    "cma_granule_bounds",
    "cma_heap_alloc",
    "cma_release",
    "cma_reserve",
    "cma_verdicts",
    "compact_memory",
    "compact_zone",
    "copy_mc_highpages",
    "corrupt_pfn",
    "dmabuf_alloc",
    "dmabuf_free",
    "drain_all_pages",
    "fault_thp",
    "folio_mc_copy",
    "fragment",
    "free_contig_range",
    "free_gigantic",
    "free_pages",
    "gigantic_pages",
    "hard_offline_page",
    "hardware_corrupted_kib",
    "inject_poison",
    "khugepaged_collapse",
    "kpageflags",
    "load",
    "madvise",
    "memory_failure",
    "memory_failure_queue",
    "memory_failure_stats",
    "migrate_pages",
    "move_pages",
    "mthp_stats",
    "read_cma_log",
    "read_device_tree",
    "read_snapshot",
    "read_trace",
    "replay",
    "rerun",
    "run_kcompactd",
    "reserved_memory",
    "run_kswapd",
    "run_memory_failure_work",
    "run_proactive_compaction",
    "run_study",
    "run_workload",
    "set_folio",
    "set_memory_failure",
    "soft_offline_page",
    "sweep",
    "thp_fault",
    "thp_gfp",
    "try_to_compact_pages",
    "unpoison_memory",
    "vmstat_update",
    "what_if",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'memmodel' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
