"""A drawn machine that a memory and its slow twin compact together, and all that compaction changes or remembers."""

from dataclasses import replace
from itertools import dropwhile

import numpy as np

import memmodel as mm
from memmodel.kernels.compact_control import CompactResult, Said, said_dtype
from memmodel.kernels.compact_hints import reset_isolation_suitable
from memmodel.mechanisms import compaction
from memmodel.mechanisms.compactor import compactor
from memmodel.mechanisms.policies import CompactPriority, CompactRequest
from memmodel.mechanisms.request import requested
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import Alloc, BlockBit, PageFlag, Vmstat, ZoneType
from tests.reference.allocator_drawn import draw_machine
from tests.reference.allocator_steps import Pair
from tests.reference.allocator_views import Views
from tests.reference.compaction_state import Pages
from tests.reference.compaction_state import reset_isolation_suitable as twin_reset
from tests.reference.compaction_tasks import CompactionTask, Compactor
from tests.reference.compaction_zones import events

ROOM = 1 << 14  # for what a call says
HEARD = {
    Said.ISOLATE_MIGRATEPAGES: "isolate_migratepages",
    Said.ISOLATE_FREEPAGES: "isolate_freepages",
    Said.FAST_ISOLATE_FREEPAGES: "fast_isolate_freepages",
}
# Of a failure the twin knows what did not move, not how often it was tried nor how it is counted.
NOT_COUNTED = (
    *(Vmstat.PGMIGRATE_FAIL, Vmstat.THP_MIGRATION_SUCCESS, Vmstat.THP_MIGRATION_FAIL),
    *(Vmstat.THP_MIGRATION_SPLIT, Vmstat.THP_SPLIT_PAGE, Vmstat.THP_SPLIT_PAGE_FAILED),
)
ON_LRU = PageFlag.LRU | PageFlag.LRU_BATCH
MARKS = {
    "shmem": {"mapping": "shmem"},
    "ramfs": {"mapping": "ramfs", "dirty": True, "no_migrate_folio": True},
    "mlocked": {"mlocked": True},
    "pinned": {"pins": 1},
    "hugetlb": {"mapping": "hugetlbfs"},
}


def draw_compactable(random, kernel, largest_order):
    """A machine of any page size; pfn 0 is no zone's, where a position that was never set would be one.

    Most of them have no watermarks, so that most runs come to something.
    """
    drawn = draw_machine(random, kernel, largest_order)
    while drawn.zones[0].span.start == 0:
        drawn = draw_machine(random, kernel, largest_order)
    arch, page_size = random.choice([("x86_64", 4096), ("generic", 4096), ("arm64", 16384), ("arm64", 65536)])
    drawn = replace(drawn, geometry=drawn.geometry.replace(arch=arch, page_size=page_size))
    if random.random() < 0.2:
        return drawn
    zones = [
        replace(zone, watermarks=(0, 0, 0), lowmem_reserve=tuple(0 for _ in zone.lowmem_reserve))
        for zone in drawn.zones
    ]
    return replace(drawn, zones=tuple(zones))


class CompactionViews(Views):
    """With what compaction remembers of each zone, and its counters."""

    def __init__(self, drawn, mem, twin, compactor):
        super().__init__(drawn, mem, twin)
        self.compactor = compactor
        self.counted = dict.fromkeys(Vmstat, 0)

    def twin_numbers(self):
        *numbers, vmstat = super().twin_numbers()
        for counter, number in self.counted.items():
            vmstat[counter] += number
        for counter in NOT_COUNTED:
            vmstat[counter] = int(self.mem.state.vmstat[counter])
        return [*numbers, vmstat]

    def memory_state(self):
        state = self.mem.state
        found = super().memory_state() | {
            ("compaction", number): self.remembered(number) for number in range(state.zones.size)
        }
        skipped = np.flatnonzero(state.blocks["bits"] & BlockBit.SKIP) << int(state.params.pageblock_order)
        return found | {"skip": self.mem.pfns.pfn(skipped).tolist()}

    def remembered(self, number):
        zone = self.mem.state.zones.view(np.ndarray)[number]
        rows = (zone["cached_free"], *zone["cached_migrate"], zone["init_migrate"], zone["init_free"])
        counts = zone["compact_considered"], zone["compact_defer_shift"], zone["compact_order_failed"]
        pfns = self.within(number, [self.pfn(number, int(row)) for row in rows])
        return (*pfns, *map(int, counts), bool(zone["blockskip_flush"]))

    def twin_state(self):
        found = super().twin_state()
        for number, zone in enumerate(self.twin.zones):
            memory = self.compactor.memory_of(zone)
            pfns = memory.cached_free, *memory.cached_migrate, memory.init_migrate, memory.init_free
            pfns = self.within(number, pfns)
            counts = memory.considered, memory.defer_shift, memory.order_failed
            found["compaction", number] = (*pfns, *counts, memory.blockskip_flush)
        skip = next(iter(self.compactor.memory.values())).skip
        return found | {"skip": sorted(skip)}

    def within(self, number, pfns):
        """Positions below the zone are all the same: a scan does not begin there."""
        start = self.twin.zones[number].start_pfn
        return tuple(pfn if pfn >= start else None for pfn in pfns)

    def pfn(self, number, row):
        """Of a row that may lie outside the zone, by the zone's distance between rows and pfns."""
        start = int(self.mem.state.zones["start"][number])
        return row - start + int(self.mem.pfns.pfn([start])[0])


class CompactionPair(Pair):
    """`live` follows the folios to where they are moved."""

    def __init__(self, drawn):
        super().__init__(drawn)
        self.pages = Pages(self.twin.lru_state, moves=[])
        self.compactor = Compactor(self.twin, self.pages)
        self.compactor.hpage_pmd_order = drawn.geometry.hpage_pmd_order
        self.views = CompactionViews(drawn, self.mem, self.twin, self.compactor)
        self.said = []
        for cpu in range(drawn.n_cpus):
            task = compactor(self.mem, np.uint64(cpu))
            compact = task.compact._replace(said=np.zeros(ROOM, said_dtype).view(np.recarray))
            self.mem.requests["compactor", cpu] = task._replace(compact=compact, job=task.job._replace(compact=compact))

    # -- the folios ------------------------------------------------------------------------------------------------

    def alloc(self, order, gfp, node, cpu):
        n_live = len(self.live)
        super().alloc(order, gfp, node, cpu)
        if len(self.live) > n_live:
            self.note(self.live[-1][1])

    def adopt(self, row, order, pfn):
        super().adopt(row, order, pfn)
        self.note(pfn)

    def note(self, pfn):
        """What the twin knows of a new folio: anonymous memory if it is for the LRU lists."""
        self.pages.make_compound(pfn, self.twin.used[pfn])
        if self.mem.state.pages["pg_flags"][self.row(pfn)] & ON_LRU:
            self.pages.anon.add(pfn)

    def free(self, number, cpu):
        if self.live:
            pfn = self.live[number % len(self.live)][1]
            order = self.twin.used[pfn]
            super().free(number, cpu)
            self.pages.forget(pfn, order)

    def fill(self, n_pages, gfp, node, cpu):
        """So many single pages, or as many as there are."""
        request = self.request(0, gfp, node)
        if not self.twin.zonelist(request):
            return
        handles = mm.alloc_pages(self.mem, 0, n_pages, node=node, cpu=cpu, gfp=gfp)
        handles = handles[handles >= 0].tolist()
        pfns = [self.twin.alloc(request, cpu) for _ in handles]
        if len(handles) < n_pages:  # the first failure is the last attempt
            self.same("pfn", None, self.twin.alloc(request, cpu))
        self.same("pfns", self.mem.pfn(handles).tolist(), pfns)
        for handle, pfn in zip(handles, pfns, strict=True):
            self.live.append((handle, pfn))
            self.note(pfn)

    def thin(self, one_in, first, cpu):
        """Free one in so many of the folios."""
        for number in range(len(self.live) - 1 - first, -1, -one_in):
            self.free(number, cpu)

    def mark(self, number, kind):
        """What a folio of an LRU list is, beside anonymous memory."""
        handle, pfn = self.live[number % len(self.live)]
        if not self.mem.state.pages["pg_flags"][self.row(pfn)] & ON_LRU:
            return
        mm.set_folio(self.mem, [handle], **MARKS[kind])
        sets = {"ramfs": "fixed", "mlocked": "mlocked", "pinned": "pinned", "hugetlb": "hugetlb"}
        if kind in ("shmem", "ramfs", "hugetlb"):
            for name in ("anon", "fixed", "hugetlb", "mlocked"):  # a mapping sets all marks
                getattr(self.pages, name).discard(pfn)
        if kind in sets:
            getattr(self.pages, sets[kind]).add(pfn)
        if kind == "hugetlb":
            self.twin.lru_state.remove(pfn, self.twin.used[pfn])

    # -- compaction ------------------------------------------------------------------------------------------------

    def direct(self, order, gfp, node, cpu, priority):
        request = self.request(order, gfp, node)
        if not self.twin.zonelist(request):
            return
        zones, wanted = requested(self.mem, parse_gfp(gfp), order, node, True)
        answer = compaction.try_to_compact_pages(
            self.mem,
            CompactRequest(
                *(zones, order, parse_gfp(gfp), cpu, int(wanted.migratetype), CompactPriority(priority)),
                *(Alloc(int(wanted.slow)), ZoneType(int(wanted.highest))),
            ),
        )
        task = CompactionTask(self.compactor, cpu)
        found, status = events(task.direct(request, priority))
        self.same("result", answer.result.name.lower(), status.text)
        captured = None if answer.captured is None else int(self.mem.pfns.pfn([answer.captured])[0])
        self.same("captured", captured, task.captured)
        self.settle(found, cpu)
        if captured is not None:
            self.twin.used[captured] = order
            self.adopt(answer.captured, order, captured)

    def kcompactd(self, order, zone_type, node, cpu):
        out = compaction.run_kcompactd(self.mem, node, order=order, highest=zone_type.label, cpu=cpu)
        highest = max(self.types_of(node, zone_type), default=0)
        task = CompactionTask(self.compactor, cpu)
        found, _ = events(task.kcompactd(order, highest, node))
        scanned = self.settle(found, cpu)
        counted = self.views.counted
        counted[Vmstat.COMPACT_DAEMON_WAKE] += 1
        counted[Vmstat.COMPACT_DAEMON_MIGRATE_SCANNED] += scanned[0]
        counted[Vmstat.COMPACT_DAEMON_FREE_SCANNED] += scanned[1]
        ends = [event[-1] for event in found if event[0] == "end"]
        self.same("results", [result.name.lower() for result in out.results.values()], ends)

    def types_of(self, node, zone_type):
        """Zone indices of the twin up to a type."""
        known = zip(self.mem.state.zones["zone_type"].tolist(), self.twin.zones, strict=True)
        return [zone.index for kind, zone in known if zone.node == node and kind <= zone_type]

    def compact_memory(self, cpu):
        out = compaction.compact_memory(self.mem, cpu=cpu)
        found, _ = events(CompactionTask(self.compactor, cpu).compact_memory())
        self.settle_all(out, found, cpu)

    def proactive(self, node, level, cpu):
        out = compaction.run_proactive_compaction(self.mem, node, proactiveness=level, cpu=cpu)
        self.compactor.proactiveness = level
        zones = self.mem.state.zones
        present = {
            zone.index: int(zones["present"][number])
            for number, zone in enumerate(self.twin.zones)
            if zone.node == node
        }
        due = self.compactor.is_due(present, node)
        self.same("due", bool(out.results), due)
        if due:
            found, _ = events(CompactionTask(self.compactor, cpu).proactive(node))
            self.settle_all(out, found, cpu)

    def settle_all(self, out, found, cpu):
        """Of calls with a run a zone: each has its own account, of which the last is left."""
        ends = [event[-1] for event in found if event[0] == "end"]
        self.same("results", [result.name.lower() for result in out.results.values()], ends)
        self.settle(found, cpu, last=True)

    def kswapd_sleeps(self, node):
        """Hints are taken back."""
        reset_isolation_suitable(self.mem.state, np.uint64(node))
        for zone in self.twin.zones:
            if zone.node == node:
                twin_reset(zone, self.compactor.memory_of(zone), self.pages)

    def flush(self, zone):
        """As if a direct compaction had gone through the zone."""
        self.mem.state.zones[zone]["blockskip_flush"] = 1
        self.compactor.memory_of(self.twin.zones[zone]).blockskip_flush = True

    # -- what it did -----------------------------------------------------------------------------------------------

    def settle(self, found, cpu, last=False):
        """Its account and counts, and the folios where they are now; pages that both scanners looked at."""
        zones = {(zone.start_pfn, zone.end_pfn): number for number, zone in enumerate(self.twin.zones)}
        begun = [zones[event[1], event[4]] for event in found if event[0] == "begin"]
        self.said = self.account(cpu, begun[-1] if begun else 0)
        self.same_account(list(self.heard(found, last)))
        counted, twin = self.views.counted, self.twin
        scanned = self.scanned(found, "isolate_migratepages", 3) + self.compactor.take_searched()
        free_scanned = sum(self.scanned(found, name, 3) for name in ("isolate_freepages", "fast_isolate_freepages"))
        counted[Vmstat.COMPACT_MIGRATE_SCANNED] += scanned
        counted[Vmstat.COMPACT_FREE_SCANNED] += free_scanned
        counted[Vmstat.COMPACT_ISOLATED] += sum(self.scanned(found, name, 4) for name in HEARD.values())
        released = sum(1 << event[2] for event in found if event[0] == "released")
        moved = sum(1 << order for _, target, order in self.pages.moves if target is not None)
        counted[Vmstat.PGMIGRATE_SUCCESS] += moved
        twin.n_freed += released + moved
        self.follow()
        return scanned, free_scanned

    @staticmethod
    def scanned(found, name, place):
        return sum(event[place] for event in found if event[0] == name)

    def follow(self):
        """The folios to where they are; a split one is as many as it has pages."""
        handles = {pfn: handle for handle, pfn in self.live}
        used = self.twin.used
        for source, target, order in self.pages.moves:
            self.same("order", used.pop(source), order)
            if target is None:
                parts = range(source, source + (1 << order))
                used.update(dict.fromkeys(parts, 0))
                handles.update(dict.fromkeys(parts[1:]))
            else:
                used[target] = order
                handles[target] = handles.pop(source)
        self.pages.moves.clear()
        new = [pfn for pfn, handle in handles.items() if handle is None]
        handles.update(zip(new, self.mem.handles(self.mem.index(new)).tolist(), strict=True))
        self.live = [(handle, pfn) for pfn, handle in handles.items()]
        pfns = self.mem.pfn([handle for handle, _ in self.live]).tolist()
        self.same("folios", pfns, [pfn for _, pfn in self.live])

    def account(self, cpu, zone):
        """What the kernels said, in the twin's words; what comes before a zone is named is said of `zone`."""
        compact = self.mem.requests["compactor", cpu].compact
        n_said = int(compact.control["n_said"][0])
        assert n_said <= ROOM
        told = []
        for said in compact.said.view(np.ndarray)[:n_said].tolist():
            what, (a, b, third, fourth) = said
            if what in (Said.SUITABLE, Said.FINISHED):
                zone = a
                name = "suitable" if what == Said.SUITABLE else "finished"
                told.append((name, CompactResult(third).name.lower()))
            elif what == Said.BEGIN:
                told.append(("begin", self.views.pfn(zone, a), self.views.pfn(zone, b)))
            elif what in HEARD:
                told.append((HEARD[what], self.views.pfn(zone, a), self.views.pfn(zone, b), third, fourth))
            elif what == Said.ISOLATED:
                told.append(("isolated", self.views.pfn(zone, a), b))
            else:
                which = "first" if what == Said.ROTATED_FIRST else "last"
                assert what in (Said.ROTATED_FIRST, Said.ROTATED_LAST)
                told.append(("rotated", self.views.pfn(zone, a), b, which))
        return told

    @staticmethod
    def heard(found, last):
        """Those of the twin's events that the kernels tell, of all runs or of the last one."""
        if last:
            n_begun = sum(event[0] == "begin" for event in found)
            seen = 0

            def before(event):
                nonlocal seen
                seen += event[0] == "begin"
                return seen < n_begun

            found = list(dropwhile(before, found))
        for event in found:
            if event[0] == "begin":
                yield event[0], event[2], event[3]
            elif event[0] in ("suitable", "finished", "isolated", "rotated", *HEARD.values()):
                yield event

    def same_account(self, heard):
        for number, (said, event) in enumerate(zip(self.said, heard, strict=False)):
            self.same(f"event {number} of the run, after {heard[max(0, number - 3) : number]}", said, event)
        self.same("events", self.said[len(heard) :], heard[len(self.said) :])
