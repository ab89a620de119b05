"""alloc_contig_range() and CMA areas against the slow twin, on any machine and with anything in the way."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.jit import JIT_ENABLED
from tests.reference.contig_steps import drawn_area_pair, drawn_contig_pair, obstacles, work

SEEDS = st.integers(0, 1 << 32)
KERNELS = st.sampled_from(["6.1", "6.12.117", "7.3"])
EXAMPLES = 60 if JIT_ENABLED else 6
LARGEST_ORDER = 7 if JIT_ENABLED else 4


def lawful(pair):
    difference = pair.views.difference()
    assert not difference, difference
    pair.mem.check()


@settings(max_examples=EXAMPLES)
@given(seed=SEEDS, kernel=KERNELS)
def test_alloc_contig_range__as_the_twin(seed, kernel):
    random = Random(seed)
    pair = drawn_contig_pair(random, kernel, LARGEST_ORDER)
    size = 1 << pair.drawn.geometry.pageblock_order
    for _ in range(8):
        obstacles(random, pair, random.randrange(4))
        zone, cpu = random.randrange(len(pair.drawn.zones)), random.randrange(pair.drawn.n_cpus)
        n_pages = random.choice([1, random.randint(1, size), size, random.randint(1, 4 * size)])
        signal_after = random.choice([None, None, None, 0, 1, 3])
        pair.take(("contig", zone, random.randrange(1 << 20), n_pages, cpu, signal_after), whole=True)
        pair.mem.check()
        work(random, pair, random.randrange(20))
        if random.random() < 0.5:
            pair.take(("give_back", random.randrange(1 << 20), cpu), whole=True)
    lawful(pair)
    while pair.got:
        pair.take(("give_back", 1, 0), whole=True)
    lawful(pair)


@settings(max_examples=EXAMPLES)
@given(seed=SEEDS, kernel=KERNELS)
def test_cma_alloc__as_the_twin(seed, kernel):
    random = Random(seed)
    pair = drawn_area_pair(random, kernel, min(LARGEST_ORDER, 5))
    n_pages = int(pair.mem.state.areas[0]["n_pages"])
    for _ in range(8):
        obstacles(random, pair, random.choice([0, 0, 5, 20]))
        wanted = random.choice([1, random.randint(1, 20), random.randint(1, n_pages), n_pages, n_pages + 1])
        align = random.choice([0, 0, random.randrange(8), (wanted - 1).bit_length()])
        cpu, signal_after = random.randrange(pair.drawn.n_cpus), random.choice([None] * 12 + [0, 2])
        pair.take(("cma_alloc", wanted, align, cpu, signal_after), whole=True)
        pair.mem.check()
        work(random, pair, random.randrange(20))
        if random.random() < 0.4:
            pair.take(("cma_release", random.randrange(1 << 20), cpu), whole=True)
            pair.mem.check()
    while pair.got:
        pair.take(("cma_release", 1, 0), whole=True)
    lawful(pair)
    assert pair.mem.state.areas[0]["available"] == n_pages
