"""The parser of dumps of free lists; the format is described in `memmodel.sources.freelists`."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from memmodel.errors import InputError
from memmodel.sources.reading import refuse
from memmodel.sources.records import (
    MIGRATE_CMA,
    MIGRATE_ISOLATE,
    CompactionState,
    FreeLists,
    IntArray,
    PcpSet,
    ZoneKey,
    ZoneLists,
    zone_label,
)
from memmodel.sources.rows import MAX_ORDERS

__all__ = [
    "C_WORDS",
    "LABEL",
    "P_MORE",
    "P_NEEDED",
    "S_NEEDED",
    "WATERMARKS",
    "Z_WORDS",
    "parse_free_lists",
    "swap_isolate",
]

S_NEEDED = ("pageblock_order", "max_order", "page_shift", "nr_pcp_lists", "migrate_types")
Z_WORDS = {
    "start": "start_pfn",
    "spanned": "spanned_pages",
    "present": "present_pages",
    "managed": "managed_pages",
    "free": "free_pages",
    "cma_free": "free_cma_pages",
    "nr_free_highatomic": "nr_free_highatomic",
    "reserved_highatomic": "reserved_highatomic",
}
WATERMARKS = ("min", "low", "high")
C_WORDS = {
    "considered": "compact_considered",
    "defer_shift": "compact_defer_shift",
    "order_failed": "compact_order_failed",
    "cached_free": "compact_cached_free_pfn",
    "cached_migrate_async": "compact_cached_migrate_pfn_async",
    "cached_migrate_sync": "compact_cached_migrate_pfn_sync",
    "blockskip_flush": "compact_blockskip_flush",
}
P_NEEDED, P_MORE = ("count", "high", "batch"), ("free_count", "high_min", "high_max")
LABEL = re.compile("[!-~]+")

_NUMBER = re.compile("[0-9]{1,15}")  # a pfn has at most 52 bits
_TIME = re.compile("[0-9]{1,20}")
_FIRST_PMD_LIST = 12


def parse_free_lists(text: str, source: str) -> tuple[FreeLists, ...]:
    """The states in the text of a dump, in their order.

    Raises
    ------
    InputError
        If a line is not as the format demands, a pfn lies outside its zone or on two lists, or a count is not that of
        the lists.
    """
    states: list[FreeLists] = []
    state: _State | None = None
    line = n_bytes = 0
    for line, text_row in enumerate(text.split("\n"), 1):
        if not text_row and state is None:
            continue
        row = _Row(source, line, text_row)
        if state is None:
            state, n_bytes = _State(row), 0
        elif row.kind == "E":
            states.append(state.end(row, n_bytes))
            state = None
        else:
            state.take(row)
        n_bytes += len(text_row) + 1
    if state is not None:
        raise InputError(f"{source}:{line}: the file ends inside state {state.label}; its line E is missing")
    if not states:
        raise InputError(f"{source}: no state in it; a state begins with a line S")
    return tuple(states)


def swap_isolate(migratetype: int, n_migratetypes: int) -> int:
    """Between a kernel's number of a migratetype and ours, in either direction: without CMA its ISOLATE is 4."""
    if n_migratetypes == MIGRATE_ISOLATE and migratetype in (MIGRATE_CMA, MIGRATE_ISOLATE):
        return MIGRATE_CMA + MIGRATE_ISOLATE - migratetype
    return migratetype


class _Row:
    """One line: its kind, its words, and how to read or refuse them."""

    __slots__ = ("kind", "line", "source", "text", "words")

    def __init__(self, source: str, line: int, text: str) -> None:
        self.source, self.line, self.text = source, line, text
        self.kind, *self.words = text.split(" ")

    def refuse(self, allowed: str) -> InputError:
        return refuse(self.source, self.line, self.text, allowed)

    def number(self, at: int, what: str, limit: int | None = None) -> int:
        """Word `at` as a number, below `limit`."""
        word = self.words[at] if at < len(self.words) else ""
        if not _NUMBER.fullmatch(word) or (limit is not None and int(word) >= limit):
            bound = "" if limit is None else f" below {limit}"
            raise self.refuse(f"word {at + 1} after {self.kind} is the {what}, a number{bound}")
        return int(word)

    def named(self, at: int, needed: tuple[str, ...], more: tuple[str, ...]) -> dict[str, int]:
        """Words ``name=number`` from word `at` on."""
        found: dict[str, int] = {}
        for word in self.words[at:]:
            name, _, value = word.partition("=")
            if name not in needed + more or name in found or not _NUMBER.fullmatch(value):
                raise self.refuse(f"{word!r} is not one of {'= '.join(needed + more)}= once each, with a number")
            found[name] = int(value)
        missing = [name for name in needed if name not in found]
        if missing:
            raise self.refuse(f"{missing[0]}= is missing")
        return found

    def assigned(self, at: int, name: str) -> int:
        """The number in word `at`, which is ``name=number``."""
        word, _, value = (self.words[at] if at < len(self.words) else "").partition("=")
        if word != name or not _NUMBER.fullmatch(value):
            raise self.refuse(f"word {at + 1} after {self.kind} is {name}= with a number")
        return int(value)

    def pfns(self, at: int) -> IntArray:
        """The pfns after the colon at word `at`."""
        words = self.words[at + 1 :]
        if self.words[at : at + 1] != [":"] or not words or not all(map(_NUMBER.fullmatch, words)):
            raise self.refuse(f"word {at + 1} after {self.kind} is a colon, and pfns follow")
        return np.array([int(word) for word in words], np.int64)


class _State:
    """A state as its lines come."""

    def __init__(self, row: _Row) -> None:
        if (
            row.kind != "S"
            or len(row.words) < 2
            or not LABEL.fullmatch(row.words[0])
            or not _TIME.fullmatch(row.words[1])
        ):
            raise row.refuse("a state begins with S, its label and its time")
        self.label, self.time_ns = row.words[0], int(row.words[1])
        self.facts = row.named(2, S_NEEDED, ("order_known",))
        orders = self.facts["pageblock_order"], self.facts["max_order"]
        if not 0 < orders[0] <= orders[1] < MAX_ORDERS or self.facts["migrate_types"] not in (4, 5, 6):
            raise row.refuse(f"0 < pageblock_order <= max_order < {MAX_ORDERS}, and migrate_types are 4, 5 or 6")
        if not 9 < self.facts["page_shift"] < 21 or self.facts["nr_pcp_lists"] > 99:
            raise row.refuse("page_shift is 10 to 20, nr_pcp_lists at most 99")
        self.zones: dict[ZoneKey, _Zone] = {}

    def take(self, row: _Row) -> None:
        """Read one line inside the state."""
        readers: Mapping[str, Callable[[_Zone, _Row], None]] = {
            "F": _Zone.free_list,
            "C": _Zone.compaction_state,
            "P": _Zone.page_set,
            "L": _Zone.pcp_list,
            "B": _Zone.block,
        }
        if row.kind != "Z" and row.kind not in readers:
            raise row.refuse(f"lines of a state are Z, {', '.join(readers)} and E")
        key = row.number(0, "node"), row.words[1] if len(row.words) > 1 else ""
        if row.kind == "Z":
            if key in self.zones or not LABEL.fullmatch(key[1]):
                raise row.refuse("a zone has one line Z in a state, with its node and name")
            self.zones[key] = _Zone(key, self.facts, row)
        elif key not in self.zones:
            raise row.refuse(f"{zone_label(key)} has no line Z before this one")
        else:
            readers[row.kind](self.zones[key], row)

    def end(self, row: _Row, n_bytes: int) -> FreeLists:
        """The state, if its end line fits."""
        if not self.zones:
            raise row.refuse(f"state {self.label} has no zone; each has a line Z")
        zones = tuple(zone.result() for zone in self.zones.values())
        if row.words[:1] != [self.label] or len(row.words) != 2 or row.number(1, "number of bytes") != n_bytes:
            raise row.refuse(f"state {self.label} has {n_bytes} bytes before its end: E {self.label} {n_bytes}")
        return FreeLists(
            label=self.label,
            time_ns=self.time_ns,
            page_shift=self.facts["page_shift"],
            pageblock_order=self.facts["pageblock_order"],
            max_order=self.facts["max_order"],
            n_pcp_lists=self.facts["nr_pcp_lists"],
            n_migratetypes=self.facts["migrate_types"],
            zones=zones,
            order_known=self.facts.get("order_known", 1) != 0,
        )


@dataclass
class _Blocks:
    """The blocks of one list, with the line that had them."""

    row: _Row
    pfns: IntArray
    order: int


class _Zone:
    """One zone of a state as its lines come."""

    def __init__(self, key: ZoneKey, state: Mapping[str, int], row: _Row) -> None:
        self.key, self.state = key, state
        self.facts = row.named(2, ("start", "spanned"), (*tuple(Z_WORDS)[2:], *WATERMARKS))
        self.start = self.facts["start"]
        self.end = self.start + self.facts["spanned"]
        if self.end == self.start:
            raise row.refuse("a zone spans at least one page")
        self.free: dict[tuple[int, int], _Blocks] = {}
        self.nr: dict[int, tuple[_Row, int]] = {}
        self.sets: dict[int, dict[str, int]] = {}
        self.pcp: dict[tuple[int, int], _Blocks] = {}
        self.blocks: list[tuple[int, int, int]] = []
        self.compaction: dict[str, int] | None = None

    def _inside(self, row: _Row, pfns: IntArray, order: int) -> _Blocks:
        size = 1 << order
        wrong = pfns[(pfns < self.start) | (pfns + size > self.end) | (pfns % size != 0)]
        if wrong.size:
            where = f"{zone_label(self.key)} has pfns {self.start} to {self.end - 1}"
            raise row.refuse(f"pfn {wrong[0]} with order {order} is not an aligned block inside it: {where}")
        return _Blocks(row, pfns, order)

    def free_list(self, row: _Row) -> None:
        """Line F."""
        order = row.number(2, "order", self.state["max_order"] + 1)
        migratetype = swap_isolate(self._migratetype(row), self.state["migrate_types"])
        if (order, migratetype) in self.free:
            raise row.refuse("each free list has one line")
        nr = row.assigned(4, "nr")
        if self.nr.setdefault(order, (row, nr))[1] != nr:
            raise row.refuse(f"nr= is the same for all lists of an order, and was {self.nr[order][1]} above")
        self.free[order, migratetype] = self._inside(row, row.pfns(5), order)

    def _migratetype(self, row: _Row) -> int:
        return row.number(3, "migratetype", self.state["migrate_types"])

    def compaction_state(self, row: _Row) -> None:
        """Line C."""
        if self.compaction is not None:
            raise row.refuse("a zone has one line C")
        self.compaction = row.named(2, tuple(C_WORDS), ("watermark_boost",))

    def page_set(self, row: _Row) -> None:
        """Line P."""
        cpu = row.number(2, "CPU", 1 << 16)
        if cpu in self.sets:
            raise row.refuse("a zone has one line P for a CPU")
        self.sets[cpu] = row.named(3, P_NEEDED, P_MORE)

    def pcp_list(self, row: _Row) -> None:
        """Line L."""
        cpu, pindex = row.number(2, "CPU"), row.number(3, "pindex", self.state["nr_pcp_lists"])
        if cpu not in self.sets or (cpu, pindex) in self.pcp:
            raise row.refuse("each list has one line, below the line P of its CPU")
        # A page table page holds 8-byte entries, so that the PMD order is page_shift - 3.
        order = pindex // 3 if pindex < _FIRST_PMD_LIST else self.state["page_shift"] - 3
        self.pcp[cpu, pindex] = self._inside(row, row.pfns(4), order)

    def block(self, row: _Row) -> None:
        """Line B."""
        pfn, migratetype = row.number(2, "first pfn"), self._migratetype(row)
        skip = row.number(4, "skip bit", 2)
        size = 1 << self.state["pageblock_order"]
        last = self.blocks[-1][0] if self.blocks else -1
        if len(row.words) > 5 or pfn % size or pfn <= last or pfn + size <= self.start or pfn >= self.end:
            raise row.refuse(f"pageblocks of the zone ascend and are aligned to {size} pages")
        self.blocks.append((pfn, swap_isolate(migratetype, self.state["migrate_types"]), skip))

    def _check(self) -> None:
        """No page on two lists, and nr= is what the lists have."""
        for order, (row, nr) in self.nr.items():
            found = sum(blocks.pfns.size for (o, _), blocks in self.free.items() if o == order)
            if found != nr:
                raise row.refuse(f"the lists of order {order} have {found} blocks in all, not nr={nr}")
        lists = [*self.free.values(), *self.pcp.values()]
        if not lists:
            return
        pfns = np.concatenate([blocks.pfns for blocks in lists])
        ends = pfns + np.repeat([1 << b.order for b in lists], [b.pfns.size for b in lists])
        owner = np.repeat(np.arange(len(lists)), [b.pfns.size for b in lists])
        rank = np.argsort(pfns, kind="stable")
        twice = np.flatnonzero(ends[rank][:-1] > pfns[rank][1:])
        if twice.size:
            pfn = pfns[rank][twice[0] + 1]
            raise lists[owner[rank][twice[0] + 1]].row.refuse(f"pfn {pfn} is on two lists, or twice on this one")

    def result(self) -> ZoneLists:
        """The zone as a record."""
        self._check()
        blocks = np.array(self.blocks, np.int64).reshape(-1, 3)
        memory = self.compaction
        return ZoneLists(
            node=self.key[0],
            name=self.key[1],
            start_pfn=self.start,
            spanned_pages=self.end - self.start,
            present_pages=self.facts.get("present"),
            managed_pages=self.facts.get("managed"),
            free_pages=self.facts.get("free"),
            free_cma_pages=self.facts.get("cma_free"),
            nr_free_highatomic=self.facts.get("nr_free_highatomic"),
            reserved_highatomic=self.facts.get("reserved_highatomic"),
            watermarks={name: self.facts[name] for name in WATERMARKS if name in self.facts},
            watermark_boost=None if memory is None else memory.get("watermark_boost"),
            lists={key: blocks.pfns for key, blocks in self.free.items()},
            block_pfns=blocks[:, 0].copy(),
            block_migratetypes=blocks[:, 1].copy(),
            block_skip=blocks[:, 2] != 0,
            pcp=tuple(self._page_set(cpu, facts) for cpu, facts in self.sets.items()),
            compaction=None if memory is None else CompactionState(**{C_WORDS[word]: memory[word] for word in C_WORDS}),
        )

    def _page_set(self, cpu: int, facts: dict[str, int]) -> PcpSet:
        lists = {pindex: blocks.pfns for (owner, pindex), blocks in self.pcp.items() if owner == cpu}
        return PcpSet(
            cpu=cpu,
            count=facts["count"],
            high=facts["high"],
            batch=facts["batch"],
            high_min=facts.get("high_min"),
            high_max=facts.get("high_max"),
            free_count=facts.get("free_count"),
            lists=lists,
        )
