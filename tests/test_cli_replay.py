"""`memmodel replay`: what it prints, and its exit codes."""

import json
import lzma

import pytest

from memmodel import cli
from memmodel.results import dataset
from tests.replaying.recorded import CMA, FIRST, event, lines_of

TRACE, START = FIRST / "trace.txt.xz", FIRST / "gt_snap.txt.xz"


@pytest.fixture
def run(capsys):
    """The command in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = cli.main(["replay", *(str(argument) for argument in arguments)])
        return code, *capsys.readouterr()

    return call


def test_replay__all_right(run):
    code, out, _ = run(TRACE, "--start", START)
    assert code == 0
    assert "wrong predictions" in out
    assert "t01: equal" in out


def test_replay__json(run):
    code, out, _ = run(TRACE, "--start", START, "--json")
    assert code == 0
    report = json.loads(out)
    keys = {"events", "allocations", "pfn_mismatches", "mismatches_by_kind", "given", "inferred"}
    assert set(report) >= keys | {"failed_allocations", "lost_events", "snapshots", "problems", "not_claimed"}
    assert (report["allocations"], report["pfn_mismatches"], report["failed_allocations"]) == (29755, 0, 0)
    assert report["lost_events"] == 0
    assert report["mismatches_by_kind"] == report["given"] == {}
    (snapshot,) = report["snapshots"]
    equal = {"free_lists_equal": True, "pcp_lists_equal": True, "pageblocks_equal": True}
    assert snapshot.items() >= ({"label": "t01"} | equal).items()
    assert len(report["files"]) >= 3


def test_replay__a_wrong_prediction_is_1(run, tmp_path):
    trace = tmp_path / "trace.txt"
    free = event("mm_page_free: page=0000000076022381 pfn=0x34f9 order=0")
    trace.write_bytes(b"".join([*lines_of(FIRST)[:200], free, free]))
    code, out, _ = run(trace, "--start", START, "--json")
    assert code == 1
    assert json.loads(out)["mismatches_by_kind"] == {"free of a page not in use": 1}
    code, out, _ = run(trace, "--start", START)
    assert code == 1
    assert f"{trace}:202: free of a page not in use" in out


def test_replay__a_dump_that_differs_is_1(run, tmp_path):
    start = tmp_path / START.name
    text = lzma.open(START, "rt").read()
    first, second = text.split("S t01")
    assert second.count("B 0 DMA32 62976 1 0") == 1
    with lzma.open(start, "wt") as file:
        file.write(first + "S t01" + second.replace("B 0 DMA32 62976 1 0", "B 0 DMA32 62976 2 0"))
    code, out, _ = run(TRACE, "--start", start)
    assert code == 1
    assert "t01: DMA32: pageblock 62976 is of type 1, kernel 2" in out


def test_replay__end_is_compared(run):
    code, out, _ = run(CMA / "trace.txt.xz", "--start", CMA / "gt_snap.txt.xz", "--end", CMA / "snap" / "c01", "--json")
    assert code == 0  # the end is the start
    assert [zone["pages_apart"] for zone in json.loads(out)["end"]] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("missing.txt", "--start", START), "missing.txt"),
        ((TRACE, "--start", "missing"), "missing"),
        ((TRACE, "--start", TRACE), "trace.txt.xz"),
        ((START, "--start", START), "gt_snap.txt.xz"),
        ((TRACE,), "--start"),
        ((TRACE, "--start", START, "--kernel", "nonsense"), "nonsense"),
        ((TRACE, "--start", START, "--out", "r.nc"), "--out: only a replay with --set makes a Dataset"),
        ((TRACE, "--start", START, "--set", "page_size=4KiB"), "page_size cannot be varied in a replay"),
        ((TRACE, "--start", START, "--set", "page_block_max_order"), "write name=value"),
        ((TRACE, "--start", START, "--set", "kernel=6.1", "--set", "kernel=7.3"), "kernel is set twice"),
        ((TRACE, "--start", START, "--set", "cma_size=1XiB"), "cma_size"),
        ((TRACE, "--start", START, "--set", "kernel=6.1", "--compaction", "given"), "--compaction: not with --set"),
        ((TRACE, "--start", START, "--set", "kernel=6.1", "--end", START), "--end: not with --set"),
        ((TRACE, "--start", START, "--compaction", "guessed"), "guessed"),
    ],
)
def test_replay__bad_input_is_2(run, arguments, text):
    code, out, error = run(*arguments)
    assert code == 2
    assert out == ""
    assert text in error
    assert "Traceback" not in error


def test_replay__what_if(run, tmp_path):
    path = tmp_path / "r.nc"
    settings = ("--set", "page_block_max_order=7,9", "--set", "kernel=6.1,6.12.117")
    code, out, _ = run(TRACE, "--start", START, *settings, "--out", path)
    assert code == 0
    assert "n_allocations" in out
    ds = dataset.load(path)
    assert ds.sizes["page_block_max_order"] == ds.sizes["kernel"] == 2
    assert (ds.n_allocations.isel(time_s=-1) == 29755).all()
    code, out, _ = run(TRACE, "--start", START, "--set", "page_block_max_order=7", "--json")
    assert code == 0
    found = json.loads(out)["data_vars"]
    assert found["n_allocations"]["data"] == [29755]


def test_replay__which_kernel(run, tmp_path):
    """The version file in the recording's folder says whose rules hold; a guess is called one."""
    for name in ("gt_snap.txt.xz", "trace.txt.xz"):
        (tmp_path / name).write_bytes((FIRST / name).read_bytes())
    trace, start = tmp_path / "trace.txt.xz", tmp_path / "gt_snap.txt.xz"
    report = json.loads(run(trace, "--start", start, "--json")[1])
    assert report["kernel"] == "6.12.117"
    assert "rules of kernel 6.12.117: no file says which one it was" in report["not_claimed"]
    version = tmp_path / "version"
    version.write_text("Linux version 7.3.4-gt (root@vm) (gcc 12.2.0) #3 SMP PREEMPT Mon Nov 30 09:17:40 UTC 2026\n")
    report = json.loads(run(trace, "--start", start, "--json")[1])
    assert report["kernel"] == "7.3.4-gt"
    assert not any(text.startswith("rules of kernel") for text in report["not_claimed"])
    assert str(version) in report["files"]
    assert json.loads(run(trace, "--start", start, "--kernel", "6.1", "--json")[1])["kernel"] == "6.1"
    version.write_text("6.12\n")
    code, _, err = run(trace, "--start", start)
    assert code == 2
    assert (
        err.strip()
        == f"memmodel: {version}:1: found '6.12'; version has \"Linux version RELEASE (...) ... #BUILD ...\""
    )


def test_replay__kernel_of_a_folder(run):
    report = json.loads(run(TRACE, "--start", FIRST / "snap" / "t00", "--json")[1])
    assert report["kernel"] == "6.12.117-gt"
