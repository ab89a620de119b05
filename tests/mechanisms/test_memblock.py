from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.mechanisms.memblock import MemoryMap
from memmodel.sources.spans import Span, merge, subtract
from tests.reference import memblock as twin

SPANS = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60)), max_size=5)
SOME = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60)), min_size=1, max_size=5)


def test_find__top_down_and_bottom_up():
    free = MemoryMap([(0x1000, 0xF000), (0x20000, 0x10000)], [(0x2F000, 0x1000)])
    assert free.find(0x4000, 0x4000, 0, 1 << 32) == 0x28000
    assert free.find(0x4000, 0x4000, 0, 0x20000) == 0xC000
    assert free.find(0x4000, 0x4000, 0, 1 << 32, bottom_up=True) == 0x4000
    assert free.find(0x4000, 0x4000, 0x8001, 1 << 32, bottom_up=True) == 0xC000
    assert free.find(0x10000, 0x4000, 0, 1 << 32) is None


@given(
    memory=SOME,
    reserved=SPANS,
    size=st.integers(1, 40),
    shift=st.integers(0, 5),
    ends=st.tuples(st.integers(0, 200), st.integers(0, 200)),
    bottom_up=st.booleans(),
)
def test_find__as_the_twin(memory, reserved, size, shift, ends, bottom_up):
    found = MemoryMap(memory, reserved).find(size, 1 << shift, *ends, bottom_up=bottom_up)
    assert found == twin.find(memory, reserved, size, 1 << shift, *ends, bottom_up)


@given(spans=SPANS, taken=SPANS)
def test_merge_and_subtract__cover_what_they_should(spans, taken):
    def addresses(found):
        return {at for base, size in found for at in range(base, base + size)}

    spans, taken = [Span(*s) for s in spans], [Span(*s) for s in taken]
    assert addresses(merge(spans)) == addresses(spans)
    assert addresses(subtract(spans, taken)) == addresses(spans) - addresses(taken)
    for found in (merge(spans), subtract(spans, taken)):
        assert all(a.end < b.base for a, b in pairwise(found))


@given(memory=SOME, reserved=SPANS, base=st.integers(0, 150), size=st.integers(1, 30))
def test_reserve_and_give_back__nothing_is_lost(memory, reserved, base, size):
    before = MemoryMap(memory, reserved)
    span = Span(base, size)
    after = before.reserve(span)
    assert not any(free.overlaps(span) for free in after.free)
    assert before.free == subtract(after.give_back([span]).free, before.reserved)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "memory without a range of RAM"),
        (([(0, 0)],), "memory range at 0 of 0 bytes"),
        (([(0, 9)], [(-1, 4)]), "reserved range at -1 of 4 bytes"),
        (([(0, 1.5)],), "memory range at 0 of 1.5 bytes"),
        (([(0, "4K")],), "memory range at 0 of '4K' bytes"),
        (([(1 << 51, 1 << 52)],), "ends within 4 PiB"),
        ((5,), "memory '5' is no list of ranges"),
        (([(0, 1, 2)],), "is no list of ranges"),
        (([(0, 9)], [5]), "reserved '\\[5\\]' is no list of ranges"),
    ],
)
def test_memory_map__refused(arguments, message):
    with pytest.raises(InputError, match=message):
        MemoryMap(*arguments)
