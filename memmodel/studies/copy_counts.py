"""Counts of the study `folio_copy`: without a memory from where the errors lie, or from real copies in one."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.kernels.copying import CopyRule, Status, Total, count_points
from memmodel.mechanisms.buddy import alloc_pages, folio_rows
from memmodel.mechanisms.copying import CopyOutcome, copy_rule, folio_mc_copy
from memmodel.mechanisms.poisoning import LINE_SHIFT, inject_poison
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import MF_QUEUE_SLOTS
from memmodel.studies.registry import Params, Seeds
from memmodel.units import format_bytes, parse_bytes

__all__ = ["Counts", "count", "count_in_memory"]

MOVED_BYTES = 1 << 30
N_LINES = MOVED_BYTES >> LINE_SHIFT

POINT = np.dtype([(name, "u8") for name in (*CopyRule._fields, "n_pages", "page_shift", "n_folios", "drain_folios")])
# Without a memory the study asks what the copy would cost: the fast path is there whatever the page size.
ARCH = "generic"


class Counts(NamedTuple):
    """What was counted, a row a point."""

    points: npt.NDArray[np.void]
    """Record array POINT: how each point's folios are cut into calls."""
    totals: npt.NDArray[np.int64]
    """Columns as `Total`."""
    n_errors: npt.NDArray[np.float64]
    alloc_failed: npt.NDArray[np.float64]


@dataclass
class Errors:
    """Poisoned lines of each point, drawn once for all points that share a workload."""

    drawn: dict[tuple[float, bytes], npt.NDArray[np.int64]] = field(default_factory=dict)

    def lines(self, rate: float, seed: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Line numbers within the moved GiB, ascending, each once."""
        key = (rate, seed.tobytes())
        if key not in self.drawn:
            rng = np.random.default_rng(seed)
            self.drawn[key] = np.unique(rng.integers(0, N_LINES, rng.poisson(rate)))
        return self.drawn[key]


def points_of(params: Params, geometry: Geometry | None = None) -> npt.NDArray[np.void]:
    """The block's points as the kernel takes them; on a given geometry, or one of each point's page size.

    Raises
    ------
    InputError
        If a folio is larger than what is moved.
    """
    points = np.zeros(params["folio_order"].size, POINT)
    columns = [params[name].tolist() for name in ("page_size", "batch", "preempt", "engine")]
    rules: dict[tuple[str, ...], tuple[CopyRule, int]] = {}
    for i, key in enumerate(zip(*columns, strict=True)):
        if key not in rules:
            geo = geometry or Geometry(page_size=key[0], arch=ARCH)
            rules[key] = copy_rule(geo, *key[1:]), geo.page_shift
        rule, page_shift = rules[key]
        points[i] = (*rule, 0, page_shift, 0, 0)
    folio_shift = params["folio_order"].astype(np.uint64) + points["page_shift"]
    if np.any(folio_shift > 30):
        order = int(params["folio_order"][folio_shift > 30][0])
        raise InputError(f"folio_order {order} with this page size is more than the {format_bytes(MOVED_BYTES)} moved")
    points["n_pages"] = np.uint64(1) << params["folio_order"].astype(np.uint64)
    points["n_folios"] = np.uint64(MOVED_BYTES) >> folio_shift
    points["drain_folios"] = params["drain_folios"]
    return points


def count(params: Params, seeds: Seeds) -> Counts:
    """Counts of the block's points, from where the errors lie (no memory is needed for that)."""
    points = points_of(params)
    errors = Errors()
    folio_shift = np.log2(points["n_pages"]).astype(np.int64) + points["page_shift"].astype(np.int64)
    first = np.zeros(points.size + 1, np.int64)
    folios, offsets, n_errors = [], [], np.zeros(points.size)
    for i in np.flatnonzero(params["poison_per_gib"]):
        lines = errors.lines(float(params["poison_per_gib"][i]), seeds[i])
        bad, where = np.unique(lines >> (folio_shift[i] - LINE_SHIFT), return_index=True)
        folios.append(bad)
        offsets.append((lines[where] << LINE_SHIFT) - (bad << folio_shift[i]))
        n_errors[i], first[i + 1] = lines.size, bad.size
    totals = np.zeros((points.size, len(Total)), np.int64)
    bad_folios, bad_bytes = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (folios, offsets))
    count_points(points.view(np.recarray), np.cumsum(first), bad_folios, bad_bytes.astype(np.uint64), totals)
    return Counts(points, totals, n_errors, np.zeros(points.size))


def count_in_memory(memory: PhysicalMemory, params: Params, seeds: Seeds) -> Counts:
    """The same counts from real copies in a memory: sources and targets come from its free lists, errors hit its pages.

    As many folios are moved as the allocator gives two of each, which stops at its watermarks, up to 1 GiB.
    """
    points = points_of(params, memory.geometry)
    totals = np.zeros((points.size, len(Total)), np.int64)
    n_errors, alloc_failed = np.zeros(points.size), np.zeros(points.size)
    mem = memory.copy()
    for i in range(points.size):
        if parse_bytes(str(params["page_size"][i])) != memory.geometry.page_size_bytes:
            raise InputError(
                f"page_size {params['page_size'][i]}; the memory's is {memory.geometry.page_size_bytes} bytes"
            )
        order, wanted = int(params["folio_order"][i]), int(points[i]["n_folios"])
        mem.restore(memory)
        if order > mem.geometry.max_page_order:
            raise InputError(
                f"folio_order {order} is more than this memory's MAX_PAGE_ORDER {mem.geometry.max_page_order}"
            )
        folios = alloc_pages(mem, order, 2 * wanted)
        folios = folios[folios != -1]
        pairs = folios.size // 2
        inject_poison(mem, rate_per_gib=float(params["poison_per_gib"][i]), seed=seeds[i])
        n_errors[i] = _lines_in(mem, folios[:pairs], order)
        out = folio_mc_copy(
            mem,
            folios[pairs : 2 * pairs],
            folios[:pairs],
            batch=str(params["batch"][i]),
            preempt=str(params["preempt"][i]),
            engine=str(params["engine"][i]),
        )
        alloc_failed[i] = wanted - pairs
        totals[i] = _totals(out, order + mem.geometry.page_shift, int(params["drain_folios"][i]))
    return Counts(points, totals, n_errors, alloc_failed)


def _lines_in(mem: PhysicalMemory, folios: npt.NDArray[np.int64], order: int) -> int:
    """Poisoned lines in some folios of one order."""
    first = np.sort(folio_rows(mem, folios)[0])
    rows = mem.state.ue_lines >> np.uint64(mem.geometry.page_shift - LINE_SHIFT)
    place = np.searchsorted(first, rows, side="right") - 1
    return int(np.count_nonzero((place >= 0) & (rows - first[place] < 1 << order))) if first.size else 0


def _totals(out: CopyOutcome, folio_shift: int, drain_folios: int) -> list[int]:
    tried = out.status != Status.NOT_REACHED
    failed = out.status == Status.EHWPOISON
    waiting = np.unique(np.flatnonzero(failed) // drain_folios, return_counts=True)[1]
    return [
        int(tried.sum()),
        int(failed.sum()),
        int(((1 << folio_shift) - out.bytes_not_copied)[tried].sum()),
        int(out.n_calls.sum()),
        int(out.n_resched.sum()),
        int(out.longest_stretch_bytes.max(initial=0)),
        int(np.maximum(waiting - MF_QUEUE_SLOTS, 0).sum()),
        int(np.any(out.status == Status.PANIC)),
    ]
