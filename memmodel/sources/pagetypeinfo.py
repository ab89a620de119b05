"""/proc/pagetypeinfo: free blocks by order and migratetype, pageblocks by migratetype (mm/vmstat.c, 6.1 to 7.3).

The kernel repeats the whole report for every node. A count of 100000 means that it stopped counting there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memmodel.errors import InputError
from memmodel.sources.reading import refuse
from memmodel.sources.records import (
    MIGRATE_TYPES,
    MIGRATETYPE_NAMES,
    BoolArray,
    IntArray,
    ZoneKey,
    zone_label,
)
from memmodel.sources.rows import MAX_ORDERS, check_orders, counts, fields, numbered_rows, refuse_twice, zone_head

__all__ = ["CAP", "PageTypeInfo", "TypeCounts", "format_pagetypeinfo", "parse_pagetypeinfo"]

CAP = 100_000

_FREE_ROW = re.compile(r"Node +([0-9]{1,4}), +zone +(\S+), +type +(\S+)((?: +>?[0-9]{1,12})+)")
_COUNT_ROW = re.compile(r"Node +([0-9]{1,4}), +zone +(\S+)((?: +[0-9]{1,12})+)")
_HEADER = re.compile(r"(Page block order|Pages per block): +([0-9]{1,6})")
_TABLES = {"Number of blocks type": "blocks", "Number of mixed blocks": "mixed"}


@dataclass(frozen=True, eq=False)
class TypeCounts:
    """One zone of pagetypeinfo: free blocks by [migratetype, order], pageblocks by [migratetype]."""

    type_free: IntArray
    type_free_capped: BoolArray
    type_blocks: IntArray
    mixed_blocks: IntArray | None = None


@dataclass(frozen=True, eq=False)
class PageTypeInfo:
    """pagetypeinfo as a whole; `migratetypes` are those that have rows."""

    pageblock_order: int
    migratetypes: tuple[int, ...]
    zones: dict[ZoneKey, TypeCounts]


def parse_pagetypeinfo(text: str, source: str) -> PageTypeInfo:
    """Free blocks and pageblocks by migratetype, from the reports of all nodes.

    Raises
    ------
    InputError
        If a line is malformed or stands where it cannot, a row comes twice or is missing.
    """
    report = _Report(source)
    line = 0
    for line, row in numbered_rows(text):
        report.take(line, row)
    return report.result(line)


def format_pagetypeinfo(
    pageblock_order: int,
    type_free: Mapping[ZoneKey, IntArray],
    type_blocks: Mapping[ZoneKey, IntArray],
    migratetypes: Sequence[int] = range(MIGRATE_TYPES),
) -> str:
    """The text of /proc/pagetypeinfo, byte for byte, a report for each node (``pagetypeinfo_show``, mm/vmstat.c).

    `type_free` has int64[migratetype, order], `type_blocks` int64[migratetype] for each zone.
    """
    names = [MIGRATETYPE_NAMES[migratetype] for migratetype in migratetypes]
    report: list[str] = []
    for node in dict.fromkeys(key[0] for key in type_free):
        keys = [key for key in type_free if key[0] == node]
        orders = range(type_free[keys[0]].shape[1])
        report += [f"Page block order: {pageblock_order}", f"Pages per block:  {1 << pageblock_order}", ""]
        report.append(f"{'Free pages count per migrate type at order':<43} " + fields(orders, 6))
        for key in keys:
            for migratetype, name in zip(migratetypes, names, strict=True):
                head = f"Node {node:4d}, zone {key[1]:>8}, type {name:>12} "
                report.append(head + "".join(map(_free_field, type_free[key][migratetype].tolist())))
        report += ["", f"{'Number of blocks type ':<23}" + fields(names, 12)]
        report += [zone_head(key) + fields(type_blocks[key][list(migratetypes)].tolist(), 12) for key in keys]
    return "".join(f"{row}\n" for row in report)


def _free_field(count: int) -> str:
    return f">{CAP:6d} " if count >= CAP else f"{count:6d} "


class _Report:
    """Rows as they come, and what the headers above them announced."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.pageblock_order: int | None = None
        self.n_orders = 0
        self.migratetypes: tuple[int, ...] = ()
        self.table = ""  # the one whose header came last
        self.free: dict[ZoneKey, dict[int, list[str]]] = {}
        self.counts: dict[str, dict[ZoneKey, IntArray]] = {table: {} for table in _TABLES.values()}

    def take(self, line: int, row: str) -> None:
        """Put one row where it belongs, or refuse it."""
        words = row.split()
        title = " ".join(words[:4])
        if match := _HEADER.fullmatch(row):
            self._header(line, row, match[1], int(match[2]))
        elif title == "Free pages count per":
            if words[4:8] != ["migrate", "type", "at", "order"] or words[8:] != list(map(str, range(len(words) - 8))):
                raise refuse(self.source, line, row, "the header of the free rows ends in the orders, from 0 up")
            self.n_orders = check_orders(self.source, line, len(words) - 8, self.n_orders)
        elif title in _TABLES:
            self._table(line, row, _TABLES[title], [self._migratetype(line, name) for name in words[4:]])
        elif match := _FREE_ROW.fullmatch(row):
            self._free_row(line, (int(match[1]), match[2]), self._migratetype(line, match[3]), match[4].split())
        elif (match := _COUNT_ROW.fullmatch(row)) and self.table:
            self._count_row(line, (int(match[1]), match[2]), counts(match[3]))
        else:
            raise refuse(self.source, line, row, "this is no line of pagetypeinfo, or one cut short")

    def _header(self, line: int, row: str, name: str, value: int) -> None:
        if name == "Pages per block":
            if self.pageblock_order is None or value != 1 << self.pageblock_order:
                raise refuse(self.source, line, row, "pages per block are two to the power of the page block order")
        elif not 0 < value < MAX_ORDERS or self.pageblock_order not in (None, value):
            raise refuse(self.source, line, row, f"the order is 1 to {MAX_ORDERS - 1} and the same for all nodes")
        else:
            self.pageblock_order = value

    def _table(self, line: int, row: str, table: str, migratetypes: list[int]) -> None:
        if not migratetypes or self.migratetypes not in ((), tuple(migratetypes)):
            raise refuse(
                self.source, line, row, "the migratetypes, the same in every table of the file, are named here"
            )
        self.table, self.migratetypes = table, tuple(migratetypes)

    def _free_row(self, line: int, key: ZoneKey, migratetype: int, words: list[str]) -> None:
        self.n_orders = check_orders(self.source, line, len(words), self.n_orders)
        for word in words:
            if word.startswith(">") and word != f">{CAP}":
                raise refuse(self.source, line, word, f'only ">{CAP}" is printed with ">"')
        rows = self.free.setdefault(key, {})
        if migratetype in rows:
            found = f"{zone_label(key)}, type {MIGRATETYPE_NAMES[migratetype]}"
            raise refuse(self.source, line, found, "a zone and type have one row, and this is the second")
        rows[migratetype] = words

    def _count_row(self, line: int, key: ZoneKey, values: IntArray) -> None:
        if values.size != len(self.migratetypes):
            raise refuse(self.source, line, f"{values.size} counts", f"{len(self.migratetypes)} types are named above")
        rows = self.counts[self.table]
        refuse_twice(self.source, line, key, rows)
        rows[key] = np.zeros(MIGRATE_TYPES, np.int64)
        rows[key][list(self.migratetypes)] = values

    def _migratetype(self, line: int, name: str) -> int:
        if name not in MIGRATETYPE_NAMES:
            raise refuse(self.source, line, name, f"migratetypes are {', '.join(MIGRATETYPE_NAMES)}")
        return MIGRATETYPE_NAMES.index(name)

    def result(self, line: int) -> PageTypeInfo:
        """The report, if all of it was there."""
        where = f"{self.source}:{line}"
        blocks, mixed = self.counts["blocks"], self.counts["mixed"]
        if self.pageblock_order is None or not self.free:
            raise InputError(f"{where}: the file ends without a page block order and rows of free blocks")
        if self.pageblock_order >= self.n_orders:
            found = f"page block order {self.pageblock_order}"
            raise InputError(f"{where}: {found} with {self.n_orders} orders; it is at most the largest of them")
        for key in (*blocks, *mixed, *self.free):
            if key not in self.free or key not in blocks:
                raise InputError(f"{where}: {zone_label(key)} needs both free rows and a number of blocks")
            if set(self.free[key]) != set(self.migratetypes):
                found = f"{zone_label(key)} has {len(self.free[key])} rows of free blocks"
                raise InputError(f"{where}: {found}; the {len(self.migratetypes)} types named have one each")
        zones = {key: self._zone(rows, blocks[key], mixed.get(key)) for key, rows in self.free.items()}
        return PageTypeInfo(self.pageblock_order, self.migratetypes, zones)

    def _zone(self, rows: dict[int, list[str]], blocks: IntArray, mixed: IntArray | None) -> TypeCounts:
        free = np.zeros((MIGRATE_TYPES, self.n_orders), np.int64)
        capped = np.zeros(free.shape, np.bool_)
        for migratetype, words in rows.items():
            free[migratetype] = [int(word.lstrip(">")) for word in words]
            capped[migratetype] = [word.startswith(">") for word in words]
        return TypeCounts(free, capped, blocks, mixed)
