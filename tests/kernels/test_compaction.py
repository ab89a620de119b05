"""Compaction against its slow twin: random machines, compared in full after every run and every other step."""

from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from memmodel.jit import JIT_ENABLED
from memmodel.state.layout import ZoneType
from tests.conftest import LONG
from tests.reference.compaction_pair import MARKS, CompactionPair, draw_compactable

numbers = st.integers(0, 1 << 20)
GFP = ("GFP_HIGHUSER_MOVABLE", "GFP_KERNEL", "GFP_KERNEL|__GFP_RECLAIMABLE", "GFP_TRANSHUGE", "GFP_NOFS|__GFP_MOVABLE")
SIZES = (4, 6, 6, 7, 7, 10) if JIT_ENABLED else (4, 5)  # plain Python takes its time over many pages
N_PAGES = 2000 if JIT_ENABLED else 200
SETTINGS = settings(
    deadline=None,
    max_examples=500 if LONG else 12 if JIT_ENABLED else 6,
    stateful_step_count=30 if LONG else 12,
    phases=[phase for phase in Phase if LONG or phase != Phase.shrink],
)


class Walk(RuleBasedStateMachine):
    """Numbers that a rule draws are taken modulo what the machine has."""

    def __init__(self, kernel, seen):
        super().__init__()
        self.kernel, self.seen = kernel, seen

    @initialize(seed=numbers, one_in=st.integers(2, 4), gfp=st.sampled_from([GFP[0], GFP[0], GFP[1]]))
    def boot(self, seed, one_in, gfp):
        """Memory is full of pages, of which some are free again."""
        random = Random(seed)
        self.pair = CompactionPair(draw_compactable(random, self.kernel, random.choice(SIZES)))
        drawn = self.pair.drawn
        self.n_zones, self.n_cpus, self.max_order = len(drawn.zones), drawn.n_cpus, drawn.geometry.max_page_order
        self.nodes = sorted({zone.span.node for zone in drawn.zones})
        for node in self.nodes:
            self.take("fill", N_PAGES, gfp, node, 0)
        self.take("thin", one_in, seed % 3, 0)
        for zone in range(self.n_zones):
            self.take("drain", zone, 0)

    def take(self, name, *arguments):
        self.pair.take((name, *arguments), whole=True)
        if self.pair.drawn.grouped:  # else blocks may be on other lists than their pageblock's
            self.pair.mem.check()

    def node(self, number):
        return self.nodes[number % len(self.nodes)]

    def compact(self, name, *arguments):
        self.take(name, *arguments)
        self.seen.update(event[0] for event in self.pair.said)

    # -- what goes on between runs ---------------------------------------------------------------------------------

    @rule(n_pages=st.sampled_from([10, 100, N_PAGES]), gfp=st.sampled_from(GFP), node=numbers, cpu=numbers)
    def fill(self, n_pages, gfp, node, cpu):
        self.take("fill", n_pages, gfp, self.node(node), cpu % self.n_cpus)

    @precondition(lambda self: self.pair.live)
    @rule(one_in=st.sampled_from([1, 2, 2, 3, 7]), first=st.integers(0, 2), cpu=numbers)
    def thin(self, one_in, first, cpu):
        self.take("thin", one_in, first, cpu % self.n_cpus)

    @rule(share=st.floats(0, 1), gfp=st.sampled_from(GFP), node=numbers, cpu=numbers, n=st.integers(1, 10))
    def alloc(self, share, gfp, node, cpu, n):
        order = int(share**2 * (self.max_order + 0.999))
        for _ in range(n):
            self.take("alloc", order, gfp, self.node(node), cpu % self.n_cpus)

    @precondition(lambda self: self.pair.live)
    @rule(number=numbers, kind=st.sampled_from(sorted(MARKS)), n=st.sampled_from([1, 10, 50]))
    def mark(self, number, kind, n):
        for place in range(n):
            self.pair.mark(number + place * 7919, kind)
        self.take("mark", number, kind)

    @rule(zone=numbers, cpu=numbers)
    def drain(self, zone, cpu):
        self.take("drain", zone % self.n_zones, cpu % self.n_cpus)

    @rule(node=numbers, zone=numbers, flushes=st.booleans())
    def kswapd_sleeps(self, node, zone, flushes):
        if flushes:
            self.take("flush", zone % self.n_zones)
        self.take("kswapd_sleeps", self.node(node))

    # -- runs ------------------------------------------------------------------------------------------------------

    @rule(order=numbers, gfp=st.sampled_from(GFP), node=numbers, cpu=numbers, priority=st.integers(0, 2))
    def direct(self, order, gfp, node, cpu, priority):
        order = min(self.pair.drawn.geometry.hpage_pmd_order, self.max_order) if order % 5 == 0 else order
        self.compact("direct", 1 + (order - 1) % self.max_order, gfp, self.node(node), cpu % self.n_cpus, priority)

    @rule(gfp=st.sampled_from(GFP), node=numbers, cpu=numbers, priority=st.integers(0, 2), n=st.integers(2, 5))
    def one_order_after_the_other(self, gfp, node, cpu, priority, n):
        for order in range(self.max_order, max(0, self.max_order - n), -1):
            self.compact("direct", order, gfp, self.node(node), cpu % self.n_cpus, priority)

    @rule(order=numbers, highest=st.sampled_from([ZoneType.DMA32, ZoneType.NORMAL, ZoneType.MOVABLE]), node=numbers)
    def kcompactd(self, order, highest, node):
        self.compact("kcompactd", 1 + order % self.max_order, highest, self.node(node), order % self.n_cpus)

    @rule(cpu=numbers)
    def compact_memory(self, cpu):
        self.compact("compact_memory", cpu % self.n_cpus)

    @rule(node=numbers, level=st.sampled_from([0, 20, 60, 100]), cpu=numbers)
    def proactive(self, node, level, cpu):
        self.compact("proactive", self.node(node), level, cpu % self.n_cpus)


@pytest.mark.parametrize("kernel", ["6.1", "6.10", "6.12", "6.12.117", "7.3"])
def test_compaction__every_run_as_the_twin(kernel):
    seen = set()
    run_state_machine_as_test(lambda: Walk(kernel, seen), settings=SETTINGS)
    assert seen >= {"begin", "finished", "isolate_migratepages"}
