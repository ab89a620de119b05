"""The kernel's measures of external fragmentation as labelled arrays: of a memory, a snapshot, or counts over time."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.results.dataset import Column, build, stamp
from memmodel.results.variables import Variable
from memmodel.results.zones import file_digests
from memmodel.sources.records import BoolArray, IntArray, Snapshot, zone_label
from memmodel.state import fragmentation as kernel
from memmodel.units import format_bytes

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["HasBuddyinfo", "extfrag_for_order", "fragmentation_index", "proactive_score", "unusable_free_index"]

_UNUSABLE = Variable(
    "unusable_free_index",
    "int64",
    "1e-3",
    "unusable free space index",
    "Share of the free memory that is in blocks too small for a request of this order, in thousandths, as integers.",
)
_INDEX = Variable(
    "fragmentation_index",
    "int64",
    "1e-3",
    "fragmentation index",
    "Would a failure at this order be for want of memory (towards 0) or for fragmentation (towards 1000), in "
    "thousandths, as integers; -1000: it would not fail.",
)
_EXTFRAG = Variable(
    "extfrag_for_order",
    "int64",
    "percent",
    "external fragmentation",
    "Share of the free memory that is in blocks below this order, in percent, as integers; 0 where nothing is free.",
)
_ZONE_SCORE = Variable(
    "fragmentation_score_zone",
    "int64",
    "percent",
    "fragmentation score of the zone",
    "Proactive compaction of the zone ends when this is at or below its low mark.",
)
_WEIGHTED_SCORE = Variable(
    "fragmentation_score_zone_weighted",
    "int64",
    "percent",
    "share of the zone in the score of its node",
    "The zone's score by its share in the node's present pages and one, rounded down.",
)
_NODE_SCORE = Variable(
    "fragmentation_score_node",
    "int64",
    "percent",
    "fragmentation score of the node",
    "Proactive compaction of the node starts when this is above its high mark, 90 by default.",
)
_PRESENT = Variable("present_pages", "int64", "1", "present pages", "Pages of the zone without holes.", ("zone",))
_NODE = Variable("node", "int64", "1", "NUMA node", "Number of the node.", ("node",))


class HasBuddyinfo(Protocol):
    """What is asked of a `PhysicalMemory`; the score needs its ``geometry`` and ``state.zones`` too."""

    def buddyinfo(self) -> "xr.DataArray":
        """Free blocks by zone and order."""
        ...


def unusable_free_index(source: "Snapshot | HasBuddyinfo | xr.DataArray") -> "xr.DataArray":
    """Thousandths of the free memory that a request of each order cannot use, int64, order last.

    0 where all of it can be used, 1000 where none can or nothing is free: debugfs prints 0.000 and 1.000
    (``unusable_free_index``, mm/vmstat.c).

    Parameters
    ----------
    source
        A memory, a snapshot, or free blocks over ``order`` (all orders from 0 on) and any other dimensions.

    Raises
    ------
    InputError
        If a zone of the snapshot has no free blocks by order, or the array does not hold such counts.
    """
    return _by_order(_UNUSABLE, kernel.unusable_free_index, source)


def fragmentation_index(source: "Snapshot | HasBuddyinfo | xr.DataArray") -> "xr.DataArray":
    """Why a request of each order fails, in thousandths, int64, order last.

    Towards 0 for want of memory, towards 1000 for fragmentation; -1000 where it would not fail, which debugfs prints
    as -1.000 (``fragmentation_index``, mm/vmstat.c).

    Parameters
    ----------
    source
        As of `unusable_free_index`.

    Raises
    ------
    InputError
        As `unusable_free_index`.
    """
    return _by_order(_INDEX, kernel.fragmentation_index, source)


def extfrag_for_order(source: "Snapshot | HasBuddyinfo | xr.DataArray") -> "xr.DataArray":
    """Percent of the free memory in blocks below each order, int64, order last; 0 where nothing is free.

    Source: ``extfrag_for_order``, mm/vmstat.c.

    Parameters
    ----------
    source
        As of `unusable_free_index`.

    Raises
    ------
    InputError
        As `unusable_free_index`.
    """
    return _by_order(_EXTFRAG, kernel.extfrag_for_order, source)


def proactive_score(source: "Snapshot | HasBuddyinfo | xr.DataArray", order: int | None = None) -> "xr.Dataset":
    """The scores that proactive compaction goes by, int64, 0 to 100 (``fragmentation_score_node``, mm/compaction.c).

    ``fragmentation_score_zone`` (..., zone) is compared with the low mark. ``fragmentation_score_zone_weighted``
    (..., zone) is the zone's share, by present pages, in ``fragmentation_score_node`` (..., node), which starts the
    compaction when above the high mark.

    Parameters
    ----------
    source
        As of `unusable_free_index`. An array needs the dimension ``zone`` with all zones of a node, labelled as in
        "0:Normal", and the coordinate ``present_pages`` along it.
    order
        COMPACTION_HPAGE_ORDER, the order of a PMD. If not given: that of the memory's geometry; for a snapshot that of
        the usual architecture with its page size. The attribute ``order_from`` says which.

    Raises
    ------
    InputError
        As `unusable_free_index`, or if the present pages of a zone or the order are not known.
    """
    free = _free_blocks(source)
    nodes = _nodes(free)
    present = _present_pages(source, free)
    order, order_from = _hpage_order(source) if order is None else (order, "given")
    counts = free.transpose(..., "zone", "order").to_numpy()
    weighted, by_node = np.empty(counts.shape[:-1], np.int64), []
    for zones in nodes.values():
        share = kernel.fragmentation_score_zone_weighted(counts[..., zones, :], present[zones], order)
        weighted[..., zones] = share
        by_node.append(share.sum(axis=-1))
    leading = tuple(str(dim) for dim in free.dims if dim not in ("zone", "order"))
    scores = (
        (_ZONE_SCORE, "zone", kernel.fragmentation_score_zone(counts, order)),
        (_WEIGHTED_SCORE, "zone", weighted),
        (_NODE_SCORE, "node", np.stack(by_node, axis=-1)),
    )
    data = [Column(replace(entry, dims=(*leading, dim)), values) for entry, dim, values in scores]
    about = {"title": "Scores of proactive compaction", "order_from": f"order {order}: {order_from}"}
    about["provenance"] = stamp({"inputs": file_digests(source), "order": int(order)})
    ds = build((Column(_PRESENT, present), Column(_NODE, list(nodes))), data, about)
    kept = free.isel(order=0, drop=True).drop_vars(["present_pages", "node"], errors="ignore")
    return ds.assign_coords(kept.coords)


def _by_order(
    entry: Variable, index: Callable[[Any], IntArray], source: "Snapshot | HasBuddyinfo | xr.DataArray"
) -> "xr.DataArray":
    free = _free_blocks(source)
    column = Column(replace(entry, dims=tuple(map(str, free.dims))), index(free.to_numpy()))
    return build((), (column,), {})[entry.name].assign_coords(free.coords)


def _free_blocks(source: Any) -> "xr.DataArray":
    """The free blocks of any source, order last and from 0 on."""
    import xarray as xr

    if isinstance(source, Snapshot):
        return _of_snapshot(source)
    if not isinstance(source, xr.DataArray) and not hasattr(source, "buddyinfo"):
        raise InputError(f"a {type(source).__name__} has no free blocks; a memory, a Snapshot or a DataArray has")
    free: xr.DataArray = source if isinstance(source, xr.DataArray) else source.buddyinfo()
    if "order" not in free.dims:
        raise InputError(f"free blocks over {', '.join(map(str, free.dims)) or 'no dimension'}; one has to be order")
    orders = list(range(free.sizes["order"]))
    if "order" in free.coords and free["order"].values.tolist() != orders:
        raise InputError(f"free blocks of orders {free['order'].values.tolist()}; all orders from 0 on are needed")
    return free.transpose(..., "order").assign_coords(order=orders)


def _of_snapshot(snapshot: Snapshot) -> "xr.DataArray":
    import xarray as xr

    counts = []
    for key, zone in snapshot.zones.items():
        if zone.nr_free is None:
            raise InputError(f"{zone_label(key)}: no file gives its free blocks by order; buddyinfo does")
        counts.append(zone.nr_free)
    if not counts:
        raise InputError("the snapshot has no zone")
    zones = [f"{node}:{name}" for node, name in snapshot.zones]
    return xr.DataArray(np.stack(counts), {"zone": zones, "order": np.arange(counts[0].size)}, ("zone", "order"))


def _nodes(free: "xr.DataArray") -> dict[int, BoolArray]:
    """Which zones each node has, by their labels."""
    if "zone" not in free.dims or "zone" not in free.coords or "node" in free.dims:
        raise InputError('a score needs free blocks over a dimension zone with labels such as "0:Normal"')
    labels = [str(label).partition(":") for label in free["zone"].values]
    for node, colon, name in labels:
        if not (node.isdecimal() and colon and name):
            raise InputError(f'zone {node + colon + name!r}: the label of a zone is its node and name, "0:Normal"')
    of_zone = np.array([int(node) for node, _, _ in labels])
    return {int(node): of_zone == node for node in np.unique(of_zone)}


def _present_pages(source: Any, free: "xr.DataArray") -> IntArray:
    if isinstance(source, Snapshot):
        known = [zone.present_pages for zone in source.zones.values()]
        for key, pages in zip(source.zones, known, strict=True):
            if pages is None:
                raise InputError(f"{zone_label(key)}: no file gives its present pages, by which scores are weighted")
        return np.array(known, np.int64)
    if hasattr(source, "buddyinfo"):
        return np.asarray(source.state.zones["present"], np.int64)
    if "present_pages" not in free.coords or free["present_pages"].dims != ("zone",):
        raise InputError("a score is weighted by present pages; give them as a coordinate present_pages over zone")
    return np.asarray(free["present_pages"].values)


def _hpage_order(source: Any) -> tuple[int, str]:
    """The order of a PMD and where it is from."""
    if isinstance(source, Snapshot) and source.page_size_bytes is not None:
        usual = Geometry(page_size=source.page_size_bytes)
        return usual.hpage_pmd_order, f"taken from {usual.arch} with pages of {format_bytes(source.page_size_bytes)}"
    if isinstance(getattr(source, "geometry", None), Geometry):
        return source.geometry.hpage_pmd_order, "of the memory's geometry"
    raise InputError("the order of a PMD is not known here; give order=9 for 4 KiB pages, 11 for 16 KiB, 13 for 64 KiB")
