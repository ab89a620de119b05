"""The slow obvious twin of alloc_contig_range() and of a CMA area, on top of the twins of allocator and migration.

Written from what the kernel does (mm/page_alloc.c, mm/page_isolation.c, mm/cma.c of 6.1, 6.12 and 7.3): a page is what
`Owners` finds it to be, folios are `Page` records, errors are (errno, pfn of the page that stood in the way).
"""

from dataclasses import dataclass
from errno import EBUSY, EINTR, ENOMEM

from tests.reference.allocator_isolation import set_block_type, unset_isolate
from tests.reference.allocator_zone import CMA, ISOLATE, MOVABLE
from tests.reference.migration import SYNC, Migrator
from tests.reference.migration_steps import Folio

CLUSTER, TRIES = 32, 5
SMALL = "GFP_USER|__GFP_MOVABLE|__GFP_RETRY_MAYFAIL"
LARGE = "__GFP_IO|__GFP_FS|__GFP_HARDWALL|__GFP_MOVABLE|__GFP_RETRY_MAYFAIL|GFP_TRANSHUGE"


@dataclass(eq=False, kw_only=True)
class Page(Folio):
    """A folio with what decides whether it is dropped."""

    swapbacked: bool = False
    pte_dirty: bool = False
    in_pool: bool = False  # a free hugetlb folio


class Owners:
    """What each page is at this moment: (kind, head, order)."""

    def __init__(self, twin):
        self.pages = {}
        for zone in twin.zones:
            self.put("free", zone.free_orders)
        self.put("used", twin.used)
        self.put("held", twin.isolated)
        for pcp in (pcp for sets in twin.sets.values() for pcp in sets.values()):
            for pindex, pfns in enumerate(pcp.lists):
                self.put("pcp", dict.fromkeys(pfns, pcp.order_of(pindex)))

    def put(self, kind, heads):
        for head, order in heads.items():
            self.pages.update(dict.fromkeys(range(head, head + (1 << order)), (kind, head, order)))

    def of(self, pfn):
        return self.pages.get(pfn, ("reserved", pfn, 0))


class ContigMigrator(Migrator):
    """migrate_pages() whose folios lie in the allocator twin's memory."""

    def __init__(self, contig, kernel, tlb, **options):
        super().__init__(kernel, tlb, contig.take_target, contig.free, cpu=contig.cpu, **options)
        self.contig = contig

    def free_source(self, folio):
        """The target is on the LRU list before the source is free."""
        old, new = folio.pfn, folio.target
        self.contig.folios.pop(old)
        if new is not None:
            self.contig.folios[new] = folio
            if not folio.hugetlb:
                self.contig.twin.lru_state.add(new, folio.order, self.cpu)
        super().free_source(folio)

    def pieces(self, folio):
        head, order = folio.pfn, folio.order
        pieces = super().pieces(folio)
        self.contig.twin.used.update(dict.fromkeys(range(head, head + (1 << order)), 0))
        for piece in pieces:
            piece.bad = piece.pfn in self.contig.bad
            self.contig.folios[piece.pfn] = piece
        return pieces


class Contig:
    """One task on one CPU. `twin` is the allocator, `folios` {pfn: Page} of what is on LRU lists or hugetlb's.

    `bad` are the pfns with a latent error.
    """

    def __init__(self, twin, zone, folios, cpu, requests, migrator, signal_after=None, bad=()):
        self.twin, self.zone, self.folios, self.cpu, self.bad = twin, zone, folios, cpu, bad
        self.requests = requests  # (of single pages, of an order, of a hugetlb folio) -> NodeRequest
        self.migrator = migrator(self)
        self.signal_after = signal_after
        self.blame = None
        self.n_batches = self.n_dropped = self.n_replaced = self.n_surplus = self.n_moved = self.n_failed = 0
        self.n_blocks = self.n_attempts = 0

    @property
    def features(self):
        return self.zone.features

    @property
    def hygiene(self):
        return "freelist_hygiene" in self.features

    # -- the allocator -------------------------------------------------------------------------------------------

    def take(self, request, order):
        pfn = self.twin.alloc_pages(request, self.cpu)
        if pfn is not None:
            self.twin.used[pfn] = order
            self.twin.n_allocated[self.twin.zone_of(pfn).index] += 1 << order
        return pfn

    def take_target(self, order):
        return self.take(self.requests(order), order)

    def free(self, pfn, order):
        assert self.twin.used[pfn] == order
        self.twin.free(pfn, self.cpu)

    # -- the whole -----------------------------------------------------------------------------------------------

    def alloc_contig_range(self, start, end, cma):
        """0 or an errno; `blame` says which page stood in the way."""
        self.twin.run_on(self.cpu)
        self.blame = None
        self.n_attempts += 1
        if not self.isolate(start, end, cma):
            return EBUSY
        for (_, _), pcp in sorted(self.twin.sets[self.zone.node].items(), key=lambda item: item[0][1]):
            if pcp.zone is self.zone:
                pcp.drain_all()
        problem = self.migrate(start, end)
        if problem in (0, EBUSY):
            problem = self.take_range(start, end)
        for block in self.blocks(start, end):
            self.unset(block, cma)
        return problem

    def blocks(self, start, end):
        return range(self.zone.block_of(start), end, self.zone.pageblock_nr_pages)

    # -- isolation -----------------------------------------------------------------------------------------------

    def isolate(self, start, end, cma):
        """First, last, then the middle ascending; whatever has been isolated is undone on failure."""
        blocks = self.blocks(start, end)
        order = [blocks[0], *blocks[:0:-1][:1], *blocks[1:-1]]
        done = []
        for number, block in enumerate(order):
            good = self.set_isolated(block, cma)
            if good:
                done.append(block)
            if good and number == 0:
                good = self.cut_at(blocks[0])
                if good and len(blocks) == 1:
                    good = self.cut_at(blocks[0] + self.zone.pageblock_nr_pages)
            if good and number == 1:
                good = self.cut_at(blocks[-1] + self.zone.pageblock_nr_pages)
                if not good:  # its own first
                    self.unset(done.pop(), cma)
            if not good:
                self.undo_in_order(done, blocks, cma)
                return False
        return True

    def undo_in_order(self, done, blocks, cma):
        """The first and the middle ascending, then the last."""
        for block in sorted(done, key=lambda block: (block == blocks[-1] and len(blocks) > 1, block)):
            self.unset(block, cma)

    def set_isolated(self, block, cma):
        zone, before = self.zone, self.zone.type_of(block)
        if before == ISOLATE or (before == CMA and not cma):
            self.blame = block
            return False
        if before != CMA:
            unmovable = self.first_unmovable(block)
            if unmovable is not None:
                self.blame = unmovable
                return False
        if self.hygiene and not zone.spans_block(block):
            self.blame = block
            return False
        self.change(block, ISOLATE)
        self.n_blocks += 1
        return True

    def first_unmovable(self, block):
        owners = Owners(self.twin)
        movable_zone = self.zone.name == "Movable"
        for pfn in range(block, block + self.zone.pageblock_nr_pages):
            kind, head, _ = owners.of(pfn)
            if kind == "reserved":
                return pfn
            if kind == "used" and not movable_zone and head not in self.twin.lru and not self.is_hugetlb(head):
                return pfn
        return None

    def is_hugetlb(self, head):
        return head in self.folios and self.folios[head].hugetlb

    def change(self, block, migratetype):
        """The type of a pageblock with its free blocks."""
        if self.hygiene:
            set_block_type(self.zone, block, migratetype)
            return
        old = self.zone.type_of(block)
        moved, _ = self.zone.move_freepages_block(block, migratetype)
        self.zone.account(-moved, old)
        self.zone.account(moved, migratetype)
        self.zone.set_type(block, migratetype)

    def unset(self, block, cma):
        zone = self.zone
        if zone.type_of(block) != ISOLATE:
            return
        migratetype = CMA if cma else MOVABLE
        if "isolate_bit" in self.features:
            migratetype = zone.block_types[block]
        if self.hygiene:
            unset_isolate(zone, block, migratetype)
            return
        order = zone.free_orders.get(block, 0)
        buddy = block ^ (1 << order)
        whole = zone.pageblock_order <= order < zone.max_order
        if whole and zone.spans(buddy) and zone.is_free(buddy, order) and zone.type_of(buddy) != ISOLATE:
            zone.remove(block)
            zone.set_type(block, migratetype)
            zone.free_one(block, order, migratetype, to_tail=True)
        else:
            self.change(block, migratetype)

    def cut_at(self, boundary):
        """A compound page in use must not cross the border; before 6.10 a free block is cut there."""
        if not self.zone.spans(boundary) or not self.zone.spans(boundary - 1):
            return True
        kind, head, order = Owners(self.twin).of(boundary)
        if head == boundary:
            return True
        if kind == "used" and not self.is_hugetlb(head):
            self.blame = head
            return False
        if kind == "free" and not self.hygiene:
            self.split_free(head, order, boundary)
        return True

    def split_free(self, head, order, boundary):
        zone = self.zone
        zone.account(-(1 << order), zone.type_of(head))
        zone.remove(head)
        for pfn, end in ((head, boundary), (boundary, head + (1 << order))):
            while pfn < end:
                piece = min((pfn & -pfn).bit_length() - 1 if pfn else order, (end - pfn).bit_length() - 1)
                zone.free_one(pfn, piece, zone.type_of(pfn))
                pfn += 1 << piece

    # -- migration -----------------------------------------------------------------------------------------------

    def migrate(self, start, end):
        lru, size = self.twin.lru_state, self.twin.lru_state.batch_size
        lru.drain_all()
        lru.batch_size = 1
        left, problem = self.move_all(start, end)
        lru.batch_size = size
        for folio in left:
            if not folio.hugetlb:
                lru.add(folio.pfn, folio.order, self.cpu)
        return problem

    def move_all(self, start, end):
        """(folios that did not move, 0 or an errno)."""
        pfn, left, tries = start, [], 0
        while pfn < end or left:
            if self.n_batches == self.signal_after:
                self.blame = pfn
                return left, EINTR
            if left:
                tries += 1
                if tries == TRIES:
                    return left, EBUSY
            else:
                tries = 0
                left, pfn, found = self.isolate_folios(pfn, end)
                if not found:
                    return left, ENOMEM
            left = self.drop_clean(left)
            self.n_batches += 1
            outcome = self.migrator.migrate_pages(left, SYNC, "contig_range")
            self.n_moved += outcome.nr_succeeded
            self.n_failed += outcome.nr_failed
            left = outcome.left
            if outcome.rc == -ENOMEM:
                everything = [*left, *outcome.pieces]
                self.blame = next(folio.pfn for folio in everything if folio.status == -ENOMEM)
                return left, ENOMEM
        return left, 0

    def isolate_folios(self, pfn, end):
        """32 pages or more off the LRU lists, the last first; (folios, where to go on, was there room for hugetlb?)."""
        taken, lru_folios, huge_folios = 0, [], []
        while pfn < end and taken < CLUSTER:
            block_end = min(self.zone.block_of(pfn) + self.zone.pageblock_nr_pages, end)
            while pfn < block_end and taken < CLUSTER:
                folio = self.folios.get(pfn)
                order = max(self.twin.used.get(pfn, 0), self.zone.free_orders.get(pfn, 0))
                if folio is not None and folio.hugetlb and folio.in_pool:
                    if not self.replace(folio):
                        return lru_folios[::-1] + huge_folios, pfn, False
                elif folio is not None and folio.hugetlb:
                    huge_folios.append(folio)
                    taken += folio.n_pages
                elif folio is not None and pfn in self.twin.lru and self.may_isolate(folio):
                    self.twin.lru.difference_update(range(pfn, pfn + folio.n_pages))
                    lru_folios.append(folio)
                    taken += folio.n_pages
                pfn += 1 << order
            pfn = min(pfn, block_end)
        return lru_folios[::-1] + huge_folios, pfn, True

    @staticmethod
    def may_isolate(folio):
        return not (folio.pins and not folio.file) and not folio.inaccessible

    def replace(self, folio):
        """The pool gets another folio for a free one."""
        target = self.take(self.requests(folio.order, pool=True), folio.order)
        if target is None:
            self.blame = folio.pfn
            return False
        self.n_replaced += folio.n_pages
        self.folios[target] = self.folios.pop(folio.pfn)
        self.free(folio.pfn, folio.order)
        folio.pfn = target
        return True

    def drop_clean(self, folios):
        """Clean page cache that nobody uses goes; what of it stays comes first, the last one leading."""
        kept, rest = [], []
        for folio in folios:
            if not folio.file or folio.dirty or folio.swapbacked or folio.mlocked or folio.hugetlb:
                rest.append(folio)
            elif folio.locked or folio.writeback or folio.pte_dirty or folio.pins or folio.orphan:
                kept.append(folio)
            else:
                self.n_dropped += folio.n_pages
                self.folios.pop(folio.pfn)
                self.free(folio.pfn, folio.order)
        return kept[::-1] + rest

    # -- the range -----------------------------------------------------------------------------------------------

    def take_range(self, start, end):
        owners = Owners(self.twin)
        kind, head, _ = owners.of(start)
        first = head if kind == "free" else start
        busy = next((pfn for pfn in range(first, end) if owners.of(pfn)[0] != "free"), None)
        if busy is not None:
            self.blame = busy
            return EBUSY
        pfn = first
        while pfn < end:
            order = self.twin.isolate_free_page(pfn)
            self.twin.used.update(dict.fromkeys(range(pfn, pfn + (1 << order)), 0))
            pfn += 1 << order
        self.n_surplus += start - first + pfn - end
        self.free_range(first, start)
        self.free_range(end, pfn)
        return 0

    def free_range(self, first, end):
        """free_contig_range()."""
        if "contig_free_chunks" not in self.features:
            for pfn in range(first, end):
                self.free(pfn, 0)
            return
        while first < end:
            order = min(self.zone.max_order, (end - first).bit_length() - 1)
            if first:
                order = min(order, (first & -first).bit_length() - 1)
            for pfn in range(first, first + (1 << order)):
                del self.twin.used[pfn]
            self.twin.used[first] = order
            self.free(first, order)
            first += 1 << order


class Area:
    """A CMA area: which of its pages are given out, by bit."""

    def __init__(self, base, n_pages, order_per_bit, features):
        self.base, self.per_bit, self.features = base, order_per_bit, features
        self.taken = [False] * (n_pages >> order_per_bit)

    def alloc(self, contig, n_pages, align_order):
        """(pfn, 0), or (None, an errno). What the attempts are is all in `contig`."""
        counts_left = "cma_available_count" in self.features
        unit, problem = 1 << self.per_bit, EBUSY if counts_left else ENOMEM
        wanted = -(-n_pages // unit)
        step = max(1, (1 << align_order) // unit)
        bit = 0
        while wanted <= len(self.taken):
            if counts_left and n_pages > self.taken.count(False) * unit:
                break
            bit = next((at for at in range(bit, len(self.taken) - wanted + 1) if self.fits(at, wanted, step)), None)
            if bit is None:
                break
            pfn = self.base + bit * unit
            problem = contig.alloc_contig_range(pfn, pfn + n_pages, cma=True)
            if problem == 0:
                self.taken[bit : bit + wanted] = [True] * wanted
                return pfn, 0
            if problem != EBUSY:
                break
            bit += step
        return None, problem

    def fits(self, bit, wanted, step):
        """Aligned by pfn, not within the area, and all clear."""
        aligned = (self.base // (1 << self.per_bit) % step + bit) % step == 0
        return aligned and not any(self.taken[bit : bit + wanted])

    def release(self, contig, pfn, n_pages):
        contig.twin.run_on(contig.cpu)
        contig.free_range(pfn, pfn + n_pages)
        first = (pfn - self.base) >> self.per_bit
        self.taken[first : first - (-n_pages >> self.per_bit)] = [False] * -(-n_pages >> self.per_bit)
