from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from memmodel.cost import (
    DIRECTIONS,
    CopyCounts,
    direction_codes,
    load_machine,
    price,
    published_copy_table,
    throughput_gib_per_s,
)
from memmodel.errors import InputError
from memmodel.report import plots
from memmodel.report.plots import plot_copy_table, plot_dataset

TABLE_DIMS = ("direction", "folio_order", "batch")


def copy_table() -> xr.Dataset:
    orders, batches = [9, 18], ["page", "extent"]
    published, sd = np.full((2, 4, 2, 2), np.nan)
    for cell in published_copy_table():
        at = DIRECTIONS.index(cell.direction), orders.index(cell.folio_order), batches.index(cell.batch)
        published[at], sd[at] = cell.mean_gib_per_s, cell.sd_gib_per_s
    n_bytes = 4096 * 2.0 ** np.array(orders)[:, None]
    extent = np.where([False, True], n_bytes, 4096.0)
    codes = direction_codes(list(DIRECTIONS))[:, None, None]
    time = price(CopyCounts(n_bytes, extent, n_bytes / extent, 1, codes), load_machine("zen6-cxl"))
    rate = throughput_gib_per_s(n_bytes, time.total_ns)
    return xr.Dataset(
        {
            "throughput_gib_per_s": (TABLE_DIMS, rate),
            "published_throughput_gib_per_s": (TABLE_DIMS, published),
            "published_sd_gib_per_s": (TABLE_DIMS, sd),
            "residual_percent": (TABLE_DIMS, 100 * (rate / published - 1)),
        },
        coords={"direction": list(DIRECTIONS), "folio_order": orders, "batch": batches},
    )


def sweep(**sizes: Any) -> xr.Dataset:
    """A Dataset over the given coordinates, with a value that differs at every point."""
    shape = [len(values) for values in sizes.values()]
    values = 1.0 + np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape)
    data = {"rate": (list(sizes), values, {"long_name": "copy rate", "units": "GiB s-1"})}
    return xr.Dataset(data, coords={name: list(values) for name, values in sizes.items()})


def ink(path: Path) -> float:
    """Share of the picture that is not white."""
    from matplotlib.image import imread

    return float((imread(path)[..., :3] < 0.97).any(axis=-1).mean())


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that plot_dataset saves."""
    figures: list[Any] = []
    write = plots.save

    def keep(figure: Any, path: Any) -> None:
        figures.append(figure)
        write(figure, path)

    monkeypatch.setattr(plots, "save", keep)
    return figures


def test_plot_copy_table__is_drawn(tmp_path: Path) -> None:
    plot_copy_table(copy_table(), tmp_path / "table.png")
    assert 0.1 < ink(tmp_path / "table.png") < 0.6


def test_plot_copy_table__dims_in_any_order_and_one_folio_size(tmp_path: Path) -> None:
    ds = copy_table().sel(folio_order=[9]).transpose("batch", "folio_order", "direction")
    plot_copy_table(ds, tmp_path / "table.svg")
    text = (tmp_path / "table.svg").read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    assert len(text) > 10_000


@pytest.mark.parametrize("name", ["residual_percent", "published_sd_gib_per_s"])
def test_plot_copy_table__missing_variable(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name} over direction, folio_order, batch is not in the Dataset"):
        plot_copy_table(copy_table().drop_vars(name), tmp_path / "table.png")


def test_plot_dataset__one_numeric_dim(tmp_path: Path, drawn: list[Any]) -> None:
    plot_dataset(sweep(folio_order=[0, 4, 9, 18]), tmp_path / "a.png")
    (axes,) = drawn[0].axes
    assert axes.get_ylabel() == "copy rate (GiB/s)"
    assert axes.get_xlabel() == "folio order"
    assert axes.get_xscale() == "linear"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "4", "9", "18"]
    assert not drawn[0].legends
    assert ink(tmp_path / "a.png") > 0.01


def test_plot_dataset__lines_and_panels(tmp_path: Path, drawn: list[Any]) -> None:
    ds = sweep(direction=["D0-D1", "D0-CXL"], folio_order=[0, 4, 9], batch=["page", "extent"])
    plot_dataset(ds, tmp_path / "a.png")
    axes = drawn[0].axes
    assert [panel.get_title() for panel in axes] == ["batch: page", "batch: extent"]
    assert [len(panel.containers) for panel in axes] == [2, 2]
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["D0-D1", "D0-CXL"]
    line = axes[1].containers[0].lines[0]
    assert line.get_ydata().tolist() == ds["rate"].sel(direction="D0-D1", batch="extent").values.tolist()


@pytest.mark.parametrize(
    ("levels", "scale"),
    [([1, 10, 100], "log"), ([4096, 65536, 2097152], "log"), ([0, 0.1, 10], "symlog"), ([1, 2, 50], "linear")],
)
def test_plot_dataset__scale_of_a_coordinate(levels: list[float], scale: str, tmp_path: Path, drawn: list[Any]) -> None:
    plot_dataset(sweep(level=levels), tmp_path / "a.png")
    assert drawn[0].axes[0].get_xscale() == scale


def test_plot_dataset__bytes_are_written_as_sizes(tmp_path: Path, drawn: list[Any]) -> None:
    ds = sweep(extent=[4096 << i for i in range(0, 18, 2)])
    ds["extent"].attrs = {"units": "byte", "long_name": "extent"}
    plot_dataset(ds, tmp_path / "a.png")
    axes = drawn[0].axes[0]
    assert axes.get_xlabel() == "extent (bytes)"
    assert [label.get_text() for label in axes.get_xticklabels()][:2] == ["4 KiB", "16 KiB"]


def test_plot_dataset__categories_alone(tmp_path: Path, drawn: list[Any]) -> None:
    plot_dataset(sweep(engine=["fragile", "fast_string"], preempt=["none", "full"]), tmp_path / "a.png")
    axes = drawn[0].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["fragile", "fast_string"]
    assert axes.containers[0].lines[0].get_linestyle() == "None"


def test_plot_dataset__replicates_become_mean_and_spread(tmp_path: Path, drawn: list[Any]) -> None:
    ds = sweep(folio_order=[0, 9], replicate=[0, 1, 2])
    plot_dataset(ds, tmp_path / "a.png")
    container = drawn[0].axes[0].containers[0]
    assert container.lines[0].get_ydata().tolist() == [2.0, 5.0]
    assert container.has_yerr
    assert "3 replicates" in drawn[0].get_suptitle()


def test_plot_dataset__a_fourth_dimension_is_kept_at_its_first_level(tmp_path: Path, drawn: list[Any]) -> None:
    ds = sweep(a=[1, 2, 3], b=["x", "y"], c=["u", "v"], preempt=["none", "full"])
    plot_dataset(ds, tmp_path / "a.png")
    assert "preempt = none, the first of 2" in drawn[0].get_suptitle()
    assert len(drawn[0].axes) == 2


def test_plot_dataset__many_numeric_lines_get_a_colour_bar(tmp_path: Path, drawn: list[Any]) -> None:
    plot_dataset(sweep(a=list(range(20)), b=list(range(12))), tmp_path / "a.png")
    assert not drawn[0].legends
    assert [axes.get_ylabel() for axes in drawn[0].axes] == ["copy rate (GiB/s)", "b"]


def test_plot_dataset__too_many_levels_are_cut_and_named(tmp_path: Path, drawn: list[Any]) -> None:
    ds = sweep(a=list(range(40)), b=[f"w{i}" for i in range(30)], c=[f"p{i}" for i in range(14)])
    plot_dataset(ds, tmp_path / "a.png")
    title = drawn[0].get_suptitle().replace("\n", " ")
    assert "the first 12 of 14 levels of c" in title
    assert "the first 24 of 30 levels of b" in title


def test_plot_dataset__failed_points_leave_gaps(tmp_path: Path, drawn: list[Any]) -> None:
    ds = sweep(folio_order=[0, 4, 9])
    ds["rate"][1] = np.nan
    plot_dataset(ds, tmp_path / "a.png")
    assert np.isnan(drawn[0].axes[0].containers[0].lines[0].get_ydata()[1])


def test_plot_dataset__chosen_variable_and_constants(tmp_path: Path, drawn: list[Any]) -> None:
    ds = sweep(folio_order=[0, 4, 9]).assign_coords(preempt="full")
    ds["status"] = ("folio_order", np.array([0, 0, 1], np.int8), {"flag_values": [0, 1], "units": "1"})
    plot_dataset(ds, tmp_path / "a.png", "status")
    assert drawn[0].axes[0].get_ylabel() == "status"
    assert drawn[0].get_supxlabel() == "preempt = full"
    plot_dataset(ds, tmp_path / "a.png")
    assert drawn[1].axes[0].get_ylabel() == "copy rate (GiB/s)"


def test_plot_dataset__refusals(tmp_path: Path) -> None:
    ds = sweep(folio_order=[0, 4])
    with pytest.raises(InputError, match="'speed' is not a variable with numbers; those are: rate"):
        plot_dataset(ds, tmp_path / "a.png", "speed")
    with pytest.raises(InputError, match="nothing is swept; rate has one value, 1"):
        plot_dataset(sweep(folio_order=[0]), tmp_path / "a.png")
    with pytest.raises(InputError, match="rate has no finite value"):
        plot_dataset(ds * np.nan, tmp_path / "a.png")
    with pytest.raises(InputError, match="the Dataset has no variable with numbers"):
        plot_dataset(xr.Dataset({"name": ("x", ["a", "b"])}), tmp_path / "a.png")


@pytest.mark.parametrize("draw", [plot_dataset, plot_copy_table])
def test_plot__bad_path(draw: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no picture format; end the name in one of: .*png"):
        draw(copy_table(), tmp_path / "a.doc")
    with pytest.raises(InputError, match="no picture format"):
        draw(copy_table(), tmp_path / "picture")
    with pytest.raises(InputError, match="there is no directory"):
        draw(copy_table(), tmp_path / "none" / "a.png")
    (tmp_path / "dir.png").mkdir()
    with pytest.raises(InputError, match=r"dir\.png: cannot be written: Is a directory"):
        draw(copy_table(), tmp_path / "dir.png")
    assert not list(tmp_path.glob("*.doc"))
