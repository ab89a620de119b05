"""Blocks that leave the lists, pageblocks isolated and given back, lists turned: against the slow twin."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.jit import JIT_ENABLED, kernel
from memmodel.kernels.isolation import list_head_of, rotate_before, rotate_to_tail
from tests.reference.allocator_drawn import draw_machine
from tests.reference.allocator_steps import Pair, random_steps

SEEDS = st.integers(0, 1 << 32)
KERNELS = st.sampled_from(["6.12.117", "7.3"])
EXAMPLES = 40 if JIT_ENABLED else 8
LARGEST_ORDER = 10 if JIT_ENABLED else 4


@kernel
def rotate_to_first(mem, index):
    return rotate_before(mem, list_head_of(mem, index), index)


def drawn_pair(random, kernel):
    """A machine and its twin after a stretch of work."""
    pair = Pair(draw_machine(random, kernel, LARGEST_ORDER))
    steps = random_steps(random, pair)
    for _ in range(random.randrange(120)):
        pair.take(next(steps), whole=False)
    return pair


def lawful(pair):
    assert not pair.views.difference()
    if pair.drawn.grouped:  # else blocks may be on other lists than their pageblock's
        pair.mem.check()


@settings(max_examples=EXAMPLES)
@given(seed=SEEDS, kernel=KERNELS)
def test_isolate_free_page__as_the_twin(seed, kernel):
    random = Random(seed)
    pair = drawn_pair(random, kernel)
    for _ in range(8):
        zone, cpu = random.randrange(len(pair.drawn.zones)), random.randrange(pair.drawn.n_cpus)
        pair.take(("isolate_block", zone, random.randrange(1 << 20), cpu), whole=True)
    lawful(pair)


@settings(max_examples=EXAMPLES)
@given(seed=SEEDS, kernel=KERNELS)
def test_isolate_range__and_undo_as_the_twin(seed, kernel):
    random = Random(seed)
    pair = drawn_pair(random, kernel)
    for _ in range(6):
        zone, cpu = random.randrange(len(pair.drawn.zones)), random.randrange(pair.drawn.n_cpus)
        pair.take(("isolate_range", zone, random.randrange(1 << 20), random.randint(1, 4), cpu), whole=True)
        if random.random() < 0.4:
            pair.take(("undo_isolation", random.randrange(1 << 20), cpu), whole=True)
    lawful(pair)
    while pair.ranges:
        pair.take(("undo_isolation", 0, 0), whole=True)
    lawful(pair)


@settings(max_examples=EXAMPLES)
@given(seed=SEEDS, kernel=KERNELS)
def test_rotate__as_the_twin(seed, kernel):
    random = Random(seed)
    pair = drawn_pair(random, kernel)
    for _ in range(20):
        zone = random.choice(pair.twin.zones)
        listed = [
            pfn for (_, migratetype), pfns in zone.lists.items() for pfn in pfns if zone.type_of(pfn) == migratetype
        ]
        if not listed:
            continue
        pfn = random.choice(listed)
        pfns = list(zone.lists[zone.free_orders[pfn], zone.type_of(pfn)])
        if random.random() < 0.5:
            turned = bool(rotate_to_first(pair.mem.state, pair.row(pfn)))
            zone.rotate_to(pfn)
            assert turned == (pfns[0] != pfn)
        else:
            turned = bool(rotate_to_tail(pair.mem.state, pair.row(pfn)))
            assert turned == zone.rotate_behind(pfn) == (pfns[-1] != pfn)
        lawful(pair)
