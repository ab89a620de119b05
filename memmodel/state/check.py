"""The laws of physical memory: one compiled walk over all rows, one over all lists."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from memmodel.errors import InvariantError
from memmodel.jit import inlined, kernel
from memmodel.state.check_areas import free_page_taken, wrong_count, wrong_place
from memmodel.state.gigantic import not_whole
from memmodel.state.layout import NONE, NR_ORDERS, BlockBit, Feature, Kind, Memory, MigrateType, PageFlag

__all__ = ["Law", "check"]


class Law(IntEnum):
    """What can be broken, in the order in which it is looked for."""

    TAIL_WITHOUT_HEAD = 1
    BLOCK_MISALIGNED = 2
    BLOCK_CROSSES_ZONE = 3
    BLOCKS_OVERLAP = 4
    LIST_LINKS = 5
    LIST_MEMBER = 6
    LIST_TYPE = 7
    NR_FREE = 8
    ON_NO_LIST = 9
    FREE_PAGES = 10
    FREE_CMA = 11
    FREE_HIGHATOMIC = 12
    STAT_THRESHOLD = 13
    PCP_COUNT = 14
    CONSERVATION = 15
    NR_ISOLATE_PAGEBLOCK = 16
    CAPTURED = 17
    LRU_NOT_USED = 18
    LRU_BATCH = 19
    FOLIO_TABLE = 20
    HWPOISON_COUNT = 21
    FAILURE_EVENTS = 22
    AREA_PLACE = 23
    AREA_COUNT = 24
    AREA_PAGE = 25
    GIGANTIC_PAGE = 26


MESSAGES: dict[Law, Callable[[int, int], str]] = {
    Law.TAIL_WITHOUT_HEAD: lambda p, _: f"row {p} belongs to no block of a zone",
    Law.BLOCK_MISALIGNED: lambda p, o: f"block of order {o} at row {p} is not aligned to its size",
    Law.BLOCK_CROSSES_ZONE: lambda p, o: f"block of order {o} at row {p} leaves its zone",
    Law.BLOCKS_OVERLAP: lambda p, q: f"the block at row {p} holds row {q}, which begins a block of its own",
    Law.LIST_LINKS: lambda p, q: f"row {p} is followed by row {q}, whose prev link points elsewhere",
    Law.LIST_MEMBER: lambda p, z: f"row {p} on a list of zone {z} is not a free block of that list's order and zone",
    Law.LIST_TYPE: lambda p, t: f"row {p} is on a list of migratetype {t}, its pageblock is of another",
    Law.NR_FREE: lambda z, o: f"zone {z}: nr_free[{o}] differs from the lengths of the lists",
    Law.ON_NO_LIST: lambda z, o: f"zone {z}: a free block of order {o} is on no list",
    Law.FREE_PAGES: lambda z, n: f"zone {z}: NR_FREE_PAGES with the CPUs' differences is not the lists' {n}",
    Law.FREE_CMA: lambda z, n: f"zone {z}: NR_FREE_CMA_PAGES with the CPUs' differences is not the lists' {n}",
    Law.FREE_HIGHATOMIC: lambda z, n: f"zone {z}: nr_free_highatomic differs from the lists' {n}",
    Law.STAT_THRESHOLD: lambda s, n: f"per-CPU set {s}: a counter's difference is beyond the threshold of {n}",
    Law.PCP_COUNT: lambda s, n: f"per-CPU set {s}: its count differs from the lists' {n} pages",
    Law.CONSERVATION: lambda z, n: (
        f"zone {z}: free + per-CPU + used + isolated + hwpoisoned = {n}, not its managed pages"
    ),
    Law.NR_ISOLATE_PAGEBLOCK: lambda z, n: f"zone {z}: nr_isolate_pageblock differs from its {n} isolated pageblocks",
    Law.CAPTURED: lambda z, p: f"zone {z}: captured row {p} is not a used block of the zone, of the order waited for",
    Law.LRU_NOT_USED: lambda p, _: f"row {p} is on an LRU list or in a batch and not in use",
    Law.LRU_BATCH: lambda c, p: f"LRU batch of CPU {c}: row {p} is not the one place of a folio in use that waits",
    Law.FOLIO_TABLE: lambda s, p: f"folio slot {s} and row {p} do not point at each other",
    Law.HWPOISON_COUNT: lambda n, m: f"{n} pages have PG_hwpoison, the machine counts {m}",
    Law.FAILURE_EVENTS: lambda n, t: f"node {n}: its {t} memory failures are not the sum of its results",
    Law.AREA_PLACE: lambda a, p: f"CMA area {a}: row {p} is outside its zone, in another area, or of another type",
    Law.AREA_COUNT: lambda a, n: f"CMA area {a}: its bitmap leaves {n} pages, it counts others",
    Law.AREA_PAGE: lambda a, p: (
        f"CMA area {a}: a page of the block at row {p}, which the allocator holds, is given out"
    ),
    Law.GIGANTIC_PAGE: lambda g, p: f"gigantic page {g}: row {p} is not in use as a page of it alone",
}

ZERO, ONE = np.uint64(0), np.uint64(1)
KIND_SHIFT, ORDER_BITS = np.uint64(4), np.uint64(15)
N_KINDS = np.int64(len(Kind))
TAIL, FREE, PCP, USED = (np.uint64(kind) for kind in (Kind.TAIL, Kind.FREE, Kind.PCP, Kind.USED))
ISOLATED, LOST = np.uint64(Kind.ISOLATED), np.uint64(Kind.HWPOISON)
FIRST_TYPES = np.uint64(6)
PCP_LISTS = np.uint64(14)
CMA, ISOLATE = np.uint64(MigrateType.CMA), np.uint64(MigrateType.ISOLATE)
HIGHATOMIC = np.uint64(MigrateType.HIGHATOMIC)
ISOLATE_BIT = np.uint64(BlockBit.ISOLATE)
FLAG_HWPOISON = np.uint64(PageFlag.HWPOISON)
ON_LRU = np.uint64(PageFlag.LRU | PageFlag.LRU_BATCH)
NO_MOBILITY = np.uint64(Feature.NO_MOBILITY)
HYGIENE, COUNTS_RESERVE = np.uint64(Feature.FREELIST_HYGIENE), np.uint64(Feature.FREE_HIGHATOMIC)
EMPTY = np.uint64(NONE)

Broken = tuple[int, int, int]  # a law and where it is broken, as its message takes them
SOUND: Broken = (0, 0, 0)


def check(memory: Memory) -> None:
    """Verify every law of the state.

    Raises
    ------
    InvariantError
        Naming the first law broken, and where.
    """
    n_zones = memory.zones.size
    pages_by_kind = np.zeros((n_zones, int(N_KINDS)), np.int64)
    heads = np.zeros((n_zones, 16), np.int64)
    broken = _walk_rows(memory, pages_by_kind, heads)
    for walk in (
        lambda: _walk_lists(memory, heads),
        lambda: _conservation(memory, pages_by_kind),
        lambda: _isolated_pageblocks(memory),
        lambda: _captured(memory),
        lambda: _lru_batches(memory),
        lambda: _folio_table(memory),
        lambda: _failures(memory),
        lambda: _areas(memory),
    ):
        broken = broken if broken[0] else walk()
    law, where, what = broken
    if law:
        raise InvariantError(f"{Law(law).name}: {MESSAGES[Law(law)](int(where), int(what))}")


@inlined
def _check_block(mem: Any, index: Any, end: Any, order: Any) -> Any:
    """A block is aligned, inside its zone, and nothing else begins in it."""
    zone = mem.pages[index].zone
    if index & ((ONE << order) - ONE):
        return Law.BLOCK_MISALIGNED.value, index, order
    if index < mem.zones[zone].start or end > mem.zones[zone].end:
        return Law.BLOCK_CROSSES_ZONE.value, index, order
    for tail in range(index + ONE, end):
        if mem.pages[tail].state != ZERO or mem.pages[tail].zone != zone:
            return Law.BLOCKS_OVERLAP.value, index, tail
    return 0, ZERO, ZERO


@kernel
def _walk_rows(mem: Any, pages_by_kind: Any, heads: Any) -> Any:
    """Blocks tile the rows; pages by zone and kind, free blocks by zone and order."""
    index = ZERO
    while index < mem.params.n_pages:
        page = mem.pages[index]
        kind, order = np.uint64(page.state) >> KIND_SHIFT, np.uint64(page.state) & ORDER_BITS
        end = index + (ONE << order)
        if kind == TAIL or end > mem.params.n_pages or page.zone >= mem.zones.size:
            return Law.TAIL_WITHOUT_HEAD.value, index, ZERO
        if kind == FREE or kind == PCP or kind == USED or kind == ISOLATED:
            law, where, what = _check_block(mem, index, end, order)
            if law:
                return law, where, what
        if kind == FREE:
            heads[page.zone, order] += 1
        pages_by_kind[page.zone, kind] += np.int64(end - index)
        for part in range(index, end):
            flags = np.uint64(mem.pages[part].pg_flags)
            if kind == USED and flags & FLAG_HWPOISON:
                pages_by_kind[page.zone, Kind.USED.value] -= 1
                pages_by_kind[page.zone, Kind.HWPOISON.value] += 1
            if kind != USED and flags & ON_LRU:
                return Law.LRU_NOT_USED.value, np.uint64(part), ZERO
        index = end
    return 0, ZERO, ZERO


@inlined
def _walk_list(mem: Any, head: Any, zone: Any, state: Any, migratetype: Any) -> Any:
    """Length of one list, or the law it breaks. `migratetype` of TYPES and more: not looked at."""
    length = ZERO
    index = head
    while True:
        after = np.uint64(mem.pages[index].next)
        if after >= mem.pages.size or np.uint64(mem.pages[after].prev) != index:
            return Law.LIST_LINKS.value, index, after
        if after == head:
            return 0, length, ZERO
        page = mem.pages[after]
        if after >= mem.params.n_pages or page.state != state or page.zone != zone:
            return Law.LIST_MEMBER.value, after, np.uint64(zone)
        if migratetype < FIRST_TYPES and mem.params.features & HYGIENE:
            block = mem.blocks[after >> mem.params.pageblock_order]
            owner = ISOLATE if np.uint64(block.bits) & ISOLATE_BIT else np.uint64(block.migratetype)
            # Without mobility grouping a merge makes pageblocks UNMOVABLE, whatever the list.
            grouped = not mem.params.features & NO_MOBILITY or max(migratetype, owner) >= HIGHATOMIC
            if migratetype != owner and grouped:
                return Law.LIST_TYPE.value, after, migratetype
        length += ONE
        index = after


@inlined
def _check_counters(mem: Any, zone: Any, free: Any, cma: Any, highatomic: Any) -> Any:
    """A zone's counters, together with what its CPUs have not told it yet, are the pages on its lists."""
    record = mem.zones[zone]
    n_cpus = mem.pcp.size // mem.zones.size
    free_pages, free_cma = np.int64(record.free_pages), np.int64(record.free_cma)
    for number in range(zone * n_cpus, (zone + 1) * n_cpus):
        free_diff, cma_diff = np.int64(mem.pcp[number].free_diff), np.int64(mem.pcp[number].cma_diff)
        if max(abs(free_diff), abs(cma_diff)) > record.stat_threshold:
            return Law.STAT_THRESHOLD.value, np.uint64(number), np.uint64(record.stat_threshold)
        free_pages += free_diff
        free_cma += cma_diff
    if free_pages != free:
        return Law.FREE_PAGES.value, np.uint64(zone), np.uint64(free)
    if free_cma != cma:
        return Law.FREE_CMA.value, np.uint64(zone), np.uint64(cma)
    if mem.params.features & COUNTS_RESERVE and record.free_highatomic != highatomic:
        return Law.FREE_HIGHATOMIC.value, np.uint64(zone), np.uint64(highatomic)
    return 0, ZERO, ZERO


@inlined
def _walk_free_lists(mem: Any, zone: Any, row: Any, heads: Any) -> Any:
    """The free lists of one zone, whose heads begin at `row`, and the counters that go with them."""
    free, cma, highatomic = np.int64(0), np.int64(0), np.int64(0)
    for order in range(mem.params.max_order + ONE):
        blocks = ZERO
        for migratetype in range(FIRST_TYPES):
            law, n, what = _walk_list(mem, row, zone, (FREE << KIND_SHIFT) | order, migratetype)
            if law:
                return law, n, what
            blocks += n
            if migratetype != ISOLATE:
                free += np.int64(n << order)
            if migratetype == CMA:
                cma += np.int64(n << order)
            if migratetype == HIGHATOMIC:
                highatomic += np.int64(n << order)
            row += ONE
        if mem.zones[zone].nr_free[order] != blocks:
            return Law.NR_FREE.value, np.uint64(zone), order
        if np.uint64(heads[zone, order]) != blocks:
            return Law.ON_NO_LIST.value, np.uint64(zone), order
    return _check_counters(mem, zone, free, cma, highatomic)


@inlined
def _walk_pcp_lists(mem: Any, zone: Any, row: Any) -> Any:
    """The per-CPU lists of one zone, whose heads begin at `row`, and their counts."""
    n_cpus = mem.pcp.size // mem.zones.size
    for cpu in range(n_cpus):
        pages = ZERO
        for _ in range(PCP_LISTS):
            first = np.uint64(mem.pages[row].next)
            order = np.uint64(mem.pages[first].state) & ORDER_BITS
            law, n, what = _walk_list(mem, row, zone, (PCP << KIND_SHIFT) | order, FIRST_TYPES)
            if law:
                return law, n, what
            pages += n << order
            row += ONE
        if mem.pcp[zone * n_cpus + cpu].count != pages:
            return Law.PCP_COUNT.value, np.uint64(zone * n_cpus + cpu), pages
    return 0, ZERO, ZERO


@kernel
def _walk_lists(mem: Any, heads: Any) -> Any:
    """Lists are sound, hold what they should, and the counters agree with them."""
    params = mem.params
    for zone in range(mem.zones.size):
        row = params.n_pages + np.uint64(zone) * params.heads_per_zone
        law, where, what = _walk_free_lists(mem, zone, row, heads)
        if not law:
            row += (params.max_order + ONE) * FIRST_TYPES
            law, where, what = _walk_pcp_lists(mem, zone, row)
        if law:
            return law, where, what
    return 0, ZERO, ZERO


@kernel
def _conservation(mem: Any, pages_by_kind: Any) -> Any:
    """Free + per-CPU + used + isolated + hwpoisoned = managed, zone by zone."""
    for zone in range(mem.zones.size):
        pages = -np.int64(mem.zones[zone].beyond_managed)
        for kind in range(N_KINDS):
            if kind != Kind.HOLE.value and kind != Kind.RESERVED.value:
                pages += pages_by_kind[zone, kind]
        if pages != np.int64(mem.zones[zone].managed):
            return Law.CONSERVATION.value, np.uint64(zone), np.uint64(pages)
    return 0, ZERO, ZERO


def _isolated_pageblocks(memory: Memory) -> Broken:
    """Each zone counts the isolated pageblocks whose first page that lies in any zone is its own."""
    order, zones = int(memory.params.pageblock_order), memory.zones
    bits = memory.blocks["bits"]
    isolated = (bits & BlockBit.ISOLATE != 0) | (memory.blocks["migratetype"] == MigrateType.ISOLATE)
    first = np.flatnonzero(isolated & (bits & BlockBit.OFFLINE == 0)) << order
    begin = np.maximum(first, zones["start"][:, None].astype(np.int64))
    outside = begin >= np.minimum(first + (1 << order), zones["end"][:, None].astype(np.int64))
    owner = np.where(outside, memory.pages.size, begin).argmin(axis=0)
    counts = np.bincount(owner[~outside.all(axis=0)], minlength=zones.size)
    for zone in np.flatnonzero(counts != zones["nr_isolate_pageblock"]):
        return Law.NR_ISOLATE_PAGEBLOCK, int(zone), int(counts[zone])
    return SOUND


def _captured(memory: Memory) -> Broken:
    """The page that a compacting task got is out of the lists, and of the order that it waits for."""
    for number, zone in enumerate(memory.zones):
        row, order = int(zone["captured"]), int(zone["capture_order"])
        if row == NONE:
            continue
        in_zone = zone["start"] <= row < zone["end"]
        if not in_zone or order >= NR_ORDERS or memory.pages["state"][row] != Kind.USED << 4 | order:
            return Law.CAPTURED, number, row
    return SOUND


def _lru_batches(memory: Memory) -> Broken:
    """The folios in batches are those that say so, each in one place."""
    n_pages = int(memory.params.n_pages)
    waiting = set(np.flatnonzero(memory.pages["pg_flags"][:n_pages] & PageFlag.LRU_BATCH).tolist())
    for cpu, batch in enumerate(memory.lru):
        for row in batch["index"][: batch["count"]].tolist():
            if batch["count"] > batch["size"] or row not in waiting or memory.pages["state"][row] >> 4 != Kind.USED:
                return Law.LRU_BATCH, cpu, row
            waiting.remove(row)
    return (Law.LRU_BATCH, 0, min(waiting)) if waiting else SOUND


def _failures(memory: Memory) -> Broken:
    """HardwareCorrupted is the number of pages marked so; each failure has one result."""
    marked = np.count_nonzero(memory.pages["pg_flags"][: int(memory.params.n_pages)] & PageFlag.HWPOISON)
    if marked != memory.failure["num_poisoned"][0]:
        return Law.HWPOISON_COUNT, int(marked), int(memory.failure["num_poisoned"][0])
    counters = memory.node_failures
    results = sum(counters[name] for name in ("ignored", "failed", "delayed", "recovered"))
    for node in np.flatnonzero(counters["total"] != results):
        return Law.FAILURE_EVENTS, int(node), int(counters["total"][node])
    return SOUND


def _areas(memory: Memory) -> Broken:
    """CMA areas lie where they should, and what they and gigantic pages have is nobody else's."""
    for law, search in (
        (Law.AREA_PLACE, wrong_place),
        (Law.AREA_COUNT, wrong_count),
        (Law.AREA_PAGE, free_page_taken),
        (Law.GIGANTIC_PAGE, not_whole),
    ):
        broken = search(memory)
        if broken is not None:
            return law, *broken
    return SOUND


@kernel
def _folio_table(mem: Any) -> Any:
    """A live slot and its folio's first page point at each other."""
    live = ZERO
    for slot in range(mem.slots[1]):
        index = np.uint64(mem.folios[slot].index)
        if index == EMPTY:
            continue
        live += ONE
        if index >= mem.params.n_pages:
            return Law.FOLIO_TABLE.value, np.uint64(slot), index
        page = mem.pages[index]
        kind = np.uint64(page.state) >> KIND_SHIFT  # a page lost to an error may stand for those who had it
        if (kind != USED and kind != LOST) or page.next != slot:
            return Law.FOLIO_TABLE.value, np.uint64(slot), index
    if live != mem.slots[0]:
        return Law.FOLIO_TABLE.value, mem.slots[0], live
    return 0, ZERO, ZERO
