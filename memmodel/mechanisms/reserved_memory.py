"""What the kernel makes of each reserved-memory node of a device tree, by page size and pageblock order."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from errno import EBUSY, EINVAL, ENODEV, ENOMEM
from typing import Any

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.mechanisms.memblock import MemoryMap
from memmodel.mechanisms.reserving import (
    CANNOT_TELL,
    FOUR_GIB,
    Activation,
    Reservation,
    activate,
    reach_by_window,
    reserve_default,
    round_up,
)
from memmodel.sources.cma_options import CmaOption, option_of
from memmodel.sources.devicetree import DeviceTree, ReservedNode
from memmodel.sources.spans import END_OF_MEMORY_BYTES, Span, subtract
from memmodel.units import format_bytes

__all__ = ["NodeOutcome", "ReservedMemory", "reserved_memory"]

_CACHE_LINE_BYTES = 64  # alignment where a node has none
_SHUT_OUT = "Reserved memory: unsupported node format, ignoring"


@dataclass(frozen=True)
class NodeOutcome:
    """One node under one kernel build."""

    geometry: Geometry
    node: ReservedNode
    kind: str
    """"cma": asks for a CMA area; "pool": a shared pool that does not; "reserved": anything else."""
    reservation: Reservation
    given_back: bool | None
    """Whether the memory is ordinary memory again; None: that is up to handlers of other kinds of pools."""
    activation: Activation | None
    """None where there is no CMA area."""
    bank_left_bytes: int | None
    """What is left of the bank of RAM that it lies in, outside all nodes; None: the bank is not known."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, a row of a table."""
        geo, area, node = self.geometry, self.reservation, self.node
        return {
            "page_size_bytes": geo.page_size_bytes,
            "page_block_max_order": geo.page_block_max_order,
            "pageblock_order": geo.pageblock_order,
            "kernel": geo.kernel,
            "node": node.name,
            "line": node.line,
            "kind": self.kind,
            **area.as_dict(),
            "given_back": self.given_back,
            "zone": self.activation.zone if self.activation else None,
            "cma_total_bytes": self.activation.cma_total_bytes if self.activation else 0,
            "bank_left_bytes": self.bank_left_bytes,
        }


@dataclass(frozen=True)
class ReservedMemory:
    """A device tree under one or several kernel builds."""

    geometries: tuple[Geometry, ...]
    """The kernel builds."""
    outcomes: tuple[NodeOutcome, ...]
    """Build by build, in the order of the text."""
    default_areas: tuple[Reservation | None, ...]
    """The default area of DMA for each build, a node's where a node makes it; None: there is none."""
    memory: tuple[MemoryMap | None, ...]
    """RAM and what is taken of it then, for each build; None where it was not given."""
    notes: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Every outcome as plain values."""
        return [outcome.as_dict() for outcome in self.outcomes]

    def table(self) -> list[tuple[object, ...]]:
        """Header and rows for people; last the default areas that no node makes."""
        header = (
            "page size",
            "block order",
            "node",
            "CMA area",
            "at",
            "size",
            "wasted",
            "granule",
            "32-bit",
            "why not",
        )
        nodes = [_table_row(o.geometry, o.node.name, o.reservation, o.kind == "cma") for o in self.outcomes]
        defaults = [
            _table_row(geo, "(default area)", area, True)
            for geo, area in zip(self.geometries, self.default_areas, strict=True)
            if area is not None and not any(area is outcome.reservation for outcome in self.outcomes)
        ]
        return [header, *nodes, *defaults]


def _table_row(geo: Geometry, name: str, area: Reservation, asks_for_cma: bool) -> tuple[object, ...]:
    return (
        format_bytes(geo.page_size_bytes),
        geo.pageblock_order,
        name,
        "yes" if area.accepted and asks_for_cma else "no",
        f"{area.base:#x}" if area.base is not None else CANNOT_TELL if area.accepted else None,
        format_bytes(area.size_bytes),
        format_bytes(area.wasted_bytes),
        format_bytes(area.granularity_bytes),
        area.reach,
        area.error or None,
    )


def reserved_memory(
    tree: DeviceTree,
    geometry: Geometry | Iterable[Geometry],
    *,
    cma: CmaOption | str | None = None,
    config_bytes: int = 0,
    memory: MemoryMap | None = None,
    dma_limit: int | None = None,
) -> ReservedMemory:
    """What the kernel makes of the reserved-memory nodes of a device tree.

    Parameters
    ----------
    geometry
        The kernel build, or several, say one a page size.
    cma
        What cma= of the boot line says; a node with ``linux,cma-default`` is refused then.
    config_bytes
        Size of the default area by the configuration, where neither node nor boot line makes one.
    memory
        RAM at boot with what is taken of it. None: where the kernel places a node cannot be told, unless the node's
        ``alloc-ranges`` leave one place.
    dma_limit
        As for `memmodel.mechanisms.reserving.reserve_default`.

    Raises
    ------
    InputError
        If `cma` is malformed, no geometry is given, or an argument is of another kind.

    References
    ----------
    drivers/of/of_reserved_mem.c; kernel/dma/contiguous.c: rmem_cma_setup, Linux 6.1, 6.12, 7.3.
    """
    builds = (geometry,) if isinstance(geometry, Geometry) else tuple(geometry)
    if not builds or not all(isinstance(build, Geometry) for build in builds):
        raise InputError("no geometry given; one kernel build at least is needed")
    if memory is not None and not isinstance(memory, MemoryMap):
        raise InputError(f"memory {str(memory)[:60]!r} is no MemoryMap of RAM and what is taken of it")
    option = option_of(cma)
    done = [_boot(tree, build, option, config_bytes, memory, dma_limit) for build in builds]
    return ReservedMemory(
        geometries=builds,
        outcomes=tuple(outcome for outcomes, _, _ in done for outcome in outcomes),
        default_areas=tuple(area for _, area, _ in done),
        memory=tuple(left for _, _, left in done),
        notes=tree.notes,
    )


def _boot(
    tree: DeviceTree,
    geo: Geometry,
    option: CmaOption | None,
    config_bytes: int,
    memory: MemoryMap | None,
    dma_limit: int | None,
) -> tuple[list[NodeOutcome], Reservation | None, MemoryMap | None]:
    """The nodes with a place of their own, then those to be placed, then the default area."""
    boot = _Boot(tree, geo, option, memory)
    for node in sorted(tree.nodes, key=lambda node: node.reg is None):
        boot.take(node)
    default = boot.default
    if default is None:
        default, boot.memory = reserve_default(
            geo, boot.memory, cma=option, config_bytes=config_bytes, dma_limit=dma_limit
        )
    return [boot.outcome(node) for node in tree.nodes], default, boot.memory


class _Boot:
    """The nodes of a tree, one after the other."""

    def __init__(self, tree: DeviceTree, geo: Geometry, option: CmaOption | None, memory: MemoryMap | None) -> None:
        self.tree, self.geo, self.option, self.memory = tree, geo, option, memory
        self.done: dict[str, tuple[Reservation, bool | None]] = {}
        self.default: Reservation | None = None

    def take(self, node: ReservedNode) -> None:
        """Reserve one node, look at what it is for, and give it back where that fails."""
        area = self.reserved(node)
        lost: bool | None = False
        if not area.errno and node.is_shared_pool:
            area = self.set_up(node, area)
            lost = area.errno in (-EBUSY, -EINVAL)
            if area.errno == -EINVAL and not node.is_cma:
                lost = None
        if lost and area.span is not None and self.memory is not None:
            self.memory = self.memory.give_back([area.span, *node.other_regs])
        if area.accepted and node.cma_default and node.is_cma:
            self.default = area
        self.done[node.name] = area, lost

    def reserved(self, node: ReservedNode) -> Reservation:
        """The memory itself: where `reg` says, or where there is room."""
        granule = self.geo.cma_min_alignment_bytes
        size = node.reg.size_bytes if node.reg else node.size_bytes or 0
        unit = node.alignment_bytes or (granule if node.is_cma else _CACHE_LINE_BYTES)
        unit = max(unit, granule) if node.is_cma else unit
        area = Reservation(node.name, not node.is_shared_pool or node.is_cma, size, size, unit, granule)
        if self.tree.unsupported or node.disabled:
            why = (
                f"{_SHUT_OUT} ({self.tree.unsupported})" if self.tree.unsupported else "status is not okay: passed over"
            )
            return replace(area, accepted=False, errno=-ENODEV, error=why)
        area = replace(area, notes=_alignment_notes(node, unit, granule))
        if node.reg is not None:
            if self.memory is not None:
                for span in (node.reg, *node.other_regs):
                    self.memory = self.memory.reserve(span)
            return replace(area, base=node.reg.base, below_4gib=node.reg.end <= FOUR_GIB)
        return self.placed(node, area)

    def placed(self, node: ReservedNode, area: Reservation) -> Reservation:
        """A node without reg, in the first of its alloc-ranges with room."""
        ranges = node.alloc_ranges or (Span(0, END_OF_MEMORY_BYTES),)
        size, unit = area.size_bytes, area.alignment_bytes
        reach = {reach_by_window(span.base, span.end) for span in ranges}
        unknown = replace(area, below_4gib=reach.pop() if len(reach) == 1 else None)
        why = f"failed to allocate memory for node '{node.name}'"
        no_room = replace(unknown, accepted=False, errno=-ENOMEM, error=why, log=(f"OF: reserved mem: {why}",))
        if not any(_places(span, size, unit) for span in ranges):
            return no_room
        if self.memory is None:
            if len(ranges) == 1 and _places(ranges[0], size, unit) == 1:
                base = round_up(ranges[0].base, unit)
                return replace(area, base=base, below_4gib=base + size <= FOUR_GIB)
            where = "within its alloc-ranges" if node.alloc_ranges else "wherever RAM has room"
            return replace(unknown, notes=(*area.notes, f"no reg: placed at boot, {where}"))
        if node.alloc_ranges and self.touches_a_neighbour(node):
            beside = "alloc-ranges touch another node: some kernels place it next to that one; not modelled"
            return replace(unknown, notes=(*area.notes, beside))
        for span in ranges:
            place = self.memory.find(size, unit, max(span.base, self.geo.page_size_bytes), span.end)
            if place is not None:
                self.memory = self.memory.reserve(Span(place, size))
                return replace(area, base=place, below_4gib=place + size <= FOUR_GIB)
        return no_room

    def touches_a_neighbour(self, node: ReservedNode) -> bool:
        """Whether an alloc-range begins or ends at or in a node that has its place already."""
        spans = [area.span for area, _ in self.done.values() if area.span is not None]
        ends = [at for span in node.alloc_ranges for at in (span.base, span.end)]
        return any(span.base <= at <= span.end for span in spans for at in ends)

    def set_up(self, node: ReservedNode, area: Reservation) -> Reservation:
        """The shared pool's part: refused by the boot line, by its properties, or by its alignment."""
        fail = f"OF: reserved mem: node {node.name} compatible matching fail"
        if self.option is not None and node.cma_default:
            why = f"Reserved memory: bypass {node.name} node, using cmdline CMA params instead"
            return replace(area, accepted=False, errno=-EBUSY, error=why, log=(why, fail))
        if not node.is_cma:
            why = "no CMA area: " + ("not reusable" if not node.reusable else "no-map")
            errno = ENODEV if "rmem_not_reusable_enodev" in self.geo.features else EINVAL
            return replace(area, accepted=False, errno=-errno, error=why)
        if area.size_bytes % area.granularity_bytes or (area.base or 0) % area.granularity_bytes:
            why = "Reserved memory: incorrect alignment of CMA region"
            return replace(area, accepted=False, errno=-EINVAL, error=why, log=(why, fail))
        if area.base is None:
            return area
        size = area.size_bytes >> 20
        done = f"Reserved memory: created CMA memory pool at {area.base:#018x}, size {size} MiB"
        return replace(
            area, log=(done, f"OF: reserved mem: initialized node {node.name}, compatible id shared-dma-pool")
        )

    def outcome(self, node: ReservedNode) -> NodeOutcome:
        """The row of the table."""
        area, given_back = self.done[node.name]
        kind = "cma" if node.is_cma else "pool" if node.is_shared_pool else "reserved"
        activation = activate(self.geo, area, self.memory) if area.accepted and kind == "cma" else None
        return NodeOutcome(self.geo, node, kind, area, given_back, activation, self.bank_left(area))

    def bank_left(self, area: Reservation) -> int | None:
        """RAM of its bank outside all nodes that stay reserved."""
        banks = self.memory.memory if self.memory is not None else self.tree.memory or ()
        bank = next((bank for bank in banks if area.span is not None and bank.holds(area.span)), None)
        if bank is None:
            return None
        taken = [
            span
            for node in self.tree.nodes
            for span in (self.done[node.name][0].span, *node.other_regs)
            if span is not None and not self.done[node.name][1]
        ]
        return sum(span.size_bytes for span in subtract([bank], taken))


def _places(span: Span, size_bytes: int, unit: int) -> int:
    """In how many places of the range an area of that size can begin."""
    first, last = round_up(span.base, unit), (span.end - size_bytes) // unit * unit
    return max((last - first) // unit + 1, 0)


def _alignment_notes(node: ReservedNode, unit: int, granule: int) -> tuple[str, ...]:
    if node.alignment_bytes is None:
        return ()
    given = format_bytes(node.alignment_bytes)
    if node.reg is not None:
        return (f"alignment {given} is not looked at: reg says where it lies",)
    if node.alignment_bytes < unit:
        return (f"alignment raised from {given} to {format_bytes(unit)}",)
    if node.is_shared_pool and node.alignment_bytes < granule:
        return (f"alignment {given} is less than a CMA area would have, {format_bytes(granule)}",)
    return ()
