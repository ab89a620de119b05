"""Check a machine's TOML table: every number carries its unit, its source and how it was found."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from memmodel.errors import InputError, one_of
from memmodel.units import format_bytes, parse_bytes

__all__ = ["BYTES", "CYCLES_PER_PAGE", "HOWS", "NS_PER_CALL", "NS_PER_FOLIO", "NS_PER_PAGE", "Number", "parse_machine"]

HOWS = ("fitted", "published", "derived", "assumed")
"""Fitted to published cells; read in a source; computed from read numbers; nobody's reading."""

NS_PER_PAGE = "ns per 4 KiB"
NS_PER_FOLIO = "ns per folio"
NS_PER_CALL = "ns per call"
CYCLES_PER_PAGE = "cycles per 4 KiB"
BYTES = "bytes"

_RANGES = {
    NS_PER_PAGE: (0.0, 1e9),
    CYCLES_PER_PAGE: (0.0, 1e9),
    NS_PER_FOLIO: (0.0, 1e12),
    NS_PER_CALL: (0.0, 1e9),
    BYTES: (4096.0, 2.0**50),
    "GHz": (0.01, 100.0),
    "1": (1.0, 100.0),
}
_NUMBER_KEYS = ("value", "unit", "source", "how")
_REQUIRED = ("about", "memory", "core", "folio_overhead", "overlap_exponent", "largest_extent")
_OPTIONAL = ("limit", "clear", "clock", "smallest_folio")


@dataclass(frozen=True)
class Number:
    """One number of a machine: value and unit, the source, and how it was found (one of `HOWS`)."""

    value: float
    unit: str
    source: str
    how: str

    def as_dict(self) -> dict[str, Any]:
        """The TOML table of the number."""
        return asdict(self)


def parse_machine(name: str, table: object, where: str, pairs: Collection[str]) -> dict[str, Any]:
    """Fields of a `Machine` from its table; `where` is the file and `pairs` are the allowed keys of ``memory``.

    Raises
    ------
    InputError
        At the first thing that is wrong, with file and key.
    """
    at = f"{where}: {name}"
    fields = _table(table, at, _REQUIRED, _OPTIONAL)
    if not isinstance(fields["about"], str):
        raise InputError(f"{at}.about: {fields['about']!r} is not text")
    clock = _number(fields["clock"], f"{at}.clock", ("GHz",)) if "clock" in fields else None
    page_units = (NS_PER_PAGE,) if clock is None else (NS_PER_PAGE, CYCLES_PER_PAGE)
    page_time = partial(_number, units=page_units)
    knots = partial(_knots, page_time=page_time)
    return {
        "about": fields["about"],
        "memory": tuple(_pairs(fields["memory"], f"{at}.memory", pairs, page_time).items()),
        "core": knots(fields["core"], f"{at}.core", from_one_page=True),
        "folio_overhead": _number(fields["folio_overhead"], f"{at}.folio_overhead", (NS_PER_FOLIO,)),
        "overlap_exponent": _number(fields["overlap_exponent"], f"{at}.overlap_exponent", ("1",)),
        "largest_extent": _number(fields["largest_extent"], f"{at}.largest_extent", (BYTES,)),
        "limit": _limit(fields["limit"], f"{at}.limit", pairs, knots) if "limit" in fields else None,
        "clear": knots(fields["clear"], f"{at}.clear", from_one_page=True) if "clear" in fields else (),
        "clock": clock,
        "smallest_folio": _number(fields["smallest_folio"], f"{at}.smallest_folio", (BYTES,))
        if "smallest_folio" in fields
        else None,
    }


def _limit(table: object, at: str, pairs: Collection[str], knots: Callable[..., Any]) -> dict[str, Any]:
    fields = _table(table, at, ("core", "memory", "per_call", "folio_overhead"))
    return {
        "core": knots(fields["core"], f"{at}.core", from_one_page=True),
        "memory": tuple(_pairs(fields["memory"], f"{at}.memory", pairs, knots).items()),
        "per_call": _number(fields["per_call"], f"{at}.per_call", (NS_PER_CALL,)),
        "folio_overhead": _number(fields["folio_overhead"], f"{at}.folio_overhead", (NS_PER_FOLIO,)),
    }


def _table(value: object, at: str, required: Collection[str], optional: Collection[str] = ()) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{at}: {_short(value)} is not a table")
    allowed = (*required, *optional)
    for key in value:
        if key not in allowed:
            raise InputError(f"{at}: unknown key {key!r}; allowed: {', '.join(allowed)}")
    for key in required:
        if key not in value:
            raise InputError(f"{at}: {key} is missing")
    return value


def _pairs(value: object, at: str, pairs: Collection[str], parse: Callable[[object, str], Any]) -> dict[str, Any]:
    table = _table(value, at, (), pairs)
    if not table:
        raise InputError(f"{at}: empty; give one of: {', '.join(pairs)}")
    return {pair: parse(table[pair], f"{at}.{pair}") for pair in pairs if pair in table}


def _knots(
    value: object, at: str, page_time: Callable[[object, str], Number], from_one_page: bool = False
) -> tuple[tuple[int, Number], ...]:
    """Numbers by extent, sorted; a curve that must reach down to one page says so."""
    if not isinstance(value, dict) or not value:
        raise InputError(f"{at}: {_short(value)} is not a table of extents, such as '4 KiB' = {{ value = ... }}")
    found: dict[int, Number] = {}
    for key, entry in value.items():
        try:
            extent = parse_bytes(key, "extent")
        except InputError as error:
            raise InputError(f"{at}: {error}") from None
        if not 4096 <= extent <= 2**50:
            raise InputError(f"{at}: extent {key!r} is not within 4 KiB and 1024 TiB")
        if extent in found:
            raise InputError(f"{at}: extent {format_bytes(extent)} is given twice")
        found[extent] = page_time(entry, f"{at}.{key!r}")
    if from_one_page and min(found) != 4096:
        raise InputError(f"{at}: starts at {format_bytes(min(found))}; the first extent must be 4 KiB")
    return tuple(sorted(found.items()))


def _number(value: object, at: str, units: Collection[str]) -> Number:
    table = _table(value, at, _NUMBER_KEYS)
    for key in ("unit", "source", "how"):
        if not isinstance(table[key], str) or not table[key]:
            raise InputError(f"{at}.{key}: {_short(table[key])} is not text of at least one letter")
    try:
        unit = one_of(table["unit"], units, "unit")
        how = one_of(table["how"], HOWS, "how")
    except InputError as error:
        raise InputError(f"{at}: {error}") from None
    raw = table["value"]
    low, high = _RANGES[unit]
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise InputError(f"{at}.value: {_short(raw)} is not a number")
    if not low <= raw <= high:  # nan too
        raise InputError(f"{at}.value: {_short(raw)} is not within {low:g} and {high:g} {unit}")
    return Number(float(raw), unit, table["source"], how)


def _short(value: object) -> str:
    if isinstance(value, str | float | bool) or (isinstance(value, int) and abs(value) < 10**20):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"a value of type {type(value).__name__}"
