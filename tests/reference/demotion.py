"""The slow obvious twin of memmodel.kernels.demotion: every event of the two threads in the order of time."""

import heapq
from itertools import cycle

KSWAPD, WRITER = 0, 1  # of two events at the same time kswapd's comes first


def run(write_ns, kswapd_ns, direct_ns, free, marks, thp):
    """Totals by name, as `DemotionTotal` has them."""
    lowest, low, high = marks
    next_kswapd, next_direct = cycle(kswapd_ns).__next__, cycle(direct_ns).__next__
    total = dict.fromkeys(("KSWAPD", "DIRECT", "KSWAPD_NS", "STALL_NS", "WAKES"), 0)
    total |= {"FIRST_STALL_NS": -1, "LOWEST_FREE": free}
    events = [(0, WRITER)]
    to_write = list(write_ns)
    busy_since = None
    stalled = False

    while True:
        now, who = heapq.heappop(events)
        if who == KSWAPD:
            free += thp
            total["KSWAPD"] += 1
            total["KSWAPD_NS"] += now - busy_since
            busy_since = None
            if free <= high:
                busy_since = now
                heapq.heappush(events, (now + next_kswapd(), KSWAPD))
            continue
        if stalled:
            free += thp
        elif not to_write:
            break
        elif busy_since is None and not enough(free, low, thp):
            total["WAKES"] += 1
            busy_since = now
            heapq.heappush(events, (now + next_kswapd(), KSWAPD))
        stalled = not enough(free, lowest, thp)
        if stalled:
            if total["FIRST_STALL_NS"] == -1:
                total["FIRST_STALL_NS"] = now
            step = next_direct()
            total["DIRECT"] += 1
            total["STALL_NS"] += step
        else:
            free -= thp
            total["LOWEST_FREE"] = min(total["LOWEST_FREE"], free)
            step = to_write.pop(0)
        heapq.heappush(events, (now + step, WRITER))

    if busy_since is not None:
        total["KSWAPD_NS"] += now - busy_since
    return total | {"END_NS": now}


def enough(free, mark, thp):
    """The watermark check for an order-9 request: of the free pages all but one of its own must stay above the mark."""
    return free - (thp - 1) > mark
