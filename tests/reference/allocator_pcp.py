"""The slow obvious twin of the per-CPU page lists (struct per_cpu_pages, mm/page_alloc.c of 6.12 and 7.3).

Noted in the zone's `operations`: ("gtp+", pfn, pindex) pushed by a free, ("gtp>", ...) appended by a refill,
("gtp-", ...) allocated, ("gtpd", ...) drained.
"""

from collections import deque
from dataclasses import dataclass, field

from tests.reference.allocator_zone import HIGHATOMIC, MOVABLE

COSTLY_ORDER = 3  # PAGE_ALLOC_COSTLY_ORDER
LOW_ORDER_LISTS = 3 * (COSTLY_ORDER + 1)
N_LISTS = LOW_ORDER_LISTS + 2


def clamp(value, low, high):
    """As the kernel's: where low > high, a value between them becomes high."""
    return high if value >= high else max(value, low)


@dataclass
class PcpSet:
    """One CPU's set of one zone. Counts are base pages."""

    zone: object
    batch: int
    high: int
    high_min: int
    high_max: int
    hpage_pmd_order: int
    scale_max: int = 5  # CONFIG_PCP_BATCH_SCALE_MAX
    large_cache: bool = True  # PCPF_FREE_HIGH_BATCH: the CPU's slice of the last cache holds more than 3 batches
    count: int = 0
    n_refills: int = 0
    alloc_factor: int = 0
    free_count: int = 0
    freed_high_order: bool = False  # PCPF_PREV_FREE_HIGH_ORDER
    lists: list = field(default_factory=lambda: [deque() for _ in range(N_LISTS)])

    def has(self, feature):
        return feature in self.zone.features

    def allowed(self, order):
        return order <= COSTLY_ORDER or order == self.hpage_pmd_order

    def pindex(self, order, migratetype):
        """The list (order_to_pindex); types that have none use MOVABLE's."""
        if migratetype >= HIGHATOMIC:
            migratetype = MOVABLE
        if order > COSTLY_ORDER:
            return LOW_ORDER_LISTS + (migratetype == MOVABLE)
        return 3 * order + migratetype

    def order_of(self, pindex):
        return self.hpage_pmd_order if pindex >= LOW_ORDER_LISTS else pindex // 3

    # -- allocation ----------------------------------------------------------------------------------------------

    def alloc(self, order, migratetype, finder):
        """The head of the list, refilled if it is empty (rmqueue_pcplist, __rmqueue_pcplist); None if nothing came."""
        self.free_count >>= 1
        pindex = self.pindex(order, migratetype)
        pfns = self.lists[pindex]
        if not pfns and not (finder.flags.highatomic and self.has("highatomic_by_buddy")):
            self.n_refills += 1
            self.refill(order, migratetype, finder)
        if not pfns:
            return None
        pfn = pfns.popleft()
        self.count -= 1 << order
        self.zone.note("gtp-", pfn, pindex)
        return pfn

    def refill(self, order, migratetype, finder):
        """Many blocks at once, in the order in which they are found (rmqueue_bulk)."""
        pindex = self.pindex(order, migratetype)
        for _ in range(self.refill_length(order)):
            pfn = finder.find(order, migratetype)
            if pfn is None:
                break
            self.lists[pindex].append(pfn)
            self.count += 1 << order
            self.zone.note("gtp>", pfn, pindex)

    def refill_length(self, order):
        """Blocks that a refill asks for (nr_pcp_alloc): order 0 doubles each time while nothing is freed."""
        high = self.high = clamp(self.high, self.high_min, self.high_max)
        if high < self.batch:
            return 1
        length = self.batch if order else self.batch << self.alloc_factor
        if self.high_min != self.high_max and "BELOW_HIGH" not in self.zone.flags:
            high = self.high = min(high + length, self.high_max)
        if order == 0:
            limit = max(high - self.count - self.batch, self.batch)
            if length <= limit and self.alloc_factor < self.scale_max:
                self.alloc_factor += 1
            length = min(length, limit)
        return max(length >> order, 2) if length > 1 else length

    # -- free ----------------------------------------------------------------------------------------------------

    def free(self, pfn, order, migratetype):
        """Push, then drain if there are too many (free_unref_page_commit); True if it drained."""
        self.alloc_factor >>= 1
        pindex = self.pindex(order, migratetype)
        self.lists[pindex].appendleft(pfn)
        self.count += 1 << order
        self.zone.note("gtp+", pfn, pindex)
        free_high = False
        if 0 < order <= COSTLY_ORDER:
            enough = not self.large_cache or self.count >= self.batch
            many = self.batch + (self.high_min // 2 if self.has("pcp_free_high_half_min") else 0)
            free_high = self.free_count >= many and self.freed_high_order and enough
        self.freed_high_order = 0 < order <= COSTLY_ORDER
        if self.free_count < self.batch << self.scale_max:
            self.free_count += 1 << order
        high = self.drain_mark(free_high)
        if self.count < high:
            return False
        n_pages = self.drain_length(high, free_high)
        self.drain_pieces(n_pages, self.batch if self.has("pcp_free_in_batches") else n_pages, pindex)
        return True

    def drain_mark(self, free_high):
        """The count from which a free drains (nr_pcp_high); it also tunes `high`."""
        high = self.high = clamp(self.high, self.high_min, self.high_max)
        if high == 0:
            return 0
        shrunk = max(high - max(self.free_count, self.batch), self.high_min)
        if free_high:
            self.high = max(high - (self.batch << self.scale_max), self.high_min)
            return 0
        if "RECLAIM_ACTIVE" in self.zone.flags:
            self.high = shrunk
            return min(self.batch << 2, self.high)
        if self.high_min == self.high_max:
            return high
        if "BELOW_HIGH" in self.zone.flags:
            self.high = shrunk
            return max(self.count, self.high_min)
        if self.count >= high:
            needed = self.free_count + self.batch
            if self.high < needed:
                self.high = clamp(needed, self.high_min, self.high_max)
        return high

    def drain_length(self, high, free_high):
        """Pages that it drains (nr_pcp_free)."""
        if free_high:
            return min(self.count, self.batch << self.scale_max)
        if high < self.batch:
            return 1
        return clamp(self.free_count, self.batch, high - self.batch)

    def drain_pieces(self, n_pages, piece, pindex):
        """Every piece starts at `pindex` again; a large block that ends one is not taken off the rest."""
        n_blocks = 0
        while n_pages > 0 and self.count > 0:
            n_blocks += self.drain(min(n_pages, piece), pindex)
            n_pages -= piece
            if self.zone.after_piece:
                self.zone.after_piece(n_blocks)

    def decay(self):
        """What the vmstat worker does now and then: lower `high` and free what is above (decay_pcp_high)."""
        if self.high > self.high_min:
            self.high = max(self.count - (self.batch << self.scale_max), self.high - (self.high >> 3), self.high_min)
        self.drain_pieces(self.count - self.high, self.batch, 0)

    def drain(self, n_pages, pindex):
        """Back to the buddy lists from the tails, one list after the other from `pindex` on (free_pcppages_bulk).

        The number of blocks.
        """
        n_pages, n_blocks = min(n_pages, self.count), 0
        while n_pages > 0:
            while not self.lists[pindex]:
                pindex = (pindex + 1) % N_LISTS
            order = self.order_of(pindex)
            pfn = self.lists[pindex].pop()
            n_pages -= 1 << order
            self.count -= 1 << order
            self.zone.note("gtpd", pfn, pindex)
            self.zone.free_one(pfn, order, self.zone.type_of(pfn))
            n_blocks += 1
        return n_blocks

    def drain_all(self):
        """Everything (drain_pages_zone)."""
        self.drain(self.count, 0)
