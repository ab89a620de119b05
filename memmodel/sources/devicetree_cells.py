"""Cells of device tree properties as addresses and sizes, and which widths can be meant where none is shown."""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from memmodel.errors import InputError
from memmodel.sources.spans import END_OF_MEMORY_BYTES, Span

__all__ = ["LINE_PROPERTY", "CellValues", "Decoded", "decode", "line_of"]

LINE_PROPERTY = "memmodel,line"
"""Put into each node before parsing, so that it knows its line afterwards."""

_WIDTHS = (1, 2)
_NAMES = ("reg", "size", "alignment", "alloc-ranges")


class CellValues(NamedTuple):
    """The numbers of one node."""

    reg: tuple[Span, ...]
    size_bytes: int | None
    alignment_bytes: int | None
    alloc_ranges: tuple[Span, ...]


class Decoded(NamedTuple):
    """The numbers of several nodes, and how many cells an address and a size have."""

    values: list[CellValues]
    words: str


def decode(parents: Sequence[Any], nodes: Sequence[Any], source: str) -> Decoded:
    """Read the cells of nodes.

    The first of `parents` that shows #address-cells or #size-cells decides. One that no parent shows is worked out:
    of 1 and 2 cells, what all properties of all the nodes leave possible (whole entries, no size of 0, nothing beyond
    4 PiB, no node that overlaps itself).

    Parameters
    ----------
    parents, nodes
        Nodes of dtlib.
    source
        Names the text in messages.

    Raises
    ------
    InputError
        If a property holds no cells, does not fit the widths, or can be read in two ways.
    """
    shown = [_shown(parents, name, source) for name in ("#address-cells", "#size-cells")]
    where = [f"{source}:{line_of(node)}: {node.name}" for node in nodes]
    cells = [
        {name: _cells(node, name, at) for name in _NAMES if name in node.props}
        for node, at in zip(nodes, where, strict=True)
    ]
    readings: dict[tuple[int, int], list[CellValues]] = {}
    for address, size in product(*((width,) if width is not None else _WIDTHS for width in shown)):
        try:
            values = [_values(own, address, size, at) for own, at in zip(cells, where, strict=True)]
            readings[address, size] = values
        except InputError:
            if None not in shown:
                raise
    first = next(iter(readings.values()), None)
    if first is None or any(values != first for values in readings.values()):
        ways = " or ".join(f"{address} + {size}" for address, size in readings) or "neither 1 nor 2"
        line = line_of(parents[0])
        raise InputError(
            f"{source}:{line}: #address-cells and #size-cells are not shown, and by the values {ways} cells fit;"
            " give the node that has them"
        )
    return Decoded(first, _words(shown, list(readings)))


def line_of(node: Any) -> int:
    """The line of the text where a node begins."""
    return int.from_bytes(node.props[LINE_PROPERTY].value, "big") if LINE_PROPERTY in node.props else 1


def _shown(parents: Sequence[Any], name: str, source: str) -> int | None:
    for parent in parents:
        if name in parent.props:
            where = f"{source}:{line_of(parent)}: {parent.name}"
            cells = _cells(parent, name, where)
            if len(cells) != 1 or cells[0] not in _WIDTHS:
                raise InputError(f"{where}: {name} is {cells}; allowed: 1, 2")
            return cells[0]
    return None


def _words(shown: Sequence[int | None], widths: Sequence[tuple[int, int]]) -> str:
    if None not in shown:
        return f"#address-cells {shown[0]}, #size-cells {shown[1]}"
    meant = " or ".join(f"{address} and {size}" for address, size in widths)
    return f"#address-cells and #size-cells not shown: {meant} by the values"


def _cells(node: Any, name: str, where: str) -> list[int]:
    """The 32-bit cells of a property."""
    value, text = node.props[name].value, str(node.props[name])
    if len(value) % 4 or '"' in text or "[" in text or "&" in text:
        raise InputError(f"{where}: found {' '.join(text.split())!r}; {name} is numbers in < >")
    return [int.from_bytes(value[at : at + 4], "big") for at in range(0, len(value), 4)]


def _values(cells: dict[str, list[int]], address: int, size: int, where: str) -> CellValues:
    """One node's numbers with these widths."""
    spans = {name: _spans(cells.get(name, []), address, size, f"{where}: {name}") for name in ("reg", "alloc-ranges")}
    numbers: dict[str, int | None] = {}
    for name, width in (("size", size), ("alignment", address)):  # drivers/of reads an alignment as an address
        numbers[name] = None
        if name in cells:
            if len(cells[name]) != width:
                raise InputError(f"{where}: {name} has {len(cells[name])} cells; {width} by the parent node")
            numbers[name] = _number(cells[name])
    if numbers["size"] == 0:
        raise InputError(f"{where}: size is 0")
    return CellValues(spans["reg"], numbers["size"], numbers["alignment"], spans["alloc-ranges"])


def _spans(cells: list[int], address: int, size: int, where: str) -> tuple[Span, ...]:
    entry = address + size
    if len(cells) % entry:
        raise InputError(f"{where} has {len(cells)} cells; an entry has {address} + {size}")
    entries = [cells[at : at + entry] for at in range(0, len(cells), entry)]
    spans = tuple(Span(_number(found[:address]), _number(found[address:])) for found in entries)
    for span in spans:
        if not span.size_bytes or span.end > END_OF_MEMORY_BYTES:
            raise InputError(f"{where} has a region at {span.base:#x} of {span.size_bytes:#x} bytes; no memory is so")
    if any(a.overlaps(b) for at, a in enumerate(spans) for b in spans[at + 1 :]):
        raise InputError(f"{where} has regions that overlap")
    return spans


def _number(cells: Sequence[int]) -> int:
    value = 0
    for cell in cells:
        value = value << 32 | cell
    return value
