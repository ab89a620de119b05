"""The alignment tables, and the script that shows them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memmodel.geometry import Geometry
from memmodel.mechanisms.reserving import cma_area_bytes
from memmodel.studies.cma_alignment import QUANTITIES, cma_alignment_rows

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce_cma_alignment.py"
MIB = 1 << 20


def test_cma_alignment_rows__all_but_the_known_error():
    rows = cma_alignment_rows()
    assert len(rows) == 24
    assert sum(len(row.published) for row in rows) == 54
    assert {name for row in rows for name in row.published} == set(QUANTITIES)
    (wrong,) = [row for row in rows if not row.agrees]
    assert "6.10" in wrong.erratum
    assert wrong.published == {"max_page_order": 10, "pageblock_order": 10, "cma_min_alignment_bytes": 4 * MIB}
    assert wrong.modelled == {"max_page_order": 10, "pageblock_order": 9, "cma_min_alignment_bytes": 2 * MIB}
    older = wrong.geometry.replace(kernel="6.9").summary()
    assert {name: older[name] for name in wrong.published} == wrong.published
    assert not any(row.erratum for row in rows if row is not wrong)


@pytest.mark.parametrize(("requested", "size"), [(1, 32 * MIB), (32 * MIB, 32 * MIB), (32 * MIB + 1, 64 * MIB)])
def test_cma_area_bytes__whole_units(requested, size):
    assert cma_area_bytes(Geometry(page_size="16KiB"), requested) == size


def run_script(*options):
    env = os.environ | {"PYTHONPATH": str(SCRIPT.parents[1])}
    return subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, env=env)


def test_script__writes_dataset_and_plot(tmp_path):
    import xarray as xr

    out, plot = tmp_path / "cma.nc", tmp_path / "cma.png"
    done = run_script("--out", out, "--plot", plot)
    assert done.returncode == 0, done.stderr
    assert "published in error, see below" in done.stdout
    assert "DIFFERS" not in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    with xr.open_dataset(out) as ds:
        assert all(var.attrs["units"] and var.attrs["long_name"] for var in ds.variables.values())
        assert ds.agreement.values.tolist().count(2) == 1
        assert (ds.agreement != 0).all()
        merged = ds.modelled_cma_min_alignment_bytes.sel(configuration="THP, as merged: arm64 16 KiB")
        assert merged == 32 * MIB


def test_script__refuses_in_one_line(tmp_path):
    done = run_script("--out", tmp_path / "missing" / "cma.nc")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "does not exist" in done.stderr
