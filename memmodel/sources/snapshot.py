"""One snapshot from the files of one machine: /proc texts, kpageflags, a dump of the free lists."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from memmodel.errors import InputError
from memmodel.sources.differences import Parts, find_differences
from memmodel.sources.freelists import parse_free_lists
from memmodel.sources.kpageflags import has_flag
from memmodel.sources.procfs import (
    parse_buddyinfo,
    parse_kpageflags,
    parse_meminfo,
    parse_pagetypeinfo,
    parse_version,
    parse_vmstat,
    parse_zoneinfo,
)
from memmodel.sources.reading import PathLike, decode_text, peek, read_bytes
from memmodel.sources.records import (
    MIGRATE_TYPES,
    FreeLists,
    Snapshot,
    ZoneKey,
    ZoneLists,
    ZoneSnapshot,
    zone_label,
)
from memmodel.units import format_bytes, parse_bytes

__all__ = ["read_snapshot", "usual_page_size"]

_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "gt_snap": parse_free_lists,
    "buddyinfo": parse_buddyinfo,
    "pagetypeinfo": parse_pagetypeinfo,
    "zoneinfo": parse_zoneinfo,
    "vmstat": parse_vmstat,
    "meminfo": parse_meminfo,
    "version": parse_version,
}
_KINDS = (*_PARSERS, "kpageflags")
_FIRST_ROWS = {
    "gt_snap": re.compile(r"S \S+ [0-9]+ pageblock_order=[0-9]+ "),
    "pagetypeinfo": re.compile(r"Page block order: |Free pages count per migrate type at order"),
    "zoneinfo": re.compile(r"Node [0-9]+, zone +\S+ *\n +(?:per-node stats|pages free)"),
    "buddyinfo": re.compile(r"Node [0-9]+, zone +\S+(?: +[0-9]+)+ *(?:\n|$)"),
    "vmstat": re.compile(r"nr_free_pages [0-9]+ *\n"),
    "meminfo": re.compile(r"MemTotal: +[0-9]+ kB"),
    "version": re.compile(r"Linux version \S+ \("),
}
_KPF_ALL = (1 << 43) - (1 << 32) + (1 << 27) - 1  # the KPF_ bits that exist


def read_snapshot(*paths: PathLike, label: str | None = None, page_size: int | str | None = None) -> Snapshot:
    """Read what the files of one machine say at about one instant.

    Parameters
    ----------
    paths
        A folder, or files: buddyinfo, pagetypeinfo, zoneinfo, kpageflags, vmstat, meminfo, version, a dump of the
        free lists; plain, .gz, .xz or .zst. They are recognised by their contents first, by their names second.
    label
        Which state of a dump; the first one if not given.
    page_size
        Bytes, or text such as "16KiB". If not given, it is the dump's, or follows from MemTotal and the managed pages.

    Raises
    ------
    InputError
        If no file is usable, one is malformed or cut short, two are of one kind, or they cannot be of one machine.
    """
    found, ignored = _recognise(paths)
    parsed: dict[str, Any] = {}
    digests: dict[str, str] = {}
    for kind, path in found.items():
        data, digests[path] = read_bytes(path)
        binary = kind == "kpageflags"
        parsed[kind] = parse_kpageflags(data, path) if binary else _PARSERS[kind](decode_text(data, path), path)
    kernel = parsed.pop("version", None)
    states = parsed.pop("gt_snap", ())
    zoneinfo, nodes = parsed.pop("zoneinfo", (None, {}))
    parts = Parts(
        **parsed,
        zoneinfo=None if zoneinfo is None else {key: zone for key, zone in zoneinfo.items() if zone.present_pages},
        free_lists=_pick(states, label),
    )
    _check_frames(parts, found)
    size, remarks = _page_size(parts, None if page_size is None else parse_bytes(page_size, "page_size"))
    orders = {"pagetypeinfo": parts.pagetypeinfo, "the dump": parts.free_lists}
    return Snapshot(
        zones=_zones(parts),
        page_size_bytes=size,
        pageblock_order=_same("pageblock_order", {n: p.pageblock_order for n, p in orders.items() if p is not None}),
        max_order=_max_order(parts),
        kernel=kernel,
        kpageflags=parts.kpageflags,
        vmstat=parts.vmstat,
        meminfo=parts.meminfo,
        node_counters=nodes,
        free_lists=parts.free_lists,
        files=digests,
        ignored=ignored,
        differences=(*remarks, *find_differences(parts)),
    )


# -- which file is what ------------------------------------------------------------------------------------------------


def _recognise(paths: tuple[PathLike, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """One file for each kind, and the names of files in folders that are of no kind."""
    found: dict[str, str] = {}
    ignored: list[str] = []
    for path in (os.fspath(path) for path in paths):
        folder = os.path.isdir(path)
        for file in _files(path) if folder else [path]:
            kind = _kind(file, folder)
            if kind in found:
                raise InputError(f"{file}: a second {kind} beside {found[kind]}; a snapshot has one of each kind")
            if kind:
                found[kind] = file
            elif folder:
                ignored.append(file)
            else:
                raise InputError(f"{file}: not recognised; the kinds are {', '.join(_KINDS)}")
    if not set(found) - {"version"}:
        where = ", ".join(map(str, paths)) or "no path given"
        below = sorted(p.name for path in paths if Path(path).is_dir() for p in Path(path).iterdir() if p.is_dir())
        if below:
            where += f" (its folders {', '.join(below[:3])}{', ...' if len(below) > 3 else ''} may have some)"
        raise InputError(f"{where}: no file of a snapshot; the kinds are {', '.join(_KINDS)}")
    return found, tuple(ignored)


def _files(folder: str) -> list[str]:
    try:
        return sorted(str(path) for path in Path(folder).iterdir() if path.is_file())
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from None


def _kind(path: str, in_folder: bool) -> str | None:
    """The kind by contents, else by name."""
    stem = Path(path).name.split(".")[0]
    named = stem if stem in _KINDS else None
    if in_folder and named is None and not Path(path).stat().st_size:
        return None  # nothing in it; in /proc itself, reading any file to see what it is could block or do harm
    try:
        head = peek(path)
    except InputError:
        if in_folder and named is None:
            return None
        raise
    try:
        text = head.decode("ascii").lstrip("\ufeff\n")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return next((kind for kind, row in _FIRST_ROWS.items() if row.match(text)), named)
    words = np.frombuffer(head[: len(head) // 8 * 8], "<u8").astype(np.uint64, copy=False)
    flags = not np.any(words & ~np.uint64(_KPF_ALL)) and bool(has_flag(words, "BUDDY", "NOPAGE", "RESERVED").any())
    return named or ("kpageflags" if flags else None)


# -- one snapshot from all ---------------------------------------------------------------------------------------------


def _pick(states: tuple[FreeLists, ...], label: str | None) -> FreeLists | None:
    if label is None:
        return states[0] if states else None
    for state in states:
        if state.label == label:
            return state
    labels = ", ".join(state.label for state in states) or "none, for there is no dump"
    raise InputError(f"no state has the label {label!r}; there are: {labels}")


def _check_frames(parts: Parts, found: Mapping[str, str]) -> None:
    """Refuse a kpageflags that ends inside a zone."""
    if parts.kpageflags is None:
        return
    ends = {zone.key: zone.end_pfn for zone in (parts.free_lists.zones if parts.free_lists else ())}
    ends |= {key: zone.end_pfn or 0 for key, zone in (parts.zoneinfo or {}).items()}
    for key, end in ends.items():
        if end > parts.kpageflags.size:
            frames = f"{parts.kpageflags.size} frames, but {zone_label(key)} ends at pfn {end - 1}"
            raise InputError(f"{found['kpageflags']}: {frames}; the file is cut short, or of another machine")


def _page_size(parts: Parts, given: int | None) -> tuple[int | None, list[str]]:
    """The page size in bytes where it is known, and a remark where MemTotal leads to none."""
    sizes = {} if given is None else {"page_size": given}
    if given is not None and (given & (given - 1) or not 1 << 10 <= given <= 1 << 20):
        raise InputError(f"page_size {given} bytes; a page is a power of two, 1 KiB to 1 MiB")
    remarks = []
    if parts.free_lists is not None:
        sizes["the dump"] = 1 << parts.free_lists.page_shift
    managed = sum(zone.managed_pages or 0 for zone in (parts.zoneinfo or {}).values())
    total = parts.meminfo.get("MemTotal", 0)
    if managed and total:
        size = 1 << max(round(np.log2(total / managed)), 0)
        if abs(total - managed * size) * 100 <= total:
            sizes["MemTotal over the managed pages"] = size
        if total != managed * size:
            remarks.append(
                f"all zones: zoneinfo has {managed} managed pages, meminfo {format_bytes(total)} of MemTotal"
            )
    return _same("page size", sizes), remarks


def usual_page_size(max_order: int | None) -> tuple[int | None, str]:
    """Page size of kernels with this largest order by default, where no file says it, and the remark that goes with it.

    None where no default configuration has the order. Source: ARCH_FORCE_MAX_ORDER of arm64 and powerpc, Linux 6.4 on.
    """
    size = {8: 1 << 16, 10: 1 << 12, 11: 1 << 14, 12: 1 << 12, 13: 1 << 16}.get(-1 if max_order is None else max_order)
    if size is None:
        return None, f"the page size is not in these files, and {max_order} as the largest order tells none"
    return size, f"page size {format_bytes(size)}: as kernels with {max_order} as the largest order have by default"


def _max_order(parts: Parts) -> int | None:
    orders = {}
    if parts.buddyinfo is not None:
        orders["buddyinfo"] = next(iter(parts.buddyinfo.values())).size - 1
    if parts.pagetypeinfo is not None:
        orders["pagetypeinfo"] = next(iter(parts.pagetypeinfo.zones.values())).type_free.shape[1] - 1
    if parts.free_lists is not None:
        orders["the dump"] = parts.free_lists.max_order
    return _same("largest order", orders)


def _same(what: str, values: Mapping[str, int]) -> int | None:
    """The value that all sources give, None if there is no source."""
    if len(set(values.values())) > 1:
        said = ", ".join(f"{value} by {name}" for name, value in values.items())
        raise InputError(f"{what}: {said}; these files are not of one machine")
    return next(iter(values.values()), None)


def _zones(parts: Parts) -> dict[ZoneKey, ZoneSnapshot]:
    """Each zone with what every file says of it; where /proc and the dump both do, /proc."""
    dumped = {zone.key: zone for zone in (parts.free_lists.zones if parts.free_lists else ())}
    zones = {}
    for key in dict.fromkeys(key for keys in parts.zone_tables.values() for key in keys):
        zone = ZoneSnapshot(node=key[0], name=key[1])
        if parts.free_lists is not None and key in dumped:
            zone = _from_dump(dumped[key], parts.free_lists)
        if parts.zoneinfo is not None and key in parts.zoneinfo:
            free = {
                name: getattr(zone, name)
                for name in ("nr_free", "migratetypes", "type_free", "type_free_capped", "type_blocks")
            }
            zone = replace(parts.zoneinfo[key], **free)
        if parts.pagetypeinfo is not None and key in parts.pagetypeinfo.zones:
            rows = parts.pagetypeinfo.zones[key]
            zone = replace(zone, migratetypes=parts.pagetypeinfo.migratetypes, **vars(rows))
        if parts.buddyinfo is not None and key in parts.buddyinfo:
            zone = replace(zone, nr_free=parts.buddyinfo[key])
        elif zone.type_free is not None and zone.type_free_capped is not None and not zone.type_free_capped.any():
            zone = replace(zone, nr_free=zone.type_free.sum(axis=0))
        zones[key] = zone
    return zones


def _from_dump(zone: ZoneLists, state: FreeLists) -> ZoneSnapshot:
    type_free = zone.type_free(state.max_order + 1)
    kernels = tuple(range(MIGRATE_TYPES)) if state.n_migratetypes == MIGRATE_TYPES else (0, 1, 2, 3, 5)
    boost = {} if zone.watermark_boost is None else {"boost": zone.watermark_boost}
    return ZoneSnapshot(
        node=zone.node,
        name=zone.name,
        start_pfn=zone.start_pfn,
        spanned_pages=zone.spanned_pages,
        present_pages=zone.present_pages,
        managed_pages=zone.managed_pages,
        free_pages=zone.free_pages,
        watermarks=boost | dict(zone.watermarks),
        pcp=zone.pcp,
        nr_free=type_free.sum(axis=0),
        migratetypes=kernels[: state.n_migratetypes],
        type_free=type_free,
        type_free_capped=np.zeros(type_free.shape, np.bool_),
        type_blocks=np.bincount(zone.block_migratetypes, minlength=MIGRATE_TYPES),
    )
