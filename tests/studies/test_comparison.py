import numpy as np
import pytest

from memmodel.studies.comparison import Row, as_dataset, rms_percent, text_lines, worst
from memmodel.studies.folio_size import folio_size_rows, thp_copy_rows

ROWS = (
    Row("one", "a", 10.0, 11.0, "GB/s", "mail", True, 0.5),
    Row("one", "b", 10.0, 9.8, "GB/s", "mail", False),
    Row("two", "c", 4.0, 3.0, "us", "other", False),
)


def test_rows__residuals() -> None:
    assert [row.residual_percent for row in ROWS] == [pytest.approx(x) for x in (10.0, -2.0, -25.0)]
    assert rms_percent(ROWS) == pytest.approx(np.sqrt((100 + 4 + 625) / 3))
    assert worst(ROWS).label == "c"


def test_text_lines__a_block_a_table_and_a_summary() -> None:
    text = "\n".join(text_lines(ROWS))
    assert text.index("one") < text.index("two") < text.index("all: 3 rows, rms 15.6 %, worst -25.0 % (c, predicted)")
    assert "10 ± 0.50" in text
    assert "2 rows, rms 7.2 %, worst +10.0 % (a, calibrated)" in text


def test_as_dataset__labels_every_row() -> None:
    ds = as_dataset(ROWS, "Title", "script.py")
    assert ds["row"].values.tolist() == ["one: a", "one: b", "two: c"]
    assert ds["row_units"].values.tolist() == ["GB/s", "GB/s", "us"]
    assert ds["kind"].values.tolist() == [1, 0, 0]
    assert ds["kind"].attrs["flag_meanings"] == "predicted calibrated"
    assert all(var.attrs["units"] and var.attrs["long_name"] for var in ds.variables.values())


def test_folio_size_rows__figures() -> None:
    def table(words: str) -> list[Row]:
        return [row for row in folio_size_rows() if words in row.table]

    baseline, threads, dma = map(table, ("size, page by page", "size, copied by threads", "size, copied by DMA"))
    assert len(baseline) == 20
    assert rms_percent(baseline) < 4.5
    assert rms_percent(threads) < 8
    assert rms_percent([row for row in dma if "2048 KiB" in row.label and row.calibrated]) < 6
    assert abs(worst(dma).residual_percent) > 50  # no simple form meets one channel with small folios


def test_thp_copy_rows__batched_to_one_percent_and_total_rates_to_one() -> None:
    rows = thp_copy_rows()
    total = [row for row in rows if "total" in row.table and row.calibrated]
    assert len(total) == 13
    assert max(abs(row.residual_percent) for row in total) < 1
    together = [row for row in rows if "besides" in row.table and "together" in row.label]
    assert len(together) == 4
    assert max(abs(row.residual_percent) for row in together) <= 1.5
    alone = [row for row in rows if "besides" in row.table and "alone" in row.label and row.calibrated]
    assert max(abs(row.residual_percent) for row in alone) <= 10
