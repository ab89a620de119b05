"""What a replay got right: counts, what was given and inferred, each wrong prediction explained, dumps compared."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from memmodel.kernels.replay_state import Course
from memmodel.replaying.comparing import SnapshotComparison, free_list_rows
from memmodel.replaying.plan import Plan
from memmodel.replaying.refusing import Problem
from memmodel.results.text import table
from memmodel.sources.ftrace import Lost, Trace
from memmodel.state.layout import NONE, Kind, ZoneType
from memmodel.state.machine import Machine

__all__ = ["Mismatch", "Report", "explain", "kind_of_miss"]

MAX_EXPLAINED = 1000
MAX_SHOWN = 20


class Mismatch(NamedTuple):
    """A prediction that was wrong."""

    line: int
    """Of the trace."""
    kind: str
    text: str


@dataclass(eq=False)
class Report:
    """The result of a replay."""

    source: str
    events: int
    lost_events: int
    lost: tuple[Lost, ...]
    problems: list[Problem]
    kernel: str = ""
    """Whose rules were followed."""
    allocations: int = 0
    failed_allocations: int = 0
    frees: int = 0
    n_captured: int = 0
    n_unused_targets: int = 0
    given: Counter[str] = field(default_factory=Counter)
    inferred: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    """What compaction did, where that is predicted."""
    mismatches: list[Mismatch] = field(default_factory=list)
    n_mismatches: Counter[str] = field(default_factory=Counter)
    snapshots: list[SnapshotComparison] = field(default_factory=list)
    files: Mapping[str, str] = field(default_factory=dict)
    not_claimed: list[str] = field(default_factory=list)
    """What the report cannot, or can no longer, claim, a line each."""
    end: list[dict[str, Any]] = field(default_factory=list)
    """Free blocks by zone beside those of a snapshot at the end."""
    n_steps: int = 0

    @classmethod
    def of(cls, trace: Trace, plan: Plan) -> "Report":
        """An empty one."""
        lost = sum(gap.n_events or 0 for gap in trace.lost) + trace.overwritten
        return cls(trace.source, len(trace), lost, trace.lost, list(plan.problems))

    def miss(self, line: int, kind: str, text: str) -> None:
        """Note a wrong prediction."""
        self.n_mismatches[kind] += 1
        if len(self.mismatches) < MAX_EXPLAINED:
            self.mismatches.append(Mismatch(line, kind, text))

    @property
    def wants_text(self) -> bool:
        """Whether the next miss is still explained; beyond the first thousand they are only counted."""
        return len(self.mismatches) < MAX_EXPLAINED

    def unseen(self, line: int, text: str) -> None:
        """A page came back that the model held free."""
        self.miss(line, "free of a page not in use", text)

    def problem(self, line: int, text: str) -> None:
        """An event that was left out."""
        self.problems.append(Problem(line, text))

    def finish(self, cursor: Any) -> None:
        """Take over what the compiled loop counted."""
        self.allocations, self.failed_allocations = int(cursor["n_allocations"]), int(cursor["n_failed"])
        self.frees, self.n_unused_targets = int(cursor["n_frees"]), int(cursor["n_unused_targets"])
        for name, what in (
            ("n_isolated", "free block isolated by compaction or CMA"),
            ("n_rotated", "free list rotated by compaction"),
            ("n_direct", "softirq free past a locked per-CPU list (gtd)"),
        ):
            if cursor[name]:
                self.given[what] = int(cursor[name])
        if cursor["n_folds"]:
            self.inferred["counter differences folded on an idle CPU"] = int(cursor["n_folds"])

    @property
    def pfn_mismatches(self) -> int:
        """Wrong predictions."""
        return sum(self.n_mismatches.values())

    @property
    def differs(self) -> bool:
        """Whether a prediction was wrong or a dump differs."""
        apart = not all(snapshot.equal for snapshot in self.snapshots) or not all(zone["equal"] for zone in self.end)
        return bool(self.n_mismatches) or apart

    def text(self) -> str:
        """For people."""
        facts = [
            ("rules of kernel", self.kernel),
            ("events", self.events),
            ("allocations", self.allocations),
            ("failed allocations", self.failed_allocations),
            ("frees", self.frees),
            ("wrong predictions", self.pfn_mismatches),
            *((f"  {kind}", count) for kind, count in self.n_mismatches.most_common()),
            *((f"given: {what}", count) for what, count in self.given.items()),
            *((f"inferred: {what}", count) for what, count in self.inferred.items()),
            *((f"predicted: {what}", count) for what, count in self.predicted.items()),
            ("lost events", self.lost_events),
        ]
        lines = [table(facts)]
        for snapshot in self.snapshots:
            lines.append(f"{snapshot.label}: " + ("equal" if snapshot.equal else "; ".join(snapshot.differences)))
        lines += [f"end, {zone['zone']}: {zone['pages_apart']} free pages in other orders" for zone in self.end]
        lines += [f"{self.source}:{problem.line}: {problem.text}" for problem in self.problems[:MAX_SHOWN]]
        lines += [f"{self.source}:{miss.line}: {miss.kind}: {miss.text}" for miss in self.mismatches[:MAX_SHOWN]]
        lines += [f"not claimed: {text}" for text in self.not_claimed]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kernel": self.kernel,
            "events": self.events,
            "allocations": self.allocations,
            "failed_allocations": self.failed_allocations,
            "frees": self.frees,
            "pfn_mismatches": self.pfn_mismatches,
            "mismatches_by_kind": dict(self.n_mismatches),
            "given": dict(self.given),
            "inferred": dict(self.inferred),
            "predicted": dict(self.predicted),
            "lost_events": self.lost_events,
            "problems": [f"{self.source}:{problem.line}: {problem.text}" for problem in self.problems],
            "not_claimed": self.not_claimed,
            "snapshots": [snapshot.as_dict() for snapshot in self.snapshots],
            "end": self.end,
            "mismatches": [mismatch._asdict() for mismatch in self.mismatches],
            "files": dict(self.files),
        }


def explain(mem: Machine, course: Course, step: Any, predicted: int) -> str:
    """A wrong prediction: what the request was, what was expected, and where the kernel's page is."""
    request = course.requests[int(step["request"])]
    zones = course.zonelists[int(request["first_zone"]) : int(request["last_zone"])]
    actual, order = int(step["index"]), int(step["order"])
    told = (
        f"order {order} type {int(request['migratetype'])}: kernel {_pfn(mem, actual)} ({_place(mem, actual)}), "
        f"model {_pfn(mem, predicted)}"
    )
    if not zones.size:
        return f"{told}; this machine has no zone that it may use"
    zone = int(zones[0])
    heads = {
        o: free_list_rows(mem, zone, o, int(request["migratetype"]))[:1]
        for o in range(int(mem.geometry.max_page_order) + 1)
    }
    first = ", ".join(f"{o}: {int(mem.pfns.pfn(rows)[0])}" for o, rows in heads.items() if rows.size)
    label = ZoneType(int(mem.state.zones[zone]["zone_type"])).label
    return f"{told}; {label}'s heads of that type by order {first or 'none'}"


def kind_of_miss(mem: Machine, actual: int, predicted: int, order: int) -> str:
    """What sort of wrong prediction it is."""
    if actual == NONE:
        return "missed failure"
    if predicted == NONE:
        return "unexpected success"
    if mem.state.pages["zone"][actual] != mem.state.pages["zone"][predicted]:
        return "another zone"
    state = int(mem.state.pages["state"][actual])
    if state == Kind.PCP << 4 | order:
        return "another page of a per-CPU list"
    if state >> 4 in (Kind.USED, Kind.UNKNOWN):
        return "a page that the model holds in use"
    shift = mem.geometry.pageblock_order
    types = mem.state.blocks["migratetype"]
    return "another block" if types[actual >> shift] == types[predicted >> shift] else "another migratetype"


def _pfn(mem: Machine, row: int) -> str:
    return "none" if row == NONE else str(int(mem.pfns.pfn(row)))


def _place(mem: Machine, row: int) -> str:
    """Where the model has a page."""
    if row == NONE:
        return "no page"
    pages = mem.state.pages
    head, order = row, 0
    while pages["state"][head] == 0 and order < mem.geometry.max_page_order:
        order += 1
        head = row & -(1 << order)
    state = int(pages["state"][head])
    kind, order = Kind(state >> 4), state & 15
    if kind != Kind.FREE:
        return f"model: {kind.name.lower()}, order {order}"
    zone = int(pages["zone"][head])
    migratetype = int(mem.state.blocks["migratetype"][head >> mem.geometry.pageblock_order])
    rows = free_list_rows(mem, zone, order, migratetype).tolist()
    where = rows.index(head) if head in rows else -1
    block = f"free block {int(mem.pfns.pfn(head))} of order {order}"
    return f"model: in {block}, place {where} of {len(rows)} on the list of type {migratetype}"
