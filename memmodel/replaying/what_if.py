"""The requests of a recorded trace on other kernels and settings, over a grid, as one Dataset."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, MemmodelError, one_of
from memmodel.geometry import Geometry
from memmodel.kernels.buddy import count_blocks, count_free
from memmodel.kernels.request_log import run_log
from memmodel.memory import PhysicalMemory
from memmodel.replaying.plan import Plan, fresh_course, make_plan, request_table
from memmodel.replaying.recast import placement_of, recast
from memmodel.replaying.replay import begin, find_hidden
from memmodel.replaying.start import Start, read_start
from memmodel.results import dataset
from memmodel.results.dataset import Column
from memmodel.results.variables import Variable
from memmodel.sources.ftrace import Trace, read_trace
from memmodel.sources.reading import PathLike
from memmodel.sources.records import MIGRATETYPE_NAMES, Snapshot
from memmodel.state.fragmentation import fragmentation_index, unusable_free_index
from memmodel.state.layout import NONE
from memmodel.state.placement import Placement
from memmodel.units import parse_bytes

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["what_if"]

PARAMETERS = {
    "kernel": Variable("kernel", "str", "1", "kernel", "Its rules; recorded is that of the start."),
    "page_block_max_order": Variable(
        "page_block_max_order", "int64", "1", "limit of the pageblock order", "CONFIG_PAGE_BLOCK_MAX_ORDER."
    ),
    "percpu_pagelist_high_fraction": Variable(
        "percpu_pagelist_high_fraction",
        "int64",
        "1",
        "share of a zone on per-CPU lists",
        "vm.percpu_pagelist_high_fraction.",
    ),
    "cma_size": Variable(
        "cma_size", "int64", "byte", "size of the CMA area", "From where the area of the start begins."
    ),
}
LEAST_FRACTION = 8  # MIN_PERCPU_PAGELIST_HIGH_FRACTION, mm/page_alloc.c
COUNTS = (
    ("n_allocations", "requests that succeeded"),
    ("n_failed", "requests that failed"),
    ("n_failed_in_recording_only", "requests that failed in the recording and succeed here"),
    ("n_frees_of_missing_pages", "pages freed in the recording that are not in use here"),
)
SWEPT = "Requests of a recorded trace, replayed."


class Point(NamedTuple):
    """What one point of the grid gives, by sample."""

    free: npt.NDArray[np.int64]  # [samples, zones, migratetypes, orders]
    blocks: npt.NDArray[np.int64]  # [samples, zones, migratetypes]
    counts: npt.NDArray[np.int64]  # [samples, COUNTS]
    pageblock_order: int


def what_if(
    trace: Trace | PathLike,
    start: PhysicalMemory | Snapshot | PathLike,
    grid: Mapping[str, Sequence[Any]],
    *,
    kernel: str | None = None,
    geometry: Geometry | None = None,
    node: int = 0,
    samples: int = 64,
) -> "xr.Dataset":
    """Replay the requests of a trace at every point of a grid of kernels and settings.

    The trace is replayed as recorded first; from that come its requests and frees by allocation, not by pfn: a page
    that compaction moved is still the page that was asked for.

    Parameters
    ----------
    trace, start, kernel, geometry, node
        As for `replay`.
    grid
        Lists of values by parameter: ``page_block_max_order``, ``kernel``, ``percpu_pagelist_high_fraction``,
        ``cma_size`` (bytes or text).
    samples
        Times, evenly spaced over the trace, at which the state is counted; the end is the last.

    Returns
    -------
    Dataset over the grid and ``time_s``: free blocks by zone, migratetype and order, pageblocks by type, the indices,
    and what requests succeeded.

    Raises
    ------
    InputError
        As `replay`; for a parameter or value that is not possible. Another page size is refused: a request for one page
        has no meaning there.

    Notes
    -----
    Compaction, reclaim and CMA allocation are not part of a what-if: a request that needed them is tried and may fail,
    and pages that they moved stay where they are. So compare points with each other, not with the recording.
    """
    values = _checked(grid)
    if not isinstance(trace, Trace):
        trace = read_trace(trace)
    base = read_start(start, trace, kernel, geometry)
    rows, times = _sample_rows(trace, base.first_row, samples)
    plan = make_plan(base.memory, trace, base.first_row, node, samples=rows)
    hidden, run = find_hidden(base, trace, plan, node, log=True)
    first = begin(base, trace, plan, hidden, node).mem
    if run is None:
        run = begin(base, trace, plan, hidden, node, log=True)
        run.run()
    log = run.course.log[: int(run.course.cursor[0]["n_logged"])]
    placement = placement_of(first)
    points = []
    for settings in itertools.product(*values.values()):
        mem = _machine(first, placement, dict(zip(values, settings, strict=True)))
        points.append(_replay(mem, plan, log, int(run.course.cursor[0]["n_ids"]), rows.size, node))
    return _dataset(base, trace, values, points, times)


def _checked(grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The values of the grid, of the right kinds."""
    if "page_size" in grid:
        raise InputError(
            "page_size cannot be varied in a replay: a request for one page has no meaning at another size"
        )
    values: dict[str, list[Any]] = {}
    for name, given in grid.items():
        entry = PARAMETERS[one_of(name, PARAMETERS, "parameter of a replay")]
        items = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        if not items:
            raise InputError(f"{name} has no values")
        if name == "cma_size":
            items = [parse_bytes(item, name) for item in items]
        elif entry.dtype == "int64":
            items = [_whole(item, name) for item in items]
        if len(set(items)) < len(items):
            raise InputError(f"{name} has a value twice")
        values[name] = items
    return values


def _whole(value: Any, name: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise InputError(f"{name} {value!r} is not a whole number") from None
    if name == "percpu_pagelist_high_fraction" and number and number < LEAST_FRACTION:
        raise InputError(f"{name} {number}; 0 (as at boot) and from {LEAST_FRACTION} on are possible")
    return number


def _sample_rows(trace: Trace, first_row: int, samples: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Rows before which evenly spaced times have passed, the last row of the trace the last; and those times, s."""
    if samples < 1:
        raise InputError(f"samples {samples}; at least 1 is needed")
    times = trace.time_ns[first_row:]
    wanted = np.linspace(times[0], times[-1], samples + 1)[1:]
    rows = first_row + np.minimum(np.searchsorted(times, wanted, side="right"), times.size - 1)
    return rows.astype(np.int64), (wanted - times[0]) / 1e9


def _machine(first: PhysicalMemory, placement: Placement, settings: dict[str, Any]) -> PhysicalMemory:
    """The start of the recording under other settings."""
    changes = {name: settings[name] for name in ("kernel", "page_block_max_order") if name in settings}
    cma_pages = None
    if "cma_size" in settings:
        cma_pages, rest = divmod(settings["cma_size"], first.geometry.page_size_bytes)
        if rest:
            raise InputError(f"cma_size {settings['cma_size']} is not a multiple of the page size")
    try:
        geometry = first.geometry.replace(**changes)
        fraction = settings.get("percpu_pagelist_high_fraction")
        state, pfns = recast(placement, geometry, high_fraction=fraction, cma_pages=cma_pages)
    except MemmodelError as error:
        at = ", ".join(f"{name}={value}" for name, value in settings.items())
        raise InputError(f"{at}: {error}") from None
    state.pcp["alloc_factor"] = first.state.pcp["alloc_factor"]
    return first.with_state(geometry, state, pfns)


def _replay(mem: PhysicalMemory, plan: Plan, log: Any, n_ids: int, n_samples: int, node: int) -> Point:
    """All requests on one machine."""
    course = fresh_course(plan.course.steps, *request_table(mem, plan.kinds, node))._replace(log=log)
    places = np.full(max(n_ids, 1), NONE, np.uint64)
    n_pages = int(mem.state.params.n_pages)
    places[:n_pages] = np.arange(n_pages)
    counts = np.zeros(len(COUNTS), np.int64)
    free, blocks, counted = [], [], []
    number = 0
    for _ in range(n_samples):
        number = run_log(mem.state, course, places, counts, number)
        free.append(count_free(mem.state))
        blocks.append(count_blocks(mem.state))
        counted.append(counts.copy())
    return Point(np.array(free), np.array(blocks), np.array(counted), mem.geometry.pageblock_order)


def _dataset(
    base: Start, trace: Trace, values: dict[str, list[Any]], points: list[Point], times: npt.NDArray[np.float64]
) -> "xr.Dataset":
    """Dims: the grid, then time, then zone, migratetype and order."""
    mem, dims = base.memory, tuple(values)
    shape = tuple(len(items) for items in values.values())
    orders = np.arange(mem.geometry.max_page_order + 1)
    coordinates = [
        *(Column(_on(PARAMETERS[name], name), items) for name, items in values.items()),
        Column(_label("time_s", "float64", "s", "time since the start", "Of the trace's clock."), times),
        Column(_label("zone", "str", "1", "zone", "Node and name."), mem.zone_labels),
        Column(
            _label("migratetype", "str", "1", "migratetype", "As /proc/pagetypeinfo prints it."),
            list(MIGRATETYPE_NAMES),
        ),
        Column(_label("order", "int64", "1", "order", "Log2 of the pages in a block."), orders),
        Column(
            Variable("pageblock_order", "int64", "1", "pageblock order", "The effective one.", dims),
            np.array([point.pageblock_order for point in points]).reshape(shape),
        ),
    ]
    free = np.array([point.free for point in points])
    time = (*dims, "time_s")
    counts = np.array([point.counts for point in points])
    by_order = free.sum(axis=3)
    data: list[tuple[Variable, npt.NDArray[Any]]] = [
        (_swept("free_blocks", "free blocks", (*time, "zone", "migratetype", "order")), free),
        (_swept("pageblocks", "pageblocks", (*time, "zone", "migratetype")), np.array([p.blocks for p in points])),
        (
            _swept("unusable_free_index", "unusable free space index", (*time, "zone", "order"), "1e-3"),
            unusable_free_index(by_order),
        ),
        (
            _swept("fragmentation_index", "fragmentation index", (*time, "zone", "order"), "1e-3"),
            fragmentation_index(by_order),
        ),
        *((_swept(name, text, time), counts[..., i]) for i, (name, text) in enumerate(COUNTS)),
    ]
    columns = [Column(entry, array.reshape(*shape, *array.shape[1:])) for entry, array in data]
    record = {"replay": "what_if", "grid": {name: [str(v) for v in items] for name, items in values.items()}}
    record |= {"files": {**mem.files, trace.source: trace.sha256}, "geometry": mem.geometry.as_dict()}
    return dataset.build(coordinates, columns, {"provenance": dataset.stamp(record)})


def _on(entry: Variable, dim: str) -> Variable:
    return Variable(entry.name, entry.dtype, entry.units, entry.long_name, entry.doc, (dim,))


def _label(name: str, dtype: str, units: str, long_name: str, doc: str) -> Variable:
    return Variable(name, dtype, units, long_name, doc, (name,))


def _swept(name: str, long_name: str, dims: tuple[str, ...], units: str = "1") -> Variable:
    return Variable(name, "float64", units, long_name, SWEPT, dims)
