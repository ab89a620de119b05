from pathlib import Path

import numpy as np
import pytest

from memmodel.cost.calibrate import CopyCells, fit_limit, fit_overlap, leave_one_out_percent, machine_from_fit
from memmodel.cost.machines import PAIR_OF_DIRECTION, Machine, load_machine
from memmodel.cost.model import CopyCounts, direction_codes, interpolate, overlap, price
from memmodel.cost.published import published_copy_table
from memmodel.errors import InputError

KNOTS = (4 << 10, 2 << 20, 32 << 20)


def published_cells() -> CopyCells:
    cells = [cell for cell in published_copy_table() if cell.usable]
    pages = np.array([2.0**cell.folio_order for cell in cells])
    return CopyCells(
        extent_bytes=4096 * np.where([cell.batch == "extent" for cell in cells], pages, 1.0),
        pair=np.array(PAIR_OF_DIRECTION)[direction_codes([cell.direction for cell in cells])],
        pages_per_folio=pages,
        ns_per_page=np.array([cell.ns_per_page for cell in cells]),
        relative_error=np.array([cell.relative_error for cell in cells]),
    )


def host_cells(noise: float = 0.0) -> CopyCells:
    """A host with one pair of memories: 90 ns of memory, core time falling with the extent."""
    extents = np.repeat(4096.0 * 2.0 ** np.arange(0, 15, 2), 5)
    core = interpolate(extents, KNOTS, [150.0, 60.0, 0.0])
    factor = np.exp(noise * np.random.default_rng(1).standard_normal(extents.size))
    return CopyCells(
        extent_bytes=extents,
        pair=np.zeros(extents.size, np.intp),
        pages_per_folio=np.full(extents.size, np.inf),
        ns_per_page=overlap(core, 90.0, 2.0) * factor,
        relative_error=np.full(extents.size, max(noise, 0.01)),
    )


def test_fit_overlap__reproduces_the_file() -> None:
    fit = fit_overlap(published_cells(), KNOTS)
    machine = load_machine("zen6-cxl")
    for pair, number in machine.memory:
        assert round(fit.values[f"memory.{pair}"], 1) == number.value
    assert round(fit.values["core.4 KiB"], 1) == machine.core[0][1].value
    assert round(fit.values["core.2 MiB"], 1) == machine.core[1][1].value
    assert round(fit.values["folio_overhead"]) == machine.folio_overhead.value
    assert round(fit.values["overlap_exponent"], 3) == machine.overlap_exponent.value
    assert len(fit.values) == 7


def test_fit_overlap__quality() -> None:
    cells = published_cells()
    percent = fit_overlap(cells, KNOTS).residual_percent(cells)
    assert np.sqrt(np.mean(percent**2)) == pytest.approx(2.13, abs=0.01)
    assert np.abs(percent).max() == pytest.approx(5.79, abs=0.01)


def test_fit_overlap__agrees_with_price() -> None:
    cells = published_cells()
    machine = machine_from_fit("zen6", "", fit_overlap(cells, KNOTS), KNOTS, "test")
    codes = np.array([0, 2, 3])[cells.pair]
    n_bytes = cells.pages_per_folio * 4096
    time = price(CopyCounts(n_bytes, cells.extent_bytes, 1, 1, codes), machine)
    assert time.total_ns / cells.pages_per_folio == pytest.approx(fit_overlap(cells, KNOTS).predict(cells))


def test_fit_limit__reproduces_the_file() -> None:
    fit = fit_limit(published_cells(), KNOTS[0], KNOTS[1:])
    limit = load_machine("zen6-cxl").limit
    assert limit is not None
    for pair, knots in limit.memory:
        found = [round(fit.values[f"limit.memory.{pair}.{name}"], 1) for name in ("2 MiB", "32 MiB")]
        assert found == [number.value for _, number in knots]
    assert round(fit.values["limit.core.4 KiB"], 1) == limit.core[0][1].value
    assert round(fit.values["limit.per_call"], 1) == limit.per_call.value
    assert round(fit.values["limit.folio_overhead"]) == limit.folio_overhead.value


def test_leave_one_out_percent__zen6() -> None:
    percent = leave_one_out_percent(lambda cells: fit_overlap(cells, KNOTS), published_cells())
    assert np.sqrt(np.mean(percent**2)) == pytest.approx(5.47, abs=0.05)
    assert np.median(np.abs(percent)) == pytest.approx(1.93, abs=0.05)


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 1e-4), (0.01, 0.05)])
def test_fit_overlap__host_of_one_pair(noise: float, tolerance: float) -> None:
    fit = fit_overlap(host_cells(noise), KNOTS, exponent=2.0)
    assert set(fit.values) == {"memory.DRAM-DRAM", "core.4 KiB", "core.2 MiB"}
    assert fit.values["memory.DRAM-DRAM"] == pytest.approx(90.0, rel=tolerance)
    assert fit.values["core.4 KiB"] == pytest.approx(150.0, rel=tolerance)
    assert fit.values["core.2 MiB"] == pytest.approx(60.0, rel=4 * tolerance)


def test_machine_from_fit__round_trip(tmp_path: Path) -> None:
    fit = fit_overlap(host_cells(), KNOTS, exponent=2.0)
    machine = machine_from_fit("host", "a host", fit, KNOTS, "measured here")
    assert isinstance(machine, Machine)
    assert [(extent, number.how) for extent, number in machine.core] == [
        (4 << 10, "fitted"),
        (2 << 20, "fitted"),
        (32 << 20, "assumed"),
    ]
    assert machine.folio_overhead.how == "assumed"
    path = tmp_path / "host.toml"
    path.write_text(machine.to_toml(), encoding="utf-8")
    assert load_machine(path) == machine


def test_fit_overlap__refusals() -> None:
    cells = host_cells()
    with pytest.raises(InputError, match="one pair of memories do not tell"):
        fit_overlap(cells, KNOTS)
    with pytest.raises(InputError, match=r"2 cells are too few for 3 numbers: memory\.DRAM-DRAM, core\.4 KiB"):
        fit_overlap(cells.keep(np.arange(cells.pair.size) < 2), KNOTS, exponent=2.0)
    with pytest.raises(InputError, match="ns_per_page: every cell must be a positive number"):
        fit_overlap(cells._replace(ns_per_page=cells.ns_per_page * np.nan), KNOTS, exponent=2.0)
