"""What the files of one snapshot say differently: they are read one after the other while the machine runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from memmodel.sources.kpageflags import has_flag
from memmodel.sources.pagetypeinfo import PageTypeInfo, TypeCounts
from memmodel.sources.records import (
    MIGRATE_ISOLATE,
    MIGRATE_TYPES,
    MIGRATETYPE_NAMES,
    FreeLists,
    IntArray,
    UIntArray,
    ZoneKey,
    ZoneLists,
    ZoneSnapshot,
    zone_label,
)

__all__ = ["Parts", "find_differences"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts:
    """The parsed files of a snapshot; what was not among them is None or empty. `zoneinfo` has populated zones."""

    buddyinfo: Mapping[ZoneKey, IntArray] | None = None
    pagetypeinfo: PageTypeInfo | None = None
    zoneinfo: Mapping[ZoneKey, ZoneSnapshot] | None = None
    kpageflags: UIntArray | None = None
    free_lists: FreeLists | None = None
    vmstat: Mapping[str, int] = field(default_factory=dict)
    meminfo: Mapping[str, int] = field(default_factory=dict)

    @property
    def zone_tables(self) -> dict[str, list[ZoneKey]]:
        """The zones that each file has."""
        tables: dict[str, list[ZoneKey]] = {}
        if self.zoneinfo is not None:
            tables["zoneinfo"] = list(self.zoneinfo)
        if self.buddyinfo is not None:
            tables["buddyinfo"] = list(self.buddyinfo)
        if self.pagetypeinfo is not None:
            tables["pagetypeinfo"] = list(self.pagetypeinfo.zones)
        if self.free_lists is not None:
            tables["the dump"] = [zone.key for zone in self.free_lists.zones]
        return tables


def find_differences(parts: Parts) -> Iterator[str]:
    """One line for each pair of files and zone that do not agree: which zone, which files, what each says."""
    tables = parts.zone_tables
    for key in dict.fromkeys(key for keys in tables.values() for key in keys):
        without = [name for name, keys in tables.items() if key not in keys]
        if without:
            having = [name for name, keys in tables.items() if key in keys]
            yield f"{zone_label(key)}: in {' and '.join(having)}, not in {' and '.join(without)}"
        yield from (f"{zone_label(key)}: {text}" for text in _zone_differences(parts, key))
    if parts.zoneinfo is not None and "nr_free_pages" in parts.vmstat:
        free = sum(zone.free_pages or 0 for zone in parts.zoneinfo.values())
        if free != parts.vmstat["nr_free_pages"]:
            yield f"all zones: zoneinfo has {free} free pages, vmstat {parts.vmstat['nr_free_pages']}"


def _zone_differences(parts: Parts, key: ZoneKey) -> Iterator[str]:
    buddyinfo = None if parts.buddyinfo is None else parts.buddyinfo.get(key)
    types = None if parts.pagetypeinfo is None else parts.pagetypeinfo.zones.get(key)
    zoneinfo = None if parts.zoneinfo is None else parts.zoneinfo.get(key)
    dumps = () if parts.free_lists is None else parts.free_lists.zones
    name, nr_free = "buddyinfo", buddyinfo
    if types is not None:
        counted = types.type_free.sum(axis=0)
        if nr_free is None:
            name, nr_free = "pagetypeinfo", counted
        counted = np.where(types.type_free_capped.any(axis=0), np.maximum(counted, nr_free), counted)
        yield from _orders(name, nr_free, "pagetypeinfo", counted)
    for dump in (zone for zone in dumps if zone.key == key):
        if nr_free is not None:
            yield from _orders("the dump", dump.type_free(nr_free.size).sum(axis=0), name, nr_free)
        yield from _against_dump(dump, types, zoneinfo)
    if nr_free is not None and zoneinfo is not None:
        isolated = 0 if types is None else _pages(types.type_free[MIGRATE_ISOLATE])
        yield from _free_pages(zoneinfo, name, _pages(nr_free) - isolated)
        if parts.kpageflags is not None:
            flags = parts.kpageflags[zoneinfo.start_pfn : zoneinfo.end_pfn]
            free = int(np.count_nonzero(has_flag(flags, "BUDDY")))
            if free != _pages(nr_free):
                yield f"kpageflags has {free} free pages, {name} {_pages(nr_free)}"


def _against_dump(dump: ZoneLists, types: TypeCounts | None, zoneinfo: ZoneSnapshot | None) -> Iterator[str]:
    if types is not None:
        blocks = np.bincount(dump.block_migratetypes, minlength=MIGRATE_TYPES)
        for name, a, b in zip(MIGRATETYPE_NAMES, blocks.tolist(), types.type_blocks.tolist(), strict=True):
            if a != b:
                yield f"pageblocks of type {name}: the dump has {a}, pagetypeinfo {b}"
    if zoneinfo is not None:
        for field_name in ("start_pfn", "spanned_pages", "present_pages", "managed_pages"):
            said, other = getattr(dump, field_name), getattr(zoneinfo, field_name)
            if said not in (None, other):
                yield f"{field_name}: the dump has {said}, zoneinfo {other}"


def _orders(name: str, counts: IntArray, other: str, others: IntArray) -> Iterator[str]:
    rows = zip(counts.tolist(), others.tolist(), strict=True)
    found = [f"{a} and {b} of order {order}" for order, (a, b) in enumerate(rows) if a != b]
    if found:
        yield f"free blocks in {name} and in {other}: {', '.join(found)}"


def _free_pages(zone: ZoneSnapshot, name: str, free: int) -> Iterator[str]:
    """The counter nr_free_pages may lag by the threshold on each CPU, and leaves isolated pages out."""
    drift = len(zone.pcp) * (zone.vm_stats_threshold or 0)
    if zone.free_pages is not None and abs(zone.free_pages - free) > drift:
        yield f"zoneinfo has {zone.free_pages} free pages (its counters may lag by {drift}), {name} {free}"


def _pages(counts: IntArray) -> int:
    return int((counts << np.arange(counts.size)).sum())
