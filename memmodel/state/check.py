"""The laws of physical memory: one compiled walk over all rows, one over all lists."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from memmodel.errors import InvariantError
from memmodel.jit import inlined, kernel
from memmodel.state.layout import NONE, BlockBit, Feature, Kind, Memory, MigrateType, PageFlag

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
    PCP_COUNT = 12
    CONSERVATION = 13
    FOLIO_TABLE = 14


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
    Law.FREE_PAGES: lambda z, n: f"zone {z}: NR_FREE_PAGES differs from the lists' {n}",
    Law.FREE_CMA: lambda z, n: f"zone {z}: NR_FREE_CMA_PAGES differs from the lists' {n}",
    Law.PCP_COUNT: lambda s, n: f"per-CPU set {s}: its count differs from the lists' {n} pages",
    Law.CONSERVATION: lambda z, n: (
        f"zone {z}: free + per-CPU + used + isolated + hwpoisoned = {n}, not its managed pages"
    ),
    Law.FOLIO_TABLE: lambda s, p: f"folio slot {s} and row {p} do not point at each other",
}

ZERO, ONE = np.uint64(0), np.uint64(1)
KIND_SHIFT, ORDER_BITS = np.uint64(4), np.uint64(15)
N_KINDS = np.int64(len(Kind))
TAIL, FREE, PCP, USED = (np.uint64(kind) for kind in (Kind.TAIL, Kind.FREE, Kind.PCP, Kind.USED))
ISOLATED = np.uint64(Kind.ISOLATED)
FIRST_TYPES = np.uint64(6)
PCP_LISTS = np.uint64(14)
CMA, ISOLATE = np.uint64(MigrateType.CMA), np.uint64(MigrateType.ISOLATE)
ISOLATE_BIT = np.uint64(BlockBit.ISOLATE)
FLAG_HWPOISON = np.uint64(PageFlag.HWPOISON)
HYGIENE = np.uint64(Feature.FREELIST_HYGIENE)
EMPTY = np.uint64(NONE)


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
    law, where, what = _walk_rows(memory, pages_by_kind, heads)
    if not law:
        law, where, what = _walk_lists(memory, heads)
    if not law:
        law, where, what = _conservation(memory, pages_by_kind)
    if not law:
        law, where, what = _folio_table(memory)
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
        if kind == USED:
            for part in range(index, end):
                if np.uint64(mem.pages[part].pg_flags) & FLAG_HWPOISON:
                    pages_by_kind[page.zone, Kind.USED.value] -= 1
                    pages_by_kind[page.zone, Kind.HWPOISON.value] += 1
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
            isolated = np.uint64(block.bits) & ISOLATE_BIT
            if migratetype != (ISOLATE if isolated else np.uint64(block.migratetype)):
                return Law.LIST_TYPE.value, after, migratetype
        length += ONE
        index = after


@inlined
def _walk_free_lists(mem: Any, zone: Any, row: Any, heads: Any) -> Any:
    """The free lists of one zone, whose heads begin at `row`, and the counters that go with them."""
    free, cma = ZERO, ZERO
    for order in range(mem.params.max_order + ONE):
        blocks = ZERO
        for migratetype in range(FIRST_TYPES):
            law, n, what = _walk_list(mem, row, zone, (FREE << KIND_SHIFT) | order, migratetype)
            if law:
                return law, n, what
            blocks += n
            if migratetype != ISOLATE:
                free += n << order
            if migratetype == CMA:
                cma += n << order
            row += ONE
        if mem.zones[zone].nr_free[order] != blocks:
            return Law.NR_FREE.value, np.uint64(zone), order
        if np.uint64(heads[zone, order]) != blocks:
            return Law.ON_NO_LIST.value, np.uint64(zone), order
    if mem.zones[zone].free_pages != free:
        return Law.FREE_PAGES.value, np.uint64(zone), free
    if mem.zones[zone].free_cma != cma:
        return Law.FREE_CMA.value, np.uint64(zone), cma
    return 0, ZERO, ZERO


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
        if np.uint64(page.state) >> KIND_SHIFT != USED or page.next != slot:
            return Law.FOLIO_TABLE.value, np.uint64(slot), index
    if live != mem.slots[0]:
        return Law.FOLIO_TABLE.value, mem.slots[0], live
    return 0, ZERO, ZERO
