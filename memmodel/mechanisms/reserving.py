"""CMA areas at boot: what the kernel makes of a size that is asked for, where it goes, and what becomes of it then."""

from dataclasses import dataclass, fields, replace
from errno import EBUSY, EINVAL, ENOMEM
from numbers import Integral
from typing import Any, NamedTuple

from memmodel.errors import InputError
from memmodel.geometry import Geometry, ZoneLimits, zone_limits
from memmodel.mechanisms.memblock import MemoryMap
from memmodel.sources.cma_options import CmaOption, option_of
from memmodel.sources.spans import Span
from memmodel.units import format_bytes

__all__ = [
    "CANNOT_TELL",
    "FOUR_GIB",
    "Activation",
    "Reservation",
    "activate",
    "cma_area_bytes",
    "declare_contiguous",
    "reach_by_window",
    "reserve_default",
]

FOUR_GIB = 1 << 32
CANNOT_TELL = "cannot be told"


@dataclass(frozen=True)
class Reservation:
    """What becomes of one request for a contiguous area."""

    name: str
    accepted: bool
    """Whether the kernel makes an area of it: one of CMA, or, for a node that asks for none, reserved memory. Where
    `base` is None, if memory has room."""
    requested_bytes: int
    size_bytes: int
    """After rounding."""
    alignment_bytes: int
    """What begin and end have to be multiples of."""
    granularity_bytes: int
    """CMA_MIN_ALIGNMENT_BYTES."""
    base: int | None = None
    """Where it lies; None: refused, or it cannot be told from what was given."""
    errno: int = 0
    """0, or the kernel's error as it returns it."""
    error: str = ""
    """The reason, in the words of the kernel's log where it has any."""
    below_4gib: bool | None = None
    """Whether all of it is within reach of 32-bit masters; None: cannot be told."""
    log: tuple[str, ...] = ()
    """Lines of the kernel's log."""
    notes: tuple[str, ...] = ()

    @property
    def wasted_bytes(self) -> int:
        """Memory in the area that was not asked for; 0 where there is no area."""
        return self.size_bytes - self.requested_bytes if self.accepted else 0

    @property
    def span(self) -> Span | None:
        """The area, where its place is known."""
        return None if self.base is None else Span(self.base, self.size_bytes)

    @property
    def reach(self) -> str:
        """`below_4gib` in words."""
        return {None: CANNOT_TELL, True: "below 4 GiB", False: "beyond 4 GiB"}[self.below_4gib]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, but for the name."""
        lists = {"log": list(self.log), "notes": list(self.notes)}
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "name"}
        return values | {"wasted_bytes": self.wasted_bytes} | lists


class Activation(NamedTuple):
    """What the page allocator makes of an area, once it runs."""

    zone: str | None
    """None: the area is given up, or its place is not known."""
    n_pageblocks: int
    cma_total_bytes: int
    """What it adds to CmaTotal of /proc/meminfo, in whole pageblocks."""
    error: str


def cma_area_bytes(geo: Geometry, requested_bytes: int) -> int:
    """Size of a CMA area of which `requested_bytes` were asked for: whole alignment units (kernel/dma/contiguous.c)."""
    return round_up(requested_bytes, geo.cma_min_alignment_bytes)


def round_up(value: int, unit: int) -> int:
    """The next multiple of `unit`, `value` itself if it is one."""
    return -(-value // unit) * unit


def reach_by_window(start: int, end: int) -> bool | None:
    """Whether whatever lies between `start` and `end` is below 4 GiB; None: it depends on where."""
    return True if end <= FOUR_GIB else False if start >= FOUR_GIB else None


def declare_contiguous(  # noqa: PLR0913 - the kernel's own arguments
    geo: Geometry,
    size_bytes: int,
    memory: MemoryMap | None = None,
    *,
    base: int = 0,
    limit: int = 0,
    alignment_bytes: int = 0,
    order_per_bit: int = 0,
    fixed: bool = False,
    name: str = "reserved",
) -> tuple[Reservation, MemoryMap | None]:
    """Reserve a CMA area.

    Parameters
    ----------
    memory
        RAM and what is taken of it. None: the rules are applied, the place of the area remains open.
    base, limit
        Where it may lie, 0 for anywhere; with `fixed` it begins at `base` or there is none.
    alignment_bytes
        A power of two, or 0; the kernel raises it to CMA_MIN_ALIGNMENT_BYTES.
    order_per_bit
        Order of the units that the area is handed out in.

    Returns
    -------
    The reservation, and memory as it is then.

    Raises
    ------
    InputError
        If a number is negative or not whole.

    References
    ----------
    mm/cma.c: cma_declare_contiguous_nid, cma_init_reserved_mem, Linux 6.1, 6.12, 7.3.
    """
    for number in (size_bytes, base, limit, alignment_bytes, order_per_bit):
        if not isinstance(number, Integral) or number < 0:
            raise InputError(f"CMA area {name}: found {number!r}; sizes, addresses and orders are whole, not negative")
    unit = max(alignment_bytes, geo.cma_min_alignment_bytes)
    asked = Reservation(name, False, size_bytes, size_bytes, unit, geo.cma_min_alignment_bytes)
    if not size_bytes:
        return _refused(geo, asked, EINVAL, "size is 0", silent=True), memory
    if alignment_bytes.bit_count() > 1:
        return _refused(geo, asked, EINVAL, f"alignment {alignment_bytes:#x} is no power of two", silent=True), memory
    if fixed and base % unit:
        return _refused(geo, asked, EINVAL, f"Region at {base:#018x} must be aligned to {unit:#018x} bytes"), memory
    wanted = replace(asked, size_bytes=round_up(size_bytes, unit))
    base, limit, fixed = round_up(base, unit), limit // unit * unit, fixed and base != 0
    if wanted.size_bytes % (geo.page_size_bytes << order_per_bit):
        return _refused(geo, wanted, EINVAL, f"size is no multiple of order {order_per_bit}", silent=True), memory
    if memory is not None:
        limit = min(limit or memory.end, memory.end)
    if limit and base + wanted.size_bytes > limit:
        words = f"Size ({wanted.size_bytes:#018x}) of region at {base:#018x} exceeds limit ({limit:#018x})"
        return _refused(geo, wanted, EINVAL, words), memory
    return _placed(geo, wanted, memory, base, limit, fixed)


def _placed(
    geo: Geometry, wanted: Reservation, memory: MemoryMap | None, base: int, limit: int, fixed: bool
) -> tuple[Reservation, MemoryMap | None]:
    size = wanted.size_bytes
    place: int | None
    if fixed:
        place = base
        if memory is not None and any(span.overlaps(Span(base, size)) for span in memory.reserved):
            return _refused(geo, wanted, EBUSY, "the range is reserved already"), memory
    elif memory is None or geo.highmem:
        reach = reach_by_window(base, limit) if limit else None
        notes = ("where a kernel with HIGHMEM puts an area is not modelled",) if geo.highmem else ()
        return replace(wanted, accepted=True, below_4gib=reach, notes=notes), memory
    else:
        place = _find(geo, memory, wanted, base, limit)
        if place is None:
            return _refused(geo, wanted, ENOMEM, "no free range of memory has room for it"), memory
    done = replace(
        wanted,
        accepted=True,
        base=place,
        below_4gib=place + size <= FOUR_GIB,
        log=(f"cma: Reserved {_logged(geo, wanted)} MiB at {place:#018x}{_node(geo)}",),
    )
    return done, None if memory is None else memory.reserve(Span(place, size))


def _find(geo: Geometry, memory: MemoryMap, wanted: Reservation, base: int, limit: int) -> int | None:
    """Bottom-up from 4 GiB on, if the range goes that far; else, or if that fails, top-down."""
    size, unit = wanted.size_bytes, wanted.alignment_bytes
    place = None
    if limit >= FOUR_GIB + size:
        place = memory.find(size, unit, FOUR_GIB, limit, bottom_up=True)
    if place is None:
        start = max(base, geo.page_size_bytes)  # page 0 is never given out
        place = memory.find(size, unit, start, limit)
    return place


def _refused(geo: Geometry, asked: Reservation, errno: int, why: str, silent: bool = False) -> Reservation:
    """`why` starts with a capital where the kernel says it itself."""
    log = [f"cma: {why}"] if why[0].isupper() else []
    if not silent or "cma_log_as_asked" in geo.features:
        log.append(f"cma: Failed to reserve {_logged(geo, asked)} MiB{_node(geo)}")
    return replace(asked, errno=-errno, error=why, log=tuple(log))


def _logged(geo: Geometry, area: Reservation) -> int:
    """The MiB of the log line."""
    return (area.requested_bytes if "cma_log_as_asked" in geo.features else area.size_bytes) >> 20


def _node(geo: Geometry) -> str:
    """Its end; -1: no node in particular."""
    return " on node -1" if "cma_log_node" in geo.features and "cma_log_as_asked" not in geo.features else ""


def reserve_default(
    geo: Geometry,
    memory: MemoryMap | None = None,
    *,
    cma: CmaOption | str | None = None,
    config_bytes: int = 0,
    dma_limit: int | None = None,
) -> tuple[Reservation | None, MemoryMap | None]:
    """Reserve the default area of DMA, as the boot line or else the configuration asks for it.

    Parameters
    ----------
    cma
        ``SIZE[@BASE[-LIMIT]]``, a boot line, or what `parse_cma` makes of one; None: not given.
    config_bytes
        What CONFIG_CMA_SIZE_* comes to; see `memmodel.sources.cma_options.config_cma_bytes`.
    dma_limit
        The architecture's limit. None: the end of the first DMA zone on arm64, else the end of RAM.

    Returns
    -------
    The reservation (None: none was asked for), and memory as it is then.

    Raises
    ------
    InputError
        If `cma` is malformed, or a number is negative or not whole.

    References
    ----------
    kernel/dma/contiguous.c: dma_contiguous_reserve, Linux 6.1 to 7.3.
    """
    option = option_of(cma)
    wanted = CmaOption(config_bytes) if option is None else option
    if not wanted.size_bytes:
        return None, memory
    if dma_limit is None:
        dma_limit = zone_limits(geo)[0].end_bytes if geo.arch == "arm64" else 0
    limit = min(filter(None, (wanted.limit, dma_limit)), default=0)
    return declare_contiguous(geo, wanted.size_bytes, memory, base=wanted.base, limit=limit, fixed=wanted.is_fixed)


def activate(
    geo: Geometry,
    area: Reservation,
    memory: MemoryMap | None = None,
    zones: tuple[ZoneLimits, ...] | None = None,
) -> Activation:
    """Hand an area over to the page allocator, pageblock by pageblock.

    An area that does not lie in one zone is given up: its pages become ordinary ones.

    Parameters
    ----------
    zones
        None: those of `memmodel.geometry.zone_limits`.

    Raises
    ------
    InputError
        If there is no area.

    References
    ----------
    mm/cma.c: cma_activate_area; mm/mm_init.c: init_cma_reserved_pageblock, Linux 6.1 to 7.3.
    """
    if not area.accepted:
        raise InputError(f"CMA area {area.name}: there is none ({area.error})")
    block = geo.page_size_bytes << geo.pageblock_order
    n_blocks = area.size_bytes // block
    if area.span is None:
        return Activation(None, n_blocks, n_blocks * block, "")
    within = [zone for zone in zones or zone_limits(geo) if zone.start_bytes <= area.span.base < zone.end_bytes]
    whole = memory is None or any(bank.holds(area.span) for bank in memory.memory)
    if not within or area.span.end > within[0].end_bytes or not whole:
        why = "" if whole else f" ({format_bytes(area.size_bytes)} at {area.span.base:#x} are not all RAM)"
        return Activation(None, 0, 0, f"cma: CMA area {area.name} could not be activated{why}")
    return Activation(within[0].name, n_blocks, n_blocks * block, "")
