"""Named fragmenters: a memory is filled and emptied until a measure of its fragmentation reaches a target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, one_of
from memmodel.kernels.buddy import count_free
from memmodel.mechanisms.buddy import whole_number
from memmodel.state.fragmentation import (
    extfrag_for_order,
    fragmentation_index,
    fragmentation_score_node,
    unusable_free_index,
)
from memmodel.state.machine import Machine
from memmodel.workloads.run import Session, WorkloadOutcome, share_of_memory

__all__ = ["FRAGMENTERS", "METRICS", "FragmentOutcome", "fragment", "measure"]


class Fragmenter(NamedTuple):
    """A workload with settings."""

    workload: str
    settings: Mapping[str, float]
    doc: str


FRAGMENTERS: Mapping[str, Fragmenter] = {
    "holes": Fragmenter("pinned", {"pinned_pages": 1}, "Single held pages all over: free memory is holes of one page."),
    "buffers": Fragmenter("pinned", {"pinned_pages": 64}, "Held buffers of about 64 pages: holes of that size."),
    "processes": Fragmenter("anonymous", {}, "Processes that come and go; all that is used could be moved."),
    "kernel_pages": Fragmenter(
        "3*anonymous+kernel", {}, "Long-lived kernel blocks among processes: pageblocks that cannot be emptied."
    ),
    "mixed": Fragmenter("mixed", {}, "All workloads together."),
}
"""The named fragmenters."""

METRICS: Mapping[str, tuple[Callable[..., npt.NDArray[np.int64]], int, int]] = {
    "unusable_free_index": (unusable_free_index, 0, 1000),
    "fragmentation_index": (fragmentation_index, -1000, 1000),
    "extfrag_for_order": (extfrag_for_order, 0, 100),
    "fragmentation_score_node": (fragmentation_score_node, 0, 100),
}
"""Measures of `memmodel.state.fragmentation`, with the lowest and the highest value."""
MAX_ROUNDS = 1 << 20


@dataclass(frozen=True)
class FragmentOutcome:
    """What a fragmenter reached."""

    reached: bool
    """Whether the measure is at the target, or beyond."""
    value: int
    """The measure at the end."""
    rounds: int
    """Times that memory was filled to the peak and emptied again."""
    workload: WorkloadOutcome
    """What lives, and the counts of all rounds."""


def measure(mem: Machine, metric: str, order: int, node: int = 0) -> int:
    """A measure of fragmentation: of the node's zone with most managed pages, or of the node for a score.

    Raises
    ------
    InputError
        If there is no such metric or node.
    """
    function = METRICS[one_of(metric, METRICS, "metric")][0]
    zones = mem.state.zones
    here = np.flatnonzero(zones["node"] == mem.check_node(node))
    nr_free = count_free(mem.state).sum(axis=1)
    if function is fragmentation_score_node:
        return int(function(nr_free[here], zones["present"][here], order))
    return int(function(nr_free[here[zones["managed"][here].argmax()]], order))


def fragment(  # noqa: PLR0913 - what with, how far, by which measure and where: by keyword
    mem: Machine,
    fragmenter: str = "holes",
    *,
    target: int,
    metric: str = "unusable_free_index",
    order: int | None = None,
    fill: float = 0.5,
    peak: float = 0.95,
    rounds: int = 8,
    seed: int | np.random.SeedSequence | None = None,
    cpu: int = 0,
    node: int = 0,
    **settings: Any,
) -> FragmentOutcome:
    """Fragment a memory until a measure of it is at least `target`.

    A round fills memory up to `peak` and empties it, at random, down to `fill`; then the measure is taken.

    Parameters
    ----------
    mem
        Changed in place.
    fragmenter
        One of `FRAGMENTERS`, or a workload or mix as `run_workload` takes it.
    target
        In the kernel's units: thousandths for the two indices, percent for the others.
    metric
        "unusable_free_index", "fragmentation_index", "extfrag_for_order" (all of the node's zone with most managed
        pages) or "fragmentation_score_node".
    order
        Order that the metric is for; that of a PMD if not given.
    fill, peak
        Shares of all managed pages in use, as in `run_workload`.
    rounds
        How often at most.
    seed, cpu, node, **settings
        As `run_workload`.

    Returns
    -------
    Whether the target was reached, the value, and what lives.

    Raises
    ------
    InputError
        If an argument is none that is allowed.

    Examples
    --------
    >>> import memmodel as mm
    >>> mem = mm.PhysicalMemory(mm.Geometry(), size="64MiB", seed=0)
    >>> mm.fragment(mem, "holes", target=900, seed=1).reached
    True
    """
    _, low, high = METRICS[one_of(metric, METRICS, "metric")]
    target = whole_number(target, "target", low, high, metric)
    order = mem.geometry.hpage_pmd_order if order is None else order
    order = whole_number(order, "order", 0, mem.geometry.max_page_order, "MAX_PAGE_ORDER")
    rounds = whole_number(rounds, "rounds", 1, MAX_ROUNDS)
    fill, peak = share_of_memory(fill, "fill"), share_of_memory(peak, "peak")
    if peak < fill:
        raise InputError(f"peak {peak} is below fill {fill}")
    known = FRAGMENTERS.get(fragmenter) if isinstance(fragmenter, str) else None
    workload = known.workload if known else fragmenter
    given = {**known.settings, **settings} if known else settings
    session = Session(mem, workload, seed=seed, cpu=cpu, node=node, settings=given)
    outcome, value = session.run(0.0, 0), low - 1
    done = 0
    while done < rounds and value < target:
        for level in (peak, fill):
            outcome = _both(outcome, session.run(level))
        value = measure(mem, metric, order, node)
        done += 1
    return FragmentOutcome(value >= target, value, done, outcome)


def _both(before: WorkloadOutcome, after: WorkloadOutcome) -> WorkloadOutcome:
    """Two outcomes in a row as one."""
    return replace(
        after,
        operations=before.operations + after.operations,
        allocated=before.allocated + after.allocated,
        failed=before.failed + after.failed,
        freed=before.freed + after.freed,
    )
