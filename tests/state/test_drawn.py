import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.sources.records import MIGRATE_MOVABLE
from memmodel.state.drawn import draw_lists, smallest_span

PAGEBLOCK_ORDER, N_ORDERS = 3, 6


def draw(nr_free, span, blocks=None, seed=0):
    type_free = np.zeros((6, N_ORDERS), np.int64)
    type_free[MIGRATE_MOVABLE] = nr_free
    type_blocks = np.zeros(6, np.int64)
    type_blocks[MIGRATE_MOVABLE] = blocks or ((span[1] - 1) >> PAGEBLOCK_ORDER) - (span[0] >> PAGEBLOCK_ORDER) + 1
    return draw_lists(np.random.default_rng(seed), (0, "DMA"), span, type_free, type_blocks, PAGEBLOCK_ORDER)


@settings(max_examples=100, deadline=None)
@given(nr_free=st.lists(st.integers(0, 40), min_size=N_ORDERS, max_size=N_ORDERS), seed=st.integers(0, 9))
def test_smallest_span__is_just_enough(nr_free, seed):
    counts = np.array(nr_free)
    pages = smallest_span(counts, 0, PAGEBLOCK_ORDER)
    typed = draw(nr_free, (64, 64 + pages), seed=seed)
    found = {order: pfns.size for (order, _), pfns in typed.lists.items() if pfns.size}
    assert found == {order: n for order, n in enumerate(nr_free) if n}
    starts = {(order, pfn) for (order, _), pfns in typed.lists.items() for pfn in pfns.tolist()}
    assert not any((order, pfn ^ (1 << order)) in starts for order, pfn in starts if order < N_ORDERS - 1)
    if counts.any() and pages > 32:
        with pytest.raises(InputError, match=r"Node 0, zone DMA, pfns 64 to \d+: .* do not fit; there is room for"):
            draw(nr_free, (64, 64 + pages - 32), seed=seed)


def test_smallest_span__pageblocks_count_too():
    assert smallest_span(np.array([1, 0, 0, 0, 0, 0]), 7, PAGEBLOCK_ORDER) == 56
    assert smallest_span(np.zeros(N_ORDERS, int), 0, PAGEBLOCK_ORDER) == 32


def test_draw_lists__the_seed_decides():
    nr_free = [5, 3, 2, 1, 1, 1]
    first, again, other = (draw(nr_free, (0, 640), seed=seed) for seed in (1, 1, 2))
    assert all((first.lists[key] == again.lists[key]).all() for key in first.lists)
    assert any((first.lists[key] != other.lists[key]).any() for key in first.lists)


def test_draw_lists__a_cut_block_at_the_start_has_less_room():
    # pfn 0 is not in the zone: of the first eight pages only 4 to 7 are an order-2 block
    typed = draw([0, 0, 1, 0, 0, 0], (1, 8))
    assert typed.lists[2, MIGRATE_MOVABLE].tolist() == [4]
    with pytest.raises(InputError, match="1 free blocks of order 3 do not fit; there is room for 0"):
        draw([0, 0, 0, 1, 0, 0], (1, 8))


def test_draw_lists__fewer_pageblocks_than_the_span_has():
    typed = draw([0] * 6, (0, 64), blocks=3)
    assert typed.block_pfns.tolist() == [0, 8, 56]


def test_draw_lists__counts_that_contradict_each_other():
    with pytest.raises(InputError, match="more Movable pageblocks are free in whole than there are"):
        draw([0, 0, 0, 0, 0, 1], (0, 64), blocks=2)
    with pytest.raises(InputError, match="9 pageblocks are not free in whole; there is room for 8"):
        draw([0] * 6, (0, 64), blocks=9)
