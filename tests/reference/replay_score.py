"""What a replay got right: counts, what was given and inferred, each wrong prediction explained, snapshots compared."""

from collections import Counter
from typing import NamedTuple


class Mismatch(NamedTuple):
    line: int  # of the trace
    kind: str
    text: str


class Score:
    def __init__(self):
        self.n_allocations = self.n_failed = self.n_frees = 0
        self.given, self.inferred = Counter(), Counter()
        self.mismatches = []
        self.snapshots = []

    @property
    def differs(self):
        return bool(self.mismatches) or not all(all(equal_parts(snapshot)) for snapshot in self.snapshots)

    def miss(self, event, kind, text):
        self.mismatches.append(Mismatch(event.line, kind, text))

    def summary(self, trace):
        """By the names of the project's replay report."""
        return {
            "events": len(trace.events),
            "lost_events": trace.n_lost,
            "allocations": self.n_allocations,
            "failed_allocations": self.n_failed,
            "frees": self.n_frees,
            "pfn_mismatches": len(self.mismatches),
            "mismatches_by_kind": dict(Counter(mismatch.kind for mismatch in self.mismatches)),
            "given": dict(self.given),
            "inferred": dict(self.inferred),
            "snapshots": self.snapshots,
        }


def equal_parts(snapshot):
    return [value for name, value in snapshot.items() if name.endswith("_equal")]


def place(allocator, pfn, order):
    """Where the twin has a page: text for people."""
    zone = allocator.zone_of(pfn)
    pcp, pindex = find_on_pcp(allocator, pfn, order)
    if pcp:
        pfns = pcp.lists[pindex]
        return f"place {pfns.index(pfn)} of {len(pfns)} on pcp list {pindex}"
    for high in range(zone.max_order + 1):
        head = pfn & -(1 << high)
        if zone.is_free(head, high):
            migratetype = zone.type_of(head)
            blocks = list(zone.list_of(high, migratetype))
            return f"block {head}, place {blocks.index(head)} of {len(blocks)} on free list ({high}, {migratetype})"
    return "not free"


def explain(allocator, request, predicted, actual):
    """Which page the twin would have given, and where it has the one that the kernel took."""
    zone = allocator.zonelist(request)[0]
    heads = {order: zone.head(order, request.migratetype) for order in range(zone.max_order + 1)}
    heads = ", ".join(f"{order}: {pfn}" for order, pfn in heads.items() if pfn is not None)
    where = (
        ""
        if actual is None
        else f" (twin: {place(allocator, actual, request.order)}, {allocator.zone_of(actual).name})"
    )
    return (
        f"order {request.order} type {request.migratetype}: kernel {actual}{where}, twin {predicted}; "
        f"{zone.name}'s heads of that type by order {heads}"
    )


def put_in_step(allocator, predicted, actual, order):
    """The twin's page changes places with the kernel's, so that one miss stays one miss.

    What the twin holds to be allocated stays so.
    """
    pcp, pindex = find_on_pcp(allocator, actual, order)
    if pcp and predicted is not None:
        pcp.lists[pindex][pcp.lists[pindex].index(actual)] = predicted
        return
    if pcp:
        pcp.lists[pindex].remove(actual)
        pcp.count -= 1 << order
    elif actual is not None:
        take_out(allocator.zone_of(actual), actual, order)
    if predicted is not None:
        allocator.zone_of(predicted).free_direct(predicted, order)


def find_on_pcp(allocator, pfn, order):
    """(page set, pindex) of the list that holds the page, or (None, None)."""
    for pcp in allocator.pcp.values():
        for pindex, pfns in enumerate(pcp.lists):
            if pcp.order_of(pindex) == order and pfn in pfns:
                return pcp, pindex
    return None, None


def take_out(zone, pfn, order):
    """Split the free block that holds the page, so that it alone is taken."""
    for high in range(order, zone.max_order + 1):
        head = pfn & -(1 << high)
        if zone.is_free(head, high):
            zone.take_split(head, high)
            for half in reversed(range(order, high)):
                other = (pfn & -(1 << half)) ^ (1 << half)
                zone.free_one(other, half, zone.type_of(other))
            return


def compare_snapshot(state, allocator):
    """A dump against the twin: lists in order, per-CPU lists, types of pageblocks, and the sets' counters."""
    result = dict.fromkeys(["free_lists_equal", "pcp_lists_equal", "pageblocks_equal", "pcp_counters_equal"], True)
    for lists, zone in zip(state.zones, allocator.zones, strict=True):
        real = {key: pfns.tolist() for key, pfns in lists.lists.items()}
        result["free_lists_equal"] &= real == {key: list(pfns) for key, pfns in zone.lists.items() if pfns}
        types = dict(zip(lists.block_pfns.tolist(), lists.block_migratetypes.tolist(), strict=True))
        result["pageblocks_equal"] &= types == zone.block_types
        for dumped in lists.pcp:
            pcp = allocator.pcp[zone.index, dumped.cpu]
            real = {key: pfns.tolist() for key, pfns in dumped.lists.items()}
            result["pcp_lists_equal"] &= real == {i: list(pfns) for i, pfns in enumerate(pcp.lists) if pfns}
            counters = (dumped.count, dumped.high, dumped.free_count)
            result["pcp_counters_equal"] &= counters == (pcp.count, pcp.high, pcp.free_count)
    counters = [(zone.free_pages.value, zone.free_cma_pages.value) for zone in allocator.zones]
    result["free_counters_equal"] = counters == [(lists.free_pages, lists.free_cma_pages) for lists in state.zones]
    boosts = [zone.watermark_boost for zone in allocator.zones]
    result["boosts_equal"] = boosts == [lists.watermark_boost or 0 for lists in state.zones]
    return {"label": state.label, **result}
