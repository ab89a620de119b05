from collections import Counter

import pytest

from memmodel.cost.published import published_copy_table


def test_published_copy_table__sixteen_cells() -> None:
    cells = published_copy_table()
    assert len(cells) == 16
    assert len({(cell.direction, cell.folio_order, cell.batch) for cell in cells}) == 16
    assert Counter(cell.folio_order for cell in cells) == {9: 8, 18: 8}
    assert {cell.n_runs for cell in cells} == {10}


def test_published_copy_table__one_cell_is_not_usable() -> None:
    (bad,) = [cell for cell in published_copy_table() if not cell.usable]
    assert (bad.direction, bad.folio, bad.kernel) == ("D1-D0", "1GB", "base")
    assert bad.reason
    assert bad.sd_gib_per_s / bad.mean_gib_per_s > 0.13


@pytest.mark.parametrize(
    ("place", "mean", "sd", "ns"),
    [
        (("D0-D1", 9, "page"), 19.57, 0.17, 194.9),
        (("D0-D1", 18, "extent"), 53.88, 1.48, 70.8),
        (("CXL-D0", 9, "extent"), 16.60, 0.24, 229.8),
        (("D0-CXL", 18, "extent"), 44.10, 0.19, 86.5),
    ],
)
def test_published_copy_table__values(place: tuple[str, int, str], mean: float, sd: float, ns: float) -> None:
    (cell,) = [c for c in published_copy_table() if (c.direction, c.folio_order, c.batch) == place]
    assert (cell.mean_gib_per_s, cell.sd_gib_per_s) == (mean, sd)
    assert cell.ns_per_page == pytest.approx(ns, abs=0.05)


def test_relative_error__of_the_mean_and_systematic() -> None:
    cell = published_copy_table()[0]
    assert cell.relative_error == pytest.approx(((0.17 / 19.57) ** 2 / 10 + 0.015**2) ** 0.5)


def test_published_copy_table__speedups_as_printed() -> None:
    rates = {(c.direction, c.folio_order, c.batch): c.mean_gib_per_s for c in published_copy_table()}
    printed = {"D0-D1": (1.41, 2.65), "D1-D0": (1.41, 2.82), "D0-CXL": (1.44, 2.26), "CXL-D0": (1.08, 1.27)}
    for direction, speedups in printed.items():
        for order, speedup in zip((9, 18), speedups, strict=True):
            ratio = rates[direction, order, "extent"] / rates[direction, order, "page"]
            assert ratio == pytest.approx(speedup, abs=0.006)
