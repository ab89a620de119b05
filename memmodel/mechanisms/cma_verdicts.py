"""Why a CMA allocation failed, by the numbers of the kernel's log alone."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from errno import EBUSY, EINTR, ENOMEM
from itertools import pairwise

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.sources.cmalog import PAGE_SIZES, BusyRange, CmaBitmap, CmaBoot, CmaFailure, CmaLog
from memmodel.sources.features import kernel_features
from memmodel.units import format_bytes

__all__ = ["VERDICTS", "CmaVerdict", "GranuleBound", "cma_granule_bounds", "cma_verdicts"]

VERDICTS = ("exhaustion", "fragmentation", "full or fragmented", "migration failure", "interrupted", "cannot be told")

_DEFAULT_CMA_ALIGNMENT = 8  # CONFIG_CMA_ALIGNMENT
_PAUSE_S = 1.0  # between two candidates of one request there is less
_SMALL_PAGES = 64  # at most an eighth of the pageblocks, 512 pages and more, that areas are usually made of


@dataclass(frozen=True)
class CmaVerdict:
    """What the numbers of one failure, or of a run of busy ranges, say. None: they do not."""

    line: int
    kind: str
    """One of `VERDICTS`."""
    words: str
    """The reason."""
    request_pages: int
    request_bytes: int | None = None
    """None where the page size is not known; `words` has it for each then."""
    free_pages: int | None = None
    total_pages: int | None = None
    largest_run_pages: int | None = None
    whole_area: bool | None = None
    """Whether the request is as large as the area."""
    n_candidates: int | None = None
    """Ranges tried, each of them busy."""
    failed: bool = True
    """Whether the log shows that the request failed: after busy ranges a later one may have done."""
    step_pages: int | None = None
    """From one candidate to the next: the alignment of the request."""
    align_order: int | None = None
    cma_alignment: int | None = None
    """CONFIG_CMA_ALIGNMENT, where it shows: the alignment is less than the request's own order."""
    fallback_order: int | None = None
    """Order of the buddy block that a caller without CMA would need."""
    fallback_too_large: bool | None = None
    """Whether that is beyond MAX_PAGE_ORDER, which the page allocator warns of."""


@dataclass(frozen=True)
class GranuleBound:
    """What a line of the boot log says of CMA_MIN_ALIGNMENT_BYTES."""

    line: int
    words: str
    at_most_bytes: int | None = None
    """The granule divides what was taken."""
    above_bytes: int | None = None
    """The granule does not divide what was refused; it is larger."""


def cma_verdicts(log: CmaLog, geometry: Geometry | None = None) -> tuple[CmaVerdict, ...]:
    """Say of each failed allocation, and of each series of busy ranges, why it failed.

    Parameters
    ----------
    geometry
        The kernel build, for what the log does not tell: page size, kernel, largest order.

    Raises
    ------
    InputError
        If the log has another page size than `geometry`.

    References
    ----------
    mm/cma.c: cma_alloc; mm/page_alloc.c: alloc_contig_range; kernel/dma/contiguous.c, Linux 6.1, 6.12, 7.3.
    """
    page_size = log.page_size_bytes
    if geometry is not None:
        if page_size not in (None, geometry.page_size_bytes):
            asked = format_bytes(geometry.page_size_bytes)
            raise InputError(f"{log.path}: the log is of {format_bytes(page_size or 0)} pages, the geometry of {asked}")
        page_size = geometry.page_size_bytes
    features = None if geometry is None else geometry.features
    if features is None and log.kernel is not None:
        features = kernel_features(log.kernel)
    found = [_of_failure(failure, features) for failure in log.failures]
    found += [_of_busy(tried, log) for tried in _series(log.busy)]
    found.sort(key=lambda verdict: verdict.line)
    return tuple(_sized(verdict, page_size, geometry) for verdict in found)


def _sized(verdict: CmaVerdict, page_size: int | None, geometry: Geometry | None) -> CmaVerdict:
    pages, order = verdict.request_pages, _order(verdict.request_pages)
    words = verdict.words
    if page_size is None:
        sizes = (f"{format_bytes(pages * size)} with {format_bytes(size)} pages" for size in PAGE_SIZES)
        words += f"; {pages} pages are {', '.join(sizes)}"
    return replace(
        verdict,
        words=words,
        request_bytes=None if page_size is None else pages * page_size,
        fallback_order=order,
        fallback_too_large=None if geometry is None else order > geometry.max_page_order,
    )


def _order(pages: int) -> int:
    """Of the smallest block that holds them (get_order)."""
    return max(pages - 1, 0).bit_length()


def _of_failure(failure: CmaFailure, features: Collection[str] | None) -> CmaVerdict:
    bitmap = failure.bitmap
    if bitmap is not None:
        kind, words = _by_bitmap(failure, bitmap)
    else:
        kind, words = _by_errno(failure, features)
    verdict = CmaVerdict(failure.line, kind, words, failure.pages)
    if bitmap is None:
        return verdict
    return replace(
        verdict,
        free_pages=bitmap.free_pages,
        total_pages=bitmap.total_pages,
        largest_run_pages=bitmap.largest_run_pages,
        whole_area=failure.pages == bitmap.total_pages,
    )


def _by_bitmap(failure: CmaFailure, bitmap: CmaBitmap) -> tuple[str, str]:
    pages, largest = failure.pages, bitmap.largest_run_pages
    if failure.errno == -EINTR:
        return "interrupted", "the task had a fatal signal"
    if pages > bitmap.total_pages:
        return "exhaustion", f"{pages} pages are more than the whole area, {bitmap.total_pages}"
    if bitmap.free_pages < pages:
        return "exhaustion", f"{bitmap.free_pages} pages are free, fewer than the {pages} asked for"
    if largest < pages:
        return "fragmentation", f"{bitmap.free_pages} pages are free, but the longest run has {largest} of {pages}"
    whole = (
        "; the request is the whole area, every page that lies there must move" if pages == bitmap.total_pages else ""
    )
    if failure.errno == -EBUSY:
        return (
            "migration failure",
            f"a run of {largest} pages is free to CMA, but pages that others use did not move{whole}",
        )
    if failure.errno == -ENOMEM and _has_aligned_place(bitmap, pages):
        return (
            "migration failure",
            f"a run of {largest} pages is free to CMA, so there was nowhere to move pages to{whole}",
        )
    words = f"the longest run, {largest} pages, is long enough: no aligned start in it, or nowhere to move pages to"
    return "cannot be told", words


def _has_aligned_place(bitmap: CmaBitmap, pages: int) -> bool:
    """Whether a run holds the request at the alignment that the DMA code asks for; areas begin on a pageblock."""
    unit = 1 << min(_order(pages), _DEFAULT_CMA_ALIGNMENT)
    return any(-(-bit // unit) * unit + pages <= bit + run for run, bit in bitmap.runs)


def _by_errno(failure: CmaFailure, features: Collection[str] | None) -> tuple[str, str]:
    pages = failure.pages
    if failure.errno == -EINTR:
        return "interrupted", "the task had a fatal signal"
    if failure.errno == -ENOMEM and features is not None and "cma_untried_ebusy" in features:
        return "migration failure", "a free run was found, but there was nowhere to move its pages to"
    if failure.errno == -ENOMEM:
        missing = "neither the area's size nor what is free in it is shown (the bitmap line, by CONFIG_CMA_DEBUG)"
        if pages <= _SMALL_PAGES:
            return "exhaustion", f"no free run of even {pages} aligned pages: the area is as good as full; {missing}"
        return "full or fragmented", f"no free run of {pages} aligned pages; {missing}"
    if failure.errno == -EBUSY and features is not None and "cma_untried_ebusy" not in features:
        return "migration failure", "a free run was found, but pages that others use there did not move"
    if failure.errno == -EBUSY:
        missing = "the bitmap line" if features is not None else "the kernel's version or the bitmap line"
        return "cannot be told", f"pages did not move, or, from 7.2 on, no run was free; {missing} is missing"
    return "cannot be told", f"error {failure.errno} is none that the search or the migration gives"


def _series(busy: Sequence[BusyRange]) -> list[list[BusyRange]]:
    """Ranges of one length that follow one another upwards without a pause: the candidates of one request."""
    series: list[list[BusyRange]] = []
    for found in busy:
        last = series[-1][-1] if series else None
        if last and found.pages == last.pages and found.start_pfn > last.start_pfn and not _paused(last, found):
            series[-1].append(found)
        else:
            series.append([found])
    return series


def _paused(before: BusyRange, after: BusyRange) -> bool:
    return None not in (before.time_s, after.time_s) and (after.time_s or 0) - (before.time_s or 0) > _PAUSE_S


def _of_busy(tried: Sequence[BusyRange], log: CmaLog) -> CmaVerdict:
    pages, last = tried[0].pages, tried[-1].line
    later = min((found.line for found in log.busy if found.line > last), default=math.inf)
    failed = any(last <= line < later for line in (*(f.line for f in log.failures), *(line for line, _ in log.buffers)))
    steps = {b.start_pfn - a.start_pfn for a, b in pairwise(tried)}
    step = min(steps, default=None)
    order = step.bit_length() - 1 if step is not None and step.bit_count() == 1 else None
    if order is not None and any(found.start_pfn % (1 << order) for found in tried):
        order = None
    capped = order is not None and 0 < order < _order(pages)
    words = (
        f"all {len(tried)} ranges tried hold pages that did not move; a run that long was free to CMA each time,"
        f" so the area is not exhausted{'' if failed else '; whether a later range did is not shown'}"
    )
    return CmaVerdict(
        line=tried[0].line,
        kind="migration failure",
        words=words,
        request_pages=pages,
        n_candidates=len(tried),
        failed=failed,
        step_pages=step,
        align_order=order,
        cma_alignment=order if capped else None,
    )


def cma_granule_bounds(log: CmaLog, geometry: Geometry | None = None) -> tuple[GranuleBound, ...]:
    """What the boot lines of a log say of CMA_MIN_ALIGNMENT_BYTES: areas taken are multiples of it.

    Parameters
    ----------
    geometry
        For the kernel, where the log does not name it: from 7.3 on (at the latest) the size in "Reserved ..." is what
        was asked for, and says nothing.
    """
    features = geometry.features if geometry is not None else kernel_features(log.kernel) if log.kernel else None
    rounded = features is not None and "cma_log_as_asked" not in features
    bounds = []
    spans: dict[str | None, int] = {}
    for boot, after in zip(log.boots, (*log.boots, None)[1:], strict=True):
        if boot.kind in ("pool", "reserved") and boot.span is not None:
            size = boot.span.size_bytes if boot.kind == "pool" or rounded else 0
            unit = _low_bit(boot.span.base | size)
            bounds.append(GranuleBound(boot.line, f"{format_bytes(unit)} divides the area", at_most_bytes=unit))
            if after is not None and after.kind == "initialized":
                spans[after.name] = unit
        elif boot.kind == "not reserved" and boot.size_mib and rounded:
            unit = _low_bit(boot.size_mib << 20)
            words = f"{boot.size_mib} MiB, the size after rounding, found no place"
            bounds.append(GranuleBound(boot.line, words, at_most_bytes=unit))
        elif boot.kind == "misaligned":
            bounds.append(_of_refusal(boot, after, spans))
    return tuple(bounds)


def _low_bit(value: int) -> int:
    """The largest power of two that divides it."""
    return value & -value


def _of_refusal(boot: CmaBoot, after: CmaBoot | None, spans: dict[str | None, int]) -> GranuleBound:
    """A node that another kernel of the same log has taken shows what the granule is more than."""
    name = after.name if after is not None and after.kind == "given back" else None
    unit = spans.get(name) if name is not None else None
    if unit is None:
        return GranuleBound(boot.line, "base and size of the area refused are not shown")
    return GranuleBound(boot.line, f"node {name} is a multiple of {format_bytes(unit)} only", above_bytes=unit)
