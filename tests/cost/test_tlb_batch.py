import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memmodel.cost.tlb_batch import (
    READINGS,
    pages_per_flush_of,
    published_tlb_mail,
    time_without_flushes,
    tlb_batch_gain,
)
from memmodel.errors import InputError
from memmodel.studies.tlb_table import reading_lines, tlb_batch_rows

MAIL = published_tlb_mail()


def test_published_tlb_mail__the_two_numbers_and_perf() -> None:
    assert (MAIL.ipis, MAIL.pages_per_s) == (pytest.approx(0.991), pytest.approx(2.917))
    assert MAIL.flush_share == pytest.approx(2.39 / 2.87)
    assert MAIL.bound == pytest.approx(5.98, abs=0.005)
    assert MAIL.flush_share_alone == pytest.approx(0.751, abs=0.001)


def test_published_tlb_mail__both_readings() -> None:
    assert MAIL.pages_per_flush("equal_pages") == pytest.approx(111, abs=0.5)
    assert MAIL.pages_per_flush("equal_time") == pytest.approx(435, abs=0.5)
    assert MAIL.rest_growth("equal_time") == pytest.approx(1.52, abs=0.01)
    for reading in READINGS:
        gain = tlb_batch_gain(MAIL.pages_per_flush(reading), MAIL.flush_share, MAIL.rest_growth(reading))
        assert float(gain.pages_per_s) == pytest.approx(2.917)
        assert float(getattr(gain, f"ipis_{reading}")) == pytest.approx(0.991)


def test_published_tlb_mail__phases_add_up_to_the_new_time() -> None:
    phases = MAIL.new_flush, MAIL.new_copy, MAIL.new_other
    assert phases == (pytest.approx(0.021, abs=5e-4), pytest.approx(0.112, abs=5e-4), pytest.approx(0.123, abs=5e-4))
    assert sum(phases) == pytest.approx(1 / 3.917)
    assert MAIL.new_copy + MAIL.new_other > 1 - MAIL.flush_share  # the rest became dearer


@pytest.mark.parametrize(("n", "pages", "time"), [(64, 98.44, 93.9), (256, 99.61, 98.5), (512, 99.80, 99.24)])
def test_tlb_batch_gain__ipis_by_batch(n: int, pages: float, time: float) -> None:
    """As the sheet's table has it, for the published rate whatever the batch."""
    k = (1 / 3.917 - MAIL.flush_share / n) / (1 - MAIL.flush_share)
    gain = tlb_batch_gain(n, MAIL.flush_share, k)
    assert 100 * float(gain.ipis_equal_pages) == pytest.approx(pages, abs=0.006)
    assert 100 * float(gain.ipis_equal_time) == pytest.approx(time, abs=0.06)


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0, 0.99), st.floats(0.1, 10))
def test_tlb_batch_gain__longer_batches_gain_no_less(one: float, other: float, share: float, growth: float) -> None:
    gain = tlb_batch_gain(sorted((one, other)), share, growth)
    assert gain.pages_per_s[0] <= gain.pages_per_s[1] + 1e-9
    assert gain.ipis_equal_pages[0] <= gain.ipis_equal_pages[1]
    assert np.allclose(gain.flush + gain.rest, gain.page_time)


@given(st.floats(1, 1e5), st.floats(0.01, 0.99), st.floats(0.1, 10))
def test_pages_per_flush_of__finds_the_batch_again(n: float, share: float, growth: float) -> None:
    gain = tlb_batch_gain(n, share, growth)
    assert float(pages_per_flush_of(gain.ipis_equal_pages, 1, "equal_pages")) == pytest.approx(n, rel=1e-6)
    if gain.ipis_equal_time >= 0:
        again = pages_per_flush_of(gain.ipis_equal_time, 1 + gain.pages_per_s, "equal_time")
        assert float(again) == pytest.approx(n, rel=1e-6)


def test_time_without_flushes__their_share_is_gone() -> None:
    assert time_without_flushes(14.69, 0.0536) == pytest.approx(14.69 * (1 - 0.0536))
    assert time_without_flushes(10, 0.5, 2) == pytest.approx(7.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0.5, 0.5), "at least one page"), ((2, 1.0), "from 0 to less than 1"), ((2, 0.5, 0.0), "a positive number")],
)
def test_tlb_batch_gain__refuses(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tlb_batch_gain(*arguments)


def test_pages_per_flush_of__refuses() -> None:
    with pytest.raises(InputError, match="unknown reading 'both'; one of: equal_pages, equal_time"):
        pages_per_flush_of(0.9, 2, "both")
    with pytest.raises(InputError, match="ipis_saved"):
        pages_per_flush_of(1.0, 2, "equal_time")


def test_tlb_batch_rows__figures() -> None:
    rows = {row.label: row for row in tlb_batch_rows()}
    assert len(rows) == 13
    assert rows["IPIs saved over equal time, 512 pages a flush"].modelled == pytest.approx(99.24, abs=0.01)
    assert rows["IPIs saved over equal pages, 512 pages a flush"].modelled == pytest.approx(99.80, abs=0.01)
    arm64 = rows["memhog 1G and migratepages, arm64, 128 CPUs, batched"]
    assert arm64.modelled / (1 << 18) * 1e6 == pytest.approx(5.70, abs=0.01)  # 4.43 us a page were measured
    assert abs(rows["Snapdragon 888 swap"].residual_percent) < 1
    assert rows["riscv in qemu"].residual_percent > 80  # said, not hidden
    fan_out = [row for row in tlb_batch_rows() if "received" in row.table]
    assert all(0 <= row.residual_percent < 7 for row in fan_out)


def test_tlb_batch_rows__take_a_counted_batch() -> None:
    saved = [next(r for r in tlb_batch_rows(n) if "equal time" in r.label).modelled for n in (100, 435, 512)]
    assert saved == sorted(saved)
    assert saved[1] == pytest.approx(99.10, abs=0.01)


def test_reading_lines__both_batches_and_the_phases() -> None:
    text = "\n".join(reading_lines())
    for words in ("111 pages a flush", "435 pages a flush", "1.52 times as dear", "copy 0.112", "5.98 times"):
        assert words in text
