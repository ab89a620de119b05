"""The studies by name, and how one declares its parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memmodel.errors import InputError, one_of
from memmodel.results.variables import Variable

__all__ = [
    "STUDIES",
    "Block",
    "Params",
    "Parameter",
    "PricedStudy",
    "Seeds",
    "Study",
    "Value",
    "find_study",
    "points_of",
]

Value = int | float | str
Params = dict[str, NDArray[Any]]
"""Every parameter of the study by name, ``[n_points]`` each."""
Seeds = NDArray[np.uint64]
"""``[n_points, 4]``: 256 bits a point, the same for points that differ in non-workload parameters only."""
Block = Callable[[Params, Seeds], Mapping[str, ArrayLike]]
"""A block of points in, ``[n_points]`` of each output out. A point's result depends on that point alone."""

STUDIES: dict[str, str] = {
    "clear_pages": "memmodel.studies.clear_pages",
    "cma_waste": "memmodel.studies.cma_waste",
    "compaction": "memmodel.studies.compaction",
    "demotion": "memmodel.studies.demotion",
    "dmabuf": "memmodel.studies.dmabuf",
    "folio_copy": "memmodel.studies.folio_copy",
    "fragmentation": "memmodel.studies.fragmentation",
    "freelist_hygiene": "memmodel.studies.freelist_hygiene",
    "memory_failure": "memmodel.studies.memory_failure",
    "migration": "memmodel.studies.migration",
    "move_pages": "memmodel.studies.move_pages",
    "thp_success": "memmodel.studies.thp_success",
    "tlb_batch": "memmodel.studies.tlb_batch",
}
"""Module of each study; its ``STUDY`` is loaded when asked for."""

_DTYPES = {"int": "int64", "float": "float64", "choice": "str", "str": "str"}


@dataclass(frozen=True)
class Parameter:
    """One setting of a study.

    Raises
    ------
    InputError
        If the default is not a value that the parameter allows.
    """

    name: str
    default: Value
    doc: str
    """What it is; the first sentence labels the axis."""
    units: str = "1"
    kind: Literal["int", "float", "choice", "str"] = "float"
    choices: tuple[Value, ...] = ()
    """The values allowed, of any kind; empty: all."""
    range: tuple[float | None, float | None] = (None, None)
    """Smallest and largest number allowed, both included; None: no limit."""
    workload: bool = False
    """Whether it belongs to what is done (and picks the random numbers) rather than to how it is done."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "default", self.cast(self.default))

    @property
    def allowed(self) -> str:
        """The values allowed, in words."""
        if self.choices:
            return f"one of: {', '.join(map(str, self.choices))}"
        if self.kind == "str":
            return "any text"
        noun = "whole numbers" if self.kind == "int" else "numbers"
        low, high = (None if end is None else f"{end:g}" if end % 1 else f"{end:.0f}" for end in self.range)
        if low and high:
            return f"{noun} from {low} to {high}"
        return f"{noun} from {low} up" if low else f"{noun} up to {high}" if high else noun

    def cast(self, value: object) -> Value:
        """`value` as this parameter's type; text is read as the command line would.

        Raises
        ------
        InputError
            If it is of another type, not among the choices or out of range; the message says what is allowed.
        """
        value = value.item() if isinstance(value, np.generic) else value
        found: Value | None = None
        if self.kind in ("choice", "str"):
            found = value if isinstance(value, str) else None
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            found = _number(value, self.kind)
        low, high = self.range
        inside = (
            found is not None
            and (not self.choices or found in self.choices)
            and (isinstance(found, str) or ((low is None or found >= low) and (high is None or found <= high)))
        )
        if found is None or not inside:
            raise InputError(f"parameter {self.name}: {value!r} is not allowed; {self.allowed}")
        return found

    def column(self, values: list[object]) -> NDArray[Any]:
        """`values` cast, as the array that a block gets."""
        return np.array([self.cast(value) for value in values], _DTYPES[self.kind])

    def variable(self) -> Variable:
        """The coordinate that holds the parameter in a Dataset."""
        label = self.doc.split(". ")[0].rstrip(".") or self.name
        return Variable(self.name, _DTYPES[self.kind], self.units, label, self.doc)


def _number(value: int | float | str, kind: str) -> int | float | None:
    """`value` as a finite number of `kind`, or None."""
    try:
        if kind == "float":
            return float(value) if np.isfinite(float(value)) else None
        whole = int(value)
    except (ValueError, OverflowError):
        return None
    exact = isinstance(value, str) or whole == value
    return whole if exact and -(2**63) <= whole < 2**63 else None


@dataclass(frozen=True)
class Study:
    """A question with its parameters: what `run_study` sweeps."""

    name: str
    doc: str
    """First line: the question."""
    parameters: tuple[Parameter, ...]
    outputs: tuple[str, ...]
    """Names in the catalogue of variables."""
    block: Callable[..., Mapping[str, ArrayLike]]
    """A `Block`; it may want its resources as further arguments, where `bind` gives them."""
    source: str
    """Where the mechanism and the numbers come from."""
    default_machine: str | None = None
    """Machine that prices the counts where the user names none; None: the study asks for none."""

    @property
    def title(self) -> str:
        """The question, in one line."""
        return self.doc.strip().splitlines()[0]

    def bind(self, context: Mapping[str, Any]) -> Block:
        """The block with its resources in place: override it where the study uses any.

        `context` may hold ``machine`` (a `Machine`) and ``memory`` (what the user started from).

        Raises
        ------
        InputError
            If a resource is given that the study does not use.
        """
        for resource in context:
            raise InputError(f"study {self.name} uses no {resource}")
        return self.block

    def parameter(self, name: str) -> Parameter:
        """The parameter called `name`.

        Raises
        ------
        InputError
            If there is none; the message lists those there are.
        """
        by_name = {parameter.name: parameter for parameter in self.parameters}
        return by_name[one_of(name, by_name, f"parameter of study {self.name}")]


@dataclass(frozen=True)
class PricedStudy(Study):
    """One whose block takes the machine that prices its counts, as ``machine``, and starts from no memory."""

    def bind(self, context: Mapping[str, Any]) -> Block:
        """The block with its machine.

        Raises
        ------
        InputError
            If a memory is given.
        """
        if "memory" in context:
            raise InputError(f"study {self.name} uses no memory")
        return partial(self.block, machine=context["machine"])


def find_study(name: str) -> Study:
    """The study called `name`.

    Raises
    ------
    InputError
        If there is none; the message lists those there are.
    """
    study: Study = import_module(STUDIES[one_of(name, STUDIES, "study")]).STUDY
    return study


def points_of(params: Params) -> list[dict[str, Any]]:
    """The points of a block one by one, their parameters by name as plain values."""
    return [
        dict(zip(params, values, strict=True)) for values in zip(*(c.tolist() for c in params.values()), strict=True)
    ]
