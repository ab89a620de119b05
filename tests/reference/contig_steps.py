"""A drawn machine and its twin that allocate contiguous ranges, with folios that stand in the way."""

import numpy as np

import memmodel as mm
from memmodel.errors import InputError
from memmodel.kernels import contig as kernels
from memmodel.kernels.contig_task import ContigCount
from memmodel.mechanisms.contig import Contig
from memmodel.state.build import with_area
from memmodel.state.layout import NONE, Vmstat
from tests.reference import contig as reference
from tests.reference.allocator_drawn import NO_ORDER, draw_machine
from tests.reference.allocator_pcp import COSTLY_ORDER
from tests.reference.allocator_steps import DifferenceError, Pair, random_steps
from tests.reference.allocator_views import Views
from tests.reference.allocator_zone import CMA, ISOLATE
from tests.reference.tlb import KERNELS, Tlb

POOL = "GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_NOWARN|__GFP_THISNODE|__GFP_RETRY_MAYFAIL"
MARKS = ("locked", "writeback", "dirty", "no_migrate_folio", "inaccessible", "partially_mapped", "orphan", "mlocked")
PLAIN_STEPS = ("alloc", "free", "drain", "drain_lru", "vmstat_update")


class ContigViews(Views):
    """With the counters of migration."""

    def twin_numbers(self):
        numbers = super().twin_numbers()
        for counter, value in self.twin.migrated.items():
            numbers[-1][counter] = value
        return numbers


class ContigPair(Pair):
    """`marks`: {handle: what stands in its folio's way}; `got`: ranges of single pages that nobody else has."""

    def __init__(self, drawn):
        super().__init__(drawn)
        self.twin.migrated = {}
        self.views = ContigViews(drawn, self.mem, self.twin)
        self.marks, self.bad, self.got = {}, set(), []

    def free(self, number, cpu):
        if self.live:
            self.marks.pop(self.live[number % len(self.live)][0], None)
        super().free(number, cpu)

    # -- what stands in the way ----------------------------------------------------------------------------------

    def on_lru(self, pfn):
        return pfn in self.twin.lru or any(pfn in batch for batch in self.twin.lru_state.batches.values())

    def mark(self, number, kind, names, pins):
        """A folio on an LRU list becomes page cache or hugetlb's, or somebody works on it."""
        folios = [(handle, pfn) for handle, pfn in self.live if self.on_lru(pfn) and handle not in self.marks]
        if not folios:
            return
        handle, pfn = folios[number % len(folios)]
        order = self.twin.used[pfn]
        if order < 2:  # of more than two pages, or nothing to be split
            names = [name for name in names if name != "partially_mapped"]
        if kind in ("hugetlb", "pool"):
            if order == 0 or pins or "orphan" in names:
                return
            mm.set_folio(self.mem, handle, mapping="hugetlbfs", mapped_by=[0] if kind == "hugetlb" else [])
            self.twin.lru_state.remove(pfn, order)
            names = [name for name in names if name == "locked"]
        elif kind == "file":
            mm.set_folio(self.mem, handle, mapping="file")
        mm.set_folio(self.mem, handle, pins=pins, **dict.fromkeys(names, True))
        huge = kind in ("hugetlb", "pool")
        self.marks[handle] = {
            **dict.fromkeys(names, True),
            "pins": pins,
            "file": kind != "anon",
            "hugetlb": huge,
            "in_pool": kind == "pool",
        }

    def poison(self, pfn):
        """A latent error; before 6.11 none, for its copy would stop the machine."""
        if self.drawn.kernel != "6.1" and pfn in self.twin.used and pfn not in self.bad:
            mm.inject_poison(self.mem, pfn=pfn, line=1)
            self.bad.add(pfn)

    def pages(self):
        """{pfn: Page}, each with its handle."""
        pages = {}
        for handle, pfn in self.live:
            marks = dict(self.marks.get(handle, {}))
            if not self.on_lru(pfn) and not marks.get("hugetlb"):
                continue
            order = self.twin.used[pfn]
            bad = not self.bad.isdisjoint(range(pfn, pfn + (1 << order)))
            owners = set() if marks.get("in_pool") else {0}
            pages[pfn] = reference.Page(pfn=pfn, order=order, owners=owners, bad=bad, **marks)
            pages[pfn].handle = handle
        return pages

    # -- ranges --------------------------------------------------------------------------------------------------

    def requests_for(self, zone):
        high = "|__GFP_HIGHMEM" if zone.name == "Movable" else ""

        def request(order, pool=False):
            gfp = POOL if pool else reference.LARGE if order else reference.SMALL + high
            return self.request(order, gfp, zone.node)

        return request

    def task(self, zone, cpu, signal_after=None):
        """A task of the twin."""
        self.twin.run_on(cpu)

        def migrator(contig):
            kernel = KERNELS[self.drawn.kernel]
            tlb = Tlb({0: {cpu}}, (), None, kernel)
            batch, thp = 1 << self.drawn.geometry.hpage_pmd_order, self.drawn.geometry.transparent_hugepage
            options = {"pmd_order": self.drawn.geometry.hpage_pmd_order, "thp_migration": thp}
            return reference.ContigMigrator(contig, kernel, tlb, batch=batch, **options)

        requests = self.requests_for(zone)
        return reference.Contig(self.twin, zone, self.pages(), cpu, requests, migrator, signal_after, self.bad)

    def contig(self, zone_number, number, n_pages, cpu, signal_after):
        """alloc_contig_range() somewhere in a zone; a CMA range as one, or as nobody may."""
        zone = self.twin.zones[zone_number]
        start = zone.start_pfn + number % (zone.end_pfn - zone.start_pfn)
        end = min(start + n_pages, zone.end_pfn)
        blocks = range(zone.block_of(start), end, zone.pageblock_nr_pages)
        kinds = {zone.type_of(block) for block in blocks}
        cma = CMA in kinds and kinds <= {CMA, ISOLATE} and number % 7 != 0
        if not all(zone.spans_block(block) for block in blocks) and not self.views.hygiene:
            return
        self.attempt(zone_number, start, end, cma, cpu, signal_after)

    def attempt(self, zone_number, start, end, cma, cpu, signal_after=None):
        contig = Contig(self.mem, zone_number, cpu, cma=cma, fatal_signal=signal_after)
        first = int(self.row(start))
        rows = first, first + end - start
        try:
            contig.refuse(*rows)
        except InputError:
            return None
        task = self.task(self.twin.zones[zone_number], cpu, signal_after)
        before = dict(task.folios)
        errno = contig.attempt(*rows)
        problem = -task.alloc_contig_range(start, end, cma)
        self.same("errno", errno, problem)
        if errno:
            self.same("page", int(self.mem.pfns.pfn(contig.task.counts[ContigCount.WHERE])), task.blame)
        self.same_counts(contig, task)
        self.follow(before, task)
        if errno == 0:
            self.got.append((start, end - start))
        return errno

    def same_counts(self, contig, task):
        names = ("N_ISOLATED_BLOCKS", "N_BATCHES", "N_DROPPED", "N_REPLACED", "N_FREED")
        counted = [int(contig.task.counts[ContigCount[name]]) for name in names]
        self.same("counts", counted, [task.n_blocks, task.n_batches, task.n_dropped, task.n_replaced, task.n_surplus])
        outcome = contig.outcome(0, None)
        self.same("pages moved", (outcome.n_migrated, outcome.n_failed), (task.n_moved, task.n_failed))
        self.count_migrated(task)

    def count_migrated(self, task):
        """/proc/vmstat's: the twin of migration counts pages, and what it says of huge folios is not looked at."""
        counted = {Vmstat.PGMIGRATE_SUCCESS: task.n_moved, Vmstat.PGMIGRATE_FAIL: task.n_failed}
        counted |= dict.fromkeys(
            (Vmstat.THP_MIGRATION_SUCCESS, Vmstat.THP_MIGRATION_FAIL, Vmstat.THP_MIGRATION_SPLIT), 0
        )
        pool = Vmstat.HTLB_BUDDY_ALLOC_SUCCESS, Vmstat.HTLB_BUDDY_ALLOC_FAIL
        for counter in (*pool, *counted):
            value = int(self.mem.state.vmstat[counter])
            if counter in (Vmstat.PGMIGRATE_SUCCESS, Vmstat.PGMIGRATE_FAIL):
                value = self.twin.migrated.get(counter, 0) + counted[counter]
            self.twin.migrated[counter] = value

    def follow(self, before, task):
        """Folios are where the twin says; parts of split ones are folios of their own."""
        moved = {page.handle: (page, pfn) for pfn, page in before.items()}
        where = {id(page): pfn for pfn, page in task.folios.items()}
        self.live = [(handle, where.get(id(moved[handle][0])) if handle in moved else pfn) for handle, pfn in self.live]
        for handle in {handle for handle, pfn in self.live if pfn is None}:
            self.marks.pop(handle, None)
            assert handle not in self.mem.handles(np.arange(self.mem.pfns.n_pages))
        self.live = [(handle, pfn) for handle, pfn in self.live if pfn is not None]
        known = {pfn for _, pfn in self.live}
        for pfn, page in task.folios.items():
            if pfn not in known:
                handle = int(self.mem.handles(self.row(pfn))[0])
                self.live.append((handle, pfn))
                names = [name for name in MARKS if getattr(page, name)]
                self.marks[handle] = {**dict.fromkeys(names, True), "pins": page.pins, "file": page.file}
        handles, pfns = ([pair[n] for pair in self.live] for n in (0, 1))
        if handles:
            self.same("pfns of the folios", self.mem.pfn(handles).tolist(), pfns)
        for page in task.folios.values():  # waiting for it has ended some of it
            for name in ("locked", "writeback", "partially_mapped"):
                if getattr(page, "handle", None) in self.marks and not getattr(page, name):
                    self.marks[page.handle].pop(name, None)

    def give_back(self, number, cpu):
        """A range goes back whole, or its first half now and the rest later."""
        if not self.got:
            return
        start, n_pages = self.got.pop(number % len(self.got))
        n_now = n_pages if number % 3 else max(1, n_pages // 2)
        if n_now < n_pages:
            self.got.append((start + n_now, n_pages - n_now))
        first = self.row(start)
        bad = kernels.free_contig_range(self.mem.state, first, first + np.uint64(n_now), np.uint64(cpu))
        self.same("pages not in use", int(bad), int(NONE))
        task = self.task(self.twin.zone_of(start), cpu)
        task.free_range(start, start + n_now)

    # -- areas ---------------------------------------------------------------------------------------------------

    def reserve(self, zone_number, base, n_pages, per_bit):
        """An area on pageblocks that are CMA already."""
        self.mem.state = with_area(self.mem.state, int(self.row(base)), n_pages, per_bit, zone_number)
        self.area = reference.Area(base, n_pages, per_bit, self.drawn.geometry.features)
        self.twin.migrated |= {Vmstat.CMA_ALLOC_SUCCESS: 0, Vmstat.CMA_ALLOC_FAIL: 0}
        self.area_zone = self.twin.zones[zone_number]

    def cma_alloc(self, n_pages, align_order, cpu, signal_after):
        area, features = mm.cma_areas(self.mem)[0], self.drawn.geometry.features
        try:
            out = mm.cma_alloc(self.mem, area, n_pages, align_order, cpu=cpu, fatal_signal=signal_after)
        except InputError:
            return
        task = self.task(self.area_zone, cpu, signal_after)
        before = dict(task.folios)
        pfn, problem = self.area.alloc(task, n_pages, align_order)
        self.same("pfn and errno", (out.pfn, out.errno), (-1 if pfn is None else pfn, -problem))
        self.same("attempts", out.n_attempts, task.n_attempts)
        if problem and task.blame is not None:
            self.same("page", out.where, task.blame)
        counted = (out.n_isolated_blocks, out.n_batches, out.n_dropped, out.n_replaced, out.n_freed)
        self.same("counts", counted, (task.n_blocks, task.n_batches, task.n_dropped, task.n_replaced, task.n_surplus))
        self.same("pages moved", (out.n_migrated, out.n_failed), (task.n_moved, task.n_failed))
        self.count_migrated(task)
        self.follow(before, task)
        oversized = -(-n_pages >> self.area.per_bit) > len(self.area.taken)
        silent = "cma_oversize_uncounted" in features and "cma_available_count" not in features
        if problem == 0:
            self.twin.migrated[Vmstat.CMA_ALLOC_SUCCESS] += 1
            self.got.append((pfn, n_pages))
        elif not (oversized and silent):
            self.twin.migrated[Vmstat.CMA_ALLOC_FAIL] += 1

    def cma_release(self, number, cpu):
        """All of a range, or first the lower half."""
        if not self.got:
            return
        pfn, n_pages = self.got.pop(number % len(self.got))
        n_now = n_pages if number % 3 or self.area.per_bit else max(1, n_pages // 2)
        if n_now < n_pages:
            self.got.append((pfn + n_now, n_pages - n_now))
        mm.cma_release(self.mem, mm.cma_areas(self.mem)[0], (pfn, n_now), cpu=cpu)
        self.area.release(self.task(self.area_zone, cpu), pfn, n_now)


def drawn_contig_pair(random, kernel, largest_order):
    """A machine whose per-CPU lists hold nothing of more than a pageblock, after a stretch of work."""
    pair = ContigPair(draw_whole(random, kernel, largest_order))
    work(random, pair, random.randrange(150))
    return pair


def draw_whole(random, kernel, largest_order):
    """A drawn machine whose per-CPU lists hold nothing of more than a pageblock."""
    while True:
        drawn = draw_machine(random, kernel, largest_order)
        orders = {COSTLY_ORDER, drawn.thp_order} - {NO_ORDER}
        if drawn.grouped and drawn.geometry.cma and max(orders) <= drawn.geometry.pageblock_order:
            return drawn


def drawn_area_pair(random, kernel, largest_order):
    """A machine with a CMA area, after a stretch of work."""
    while True:
        drawn = draw_whole(random, kernel, largest_order)
        size = 1 << drawn.geometry.pageblock_order
        unit = size if drawn.kernel != "6.1" else 1 << drawn.geometry.max_page_order
        spans = [
            (number, -(-start // unit) * unit, end // unit * unit)
            for number, zone in enumerate(drawn.zones)
            for start, end in zone.span.ranges
        ]
        spans = [(number, start, end) for number, start, end in spans if start < end]
        if spans:
            break
    number, start, end = random.choice(spans)
    n_units = random.randint(1, (end - start) // unit)
    base = start + random.randrange((end - start) // unit - n_units + 1) * unit
    n_pages = n_units * unit
    for block in range(base // size, (base + n_pages) // size):
        drawn.types[block] = CMA
    pair = ContigPair(drawn)
    pair.reserve(number, base, n_pages, random.choice([0, 0, 1, drawn.geometry.pageblock_order]))
    node = drawn.zones[number].span.node
    for _ in range(random.choice([0, n_pages, 3 * n_pages])):  # movable pages come last into the area
        pair.take(("alloc", random.choice([0, 0, 0, 1, 2]), "GFP_HIGHUSER_MOVABLE", node, 0), whole=False)
    work(random, pair, random.randrange(200))
    return pair


def work(random, pair, n_steps):
    """Requests and frees."""
    for step in random_steps(random, pair):
        if n_steps <= 0:
            return
        if step[0] in PLAIN_STEPS:
            pair.take(step, whole=False)
        n_steps -= 1


def obstacles(random, pair, count):
    """Some of what can stand in the way."""
    one_node = len({zone.node for zone in pair.twin.zones}) == 1
    kinds = ["anon", "file", "file", "hugetlb", *["pool"] * one_node]
    for _ in range(count):
        names = random.sample(MARKS, random.choice([0, 0, 1, 1, 2]))
        pair.mark(random.randrange(1 << 20), random.choice(kinds), names, random.choice([0, 0, 0, 1]))
        if pair.live and random.random() < 0.2:
            pair.poison(random.choice(pair.live)[1])


__all__ = ["ContigPair", "DifferenceError", "drawn_area_pair", "drawn_contig_pair", "obstacles", "work"]
