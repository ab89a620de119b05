"""Check a machine's TOML table: every number carries its unit, its source and how it was found."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from memmodel.errors import InputError, one_of
from memmodel.units import format_bytes, parse_bytes

__all__ = [
    "BYTES",
    "CYCLES_PER_PAGE",
    "HOWS",
    "NS_PER_CALL",
    "NS_PER_FOLIO",
    "NS_PER_PAGE",
    "NS_PER_PTE",
    "Number",
    "parse_machine",
]

HOWS = ("fitted", "published", "derived", "assumed")
"""Fitted to published cells; read in a source; computed from read numbers; nobody's reading."""

NS_PER_PAGE = "ns per 4 KiB"
NS_PER_FOLIO = "ns per folio"
NS_PER_CALL = "ns per call"
NS_PER_PTE = "ns per PTE"
NS_PER_FLUSH = "ns per flush"
NS_PER_REQUEST = "ns per request"
NS_PER_IPI = "ns per IPI"
NS_PER_BATCH = "ns per batch"
CYCLES_PER_PAGE = "cycles per 4 KiB"
BYTES = "bytes"

_RANGES = {
    NS_PER_PAGE: (0.0, 1e9),
    CYCLES_PER_PAGE: (0.0, 1e9),
    NS_PER_FOLIO: (0.0, 1e12),
    **dict.fromkeys((NS_PER_CALL, NS_PER_PTE, NS_PER_FLUSH, NS_PER_REQUEST, NS_PER_IPI, NS_PER_BATCH), (0.0, 1e9)),
    BYTES: (4096.0, 2.0**50),
    "GHz": (0.01, 100.0),
    "GB/s": (1e-3, 1e6),
    "CCDs": (1.0, 1024.0),
    "threads per CCD": (1.0, 1024.0),
    "1": (1.0, 100.0),
}
_NUMBER_KEYS = ("value", "unit", "source", "how")
_REQUIRED = ("about", "memory", "core", "folio_overhead", "overlap_exponent", "largest_extent")
_LONE = {
    "clock": "GHz",
    "smallest_folio": BYTES,
    "clear_fault": NS_PER_FOLIO,
    "clear_scattered": NS_PER_PAGE,
}
_OPTIONAL = ("limit", "clear", "migration", *_LONE)
# Unit of each number of the migration part.
_MIGRATION = {
    "call": NS_PER_CALL,
    "unmap_folio": NS_PER_FOLIO,
    "unmap_pte": NS_PER_PTE,
    "remap_pte": NS_PER_PTE,
    "flush_full": NS_PER_FLUSH,
    "flush_page": NS_PER_FLUSH,
    "flush_request": NS_PER_REQUEST,
    "flush_receiver": NS_PER_IPI,
}
_MIGRATION_LONE = {
    "flush_broadcast": NS_PER_FLUSH,
    "ipi_handler": NS_PER_IPI,
    "copy_limit": "GB/s",
    "reclaim_slowdown": "1",
}
_THREADS = {"ccd_threads": "threads per CCD", "ccds": "CCDs", "socket": NS_PER_PAGE, "doubling": "1"}
_DMA = {"batch": NS_PER_BATCH, "below_pmd": NS_PER_PAGE}
_MAX_CHANNELS = 1024


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
    lone = _numbers(fields, at, _LONE)
    page_units = (NS_PER_PAGE, CYCLES_PER_PAGE) if "clock" in lone else (NS_PER_PAGE,)
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
        "migration": _migration(fields["migration"], f"{at}.migration") if "migration" in fields else None,
        **lone,
    }


def _limit(table: object, at: str, pairs: Collection[str], knots: Callable[..., Any]) -> dict[str, Any]:
    fields = _table(table, at, ("core", "memory", "per_call", "folio_overhead"))
    return {
        "core": knots(fields["core"], f"{at}.core", from_one_page=True),
        "memory": tuple(_pairs(fields["memory"], f"{at}.memory", pairs, knots).items()),
        "per_call": _number(fields["per_call"], f"{at}.per_call", (NS_PER_CALL,)),
        "folio_overhead": _number(fields["folio_overhead"], f"{at}.folio_overhead", (NS_PER_FOLIO,)),
    }


def _migration(table: object, at: str) -> dict[str, Any]:
    """Fields of the migration part; those of ``threads`` and ``dma`` as dicts of their own."""
    fields = _table(table, at, _MIGRATION, (*_MIGRATION_LONE, "threads", "dma"))
    found: dict[str, Any] = _numbers(fields, at, _MIGRATION | _MIGRATION_LONE)
    if "threads" in fields:
        found["threads"] = _numbers(_table(fields["threads"], f"{at}.threads", _THREADS), f"{at}.threads", _THREADS)
    if "dma" in fields:
        dma = _table(fields["dma"], f"{at}.dma", (*_DMA, "channels"))
        found["dma"] = _numbers(dma, f"{at}.dma", _DMA) | {"channels": _channels(dma["channels"], f"{at}.dma.channels")}
    return found


def _channels(value: object, at: str) -> tuple[tuple[int, Number], ...]:
    """Copy times by the number of DMA channels, sorted."""
    if not isinstance(value, dict) or not value:
        raise InputError(f"{at}: {_short(value)} is not a table of channels, such as 4 = {{ value = ... }}")
    found: dict[int, Number] = {}
    for key, entry in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 5 and 1 <= int(key) <= _MAX_CHANNELS):
            raise InputError(f"{at}: {key!r} is not a number of channels from 1 to {_MAX_CHANNELS}")
        if int(key) in found:
            raise InputError(f"{at}: {int(key)} channels are given twice")
        found[int(key)] = _number(entry, f"{at}.{key}", (NS_PER_PAGE,))
    return tuple(sorted(found.items()))


def _numbers(fields: Mapping[str, Any], at: str, units: Mapping[str, str]) -> dict[str, Number]:
    """Those of the numbers in `units` that are there."""
    return {key: _number(fields[key], f"{at}.{key}", (unit,)) for key, unit in units.items() if key in fields}


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
