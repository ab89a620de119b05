"""The events that are read: their numbers, their formats in the kernels from 6.1 to 7.3, the columns of their fields.

A format is what follows ``event: `` in the text, with ``{name}`` for a decimal number, ``{name:x}`` for a hexadecimal
one, ``{name:w}`` for a word and ``{name:t}`` for a text (both go to the table of strings), ``{}`` for the pointer of a
page, which is hashed and not kept, and ``[...]`` for what some kernels do not print. A blank is one blank or more.
From include/trace/events/{kmem,compaction,migrate,cma,page_isolation,tlb,vmscan}.h, include/ras/ras_event.h.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final

import numpy as np

from memmodel.sources import ftrace_scanner as scanner

__all__ = ["FIELDS", "FORMATS", "TEXT_FIELDS", "Event", "event_name", "programs"]


class Event(IntEnum):
    """Tracepoints by their names, then marks, then the operations on free lists of an instrumented kernel."""

    MM_PAGE_ALLOC = 0
    MM_PAGE_FREE = 1
    MM_PAGE_FREE_BATCHED = 2
    MM_PAGE_ALLOC_ZONE_LOCKED = 3
    MM_PAGE_PCPU_DRAIN = 4
    MM_PAGE_ALLOC_EXTFRAG = 5
    MM_COMPACTION_BEGIN = 6
    MM_COMPACTION_END = 7
    MM_COMPACTION_ISOLATE_MIGRATEPAGES = 8
    MM_COMPACTION_ISOLATE_FREEPAGES = 9
    MM_COMPACTION_FAST_ISOLATE_FREEPAGES = 10
    MM_COMPACTION_MIGRATEPAGES = 11
    MM_COMPACTION_TRY_TO_COMPACT_PAGES = 12
    MM_COMPACTION_SUITABLE = 13
    MM_COMPACTION_FINISHED = 14
    MM_COMPACTION_DEFERRED = 15
    MM_COMPACTION_DEFER_COMPACTION = 16
    MM_COMPACTION_DEFER_RESET = 17
    MM_COMPACTION_KCOMPACTD_SLEEP = 18
    MM_COMPACTION_WAKEUP_KCOMPACTD = 19
    MM_COMPACTION_KCOMPACTD_WAKE = 20
    MM_MIGRATE_PAGES_START = 21
    MM_MIGRATE_PAGES = 22
    CMA_ALLOC_START = 23
    CMA_ALLOC_FINISH = 24
    CMA_ALLOC_BUSY_RETRY = 25
    CMA_RELEASE = 26
    TEST_PAGES_ISOLATED = 27
    TLB_FLUSH = 28
    MEMORY_FAILURE_EVENT = 29
    MM_VMSCAN_KSWAPD_WAKE = 30
    MM_VMSCAN_KSWAPD_SLEEP = 31
    MM_VMSCAN_WAKEUP_KSWAPD = 32
    MM_VMSCAN_DIRECT_RECLAIM_BEGIN = 33
    MM_VMSCAN_DIRECT_RECLAIM_END = 34
    TRACING_MARK_WRITE = 35
    MM_ALLOC_CONTIG_MIGRATE_RANGE_INFO = 36
    LIST_ADD = 37  # gt+: block added to a free list
    LIST_DELETE = 38  # gt-: block removed
    LIST_MOVE = 39  # gtm: block moved to the tail of another type's list
    LIST_ROTATE_FIRST = 40  # gtH: list rotated so that this block comes first
    LIST_ROTATE_LAST = 41  # gtT: ... last
    BLOCK_TYPE = 42  # gtB: a pageblock's type set
    BLOCK_ISOLATE = 43  # gtI: a pageblock's isolate bit set or cleared
    PCP_ADD = 44  # gtp+: page freed to the head of a per-CPU list
    PCP_ADD_TAIL = 45  # gtp>: page added to the tail (refill)
    PCP_DELETE = 46  # gtp-: page allocated from it
    PCP_DRAIN = 47  # gtpd: page drained from it
    DIRECT_FREE = 48  # gtd: mm_page_free that found the per-CPU lists locked and went to the buddy
    DUMP_BEGIN = 49  # gt S: the free lists were dumped here, under this label
    DUMP_END = 50  # gt E


_PAGE = "page={} pfn=0x{pfn:x} "
_RANGE = "range=(0x{start:x} ~ 0x{end:x}) nr_scanned={nr_scanned} nr_taken={nr_taken}"
_SCANNERS = (
    "zone_start=0x{zone_start:x} migrate_pfn=0x{migrate_pfn:x} free_pfn=0x{free_pfn:x} zone_end=0x{zone_end:x}, "
)
_ZONE = "node={node} zone={zone:w} order={order} "
_DEFER = _ZONE + "order_failed={order_failed} consider={consider} limit={limit}"
_KCOMPACTD = "nid={nid} order={order} classzone_idx={classzone_idx:w}"
_SUCCEEDED = "nr_succeeded={nr_succeeded} nr_failed={nr_failed} "
_THP = "nr_thp_succeeded={nr_thp_succeeded} nr_thp_failed={nr_thp_failed} nr_thp_split={nr_thp_split}"
_CMA = "name={name:w} pfn=0x{pfn:x} page={} count={count}"
_TASK = "[ pid={pid} memcg_id={memcg_id}]"

FORMATS: Final[Mapping[Event, tuple[str, ...]]] = {
    Event.MM_PAGE_ALLOC: (_PAGE + "order={order} migratetype={migratetype} gfp_flags={gfp_flags:w}",),
    Event.MM_PAGE_FREE: (_PAGE + "order={order}",),
    Event.MM_PAGE_FREE_BATCHED: (_PAGE + "order={order}",),
    Event.MM_PAGE_ALLOC_ZONE_LOCKED: (_PAGE + "order={order} migratetype={migratetype} percpu_refill={percpu_refill}",),
    Event.MM_PAGE_PCPU_DRAIN: (_PAGE + "order={order} migratetype={migratetype}",),
    Event.MM_PAGE_ALLOC_EXTFRAG: (
        _PAGE + "alloc_order={alloc_order} fallback_order={fallback_order} pageblock_order={pageblock_order} "
        "alloc_migratetype={alloc_migratetype} fallback_migratetype={fallback_migratetype} "
        "fragmenting={fragmenting} change_ownership={change_ownership}",
    ),
    Event.MM_COMPACTION_BEGIN: (_SCANNERS + "mode={mode:w}",),
    Event.MM_COMPACTION_END: (_SCANNERS + "mode={mode:w} status={status:w}",),
    Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES: (_RANGE,),
    Event.MM_COMPACTION_ISOLATE_FREEPAGES: (_RANGE,),
    Event.MM_COMPACTION_FAST_ISOLATE_FREEPAGES: (_RANGE,),
    Event.MM_COMPACTION_MIGRATEPAGES: ("nr_migrated={nr_migrated} nr_failed={nr_failed}",),
    Event.MM_COMPACTION_TRY_TO_COMPACT_PAGES: ("order={order} gfp_mask={gfp_mask:w} priority={priority}",),
    Event.MM_COMPACTION_SUITABLE: (_ZONE + "ret={ret:w}",),
    Event.MM_COMPACTION_FINISHED: (_ZONE + "ret={ret:w}",),
    Event.MM_COMPACTION_DEFERRED: (_DEFER,),
    Event.MM_COMPACTION_DEFER_COMPACTION: (_DEFER,),
    Event.MM_COMPACTION_DEFER_RESET: (_DEFER,),
    Event.MM_COMPACTION_KCOMPACTD_SLEEP: ("nid={nid}",),
    Event.MM_COMPACTION_WAKEUP_KCOMPACTD: (_KCOMPACTD,),
    Event.MM_COMPACTION_KCOMPACTD_WAKE: (_KCOMPACTD,),
    Event.MM_MIGRATE_PAGES_START: ("mode={mode:w} reason={reason:w}",),
    Event.MM_MIGRATE_PAGES: (_SUCCEEDED + _THP + "[ nr_split={nr_split}] mode={mode:w} reason={reason:w}",),
    Event.CMA_ALLOC_START: (
        "name={name:w} count={count} align={align}",
        "name={name:w} request_count={count} available_count={available_count} total_count={total_count} align={align}",
    ),
    Event.CMA_ALLOC_FINISH: (_CMA + " align={align}[ errorno={errorno}]",),
    Event.CMA_ALLOC_BUSY_RETRY: (_CMA + " align={align}",),
    Event.CMA_RELEASE: (_CMA,),
    Event.TEST_PAGES_ISOLATED: ("start_pfn=0x{start_pfn:x} end_pfn=0x{end_pfn:x} fin_pfn=0x{fin_pfn:x} ret={ret:w}",),
    Event.TLB_FLUSH: ("pages:{pages} reason:{reason:t}({reason_number})",),
    Event.MEMORY_FAILURE_EVENT: ("pfn 0x{pfn:x}: recovery action for {page_type:t}: {result:t}",),
    Event.MM_VMSCAN_KSWAPD_WAKE: ("nid={nid} order={order}",),
    Event.MM_VMSCAN_KSWAPD_SLEEP: ("nid={nid}",),
    Event.MM_VMSCAN_WAKEUP_KSWAPD: ("nid={nid} order={order} gfp_flags={gfp_flags:w}",),
    Event.MM_VMSCAN_DIRECT_RECLAIM_BEGIN: ("order={order} gfp_flags={gfp_flags:w}" + _TASK,),
    Event.MM_VMSCAN_DIRECT_RECLAIM_END: ("nr_reclaimed={nr_reclaimed}" + _TASK,),
    Event.TRACING_MARK_WRITE: ("{text:t}",),
    Event.MM_ALLOC_CONTIG_MIGRATE_RANGE_INFO: (
        "start=0x{start:x} end=0x{end:x} migratetype={migratetype} nr_migrated={nr_migrated} "
        "nr_reclaimed={nr_reclaimed} nr_mapped={nr_mapped}",
    ),
    Event.LIST_ADD: ("gt+ {pfn} {order} {migratetype} {tail}",),
    Event.LIST_DELETE: ("gt- {pfn} {order} {migratetype}",),
    Event.LIST_MOVE: ("gtm {pfn} {order} {migratetype} {new_migratetype}",),
    Event.LIST_ROTATE_FIRST: ("gtH {pfn} {order} {migratetype}",),
    Event.LIST_ROTATE_LAST: ("gtT {pfn} {order} {migratetype}",),
    Event.BLOCK_TYPE: ("gtB {pfn} {migratetype}",),
    Event.BLOCK_ISOLATE: ("gtI {pfn} {isolate}",),
    Event.PCP_ADD: ("gtp+ {pfn} {pindex}",),
    Event.PCP_ADD_TAIL: ("gtp> {pfn} {pindex}",),
    Event.PCP_DELETE: ("gtp- {pfn} {pindex}",),
    Event.PCP_DRAIN: ("gtpd {pfn} {pindex}",),
    Event.DIRECT_FREE: ("gtd {pfn} {order}",),
    Event.DUMP_BEGIN: ("gt S {label:w}",),
    Event.DUMP_END: ("gt E {label:w}",),
}

TEXT_FIELDS: Final = frozenset(
    name for formats in FORMATS.values() for text in formats for name in re.findall(r"{(\w+):[wt]}", text)
) | {"function"}
"""Fields whose column has the number of a string."""


def event_name(event: Event) -> str:
    """The tracepoint's name as the trace has it, or the first word of a list operation."""
    return FORMATS[event][0].partition(" ")[0] if event >= Event.LIST_ADD else event.name.lower()


def _columns(event: Event) -> dict[str, int]:
    names = dict.fromkeys(name for text in FORMATS[event] for name in re.findall(r"{(\w+)", text))
    columns = {name: at for at, name in enumerate(("pfn", "order", "migratetype")) if name in names}
    free = iter(sorted(set(range(scanner.N_FIELDS)) - set(columns.values())))
    columns |= {name: next(free) for name in names if name not in columns}
    return columns | ({"function": scanner.FUNCTION} if event >= Event.LIST_ADD else {})


FIELDS: Final[Mapping[Event, Mapping[str, int]]] = {event: _columns(event) for event in Event}
"""The column of each field of an event: pfn, order and migratetype are always 0, 1 and 2."""


def _variants(text: str) -> tuple[str, ...]:
    """A format with and without what is optional in it."""
    before, bracket, rest = text.partition("[")
    optional, _, after = rest.partition("]")
    return (before + optional + after, before + after) if bracket else (text,)


def _compile(event: Event, text: str) -> Iterator[int]:
    """The instructions of a format."""
    kinds = {"": scanner.DECIMAL, "x": scanner.HEX, "w": scanner.WORD, "t": scanner.TEXT}
    for part in re.split("({[^}]*})", text):
        name, _, kind = part.strip("{}").partition(":")
        if not part.startswith("{"):
            yield from (scanner.LITERAL << 8 | byte for byte in part.encode())
        elif name:
            yield kinds[kind] << 8 | FIELDS[event][name]
        else:
            yield scanner.POINTER << 8
    yield scanner.END << 8


@functools.cache
def programs() -> scanner.Programs:
    """All formats, as the scanner takes them."""
    by_name: dict[str, list[tuple[Event, str]]] = {}
    for event, formats in FORMATS.items():
        texts = [text.partition(" ")[2] for text in formats] if event >= Event.LIST_ADD else formats
        variants = [(event, variant) for text in texts for variant in _variants(text)]
        by_name.setdefault(event_name(event), []).extend(variants)
    events = [event for formats in by_name.values() for event, _ in formats]
    codes = [np.fromiter(_compile(*variant), np.int64) for variants in by_name.values() for variant in variants]
    sizes = [code.size for code in codes]
    return scanner.Programs(
        names=np.frombuffer("".join(f"{name}\n" for name in by_name).encode(), np.uint8),
        n_events=int(Event.LIST_ADD),
        first=np.cumsum([0, *(len(formats) for formats in by_name.values())]),
        event=np.array(events, np.int64),
        start=np.cumsum([0, *sizes[:-1]]),
        code=np.concatenate(codes),
    )
