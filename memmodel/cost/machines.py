"""Machines: the measured or assumed numbers that turn counts of copies into time, each with its origin."""

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from memmodel.cost.machine_file import CYCLES_PER_PAGE, Number, parse_machine
from memmodel.cost.machine_parts import Migration, migration_part
from memmodel.errors import InputError, one_of
from memmodel.units import format_bytes

__all__ = [
    "DIRECTIONS",
    "PAIRS",
    "PAIR_OF_DIRECTION",
    "Knots",
    "LimitForm",
    "Machine",
    "Number",
    "load_machine",
    "machine_from_dict",
    "machine_names",
]

DIRECTIONS = ("D0-D1", "D1-D0", "D0-CXL", "CXL-D0")
"""Source and target node of a move; D0 and D1 are DRAM nodes."""

PAIRS = ("DRAM-DRAM", "DRAM-CXL", "CXL-DRAM")
"""Source and target memory: what a copy's memory time depends on."""

PAIR_OF_DIRECTION = (0, 0, 1, 2)

Knots = tuple[tuple[int, Number], ...]
"""(extent in bytes, number) by rising extent."""


@dataclass(frozen=True)
class LimitForm:
    """Numbers of form F: the slower of a core limit and the memory, plus a constant a call."""

    core: Knots
    memory: tuple[tuple[str, Knots], ...]
    per_call: Number
    folio_overhead: Number


@dataclass(frozen=True)
class Machine:
    """One machine's copy costs, hashable; `Machine.as_dict` is its TOML table.

    Attributes
    ----------
    memory
        Memory time of 4 KiB for each pair of `PAIRS` that was measured.
    core
        Core time of 4 KiB at some extents (bytes one primitive copies at once), the first of them 4 KiB.
    folio_overhead
        Time a folio's move takes besides the copy.
    overlap_exponent
        1 adds core and memory time, infinity takes the larger one.
    largest_extent
        The longest extent that was measured.
    limit
        Numbers of form F, where the machine has them.
    clear
        Time to clear 4 KiB at some extents; empty where unknown.
    clock
        Core clock, needed where a time is given in cycles.
    smallest_folio
        The smallest folio that the folio overhead was found with; None where it holds for all.
    clear_fault
        What a fault that clears a folio takes besides the clearing.
    clear_scattered
        What page by page clearing of a folio of PMD order or less takes for 4 KiB in addition: it is done in the order
        of the distance from the faulting address.
    migration
        What moving folios costs besides the copy, where known.
    """

    name: str
    about: str
    memory: tuple[tuple[str, Number], ...]
    core: Knots
    folio_overhead: Number
    overlap_exponent: Number
    largest_extent: Number
    limit: LimitForm | None = None
    clear: Knots = ()
    clock: Number | None = None
    smallest_folio: Number | None = None
    clear_fault: Number | None = None
    clear_scattered: Number | None = None
    migration: Migration | None = None

    @property
    def forms(self) -> tuple[str, ...]:
        """Forms of the cost model that the machine has numbers for."""
        return ("L",) if self.limit is None else ("L", "F")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of every number with its origin, for provenance."""
        return hashlib.sha256(json.dumps([self.name, self.as_dict()], sort_keys=True).encode()).hexdigest()

    def ns(self, number: Number) -> float:
        """`number` in nanoseconds: cycles go through the machine's clock."""
        if number.unit == CYCLES_PER_PAGE and self.clock is not None:
            return number.value / self.clock.value
        return number.value

    def curve(self, knots: Knots) -> tuple[np.ndarray, np.ndarray]:
        """Extents in bytes and nanoseconds, both ``[n_knots]``."""
        return np.array([extent for extent, _ in knots], np.float64), np.array([self.ns(x) for _, x in knots])

    def as_dict(self) -> dict[str, Any]:
        """Nested dict of the TOML table, fit for JSON."""
        table: dict[str, Any] = {"about": self.about}
        for key in ("folio_overhead", "overlap_exponent", "largest_extent"):
            table[key] = getattr(self, key).as_dict()
        for key in ("clock", "smallest_folio", "clear_fault", "clear_scattered"):
            if getattr(self, key) is not None:
                table[key] = getattr(self, key).as_dict()
        table["memory"] = {pair: number.as_dict() for pair, number in self.memory}
        table["core"] = _knots_dict(self.core)
        if self.limit is not None:
            table["limit"] = {
                "per_call": self.limit.per_call.as_dict(),
                "folio_overhead": self.limit.folio_overhead.as_dict(),
                "core": _knots_dict(self.limit.core),
                "memory": {pair: _knots_dict(knots) for pair, knots in self.limit.memory},
            }
        if self.clear:
            table["clear"] = _knots_dict(self.clear)
        if self.migration is not None:
            table["migration"] = self.migration.as_dict()
        return table

    def to_toml(self) -> str:
        """Text of a machine file that `load_machine` reads back to an equal machine."""
        return "\n".join(_toml_lines(_key(self.name), self.as_dict())) + "\n"


def machine_names() -> tuple[str, ...]:
    """Names of the machines that come with memmodel."""
    return tuple(_packaged())


def load_machine(name_or_path: str | os.PathLike[str]) -> Machine:
    """Read one of `machine_names`, or the one machine of a user's own TOML file.

    Text that ends in ``.toml`` or has a directory in it is a path.

    Raises
    ------
    InputError
        If there is no such machine or file, or a number in the file is unknown, missing, out of range or in the
        wrong unit; the message names the file and the key (and the line, where the TOML itself is broken).
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise InputError(f"machine {name_or_path!r} is neither a name nor a path; names: {', '.join(machine_names())}")
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and not text.endswith(".toml") and os.path.basename(text) == text:
        return machine_from_dict(text, _packaged()[one_of(text, machine_names(), "machine")], "machines.toml")
    try:
        raw = Path(text).read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{text}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    tables = _toml(raw, text)
    if len(tables) != 1:
        found = ", ".join(tables) or "none"
        raise InputError(f"{text}: a machine file holds one table, named as the machine; found: {found}")
    ((name, table),) = tables.items()
    return machine_from_dict(name, table, text)


def machine_from_dict(name: str, table: object, where: str) -> Machine:
    """Check the table of one machine, as `Machine.as_dict` gives it; `where` names the file in messages.

    Raises
    ------
    InputError
        As `load_machine`.
    """
    parsed = parse_machine(name, table, where, PAIRS)
    limit, migration = parsed.pop("limit"), parsed.pop("migration")
    return Machine(
        name=name,
        limit=None if limit is None else LimitForm(**limit),
        migration=None if migration is None else migration_part(migration),
        **parsed,
    )


@cache  # 14 ms a time
def _packaged() -> dict[str, Any]:
    path = files("memmodel.cost") / "machines.toml"
    return _toml(path.read_bytes(), "machines.toml")


def _toml(raw: bytes, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; a TOML file is text") from None
    except (ValueError, RecursionError) as error:
        problem, _, place = str(error).partition(" (at line ")
        line_text = place.split(",")[0]
        position = f"{where}:{line_text}" if line_text.isdecimal() else where
        raise InputError(f"{position}: not TOML: {problem}") from None


def _knots_dict(knots: Knots) -> dict[str, Any]:
    return {format_bytes(extent): number.as_dict() for extent, number in knots}


def _key(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _toml_lines(path: str, table: Mapping[str, Any]) -> list[str]:
    """Lines of ``[path]``: plain values and numbers first, then the tables inside."""
    lines = [f"[{path}]"]
    inner = []
    for key, value in table.items():
        if isinstance(value, str):
            lines.append(f"{_key(key)} = {_key(value)}")
        elif "value" in value:
            pairs = ", ".join(f"{_key(k)} = {_key(v) if isinstance(v, str) else repr(v)}" for k, v in value.items())
            lines.append(f"{_key(key)} = {{ {pairs} }}")
        else:
            inner += ["", *_toml_lines(f"{path}.{_key(key)}", value)]
    return lines + inner
