"""The points of a sweep: axes, the values at each point and the seeds, all cut out block by block."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memmodel.errors import InputError
from memmodel.studies.registry import Params, Seeds, Value

__all__ = ["MAX_POINTS", "RESERVED", "Axis", "Points", "axes_of", "check_seed", "whole"]

MAX_POINTS = 2**31
RESERVED = ("case", "replicate", "status")

ToColumn = Callable[[str, list[object]], NDArray[Any]]


@dataclass(frozen=True)
class Axis:
    """One dimension of a sweep: the parameters that vary along it, a value for each level."""

    name: str
    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def listed(self) -> bool:
        """Whether the dimension is the place in a list of cases, not a parameter."""
        return self.name not in self.columns

    def workloads(self, workload: Iterable[str]) -> tuple[NDArray[np.intp], list[dict[str, Value]]]:
        """For each level the number of its workload, and the distinct workloads in order of appearance."""
        names = [name for name in self.columns if name in workload]
        number_of: dict[tuple[Value, ...], int] = {}
        rows = zip(*(self.columns[name].tolist() for name in names), strict=True) if names else [()] * len(self)
        numbers = [number_of.setdefault(row, len(number_of)) for row in rows]
        return np.array(numbers, np.intp), [dict(zip(names, row, strict=True)) for row in number_of]


class Points:
    """All points of a sweep, in C order of the axes with the replicates last; laid out block by block, never whole.

    Raises
    ------
    InputError
        If there are more than 2**31 points.
    """

    def __init__(
        self, axes: Sequence[Axis], constants: Mapping[str, Value], workload: Iterable[str], replicates: int, seed: int
    ) -> None:
        self.axes = tuple(axes)
        self.constants = dict(constants)
        self.replicates = replicates
        self.seed = seed
        self._full_shape = (*map(len, self.axes), replicates)
        if len(self) > MAX_POINTS:
            raise InputError(f"{len(self):,} points; a sweep has at most {MAX_POINTS:,}")
        workloads = [axis.workloads(workload) for axis in self.axes]
        self._workload_numbers = [numbers for numbers, _ in workloads]
        self._workload_levels = [levels for _, levels in workloads]
        self._workload_constants = {name: value for name, value in self.constants.items() if name in workload}
        self._seeds: dict[tuple[int, ...], NDArray[np.uint64]] = {}

    def __len__(self) -> int:
        return prod(self._full_shape)

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of the Dataset; a single replicate makes none."""
        return (*(axis.name for axis in self.axes), *(("replicate",) if self.replicates > 1 else ()))

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        return self._full_shape if self.replicates > 1 else self._full_shape[:-1]

    def block(self, start: int, stop: int) -> tuple[Params, Seeds]:
        """Parameters and seeds of the points from `start` up to `stop`."""
        *levels, replicate = np.unravel_index(np.arange(start, stop), self._full_shape)
        params = {name: np.full(stop - start, value) for name, value in self.constants.items()}
        for axis, level in zip(self.axes, levels, strict=True):
            params |= {name: column[level] for name, column in axis.columns.items()}
        workload = [numbers[level].tolist() for numbers, level in zip(self._workload_numbers, levels, strict=True)]
        keys = zip(*workload, replicate.tolist(), strict=True)
        return params, np.stack([self._seeds[key] if key in self._seeds else self._seed(key) for key in keys])

    def _seed(self, key: tuple[int, ...]) -> NDArray[np.uint64]:
        """Seed of a workload (its number on each axis) and replicate; drawn once, however many points share it.

        It hangs on the workload's own values, not on its place in the grid: a longer grid keeps the seeds of its old
        points.
        """
        *numbers, replicate = key
        workload = dict(self._workload_constants)
        for levels, number in zip(self._workload_levels, numbers, strict=True):
            workload |= levels[number]
        text = json.dumps({name: _canonical(value) for name, value in workload.items()}, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        words = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
        sequence = np.random.SeedSequence(entropy=self.seed, spawn_key=(replicate, *words))
        return self._seeds.setdefault(key, np.asarray(sequence.generate_state(4, np.uint64), np.uint64))

    def label(self, point: int) -> dict[str, Value]:
        """Where the point is: its swept parameters, by name."""
        *levels, replicate = np.unravel_index(point, self._full_shape)
        found: dict[str, Value] = {}
        for axis, level in zip(self.axes, levels, strict=True):
            found |= {name: column[level].item() for name, column in axis.columns.items()}
        return found | ({"replicate": int(replicate)} if self.replicates > 1 else {})


def _canonical(value: Value) -> Value:
    """The same text for equal numbers: 1, 1.0 and True; 0 and -0.0."""
    return int(value) if not isinstance(value, str) and value == int(value) else value


def check_seed(seed: object) -> int:
    """`seed` as a Python int; a fresh 128-bit one for None.

    Raises
    ------
    InputError
        If it is not a whole number from 0 up.
    """
    return whole("seed", seed, 0) if seed is not None else int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]


def whole(name: str, value: object, low: int) -> int:
    """`value` as a Python int of at least `low`; a bool is not one.

    Raises
    ------
    InputError
        If it is not.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= low:
        return int(value)
    raise InputError(f"{name} {value!r} is not a whole number from {low} up")


def axes_of(
    grid: Mapping[str, object],
    cases: Iterable[Mapping[str, object]] | None,
    to_column: ToColumn,
    outputs: Iterable[str],
) -> tuple[list[Axis], dict[str, Value]]:
    """Axes and constants that a user's `grid` and `cases` describe.

    Raises
    ------
    InputError
        If a name is taken or given twice, a list is empty or repeats a value, or the cases differ in their parameters.
    """
    if not isinstance(grid, Mapping):
        raise InputError(f"the grid is a {type(grid).__name__}; give a mapping of parameter to list of values")
    listed = _case_lists(cases)
    taken = {*RESERVED, *outputs}
    for name in (*grid, *listed):
        if not isinstance(name, str) or name in taken:
            raise InputError(f"{name!r} cannot be the name of a parameter; an output or the sweep itself uses it")
        if name in grid and name in listed:
            raise InputError(f"parameter {name} is given by both the grid and the cases")
    axes: list[Axis] = []
    constants: dict[str, Value] = {}
    for name, given in grid.items():
        levels = _levels(name, given)
        if levels is None:
            constants[name] = to_column(name, [given])[0].item()
        else:
            axes.append(_product_axis(name, to_column(name, levels)))
    if listed:
        axes.append(Axis("case", {name: to_column(name, values) for name, values in listed.items()}))
    return axes, constants


def _product_axis(name: str, column: NDArray[Any]) -> Axis:
    if not len(column):
        raise InputError(f"parameter {name} has an empty list of values")
    values, counts = np.unique(column, return_counts=True)
    if len(values) < len(column):
        raise InputError(f"parameter {name} has the value {values[counts > 1][0].item()!r} twice")
    return Axis(name, {name: column})


def _levels(name: str, given: object) -> list[object] | None:
    """The values of a list, range or one-dimensional array; None for a single value."""
    if isinstance(given, Mapping | set | frozenset):
        raise InputError(f"parameter {name} is a {type(given).__name__}; give a value or a list, which has an order")
    if isinstance(given, str | bytes) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        return None
    return list(given)


def _case_lists(cases: Iterable[Mapping[str, object]] | None) -> dict[str, list[object]]:
    """Cases turned from rows to columns."""
    if cases is None:
        return {}
    rows = list(cases)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not row:
            raise InputError(f"case {number} is not a mapping of parameter to value")
        if row.keys() != rows[0].keys():
            raise InputError(f"case {number} gives {', '.join(row)}; case 0 gives {', '.join(rows[0])}")
    if not rows:
        raise InputError("the list of cases is empty")
    return {name: [row[name] for row in rows] for name in rows[0]}
