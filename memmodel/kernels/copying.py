"""Machine-check-aware copy of folios: bytes move, calls and resched points are counted.

Rules: mm/util.c folio_mc_copy, include/linux/highmem.h copy_mc_highpage and copy_mc_highpages, arch/x86/lib/copy_mc*.S,
arch/powerpc/lib/copy_mc_64.S. One folio's outcome follows from where its first poisoned line lies, so it is worked out
from that alone; the bytes up to there then move in one piece.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import copy_bytes, inlined, kernel, stream_bytes, stream_fence
from memmodel.kernels.folios import MARK, find_folio, unmark_folios
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.poisoning import first_bad_line, first_bad_page, queue_failure
from memmodel.state.layout import MF_QUEUE_SLOTS, NONE, Memory

U = np.uint64
ZERO = np.uint64(0)
SIX = np.uint64(6)
STREAM_STEP = np.uint64(256)
CHUNK = np.uint64(4096)
LANES = 4
QUEUE_SLOTS = MF_QUEUE_SLOTS


class Status(IntEnum):
    """Outcome of one folio's copy."""

    COPIED = 0
    EHWPOISON = -133
    PANIC = 1  # an error that the engine cannot survive: the machine would have stopped here
    NOT_REACHED = 2  # a folio behind a panic


class CopyRule(NamedTuple):
    """How a folio is cut into calls, and what an engine makes of an error; all that one kernel and machine fix."""

    unit_pages: np.uint64  # pages between cond_resched()s, and of one call of the fast path; 0: the whole folio
    per_page: np.uint64  # 1: every call takes one page, whatever the unit (no fast path, or the old kernel)
    preemptible: np.uint64  # 1: the task can be preempted inside a call, so no stretch is closed to it
    recovers: np.uint64  # 1: an error is survived and reported
    granule: np.uint64  # reported progress is a multiple of this, counted from the call's start
    lag: np.uint64  # bytes by which reported progress trails


class Outcomes(NamedTuple):
    """What became of each folio, an array a column."""

    status: npt.NDArray[np.int64]
    bytes_not_copied: npt.NDArray[np.int64]
    index_queued: npt.NDArray[np.int64]  # row given to memory_failure_queue(); -1: none
    queue_dropped: npt.NDArray[np.bool_]
    n_calls: npt.NDArray[np.int64]
    n_resched: npt.NDArray[np.int64]
    longest_stretch_bytes: npt.NDArray[np.int64]


def new_outcomes(n_folios: int) -> Outcomes:
    """Room for the outcomes of so many folios."""
    columns: dict[str, Any] = {name: np.zeros(n_folios, np.int64) for name in Outcomes._fields}
    return Outcomes(**columns | {"queue_dropped": np.zeros(n_folios, np.bool_)})


class Pairing(IntEnum):
    """Why folios cannot be copied onto others."""

    OK = 0
    STALE_TARGET = 1
    STALE_SOURCE = 2
    ORDERS_DIFFER = 3
    OVERLAP = 4


COPIED = Status.COPIED.value
EHWPOISON = Status.EHWPOISON.value
PANIC = Status.PANIC.value
NOT_REACHED = Status.NOT_REACHED.value
STALE_TARGET, STALE_SOURCE = Pairing.STALE_TARGET.value, Pairing.STALE_SOURCE.value
ORDERS_DIFFER, OVERLAP = Pairing.ORDERS_DIFFER.value, Pairing.OVERLAP.value


@kernel
def pair_folios(mem: Memory, handles: Any, source_handles: Any, rows: Any) -> Any:
    """Rows and sizes of folios and of those they are copied from: targets, sources, pages into `rows`.

    Targets are marked while the sources are looked at: no folio may be written that is also read or written by another
    pair. Returns a Pairing and the first pair that is wrong. Sorting the handles instead cost 0.7 us a folio.
    """
    targets, sources, n_pages = rows[0], rows[1], rows[2]
    for i in range(handles.size):
        slot = find_folio(mem, handles[i])
        if slot == NONE or np.uint64(mem.folios[slot].index) & MARK:
            unmark_folios(mem, handles, i)
            return STALE_TARGET if slot == NONE else OVERLAP, i
        targets[i] = mem.folios[slot].index
        n_pages[i] = ONE << (np.uint64(mem.pages[targets[i]].state) & ORDER_BITS)
        mem.folios[slot].index = targets[i] | MARK
    problem, where = 0, handles.size
    for i in range(handles.size):
        slot = find_folio(mem, source_handles[i])
        if slot == NONE:
            problem, where = STALE_SOURCE, i
        elif np.uint64(mem.folios[slot].index) & MARK:
            problem, where = OVERLAP, i
        else:
            sources[i] = mem.folios[slot].index
            if n_pages[i] != ONE << (np.uint64(mem.pages[sources[i]].state) & ORDER_BITS):
                problem, where = ORDERS_DIFFER, i
        if problem:
            break
    unmark_folios(mem, handles, handles.size)
    return problem, where


@inlined
def copy_outcome(rule: CopyRule, n_pages: U, page_shift: U, error: U) -> Any:
    """Outcome of one folio whose first poisoned byte lies `error` bytes in (beyond its end: a clean folio).

    Returns status, bytes written, page to report (from the folio's first), calls, resched points, longest stretch.
    """
    size = n_pages << page_shift
    resched = min(rule.unit_pages if rule.unit_pages else n_pages, n_pages) << page_shift
    call = ONE << page_shift if rule.per_page else resched
    if error >= size:
        stretch = ZERO if rule.preemptible else resched
        return COPIED, size, ZERO, (size + call - ONE) // call, (size - ONE) // resched, stretch
    begun = error // call * call  # calls before this one are complete
    written = begun
    status = PANIC
    if rule.recovers:
        reached = (error - begun) // rule.granule * rule.granule
        written += reached - min(reached, rule.lag)
        status = EHWPOISON
    else:
        written = error
    stretch = resched if begun >= resched else written
    if rule.preemptible:
        stretch = ZERO
    return status, written, written >> page_shift, begun // call + ONE, begun // resched, stretch


@inlined
def stream_chunks(contents: Any, targets: Any, sources: Any) -> None:
    """Copy four chunks side by side past the caches.

    One chunk after the other leaves the hardware prefetcher to begin anew at each: 9.4 instead of 11.4 GiB/s.
    """
    step = ZERO
    while step < CHUNK:
        for lane in range(LANES):
            stream_bytes(contents, targets[lane] + step, sources[lane] + step)
        step += STREAM_STEP


@inlined
def stream_folio(contents: Any, target: U, source: U, n_bytes: U, lanes: Any, waiting: int) -> int:
    """Hand a folio's chunks to the lanes, which copy whenever four wait; how many wait then. A rest is copied here."""
    done = ZERO
    while done + CHUNK <= n_bytes:
        lanes[0, waiting], lanes[1, waiting] = target + done, source + done
        done += CHUNK
        waiting += 1
        if waiting == LANES:
            stream_chunks(contents, lanes[0], lanes[1])
            waiting = 0
    if done < n_bytes:
        copy_bytes(contents, target + done, source + done, n_bytes - done)
    return waiting


@inlined
def first_error(mem: Memory, source: U, n_pages: U) -> U:
    """Offset of the first poisoned byte of a folio; its size or more if there is none."""
    bad = first_bad_page(mem, source, source + n_pages)
    error = (bad - source) << mem.params.page_shift
    if bad < source + n_pages:
        error += first_bad_line(mem, bad) << SIX
    return error


@inlined
def move_bytes(mem: Memory, target: U, source: U, n_bytes: U, lanes: Any, waiting: int) -> int:
    """Copy from one row on to another where the memory has contents; how many chunks wait in the lanes then."""
    if mem.contents.shape[0] == 0:
        return 0
    shift = mem.params.page_shift
    if lanes.size:
        return stream_folio(mem.contents, target << shift, source << shift, n_bytes, lanes, waiting)
    copy_bytes(mem.contents, target << shift, source << shift, n_bytes)
    return 0


@inlined
def finish_lanes(mem: Memory, lanes: Any, waiting: int) -> None:
    """Copy the chunks that still wait."""
    for lane in range(waiting):
        copy_bytes(mem.contents, lanes[0, lane], lanes[1, lane], CHUNK)
    if lanes.size:
        stream_fence()


@kernel
def copy_folios(  # noqa: PLR0913 - arrays in, arrays out, one call
    mem: Memory, rule: CopyRule, cpu: U, targets: Any, sources: Any, n_pages: Any, lanes: Any, out: Outcomes
) -> None:
    """Copy folio after folio; `out` gets the outcomes.

    `lanes`: uint64[2, 4] to stream the bytes past the caches, or uint64[2, 0] to copy through them.
    """
    page_shift = mem.params.page_shift
    panicked = False
    waiting = 0
    for i in range(sources.size):
        out.index_queued[i] = -1
        if panicked:
            out.status[i] = NOT_REACHED
            continue
        source, pages = sources[i], n_pages[i]
        error = first_error(mem, source, pages)
        status, written, page, calls, resched, stretch = copy_outcome(rule, pages, page_shift, error)
        waiting = move_bytes(mem, targets[i], source, written, lanes, waiting)
        out.status[i] = status
        out.bytes_not_copied[i] = (pages << page_shift) - written
        out.n_calls[i] = calls
        out.n_resched[i] = resched
        out.longest_stretch_bytes[i] = stretch
        if status == EHWPOISON:
            out.index_queued[i] = source + page
            out.queue_dropped[i] = not queue_failure(mem, cpu, source + page)
        panicked = status == PANIC
    finish_lanes(mem, lanes, waiting)


class Total(IntEnum):
    """Columns of what `count_points` adds up for one point."""

    TRIED = 0  # folios whose copy began
    FAILED = 1
    BYTES_WRITTEN = 2
    CALLS = 3
    RESCHED = 4
    STRETCH_BYTES = 5  # the longest one
    DROPPED = 6  # failures that found the queue full
    PANICKED = 7


TRIED, FAILED, WRITTEN, CALLS, RESCHED, STRETCH, DROPPED, PANICKED = (np.uint64(column) for column in Total)


@inlined
def add_outcome(total: Any, n_folios: np.int64, written: U, calls: U, resched: U, stretch: U) -> None:
    """Add `n_folios` folios of the same outcome to one point's totals."""
    total[TRIED] += n_folios
    total[WRITTEN] += n_folios * np.int64(written)
    total[CALLS] += n_folios * np.int64(calls)
    total[RESCHED] += n_folios * np.int64(resched)
    total[STRETCH] = max(total[STRETCH], np.int64(stretch))


@kernel
def count_points(points: Any, first: Any, folios: Any, errors: Any, totals: Any) -> None:
    """Outcomes of many points, each a row of equal folios copied one after the other, from their errors alone.

    `points`: record array with the fields of CopyRule and n_pages, page_shift, n_folios, drain_folios (the worker
    empties the queue after so many folios). `folios`, `errors`: number and first error (byte offset) of every bad
    folio, ascending; those of point i from first[i] to first[i + 1]. `totals`: int64[points, Total].
    """
    for i in range(points.size):
        point, total = points[i], totals[i]
        rule = CopyRule(
            np.uint64(point.unit_pages),
            np.uint64(point.per_page),
            np.uint64(point.preemptible),
            np.uint64(point.recovers),
            np.uint64(point.granule),
            np.uint64(point.lag),
        )
        pages, page_shift = np.uint64(point.n_pages), np.uint64(point.page_shift)
        n_folios, n_bad, in_queue, drained = np.int64(point.n_folios), 0, 0, np.int64(0)
        for j in range(first[i], first[i + 1]):
            status, written, _, calls, resched, stretch = copy_outcome(rule, pages, page_shift, errors[j])
            add_outcome(total, np.int64(1), written, calls, resched, stretch)
            n_bad += 1
            if status == PANIC:
                total[PANICKED] = 1
                n_folios = np.int64(folios[j]) + 1
                break
            total[FAILED] += 1
            period = np.int64(folios[j]) // np.int64(point.drain_folios)
            if period != drained:
                in_queue, drained = 0, period
            if in_queue == QUEUE_SLOTS:
                total[DROPPED] += 1
            else:
                in_queue += 1
        if n_folios > n_bad:
            _, written, _, calls, resched, stretch = copy_outcome(rule, pages, page_shift, pages << page_shift)
            add_outcome(total, n_folios - n_bad, written, calls, resched, stretch)
