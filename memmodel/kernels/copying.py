"""Machine-check-aware copy of folios: bytes move, calls and resched points are counted.

Rules: mm/util.c folio_mc_copy, include/linux/highmem.h copy_mc_highpage and copy_mc_highpages, arch/x86/lib/copy_mc*.S,
arch/powerpc/lib/copy_mc_64.S. One folio's outcome follows from where its first poisoned line lies, so it is worked out
from that alone; the bytes up to there then move in one piece.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from memmodel.jit import copy_bytes, inlined, kernel, stream_bytes, stream_fence
from memmodel.kernels.freelist import ONE
from memmodel.kernels.poisoning import first_bad_line, first_bad_page, queue_failure
from memmodel.state.layout import Memory

U = np.uint64
ZERO = np.uint64(0)
SIX = np.uint64(6)
STREAM_STEP = np.uint64(256)


class Status(IntEnum):
    """Outcome of one folio's copy."""

    COPIED = 0
    EHWPOISON = -133
    PANIC = 1  # an error that the engine cannot survive: the machine would have stopped here
    NOT_REACHED = 2  # a folio behind a panic


class CopyRule(NamedTuple):
    """How a folio is cut into calls, and what an engine makes of an error; all that one kernel and machine fix."""

    unit_pages: np.uint64  # pages a call of the fast path takes at most; 0: the whole folio
    per_page: np.uint64  # 1: every call takes one page, whatever the unit (no fast path, or the old kernel)
    resched_pages: np.uint64  # cond_resched() stands after this many pages; 0: only behind the folio
    preemptible: np.uint64  # 1: the task can be preempted inside a call, so no stretch is closed to it
    recovers: np.uint64  # 1: an error is survived and reported
    granule: np.uint64  # reported progress is a multiple of this, counted from the call's start
    lag: np.uint64  # bytes by which reported progress trails


COPIED = Status.COPIED.value
EHWPOISON = Status.EHWPOISON.value
PANIC = Status.PANIC.value
NOT_REACHED = Status.NOT_REACHED.value


@inlined
def copy_outcome(rule: CopyRule, n_pages: U, page_shift: U, error: U) -> Any:
    """Outcome of one folio whose first poisoned byte lies `error` bytes in (beyond its end: a clean folio).

    Returns status, bytes written, page to report (from the folio's first), calls, resched points, longest stretch.
    """
    size = n_pages << page_shift
    call_pages = ONE if rule.per_page else (rule.unit_pages if rule.unit_pages else n_pages)
    call = min(call_pages, n_pages) << page_shift
    resched = min(rule.resched_pages if rule.resched_pages else n_pages, n_pages) << page_shift
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
def move_bytes(contents: Any, target: U, source: U, n_bytes: U, stream: bool) -> None:
    """Move bytes of one folio; streamed where the batch would only push the caches out."""
    done = ZERO
    if stream:
        while done + STREAM_STEP <= n_bytes:
            stream_bytes(contents, target + done, source + done)
            done += STREAM_STEP
    if done < n_bytes:
        copy_bytes(contents, target + done, source + done, n_bytes - done)


@kernel
def copy_folios(mem: Memory, rule: CopyRule, cpu: U, targets: Any, sources: Any, n_pages: Any, stream: bool, out: Any):
    """Copy folio after folio; `out` is a record array, an outcome each."""
    page_shift = mem.params.page_shift
    has_contents = mem.contents.shape[0] > 0
    panicked = False
    for i in range(sources.size):
        result = out[i]
        if panicked:
            result.status = NOT_REACHED
            continue
        source, pages = sources[i], n_pages[i]
        bad = first_bad_page(mem, source, source + pages)
        error = (bad - source) << page_shift
        if bad < source + pages:
            error += first_bad_line(mem, bad) << SIX
        status, written, page, calls, resched, stretch = copy_outcome(rule, pages, page_shift, error)
        if has_contents:
            move_bytes(mem.contents, targets[i] << page_shift, source << page_shift, written, stream)
        result.status = status
        result.bytes_not_copied = (pages << page_shift) - written
        result.n_calls = calls
        result.n_resched = resched
        result.longest_stretch_bytes = stretch
        if status == EHWPOISON:
            result.index_queued = np.int64(source + page)
            result.queue_dropped = not queue_failure(mem, cpu, source + page)
        panicked = status == PANIC
    if stream:
        stream_fence()


@kernel
def count_copies(rule: CopyRule, n_pages: U, page_shift: U, errors: Any, totals: Any) -> None:
    """Add up the outcomes of folios of one size, from their first errors alone (no memory needed).

    `errors`: byte offset of the first poisoned line of each bad folio. `totals`: failed folios, bytes written,
    calls, resched points, longest stretch, panics.
    """
    for i in range(errors.size):
        status, written, _, calls, resched, stretch = copy_outcome(rule, n_pages, page_shift, errors[i])
        totals[0] += 1
        totals[1] += np.int64(written)
        totals[2] += np.int64(calls)
        totals[3] += np.int64(resched)
        totals[4] = max(totals[4], np.int64(stretch))
        totals[5] += status == PANIC
