"""What happens to a machine: steps that a memory and its slow twin take together, and random ones."""

import numpy as np

import memmodel as mm
from memmodel.jit import kernel
from memmodel.kernels.buddy import USED
from memmodel.kernels.folios import new_folio
from memmodel.kernels.freelist import ONE, fold_difference
from memmodel.kernels.isolation import isolate_free_page, isolate_range, undo_isolation
from memmodel.kernels.lru import drain_lru_batch
from memmodel.kernels.page_alloc import unreserve_highatomic
from memmodel.kernels.pcp import drain_all_pcp, refresh_cpu_vm_stats
from memmodel.mechanisms.request import highest_zone
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import NONE, NR_ORDERS, ZoneFlag
from tests.reference import allocator_isolation as twin_isolation
from tests.reference.allocator_drawn import NO_ORDER
from tests.reference.allocator_nodes import NodeRequest
from tests.reference.allocator_pcp import COSTLY_ORDER
from tests.reference.allocator_views import Views, build_memory, build_twin
from tests.reference.allocator_zone import CMA, HIGHATOMIC, ISOLATE, MOVABLE, RECLAIMABLE, UNMOVABLE

GFP = (
    *("GFP_HIGHUSER_MOVABLE", "GFP_HIGHUSER_MOVABLE|__GFP_COMP", "GFP_KERNEL", "GFP_KERNEL|__GFP_RECLAIMABLE") * 3,
    *("GFP_HIGHUSER|__GFP_COMP", "GFP_USER|__GFP_MOVABLE", "GFP_TRANSHUGE", "GFP_TRANSHUGE_LIGHT"),
    *("GFP_ATOMIC", "GFP_ATOMIC|__GFP_RECLAIMABLE", "GFP_ATOMIC|__GFP_HIGHMEM|__GFP_MOVABLE"),
    *("GFP_ATOMIC|__GFP_NOMEMALLOC", "GFP_KERNEL|__GFP_HIGH", "GFP_NOWAIT", "GFP_NOWAIT|__GFP_MOVABLE", "none"),
    *("GFP_KERNEL|__GFP_MEMALLOC", "GFP_ATOMIC|__GFP_MEMALLOC", "GFP_HIGHUSER_MOVABLE|__GFP_MEMALLOC"),
    *("GFP_KERNEL|GFP_DMA", "GFP_KERNEL|GFP_DMA32", "GFP_ATOMIC|GFP_DMA", "GFP_KERNEL|GFP_DMA32|__GFP_MOVABLE"),
)


@kernel
def drain_set(mem, zone, cpu):
    drain_all_pcp(mem, zone, cpu, cpu)


@kernel
def fold(mem, zone, cpu):
    fold_difference(mem, zone, cpu)


@kernel
def drain_lru(mem, cpu):
    drain_lru_batch(mem, cpu)


@kernel
def isolate_free(mem, index, cpu):
    return isolate_free_page(mem, index, cpu)


@kernel
def become_folio(mem, index, order):
    """A page that the allocator let go of is used from here on; its handle."""
    mem.pages[index].state = USED | order
    mem.pages[index].refcount = ONE
    return new_folio(mem, index)


class DifferenceError(AssertionError):
    """Memory and twin are no longer equal."""


class Pair:
    """`live`: (handle, first pfn) of each folio in use."""

    def __init__(self, drawn):
        self.drawn = drawn
        self.mem, self.twin = build_memory(drawn), build_twin(drawn)
        self.views = Views(drawn, self.mem, self.twin)
        self.live = []
        self.ranges = []  # isolated: (zone, start, end, migratetype of before)
        self.steps = []
        self.requests = {}

    def take(self, step, *, whole):
        """One step on both sides, and a comparison: of everything, or of what is quickly looked at."""
        self.steps.append(step)
        getattr(self, step[0])(*step[1:])
        found = self.views.difference() if whole else self.views.difference_of_numbers()
        if found:
            raise DifferenceError(found)

    def same(self, what, memory, twin):
        if memory != twin:
            raise DifferenceError(f"{what}: {memory}, the twin {twin}")

    def request(self, order, gfp, node):
        key = order, gfp, node
        if key not in self.requests:
            self.requests[key] = NodeRequest.of(order, gfp, node, self.drawn.grouped, self.twin.config_dma32)
        return self.requests[key]

    # -- steps ---------------------------------------------------------------------------------------------------

    def alloc(self, order, gfp, node, cpu):
        """A request that may use no zone of this machine is left out."""
        request = self.request(order, gfp, node)
        if not self.twin.zonelist(request):
            return
        handle = int(mm.alloc_pages(self.mem, order, node=node, cpu=cpu, gfp=gfp)[0])
        got = None if handle == -1 else int(self.mem.pfn(handle)[0])
        pfn = self.twin.alloc(request, cpu)
        self.same("pfn", got, pfn)
        if pfn is not None:
            self.live.append((handle, pfn))

    def free(self, number, cpu):
        """`number` says which of the live folios, -1 the newest."""
        if self.live:
            place = number % len(self.live)
            self.live[place], self.live[-1] = self.live[-1], self.live[place]
            handle, pfn = self.live.pop()
            mm.free_pages(self.mem, handle, cpu=cpu)
            self.twin.free(pfn, cpu)

    def drain(self, zone, cpu):
        drain_set(self.mem.state, np.uint64(zone), np.uint64(cpu))
        self.twin.drain_set(self.twin.zones[zone], cpu)

    def capture(self, zone, cpu, order, migratetype):
        """A drain while a task's compaction waits for a page."""
        record = self.mem.state.zones[zone]
        record["capture_order"], record["capture_type"] = order, migratetype
        drain_set(self.mem.state, np.uint64(zone), np.uint64(cpu))
        row, record["captured"], record["capture_order"] = int(record["captured"]), NONE, NR_ORDERS
        pfn = self.twin.drain_set(self.twin.zones[zone], cpu, (order, migratetype))
        self.same("captured", None if row == NONE else int(self.mem.pfns.pfn([row])[0]), pfn)
        if pfn is not None:
            self.adopt(row, order, pfn)

    def adopt(self, row, order, pfn):
        self.mem.reserve_folios(1)
        self.live.append((int(become_folio(self.mem.state, np.uint64(row), np.uint64(order))), pfn))

    def fold(self, zone, cpu):
        fold(self.mem.state, np.uint64(zone), np.uint64(cpu))
        self.twin.zones[zone].free_pages.fold(cpu)
        self.twin.zones[zone].free_cma_pages.fold(cpu)

    def return_boost(self, zone, n_pages):
        """The end of a run of kswapd."""
        record, zone = self.mem.state.zones[zone], self.twin.zones[zone]
        zone.watermark_boost -= min(n_pages, zone.watermark_boost)
        record["watermark_boost"] -= min(n_pages, int(record["watermark_boost"]))

    def reclaim(self, node, active):
        """kswapd begins, or ends, to balance a node."""
        for number, zone in enumerate(self.twin.zones):
            if zone.node == node:
                (zone.flags.add if active else zone.flags.discard)("RECLAIM_ACTIVE")
                record = self.mem.state.zones[number]
                kept = int(record["flags"]) & ~ZoneFlag.RECLAIM_ACTIVE
                record["flags"] = kept | (ZoneFlag.RECLAIM_ACTIVE if active else 0)

    def drain_lru(self, cpu):
        drain_lru(self.mem.state, np.uint64(cpu))
        self.twin.lru_state.drain(cpu)

    def unreserve(self, gfp, node, cpu):
        request = self.request(0, gfp, node)
        zonelist = self.mem.zonelist(node, highest_zone(self.mem.geometry, parse_gfp(gfp)))
        done = unreserve_highatomic(self.mem.state, zonelist, np.uint64(cpu), np.uint64(request.migratetype), False)
        self.same("unreserved", bool(done), self.twin.unreserve(request, cpu))

    def vmstat_update(self, cpu):
        refresh_cpu_vm_stats(self.mem.state, np.uint64(cpu))
        self.twin.vmstat_update(cpu)

    def row(self, pfn):
        return np.uint64(self.mem.index(pfn))

    def isolate_block(self, zone, number, cpu):
        """Compaction takes a free block."""
        pfns = sorted(self.twin.zones[zone].free_orders)
        if pfns:
            pfn = pfns[number % len(pfns)]
            self.twin.run_on(cpu)
            order = self.twin.isolate_free_page(pfn)
            self.same("order", int(isolate_free(self.mem.state, self.row(pfn), np.uint64(cpu))), order)
            self.twin.isolated[pfn] = order

    def use_isolated(self, number):
        """What it took is a folio from here on."""
        if self.twin.isolated:
            pfn = sorted(self.twin.isolated)[number % len(self.twin.isolated)]
            order = self.twin.used[pfn] = self.twin.isolated.pop(pfn)
            self.adopt(self.row(pfn), order, pfn)

    def isolate_range(self, zone, number, n_blocks, cpu):
        """Pageblocks of one type, for cma_alloc.

        Not where a page of a per-CPU list may hold several: it goes back whole, with types mixed inside.
        """
        twin = self.twin.zones[zone]
        size = twin.pageblock_nr_pages
        on_lists = {COSTLY_ORDER, self.drawn.thp_order} - {NO_ORDER}
        start = -(-twin.start_pfn // size) * size
        start += number % max(1, (twin.end_pfn - start) // size) * size
        end = start + n_blocks * size
        if end > twin.end_pfn or not self.views.hygiene or max(on_lists) > twin.pageblock_order:
            return
        kinds = {twin.type_of(block) for block in range(start, end, size)}
        # With isolate_bit the undo writes what it is told in place of showing what is below the bit.
        others = {UNMOVABLE, RECLAIMABLE} if "isolate_bit" in twin.features else set()
        if others and not self.drawn.grouped:
            return
        if len(kinds) == 1 and not kinds & {HIGHATOMIC, ISOLATE, *others}:
            numbers = [np.uint64(n) for n in (zone, cpu, self.row(start), self.row(end - 1) + ONE)]
            isolate_range(self.mem.state, *numbers)
            self.twin.run_on(cpu)
            twin_isolation.isolate_range(twin, start, end)
            self.ranges.append((zone, start, end, CMA if CMA in kinds else MOVABLE))

    def undo_isolation(self, number, cpu):
        if self.ranges:
            zone, start, end, migratetype = self.ranges.pop(number % len(self.ranges))
            rows = self.row(start), self.row(end - 1) + ONE
            undo_isolation(self.mem.state, *(np.uint64(n) for n in (zone, cpu, *rows, migratetype)))
            self.twin.run_on(cpu)
            twin_isolation.undo_isolation(self.twin.zones[zone], start, end, migratetype)


# -- random steps ----------------------------------------------------------------------------------------------------


def random_steps(random, pair):
    """Without end: phases that fill the machine and phases that empty it, with everything else now and then."""
    drawn = pair.drawn
    max_order, zones, cpus = drawn.geometry.max_page_order, range(len(drawn.zones)), range(drawn.n_cpus)
    nodes = sorted({zone.span.node for zone in drawn.zones})

    def order():
        if random.random() < 0.1:
            return min(drawn.thp_order, max_order)
        return int(random.random() ** 3 * (max_order + 0.999))

    def other():
        zone, cpu = random.choice(zones), random.choice(cpus)
        boost = random.choice([1, 1 << drawn.geometry.pageblock_order, 1 << 20])
        return random.choice(
            [
                ("drain", zone, cpu),
                ("capture", zone, cpu, order(), random.randrange(3)),
                ("fold", zone, cpu),
                ("return_boost", zone, boost),
                ("reclaim", random.choice(nodes), random.random() < 0.4),
                ("drain_lru", cpu),
                ("vmstat_update", cpu),
                ("isolate_block", zone, random.randrange(1 << 20), cpu),
                ("use_isolated", random.randrange(1 << 20)),
                ("isolate_range", zone, random.randrange(1 << 20), random.randint(1, 4), cpu),
                ("undo_isolation", random.randrange(1 << 20), cpu),
                ("unreserve", random.choice(GFP), random.choice(nodes), cpu),
            ]
        )

    while True:
        share, length = random.choice([0.05, 0.3, 0.5, 0.5, 0.6, 0.8, 0.97]), random.randint(5, 300)
        usual = [(order(), random.choice(GFP)) for _ in range(random.randint(1, 6))]
        rare = random.choice([0, 0.02, 0.1])
        while length > 0:
            n = min(random.choice([1, 1, 1, 5, 40]), length)
            length -= n
            cpu, node = random.choice(cpus), random.choice(nodes)
            if random.random() < rare:
                yield other()
            elif random.random() < share:
                size, gfp = random.choice(usual) if random.random() < 0.9 else (order(), random.choice(GFP))
                yield from [("alloc", size, gfp, node, cpu)] * n
            else:
                newest = random.random() < 0.2
                yield from (("free", -1 if newest else random.randrange(1 << 20), cpu) for _ in range(n))
