"""/proc/zoneinfo: spans, watermarks, counters and per-CPU page sets (``zoneinfo_show_print``, mm/vmstat.c)."""

import re
from collections.abc import Callable
from typing import Any

from memmodel.errors import InputError
from memmodel.sources.reading import refuse
from memmodel.sources.records import PcpSet, ZoneKey, ZoneSnapshot, zone_label
from memmodel.sources.rows import numbered_rows, refuse_twice

__all__ = ["parse_zoneinfo"]

_ZONE = re.compile(r"Node ([0-9]{1,4}), zone +(\S+)")
_COUNTER = re.compile(r" +([A-Za-z]\w*) +([0-9]{1,20})", re.ASCII)
_KEYED = re.compile(r" +([A-Za-z][\w ]*): +([0-9]{1,18})", re.ASCII)
_PAGES_FREE = re.compile(r"  pages free +([0-9]{1,18})")
_PROTECTION = re.compile(r" +protection: \(([0-9]{1,18}(?:, [0-9]{1,18})*)\)")

_WATERMARKS = ("boost", "min", "low", "high", "promo")
_SIZES = ("spanned", "present", "managed", "cma")
_NEEDED = ("min", "low", "high", "spanned", "present", "managed")
_PCP = ("count", "high", "batch", "high_min", "high_max")


def parse_zoneinfo(text: str, source: str) -> tuple[dict[ZoneKey, ZoneSnapshot], dict[int, dict[str, int]]]:
    """All zones, the empty ones too, and the per-node counters by node.

    6.1 has no promo watermark and no high_min and high_max of the per-CPU sets; 7.2 added reserved_highatomic.

    Raises
    ------
    InputError
        If a line is malformed or stands where it cannot, a zone comes twice or is cut short.
    """
    zones: dict[ZoneKey, ZoneSnapshot] = {}
    nodes: dict[int, dict[str, int]] = {}
    zone: _Zone | None = None
    line = 0
    for line, row in numbered_rows(text):
        if match := _ZONE.fullmatch(row):
            if zone is not None:
                zones[zone.key] = zone.result(line)
            zone = _Zone(source, (int(match[1]), match[2]), nodes)
            refuse_twice(source, line, zone.key, zones)
        elif zone is None:
            raise refuse(source, line, row, 'zoneinfo begins with "Node N, zone NAME"')
        else:
            zone.take(line, row)
    if zone is None:
        raise InputError(f"{source}: no zone in it; zoneinfo has all zones of all nodes")
    zones[zone.key] = zone.result(line)
    return zones, nodes


class _Zone:
    """One zone's lines; `part` takes the next one, as the part of the report demands."""

    def __init__(self, source: str, key: ZoneKey, nodes: dict[int, dict[str, int]]) -> None:
        self.source, self.key, self.nodes = source, key, nodes
        self.pages: dict[str, int] = {}
        self.counters: dict[str, int] = {}
        self.protection: tuple[int, ...] | None = None
        self.pcp: list[dict[str, int]] = []
        self.tail: dict[str, int] = {}
        self.part: Callable[[str], bool] = self._start

    def take(self, line: int, row: str) -> None:
        """Read one line, or refuse it."""
        if not self.part(row):
            raise refuse(self.source, line, row, f"this cannot stand here in {zone_label(self.key)}, or is cut short")

    def _start(self, row: str) -> bool:
        if row == "  per-node stats":
            self.nodes[self.key[0]] = {}
            self.part = self._node_counter
            return True
        return self._pages_free(row)

    def _node_counter(self, row: str) -> bool:
        return _put(self.nodes[self.key[0]], _COUNTER, row) or self._pages_free(row)

    def _pages_free(self, row: str) -> bool:
        match = _PAGES_FREE.fullmatch(row)
        if match is None:
            return False
        self.pages["free"] = int(match[1])
        self.part = self._size
        return True

    def _size(self, row: str) -> bool:
        match = _PROTECTION.fullmatch(row)
        if match is None:
            return _put(self.pages, _COUNTER, row)
        self.protection = tuple(map(int, match[1].split(", ")))
        self.part = self._counter
        return True

    def _counter(self, row: str) -> bool:
        if row == "  pagesets":
            self.part = self._page_set
            return True
        return _put(self.counters, _COUNTER, row)

    def _page_set(self, row: str) -> bool:
        match = _KEYED.fullmatch(row)
        if match is None:
            return False
        name, value = match[1], int(match[2])
        if name == "cpu":
            self.pcp.append({"cpu": value})
        elif name in _PCP and self.pcp:
            self.pcp[-1][name] = value
        else:
            self.tail[name] = value
        return True

    def result(self, line: int) -> ZoneSnapshot:
        """The zone, if all of it was there (`line` is where it ended)."""
        missing = [name for name in _NEEDED if name not in self.pages]
        if self.protection is None:
            missing.append("protection")
        elif self.pages.get("present") and "start_pfn" not in self.tail:
            missing.append("start_pfn")
        missing += [f"{name} of cpu {pcp['cpu']}" for pcp in self.pcp for name in _PCP[:3] if name not in pcp]
        if missing:
            raise InputError(f"{self.source}:{line}: {zone_label(self.key)} ends without {', '.join(missing)}")
        if not self.pages["spanned"] >= self.pages["present"] >= self.pages["managed"]:
            found = ", ".join(f"{name} {self.pages[name]}" for name in ("spanned", "present", "managed"))
            raise InputError(
                f"{self.source}:{line}: {zone_label(self.key)} has {found}; each is at most the one before"
            )
        sizes: dict[str, Any] = {f"{name}_pages": self.pages.get(name) for name in (*_SIZES, "free")}
        return ZoneSnapshot(
            node=self.key[0],
            name=self.key[1],
            start_pfn=self.tail.pop("start_pfn", None),
            watermarks={name: self.pages[name] for name in _WATERMARKS if name in self.pages},
            protection=self.protection or (),
            vm_stats_threshold=self.tail.pop("vm stats threshold", None),
            counters=self.counters | self.tail,
            pcp=tuple(map(_page_set, self.pcp)),
            **sizes,
        )


def _page_set(values: dict[str, int]) -> PcpSet:
    return PcpSet(
        cpu=values["cpu"],
        count=values["count"],
        high=values["high"],
        batch=values["batch"],
        high_min=values.get("high_min"),
        high_max=values.get("high_max"),
    )


def _put(values: dict[str, int], pattern: re.Pattern[str], row: str) -> bool:
    """Store a line of one name and one number; False if it is none, or is there already."""
    match = pattern.fullmatch(row)
    if match is None or match[1] in values:
        return False
    values[match[1]] = int(match[2])
    return True
