"""The zones of a snapshot and how fragmented they are, as plain rows and as a Dataset."""

from typing import TYPE_CHECKING, Any

import numpy as np

from memmodel.errors import InputError
from memmodel.results.dataset import Column, build, stamp
from memmodel.results.variables import variable
from memmodel.sources.records import Snapshot, ZoneSnapshot
from memmodel.state.fragmentation import fragmentation_index, unusable_free_index

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["file_digests", "zone_dataset", "zone_rows"]

_BY_ORDER = ("nr_free", "extfrag_index", "unusable_index")
_BY_ZONE = ("free_bytes", "largest_order", "managed_pages")


def zone_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """One dict a zone, in the order of the files; None where no file says.

    ``node``, ``zone``, ``nr_free`` (by order), ``free_pages``, ``free_bytes``, ``largest_order``, ``managed_pages``,
    and by order ``extfrag_index`` and ``unusable_index`` as debugfs prints them: -1 to 1, and 0 to 1.
    """
    return [_row(zone, snapshot.page_size_bytes) for zone in snapshot.zones.values()]


def _row(zone: ZoneSnapshot, page_size_bytes: int | None) -> dict[str, Any]:
    free_pages, row = zone.free_pages, dict.fromkeys(("nr_free", "largest_order", *_BY_ORDER[1:]))
    if zone.nr_free is not None:
        orders = np.flatnonzero(zone.nr_free)
        free_pages = int((zone.nr_free << np.arange(zone.nr_free.size)).sum())
        row = {
            "nr_free": zone.nr_free.tolist(),
            "largest_order": int(orders[-1]) if orders.size else None,
            "extfrag_index": (fragmentation_index(zone.nr_free) / 1000).tolist(),
            "unusable_index": (unusable_free_index(zone.nr_free) / 1000).tolist(),
        }
    known = free_pages is not None and page_size_bytes is not None
    return {
        "node": zone.node,
        "zone": zone.name,
        "free_pages": free_pages,
        "free_bytes": free_pages * page_size_bytes if known else None,  # type: ignore[operator]
        "managed_pages": zone.managed_pages,
        **row,
    }


def zone_dataset(snapshot: Snapshot) -> "xr.Dataset":
    """The same over ``zone`` ("0:Normal") and ``order``; NaN where no file says.

    Raises
    ------
    InputError
        If no file gives free blocks by order.
    """
    rows = zone_rows(snapshot)
    n_orders = max((len(row["nr_free"]) for row in rows if row["nr_free"]), default=0)
    if not n_orders:
        raise InputError("none of the files gives free blocks by order; buddyinfo or pagetypeinfo is needed")
    zones = Column(variable("zone"), [f"{row['node']}:{row['zone']}" for row in rows])
    orders = Column(variable("order"), np.arange(n_orders))
    unknown = [np.nan] * n_orders
    data = [Column(variable(name), [row[name] or unknown for row in rows]) for name in _BY_ORDER]
    data += [Column(variable(name), [np.nan if row[name] is None else row[name] for row in rows]) for name in _BY_ZONE]
    attrs = {"title": "Zones of a snapshot", "provenance": stamp({"inputs": file_digests(snapshot)})}
    return build([zones, orders], data, attrs)


def file_digests(source: object) -> list[dict[str, str]]:
    """Name and SHA-256 of each file that `source` (a `Snapshot`, or anything with ``files``) was read from."""
    files: dict[str, str] = getattr(source, "files", {})
    return [{"file": file.rpartition("/")[2], "sha256": digest} for file, digest in files.items()]
