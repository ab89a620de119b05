"""Allocate and free folios through the buddy lists."""

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, one_of
from memmodel.kernels import buddy as kernels
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import MigrateType, ZoneType
from memmodel.state.machine import Handles, Machine

__all__ = ["alloc_pages", "as_handles", "folio_rows", "free_pages", "stale", "whole_number"]

REQUEST_TYPES = {t.name.lower(): t for t in (MigrateType.UNMOVABLE, MigrateType.MOVABLE, MigrateType.RECLAIMABLE)}
MAX_COUNT = 1 << 31
ZONES_BELOW_NORMAL = ("x86_64", "arm64")  # with CONFIG_ZONE_DMA and CONFIG_ZONE_DMA32; elsewhere gfp_zone() says Normal


def alloc_pages(
    mem: Machine,
    order: int = 0,
    count: int = 1,
    migratetype: str = "movable",
    *,
    node: int = 0,
    cpu: int = 0,
    gfp: str | None = None,
) -> Handles:
    """Allocate `count` folios of ``2**order`` pages, as that many single requests in a row.

    Parameters
    ----------
    mem
        Changed in place.
    order
        0 to MAX_PAGE_ORDER.
    count
        Number of requests.
    migratetype
        "movable", "unmovable" or "reclaimable"; movable requests may use ZONE_MOVABLE.
    node
        Preferred node; its zones are tried from the highest down, then the other nodes'.
    cpu
        CPU that makes the requests.
    gfp
        Flags by name, "GFP_HIGHUSER_MOVABLE|__GFP_COMP"; decide zone and migratetype in place of `migratetype`.

    Returns
    -------
    Folio handles, int64, shape ``(count,)``; -1 where the request failed.

    Raises
    ------
    InputError
        If an argument is outside its range.

    Notes
    -----
    A list that is empty takes whole pageblocks from the fallback types; smaller steals, per-CPU lists and watermarks
    are not part of this path.

    References
    ----------
    mm/page_alloc.c, __rmqueue_smallest and try_to_claim_block, Linux 6.12.117.
    """
    mem.check_cpu(cpu)
    order = whole_number(order, "order", 0, mem.geometry.max_page_order, "MAX_PAGE_ORDER")
    count = whole_number(count, "count", 0, MAX_COUNT)
    if gfp is None:
        wanted = REQUEST_TYPES[one_of(migratetype, REQUEST_TYPES, "migratetype")]
        highest = ZoneType.MOVABLE if wanted == MigrateType.MOVABLE else ZoneType.NORMAL
    else:
        flags = parse_gfp(gfp)
        wanted, highest = MigrateType(flags.migratetype), ZoneType[flags.highest_zone.upper()]
        if highest < ZoneType.NORMAL and mem.geometry.arch not in ZONES_BELOW_NORMAL:
            highest = ZoneType.NORMAL
    zonelist = mem.zonelist(node, highest)
    # A request for far too many must not grow the table beyond what there is memory for.
    mem.reserve_folios(min(count, mem.pfns.n_pages >> order))
    handles = np.empty(count, np.int64)
    kernels.alloc_folios(mem.state, zonelist, np.uint64(order), np.uint64(wanted), handles)
    return handles


def free_pages(mem: Machine, folios: npt.ArrayLike, *, cpu: int = 0) -> None:
    """Free folios, in the order given. -1 (a failed request) is skipped.

    Raises
    ------
    InputError
        If a handle is stale or given twice; then nothing has been freed.

    Notes
    -----
    A single page with PG_hwpoison is not given back: it leaves the allocator. Such a page inside a larger folio goes
    back to the free lists with it and can be allocated again, as in the kernel: the free path looks at order 0 only.

    References
    ----------
    mm/page_alloc.c, __free_one_page and free_one_page, Linux 6.12.117 (6.1 without the feature freelist_hygiene).
    """
    mem.check_cpu(cpu)
    handles = as_handles(folios)
    bad = kernels.mark_folios(mem.state, handles)
    if bad >= 0:
        raise stale(handles[bad])
    kernels.free_folios(mem.state, handles)


def folio_rows(mem: Machine, folios: npt.ArrayLike) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """First row and order of each folio.

    Raises
    ------
    InputError
        If a handle is stale.
    """
    handles = as_handles(folios)
    indices, orders = np.empty(handles.size, np.uint64), np.empty(handles.size, np.uint64)
    bad = kernels.resolve_folios(mem.state, handles, indices, orders)
    if bad >= 0:
        raise stale(handles[bad])
    return indices, orders


def as_handles(folios: npt.ArrayLike) -> Handles:
    """Handles as kernels take them: int64, one dimension, contiguous."""
    try:
        handles = np.atleast_1d(np.asarray(folios))
    except ValueError:
        raise InputError("folio handles are whole numbers, in one array") from None
    if handles.size and handles.dtype.kind not in "iu":
        raise InputError(f"folio handles are whole numbers, not {handles.dtype}")
    return np.ascontiguousarray(handles.reshape(-1), dtype=np.int64)


def whole_number(value: int, what: str, low: int, high: int, rule: str = "") -> int:
    """`value` as an int within [low, high].

    Raises
    ------
    InputError
        If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InputError(f"{what} {value!r}; {low} to {high}{f' ({rule})' if rule else ''} are possible")
    return int(value)


def stale(handle: int) -> InputError:
    """The refusal of a handle that is not live."""
    return InputError(f"folio {int(handle):#x} is not live: freed before, given twice, or of another memory")
