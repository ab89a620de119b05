import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memmodel.cost.machines import load_machine
from memmodel.cost.offload import DmaChannels, Offload, Threads, ccds_used, offload_copy_ns
from memmodel.cost.published_migration import published_migration_rates
from memmodel.errors import InputError
from memmodel.studies.comparison import rms_percent
from memmodel.studies.folio_size import folio_size_rows

ZEN3 = load_machine("zen3-32c")
PAGES = 512


def page_ns(offload: Offload, extent: int = 2 << 20) -> float:
    return float(offload_copy_ns(375.0 * PAGES, PAGES * 4096, extent, ZEN3, offload)) / PAGES


def test_threads__one_copies_as_the_cpu_itself() -> None:
    assert page_ns(Threads(1)) == 375
    assert page_ns(Threads(8, "fill")) == 375


def test_threads__twice_as_many_ccds_up_to_the_socket() -> None:
    assert page_ns(Threads(2)) == pytest.approx(375 / 1.632)
    assert page_ns(Threads(4)) == pytest.approx(375 / 1.632**2)
    assert page_ns(Threads(8)) == page_ns(Threads(16)) == pytest.approx(119.2)
    assert page_ns(Threads(16, "fill")) == page_ns(Threads(2))


def test_threads__placement_is_met_though_not_fitted() -> None:
    rows = [row for row in folio_size_rows() if "placement" in row.table]
    assert len(rows) == 10
    assert not any(row.calibrated for row in rows)
    assert rms_percent(rows) < 5
    spread, fill = (next(r for r in rows if f"8 threads, {place}" in r.label) for place in ("spread", "fill"))
    assert spread.modelled / fill.modelled == pytest.approx(spread.published / fill.published, rel=0.1)


def test_dma__measured_channels_and_between() -> None:
    assert page_ns(DmaChannels(16, 0)) == pytest.approx(62.9)
    assert 93.2 > page_ns(DmaChannels(10, 0)) > 66.4
    assert page_ns(DmaChannels(4, 0), 65536) == pytest.approx(151.2 + 308.7 / 4)
    assert page_ns(DmaChannels(4, 3)) == pytest.approx(151.2 + 3 * 10600 / PAGES)


def test_dma__every_channel_count_of_the_tables_is_there() -> None:
    counts = {rate.n for rate in published_migration_rates() if rate.impl == "dma"}
    part = ZEN3.migration
    assert part is not None
    assert part.dma is not None
    assert counts == {count for count, _ in part.dma.channels}


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from(["spread", "fill"]))
def test_threads__more_are_never_slower(one: int, other: int, placement: str) -> None:
    few, many = sorted((one, other))
    assert page_ns(Threads(many, placement)) <= page_ns(Threads(few, placement))
    assert page_ns(Threads(many)) <= page_ns(Threads(many, placement))


@given(st.floats(1, 16), st.floats(1, 16), st.sampled_from([4096, 65536, 2 << 20]))
def test_dma__more_channels_are_never_slower(one: float, other: float, extent: int) -> None:
    few, many = sorted((one, other))
    assert page_ns(DmaChannels(many), extent) <= page_ns(DmaChannels(few), extent) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("offload", "message"),
    [
        (Threads(0), "0 threads; whole numbers from 1 to 64 have room"),
        (Threads([4, 65]), "65 threads"),
        (Threads(2.5), "2.5 threads"),
        (Threads(np.nan), "nan threads"),
        (Threads(2, "near"), "unknown placement 'near'; one of: spread, fill"),
        (DmaChannels(0), "0 DMA channels; from 1 to 16 were measured"),
        (DmaChannels(17), "17 DMA channels"),
    ],
)
def test_offload__refuses_what_was_not_measured(offload: Offload, message: str) -> None:
    with pytest.raises(InputError) as caught:
        page_ns(offload)
    assert message in str(caught.value)


def test_offload__refuses_a_machine_without_the_part() -> None:
    for offload, part in ((Threads(2), "threads"), (DmaChannels(2), "dma")):
        for name in ("zen6-cxl", "zen5-cxl"):
            with pytest.raises(InputError, match=rf"{name} has no migration\.{part}"):
                offload_copy_ns(1.0, 4096, 4096, load_machine(name), offload)


def test_ccds_used__by_placement() -> None:
    part = ZEN3.migration
    assert part is not None
    assert part.threads is not None
    assert ccds_used(Threads([1, 7, 8, 9, 64]), part.threads).tolist() == [1, 7, 8, 8, 8]
    assert ccds_used(Threads([1, 7, 8, 9, 64], "fill"), part.threads).tolist() == [1, 1, 1, 2, 8]
