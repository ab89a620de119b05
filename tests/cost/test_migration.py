import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.cost.machines import load_machine, machine_from_dict, machine_names
from memmodel.cost.migration import MigrationCounts, migration_of, optional_ns, pages_per_s, price_migration
from memmodel.cost.model import CopyCounts, price
from memmodel.cost.offload import DmaChannels, Threads
from memmodel.cost.published_migration import published_migration_rates
from memmodel.errors import InputError
from memmodel.studies.folio_size import move_counts

MACHINES = [name for name in machine_names() if load_machine(name).migration is not None]
ZEN3 = load_machine("zen3-32c")
ZEN6 = load_machine("zen6-cxl")
NOTHING = MigrationCounts(*[0] * 11, extent_bytes=4096, direction=0)
COUNTED = MigrationCounts._fields[:11]
COUNTS = st.lists(st.integers(0, 10**9), min_size=11, max_size=11)
OFFLOADS = st.sampled_from([None, Threads(1), Threads(8), Threads(16, "fill"), DmaChannels(4, 0), DmaChannels(16, 3)])


def counts_of(values: list[int], extent: int = 4096) -> MigrationCounts:
    return MigrationCounts(*values, extent_bytes=extent, direction=0)


def test_price_migration__by_hand() -> None:
    counts = MigrationCounts(
        n_calls=2,
        n_folios=10,
        n_pages=160,
        n_ptes_unmapped=320,
        n_ptes_remapped=300,
        n_flushes_full=3,
        n_flushes_page=40,
        n_flush_requests=5,
        n_ipis=70,
        n_copy_calls=160,
        bytes_copied=160 * 4096,
        extent_bytes=4096,
        direction=0,
    )
    time = price_migration(counts, load_machine("haswell-2s"))
    assert time.call_ns == 2 * 5553
    assert time.unmap_ns == time.remap_ns == 0
    assert time.flush_ns == 3 * 6351 + 40 * 100 + 5 * 1000 + 70 * 200
    assert time.copy_ns == pytest.approx(160 * 1651)
    assert time.folio_ns == 10 * 23307
    assert time.total_ns == pytest.approx(float(sum(time[:6])))
    zen3 = price_migration(counts, ZEN3)
    assert zen3.unmap_ns == pytest.approx(320 * 110.1)
    assert zen3.remap_ns == pytest.approx(300 * 110.1)


def test_price_migration__broadcast_sends_no_ipis() -> None:
    counts = NOTHING._replace(n_flush_requests=4, n_ipis=4 * 35)
    assert price_migration(counts, ZEN3).flush_ns == 4 * 1000 + 4 * 35 * 200
    assert price_migration(counts, ZEN3, broadcast=True).flush_ns == 4 * 2730
    with pytest.raises(InputError, match=r"haswell-2s has no migration\.flush_broadcast"):
        price_migration(counts, load_machine("haswell-2s"), broadcast=True)


def test_price_migration__is_the_copy_model_where_only_copies_and_folios_count() -> None:
    n, direction = 1 << 18, np.arange(4)
    for extent in (4096, 2 << 20):
        counts = NOTHING._replace(
            n_folios=512,
            bytes_copied=n * 4096,
            n_copy_calls=n * 4096 / extent,
            extent_bytes=extent,
            direction=direction,
        )
        for form in "LF":
            expected = price(CopyCounts(n * 4096, extent, n * 4096 / extent, 512, direction), ZEN6, form)
            found = price_migration(counts, ZEN6, form)
            assert np.array_equal(found.copy_ns, expected.copy_ns)
            assert np.allclose(found.total_ns, expected.total_ns)
            assert np.array_equal(found.calibrated, expected.calibrated)


def test_price_migration__folio_size_points() -> None:
    rates = [r for r in published_migration_rates() if r.table == "folio_size" and r.impl == "page_by_page"]
    assert len(rates) == 20
    chi2 = 0.0
    for rate in rates:
        pages = rate.folio_kib // 4
        time = price_migration(move_counts((1 << 18) // pages, pages, by_folio=False), ZEN3)
        ratio = rate.gb_per_s * float(time.total_ns) / (1 << 30)
        chi2 += ((ratio - 1) / np.hypot(rate.sd / rate.gb_per_s, 0.03)) ** 2
    assert chi2 / (20 - 3) <= 1.2
    assert chi2 / (20 - 3) == pytest.approx(0.77, abs=0.01)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(MACHINES), COUNTS, st.sampled_from(COUNTED), st.integers(0, 10**9), OFFLOADS, st.booleans())
def test_price_migration__monotone_in_each_count(
    name: str, values: list[int], field: str, more: int, offload: object, broadcast: bool
) -> None:
    machine = load_machine(name)
    options = priced_options(machine, offload, broadcast)
    low = counts_of(values)
    high = low._replace(**{field: getattr(low, field) + more})
    for before, after in zip(
        price_migration(low, machine, **options)[:-1], price_migration(high, machine, **options)[:-1], strict=True
    ):
        assert after >= before


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(MACHINES), COUNTS, COUNTS, st.integers(4096, 1 << 30), OFFLOADS, st.booleans())
def test_price_migration__of_a_sum_is_the_sum_of_prices(
    name: str, one: list[int], other: list[int], extent: int, offload: object, broadcast: bool
) -> None:
    machine = load_machine(name)
    options = priced_options(machine, offload, broadcast)
    if isinstance(offload, DmaChannels):  # its batches are no part of the counts
        options["offload"] = DmaChannels(offload.n_channels, 0) if "offload" in options else None
    parts = [price_migration(counts_of(values, extent), machine, **options) for values in (one, other)]
    both = price_migration(counts_of([a + b for a, b in zip(one, other, strict=True)], extent), machine, **options)
    for a, b, whole in zip(*(part[:-1] for part in parts), both[:-1], strict=True):
        assert whole == pytest.approx(float(a + b), rel=1e-12)


def priced_options(machine: object, offload: object, broadcast: bool) -> dict[str, object]:
    """What of the options the machine has numbers for."""
    part = migration_of(machine)  # type: ignore[arg-type]
    there = (isinstance(offload, Threads) and part.threads) or (isinstance(offload, DmaChannels) and part.dma)
    options: dict[str, object] = {"broadcast": broadcast and part.flush_broadcast is not None}
    return options | ({"offload": offload} if there else {})


def test_pages_per_s__over_the_time() -> None:
    time = price_migration(move_counts(1 << 18, 1, by_folio=False), ZEN3)
    assert pages_per_s(1 << 18, time.total_ns) == pytest.approx(1e9 / (375 + 220.2 + 574.5), rel=1e-4)
    assert np.isnan(pages_per_s([1, 0], [0, 0])).all()


def test_price_migration__broadcasts_counts() -> None:
    counts = NOTHING._replace(n_folios=np.arange(3)[:, None], n_calls=np.ones(4))
    time = price_migration(counts, ZEN3)
    assert all(array.shape == (3, 4) for array in time)
    with pytest.raises(InputError, match=r"do not broadcast: n_calls \(2,\)"):
        price_migration(counts._replace(n_calls=np.ones(2), n_ipis=np.ones(3)), ZEN3)


@pytest.mark.parametrize(("field", "value"), [("n_ipis", -1), ("n_folios", np.nan), ("n_ptes_unmapped", [1, np.inf])])
def test_price_migration__refuses_what_is_no_count(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{field}: .* is not a count"):
        price_migration(NOTHING._replace(**{field: value}), ZEN3)


def test_price_migration__refuses_a_machine_without_the_part() -> None:
    with pytest.raises(InputError, match="machine westmere has no migration part"):
        price_migration(NOTHING, load_machine("westmere"))
    with pytest.raises(InputError, match=r"zen6-cxl has no migration\.ipi_handler: no source"):
        optional_ns(ZEN6, "ipi_handler")
    with pytest.raises(InputError, match="no memory time for DRAM-CXL"):
        price_migration(NOTHING._replace(direction=2), ZEN3)


def test_price_migration__calibrated_while_no_assumed_number_counts() -> None:
    thps = move_counts(512, 512, by_folio=False)
    assert price_migration(thps, ZEN3).calibrated
    assert not price_migration(thps._replace(n_flush_requests=1), ZEN3).calibrated
    assert price_migration(thps._replace(n_flush_requests=1), ZEN3, broadcast=True).calibrated
    assert not price_migration(thps._replace(n_ptes_unmapped=1), ZEN6).calibrated
    assert not price_migration(thps, ZEN3, offload=Threads(2)).calibrated


def test_migration_part__derived_numbers_follow_from_their_sources() -> None:
    part = migration_of(ZEN3)
    assert part.call.value == pytest.approx((17799 - 3478.42) / 2, rel=1e-3)
    assert part.dma is not None
    assert part.dma.batch.value == pytest.approx((32222.4 - 10971.6) / 2, rel=3e-3)
    loop_ns = 36 / 527e3 * 1e9  # CPU time of a loop of tlb_flush2_threads
    assert part.flush_broadcast is not None
    assert part.flush_broadcast.value == pytest.approx(0.04 * loop_ns, rel=2e-3)
    assert part.ipi_handler is not None
    assert part.ipi_handler.value == pytest.approx(0.40 * loop_ns / 35, rel=2e-3)
    assert part.unmap_pte == part.remap_pte
    arm64 = load_machine("arm64-128c")
    page_ns = 2.068e9 / (1 << 18)
    assert arm64.memory[0][1].value == pytest.approx(0.4234 * page_ns, rel=1e-3)
    assert migration_of(arm64).flush_page.value == pytest.approx(0.2778 * page_ns, rel=1e-3)
    assert migration_of(arm64).unmap_pte.value == pytest.approx((0.3235 - 0.2778) * page_ns, rel=2e-3)
    assert arm64.folio_overhead.value == pytest.approx((1 - 0.4234 - 0.3235) * page_ns, rel=1e-3)


def test_migration_part__survives_its_table() -> None:
    for name in MACHINES:
        machine = load_machine(name)
        assert machine_from_dict(name, machine.as_dict(), "test") == machine
