"""The only place that makes a Memory: it casts, checks and aligns, so that kernels check nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.geometry import Geometry, zone_limits
from memmodel.state.cma_layout import area_dtype
from memmodel.state.failure_layout import failure_dtype, node_failures_dtype
from memmodel.state.gigantic import gigantic_dtype
from memmodel.state.layout import (
    MAX_COMPACTIONS,
    MIGRATE_TYPES,
    N_COUNTERS,
    NONE,
    NR_ORDERS,
    NR_PCP_LISTS,
    PRIVATE_LISTS,
    SLOT_CHAINS,
    Feature,
    Kind,
    Memory,
    MigrateType,
    Params,
    ZoneType,
    folio_dtype,
    lru_batch_dtype,
    page_dtype,
    pageblock_dtype,
    pcp_dtype,
    queue_dtype,
    zone_dtype,
)
from memmodel.state.sizing import Sysctls, feature_bits, mobility_disabled, size_zones
from memmodel.units import format_bytes

__all__ = [
    "PfnMap",
    "ZoneSpan",
    "empty_memory",
    "from_arrays",
    "grow_folios",
    "made_up_spans",
    "overwrite",
    "size_memory",
    "with_area",
    "with_gigantic",
    "without_gigantic",
    "with_contents",
]

ALIGNMENT = 4096
PCP_BATCH_SCALE_MAX = 5  # CONFIG_PCP_BATCH_SCALE_MAX
DTYPES = {
    "pages": page_dtype,
    "blocks": pageblock_dtype,
    "zones": zone_dtype,
    "pcp": pcp_dtype,
    "lru": lru_batch_dtype,
    "folios": folio_dtype,
    "slots": np.dtype(np.uint64),
    "ue_pages": np.dtype(np.uint64),
    "ue_lines": np.dtype(np.uint64),
    "queues": queue_dtype,
    "failure": failure_dtype,
    "node_failures": node_failures_dtype,
    "areas": area_dtype,
    "area_bits": np.dtype(np.uint64),
    "gigantic": gigantic_dtype,
    "contents": np.dtype(np.uint8),
    "vmstat": np.dtype(np.int64),
}
MAX_PAGES = 1 << 31  # rows are 32-bit links, and one bit marks


@dataclass(frozen=True)
class ZoneSpan:
    """Where a zone lies: [start_pfn, end_pfn)."""

    node: int
    zone_type: ZoneType
    start_pfn: int
    end_pfn: int


@dataclass(frozen=True)
class PfnMap:
    """Rows of `pages` for pfns: segments of whole MAX_PAGE_ORDER blocks, so that buddies stay buddies."""

    starts: npt.NDArray[np.int64]  # first pfn of each segment, ascending
    ends: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]  # its first row

    @property
    def n_pages(self) -> int:
        """Rows in all."""
        return int(self.rows[-1] + self.ends[-1] - self.starts[-1])

    def index(self, pfn: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Rows of pfns.

        Raises
        ------
        InputError
            If a pfn lies in no segment.
        """
        pfns = np.asarray(pfn)
        if pfns.size and pfns.dtype.kind not in "iu":
            raise InputError(f"a pfn is a whole number, not {pfns.dtype}")
        pfns = pfns.astype(np.int64)
        segment = np.searchsorted(self.starts, pfns, side="right") - 1
        outside = (segment < 0) | (pfns >= self.ends[segment])
        if np.any(outside):
            spans = ", ".join(f"{a}..{b - 1}" for a, b in zip(self.starts, self.ends, strict=True))
            raise InputError(f"pfn {pfns[outside].flat[0]} is outside memory; there are {spans}")
        rows: npt.NDArray[np.int64] = pfns - self.starts[segment] + self.rows[segment]
        return rows

    def pfn(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Pfns of rows that exist."""
        rows = np.asarray(index, dtype=np.int64)
        segment = np.searchsorted(self.rows, rows, side="right") - 1
        pfns: npt.NDArray[np.int64] = rows - self.rows[segment] + self.starts[segment]
        return pfns


def made_up_spans(geometry: Geometry, size: int, nodes: int = 1, movablecore: int = 0) -> list[ZoneSpan]:
    """Zones of a made-up machine: contiguous RAM from the architecture's usual start, split evenly over `nodes`.

    `movablecore` bytes, taken evenly from the top of the nodes, become ZONE_MOVABLE.

    Raises
    ------
    InputError
        If the memory does not split into whole blocks of a page.
    """
    page = geometry.page_size_bytes
    if nodes < 1 or size % (page * nodes):
        raise InputError(f"size {format_bytes(size)} is not a multiple of {nodes} nodes x {format_bytes(page)}")
    if movablecore % (page * nodes) or movablecore >= size:
        raise InputError(f"movablecore {movablecore} bytes must be whole pages a node and less than the memory")
    spans = []
    for node in range(nodes):
        start = geometry.ram_start_bytes + node * (size // nodes)
        end = start + size // nodes
        movable = end - movablecore // nodes
        for name, low, high in zone_limits(geometry):
            first, last = max(start, low), min(movable, high)
            if first < last:
                spans.append(ZoneSpan(node, ZoneType[name.upper()], first // page, last // page))
        if movable < end:
            spans.append(ZoneSpan(node, ZoneType.MOVABLE, movable // page, end // page))
    return spans


def map_pfns(spans: Sequence[ZoneSpan], max_order: int) -> PfnMap:
    """Segments of whole largest blocks that hold all spans."""
    whole = 1 << max_order
    segments: list[list[int]] = []
    for start, end in sorted((s.start_pfn // whole * whole, -(-s.end_pfn // whole) * whole) for s in spans):
        if segments and start <= segments[-1][1]:
            segments[-1][1] = max(segments[-1][1], end)
        else:
            segments.append([start, end])
    starts, ends = np.array(segments, dtype=np.int64).T
    lengths = ends - starts
    return PfnMap(starts, ends, np.cumsum(lengths) - lengths)


def empty_memory(geometry: Geometry, spans: Sequence[ZoneSpan], cpus: int = 1) -> tuple[Memory, PfnMap]:
    """Zones of pages that belong to no block yet (the caller says what they are), every pageblock MOVABLE, lists empty.

    Rows beside the spans are holes.

    Raises
    ------
    InputError
        If the spans hold nothing or more than 2**31 pages, or there is no CPU.
    """
    if cpus < 1 or cpus > 4096:
        raise InputError(f"{cpus} cpus; 1 to 4096 are possible")
    if not spans:
        raise InputError("no zone has any page")
    if len(spans) > 255:
        raise InputError(f"{len(spans)} zones; at most 255 are possible")
    pfns = map_pfns(spans, geometry.max_page_order)
    n_pages = pfns.n_pages
    if n_pages >= MAX_PAGES:
        raise InputError(f"{n_pages} pages; at most {MAX_PAGES - 1} are possible, choose a larger page size")
    lists = (geometry.max_page_order + 1) * MIGRATE_TYPES + cpus * NR_PCP_LISTS

    private = n_pages + len(spans) * lists
    pages = np.zeros(private + MAX_COMPACTIONS * PRIVATE_LISTS, page_dtype)
    params = _params(geometry, n_pages, private, lists, cpus)
    heads = np.arange(n_pages, pages.size, dtype=np.uint32)
    pages["next"][n_pages:] = pages["prev"][n_pages:] = heads
    blocks = np.zeros(-(-n_pages >> geometry.pageblock_order), pageblock_dtype)
    blocks["migratetype"] = MigrateType.MOVABLE
    zones = np.zeros(len(spans), zone_dtype)
    for i, span in enumerate(spans):
        first, last = pfns.index([span.start_pfn, span.end_pfn - 1])
        if i:  # zone 0 is what the rows say already, and a pass over all rows is a third of the time that 1 TiB takes
            pages["zone"][first : last + 1] = i
        zones[i]["start"], zones[i]["end"] = first, last + 1
        zones[i]["node"], zones[i]["zone_type"] = span.node, span.zone_type
    for name in ("cached_free", "cached_migrate", "init_free", "init_migrate"):
        zones[name] = -1
    outside = 0
    for start, end in sorted(zip(zones["start"].tolist(), zones["end"].tolist(), strict=True)):
        pages["state"][outside:start] = Kind.HOLE << 4
        outside = end
    pages["state"][outside:n_pages] = Kind.HOLE << 4
    lru = np.zeros(cpus, lru_batch_dtype)
    lru["size"] = 31 if "lru_batch_31" in geometry.features else 15
    failure = np.zeros(1, failure_dtype)
    failure["zero_page"], failure["recovery"], failure["enable_soft_offline"] = NONE, 1, 1
    n_nodes = max(span.node for span in spans) + 1
    memory = Memory(
        params=params,
        pages=_records(pages),
        blocks=_records(blocks),
        zones=_records(zones),
        pcp=_records(np.zeros(len(spans) * cpus, pcp_dtype)),
        lru=_records(lru),
        folios=_records(np.zeros(0, folio_dtype)),
        slots=np.array([0, 0, *[NONE] * SLOT_CHAINS], np.uint64),
        ue_pages=np.zeros(-(-n_pages >> 6), np.uint64),
        ue_lines=np.zeros(0, np.uint64),
        queues=_records(np.zeros(cpus, queue_dtype)),
        failure=_records(failure),
        node_failures=_records(np.zeros(n_nodes, node_failures_dtype)),
        areas=_records(np.zeros(0, area_dtype)),
        area_bits=np.zeros(0, np.uint64),
        gigantic=_records(np.zeros(0, gigantic_dtype)),
        contents=np.zeros((0, geometry.page_size_bytes), np.uint8),
        vmstat=np.zeros(N_COUNTERS, np.int64),
    )
    return memory, pfns


def _params(geometry: Geometry, n_pages: int, private_heads: int, heads_per_zone: int, cpus: int) -> Params:
    """The constants of a build; what depends on managed pages comes with `size_memory`."""
    thp_order = geometry.hpage_pmd_order if "pcp_pmd_order" in geometry.features else geometry.pageblock_order
    numbers: dict[str, int] = {
        "n_pages": n_pages,
        "private_heads": private_heads,
        "page_shift": geometry.page_shift,
        "max_order": geometry.max_page_order,
        "pageblock_order": geometry.pageblock_order,
        "heads_per_zone": heads_per_zone,
        "features": feature_bits(geometry),
        "n_cpus": cpus,
        "pcp_thp_order": thp_order if geometry.transparent_hugepage else NR_ORDERS,
        "pcp_batch_scale_max": PCP_BATCH_SCALE_MAX,
        "watermark_boost_factor": 0,
    }
    return Params(**{name: np.uint64(number) for name, number in numbers.items()})


def size_memory(memory: Memory, geometry: Geometry, sysctls: Sysctls) -> Memory:
    """The same memory with all that follows from its managed pages: watermarks, reserves, per-CPU lists, mobility."""
    size_zones(memory, geometry, sysctls)
    features = feature_bits(geometry)
    if mobility_disabled(geometry, memory.zones["managed"].astype(np.int64)):
        features |= Feature.NO_MOBILITY
    boost = sysctls.watermark_boost_factor
    params = memory.params._replace(features=np.uint64(features), watermark_boost_factor=np.uint64(boost))
    return memory._replace(params=params)


def with_contents(memory: Memory) -> Memory:
    """The same memory with a byte for every byte of its pages, all zero."""
    return memory._replace(contents=_aligned_zeros(int(memory.params.n_pages), 1 << int(memory.params.page_shift)))


def from_arrays(params: Params, arrays: Mapping[str, npt.NDArray[Any]], copy: bool = True) -> Memory:
    """A Memory of these arrays (its fields but `params`) or of copies, typed and aligned as kernels expect.

    Contents are always copied: their pages must begin on whole cache lines.

    Raises
    ------
    InputError
        If an array is missing, of another type, or none of a state's.
    """
    if unknown := arrays.keys() - DTYPES.keys():
        raise InputError(f"a state has no array {min(unknown)}")
    for name, dtype in DTYPES.items():
        if name not in arrays or arrays[name].dtype != dtype:
            raise InputError(f"the array {name} of the state is missing or not {dtype.name}")
    others = {name: _copied(arrays[name]) if copy else arrays[name] for name in DTYPES if name != "contents"}
    records = {name: _records(array) if array.dtype.names else array for name, array in others.items()}
    contents = _aligned_zeros(*arrays["contents"].shape)
    contents[...] = arrays["contents"]
    return Memory(params=params, contents=contents, **records)


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of an array, in one dimension."""
    return np.ascontiguousarray(array).view(np.ndarray).reshape(-1).view(np.uint8)


def _copied(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy as bytes: NumPy copies records field by field, 17 times slower and holding the GIL."""
    return _bytes(array).copy().view(array.dtype) if array.size else np.array(array)


def overwrite(memory: Memory, source: Memory) -> Memory:
    """`memory` with the state of `source`, in its own arrays wherever they are large enough.

    A new copy touches new pages, and page faults are what keeps two threads from being twice as fast as one.
    """
    used, used_before = (int(each.slots[1]) * folio_dtype.itemsize for each in (source, memory))
    if memory.folios.nbytes >= used:
        _bytes(memory.folios)[:used] = _bytes(source.folios)[:used]
        _bytes(memory.folios)[used:used_before] = 0  # and no further: what was never used has no memory behind it
    else:
        memory = memory._replace(folios=_records(_copied(source.folios)))
    small = {"ue_lines", "areas", "area_bits", "gigantic"}
    for name in DTYPES.keys() - {"folios", *small}:  # of one machine: all of the same shape
        _bytes(getattr(memory, name))[...] = _bytes(getattr(source, name))
    copies: dict[str, Any] = {name: getattr(source, name).copy() for name in small}
    return memory._replace(params=source.params, **copies)


def _aligned_zeros(n_pages: int, page_size: int) -> npt.NDArray[np.uint8]:
    """Zero bytes whose pages begin on whole cache lines, as streaming stores need; NumPy aligns to 16 bytes only."""
    raw = np.zeros(n_pages * page_size + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return raw[offset : offset + n_pages * page_size].reshape(n_pages, page_size)


def with_area(memory: Memory, row: int, n_pages: int, order_per_bit: int, zone: int) -> Memory:
    """The same memory with one more CMA area, nothing of it allocated."""
    areas = np.zeros(memory.areas.size + 1, area_dtype)
    areas[:-1] = memory.areas
    areas[-1] = row, n_pages, n_pages, memory.area_bits.size, order_per_bit, zone
    words = np.zeros(-(-(n_pages >> order_per_bit) // 64), np.uint64)
    return memory._replace(areas=_records(areas), area_bits=np.concatenate([memory.area_bits, words]))


def with_gigantic(memory: Memory, row: int, order: int, area: int) -> Memory:
    """The same memory with one more gigantic page."""
    page = np.array([(row, order, area)], gigantic_dtype)
    return memory._replace(gigantic=_records(np.concatenate([memory.gigantic.view(np.ndarray), page])))


def without_gigantic(memory: Memory, number: int) -> Memory:
    """The same memory without the record of a gigantic page."""
    return memory._replace(gigantic=_records(np.delete(memory.gigantic.view(np.ndarray), number)))


def grow_folios(memory: Memory, n_more: int) -> Memory:
    """The same memory with room for `n_more` live folios beyond those there are."""
    live, used = (int(x) for x in memory.slots[:2])
    missing = live + n_more - memory.folios.size
    if missing <= 0:
        return memory
    # A sixteenth more than asked for keeps single requests from copying the table each time, and memory in bounds.
    folios = np.zeros(memory.folios.size + max(missing, memory.folios.size >> 4), folio_dtype)
    _bytes(folios)[: used * folio_dtype.itemsize] = _bytes(memory.folios)[: used * folio_dtype.itemsize]
    return memory._replace(folios=_records(folios))


def _records(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A recarray: with the JIT off `pages[p].next` must work as it does compiled."""
    return array.view(np.recarray)
