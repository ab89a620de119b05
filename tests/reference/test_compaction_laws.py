"""Laws of compaction, on drawn zones: whoever compacts how often, no page is lost and none is in two places."""

from collections import Counter
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.allocator_drawn import draw_machine
from tests.reference.allocator_nodes import KERNELS as NODE_KERNELS
from tests.reference.allocator_nodes import NodeRequest
from tests.reference.allocator_steps import GFP
from tests.reference.allocator_views import build_twin
from tests.reference.allocator_zone import MOVABLE, RECLAIMABLE, UNMOVABLE
from tests.reference.compaction import Compaction
from tests.reference.compaction_state import ALL_ORDERS, ASYNC, SYNC, SYNC_LIGHT, Pages
from tests.reference.compaction_tasks import CompactionTask, Compactor
from tests.reference.compaction_zones import PLENTY, build, events, memory_of, request, zone_of

PAGEBLOCK = 16
MIXES = ("m.", "mmm.", "m...", "mu.", "mlsprbu..", "msr....", "u....", "m")
KERNELS = ("6.1", "6.12.117", "7.3")
CALLS = (
    ("compact_memory",),
    ("proactive",),
    *(("kcompactd", order, 3) for order in (1, 3, 4, 5)),
    *(
        ("direct", request(order, kind, "GFP_KERNEL"), priority)
        for order in (1, 2, 4, 5)
        for kind in (MOVABLE, UNMOVABLE)
        for priority in range(3)
    ),
)


@st.composite
def words(draw):
    return [
        "".join(draw(st.lists(st.sampled_from(draw(st.sampled_from(MIXES))), min_size=PAGEBLOCK, max_size=PAGEBLOCK)))
        for _ in range(draw(st.integers(2, 7)))
    ]


class World:
    """Which frames are used, kept by the moves alone."""

    def __init__(self, drawn, kernel, held, types, folios):
        kinds = {PAGEBLOCK * (n + 1): kind for n, kind in enumerate(types[: len(drawn)])}
        self.compactor = build(" ".join(drawn), kernel, held=held, types=kinds, pmd_order=5)
        self.zone, self.pages = zone_of(self.compactor), self.compactor.pages
        letters = dict(enumerate("".join(drawn), PAGEBLOCK))
        self.used = {pfn for pfn, letter in letters.items() if letter != "."}
        self.fixed = {pfn for pfn, letter in letters.items() if letter in "upr"}
        self.make_folios(letters, folios)
        self.events = Counter()
        self.moved = 0
        move = self.pages.move

        def watched(source, target, order):
            pages = range(source, source + (1 << order))
            assert self.used.issuperset(pages)
            assert self.fixed.isdisjoint(pages)
            assert self.used.isdisjoint(range(target, target + (1 << order)))
            self.used.difference_update(pages)
            self.used.update(range(target, target + (1 << order)))
            self.moved += 1 << order
            move(source, target, order)

        self.pages.move = watched

    def make_folios(self, letters, folios):
        for head in range(PAGEBLOCK, self.zone.end_pfn, 4):
            run = "".join(letters[pfn] for pfn in range(head, head + 4))
            if run in ("mmmm", "ssss", "uuuu") and folios[head // 4 % len(folios)]:
                self.pages.make_compound(head, 2)
                for kind in self.pages.kinds():
                    kind.difference_update(range(head + 1, head + 4))

    def free(self):
        blocks = [(pfn, order) for (order, _), pfns in self.zone.lists.items() for pfn in pfns]
        for pcp in self.compactor.allocator.pcp.values():
            blocks += [(pfn, pcp.order_of(i)) for i, pfns in enumerate(pcp.lists) for pfn in pfns]
        return [page for pfn, order in blocks for page in range(pfn, pfn + (1 << order))]

    def lru(self):
        waiting = [pfn for batch in self.pages.lru.batches.values() for pfn in batch]
        return sorted([*self.pages.lru.pages, *waiting])

    def kinds(self):
        """Pages of each: folios may be split."""
        orders = self.pages.orders
        return [sum(1 << orders.get(pfn, 0) for pfn in kind) for kind in self.pages.kinds()]

    def note(self, event):
        self.events[event[0]] += 1 << event[2] if event[0] in ("isolated", "released") else 1


def check(world, captured, before):
    zone, memory = world.zone, memory_of(world.compactor)
    taken = [page for pfn, order in captured for page in range(pfn, pfn + (1 << order))]
    places = Counter([*world.used, *world.free(), *taken])
    assert places == Counter(range(zone.start_pfn, zone.end_pfn))
    assert world.fixed <= world.used
    assert (len(world.lru()), world.kinds()) == before
    assert set(world.lru()) <= world.used
    assert len(set(world.lru())) == len(world.lru())
    assert world.events["isolated"] == world.moved + world.events["released"]
    n_free = sum(len(pfns) << order for (order, _), pfns in zone.lists.items())
    assert zone.free_pages.value == n_free
    assert {pfn: order for (order, _), pfns in zone.lists.items() for pfn in pfns} == zone.free_orders
    assert memory.skip <= set(range(zone.start_pfn, zone.end_pfn, PAGEBLOCK))
    assert zone.capture is None


@settings(max_examples=60, deadline=None)
@given(
    drawn=words(),
    kernel=st.sampled_from(KERNELS),
    held=st.booleans(),
    types=st.lists(st.sampled_from([MOVABLE, MOVABLE, MOVABLE, UNMOVABLE, RECLAIMABLE]), min_size=7, max_size=7),
    folios=st.lists(st.booleans(), min_size=1, max_size=5),
    calls=st.lists(st.sampled_from(CALLS), min_size=1, max_size=3),
    turns=st.lists(st.integers(0, 2), min_size=1, max_size=20),
)
def test_laws__no_page_is_lost(drawn, kernel, held, types, folios, calls, turns) -> None:
    """Up to three tasks compact at once, and change at any event."""
    world = World(drawn, kernel, held, types, folios)
    before = len(world.lru()), world.kinds()
    tasks = [CompactionTask(world.compactor) for _ in calls]
    running = [(task, call, getattr(task, call[0])(*call[1:])) for task, call in zip(tasks, calls, strict=True)]
    turn = 0
    while running:
        at = turns[turn % len(turns)] % len(running)
        turn += 1
        event = next(running[at][2], None)
        if event is None:
            running.pop(at)
        else:
            world.note(event)
        assert turn < 20_000
    captured = [
        (task.captured, call[1].order) for task, call in zip(tasks, calls, strict=True) if task.captured is not None
    ]
    check(world, captured, before)


@settings(max_examples=60, deadline=None)
@given(
    drawn=words(),
    kernel=st.sampled_from(KERNELS),
    mode=st.sampled_from([ASYNC, SYNC_LIGHT, SYNC]),
    order=st.sampled_from([ALL_ORDERS, 1, 3, 4, 5]),
    options=st.fixed_dictionaries({}, optional=dict.fromkeys(("whole_zone", "ignore_skip", "direct"), st.booleans())),
)
def test_laws__the_scanners_only_approach_each_other(drawn, kernel, mode, order, options) -> None:
    """Sources ascend, but for one step back to an earlier find; a scan keeps to one pageblock."""
    world = World(drawn, kernel, False, [MOVABLE] * 7, [False])
    world.zone.free_pages.value += PLENTY
    if order == ALL_ORDERS:
        options = options | {"direct": False}  # a request has an order
    run = Compaction(world.compactor, world.zone, order, mode, migratetype=MOVABLE, **options)
    run.place_scanners()
    starts, free_pfns = [], [run.free_pfn]
    for event in run.loop():
        free_pfns.append(run.free_pfn)
        if event[0] in ("isolate_migratepages", "isolate_freepages"):
            name, start, end, n_scanned, n_taken = event
            assert world.zone.start_pfn <= start <= end <= world.zone.end_pfn
            assert world.zone.block_of(start) >= end - PAGEBLOCK
            assert 0 <= n_taken <= n_scanned
            if name == "isolate_migratepages":
                starts.append(start)
    assert sum(late < early for early, late in pairwise(starts)) <= 1
    blocks = [world.zone.block_of(pfn) for pfn in free_pfns]
    assert all(late <= early for early, late in pairwise(blocks))


# -- whole machines ------------------------------------------------------------------------------------------------


def filled_machine(random, kernel):
    """(drawn machine, Compactor of its twin) after some allocations and frees; the folios in use are `used`."""
    drawn = draw_machine(random, kernel, largest_order=6)
    twin = build_twin(drawn)
    compactor = Compactor(twin, Pages(twin.lru_state, moves=[]))
    for _ in range(random.choice([50, 600])):
        gfp = "GFP_HIGHUSER_MOVABLE" if random.random() < 0.8 else random.choice(GFP)
        order, cpu = random.choice([0, 0, 0, 0, 1, 3]), random.randrange(drawn.n_cpus)
        wanted = NodeRequest.of(order, gfp, random.choice(nodes_of(drawn)), drawn.grouped, twin.config_dma32)
        pfn = twin.alloc(wanted, cpu) if twin.zonelist(wanted) else None
        if pfn is not None:
            compactor.pages.make_compound(pfn, order)
            if gfp == "GFP_HIGHUSER|__GFP_COMP":
                compactor.pages.fixed.add(pfn)
            elif random.random() < 0.8:
                compactor.pages.anon.add(pfn)
        if twin.used and random.random() < 0.4:
            pfn = random.choice(sorted(twin.used))
            compactor.pages.forget(pfn, twin.used[pfn])
            twin.free(pfn, cpu)
    return drawn, compactor


def nodes_of(drawn):
    return sorted({zone.span.node for zone in drawn.zones})


def frames_of(compactor):
    """Every frame that is somewhere, with the number of places where it is."""
    twin, blocks = compactor.allocator, []
    for zone in twin.zones:
        blocks += [(pfn, order) for (order, _), pfns in zone.lists.items() for pfn in pfns]
        for (index, _), pcp in twin.sets[zone.node].items():
            if index == zone.index:
                blocks += [(pfn, pcp.order_of(i)) for i, pfns in enumerate(pcp.lists) for pfn in pfns]
    blocks += twin.used.items()
    return Counter(page for pfn, order in blocks for page in range(pfn, pfn + (1 << order)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), kernel=st.sampled_from(sorted(NODE_KERNELS)))
def test_laws__any_machine(seed: int, kernel: str) -> None:
    """Zones that begin and end amid pageblocks, several nodes and CPUs, types of all sorts, any orders."""
    random = Random(seed)
    drawn, compactor = filled_machine(random, kernel)
    twin, before = compactor.allocator, frames_of(compactor)
    for _ in range(6):
        task, node = CompactionTask(compactor, random.randrange(drawn.n_cpus)), random.choice(nodes_of(drawn))
        order = random.randint(1, drawn.geometry.max_page_order)
        wanted = NodeRequest.of(order, random.choice(GFP), node, drawn.grouped, twin.config_dma32)
        calls = [task.compact_memory(), task.kcompactd(order, 3, node), task.direct(wanted, random.randrange(3))]
        for zone in twin.zones:
            zone.free_pages.value += random.choice([0, PLENTY])
            compactor.memory_of(zone).blockskip_flush |= random.random() < 0.5
        compactor.before_kswapd_sleeps()
        events(random.choice(calls))
        for source, target, moved in compactor.pages.moves:
            assert twin.used.pop(source) == moved
            parts = {target: moved} if target is not None else dict.fromkeys(range(source, source + (1 << moved)), 0)
            twin.used.update(parts)
        compactor.pages.moves.clear()
        if task.captured is not None:
            twin.used[task.captured] = order
        assert frames_of(compactor) == before
    assert max(before.values()) == 1
    assert twin.lru <= {page for pfn, order in twin.used.items() for page in range(pfn, pfn + (1 << order))}
