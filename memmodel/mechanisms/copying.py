"""folio_mc_copy() and copy_mc_highpages(): copies that survive a poisoned source."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError, one_of
from memmodel.geometry import PREEMPT_MODELS, Geometry
from memmodel.kernels import copying as kernels
from memmodel.kernels.copying import CopyRule, Pairing
from memmodel.mechanisms.buddy import as_handles, folio_rows, stale, whole_number
from memmodel.state.layout import Kind
from memmodel.state.machine import Handles, Machine

__all__ = [
    *("BATCHES", "ENGINES", "CopyOutcome"),
    *("copy_mc_highpages", "copy_pages", "copy_rule", "folio_mc_copy", "has_error"),
]

BATCHES = ("page", "extent")
NON_PREEMPT_BATCH_BYTES = 32 << 20  # COPY_MC_PAGES_NON_PREEMPT_BATCH << PAGE_SHIFT
# A batch this large is streamed past the caches: from 4 MiB on 1.2x, from 256 MiB on 1.5x the rate of memcpy on a Xeon
# with 2 MiB of second-level and 260 MiB of last-level cache (asv: bench_copying.SwitchPoint).
STREAM_FROM_BYTES = 4 << 20


@dataclass(frozen=True)
class Engine:
    """How an architecture's primitive meets a poisoned line."""

    recovers: bool
    granule: int
    doc: str


ENGINES = {
    "fragile": Engine(True, 8, "x86 copy_mc_fragile: 8-byte loads in order, stops at the first poisoned line"),
    "fast_string": Engine(True, 64, "x86 copy_mc_enhanced_fast_string: rep movsb, progress as the CPU reports it"),
    "powerpc": Engine(True, 1, "powerpc copy_mc_generic: exact to the byte"),
    "memcpy": Engine(False, 1, "x86 without ERMS or the fragile key: plain memcpy, an error panics"),
    "none": Engine(False, 1, "no machine-check support: page by page, never reports, an error panics"),
}
DEFAULT_ENGINE = {"x86_64": "fast_string", "powerpc64": "powerpc"}
OWN_COPY_HIGHPAGE = ("arm64", "sparc64")  # __HAVE_ARCH_COPY_HIGHPAGE


@dataclass(frozen=True)
class CopyOutcome:
    """One entry a folio; every array has shape ``(folios,)``."""

    status: npt.NDArray[np.int64]
    """0, -133 (-EHWPOISON), 1 (the machine would have panicked here), 2 (not reached after a panic)."""
    bytes_not_copied: npt.NDArray[np.int64]
    """Bytes of the folio that the destination did not get; they keep what they held."""
    pfn_queued: npt.NDArray[np.int64]
    """Page frame number given to memory_failure_queue(); -1: none."""
    queue_dropped: npt.NDArray[np.bool_]
    """The CPU's queue was full and the entry is lost."""
    n_calls: npt.NDArray[np.int64]
    """Calls of the copy primitive."""
    n_resched: npt.NDArray[np.int64]
    """cond_resched() calls between them."""
    longest_stretch_bytes: npt.NDArray[np.int64]
    """Most bytes copied without a point where another task can run; 0 where the kernel is preemptible."""


def copy_rule(
    geometry: Geometry,
    batch: str = "extent",
    preempt: str | None = None,
    engine: str | None = None,
    granule: int | None = None,
    lag: int = 0,
) -> CopyRule:
    """How a folio is cut into calls on this geometry, and what the engine makes of an error.

    Parameters
    ----------
    geometry
        Its architecture and HIGHMEM decide whether the one-call fast path is compiled in.
    batch
        "page": a call a page (mainline folio_mc_copy); "extent": copy_mc_highpages().
    preempt
        Preemption model: "none" and "voluntary" cut an extent at 32 MiB, "lazy" and "full" copy the folio in one call.
        None: the geometry's, which is "full" unless it was given.
    engine
        One of ENGINES; None: the architecture's.
    granule, lag
        Of "fast_string": progress is reported in multiples of `granule` bytes (a power of two to 4096), `lag` bytes
        late. What real CPUs do is not documented; the defaults report the line before the error exactly.

    Raises
    ------
    InputError
        If a name is unknown or a number out of range.

    References
    ----------
    "mm: introduce copy_mc_highpages() and batch copy in folio_mc_copy()", RFC v2, October 2026;
    arch/x86/lib/copy_mc.c and copy_mc_64.S, Linux 6.12.117.
    """
    one_of(batch, BATCHES, "batch")
    model = geometry.preempt if preempt is None else preempt
    preemptible = one_of(model, PREEMPT_MODELS, "preemption model") in ("lazy", "full")
    name = DEFAULT_ENGINE.get(geometry.arch, "none") if engine is None else engine
    kind = ENGINES[one_of(name, ENGINES, "engine")]
    if (granule is not None or lag) and name != "fast_string":
        raise InputError(f"granule and lag belong to engine fast_string, not {name}")
    granule = kind.granule if granule is None else granule
    if granule not in [1 << n for n in range(13)]:
        raise InputError(f"granule {granule}; a power of two from 1 to 4096 is possible")
    lag = whole_number(lag, "lag", 0, 1 << 30)
    fast_path = batch == "extent" and name != "none" and not geometry.highmem
    fast_path = fast_path and geometry.arch not in OWN_COPY_HIGHPAGE
    batch_pages = NON_PREEMPT_BATCH_BYTES >> geometry.page_shift if fast_path else 1
    whole = batch == "extent" and preemptible  # the unit is the folio, even where the calls are a page each
    return CopyRule(
        unit_pages=np.uint64(0 if whole else batch_pages),
        per_page=np.uint64(not fast_path),
        preemptible=np.uint64(preemptible),
        recovers=np.uint64(kind.recovers),
        granule=np.uint64(granule),
        lag=np.uint64(lag),
    )


@lru_cache
def _cached_rule(*arguments: Any) -> CopyRule:
    return copy_rule(*arguments)


def _rule(*arguments: Any) -> CopyRule:
    """The rule, kept from the last time; what cannot be a key is refused by `copy_rule` itself."""
    try:
        return _cached_rule(*arguments)
    except TypeError:
        return copy_rule(*arguments)


def folio_mc_copy(  # noqa: PLR0913 - the kernel's arguments and the build's
    mem: Machine,
    dst: npt.ArrayLike,
    src: npt.ArrayLike,
    *,
    batch: str = "extent",
    preempt: str | None = None,
    engine: str | None = None,
    cpu: int = 0,
    granule: int | None = None,
    lag: int = 0,
) -> CopyOutcome:
    """Copy folios one after the other; a poisoned source fails that folio and queues memory_failure().

    Parameters
    ----------
    mem
        Changed in place: destination bytes (where the memory has contents) and the CPU's memory_failure queue.
    dst, src
        Handles of equally many, pairwise equally large folios, shape ``(folios,)``. No folio is written that is also
        read or written by another pair.
    batch, preempt, engine, granule, lag
        See `copy_rule`.
    cpu
        CPU that copies; failures go to its queue.

    Raises
    ------
    InputError
        If a handle is stale, sizes differ, or sources and destinations overlap; nothing has been copied then.

    References
    ----------
    mm/util.c, folio_mc_copy, Linux 6.12.117, and the batching series named at `copy_rule`.
    """
    number = mem.check_cpu(cpu)
    rule = _rule(mem.geometry, batch, preempt, engine, granule, lag)
    targets, sources = as_handles(dst), as_handles(src)
    if targets.size != sources.size:
        raise InputError(f"{targets.size} destination folios for {sources.size} source folios")
    rows = np.empty((3, targets.size), np.uint64)
    problem, i = kernels.pair_folios(mem.state, targets, sources, rows)
    if problem:
        raise _unpaired(mem, Pairing(problem), targets, sources, i)
    return _copy(mem, rule, number, rows)


def _unpaired(mem: Machine, problem: Pairing, targets: Handles, sources: Handles, i: int) -> InputError:
    if problem in (Pairing.STALE_TARGET, Pairing.STALE_SOURCE):
        return stale((targets if problem == Pairing.STALE_TARGET else sources)[i])
    if problem == Pairing.ORDERS_DIFFER:
        order, source_order = folio_rows(mem, [targets[i], sources[i]])[1]
        return InputError(f"destination folio {i} has order {order}, its source {source_order}")
    return InputError("source and destination overlap: a folio is written that is also read or written by another pair")


def copy_mc_highpages(  # noqa: PLR0913 - as folio_mc_copy
    mem: Machine,
    to_pfn: int,
    from_pfn: int,
    nr_pages: int,
    *,
    engine: str | None = None,
    cpu: int = 0,
    granule: int | None = None,
    lag: int = 0,
) -> CopyOutcome:
    """Copy a range of pages in one call on the fast path, else page by page; outcome of shape ``(1,)``.

    Raises
    ------
    InputError
        If a range leaves memory or crosses a hole, or the ranges overlap.

    References
    ----------
    include/linux/highmem.h, copy_mc_highpages, of the series named at `copy_rule`.
    """
    number = mem.check_cpu(cpu)
    # The range is one unit, whatever the preemption model: cond_resched() stands between units only.
    rule = _rule(mem.geometry, "extent", "full", engine, granule, lag)
    rule = rule._replace(preemptible=np.uint64(mem.geometry.preempt in ("lazy", "full")))
    nr_pages = whole_number(nr_pages, "nr_pages", 1, mem.pfns.n_pages)
    target = check_pfn_range(mem, to_pfn, nr_pages, "destination")
    source = check_pfn_range(mem, from_pfn, nr_pages, "source")
    if abs(target - source) < nr_pages:
        raise InputError(f"source and destination overlap: {nr_pages} pages from pfn {from_pfn} to pfn {to_pfn}")
    return _copy(mem, rule, number, np.array([[target], [source], [nr_pages]], np.uint64))


def copy_pages(
    mem: Machine,
    targets: npt.NDArray[np.uint64],
    sources: npt.NDArray[np.uint64],
    *,
    engine: str | None = None,
    cpu: int = 0,
) -> CopyOutcome:
    """Copy pages given by their rows one by one, up to the first that fails (copy_mc_user_highpage in a loop).

    Outcome of shape ``(pages tried,)``.
    """
    rule = page_rule(mem, engine)
    bad = np.flatnonzero(has_error(mem, sources))
    n_tried = int(bad[0]) + 1 if bad.size else sources.size
    rows = np.ones((3, n_tried), np.uint64)
    rows[0], rows[1] = targets[:n_tried], sources[:n_tried]
    return _copy(mem, rule, mem.check_cpu(cpu), rows)


def page_rule(mem: Machine, engine: str | None) -> CopyRule:
    """How single pages are copied.

    Raises
    ------
    InputError
        If there is no such engine.
    """
    return _rule(mem.geometry, "page", None, engine, None, 0)


def has_error(mem: Machine, rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Whether the pages of these rows have a latent error."""
    words = mem.state.ue_pages[rows >> np.uint64(6)] >> (rows & np.uint64(63))
    return np.asarray(words & np.uint64(1) != 0)


def check_pfn_range(mem: Machine, pfn: int, nr_pages: int, what: str) -> int:
    """First row of a range of pages that all exist.

    Raises
    ------
    InputError
        If the range leaves memory or crosses a hole.
    """
    pfn = whole_number(pfn, f"{what} pfn", 0, 1 << 52)
    first, last = (int(row) for row in mem.index([pfn, pfn + nr_pages - 1]))
    kinds = mem.state.pages["state"][first : last + 1] >> 4
    if last - first != nr_pages - 1 or np.any(kinds == Kind.HOLE):
        raise InputError(f"{what} pfns {pfn}..{pfn + nr_pages - 1} cross a hole")
    return first


def _copy(mem: Machine, rule: CopyRule, cpu: np.uint64, rows: npt.NDArray[np.uint64]) -> CopyOutcome:
    targets, sources, n_pages = rows
    out = kernels.new_outcomes(sources.size)
    stream = int(n_pages.sum()) << mem.geometry.page_shift >= STREAM_FROM_BYTES
    lanes = np.zeros((2, kernels.LANES if stream else 0), np.uint64)
    kernels.copy_folios(mem.state, rule, cpu, targets, sources, n_pages, lanes, out)
    columns = out._asdict()
    queued = columns["pfn_queued"] = columns.pop("index_queued")
    failed = np.flatnonzero(queued >= 0)
    if failed.size:
        queued[failed] = mem.pfns.pfn(queued[failed])
    return CopyOutcome(**columns)
