"""Allocate and free folios."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, one_of
from memmodel.kernels import allocate as kernels
from memmodel.kernels import folios as folio_kernels
from memmodel.mechanisms.policies import CompactPolicy, KswapdPolicy, ReclaimPolicy, Steps
from memmodel.mechanisms.request import DEFAULT_GFP, joins_lru, requested
from memmodel.mechanisms.slowpath import SlowPath
from memmodel.sources.gfp import Gfp, parse_gfp
from memmodel.state.machine import Handles, Machine

__all__ = ["Asked", "alloc_pages", "allocate", "as_handles", "folio_rows", "free_pages", "stale", "whole_number"]

MAX_COUNT = 1 << 31
NO_STEPS = Steps()


class Asked(NamedTuple):
    """Equal requests: what each asks for, and where it is made."""

    order: int
    gfp: Gfp
    node: int = 0
    cpu: int = 0
    lru: bool = False
    """Whether the pages go on an LRU list."""


def alloc_pages(  # noqa: PLR0913 - the kernel's arguments, and the steps of its slow path by keyword
    mem: Machine,
    order: int = 0,
    count: int = 1,
    migratetype: str = "movable",
    *,
    node: int = 0,
    cpu: int = 0,
    gfp: str | None = None,
    reclaim: ReclaimPolicy | None = None,
    compact: CompactPolicy | None = None,
    trace: list[str] | None = None,
    kswapd: KswapdPolicy | None = None,
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
    reclaim, compact
        Steps of requests with __GFP_DIRECT_RECLAIM that find no page: ``reclaim(mem, ReclaimRequest)`` frees pages and
        says how many, ``compact(mem, CompactRequest)`` answers a `Compaction`. `LeastRecentlyAllocated` is one that
        reclaims. With one of the two alone, the other finds nothing to do.
    trace
        Gets the steps of each request that these two attempts found no page for, by name, then how it ended: "page",
        "failed", "would_oom" (the kernel would kill a task now) or "would_loop" (it would try until others free).
    kswapd
        ``kswapd(mem, KswapdWake)`` does what a node's kswapd does when such a request wakes it; `WokenKswapd` is one.
        If not given, it is woken and does not run yet.

    Returns
    -------
    Folio handles, int64, shape ``(count,)``; -1 where the request failed.

    Raises
    ------
    InputError
        If an argument is outside its range, or a policy answers what it should not. What the call had is given back
        then, as after any other exception of a policy.

    Notes
    -----
    Each request makes two attempts, above the low and above the min watermark. Without `reclaim` and `compact` it then
    fails. With them it takes the kernel's slow path: rounds of reclaim and compaction, each with an attempt after it,
    until a page comes or the kernel would give up. The model kills no task, and ends what the kernel would try for
    ever (__GFP_NOFAIL) when nothing changes any more. Once a request has failed the others of the call are not tried.

    Movable pages, and what looks like page cache,
    go on an LRU list by way of the CPU's batch, which decides whether their pageblock may be claimed.

    References
    ----------
    mm/page_alloc.c: get_page_from_freelist, rmqueue, __rmqueue, __alloc_pages_slowpath, Linux 6.12.117.
    """
    order = whole_number(order, "order", 0, mem.geometry.max_page_order, "MAX_PAGE_ORDER")
    count = whole_number(count, "count", 0, MAX_COUNT)
    flags = parse_gfp(DEFAULT_GFP[one_of(migratetype, DEFAULT_GFP, "migratetype")] if gfp is None else gfp)
    return allocate(
        mem, Asked(order, flags, node, cpu, joins_lru(flags)), count, Steps(reclaim, compact, trace, kswapd)
    )


def allocate(mem: Machine, asked: Asked, count: int, steps: Steps = NO_STEPS) -> Handles:
    """`count` requests in a row, until one fails; handles, -1 from there on."""
    on_cpu = mem.check_cpu(asked.cpu)
    gfp, order = asked.gfp, asked.order
    for policy in (steps.reclaim, steps.compact, steps.kswapd):
        if policy is not None and not callable(policy):
            raise InputError(f"reclaim, compact and kswapd are functions, not {policy!r}")
    zonelist, request = requested(mem, gfp, order, asked.node, asked.lru)
    handles = np.full(count, -1, np.int64)
    if not zonelist.size:  # no node has any of these zones
        return handles
    done = 0
    while done < count:
        # A request for far too many must not grow the table beyond what there is memory for.
        mem.reserve_folios(min(count - done, mem.pfns.n_pages >> order))
        done += kernels.alloc_folios(mem.state, zonelist, on_cpu, request, handles[done:])
        if done == count or steps == NO_STEPS:
            break
        path = SlowPath(mem, zonelist, on_cpu, request, gfp, steps)
        try:
            handles[done] = path.run()
        except BaseException:  # a policy's: nobody would ever hear of these
            free_pages(mem, handles[:done], cpu=asked.cpu)
            raise
        if steps.trace is not None:
            steps.trace.extend((*path.steps, path.outcome))
        if handles[done] < 0:
            break
        done += 1
    return handles


def free_pages(mem: Machine, folios: npt.ArrayLike, *, cpu: int = 0) -> None:
    """Free folios, in the order given. -1 (a failed request) is skipped.

    Raises
    ------
    InputError
        If a handle is stale or given twice; then nothing has been freed.

    Notes
    -----
    Orders 0 to 3 and the PMD order go to the CPU's lists first, and reach the buddy lists when these are drained.
    A single page with PG_hwpoison is not given back: it leaves the allocator. Such a page inside a larger folio goes
    back to the free lists with it and can be allocated again, as in the kernel: the free path looks at order 0 only.

    References
    ----------
    mm/page_alloc.c: free_unref_page, free_pcppages_bulk, __free_one_page, Linux 6.12.117.
    """
    on_cpu = mem.check_cpu(cpu)
    handles = as_handles(folios)
    bad = kernels.free_folios(mem.state, on_cpu, handles)
    if bad >= 0:
        raise stale(handles[bad])


def folio_rows(mem: Machine, folios: npt.ArrayLike) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """First row and order of each folio.

    Raises
    ------
    InputError
        If a handle is stale.
    """
    handles = as_handles(folios)
    indices, orders = np.empty(handles.size, np.uint64), np.empty(handles.size, np.uint64)
    bad = folio_kernels.resolve_folios(mem.state, handles, indices, orders)
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
