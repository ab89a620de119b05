"""Where everything lies: a snapshot turned into free lists and the use of every page.

Three ways, from exact to made up: a dump of the free lists; kpageflags, which leaves types and list order open; the
counts of buddyinfo and pagetypeinfo alone, for which places are drawn at random.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.sources.records import (
    MIGRATE_CMA,
    MIGRATE_HIGHATOMIC,
    MIGRATE_ISOLATE,
    MIGRATE_MOVABLE,
    MIGRATE_TYPES,
    MIGRATETYPE_NAMES,
    FreeLists,
    IntArray,
    Snapshot,
    ZoneKey,
    ZoneLists,
    ZoneSnapshot,
    zone_label,
)
from memmodel.sources.snapshot import usual_page_size
from memmodel.state.drawn import draw_lists, smallest_span
from memmodel.state.from_flags import TypedLists, lists_from_flags
from memmodel.state.page_use import use_of_pages

__all__ = ["Placement", "place"]

MAX_PAGES = 1 << 31


@dataclass(frozen=True, eq=False, kw_only=True)
class Placement:
    """Free lists, and what every page from `first_pfn` on is.

    `page_kind` (`Kind`, with TAIL for all pages of a block or folio but the first), `page_flags` (`PageFlag`),
    `page_order` (of the block or folio that begins here) and `page_bits` (`FolioBit`) have one entry a pfn; pages
    outside all zones are holes.
    `source` is "dump", "kpageflags" or "drawn". `assumed` has one line for each thing that no file says,
    `differences` one for each that cannot be placed as the files count it.
    """

    source: str
    free_lists: FreeLists
    first_pfn: int
    page_kind: npt.NDArray[np.uint8]
    page_flags: npt.NDArray[np.uint8]
    page_order: npt.NDArray[np.uint8]
    page_bits: npt.NDArray[np.uint32]
    assumed: tuple[str, ...]
    differences: tuple[str, ...]


def place(snapshot: Snapshot, *, seed: int = 0) -> Placement:
    """Free lists and page use from the best that the snapshot has.

    Parameters
    ----------
    snapshot
        With a dump, or with buddyinfo or pagetypeinfo.
    seed
        For the places that are drawn; without effect where kpageflags or a dump say them.

    Raises
    ------
    InputError
        If the snapshot has neither, its zones overlap or are too large, or its counts fit into no zone.
    """
    if snapshot.free_lists is not None:
        source, lists, assumed, differences = "dump", snapshot.free_lists, [], []
        _check_spans((zone.key, zone.start_pfn, zone.end_pfn) for zone in lists.zones)
    else:
        known = [zone for zone in snapshot.zones.values() if zone.end_pfn is not None]
        _check_spans((zone.key, zone.start_pfn or 0, zone.end_pfn or 0) for zone in known)
        builder = _Builder(snapshot, np.random.default_rng(np.random.SeedSequence(seed)))
        lists = builder.free_lists()
        source, assumed, differences = builder.source, builder.assumed, builder.differences
    use = use_of_pages(lists, snapshot.kpageflags if source != "drawn" else None)
    return Placement(
        source=source,
        free_lists=lists,
        first_pfn=use.first_pfn,
        page_kind=use.kind,
        page_flags=use.flags,
        page_order=use.order,
        page_bits=use.bits,
        assumed=(*assumed, *use.assumed),
        differences=(*differences, *use.differences),
    )


def _check_spans(spans: Iterable[tuple[ZoneKey, int, int]]) -> None:
    """Refuse zones that overlap, or that arrays by pfn cannot hold."""
    zones = sorted(spans, key=lambda span: span[1])
    for (below, _, end), (above, start, _) in pairwise(zones):
        if end > start:
            names = f"{zone_label(below)} and {zone_label(above)}"
            raise InputError(f"{names} overlap at pfn {start}; zones whose spans interleave cannot be placed")
    if zones and zones[-1][2] - zones[0][1] > MAX_PAGES:
        raise InputError(
            f"the zones span pfns {zones[0][1]} to {zones[-1][2] - 1}; at most {MAX_PAGES} pages are possible"
        )


class _Builder:
    """Free lists from a snapshot without a dump; it collects what it had to assume."""

    def __init__(self, snapshot: Snapshot, rng: np.random.Generator) -> None:
        if snapshot.max_order is None:
            raise InputError("neither buddyinfo nor pagetypeinfo nor a dump is among the files; one of them is needed")
        self.snapshot, self.rng = snapshot, rng
        self.assumed: list[str] = []
        self.differences: list[str] = []
        self.max_order = snapshot.max_order
        self.page_shift = self._page_shift()
        self.pageblock_order = self._pageblock_order()
        self.source = self._source()
        self.next_pfn = max((zone.end_pfn or 0 for zone in snapshot.zones.values()), default=0)

    def _page_shift(self) -> int:
        if self.snapshot.page_size_bytes is not None:
            return self.snapshot.page_size_bytes.bit_length() - 1
        size, remark = usual_page_size(self.max_order)
        if size is None:
            raise InputError(remark)
        self.assumed.append(remark)
        return size.bit_length() - 1

    def _pageblock_order(self) -> int:
        if self.snapshot.pageblock_order is not None:
            return self.snapshot.pageblock_order
        order = min(self.page_shift - 3, self.max_order)
        self.assumed.append(f"page block order {order}: the PMD order, as without PAGE_BLOCK_MAX_ORDER")
        return order

    def _source(self) -> str:
        if self.snapshot.kpageflags is None:
            return "drawn"
        if all(zone.end_pfn is not None for zone in self.snapshot.zones.values()):
            return "kpageflags"
        self.assumed.append("kpageflags is not used: which zone a page is of would be in zoneinfo, which is missing")
        return "drawn"

    def free_lists(self) -> FreeLists:
        """The record; lists stand in ascending order, for their real one is not known."""
        zones = tuple(self._zone(zone) for zone in self.snapshot.zones.values())
        printed = [len(zone.migratetypes) for zone in self.snapshot.zones.values() if zone.migratetypes]
        self.assumed.append("order of the blocks in each free list: ascending")
        if self.source == "drawn":
            self.assumed.append("places of free blocks and of pageblock types: drawn at random")
        return FreeLists(
            label="placed",
            time_ns=0,
            page_shift=self.page_shift,
            pageblock_order=self.pageblock_order,
            max_order=self.max_order,
            n_pcp_lists=14,
            n_migratetypes=max(printed, default=MIGRATE_TYPES),
            zones=zones,
            order_known=False,
        )

    def _zone(self, zone: ZoneSnapshot) -> ZoneLists:
        if zone.type_free is None:
            how = "guessed from the use of their pages" if self.source == "kpageflags" else "all Movable"
            self._assume(zone, f"types of pageblocks: {how}, for pagetypeinfo is missing")
        waiting = sum(pcp.count for pcp in zone.pcp)
        if waiting:
            self._assume(zone, f"{waiting} pages on per-CPU lists: taken as used, for no file says which they are")
        if self.source == "kpageflags" and self.snapshot.kpageflags is not None:
            span = zone.start_pfn or 0, zone.end_pfn or 0
            typed = lists_from_flags(self.snapshot.kpageflags, zone, span, self.pageblock_order, self.max_order)
        else:
            rows = self._type_free(zone)
            span = self._span(zone, rows)
            typed = draw_lists(self.rng, zone.key, span, rows, self._type_blocks(zone, span), self.pageblock_order)
        self.differences += typed.differences
        return _record(zone, span, typed)

    def _assume(self, zone: ZoneSnapshot, text: str) -> None:
        self.assumed.append(f"{zone_label(zone.key)}: {text}")

    def _span(self, zone: ZoneSnapshot, type_free: IntArray) -> tuple[int, int]:
        if zone.start_pfn is not None and zone.end_pfn is not None:
            return zone.start_pfn, zone.end_pfn
        n_pageblocks = 0 if zone.type_blocks is None else int(zone.type_blocks.sum())
        pages = smallest_span(type_free.sum(axis=0), n_pageblocks, self.pageblock_order)
        start = -(-self.next_pfn >> self.max_order) << self.max_order
        self.next_pfn = start + pages
        if self.next_pfn > MAX_PAGES:
            raise InputError(f"{zone_label(zone.key)}: its counts need more than {MAX_PAGES} pages")
        self._assume(zone, f"pfns {start} to {start + pages - 1}: the smallest span, for zoneinfo is missing")
        return start, start + pages

    def _type_free(self, zone: ZoneSnapshot) -> IntArray:
        """Free blocks by [migratetype, order], with the counts that pagetypeinfo stopped made up from buddyinfo."""
        if zone.type_free is None or zone.type_free_capped is None:
            rows = np.zeros((MIGRATE_TYPES, self.max_order + 1), np.int64)
            if zone.nr_free is None:
                self._assume(zone, "no free blocks, for it is in neither buddyinfo nor pagetypeinfo")
            else:
                rows[MIGRATE_MOVABLE] = zone.nr_free
            return rows
        rows = zone.type_free.copy()
        for order in np.flatnonzero(zone.type_free_capped.any(axis=0)).tolist():
            first = int(np.argmax(zone.type_free_capped[:, order]))
            if zone.nr_free is not None:
                rows[first, order] += max(0, int(zone.nr_free[order] - rows[:, order].sum()))
            if zone.nr_free is None or np.count_nonzero(zone.type_free_capped[:, order]) > 1:
                name = MIGRATETYPE_NAMES[first]
                self._assume(
                    zone, f"{rows[first, order]} free {name} blocks of order {order}: pagetypeinfo says only >100000"
                )
        return rows

    def _type_blocks(self, zone: ZoneSnapshot, span: tuple[int, int]) -> IntArray:
        if zone.type_blocks is not None:
            return zone.type_blocks
        blocks = np.zeros(MIGRATE_TYPES, np.int64)
        blocks[MIGRATE_MOVABLE] = ((span[1] - 1) >> self.pageblock_order) - (span[0] >> self.pageblock_order) + 1
        return blocks


def _record(zone: ZoneSnapshot, span: tuple[int, int], typed: TypedLists) -> ZoneLists:
    """The record of a zone, whose counters are those of its lists: the counters of zoneinfo lag."""
    free = np.zeros(MIGRATE_TYPES, np.int64)
    for (order, migratetype), pfns in typed.lists.items():
        free[migratetype] += pfns.size << order
    return ZoneLists(
        node=zone.node,
        name=zone.name,
        start_pfn=span[0],
        spanned_pages=span[1] - span[0],
        present_pages=zone.present_pages,
        managed_pages=zone.managed_pages,
        free_pages=int(free.sum() - free[MIGRATE_ISOLATE]),
        free_cma_pages=int(free[MIGRATE_CMA]),
        nr_free_highatomic=int(free[MIGRATE_HIGHATOMIC]),
        reserved_highatomic=zone.counters.get("reserved_highatomic"),
        watermarks={name: zone.watermarks[name] for name in ("min", "low", "high") if name in zone.watermarks},
        watermark_boost=zone.watermarks.get("boost"),
        lists=dict(sorted(typed.lists.items())),
        block_pfns=typed.block_pfns,
        block_migratetypes=typed.block_migratetypes,
        block_skip=np.zeros(typed.block_pfns.size, np.bool_),
        pcp=tuple(replace(pcp, count=0, lists={}) for pcp in zone.pcp),
    )
