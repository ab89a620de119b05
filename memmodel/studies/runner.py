"""Run a block function over all points: cut into chunks, spread over workers, failing points told apart."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memmodel.errors import InputError, InvariantError
from memmodel.results.variables import PointStatus, Variable
from memmodel.studies.points import Points, whole
from memmodel.studies.registry import Block

__all__ = ["MAX_FAILURES", "Outcome", "run"]

MAX_FAILURES = 20
_MAX_CHUNK = 4096
_CHUNKS_A_WORKER = 4


@dataclass
class Outcome:
    """Results of some consecutive points: ``[n_points]`` of each output and of the status, and the first failures."""

    columns: dict[str, NDArray[Any]]
    status: NDArray[np.int8]
    failures: list[tuple[int, str]] = field(default_factory=list)
    """(point, message) of the first `MAX_FAILURES` points that raised."""


def run(
    block: Block,
    points: Points,
    outputs: Sequence[Variable],
    *,
    workers: int | Executor = 1,
    chunk: int | None = None,
    progress: bool | None = None,
) -> Outcome:
    """Every output at every point. Neither `workers` nor `chunk` changes a byte of it.

    Raises
    ------
    InputError
        If the block returns other names, lengths or types than `outputs` say, or an option is not a count.
    """
    n_workers = 1 if isinstance(workers, Executor) else whole("workers", workers, 1)
    size = _chunk_size(len(points), n_workers) if chunk is None else whole("chunk", chunk, 1)
    chunks = [(start, min(start + size, len(points))) for start in range(0, len(points), size)]
    job = partial(_run_chunk, block, points, outputs)
    total = _empty(outputs, len(points))
    with _bar(len(points), progress) as bar:
        for (start, stop), part in _parts(job, chunks, workers):
            total.status[start:stop] = part.status
            for name, values in part.columns.items():
                total.columns[name][start:stop] = values
            total.failures += part.failures
            bar.update(stop - start)
    total.failures = sorted(total.failures)[:MAX_FAILURES]
    return total


def _chunk_size(n_points: int, n_workers: int) -> int:
    """At least four chunks a worker, so that slow corners of the grid even out."""
    return max(1, min(_MAX_CHUNK, -(-n_points // (_CHUNKS_A_WORKER * n_workers))))


def _parts(
    job: Callable[[int, int], Outcome], chunks: Sequence[tuple[int, int]], workers: int | Executor
) -> Iterator[tuple[tuple[int, int], Outcome]]:
    """Chunks with their outcomes as they come; what still waits is dropped when anything is raised."""
    if workers == 1:
        yield from ((chunk, job(*chunk)) for chunk in chunks)
        return
    executor = workers if isinstance(workers, Executor) else ThreadPoolExecutor(min(workers, len(chunks)))
    futures = {executor.submit(job, *chunk): chunk for chunk in chunks}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()
        if executor is not workers:
            executor.shutdown()


def _bar(n_points: int, progress: bool | None) -> Any:
    from tqdm import tqdm

    hidden = None if progress is None else not progress  # None: tqdm hides it where stderr is no terminal
    return tqdm(total=n_points, unit="point", disable=hidden, delay=1, leave=False, file=sys.stderr)


def _run_chunk(block: Block, points: Points, outputs: Sequence[Variable], start: int, stop: int) -> Outcome:
    try:
        returned = block(*points.block(start, stop))
    except Exception as error:
        if stop - start > 1:
            return _one_by_one(block, points, outputs, start, stop)
        failed = _empty(outputs, 1)
        failed.status[:], message = _status_of(error)
        failed.failures.append((start, message))
        return failed
    try:
        return _checked(returned, outputs, stop - start)
    except InputError as error:
        function = getattr(block, "func", block)  # of a partial
        raise InputError(f"block {getattr(function, '__qualname__', type(function).__name__)}: {error}") from None


def _one_by_one(block: Block, points: Points, outputs: Sequence[Variable], start: int, stop: int) -> Outcome:
    """The same chunk again, so that only the points that fail are lost."""
    parts = [_run_chunk(block, points, outputs, point, point + 1) for point in range(start, stop)]
    columns = {entry.name: np.concatenate([part.columns[entry.name] for part in parts]) for entry in outputs}
    failures = [failure for part in parts for failure in part.failures]
    return Outcome(columns, np.concatenate([part.status for part in parts]), failures[:MAX_FAILURES])


def _status_of(error: Exception) -> tuple[PointStatus, str]:
    if isinstance(error, InputError):
        return PointStatus.REFUSED_INPUT, str(error)
    if isinstance(error, InvariantError):
        return PointStatus.INVARIANT_BROKEN, str(error)
    return PointStatus.ERROR, f"{type(error).__name__}: {error}"


def _empty(outputs: Sequence[Variable], n_points: int) -> Outcome:
    """Points as if all had failed: NaN, or 0 where the type has none."""
    columns = {}
    for entry in outputs:
        dtype = np.dtype(entry.dtype)
        columns[entry.name] = np.full(n_points, np.nan if dtype.kind == "f" else 0, dtype)
    return Outcome(columns, np.zeros(n_points, np.int8))


def _checked(returned: object, outputs: Sequence[Variable], n_points: int) -> Outcome:
    """What a block returned, in the types of the catalogue; NaN where the block's own status says failed."""
    if not isinstance(returned, Mapping):
        raise InputError(f"it returned a {type(returned).__name__}; a dict of output name to array is needed")
    expected = [entry.name for entry in outputs]
    for name in returned:
        if name not in (*expected, "status"):
            raise InputError(f"it returned {name!r}, which is no output; one of: {', '.join(expected)}, status")
    for name in expected:
        if name not in returned:
            raise InputError(f"it did not return the output {name!r}")
    outcome = _empty(outputs, n_points)
    outcome.status[:] = _column("status", returned.get("status", outcome.status), "int8", n_points)
    if not np.isin(outcome.status, list(PointStatus)).all():
        raise InputError(f"it returned a status outside {min(PointStatus)} to {max(PointStatus)}")
    done = outcome.status == PointStatus.OK
    for entry in outputs:
        outcome.columns[entry.name][done] = _column(entry.name, returned[entry.name], entry.dtype, n_points)[done]
    return outcome


def _column(name: str, values: ArrayLike, dtype: str, n_points: int) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"it returned a ragged {name!r}; {n_points} values are needed") from None
    if array.shape != (n_points,):
        raise InputError(f"it returned {name!r} in the shape {array.shape}; ({n_points},) is needed")
    if array.dtype.kind not in "biuf":
        raise InputError(f"it returned {name!r} as {array.dtype}; {dtype} is needed")
    with np.errstate(invalid="ignore"):  # what an integer cannot hold is refused below
        cast = array.astype(dtype)
    if cast.dtype.kind != "f" and not np.array_equal(cast, array):
        raise InputError(f"it returned {name!r} with values that {dtype} cannot hold")
    return cast
