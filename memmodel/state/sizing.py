"""What the kernel derives from the sizes of zones: watermarks, reserves, per-CPU list sizes, counter thresholds."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.geometry import Geometry
from memmodel.state.layout import NONE, NR_ORDERS, NR_ZONE_TYPES, Feature, Memory, PcpFlag, Wmark, ZoneType

__all__ = ["Sysctls", "feature_bits", "mobility_disabled", "node_of_cpu", "size_zones", "watermarks"]

Pages = npt.NDArray[np.int64]

RESERVE_RATIO = {ZoneType.DMA: 256, ZoneType.DMA32: 256, ZoneType.NORMAL: 32}  # vm.lowmem_reserve_ratio
MIN_FREE_KBYTES = (128, 262144)
MAX_STAT_THRESHOLD = 125
MIGRATE_PCPTYPES = 3


@dataclass(frozen=True, kw_only=True)
class Sysctls:
    """vm.* settings that decide where requests stop; None is what the kernel works out itself."""

    min_free_kbytes: int | None = None
    """vm.min_free_kbytes."""
    watermark_scale_factor: int = 10
    """vm.watermark_scale_factor, in 1/10000 of a zone."""
    watermark_boost_factor: int = 15000
    """vm.watermark_boost_factor, in 1/10000 of the high watermark; 0 is off."""
    percpu_pagelist_high_fraction: int = 0
    """vm.percpu_pagelist_high_fraction; 0 lets the kernel tune the lists (6.7 and later) or use the low watermark."""
    pcp: bool = True
    """Whether per-CPU lists are on; False is zone_pcp_disable()."""


def size_zones(memory: Memory, geometry: Geometry, sysctls: Sysctls) -> None:
    """Fill in everything that follows from the zones' managed pages.

    References
    ----------
    mm/page_alloc.c: __setup_per_zone_wmarks, setup_per_zone_lowmem_reserve, zone_batchsize, zone_highsize;
    mm/khugepaged.c: set_recommended_min_free_kbytes; mm/vmstat.c: calculate_normal_threshold. Linux 6.12.117.
    """
    zones = memory.zones
    managed = zones["managed"].astype(np.int64)
    zones["watermark"] = watermarks(geometry, zones["zone_type"], managed, sysctls)
    zones["lowmem_reserve"] = lowmem_reserve(zones["node"], zones["zone_type"], managed)
    zones["captured"], zones["capture_order"] = NONE, NR_ORDERS
    n_cpus = int(memory.params.n_cpus)
    for number, zone in enumerate(zones):
        pages = int(zone["managed"])
        size = pages >> 27 - geometry.page_shift
        zone["stat_threshold"] = min(MAX_STAT_THRESHOLD, 2 * n_cpus.bit_length() * (1 + size.bit_length()))
        sets = memory.pcp[number * n_cpus : (number + 1) * n_cpus]
        cpus = cpus_of_node(int(zone["node"]), np.unique(zones["node"]), n_cpus)
        low = int(zone["watermark"][Wmark.LOW])
        batch, high_min, high_max = pcp_sizes(geometry, pages, low, cpus, sysctls)
        sets["batch"], sets["high_min"], sets["high_max"] = batch, high_min, high_max
        sets["high"] = 0 if "pcp_autotune" in geometry.features else high_min
        sets["flags"] = PcpFlag.FREE_HIGH_BATCH


def watermarks(geometry: Geometry, zone_types: npt.ArrayLike, managed: Pages, sysctls: Sysctls) -> Pages:
    """(min, low, high) of each zone, pages, without a boost; shape ``(zones, 3)``."""
    types = np.asarray(zone_types)
    above = (types == ZoneType.HIGHMEM) | (types == ZoneType.MOVABLE)
    lowmem = int(managed[~above].sum())
    marks = _marks(geometry, above, managed, lowmem, _min_free_pages(geometry, lowmem, sysctls), sysctls)
    if sysctls.min_free_kbytes is None and geometry.transparent_hugepage:
        # khugepaged raises it when it starts, and the limit counts what is above the watermarks of before.
        usable = int(np.maximum(managed - marks[:, Wmark.HIGH], 0)[~above].sum())
        n_zones = int(np.count_nonzero(managed[~above]))
        wanted = min(geometry.pageblock_nr_pages * n_zones * (2 + MIGRATE_PCPTYPES**2), usable // 20)
        if wanted > _min_free_pages(geometry, lowmem, sysctls):
            marks = _marks(geometry, above, managed, lowmem, wanted, sysctls)
    return marks


def _min_free_pages(geometry: Geometry, lowmem: int, sysctls: Sysctls) -> int:
    kbytes = sysctls.min_free_kbytes
    if kbytes is None:
        low, high = MIN_FREE_KBYTES
        kbytes = min(max(math.isqrt(16 * (lowmem << geometry.page_shift - 10)), low), high)
    return kbytes >> geometry.page_shift - 10


def _marks(
    geometry: Geometry, above: npt.NDArray[np.bool_], managed: Pages, lowmem: int, pages_min: int, sysctls: Sysctls
) -> Pages:
    share = pages_min * managed // max(lowmem, 1)
    lowest = np.where(above, np.clip(managed // 1024, 32, 128), share)
    step = np.maximum(share // 4, managed * sysctls.watermark_scale_factor // 10000)
    marks: Pages = np.stack([lowest, lowest + step, lowest + 2 * step], axis=1)
    marks[managed == 0] = 0
    return marks


def lowmem_reserve(nodes: npt.ArrayLike, zone_types: npt.ArrayLike, managed: Pages) -> Pages:
    """Pages of each zone kept from requests that may go higher, by the highest zone type that they may use."""
    node, types = np.asarray(nodes), np.asarray(zone_types)
    reserve = np.zeros((managed.size, NR_ZONE_TYPES), np.int64)
    for i, zone_type in enumerate(types.tolist()):
        ratio = RESERVE_RATIO.get(ZoneType(zone_type), 0)
        for highest in range(zone_type + 1, NR_ZONE_TYPES if ratio and managed[i] else 0):
            higher = (node == node[i]) & (types > zone_type) & (types <= highest)
            reserve[i, highest] = int(managed[higher].sum()) // ratio
    return reserve


def pcp_sizes(geometry: Geometry, managed: int, low: int, cpus: int, sysctls: Sysctls) -> tuple[int, int, int]:
    """(batch, high_min, high_max) of the per-CPU lists of a zone, pages."""
    if not sysctls.pcp:
        return 1, 0, 0
    batch = min(managed >> 12, 262144 // geometry.page_size_bytes)
    batch = (1 << (batch + batch // 2).bit_length() - 1) - 1 if batch > 1 else 1
    if fraction := sysctls.percpu_pagelist_high_fraction:
        high = max(managed // fraction // cpus, 4 * batch)
        return batch, high, high
    high_min = max(low // cpus, 4 * batch)
    if "pcp_autotune" not in geometry.features:
        return batch, high_min, high_min
    return batch, high_min, max(managed // 8 // cpus, 4 * batch)


def node_of_cpu(cpu: int, nodes: npt.ArrayLike, n_cpus: int) -> int:
    """Node that a CPU of a made-up machine belongs to: CPUs are split over the nodes in equal runs."""
    numbers = np.asarray(nodes)
    return int(numbers[cpu * numbers.size // n_cpus])


def cpus_of_node(node: int, nodes: npt.ArrayLike, n_cpus: int) -> int:
    """CPUs that share a zone's lists; all of them where the node has none of its own."""
    here = sum(node_of_cpu(cpu, nodes, n_cpus) == node for cpu in range(n_cpus))
    return here or n_cpus


def mobility_disabled(geometry: Geometry, managed: Pages) -> bool:
    """page_group_by_mobility_disabled: too few pageblocks for a list of each type (build_all_zonelists, at boot)."""
    return bool(managed.sum() < geometry.pageblock_nr_pages * geometry.n_migratetypes)


def feature_bits(geometry: Geometry) -> int:
    """The `Feature` bits that kernels test, as far as they follow from the kernel's features."""
    return sum(feature for feature in Feature if feature.name and feature.name.lower() in geometry.features)
