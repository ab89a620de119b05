import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memmodel.cost.demotion import (
    THP_BYTES,
    DemotionRun,
    demotion_times,
    draw_work,
    first_stall_ns,
    node_watermarks,
    simulate_demotion,
    steady_demotion,
)
from memmodel.cost.machines import load_machine
from memmodel.cost.published_migration import demotion_table
from memmodel.errors import InputError
from memmodel.state.sizing import Sysctls
from memmodel.studies.demotion_table import direct_share

ZEN6 = load_machine("zen6-cxl")
THP = THP_BYTES >> 12
RATES = st.floats(2e4, 5e5)
MARKS = (5632, 9826, 14020)


def run_of(
    write: float, kswapd: float, direct: float, n: int = 5000, spread: float = 0.0, marks: tuple[int, int, int] = MARKS
) -> DemotionRun:
    return simulate_demotion(draw_work(n, spread, 1), write, kswapd, direct, marks[2] + 8 * THP, marks)


@pytest.mark.parametrize(
    ("write_gb_per_s", "base", "patched"),
    [(22, 14.3, 0), (22.7, 15.4, 0.05), (23, 15.8, 0.7), (24.1, 17.4, 2.95), (25, 18.6, 4.7)],
)
def test_steady_demotion__two_rates_by_hand(write_gb_per_s: float, base: float, patched: float) -> None:
    """The table of the two-rate model, D = Dd = 15.72 and 22.68 GB/s: what 63.6 and 44.1 ms a GB come to."""
    for ms, expected in ((63.6, base), (44.1, patched)):
        state = steady_demotion(1 / write_gb_per_s, ms / 1e3, ms / 1e3)
        assert 100 * float(state.direct_share) == pytest.approx(expected, abs=0.06)


@given(RATES, RATES, RATES)
def test_steady_demotion__balance(write: float, kswapd: float, direct: float) -> None:
    state = steady_demotion(write, kswapd, direct)
    written = (1 - state.stalled_share) / write
    by_kswapd, by_writer = state.kswapd_share / kswapd, state.stalled_share / direct
    assert float(written) == pytest.approx(float(by_kswapd + by_writer))
    assert float(state.demoted_bytes_per_ns) == pytest.approx(float(written) * THP_BYTES)
    assert float(by_writer / written) == pytest.approx(float(state.direct_share), abs=1e-12)
    assert (state.direct_share == 0) == (write >= kswapd)
    assert float(state.stalls_per_gib) == pytest.approx(512 * float(state.direct_share))
    assert float(state.kswapd_ns_per_gib) == pytest.approx(512 * kswapd)


@given(RATES, RATES, RATES, RATES)
def test_steady_demotion__faster_writers_stall_no_less(one: float, other: float, kswapd: float, direct: float) -> None:
    fast, slow = sorted((one, other))
    state = steady_demotion([slow, fast], kswapd, direct)
    assert state.direct_share[0] <= state.direct_share[1]
    assert state.stalled_share[0] <= state.stalled_share[1]


@settings(deadline=None, max_examples=200)
@given(
    st.floats(2e4, 5e5),
    st.floats(-0.7, 0.7),
    st.floats(-1, 1),
    st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.5]),
    st.integers(8 * THP, 40000),
    st.integers(500, 20000),
    st.integers(0, 2**32),
)
def test_simulate_demotion__agrees_with_the_fluid(
    write: float, slower: float, dearer: float, spread: float, gap: int, n: int, seed: int
) -> None:
    """Within the bound that the module states, for rates that cross and for some that do not."""
    kswapd = write * np.exp(slower)
    direct = kswapd * 3**dearer
    marks = (1000, 1000 + gap, 1000 + 2 * gap)
    run = simulate_demotion(draw_work(n, spread, seed), write, kswapd, direct, marks[2] + 4 * THP, marks)
    demoted = run.n_kswapd + run.n_direct
    assume(demoted >= 200)
    fluid = steady_demotion(write, kswapd, direct)
    bound = (gap / THP + 2) / demoted + 4 * spread / np.sqrt(demoted)
    assert abs(run.direct_share - float(fluid.direct_share)) <= bound


@given(st.integers(1, 12))
@settings(deadline=None, max_examples=12)
def test_simulate_demotion__the_gap_hardly_changes_the_steady_share(times: int) -> None:
    shares = [
        run_of(100_000, 130_000, 110_000, n=40_000, marks=(5632, 5632 + gap, 5632 + 2 * gap)).direct_share
        for gap in (4194, 4194 * times)
    ]
    assert abs(shares[0] - shares[1]) <= 4194 * times / THP / 40_000 + 1e-3


def test_simulate_demotion__no_stall_while_kswapd_keeps_up() -> None:
    run = run_of(100_000, 99_000, 80_000)
    assert run.n_direct == run.stall_ns == 0
    assert np.isnan(run.first_stall_ns)
    assert run.lowest_free > MARKS[0]
    assert run.end_ns == 5000 * 100_000


def test_simulate_demotion__counts_add_up() -> None:
    run = run_of(80_000, 120_000, 100_000)
    left = MARKS[2] + 8 * THP - (5000 - run.n_kswapd - run.n_direct) * THP
    assert MARKS[0] - THP <= left <= MARKS[2] + THP
    assert run.stall_ns == run.n_direct * 100_000
    assert run.end_ns == 5000 * 80_000 + run.stall_ns
    assert run.n_wakes == 1


def test_first_stall_ns__as_the_events_have_it() -> None:
    for write, kswapd in ((80_000, 120_000), (100_000, 110_000), (50_000, 300_000)):
        fluid = float(first_stall_ns(MARKS[2] + 8 * THP, MARKS, write, kswapd))
        run = run_of(write, kswapd, kswapd)
        # kswapd's first THP comes a step after it woke, and neither goes by parts of a THP
        assert abs(run.first_stall_ns - fluid) <= 2 * kswapd * write / abs(kswapd - write) + kswapd
    assert np.isinf(first_stall_ns(20_000, MARKS, 120_000, 80_000))


def test_first_stall_ns__grows_with_the_gap() -> None:
    gaps = [node_watermarks(16 << 18, Sysctls(watermark_scale_factor=f)) for f in (10, 100, 1000)]
    from_low = [float(first_stall_ns(marks[1], marks, 80_000, 120_000)) for marks in gaps]
    expected = [(marks[1] - marks[0]) / THP / (1 / 80_000 - 1 / 120_000) for marks in gaps]
    assert from_low == pytest.approx(expected)
    assert from_low == sorted(from_low)


def test_node_watermarks__the_sheets_example() -> None:
    # 64 GiB: min_free_kbytes 32768 is above what khugepaged wants for one zone, gap is 0.1 % of the zone
    assert node_watermarks(1 << 24, Sysctls()) == (8192, 8192 + 16777, 8192 + 2 * 16777)


def test_draw_work__seeded_and_of_mean_one() -> None:
    work, again = draw_work(50_000, 0.3, 7), draw_work(50_000, 0.3, 7)
    for one, other in zip(work, again, strict=True):
        assert np.array_equal(one, other)
        assert one.mean() == pytest.approx(1, abs=0.01)
        assert one.std() == pytest.approx(0.3, rel=0.02)
    assert not np.array_equal(work.write, work.kswapd)
    assert draw_work(3, 0, 0).direct.tolist() == [1, 1, 1]


def test_demotion_times__kswapd_a_gb_within_three_percent() -> None:
    table = demotion_table()
    for kernel, batch in (("base", "page"), ("patched", "extent")):
        times = demotion_times(ZEN6, batch)
        ms_per_gib = times.kswapd_ns * 2**30 / THP_BYTES / 1e6
        assert ms_per_gib == pytest.approx(table[kernel, "kswapd_cpu_per_gb"], rel=0.03)
        assert times.direct_ns < times.kswapd_ns
        assert times.calibrated


def test_demotion_times__refuses_what_is_not_known() -> None:
    with pytest.raises(InputError, match="unknown batch 'folio'; one of: page, extent"):
        demotion_times(ZEN6, "folio")
    with pytest.raises(InputError, match=r"zen3-32c has no migration\.reclaim_slowdown"):
        demotion_times(load_machine("zen3-32c"), "page", "D0-D1")
    with pytest.raises(InputError, match="zen5-cxl has no migration part"):
        demotion_times(load_machine("zen5-cxl"), "page")


def test_direct_share__published() -> None:
    table = demotion_table()
    assert direct_share(table, "base") == pytest.approx(0.174, abs=0.001)
    assert direct_share(table, "patched") == pytest.approx(0.0059, abs=0.0001)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"write": 0}, "write_ns: a time of a THP is a positive number"),
        ({"kswapd": np.inf}, "kswapd_ns"),
        ({"direct": -1}, "direct_ns"),
        ({"marks": (5, 4, 6)}, "min, low and high do not rise"),
        ({"free": 15000}, "15000 free pages: the node needs two THPs above its high watermark, 14020 pages"),
    ],
)
def test_simulate_demotion__refuses(change: dict[str, object], message: str) -> None:
    given_ = {"write": 1e5, "kswapd": 1e5, "direct": 1e5, "free": 1 << 20, "marks": MARKS} | change
    with pytest.raises(InputError, match=message):
        simulate_demotion(draw_work(10, 0, 0), *given_.values())  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "spread"), [(0, 0.1), (5, -0.1), (5, np.nan), (5, np.inf)])
def test_draw_work__refuses(n: int, spread: float) -> None:
    with pytest.raises(InputError, match="at least one, and a spread from 0 up"):
        draw_work(n, spread, 0)
