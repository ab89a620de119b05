"""Parsers of the well-formed files of /proc, and writers of the two that the model prints itself.

Formats as mm/vmstat.c, fs/proc/meminfo.c and fs/proc/page.c of 6.1, 6.12 and 7.3 print them. Every parser takes the
contents and the name of their source; a line that is not the kernel's is refused with ``source:line``.
"""

import re
from collections.abc import Mapping

from memmodel.errors import InputError
from memmodel.sources.kpageflags import parse_kpageflags
from memmodel.sources.pagetypeinfo import PageTypeInfo, TypeCounts, format_pagetypeinfo, parse_pagetypeinfo
from memmodel.sources.reading import refuse
from memmodel.sources.records import IntArray, ZoneKey
from memmodel.sources.rows import check_orders, counts, fields, numbered_rows, refuse_twice, zone_head
from memmodel.sources.zoneinfo import parse_zoneinfo

__all__ = [
    "PageTypeInfo",
    "TypeCounts",
    "format_buddyinfo",
    "format_pagetypeinfo",
    "parse_buddyinfo",
    "parse_kpageflags",
    "parse_meminfo",
    "parse_pagetypeinfo",
    "parse_version",
    "parse_vmstat",
    "parse_zoneinfo",
]

_BUDDY = re.compile(r"Node +([0-9]{1,4}), +zone +(\S+)((?: +[0-9]{1,12})+)")
_VERSION = re.compile(r"Linux version (\S+) .*#.*")
_DEBIAN = re.compile(r" Debian ([0-9]+\.[0-9]+\.[0-9]+)-")
_VMSTAT = re.compile(r"(\w+) ([0-9]{1,20})", re.ASCII)
_MEMINFO = re.compile(r"([\w()]+): +([0-9]{1,20})( kB)?", re.ASCII)


def parse_buddyinfo(text: str, source: str) -> dict[ZoneKey, IntArray]:
    """Free blocks by order, of all migratetypes together, for each populated zone.

    Raises
    ------
    InputError
        If a line is malformed, a zone comes twice or the lines differ in their number of orders.
    """
    zones: dict[ZoneKey, IntArray] = {}
    n_orders = 0
    for line, row in numbered_rows(text):
        match = _BUDDY.fullmatch(row)
        if match is None:
            raise refuse(source, line, row, 'buddyinfo has "Node N, zone NAME" and a count for each order in a line')
        key, nr_free = (int(match[1]), match[2]), counts(match[3])
        n_orders = check_orders(source, line, nr_free.size, n_orders)
        refuse_twice(source, line, key, zones)
        zones[key] = nr_free
    if not zones:
        raise InputError(f"{source}: no zone in it; buddyinfo has a line for each populated zone")
    return zones


def format_buddyinfo(nr_free: Mapping[ZoneKey, IntArray]) -> str:
    """The text of /proc/buddyinfo, byte for byte (``frag_show_print``, mm/vmstat.c)."""
    return "".join(f"{zone_head(key)}{fields(row.tolist(), 6)}\n" for key, row in nr_free.items())


def parse_vmstat(text: str, source: str) -> dict[str, int]:
    """Counters by name: pages or events, nr_kernel_stack in KiB.

    Raises
    ------
    InputError
        If a line is not a name and a number, or a name comes twice.
    """
    return {match[1]: int(match[2]) for match in _named_numbers(text, source, _VMSTAT, "a name and a number")}


def parse_meminfo(text: str, source: str) -> dict[str, int]:
    """Bytes for the lines in kB, the number itself for the others (HugePages_Total and its like).

    Raises
    ------
    InputError
        If a line is not a name and a size, or a name comes twice.
    """
    rows = _named_numbers(text, source, _MEMINFO, '"Name: number kB"')
    return {match[1]: int(match[2]) * (1024 if match[3] else 1) for match in rows}


def _named_numbers(text: str, source: str, pattern: re.Pattern[str], form: str) -> list[re.Match[str]]:
    found: dict[str, re.Match[str]] = {}
    for line, row in numbered_rows(text):
        match = pattern.fullmatch(row)
        if match is None:
            raise refuse(source, line, row, f"every line has {form}")
        if match[1] in found:
            raise refuse(source, line, match[1], "a name comes once, and this one comes twice")
        found[match[1]] = match
    if not found:
        raise InputError(f"{source}: no value in it; every line has {form}")
    return list(found.values())


def parse_version(text: str, source: str) -> str:
    """Name of the kernel that /proc/version gives.

    Debian names a kernel by its interface ("6.1.0-57-amd64") and prints the release that it was made of behind it.

    Raises
    ------
    InputError
        If it is not that line.
    """
    for line, row in numbered_rows(text):
        match = _VERSION.fullmatch(row)
        if match is None:
            raise refuse(source, line, row, 'version has "Linux version RELEASE (...) ... #BUILD ..."')
        debian = _DEBIAN.search(row)
        return match[1] if debian is None else debian[1]
    raise InputError(f"{source}: no line in it; version has one")
