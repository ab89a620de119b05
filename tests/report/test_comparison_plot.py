from pathlib import Path

import pytest

from memmodel.errors import InputError
from memmodel.report.comparison import plot_comparison
from memmodel.studies.comparison import Row, as_dataset

ROWS = [
    Row("first table", "a", 10.0, 11.0, "GB/s", "mail", True),
    Row("first table", "b", 10.0, 9.0, "GB/s", "mail", False),
    Row("second table", "c", 4.0, 3.0, "us", "other", False),
]


def coloured(path: Path) -> float:
    """Share of the picture that is neither grey nor white: the markers."""
    from matplotlib.image import imread

    pixels = imread(path)[..., :3]
    return float((pixels.max(axis=-1) - pixels.min(axis=-1) > 0.2).mean())


def test_plot_comparison__predicted_rows_are_filled(tmp_path: Path) -> None:
    shares = []
    for calibrated in (True, False):
        rows = [Row(r.table, r.label, r.published, r.modelled, r.units, r.source, calibrated) for r in ROWS]
        plot_comparison(as_dataset(rows, "Title", "script.py"), tmp_path / f"{calibrated}.png")
        shares.append(coloured(tmp_path / f"{calibrated}.png"))
    assert 0 < shares[0] < shares[1]


def test_plot_comparison__refuses_another_dataset(tmp_path: Path) -> None:
    ds = as_dataset(ROWS, "Title", "script.py")
    with pytest.raises(InputError, match="kind over row is not in the Dataset"):
        plot_comparison(ds.drop_vars("kind"), tmp_path / "p.png")
    with pytest.raises(InputError, match="no picture format"):
        plot_comparison(ds, tmp_path / "p.txt")
    assert not list(tmp_path.iterdir())
