"""Two threads that share a node's free pages: a writer that fills it with THPs, and kswapd that demotes them.

Times are whole nanoseconds, given one by one: nothing here draws or prices.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel

__all__ = ["NEVER", "DemotionTotal", "run_demotion"]

NEVER = np.int64(-1)


class DemotionTotal(IntEnum):
    """Entries of `run_demotion`'s totals."""

    KSWAPD = 0  # THPs that kswapd demoted
    DIRECT = 1  # THPs that the writer demoted, each a stall
    KSWAPD_NS = 2
    STALL_NS = 3
    FIRST_STALL_NS = 4  # when the first stall began; NEVER without one
    END_NS = 5  # when the last THP was written
    WAKES = 6  # of kswapd
    LOWEST_FREE = 7  # pages


KSWAPD, DIRECT, KSWAPD_NS, STALL_NS, FIRST_STALL_NS, END_NS, WAKES, LOWEST_FREE = map(np.uint64, DemotionTotal)


@inlined
def begin_demotion(now: np.int64, kswapd_ns: Any, totals: Any) -> np.int64:
    """When the THP will be demoted that kswapd takes next."""
    step: np.int64 = kswapd_ns[np.uint64(totals[KSWAPD]) % np.uint64(kswapd_ns.size)]
    totals[KSWAPD_NS] += step
    return now + step


@inlined
def work_until(
    now: np.int64, done: np.int64, free: np.int64, high: np.int64, thp: np.int64, kswapd_ns: Any, totals: Any
) -> tuple[np.int64, np.int64]:
    """What kswapd gets done up to `now`: when it ends its next THP (NEVER: it sleeps), and the free pages."""
    while done != NEVER and done <= now:
        totals[KSWAPD] += 1
        free += thp
        done = begin_demotion(done, kswapd_ns, totals) if free <= high else NEVER
    return done, free


@kernel
def run_demotion(
    write_ns: Any, kswapd_ns: Any, direct_ns: Any, free: np.int64, marks: Any, thp: np.int64, totals: Any
) -> None:
    """The writer faults in and writes a THP in each time of `write_ns`; `free` and `marks` (min, low, high) are pages.

    A THP that would leave no more than the low watermark wakes kswapd, which works until more than the high one is
    free. One that would leave no more than min makes the writer demote a THP itself before it goes on: one allocstall.
    The two work at the same time. Times of demotions are used in turn, and again from the start.
    """
    min_mark, low_mark, high = marks[0] + thp - 1, marks[1] + thp - 1, marks[2]
    now, done = np.int64(0), NEVER
    totals[FIRST_STALL_NS], totals[LOWEST_FREE] = NEVER, free
    for step in write_ns:
        done, free = work_until(now, done, free, high, thp, kswapd_ns, totals)
        if done == NEVER and free <= low_mark:
            totals[WAKES] += 1
            done = begin_demotion(now, kswapd_ns, totals)
        while free <= min_mark:
            if totals[FIRST_STALL_NS] == NEVER:
                totals[FIRST_STALL_NS] = now
            stall = direct_ns[np.uint64(totals[DIRECT]) % np.uint64(direct_ns.size)]
            totals[DIRECT] += 1
            totals[STALL_NS] += stall
            now += stall
            done, free = work_until(now, done, free, high, thp, kswapd_ns, totals)
            free += thp
        free -= thp
        totals[LOWEST_FREE] = min(totals[LOWEST_FREE], free)
        now += step
    done, free = work_until(now, done, free, high, thp, kswapd_ns, totals)
    if done != NEVER:  # the THP that it is at does not count, nor does what is left of its time
        totals[KSWAPD_NS] -= done - now
    totals[END_NS] = now
