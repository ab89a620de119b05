"""The two threads against their twin, and by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.kernels.demotion import DemotionTotal, run_demotion
from tests.reference import demotion as twin

TIMES = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def run(write, kswapd, direct, free, marks, thp):
    totals = np.zeros(len(DemotionTotal), np.int64)
    times = [np.array(times, np.int64) for times in (write, kswapd, direct)]
    run_demotion(*times, np.int64(free), np.array(marks, np.int64), np.int64(thp), totals)
    return {column.name: int(value) for column, value in zip(DemotionTotal, totals, strict=True)}


@settings(max_examples=300)
@given(
    TIMES,
    TIMES,
    TIMES,
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 60),
    st.integers(1, 9),
)
def test_run_demotion__equals_its_twin(write, kswapd, direct, lowest, gap, more, above, thp):
    marks = (lowest, lowest + gap, lowest + gap + more)
    free = marks[2] + above
    assert run(write, kswapd, direct, free, marks, thp) == twin.run(write, kswapd, direct, free, marks, thp)


def test_run_demotion__by_hand():
    # 4 pages free, a THP is 1. Asked for at 0, 10, 20, 30, 50; at 20 there are 2, not above low: kswapd works to 45
    found = run([10, 10, 10, 20, 10], [25], [100], 4, (0, 2, 3), 1)
    assert found["WAKES"] == 1
    assert found["DIRECT"] == 0
    assert found["LOWEST_FREE"] == 0
    assert found["END_NS"] == 60
    # 1 is free then, not above high: it goes on, and is at its second at the end
    assert found["KSWAPD"] == 1
    assert found["KSWAPD_NS"] == 40


def test_run_demotion__a_stall_is_one_thp():
    found = run([1] * 10, [1000], [7], 4, (1, 2, 3), 1)
    # 3 THPs go above min, each of the other 7 waits for one of its own
    assert found["DIRECT"] == 7
    assert found["STALL_NS"] == 49
    assert found["FIRST_STALL_NS"] == 3
    assert found["END_NS"] == 59
    assert found["KSWAPD"] == 0
    assert found["KSWAPD_NS"] == 57


def test_run_demotion__no_stall_above_the_low_watermark():
    found = run([10] * 20, [1], [1], 64, (2, 8, 16), 4)
    assert found["DIRECT"] == 0
    assert found["FIRST_STALL_NS"] == -1
    assert found["WAKES"] > 1
    assert found["LOWEST_FREE"] == 8 - 4
