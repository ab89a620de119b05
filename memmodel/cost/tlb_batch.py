"""TLB flush batching in migrate_pages(): how many IPIs it saves, and why pages per second rise.

All in units of the old time of a page: the mail gives shares and ratios, no times. Before, a page took ``f`` for its
flush and ``1 - f`` for the rest. Batched, a flush serves N pages and takes ``f / N`` of each; the rest takes k times
as long, since a page is cold when its copy comes: its unmap lies a batch back.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memmodel.cost.published_migration import tlb_table
from memmodel.errors import InputError, one_of

__all__ = [
    "MAIL_CASE",
    "READINGS",
    "TlbBatchGain",
    "TlbMail",
    "pages_per_flush_of",
    "published_tlb_mail",
    "time_without_flushes",
    "tlb_batch_gain",
]

Floats = NDArray[np.float64]

MAIL_CASE = "pmbench and migratepages, 2-socket Intel"
READINGS = ("equal_pages", "equal_time")
"""What "reduces the IPIs by 99.1 % during the test" compares: as many pages moved, or as long a run."""


class TlbBatchGain(NamedTuple):
    """What batching N pages a flush gains; shares of the old time of a page.

    Attributes
    ----------
    ipis_equal_pages, ipis_equal_time
        Share of the flush IPIs that is saved: for the same pages, and over the same time, in which more are moved now.
    page_time
        New time of a page.
    flush, rest
        Its parts.
    pages_per_s
        Gain of the rate: 2.917 is 291.7 % more.
    """

    ipis_equal_pages: Floats
    ipis_equal_time: Floats
    page_time: Floats
    flush: Floats
    rest: Floats
    pages_per_s: Floats


class TlbMail(NamedTuple):
    """The mail's numbers, and what follows from them.

    Attributes
    ----------
    ipis, pages_per_s
        Published: share of the IPIs saved, gain of the rate.
    flush_share
        Of the old time: ptep_clear_flush in migrate_pages, by perf.
    new_flush, new_copy, new_other
        New time of a page by phase, from perf's shares after: unmap and flush, copy, all else.
    bound
        Speed-up if flushes cost nothing and the rest stayed as it was.
    flush_share_alone
        What the old share of the flush would have to be, were it all that changed.
    """

    ipis: float
    pages_per_s: float
    flush_share: float
    new_flush: float
    new_copy: float
    new_other: float
    bound: float
    flush_share_alone: float

    def pages_per_flush(self, reading: str) -> float:
        """Effective batch under one of `READINGS`: 111 and 435 pages."""
        return float(pages_per_flush_of(self.ipis, 1 + self.pages_per_s, reading))

    def rest_growth(self, reading: str) -> float:
        """k: how much dearer the rest of a page became, for the published rate."""
        left = 1 / (1 + self.pages_per_s) - self.flush_share / self.pages_per_flush(reading)
        return left / (1 - self.flush_share)


def published_tlb_mail() -> TlbMail:
    """Huang Ying's batch flushing of migrate_pages(): v6.0-rc5, two sockets, pmbench moved to and fro.

    References
    ----------
    "[RFC 0/6] migrate_pages(): batch TLB flushing", 20220921060616.73086-1-ying.huang@intel.com, and the answer to its
    review; merged as 7e12beb8ca2a ("migrate_pages: batch flushing TLB", 6.3).
    """
    number = {key[1:]: value / 100 for key, value in tlb_table().items() if key[0] == MAIL_CASE}
    gain, saved = number["batched over before", "pages_per_s"], -number["batched over before", "ipis"]
    share = number["before", "ptep_clear_flush"] / number["before", "migrate_pages"]
    page_time = 1 / (1 + gain)
    flush, copy = (number["batched", q] / number["batched", "migrate_pages"] for q in ("unmap_and_flush", "copy"))
    return TlbMail(
        ipis=saved,
        pages_per_s=gain,
        flush_share=share,
        new_flush=flush * page_time,
        new_copy=copy * page_time,
        new_other=(1 - flush - copy) * page_time,
        bound=1 / (1 - share),
        flush_share_alone=(1 - page_time) / saved,
    )


def tlb_batch_gain(pages_per_flush: ArrayLike, flush_share: ArrayLike, rest_growth: ArrayLike = 1.0) -> TlbBatchGain:
    """What a flush for every `pages_per_flush` pages gains over one a page.

    Parameters
    ----------
    pages_per_flush
        N, as counted or as `TlbMail.pages_per_flush` infers it.
    flush_share
        f: share of the flush in the old time of a page.
    rest_growth
        k: what the rest of a page takes now over what it took.

    Raises
    ------
    InputError
        If a flush serves less than one page, the share is not between 0 and 1, or the growth not positive.
    """
    n, f, k = (np.asarray(value, np.float64) for value in (pages_per_flush, flush_share, rest_growth))
    if not np.all(n >= 1):
        raise InputError("pages_per_flush: a flush serves at least one page")
    if not np.all((f >= 0) & (f < 1)):
        raise InputError("flush_share: a share from 0 to less than 1")
    if not np.all((k > 0) & np.isfinite(k)):
        raise InputError("rest_growth: a positive number")
    flush, rest = f / n, (1 - f) * k
    rate = 1 / (flush + rest)
    return TlbBatchGain(*np.broadcast_arrays(1 - 1 / n, 1 - rate / n, 1 / rate, flush, rest, rate - 1))


def pages_per_flush_of(ipis_saved: ArrayLike, rate_ratio: ArrayLike, reading: str) -> Floats:
    """Effective batch N that saves a share of the IPIs, by one of `READINGS`.

    Equal pages: ``1 - 1/N`` are saved. Equal time: ``1 - rate_ratio / N``.

    Raises
    ------
    InputError
        If the reading is unknown, or the share is not between 0 and 1.
    """
    one_of(reading, READINGS, "reading")
    saved = np.asarray(ipis_saved, np.float64)
    if not np.all((saved >= 0) & (saved < 1)):
        raise InputError("ipis_saved: a share from 0 to less than 1")
    ratio = np.asarray(rate_ratio, np.float64) if reading == "equal_time" else 1.0
    return np.asarray(ratio / (1 - saved))


def time_without_flushes(time: ArrayLike, flush_share: ArrayLike, pages_per_flush: ArrayLike = np.inf) -> Floats:
    """What a run takes once a flush serves so many pages, if nothing but the flush changed.

    Raises
    ------
    InputError
        As `tlb_batch_gain`.
    """
    return np.asarray(np.asarray(time, np.float64) * tlb_batch_gain(pages_per_flush, flush_share).page_time)
