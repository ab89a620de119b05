"""The scripts that reproduce published tables run, write what they say, and refuse bad targets in one line."""

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import xarray as xr

ROOT = Path(__file__).parents[2]
COMPARISONS = ("reproduce_folio_size", "reproduce_demotion", "reproduce_clear_pages", "reproduce_tlb_batch")
SCRIPTS = ("reproduce_batch_page_copy", "reproduce_cma_alignment", *COMPARISONS)


Finished = subprocess.CompletedProcess[str]
RunOnce = Callable[[str], tuple[Finished, Path]]


def run(script: str, *arguments: str, cwd: Path) -> Finished:
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """The run of a script, made once, and its folder."""

    @functools.cache
    def run_once(script: str) -> tuple[Finished, Path]:
        folder = tmp_path_factory.mktemp(script)
        return run(script, "--out", "r.nc", "--plot", "r.png", cwd=folder), folder

    return run_once


@pytest.mark.parametrize("script", SCRIPTS)
def test_script__writes_dataset_and_plot(script: str, once: RunOnce) -> None:
    done, folder = once(script)
    assert done.returncode == 0, done.stderr
    with xr.open_dataset(folder / "r.nc") as ds:
        assert all(var.attrs["units"] and var.attrs["long_name"] for var in ds.variables.values())
    assert (folder / "r.png").read_bytes().startswith(b"\x89PNG")


def test_script__prints_the_published_cells(once: RunOnce) -> None:
    text = once("reproduce_batch_page_copy")[0].stdout
    assert text.count("%\n") == 16
    assert "15 cells used: rms 2." in text
    assert text.index("44.10 ± 0.19") < text.index("Not used") < text.index("19.10 ± 2.65")


def test_script__moves_the_16_cells(tmp_path: Path) -> None:
    done = run("reproduce_move_pages", "--out", "r.nc", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("Error")) == (0, 0)
    assert "15 cells used: rms 2.13 %, worst +5.8 %" in done.stdout
    with xr.open_dataset(tmp_path / "r.nc") as ds:
        assert int(ds["simulated"].sum()) == 8


def test_script__flags_the_wrong_row_of_the_first_posting(once: RunOnce) -> None:
    text = once("reproduce_cma_alignment")[0].stdout
    assert "In error: THP, as first posted: arm64 4 KiB" in text
    assert "DIFFERS" not in text


def test_script__pools_of_4_mib(tmp_path: Path) -> None:
    done = run("reproduce_cma_waste", "--out", "r.nc", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("Error")) == (0, 0)
    assert "DIFFERS" not in done.stdout
    rows = [" ".join(row.split()) for row in done.stdout.splitlines()]
    assert "64KiB - 6.16 512 MiB 512 MiB 512 MiB 512 MiB 508 MiB" in rows
    assert "16KiB 7 6.16 2 MiB 2 MiB 4 MiB 4 MiB 0 B" in rows
    with xr.open_dataset(tmp_path / "r.nc") as ds:
        assert ds.sizes == {"page_size": 3, "page_block_max_order": 3, "n_pools": 3}


@pytest.mark.parametrize(
    ("script", "n_rows", "words"),
    [
        ("reproduce_folio_size", 231, ("chi2/dof 0.77", "16 THPs together, 4 rows", "V3, 2048 KiB, 16 channels")),
        ("reproduce_demotion", 15, ("Calibrated: copies in reclaim", "none left", "patched, allocstall")),
        ("reproduce_tlb_batch", 13, ("200 phases of 4 kernels, 9 numbers each: 7 differ (ipi_requests)", "435 pages")),
        ("reproduce_clear_pages", 42, ("memset by chunk", "Not modelled: Icelakex 8358", "1 GiB, batches of 8 MiB")),
    ],
)
def test_script__prints_every_row_and_ends_with_rms_and_worst(
    script: str, n_rows: int, words: tuple[str, ...], once: RunOnce
) -> None:
    text = once(script)[0].stdout
    for word in words:
        assert word in text
    assert text.count("%  calibrated\n") + text.count("%  predicted\n") == n_rows
    *_, summary, written = text.splitlines()
    assert summary.startswith(f"all: {n_rows} rows, rms ")
    assert "worst " in summary
    assert written.startswith("written: ")


def test_script__no_effect_of_the_pageblock_order(tmp_path: Path) -> None:
    done = run("reproduce_dmabuf", "--replicates", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is that of nine rows (13,131,974,267.6): row 10, '13,683,587,37'" in done.stdout
    assert "-4.46 %. Paired over all ten rows p is 0.068" in done.stdout
    assert "pageblocks of order 10 and 7" in done.stdout
    assert "pageblocks of order 9 and 7" in done.stdout
    with xr.open_dataset(tmp_path / "dmabuf.nc") as ds:
        assert int(ds["n_allocations"]) == 100_000
    assert (tmp_path / "dmabuf.png").read_bytes().startswith(b"\x89PNG")


def test_script__no_wrong_list_since_6_10(tmp_path: Path) -> None:
    done = run("reproduce_freelist_hygiene", "--runs", "3", "--replicates", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"published, before defrag_mode, THPs +46,727.1 +-1,988.94 .* falls\n", done.stdout)
    for kernel in ("6.12.117", "7.3"):
        assert re.search(rf"\n{kernel} +0.0 +0.0 +[0-9,.]+\n", done.stdout)
    assert re.search(r"\n6.1 +[1-9][0-9,.]* +[1-9][0-9,.]* +", done.stdout)
    with xr.open_dataset(tmp_path / "freelist_hygiene.nc") as ds:
        assert dict(ds.sizes) == {"kernel": 3, "run": 3, "replicate": 2}
    assert (tmp_path / "freelist_hygiene.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("script", [*SCRIPTS, "reproduce_dmabuf", "reproduce_freelist_hygiene"])
def test_script__refuses_a_bad_target(script: str, tmp_path: Path) -> None:
    done = run(script, "--out", "r.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_script__thp_success(tmp_path: Path) -> None:
    done = run("thp_success", "--replicates", "2", "--size-mib", "64", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" ± ") == 2 * 2 * 15
    assert (tmp_path / "thp_success.png").read_bytes().startswith(b"\x89PNG")
    with xr.open_dataset(tmp_path / "thp_success_fixed_reserve.nc") as ds:
        assert ds.sizes == {"page_block_max_order": 5, "unmovable": 3, "replicate": 2}
