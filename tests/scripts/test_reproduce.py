"""The scripts that reproduce published tables run, write what they say, and refuse bad targets in one line."""

import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr

ROOT = Path(__file__).parents[2]
SCRIPTS = ("reproduce_batch_page_copy", "reproduce_cma_alignment")


def run(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script__writes_dataset_and_plot(script: str, tmp_path: Path) -> None:
    done = run(script, "--out", "r.nc", "--plot", "r.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with xr.open_dataset(tmp_path / "r.nc") as ds:
        assert all(var.attrs["units"] and var.attrs["long_name"] for var in ds.variables.values())
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_script__prints_the_published_cells(tmp_path: Path) -> None:
    text = run("reproduce_batch_page_copy", cwd=tmp_path).stdout
    assert text.count("%\n") == 16
    assert "15 cells used: rms 2." in text
    assert text.index("44.10 ± 0.19") < text.index("Not used") < text.index("19.10 ± 2.65")


def test_script__flags_the_wrong_row_of_the_first_posting(tmp_path: Path) -> None:
    text = run("reproduce_cma_alignment", cwd=tmp_path).stdout
    assert "In error: THP, as first posted: arm64 4 KiB" in text
    assert "DIFFERS" not in text


@pytest.mark.parametrize("script", SCRIPTS)
def test_script__refuses_a_bad_target(script: str, tmp_path: Path) -> None:
    done = run(script, "--out", "r.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
