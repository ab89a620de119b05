import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memmodel.cost.machines import load_machine
from memmodel.cost.waiting import bandwidth_share, folio_phases, receivers_ns, waiter_ns
from memmodel.errors import InputError

TIMES = st.integers(0, 10_000)
ZEN3 = load_machine("zen3-32c")


def played(n: int, unmap: int, flush: int, move: int) -> tuple[list[int], int]:
    """Times for which each folio is out of reach, from a batch played through; and how long the batch ran."""
    now, unmapped, waits = 0, [], []
    for _ in range(n):
        now += unmap
        unmapped.append(now)
    now += flush
    for since in unmapped:
        now += move
        waits.append(now - since)
    return waits, now


@given(st.integers(1, 60), TIMES, TIMES, TIMES)
def test_waiter_ns__equals_a_batch_played_through(n: int, unmap: int, flush: int, move: int) -> None:
    waits, run = played(n, unmap, flush, move)
    found = waiter_ns(n, unmap, flush, move)
    assert float(found.mean_ns) == pytest.approx(np.mean(waits))
    assert float(found.worst_ns) == pytest.approx(max(waits))
    if sum(waits):
        assert float(found.blocked_share) == pytest.approx(np.mean(waits) / run)
        # an access that finds the folio gone comes at any moment of its absence: it waits half of it in the mean
        assert float(found.wait_ns) == pytest.approx(np.average(np.array(waits) / 2, weights=waits))


def test_waiter_ns__random_accesses() -> None:
    n, unmap, flush, move = 32, 300, 5000, 900
    waits, run = played(n, unmap, flush, move)
    rng = np.random.default_rng(0)
    moment, folio = rng.uniform(0, run, 400_000), rng.integers(0, n, 400_000)
    gone = (folio + 1) * unmap
    back = gone + np.array(waits)[folio]
    blocked = (moment >= gone) & (moment < back)
    found = waiter_ns(n, unmap, flush, move)
    assert blocked.mean() == pytest.approx(float(found.blocked_share), rel=0.01)
    assert (back - moment)[blocked].mean() == pytest.approx(float(found.wait_ns), rel=0.01)


def test_waiter_ns__a_batch_of_one_is_page_by_page() -> None:
    found = waiter_ns(1, 100, 2000, 900)
    assert found.mean_ns == found.worst_ns == 2900
    assert found.blocked_share == pytest.approx(2900 / 3000)
    assert found.wait_ns == 1450


def test_waiter_ns__half_the_batch_for_one_of_512_pages() -> None:
    # some 1 us a page: half a millisecond, where a page by itself is away for its own time
    found = waiter_ns([1, 512], 110, 0, 890)
    assert found.mean_ns[1] == pytest.approx(512e3 / 2, rel=0.01)
    assert found.mean_ns[0] == 890
    assert found.worst_ns[1] == 512 * 890


@given(st.integers(1, 500), st.integers(1, 500), TIMES, TIMES, TIMES)
def test_waiter_ns__longer_batches_wait_no_less(one: int, other: int, unmap: int, flush: int, move: int) -> None:
    found = waiter_ns(sorted((one, other)), unmap, flush, move)
    assert found.mean_ns[0] <= found.mean_ns[1] * (1 + 1e-12)
    assert found.worst_ns[0] <= found.worst_ns[1] * (1 + 1e-12)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ((0, 1, 1, 1), "a whole number of folios"),
        ((1.5, 1, 1, 1), "a whole number of folios"),
        ((1, -1, 1, 1), "unmap_ns is not a time"),
        ((1, 1, np.nan, 1), "flush_ns is not a time"),
        ((1, 1, 1, np.inf), "move_ns is not a time"),
    ],
)
def test_waiter_ns__refuses(given_: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        waiter_ns(*given_)


def test_folio_phases__add_up_to_a_folio() -> None:
    phases = folio_phases(ZEN3, n_receivers=[0, 10])
    assert phases.unmap_ns[0] == pytest.approx(110.1 + 574.5 / 2)
    assert phases.move_ns[0] == pytest.approx(375 + 110.1 + 574.5 / 2)
    assert phases.flush_ns.tolist() == [0, 1000 + 10 * 200]
    assert folio_phases(ZEN3, n_receivers=10, broadcast=True).flush_ns == 2730
    thp = folio_phases(ZEN3, pages_per_folio=512, ptes_per_folio=0)
    assert thp.unmap_ns + thp.move_ns == pytest.approx(512 * 375 + 574.5)


def test_folio_phases__batched_flushes_trade_time_for_waits() -> None:
    """With many receivers a batch of 512 is faster for the migrating CPU, and keeps each page away for longer."""
    phases = folio_phases(ZEN3, n_receivers=100)
    alone, batch = waiter_ns(1, *phases), waiter_ns(512, *phases)
    run_alone = 512 * float(sum(phases))
    run_batch = 512 * float(phases.unmap_ns + phases.move_ns) + float(phases.flush_ns)
    assert run_batch < run_alone / 10
    assert batch.mean_ns > 10 * alone.mean_ns


def test_receivers_ns__known_on_one_machine() -> None:
    assert receivers_ns([0, 1000], ZEN3).tolist() == [0, 780_000]
    with pytest.raises(InputError, match=r"no migration\.ipi_handler"):
        receivers_ns(1, load_machine("zen6-cxl"))


def test_bandwidth_share__of_the_most_that_was_seen() -> None:
    assert bandwidth_share(63.69e9, 1e9, ZEN3) == pytest.approx(1)
    assert bandwidth_share(2.481e9, 1e9, load_machine("haswell-2s")) == pytest.approx(2.481 / 19.2)
    with pytest.raises(InputError, match=r"zen6-cxl has no migration\.copy_limit"):
        bandwidth_share(1, 1, load_machine("zen6-cxl"))
    with pytest.raises(InputError, match="no time passed"):
        bandwidth_share(1, 0, ZEN3)
