"""The page allocator against its slow twin: random machines, compared in full after every step."""

from itertools import islice
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from memmodel.jit import JIT_ENABLED
from memmodel.state.layout import MigrateType
from tests.reference.allocator_drawn import draw_machine
from tests.reference.allocator_nodes import KERNELS
from tests.reference.allocator_steps import GFP, Pair, random_steps

numbers = st.integers(0, 1 << 20)
LARGEST_ORDER = 10 if JIT_ENABLED else 4  # plain Python takes its time over many pages


class Walk(RuleBasedStateMachine):
    """Numbers that a rule draws are taken modulo what the machine has."""

    @initialize(kernel=st.sampled_from(sorted(KERNELS)), seed=numbers)
    def boot(self, kernel, seed):
        self.random = Random(seed)
        self.pair = Pair(draw_machine(self.random, kernel, LARGEST_ORDER))
        self.mixed = random_steps(self.random, self.pair)
        self.n_zones, self.n_cpus = len(self.pair.drawn.zones), self.pair.drawn.n_cpus
        self.nodes = sorted({zone.span.node for zone in self.pair.drawn.zones})

    def take(self, name, *arguments):
        self.pair.take((name, *arguments), whole=True)
        if self.pair.drawn.grouped:  # else blocks may be on other lists than their pageblock's
            self.pair.mem.check()

    @rule(share=st.floats(0, 1), thp=st.booleans(), gfp=st.sampled_from(GFP), node=numbers, cpu=numbers, n=numbers)
    def alloc(self, share, thp, gfp, node, cpu, n):
        most = self.pair.drawn.geometry.max_page_order
        order = min(self.pair.drawn.thp_order, most) if thp and share < 0.2 else int(share**3 * (most + 0.999))
        for _ in range(1 + n % 12):
            self.take("alloc", order, gfp, self.nodes[node % len(self.nodes)], cpu % self.n_cpus)

    @precondition(lambda self: self.pair.live)
    @rule(number=numbers, newest=st.booleans(), cpu=numbers, n=numbers)
    def free(self, number, newest, cpu, n):
        for place in range(1 + n % 12):
            self.take("free", -1 if newest else number + place * 7919, cpu % self.n_cpus)

    @rule()
    def many(self):
        """A stretch of the long run."""
        for step in islice(self.mixed, 30):
            self.pair.take(step, whole=False)
        self.take("fold", 0, 0)

    @rule(zone=numbers, cpu=numbers)
    def drain(self, zone, cpu):
        self.take("drain", zone % self.n_zones, cpu % self.n_cpus)

    @rule(
        zone=numbers,
        cpu=numbers,
        share=st.floats(0, 1),
        kind=st.sampled_from([MigrateType.UNMOVABLE, MigrateType.MOVABLE, MigrateType.RECLAIMABLE]),
    )
    def capture(self, zone, cpu, share, kind):
        order = int(share * (self.pair.drawn.geometry.max_page_order + 0.999))
        self.take("capture", zone % self.n_zones, cpu % self.n_cpus, order, int(kind))

    @rule(zone=numbers, cpu=numbers)
    def fold(self, zone, cpu):
        self.take("fold", zone % self.n_zones, cpu % self.n_cpus)

    @rule(cpu=numbers)
    def vmstat_update(self, cpu):
        self.take("vmstat_update", cpu % self.n_cpus)

    @rule(zone=numbers, n_pages=st.sampled_from([1, 8, 1 << 20]))
    def return_boost(self, zone, n_pages):
        self.take("return_boost", zone % self.n_zones, n_pages)

    @rule(node=numbers, active=st.booleans())
    def reclaim(self, node, active):
        self.take("reclaim", self.nodes[node % len(self.nodes)], active)

    @rule(cpu=numbers)
    def drain_lru(self, cpu):
        self.take("drain_lru", cpu % self.n_cpus)

    @rule(gfp=st.sampled_from(GFP), node=numbers, cpu=numbers)
    def unreserve(self, gfp, node, cpu):
        self.take("unreserve", gfp, self.nodes[node % len(self.nodes)], cpu % self.n_cpus)

    @rule(zone=numbers, number=numbers, cpu=numbers)
    def isolate_block(self, zone, number, cpu):
        self.take("isolate_block", zone % self.n_zones, number, cpu % self.n_cpus)

    @precondition(lambda self: self.pair.twin.isolated)
    @rule(number=numbers)
    def use_isolated(self, number):
        self.take("use_isolated", number)

    @rule(zone=numbers, number=numbers, n_blocks=st.integers(1, 4), cpu=numbers)
    def isolate_range(self, zone, number, n_blocks, cpu):
        self.take("isolate_range", zone % self.n_zones, number, n_blocks, cpu % self.n_cpus)

    @precondition(lambda self: self.pair.ranges)
    @rule(number=numbers, cpu=numbers)
    def undo_isolation(self, number, cpu):
        self.take("undo_isolation", number, cpu % self.n_cpus)


def test_allocator__every_step_as_the_twin(walk_settings):
    run_state_machine_as_test(Walk, settings=walk_settings)
