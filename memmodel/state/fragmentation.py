"""The kernel's measures of external fragmentation (mm/vmstat.c and mm/compaction.c, 6.1 to 7.3).

`nr_free` has the free blocks of a zone by order, of all migratetypes together, as buddyinfo prints them: whole numbers
of shape ``(..., n_orders)``, for orders 0 to MAX_PAGE_ORDER. Leading dimensions (zones, times, trials) are computed at
once. Results are integers, rounded as the kernel rounds.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.sources.records import IntArray, ZoneKey
from memmodel.sources.rows import zone_head

__all__ = [
    "extfrag_for_order",
    "format_extfrag_index",
    "format_unusable_index",
    "fragmentation_index",
    "fragmentation_score_node",
    "fragmentation_score_zone",
    "fragmentation_score_zone_weighted",
    "unusable_free_index",
]

_MAX_ORDER = 31  # far above any kernel's MAX_PAGE_ORDER and PMD order
_EXACT = 1 << 53  # floats count up to here
_MAX_PAGES = 1 << 32  # the divisor of div_u64() has 32 bits


class _FreePages(NamedTuple):
    """What struct contig_page_info holds, each broadcast against the orders asked for."""

    pages: IntArray
    blocks: IntArray
    too_small: IntArray
    """Pages in blocks below the order: free_pages - (free_blocks_suitable << order)."""


def unusable_free_index(nr_free: npt.ArrayLike, order: npt.ArrayLike | None = None) -> IntArray:
    """Thousandths of the free memory that a request of `order` cannot use: 0 none, 1000 all of it.

    1000 where nothing is free (``unusable_free_index``, mm/vmstat.c).

    Parameters
    ----------
    nr_free
        Free blocks, shape ``(..., n_orders)``.
    order
        One order, or several in one dimension, which then comes last in the result; if not given, all of `nr_free`, as
        debugfs prints them.

    Raises
    ------
    InputError
        If counts or orders are no whole numbers from 0 on, or a zone has 2**32 free pages, where the kernel's own
        division overflows.
    """
    free, _ = _free_pages(nr_free, order)
    return np.where(free.pages == 0, 1000, free.too_small * 1000 // np.maximum(free.pages, 1))


def fragmentation_index(nr_free: npt.ArrayLike, order: npt.ArrayLike | None = None) -> IntArray:
    """Why a request of `order` fails, in thousandths: towards 0 for want of memory, towards 1000 for fragmentation.

    -1000 where it would not fail, 0 where nothing is free or above MAX_PAGE_ORDER. Few free blocks far below the order
    give values between -1000 and 0. Compaction for a costly order is skipped where it is 0 to extfrag_threshold, 500 by
    default (``fragmentation_index``, mm/vmstat.c).

    Parameters
    ----------
    nr_free, order
        As of `unusable_free_index`.

    Raises
    ------
    InputError
        As `unusable_free_index`.
    """
    free, orders = _free_pages(nr_free, order)
    # The kernel divides towards zero; all operands here are positive, so that the floor is the same.
    index = 1000 - (1000 + (free.pages * 1000 >> orders)) // np.maximum(free.blocks, 1)
    never = (free.blocks == 0) | (orders >= np.shape(nr_free)[-1])
    return np.where(never, 0, np.where(free.too_small < free.pages, -1000, index))


def extfrag_for_order(nr_free: npt.ArrayLike, order: npt.ArrayLike | None = None) -> IntArray:
    """Percent of the free pages that lie in blocks below `order`, rounded down; 0 where nothing is free
    (``extfrag_for_order``, mm/vmstat.c).

    Parameters
    ----------
    nr_free, order
        As of `unusable_free_index`.

    Raises
    ------
    InputError
        As `unusable_free_index`.
    """
    free, _ = _free_pages(nr_free, order)
    return free.too_small * 100 // np.maximum(free.pages, 1)


def fragmentation_score_zone(nr_free: npt.ArrayLike, hpage_order: int) -> IntArray:
    """What proactive compaction compares with its low mark, zone by zone: 0 to 100, shape ``(...)``.

    `extfrag_for_order` at COMPACTION_HPAGE_ORDER, the order of a PMD (``fragmentation_score_zone``, mm/compaction.c).

    Raises
    ------
    InputError
        As `unusable_free_index`.
    """
    if np.ndim(hpage_order):
        raise InputError(f"hpage_order {hpage_order}: a kernel has one order of a PMD")
    return extfrag_for_order(nr_free, hpage_order)


def fragmentation_score_zone_weighted(
    nr_free: npt.ArrayLike, present_pages: npt.ArrayLike, hpage_order: int
) -> IntArray:
    """The share of each zone in the score of its node, shape ``(..., n_zones)``.

    The node's present pages are taken plus one and the result is rounded down, so that a node of a single zone stays
    one below the zone's own score unless that is 0 (``fragmentation_score_zone_weighted``, mm/compaction.c).

    Parameters
    ----------
    nr_free
        Free blocks of the zones of ONE node, shape ``(..., n_zones, n_orders)``.
    present_pages
        Pages of these zones without holes, shape ``(n_zones,)``.
    hpage_order
        Order of a PMD.

    Raises
    ------
    InputError
        As `unusable_free_index`, or if the present pages are not one whole number from 0 on for each zone.
    """
    score = fragmentation_score_zone(nr_free, hpage_order)
    present = _whole(present_pages, "present_pages")
    if score.ndim == 0 or present.shape != score.shape[-1:]:
        raise InputError(f"present_pages of shape {present.shape} for scores of shape {score.shape}: one for each zone")
    return present * score // (int(present.sum()) + 1)


def fragmentation_score_node(nr_free: npt.ArrayLike, present_pages: npt.ArrayLike, hpage_order: int) -> IntArray:
    """What starts proactive compaction of a node when above its high mark, 90 by default: shape ``(...)``.

    The sum over its zones, each rounded down (``fragmentation_score_node``, mm/compaction.c).

    Parameters
    ----------
    nr_free, present_pages, hpage_order
        As of `fragmentation_score_zone_weighted`.

    Raises
    ------
    InputError
        As `fragmentation_score_zone_weighted`.
    """
    return np.asarray(fragmentation_score_zone_weighted(nr_free, present_pages, hpage_order).sum(axis=-1))


def format_unusable_index(nr_free: Mapping[ZoneKey, IntArray]) -> str:
    """The text of extfrag/unusable_index in debugfs, byte for byte (``unusable_show_print``, mm/vmstat.c)."""
    return _format(nr_free, unusable_free_index, 1)


def format_extfrag_index(nr_free: Mapping[ZoneKey, IntArray]) -> str:
    """The text of extfrag/extfrag_index in debugfs, byte for byte (``extfrag_show_print``, mm/vmstat.c).

    Quotient and remainder carry the sign both, as C prints them: -500 is " 0.-500".
    """
    return _format(nr_free, fragmentation_index, 2)


def _format(nr_free: Mapping[ZoneKey, IntArray], index: Callable[[IntArray], IntArray], width: int) -> str:
    return "".join(
        f"{zone_head(key)}{''.join(_thousandths(value, width) for value in index(row).tolist())}\n"
        for key, row in nr_free.items()
    )


def _thousandths(value: int, width: int) -> str:
    sign = -1 if value < 0 else 1
    quotient, remainder = divmod(abs(value), 1000)
    return f"{sign * quotient:{width}d}.{sign * remainder:03d} "


def _free_pages(nr_free: npt.ArrayLike, order: npt.ArrayLike | None) -> tuple[_FreePages, IntArray]:
    """The sums for each order, and the orders (``fill_contig_page_info``, mm/vmstat.c)."""
    counts = _whole(nr_free, "nr_free")
    if counts.ndim == 0 or not 0 < counts.shape[-1] <= _MAX_ORDER + 1:
        raise InputError(f"nr_free has the shape {counts.shape}; its last dimension is the order, from 0 on")
    n_orders = counts.shape[-1]
    orders = np.arange(n_orders) if order is None else _whole(order, "order")
    if orders.ndim > 1 or np.any(orders > _MAX_ORDER):
        raise InputError(f"order {np.asarray(order).tolist()}: one order, or several in a list, from 0 to {_MAX_ORDER}")
    if np.any(counts @ 2.0 ** np.arange(n_orders) >= _MAX_PAGES):
        raise InputError("nr_free has 2**32 free pages or more in a zone; the kernel's division is exact below that")
    pages = counts << np.arange(n_orders)
    below = np.concatenate([np.zeros_like(pages[..., :1]), pages.cumsum(axis=-1)], axis=-1)
    per_zone = counts.shape[:-1] + (1,) * orders.ndim
    free, blocks = below[..., -1].reshape(per_zone), counts.sum(axis=-1).reshape(per_zone)
    return _FreePages(free, blocks, below[..., np.minimum(orders, n_orders)]), orders


def _whole(values: npt.ArrayLike, what: str) -> IntArray:
    """As int64, refused unless they are whole numbers from 0 on; a Dataset holds counts as floats."""
    given = np.asarray(values)
    if given.dtype.kind not in "iuf":
        raise InputError(f"{what} is of type {given.dtype}; whole numbers from 0 on are needed")
    good = (given >= 0) & (given < _EXACT) & (given == np.floor(given))
    if not good.all():
        raise InputError(f"{what} has {given[~good].flat[0]}; whole numbers from 0 to 2**53 are needed")
    return given.astype(np.int64)
