"""What a trace and a predicted compaction say alike: tracepoints of mm/compaction.c, and operations on free lists."""

from typing import Any, NamedTuple

import numpy as np

from memmodel.kernels.compact_control import CompactResult, Said
from memmodel.replaying.plan import ISOLATES
from memmodel.sources.ftrace import FIELDS as FIELDS_OF
from memmodel.sources.ftrace import Event, Trace

__all__ = ["FIELDS", "SAID", "Told", "heard", "spelt"]

SAID = {
    Event.MM_COMPACTION_BEGIN: Said.BEGIN,
    Event.MM_COMPACTION_END: Said.END,
    Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES: Said.ISOLATE_MIGRATEPAGES,
    Event.MM_COMPACTION_ISOLATE_FREEPAGES: Said.ISOLATE_FREEPAGES,
    Event.MM_COMPACTION_FAST_ISOLATE_FREEPAGES: Said.FAST_ISOLATE_FREEPAGES,
    Event.MM_COMPACTION_MIGRATEPAGES: Said.MIGRATEPAGES,
    Event.MM_COMPACTION_FINISHED: Said.FINISHED,
    Event.MM_COMPACTION_SUITABLE: Said.SUITABLE,
    Event.MM_COMPACTION_DEFERRED: Said.DEFERRED,
    Event.MM_COMPACTION_DEFER_COMPACTION: Said.DEFER,
    Event.MM_COMPACTION_DEFER_RESET: Said.DEFER_RESET,
    Event.LIST_DELETE: Said.ISOLATED,
    Event.LIST_ROTATE_FIRST: Said.ROTATED_FIRST,
    Event.LIST_ROTATE_LAST: Said.ROTATED_LAST,
}
ROWS = ("migrate_pfn", "free_pfn", "start", "end", "pfn")  # fields that are rows in what the model says
SCAN = ("start", "end", "nr_scanned", "nr_taken")
FIELDS = {
    **dict.fromkeys((Said.ISOLATE_MIGRATEPAGES, Said.ISOLATE_FREEPAGES, Said.FAST_ISOLATE_FREEPAGES), SCAN),
    Said.BEGIN: ("migrate_pfn", "free_pfn"),
    Said.END: ("migrate_pfn", "free_pfn", "status"),
    Said.MIGRATEPAGES: ("nr_migrated", "nr_failed"),
    Said.FINISHED: ("zone", "order", "ret"),
    Said.SUITABLE: ("zone", "order", "ret"),
    Said.DEFERRED: ("zone", "order", "order_failed", "consider"),
    Said.DEFER: ("zone", "order", "order_failed", "consider"),
    Said.DEFER_RESET: ("zone", "order", "order_failed", "consider"),
    Said.ISOLATED: ("pfn", "order"),
    Said.ROTATED_FIRST: ("pfn", "order"),
    Said.ROTATED_LAST: ("pfn", "order"),
}
"""Of the trace's event, for the numbers of what is said."""


class Told(NamedTuple):
    """One thing that the model's run said."""

    said: int
    numbers: list[int]
    """Their meaning: `FIELDS`; positions are rows."""
    row_of_pfn_0: int
    """In the zone that it was about."""


def heard(trace: Trace) -> set[int]:
    """What the trace tells of compactions; an instrumented kernel's has all operations on lists."""
    told = {int(said) for event, said in SAID.items() if trace.rows(event).size}
    functions = trace.fields[trace.rows(Event.LIST_DELETE), FIELDS_OF[Event.LIST_DELETE]["function"]]
    isolates = [number for number, text in enumerate(trace.strings) if text in ISOLATES]
    operations = {int(said) for event, said in SAID.items() if event >= Event.LIST_ADD}
    return told | operations if np.any(np.isin(functions, isolates)) else told - operations


def spelt(told: Told, zone_names: list[str]) -> tuple[Any, ...]:
    """It, and its numbers in the trace's words."""

    def spell(name: str, number: int) -> Any:
        if name in ROWS:
            return number - told.row_of_pfn_0
        if name == "zone":
            return zone_names[number]
        if name in ("ret", "status"):
            return CompactResult(number).name.lower()
        return number

    return told.said, *map(spell, FIELDS[Said(told.said)], told.numbers)
