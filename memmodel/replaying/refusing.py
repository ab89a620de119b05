"""Events that cannot be what they say: left out of a replay, each with its line.

A step must name pages of a zone of this machine, and a block that this kernel can have: nothing checks them later.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.kernels.replay_state import Action
from memmodel.sources.ftrace import FIELDS, Event, Trace
from memmodel.sources.gfp import parse_gfp
from memmodel.sources.records import BoolArray, IntArray
from memmodel.state.layout import MigrateType, ZoneType
from memmodel.state.machine import Machine

__all__ = ["PAGED", "Problem", "check_cpus", "leave_out"]

PAGED = [Action.ALLOC, Action.FREE, Action.PUSH, Action.ISOLATE, Action.ROTATE]  # steps with a page, as first told
ORDERED = [Action.ALLOC, Action.FREE, Action.ISOLATE, Action.ROTATE]
CMA_EVENTS = (Event.CMA_ALLOC_START, Event.CMA_ALLOC_FINISH, Event.CMA_ALLOC_BUSY_RETRY, Event.CMA_RELEASE)
# Fields that are pfns inside memory, orders (the lowest possible), gfp flags.
PFNS = (
    (Event.MM_COMPACTION_BEGIN, "zone_start"),
    (Event.MM_COMPACTION_BEGIN, "migrate_pfn"),
    (Event.MM_COMPACTION_FAST_ISOLATE_FREEPAGES, "end"),
)
ORDERS = (
    (Event.MM_COMPACTION_TRY_TO_COMPACT_PAGES, 0),
    (Event.MM_VMSCAN_DIRECT_RECLAIM_BEGIN, 0),
    (Event.MM_COMPACTION_KCOMPACTD_WAKE, 0),
)
GFP_FLAGS = (
    (Event.MM_COMPACTION_TRY_TO_COMPACT_PAGES, "gfp_mask"),
    (Event.MM_VMSCAN_DIRECT_RECLAIM_BEGIN, "gfp_flags"),
)

MAX_ALIGN_ORDER = 12  # of CONFIG_CMA_ALIGNMENT

Text = Callable[[int], str]
Drop = Callable[[IntArray, Text], None]


@dataclass(frozen=True)
class Problem:
    """An event that cannot be what it says, and was left out."""

    line: int
    text: str


def check_cpus(mem: Machine, trace: Trace, first_row: int) -> None:
    """A trace of more CPUs than the start has is of another machine.

    Raises
    ------
    InputError
        With the line of the first such event.
    """
    beyond = first_row + np.flatnonzero(trace.cpu[first_row:] >= mem.cpus)
    if beyond.size:
        row = beyond[0]
        where = f"{trace.source}:{int(trace.line[row])}"
        raise InputError(
            f"{where}: an event of CPU {int(trace.cpu[row])}; the start has the lists of {mem.cpus} CPU(s)"
        )


def leave_out(mem: Machine, trace: Trace, actions: npt.NDArray[np.int8]) -> list[Problem]:
    """Set the action of what cannot be to -1, and say why.

    Raises
    ------
    InputError
        If gfp flags of an event that is not a request are unknown.
    """
    problems: list[Problem] = []

    def drop(rows: IntArray, text: Text) -> None:
        problems.extend(Problem(int(trace.line[row]), text(row)) for row in rows.tolist())
        actions[rows] = -1

    _pages(mem, trace, actions, drop)
    _compactions(mem, trace, actions, drop)
    _contiguous(mem, trace, actions, drop)
    for event, field in GFP_FLAGS:
        for row in _rows(trace, actions, event).tolist():
            try:
                parse_gfp(str(trace.values(row)[field]))
            except InputError as error:
                raise InputError(f"{trace.source}:{int(trace.line[row])}: {error}") from None
    return sorted(problems, key=lambda problem: problem.line)


def _among(actions: npt.NDArray[np.int8], kinds: list[Action]) -> BoolArray:
    """np.isin() by a table: five times as fast."""
    table = np.zeros(256, np.bool_)
    table[kinds] = True
    found: BoolArray = table[actions.view(np.uint8)]
    return found


def _rows(trace: Trace, actions: npt.NDArray[np.int8], event: Event) -> IntArray:
    rows: IntArray = np.flatnonzero((trace.event == event) & (actions >= 0))
    return rows


def _inside(mem: Machine, pfns: IntArray, ends: IntArray) -> BoolArray:
    """Whether all of [pfn, end) lies in one segment of memory."""
    segment = np.searchsorted(mem.pfns.starts, pfns, side="right") - 1
    inside: BoolArray = (
        (segment >= 0) & (pfns <= ends) & (pfns < mem.pfns.ends[segment]) & (ends <= mem.pfns.ends[segment])
    )
    return inside


def _pages(mem: Machine, trace: Trace, actions: npt.NDArray[np.int8], drop: Drop) -> None:
    """Steps with a page: one of memory, aligned to an order that this kernel has, all of it in one zone."""
    pfns, orders, top = trace.fields[:, 0], trace.fields[:, 1], mem.geometry.max_page_order
    rows = np.flatnonzero(_among(actions, PAGED[1:]))
    drop(rows[pfns[rows] < 0], lambda row: "a page that is NULL is freed")
    rows = np.flatnonzero(_among(actions, ORDERED))
    drop(
        rows[(orders[rows] < 0) | (orders[rows] > top)],
        lambda row: f"order {int(orders[row])}; 0 to {top} are possible",
    )
    rows = np.flatnonzero(_among(actions, PAGED) & (pfns >= 0))
    drop(rows[~_inside(mem, pfns[rows], pfns[rows] + 1)], lambda row: f"pfn {int(pfns[row]):#x} is outside memory")
    rows = np.flatnonzero(_among(actions, PAGED) & (pfns >= 0))
    sizes = 1 << np.where(actions[rows] == Action.PUSH, 0, orders[rows])
    crooked = pfns[rows] & (sizes - 1) != 0
    drop(rows[crooked], lambda row: f"pfn {int(pfns[row]):#x} is no multiple of its order")
    rows, sizes = rows[~crooked], sizes[~crooked]
    first = mem.pfns.index(pfns[rows])
    zone = mem.state.pages["zone"][first]
    start, end = (np.asarray(mem.state.zones[name])[zone] for name in ("start", "end"))
    beside = (first < start) | (first + sizes > end)
    drop(rows[beside], lambda row: f"the block at pfn {int(pfns[row]):#x} is in no zone")


def _outside(trace: Trace, field: str, row: int) -> str:
    return f"{field} {int(trace.values(row)[field]):#x} is outside memory"


def _wrong_order(trace: Trace, possible: tuple[int, int], row: int) -> str:
    return f"order {trace.values(row)['order']}; {possible[0]} to {possible[1]} are possible"


def _compactions(mem: Machine, trace: Trace, actions: npt.NDArray[np.int8], drop: Drop) -> None:
    """Scanners inside memory, orders that this kernel has."""
    for event, field in PFNS:
        rows = _rows(trace, actions, event)
        pfns = trace.fields[rows, FIELDS[event][field]]
        drop(rows[~_inside(mem, pfns, pfns)], functools.partial(_outside, trace, field))
    columns = FIELDS[Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES]
    rows = _rows(trace, actions, Event.MM_COMPACTION_ISOLATE_MIGRATEPAGES)
    start, end, n_taken = (trace.fields[rows, columns[name]] for name in ("start", "end", "nr_taken"))
    wrong = ~_inside(mem, start, end) | (n_taken < 0) | (n_taken > end - start)
    drop(rows[wrong], lambda row: f"a scan that cannot be: {trace.values(row)}")
    top = mem.geometry.max_page_order
    for event, lowest in ORDERS:
        rows = _rows(trace, actions, event)
        orders = trace.fields[rows, FIELDS[event]["order"]]
        drop(rows[(orders < lowest) | (orders > top)], functools.partial(_wrong_order, trace, (lowest, top)))
    rows = _rows(trace, actions, Event.MM_COMPACTION_KCOMPACTD_WAKE)
    nodes, types, told = mem.nodes, {kind.label for kind in ZoneType}, map(trace.values, rows.tolist())
    unknown = np.array([woken["nid"] not in nodes or woken["classzone_idx"] not in types for woken in told], np.bool_)
    drop(rows[unknown], lambda row: f"a kcompactd that cannot be: {trace.values(row)}")


def _contiguous(mem: Machine, trace: Trace, actions: npt.NDArray[np.int8], drop: Drop) -> None:
    """CMA needs an area; requests of at least a page, releases inside memory."""
    if not np.any(mem.state.blocks["migratetype"] == MigrateType.CMA):
        for event in CMA_EVENTS:
            drop(_rows(trace, actions, event), lambda row: "an event of a CMA area, and the start has none")
        return
    if "freelist_hygiene" not in mem.geometry.features:
        for event in CMA_EVENTS:
            drop(_rows(trace, actions, event), lambda row: "of CMA before 6.10, where no event tells what failed")
        return
    rows = _rows(trace, actions, Event.CMA_ALLOC_START)
    columns = FIELDS[Event.CMA_ALLOC_START]
    count, align = trace.fields[rows, columns["count"]], trace.fields[rows, columns["align"]]
    drop(
        rows[(count < 1) | (align < 0) | (align > MAX_ALIGN_ORDER)],
        lambda row: f"a CMA request that cannot be: {trace.values(row)}",
    )
    rows, columns = _rows(trace, actions, Event.CMA_RELEASE), FIELDS[Event.CMA_RELEASE]
    first, count = trace.fields[rows, columns["pfn"]], trace.fields[rows, columns["count"]]
    drop(
        rows[(count < 1) | ~_inside(mem, first, first + np.clip(count, 0, 1 << 40))],
        lambda row: f"a CMA release outside memory: {trace.values(row)}",
    )
