"""The slow obvious twin of the allocator where nothing is kept back: pfns in Python lists, nothing shared with it.

A free list is a list of first pfns, head first. Zones are given, with the ranges of pfns that boot hands out.
Watermarks are 0, per-CPU lists hold nothing, counters are exact, and one CPU allocates, as in the memories of
`tests.reference.views`. The rules are those of 6.12.117, and with hygiene=False those of 6.1.
"""

from typing import NamedTuple

UNMOVABLE, MOVABLE, RECLAIMABLE, HIGHATOMIC, CMA, ISOLATE = range(6)
TYPES = range(6)
# A request that finds its own lists empty looks at these, in this order.
FALLBACKS = {UNMOVABLE: [RECLAIMABLE, MOVABLE], MOVABLE: [RECLAIMABLE, UNMOVABLE], RECLAIMABLE: [UNMOVABLE, MOVABLE]}
ZONES = ["DMA", "DMA32", "Normal", "HighMem", "Movable", "Device"]
RESERVE_RATIO = {"DMA": 256, "DMA32": 256, "Normal": 32}
LRU_BATCH = 31
LARGEST_PCP_ORDER = 3


class Zone(NamedTuple):
    """Span [start, end) of pfns, and the ranges in it that boot frees."""

    node: int
    name: str
    start: int
    end: int
    ranges: list


class Buddy:
    """Free lists, types of the pageblocks, and what is allocated."""

    def __init__(self, zones, max_order, pageblock_order, hygiene=True, block_types=None):
        self.zones = zones
        self.max_order = max_order
        self.pageblock_order = pageblock_order
        self.hygiene = hygiene
        blocks = [pfn >> pageblock_order for zone in zones for pfn in range(zone.start, zone.end)]
        self.block_types = dict.fromkeys(blocks, MOVABLE) | (block_types or {})
        self.lists = {
            (zone, order, migratetype): []
            for zone in range(len(zones))
            for order in range(max_order + 1)
            for migratetype in TYPES
        }
        self.free_blocks = {}  # first pfn -> the key of the list that it is on
        self.used = {}  # first pfn -> order
        self.lru_batch = []  # first pfns of movable folios that are on no LRU list yet
        self.on_lru = set()
        self.one_type = False
        self.poisoned = set()  # PG_hwpoison
        self.lost = set()  # out of the allocator's reach for ever
        self.n_allocated = dict.fromkeys(ZONES, 0)
        self.n_freed = 0
        for zone in zones:
            for start, end in zone.ranges:
                self.free_range(start, end)
        n_managed = sum(end - start for zone in zones for start, end in zone.ranges)
        self.one_type = n_managed < 2**pageblock_order * len(TYPES)  # too small for mobility grouping

    # -- where things are ----------------------------------------------------------------------------------------------

    def zone_of(self, pfn):
        for number, zone in enumerate(self.zones):
            if zone.start <= pfn < zone.end:
                return number
        return None

    def type_of(self, pfn):
        return self.block_types[pfn >> self.pageblock_order]

    def set_types(self, pfn, order, migratetype):
        if self.one_type and migratetype in FALLBACKS:
            migratetype = UNMOVABLE
        for page in range(pfn, pfn + 2**order):
            self.block_types[page >> self.pageblock_order] = migratetype

    def is_free_block(self, pfn, order, zone):
        return pfn in self.free_blocks and self.free_blocks[pfn][:2] == (zone, order)

    def free_pages(self, zone):
        """NR_FREE_PAGES: isolated pages are not counted."""
        return sum(
            len(blocks) * 2**order for (z, order, mt), blocks in self.lists.items() if z == zone and mt != ISOLATE
        )

    def free_cma(self, zone):
        return sum(len(blocks) * 2**order for (z, order, mt), blocks in self.lists.items() if z == zone and mt == CMA)

    def nr_free(self, zone):
        """Free blocks by order, isolated ones too."""
        return [sum(len(self.lists[zone, order, mt]) for mt in TYPES) for order in range(self.max_order + 1)]

    # -- lists ---------------------------------------------------------------------------------------------------------

    def insert(self, pfn, zone, order, migratetype, tail=False):
        blocks = self.lists[zone, order, migratetype]
        blocks.insert(len(blocks) if tail else 0, pfn)
        self.free_blocks[pfn] = (zone, order, migratetype)

    def remove(self, pfn):
        self.lists[self.free_blocks.pop(pfn)].remove(pfn)

    # -- free ----------------------------------------------------------------------------------------------------------

    def merge_likely(self, pfn, order, zone):
        if order >= self.max_order - 1:
            return False
        bigger = pfn - pfn % 2 ** (order + 1)
        neighbour = bigger ^ 2 ** (order + 1)
        return self.is_free_block(neighbour, order + 1, zone)

    def free_one(self, pfn, order, migratetype, to_tail=False):
        zone = self.zone_of(pfn)
        while order < self.max_order:
            buddy = pfn ^ 2**order
            if not self.is_free_block(buddy, order, zone):
                break
            if order >= self.pageblock_order:
                other = self.type_of(buddy)
                if other != migratetype and not (migratetype in FALLBACKS and other in FALLBACKS):
                    break
                if other != migratetype and self.hygiene:
                    self.set_types(buddy, order, migratetype)
            self.remove(buddy)
            pfn = min(pfn, buddy)
            order += 1
        self.insert(pfn, zone, order, migratetype, to_tail or self.merge_likely(pfn, order, zone))

    def free_block(self, pfn, order, to_tail=False):
        """Since 6.10 in pieces of at most a pageblock, each to its own type; before, whole to the first page's."""
        piece = min(order, self.pageblock_order) if self.hygiene else order
        for start in range(pfn, pfn + 2**order, 2**piece):
            self.free_one(start, piece, self.type_of(start), to_tail)

    def free_range(self, start, end):
        """What boot does with a range of free memory: the largest aligned blocks that fit, ascending, to the tail."""
        while start < end:
            order = self.max_order
            while start % 2**order or start + 2**order > end:
                order -= 1
            self.free_block(start, order, to_tail=True)
            start += 2**order

    def free(self, pfn):
        order = self.used.pop(pfn)
        if pfn in self.lru_batch:
            self.drain_lru_batch()
        self.on_lru.discard(pfn)
        if order == 0 and pfn in self.poisoned:
            self.lost.add(pfn)
            return
        self.n_freed += 2**order
        if order <= LARGEST_PCP_ORDER and self.type_of(pfn) != ISOLATE:
            self.free_one(pfn, order, self.type_of(pfn))  # through a per-CPU list: never in pieces
        else:
            self.free_block(pfn, order)

    def drain_lru_batch(self):
        self.on_lru.update(self.lru_batch)
        self.lru_batch.clear()

    # -- allocate ------------------------------------------------------------------------------------------------------

    def zonelist(self, node, highest):
        """The node's own zones from the highest allowed down, then those of the nodes behind it, round to the first."""
        nodes = sorted({zone.node for zone in self.zones})
        at = nodes.index(node)
        allowed = ZONES[: ZONES.index(highest) + 1]
        return [
            number
            for other in nodes[at:] + nodes[:at]
            for name in reversed(allowed)
            for number, zone in enumerate(self.zones)
            if (zone.node, zone.name) == (other, name)
        ]

    def expand(self, pfn, low, high, zone, migratetype):
        for order in range(high - 1, low - 1, -1):
            self.insert(pfn + 2**order, zone, order, migratetype)

    def take_smallest(self, zone, order, migratetype):
        for found in range(order, self.max_order + 1):
            if self.lists[zone, found, migratetype]:
                pfn = self.lists[zone, found, migratetype][0]
                self.remove(pfn)
                self.expand(pfn, order, found, zone, migratetype)
                return pfn
        return None

    def fallback(self, zone, order, migratetype):
        """The first other type that has a block of just that order, or None."""
        return next((other for other in FALLBACKS[migratetype] if self.lists[zone, order, other]), None)

    def claimable(self, order, migratetype):
        return order >= self.pageblock_order // 2 or migratetype != MOVABLE or self.one_type

    def pageblock(self, pfn):
        first = pfn - pfn % 2**self.pageblock_order
        return first, first + 2**self.pageblock_order

    def count_pageblock(self, pfn, first=0):
        """(free pages, pages of folios on an LRU list), from page `first` on."""
        free = movable = 0
        start, end = self.pageblock(pfn)
        for page in range(max(start, first), end):
            for order in range(self.max_order + 1):
                head = page - page % 2**order
                free += head in self.free_blocks and self.free_blocks[head][1] == order
                movable += self.used.get(head) == order and head in self.on_lru
        return free, movable

    def good_enough(self, free, movable, migratetype, other):
        """Whether half of a pageblock is free or of the request's kind."""
        size = 2**self.pageblock_order
        alike = movable if migratetype == MOVABLE else size - free - movable if other == MOVABLE else 0
        return self.one_type or free + alike >= size / 2

    def move_free_blocks(self, start, end, migratetype):
        """To the tails of another type's lists, ascending; pages moved."""
        moved = 0
        for pfn in range(start, end):
            if pfn in self.free_blocks:
                zone, order, _ = self.free_blocks[pfn]
                self.remove(pfn)
                self.insert(pfn, zone, order, migratetype, tail=True)
                moved += 2**order
        return moved

    def claim(self, zone, order, migratetype):
        """Whole pageblocks of a fallback type change hands, by the largest free block first."""
        for found in range(self.max_order, order - 1, -1):
            other = self.fallback(zone, found, migratetype)
            if not self.claimable(found, migratetype):
                return None
            if other is None:
                continue
            pfn = self.lists[zone, found, other][0]
            if found >= self.pageblock_order:
                self.remove(pfn)
                self.set_types(pfn, found, migratetype)
                self.expand(pfn, order, found, zone, migratetype)
                return pfn
            start, end = self.pageblock(pfn)
            whole = self.zones[zone].start <= start and end <= self.zones[zone].end
            if whole and self.good_enough(*self.count_pageblock(pfn), migratetype, other):
                self.move_free_blocks(start, end, migratetype)
                self.set_types(start, self.pageblock_order, migratetype)
                return self.take_smallest(zone, order, migratetype)
        return None

    def steal(self, zone, order, migratetype):
        """The smallest block of a fallback type that will do; its pageblock stays what it is."""
        for found in range(order, self.max_order + 1):
            other = self.fallback(zone, found, migratetype)
            if other is not None:
                pfn = self.lists[zone, found, other][0]
                self.remove(pfn)
                self.expand(pfn, order, found, zone, other)
                return pfn
        return None

    def fallback_61(self, zone, order, migratetype):
        """Before 6.10: the largest block, or all free blocks of its pageblock, go on the request's lists first."""
        sizes = range(order, self.max_order + 1)
        fitting = [size for size in sizes if self.fallback(zone, size, migratetype) is not None]
        if not fitting:
            return None
        found = fitting[-1] if self.claimable(fitting[-1], migratetype) else fitting[0]
        pfn = self.lists[zone, found, self.fallback(zone, found, migratetype)][0]
        moved = 0
        if self.type_of(pfn) != HIGHATOMIC:
            if found >= self.pageblock_order:
                self.set_types(pfn, found, migratetype)
            elif self.claimable(found, migratetype):
                moved = self.claim_61(zone, pfn, migratetype)
        if not moved:
            self.remove(pfn)
            self.insert(pfn, zone, found, migratetype, tail=True)
        return self.take_smallest(zone, order, migratetype)

    def claim_61(self, zone, pfn, migratetype):
        """The free blocks of a pageblock in any case, its type if half of it is free or alike; pages moved."""
        start, end = self.pageblock(pfn)
        if end > self.zones[zone].end:
            return 0
        first = pfn if start < self.zones[zone].start else start
        _, movable = self.count_pageblock(pfn, first)
        moved = self.move_free_blocks(first, end, migratetype)
        if self.good_enough(moved, movable, migratetype, self.type_of(pfn)):
            self.set_types(start, self.pageblock_order, migratetype)
        return moved

    def has_enough(self, zone, order, cma, highest):
        """The watermark of 0: what the request may use, less what is kept from requests that may go higher."""
        at, ratio = self.zones[zone], RESERVE_RATIO.get(self.zones[zone].name)
        higher = ZONES[ZONES.index(at.name) + 1 : ZONES.index(highest) + 1]
        n_higher = sum(
            end - start for z in self.zones if z.node == at.node and z.name in higher for start, end in z.ranges
        )
        usable = [UNMOVABLE, MOVABLE, RECLAIMABLE] + [CMA] * cma
        sizes = range(self.max_order + 1)
        n_usable = sum(len(self.lists[zone, size, mt]) * 2**size for size in sizes for mt in usable)
        enough = n_usable - (2**order - 1) > (n_higher // ratio if ratio else 0)
        return enough and any(self.lists[zone, size, mt] for size in range(order, self.max_order + 1) for mt in usable)

    def rmqueue(self, zone, order, migratetype, cma):
        many_cma = self.free_cma(zone) > self.free_pages(zone) // 2
        types = [CMA] * (cma and many_cma) + [migratetype] + [CMA] * cma
        tries = [lambda mt=mt: self.take_smallest(zone, order, mt) for mt in types]
        last = [self.claim, self.steal] if self.hygiene else [self.fallback_61]
        tries += [lambda find=find: find(zone, order, migratetype) for find in last]
        return next((pfn for pfn in (attempt() for attempt in tries) if pfn is not None), None)

    def alloc(self, order, migratetype, node=0, highest="Movable"):
        movable = migratetype == MOVABLE
        if self.one_type:
            migratetype = UNMOVABLE
        cma = migratetype == MOVABLE
        for zone in self.zonelist(node, highest):
            if not self.has_enough(zone, order, cma, highest):
                continue
            pfn = self.rmqueue(zone, order, migratetype, cma)
            if pfn is not None:
                self.used[pfn] = order
                self.n_allocated[self.zones[zone].name] += 2**order
                if movable:
                    self.lru_batch.append(pfn)
                    if order > 0 or len(self.lru_batch) == LRU_BATCH:
                        self.drain_lru_batch()
                return pfn
        return None

    # -- hardware errors -----------------------------------------------------------------------------------------------

    def fail_used(self, pfn):
        """An error in a page that is not free: user memory is taken from its owner, a large folio is split for that."""
        self.drain_lru_batch()
        sizes = range(self.max_order + 1)
        head = next((pfn - pfn % 2**o for o in sizes if self.used.get(pfn - pfn % 2**o) == o), None)
        if head is None or head not in self.on_lru:
            return
        for part in range(head, head + 2 ** self.used[head]):
            self.used[part] = 0
            self.on_lru.add(part)
        del self.used[pfn]
        self.on_lru.remove(pfn)
        self.lost.add(pfn)

    def take_off(self, pfn):
        """Split the free block around a page; the halves without it go to the head of their lists, largest first."""
        for order in range(self.max_order + 1):
            start = pfn - pfn % 2**order
            if start in self.free_blocks and self.free_blocks[start][1] >= order:
                break
        else:
            return False
        zone, order, _ = self.free_blocks[start]
        migratetype = self.type_of(start)
        self.remove(start)
        while order > 0:
            order -= 1
            low, high = start, start + 2**order
            if pfn < high:
                self.insert(high, zone, order, migratetype)
            else:
                self.insert(low, zone, order, migratetype)
                start = high
        self.lost.add(pfn)
        return True


def procfs(zones, max_order, pageblock_order, counts, blocks, shown):
    """/proc/buddyinfo and /proc/pagetypeinfo from counts[zone][migratetype][order] and blocks[zone][migratetype]."""
    names = ["Unmovable", "Movable", "Reclaimable", "HighAtomic", "CMA", "Isolate"]
    buddyinfo = ""
    for number, zone in enumerate(zones):
        buddyinfo += "Node " + str(zone.node) + ", zone " + zone.name.rjust(8) + " "
        for order in range(max_order + 1):
            buddyinfo += str(sum(counts[number][mt][order] for mt in TYPES)).rjust(6) + " "
        buddyinfo += "\n"
    text = ""
    for node in sorted({zone.node for zone in zones}):  # everything again for each node
        text += "Page block order: " + str(pageblock_order) + "\n"
        text += "Pages per block:  " + str(2**pageblock_order) + "\n\n"
        text += "Free pages count per migrate type at order ".ljust(43) + " "
        text += "".join(str(order).rjust(6) + " " for order in range(max_order + 1)) + "\n"
        here = [number for number, zone in enumerate(zones) if zone.node == node]
        for number in here:
            for mt in shown:
                text += "Node " + str(node).rjust(4) + ", zone " + zones[number].name.rjust(8)
                text += ", type " + names[mt].rjust(12) + " "
                text += "".join(str(counts[number][mt][order]).rjust(6) + " " for order in range(max_order + 1)) + "\n"
        text += "\n" + "Number of blocks type ".ljust(23) + "".join(names[mt].rjust(12) + " " for mt in shown) + "\n"
        for number in here:
            text += "Node " + str(node) + ", zone " + zones[number].name.rjust(8) + " "
            text += "".join(str(blocks[number][mt]).rjust(12) + " " for mt in shown) + "\n"
    return {"buddyinfo": buddyinfo, "pagetypeinfo": text}
