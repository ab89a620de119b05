"""Reclaim and compaction as steps to plug in: what they are asked, and what they answer."""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.kernels.compact_control import CompactResult
from memmodel.sources.gfp import Gfp
from memmodel.state.layout import Alloc, ZoneType
from memmodel.state.machine import Machine

__all__ = [
    "ANSWERS",
    "SWAP_CLUSTER_MAX",
    "CompactPolicy",
    "CompactPriority",
    "CompactRequest",
    "CompactResult",
    "Compaction",
    "KswapdPolicy",
    "KswapdWake",
    "ReclaimPolicy",
    "ReclaimRequest",
    "Rows",
    "Steps",
    "ask_compact",
    "ask_reclaim",
    "checked_by",
    "compact_gap",
    "free_snapshot",
    "refuse_compaction",
]

SWAP_CLUSTER_MAX = 32

Rows = npt.NDArray[np.uint64]


ANSWERS = tuple(sorted(set(CompactResult) - {CompactResult.NOT_SUITABLE_ZONE, CompactResult.CONTINUE}))
"""What a request may be told: the two others are steps on the way."""


class CompactPriority(IntEnum):
    """enum compact_priority: the lower, the harder compaction tries."""

    SYNC_FULL = 0
    SYNC_LIGHT = 1
    ASYNC = 2


class ReclaimRequest(NamedTuple):
    """What a reclaim policy is asked for."""

    zones: Rows
    """Rows of the zones that pages are wanted in, the preferred one first."""
    order: int
    gfp: Gfp
    cpu: int
    n_pages: int
    """Pages wanted; reclaim works in batches, and may free more."""


class CompactRequest(NamedTuple):
    """What a compaction policy is asked for."""

    zones: Rows
    """Rows of the zones to compact, the preferred one first."""
    order: int
    gfp: Gfp
    cpu: int
    migratetype: int
    priority: CompactPriority
    alloc_flags: Alloc
    """Of the attempt that follows: with its watermark."""
    highest: ZoneType
    gives_way: Callable[[], None] | None = None
    """To be called where the task first gives the CPU away: those that wait for it have their turn."""


class Compaction(NamedTuple):
    """What a compaction policy answers."""

    result: CompactResult
    captured: int | None = None
    """Row of a block that it took for the request: used, of the request's order, and without a handle."""


ReclaimPolicy = Callable[[Machine, ReclaimRequest], int]
"""Frees pages through `free_pages`, and says how many."""

CompactPolicy = Callable[[Machine, CompactRequest], Compaction]
"""Makes a free block, or says why not."""


Check = Callable[[Machine], None]
_CHECKS: list[tuple[CompactPolicy, Check]] = []


def checked_by(check: Check) -> Callable[[CompactPolicy], CompactPolicy]:
    """Mark a policy that refuses some memories: `check` does so before a request has done anything."""

    def mark(policy: CompactPolicy) -> CompactPolicy:
        _CHECKS.append((policy, check))
        return policy

    return mark


class KswapdWake(NamedTuple):
    """Whom a request wakes, and what for."""

    node: int
    order: int
    highest: ZoneType
    """Highest zone that the request may use."""
    cpu: int


KswapdPolicy = Callable[[Machine, KswapdWake], None]
"""Does what a node's kswapd does once it is woken."""


class Steps(NamedTuple):
    """What a request may do when no zone has a page for it."""

    reclaim: ReclaimPolicy | None = None
    """None finds nothing to reclaim."""
    compact: CompactPolicy | None = None
    """None is a kernel without CONFIG_COMPACTION."""
    trace: list[str] | None = None
    """Gets the names of the steps, and how each request ended."""
    kswapd: KswapdPolicy | None = None
    """None: it is woken, and does not run yet."""


def refuse_compaction(mem: Machine, steps: Steps, gfp: Gfp, order: int) -> None:
    """Let the compaction policy refuse this memory, if the request may come to ask it."""
    if steps.compact is None or not order or not (gfp.io and gfp.direct_reclaim):
        return
    for policy, check in _CHECKS:
        if policy is steps.compact:
            check(mem)


def compact_gap(mem: Machine, order: int) -> int:
    """Free pages that a compaction needs as targets, beyond the watermark (compact_gap)."""
    gap = 2 << order
    return min(gap, 32) if "compact_gap_capped" in mem.geometry.features else gap


def free_snapshot(mem: Machine, zone: int) -> int:
    """NR_FREE_PAGES with the CPUs' differences (zone_page_state_snapshot)."""
    differences = mem.state.pcp["free_diff"][zone * mem.cpus : (zone + 1) * mem.cpus]
    return max(int(mem.state.zones["free_pages"][zone]) + int(differences.sum()), 0)


def ask_reclaim(mem: Machine, policy: ReclaimPolicy, request: ReclaimRequest) -> int:
    """Pages that the policy says it freed.

    Raises
    ------
    InputError
        If it does not say a number of pages.
    """
    freed = policy(mem, request)
    if isinstance(freed, bool) or not isinstance(freed, int | np.integer) or freed < 0:
        raise InputError(f"a reclaim policy says how many pages it freed, not {freed!r}")
    return int(freed)


def ask_compact(mem: Machine, policy: CompactPolicy, request: CompactRequest) -> Compaction:
    """What the policy answers.

    Raises
    ------
    InputError
        If that is no `Compaction`.
    """
    answer = policy(mem, request)
    told = isinstance(answer, Compaction) and isinstance(answer.result, CompactResult)
    if not told or answer.result not in ANSWERS:
        raise InputError(f"a compaction policy answers a Compaction, not {answer!r}")
    return answer
