"""Device trees: the reserved-memory nodes of a .dts, of a piece of one, or of a patch to one.

The nodes are cut out of the text by their braces and read with dtlib; files, labels and macros that the rest of the
text refers to are not needed. What the kernel makes of the nodes is in `memmodel.mechanisms.reserving`.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from devicetree.dtlib import DT, DTError

from memmodel.errors import InputError
from memmodel.sources.devicetree_blocks import scan_blocks
from memmodel.sources.devicetree_cells import CellValues, decode, line_of
from memmodel.sources.devicetree_pick import pick
from memmodel.sources.quoting import undiff, unquote
from memmodel.sources.reading import PathLike, decode_text, read_bytes
from memmodel.sources.spans import Span, merge

__all__ = ["DeviceTree", "ReservedNode", "parse_device_tree", "read_device_tree"]

_DTB_MAGIC = b"\xd0\x0d\xfe\xed"
_DTLIB_ERROR = re.compile(r"(\d+) \(column \d+\): parse error: (.*)", re.DOTALL)


@dataclass(frozen=True)
class ReservedNode:
    """A child of reserved-memory: what Documentation/devicetree/bindings/reserved-memory lets it say."""

    name: str
    """With its unit address."""
    labels: tuple[str, ...]
    line: int
    """Where it begins in the text."""
    compatible: tuple[str, ...]
    reg: Span | None
    """The first region of ``reg``, which is the one the kernel makes an area of; None: placed by the kernel."""
    other_regs: tuple[Span, ...]
    size_bytes: int | None
    """``size``, for the kernel to place."""
    alignment_bytes: int | None
    alloc_ranges: tuple[Span, ...]
    reusable: bool
    no_map: bool
    cma_default: bool
    """``linux,cma-default``."""
    disabled: bool
    """Whether ``status`` is anything but okay: the kernel passes it over."""

    @property
    def is_shared_pool(self) -> bool:
        """Whether it is a "shared-dma-pool", which CMA and the coherent pools look at."""
        return "shared-dma-pool" in self.compatible

    @property
    def is_cma(self) -> bool:
        """Whether it asks for a CMA area."""
        return self.is_shared_pool and self.reusable and not self.no_map


@dataclass(frozen=True)
class DeviceTree:
    """What a device tree says of memory."""

    path: str
    nodes: tuple[ReservedNode, ...]
    """In the order of the text."""
    memory: tuple[Span, ...] | None
    """RAM by the memory nodes; None where the text has none that can be read."""
    cells: str
    """#address-cells and #size-cells of the nodes, and where they come from."""
    unsupported: str = ""
    """Why the kernel would ignore reserved-memory as a whole; empty: it does not, as far as is shown."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What was left out or taken for granted, one line each."""


def read_device_tree(path: PathLike, *, close_nodes: bool = False) -> DeviceTree:
    """Read the reserved-memory nodes of a device tree source.

    A whole .dts or .dtsi, a piece of one, a patch, or any of them quoted in a mail. Files that the text includes are
    not read and macros not expanded: where a value that is needed has one, it is refused by name.

    Parameters
    ----------
    path
        A file, plain or compressed.
    close_nodes
        Close nodes that are open where the text ends, instead of refusing it.

    Raises
    ------
    InputError
        If the file cannot be read, is not whole, has no reserved-memory node, or a value cannot be told.

    Examples
    --------
    >>> tree = read_device_tree("board.dts")                        # doctest: +SKIP
    >>> tree.nodes[0].name, tree.nodes[0].size_bytes                # doctest: +SKIP
    ('linux,cma', 268435456)
    """
    data, _ = read_bytes(path)
    source = os.fspath(path)
    if data.startswith(_DTB_MAGIC):
        raise InputError(f"{source}: a compiled device tree; its source is read here: dtc -I dtb -O dts")
    return parse_device_tree(decode_text(data, source), source, close_nodes=close_nodes)


def parse_device_tree(text: str, source: str, *, close_nodes: bool = False) -> DeviceTree:
    """The same from the text itself; `source` names it in messages.

    Raises
    ------
    InputError
        As `read_device_tree`.
    """
    plain, is_diff = undiff(unquote(text))
    scan = scan_blocks(plain, source, is_cut=is_diff, close_nodes=close_nodes)
    picked = pick(scan, source, is_cut=is_diff)
    root = _parse(picked.text, source)
    reserved = root.nodes.get("reserved-memory")
    if reserved is None or not reserved.nodes:
        raise InputError(f"{source}:1: found no reserved-memory node with a child; a device tree is read for those")
    children = list(reserved.nodes.values())
    notes = [*scan.notes, *picked.notes]
    decoded = decode([reserved, root], children, source)
    nodes = tuple(_node(source, node, values) for node, values in zip(children, decoded.values, strict=True))
    notes += [
        f"{source}:{node.line}: {node.name}: a unit address, and no reg that it names"
        for node in nodes
        if "@" in node.name and node.reg is None
    ]
    unsupported = _unsupported(root, reserved, picked.is_whole)
    return DeviceTree(source, nodes, _memory(source, root, notes), decoded.words, unsupported, tuple(notes))


def _parse(text: str, source: str) -> Any:
    """The root node as dtlib has it.

    Raises
    ------
    InputError
        If it is no device tree; what dtlib says, with the line of `source`.
    """
    with TemporaryDirectory(prefix="memmodel-") as folder:
        path = Path(folder, "tree.dts")
        path.write_text(text, encoding="utf-8")
        try:
            return DT(str(path)).root
        except (DTError, ArithmeticError, ValueError, RecursionError) as error:
            found = _DTLIB_ERROR.fullmatch(str(error).removeprefix(f"{path}:"))
            line, why = found.groups() if found else ("1", str(error).replace(str(path), source))
            raise InputError(f"{source}:{line}: no device tree source: {' '.join(why.split())}") from None


def _node(source: str, node: Any, values: CellValues) -> ReservedNode:
    where = f"{source}:{line_of(node)}: {node.name}"
    alignment = values.alignment_bytes
    if alignment is not None and alignment.bit_count() > 1:
        raise InputError(f"{where}: alignment {alignment:#x} is no power of two")
    if not values.reg and values.size_bytes is None:
        raise InputError(f"{where}: neither reg nor size; a reserved-memory node has one of them")
    return ReservedNode(
        name=node.name,
        labels=tuple(node.labels),
        line=line_of(node),
        compatible=_strings(node, "compatible", where),
        reg=values.reg[0] if values.reg else None,
        other_regs=values.reg[1:],
        size_bytes=values.size_bytes,
        alignment_bytes=alignment,
        alloc_ranges=values.alloc_ranges,
        reusable="reusable" in node.props,
        no_map="no-map" in node.props,
        cma_default="linux,cma-default" in node.props,
        disabled=_strings(node, "status", where)[:1] not in ((), ("okay",), ("ok",)),
    )


def _strings(node: Any, name: str, where: str) -> tuple[str, ...]:
    if name not in node.props:
        return ()
    try:
        return tuple(node.props[name].to_strings())
    except DTError:
        raise InputError(f"{where}: {name} is no text in quotes") from None


def _memory(source: str, root: Any, notes: list[str]) -> tuple[Span, ...] | None:
    """RAM by the memory nodes, where it can be told."""
    found = [node for name, node in root.nodes.items() if name.partition("@")[0] == "memory" and "reg" in node.props]
    if not found:
        return None
    try:
        return merge(span for values in decode([root], found, source).values for span in values.reg)
    except InputError as error:
        notes.append(f"memory nodes not read: {error}")
    return None


def _unsupported(root: Any, reserved: Any, is_whole: bool) -> str:
    """Why the kernel ignores the node, by __reserved_mem_check_root() of drivers/of."""
    for name in ("#address-cells", "#size-cells"):
        if is_whole and name not in reserved.props:
            return f"reserved-memory has no {name}"
        if name in root.props and name in reserved.props and root.props[name].value != reserved.props[name].value:
            return f"reserved-memory has another {name} than the root node"
    return "reserved-memory has no ranges" if is_whole and "ranges" not in reserved.props else ""
