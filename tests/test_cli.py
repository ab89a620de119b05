import json
import os
import signal
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from memmodel import cli
from memmodel.results.dataset import load
from memmodel.studies import registry

TINY = "tests.studies.tiny_study"
# The command with one more study, as a program of its own.
PROGRAM = f"""
import sys
from memmodel.cli import main
if "memmodel.studies.registry" in sys.modules: raise SystemExit("the registry is imported before it is needed")
if sys.argv[1:2] == ["study"]:
    from memmodel.studies import registry
    registry.STUDIES.update(tiny="{TINY}", slow="{__name__}")
sys.exit(main())
"""
BUDDYINFO = """Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal      5      3      0      2      0      0      0      0      0      0      0
"""


def slow_block(params, seeds):
    Path(os.environ["STARTED"]).touch()
    time.sleep(2)


STUDY = registry.Study("slow", "Slow.", (), ("n_calls",), slow_block, "made up")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setitem(registry.STUDIES, "tiny", TINY)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run(capsys):
    """The command in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


def program(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def test_help__through_clicks_own_runner():
    result = CliRunner().invoke(cli.cli, ["study", "run", "--help"])
    assert result.exit_code == 0
    for option in (
        "--set",
        "--machine",
        "--memory",
        "--replicates",
        "--seed",
        "--workers",
        "--out",
        "--plot",
        "--json",
    ):
        assert option in result.output


@pytest.mark.parametrize("arguments", [[], ["study"], ["study", "run"], ["geometry"], ["snapshot"], ["validate"]])
def test_help__every_command(run, arguments):
    code, out, err = run(*arguments, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("Usage: memmodel")


def test_help__imports_nothing_heavy():
    code = "import sys; from memmodel.cli import main; main(['--help']);"
    code += "sys.exit(str({'numpy', 'numba', 'xarray', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == "set()\n"
    assert "geometry" in done.stdout


def test_version(run):
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("memmodel")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing command."),
        (["study"], "Missing command."),
        (["frob"], "No such command 'frob'."),
        (["study", "run"], "Missing argument 'NAME'."),
        (["study", "show"], "Missing argument 'NAME'."),
        (["snapshot"], "Missing argument 'FILE_OR_FOLDER...'."),
        (["study", "run", "tiny", "--frob"], "No such option"),
        (["study", "run", "tiny", "extra"], "unexpected extra argument"),
        (["study", "run", "tiny", "--replicates", "x"], "'x' is not a valid integer"),
        (["study", "run", "tiny", "--workers", "0"], "0 is not in the range x>=1"),
        (["study", "run", "tiny", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["study", "run", "tiny", "--set"], "requires an argument"),
        (["geometry", "--max-page-order", "ten"], "'ten' is not a valid integer"),
    ],
)
def test_usage_error__one_line(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("memmodel: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["large"], "unknown study 'large'; one of: "),
        (["tiny", "--set", "folio_order"], "--set folio_order: write name=value, name=v1,v2,... or name=first:last:n"),
        (["tiny", "--set", "size=1"], "unknown parameter of study tiny 'size'; one of: folio_order, "),
        (["tiny", "--set", "folio_order=99"], "parameter folio_order: '99' is not allowed; whole numbers from 0 to 18"),
        (["tiny", "--set", "folio_order=1,,2"], "parameter folio_order: '' is not allowed"),
        (["tiny", "--set", "folio_order=1,1"], "parameter folio_order has the value 1 twice"),
        (["tiny", "--set", "folio_order=0:9:3"], "parameter folio_order: 4.5 is not allowed"),
        (["tiny", "--set", "folio_order=0:9"], "'0:9' is not first:last:n"),
        (["tiny", "--set", "folio_order=0:9:1:2"], "'0:9:1:2' is not first:last:n"),
        (["tiny", "--set", "folio_order=0:9:0"], "'0:9:0' is not first:last:n"),
        (["tiny", "--set", "poison_per_gib=0:9:9999999999"], "is not first:last:n"),
        (["tiny", "--set", "poison_per_gib=0:inf:3"], "parameter poison_per_gib: 'inf' is not allowed"),
        (["tiny", "--set", "batch=a:b:3"], "parameter batch: 'a:b:3' is not allowed; one of: page, extent"),
        (["tiny", "--set", "batch=page", "--set", "batch=extent"], "batch is set twice"),
        (["tiny", "--machine", "abacus"], "unknown machine 'abacus'"),
        (["tiny", "--memory", "no/such/folder"], "no/such/folder"),
        (["tiny", "--out", "ds.txt"], "must end in .nc or .zarr"),
        (["tiny", "--out", "no/folder/ds.nc"], "does not exist"),
        (["tiny", "--plot", "ds.txt"], "ds.txt"),
    ],
)
def test_study_run__bad_input_is_one_line(run, arguments, message):
    code, out, err = run("study", "run", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("memmodel: ")
    assert message in err
    assert err.count("\n") == 1


def test_study_list(run, monkeypatch):
    monkeypatch.setattr(registry, "STUDIES", {"tiny": TINY})
    assert run("study", "list") == (0, "tiny  How fast is nothing copied?\n", "")


def test_study_show(run):
    code, out, err = run("study", "show", "tiny")
    assert (code, err) == (0, "")
    assert "folio_order     9        whole numbers from 0 to 18  1" in out
    assert "throughput_gib_per_s  GiB s-1  copy rate" in out


def test_study_run__table(run, tmp_path):
    path = tmp_path / "ds.nc"
    arguments = ["--set", "folio_order=0:9:4", "--set", "batch=page,extent", "--set", "poison_per_gib=2.5"]
    code, out, err = run("study", "run", "tiny", *arguments, "--seed", 5, "--replicates", 2, "--out", path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["folio_order", "batch", "replicate", "throughput_gib_per_s"]
    assert lines[5].split()[:3] == ["3", "page", "0"]
    assert "points  16 (10 shown)" in lines
    assert "fixed   poison_per_gib=2.5, note=" in lines
    assert "seed    5" in lines
    assert lines[-1] == f"written to  {path}"
    ds = load(path)
    assert ds["n_calls"].dims == ("folio_order", "batch", "replicate")
    assert ds["folio_order"].values.tolist() == [0, 3, 6, 9]


def test_study_run__lists_and_ranges_mix(run):
    code, out, _ = run("study", "run", "tiny", "--set", "poison_per_gib=0:1:3,7", "--json")
    assert code == 0
    content = json.loads(out)
    assert content["coords"]["poison_per_gib"]["data"] == [0.0, 0.5, 1.0, 7.0]
    assert content["provenance"]["study"] == "tiny"
    assert int(content["provenance"]["seed"]) >= 0
    assert content["out"] is None


@pytest.mark.parametrize(
    ("orders", "code", "message"),
    [
        ("9,13", 0, "1 of 2 points failed; the first: order 13 is refused"),
        ("13", 2, "1 of 1 points failed; the first: order 13 is refused"),
        ("9,13,14", 1, "2 of 3 points failed; the first: order 13 is refused"),
        ("15", 1, "1 of 1 points failed; the first: ZeroDivisionError: order 15 divides by zero"),
    ],
)
def test_study_run__failing_points(run, orders, code, message):
    found, out, err = run("study", "run", "tiny", "--set", f"folio_order={orders}", "--json")
    assert (found, err) == (code, f"memmodel: {message}\n")
    content = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert None in np.atleast_1d(content["data_vars"]["n_calls"]["data"])


def test_study_run__plot(run, tmp_path):
    pytest.importorskip("matplotlib", reason="plots are an extra")
    path = tmp_path / "rate.png"
    code, _, err = run("study", "run", "tiny", "--set", "folio_order=0,9", "--plot", path)
    assert (code, err) == (0, "")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_geometry__config_that_leaves_something_open(run):
    cases = Path(__file__).parent / "data" / "cases"
    code, out, err = run("geometry", "--config", cases / "config-x86-cma-nothp-01.config")
    rows = {row.split()[0]: row for row in out.splitlines()}
    assert code == 0
    assert rows["pageblock_order"].endswith("or 10: cannot be told")
    assert rows["cma_min_alignment_bytes"].endswith("or 4 MiB: cannot be told")
    assert "told" not in rows["max_page_order"]
    assert "CONFIG_MEMORY_FAILURE is off" in err
    path = cases / "config-arm32-xen-quoted-01.config"
    _, out, _ = run("geometry", "--config", path, "--no-thp", "--no-hugetlb", "--json")
    content = json.loads(out)
    assert content["max_page_order"] == 11
    assert {build["max_page_order"] for build in content["also_possible"]} == {10}
    _, out, _ = run("geometry", "--config", path, "--no-thp", "--no-hugetlb", "--kernel", "6.6", "--json")
    assert "also_possible" not in json.loads(out)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--page-size", "16KiB", "--arch", "arm64"], (16384, 11, 11, 11, 32 << 20)),
        (["--page-size", "16KiB", "--kernel", "6.16", "--page-block-max-order", "7"], (16384, 11, 11, 7, 2 << 20)),
        (["--no-thp", "--no-hugetlb"], (4096, 10, 9, 10, 4 << 20)),
    ],
)
def test_geometry__json(run, arguments, expected):
    code, out, err = run("geometry", *arguments, "--json")
    content = json.loads(out)
    notes = content.pop("notes")
    keys = ("page_size_bytes", "max_page_order", "hpage_pmd_order", "pageblock_order", "cma_min_alignment_bytes")
    assert (code, err, tuple(content)) == (0, "", keys)
    assert tuple(content.values()) == expected
    assert isinstance(notes, list)


def test_geometry__text_and_notes(run):
    code, out, err = run("geometry", "--max-page-order", "11")
    assert code == 0
    assert "page_size_bytes          4096     (4 KiB)" in out.splitlines()
    assert err.startswith("memmodel: note: max_page_order=11")


def test_geometry__config(run, tmp_path):
    config = tmp_path / "config"
    config.write_text("# Linux/arm64 6.16.0 Kernel Configuration\nCONFIG_ARM64=y\nCONFIG_ARM64_16K_PAGES=y\n")
    code, out, _ = run("geometry", "--config", config, "--page-block-max-order", "7", "--json")
    content = json.loads(out)
    assert (code, content["page_size_bytes"], content["pageblock_order"]) == (0, 16384, 7)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--page-size", "5KiB"],
        ["--page-size", "x"],
        ["--arch", "vax"],
        ["--kernel", "x"],
        ["--max-page-order", "99"],
        ["--page-block-max-order", "99"],
        ["--config", "/no/such/.config"],
    ],
)
def test_geometry__bad_input(run, arguments):
    code, out, err = run("geometry", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.fixture
def buddyinfo(tmp_path):
    path = tmp_path / "buddyinfo"
    path.write_text(BUDDYINFO)
    return path


def test_snapshot__table(run, buddyinfo):
    code, out, err = run("snapshot", buddyinfo, "--page-size", "4KiB")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0] == "node zone free bytes managed pages largest order fragmentation unusable".split()
    assert lines[1] == ["0", "DMA", str(3840 * 4096), "-", "10", "-", "-"]
    assert lines[2] == ["0", "Normal", str(27 * 4096), "-", "3", "-", "-"]
    assert "note: no file tells the pageblock order" in err


def test_snapshot__json_and_dataset(run, buddyinfo, tmp_path):
    code, out, err = run("snapshot", buddyinfo, "--json", "--out", tmp_path / "zones.nc")
    content = json.loads(out)
    assert (code, err) == (0, "")
    assert content["zones"][1]["nr_free"] == [5, 3, 0, 2, 0, 0, 0, 0, 0, 0, 0]
    assert content["zones"][1]["largest_order"] == 3
    assert content["zones"][1]["extfrag_index"][9] == 0.895
    assert content["zones"][1]["unusable_index"][1] == 0.185
    assert list(content["files"]) == [str(buddyinfo)]
    assert content["differences"] == []
    assert load(tmp_path / "zones.nc")["nr_free"].sel(zone="0:Normal", order=1) == 3


def test_snapshot__index_at_the_pageblock_order(run, monkeypatch, buddyinfo):
    from dataclasses import replace

    from memmodel.sources.snapshot import read_snapshot

    found = replace(read_snapshot(buddyinfo), pageblock_order=9, differences=("free 27 here, 30 there",))
    monkeypatch.setattr("memmodel.sources.snapshot.read_snapshot", lambda *_, **__: found)
    code, out, err = run("snapshot", buddyinfo)
    assert (code, err) == (0, "")
    assert "fragmentation[9]  unusable[9]" in out
    assert out.splitlines()[2].split()[-2:] == ["0.895", "1"]
    assert out.splitlines()[3] == "differs: free 27 here, 30 there"


@pytest.mark.parametrize("content", [b"", b"\0\1\2" * 99, b"Node 0, zone DMA x\n", b"hello\n"])
def test_snapshot__bad_file(run, tmp_path, content):
    path = tmp_path / "buddyinfo"
    path.write_bytes(content)
    code, out, err = run("snapshot", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(path) in err


@pytest.fixture
def checks(monkeypatch):
    found = []
    module = types.ModuleType("memmodel.validate")
    module.run_checks = lambda records: found
    monkeypatch.setitem(sys.modules, "memmodel.validate", module)
    return found


@pytest.mark.parametrize(("ok", "code", "word"), [(True, 0, "yes"), (False, 1, "NO")])
def test_validate__exit_code(run, checks, ok, code, word):
    row = {"check": "c", "source": "s", "expected": 1, "got": 1.5, "error": 0.5, "tolerance": None, "ok": True}
    checks += [row, row | {"ok": ok}]
    found, out, err = run("validate")
    assert (found, err) == (code, "")
    assert out.splitlines()[0].split() == ["check", "source", "expected", "got", "error", "tolerance", "ok"]
    assert out.splitlines()[2].split() == ["c", "s", "1", "1.5", "0.5", "-", word]
    found, out, _ = run("validate", "--json")
    assert found == code
    assert json.loads(out) == checks


@pytest.mark.usefixtures("checks")
def test_validate__records_missing(run):
    code, _, err = run("validate", "--records", "/no/such/folder")
    assert (code, err) == (2, "memmodel: --records /no/such/folder: no such folder\n")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (PermissionError(13, "Permission denied", "/x/ds.nc"), 2, "/x/ds.nc: Permission denied"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (OSError("odd\nthing"), 2, "odd thing"),
        (MemoryError(), 2, "MemoryError"),
        (KeyboardInterrupt(), 130, None),
        (BrokenPipeError(), 141, None),
    ],
)
def test_main__other_errors(capsys, monkeypatch, error, code, line):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("memmodel.studies.sweep.run_study", fail)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    assert cli.main(["study", "run", "tiny"]) == code
    assert capsys.readouterr().err == (f"memmodel: {line}\n" if line else "")


def test_main__a_bug_is_not_hidden(monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("memmodel.studies.sweep.run_study", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["study", "run", "tiny"])


def test_main__broken_law(run, monkeypatch):
    from memmodel.errors import InvariantError

    def fail(*_, **__):
        raise InvariantError("free + used is not managed")

    monkeypatch.setattr("memmodel.studies.sweep.run_study", fail)
    assert run("study", "run", "tiny") == (1, "", "memmodel: free + used is not managed\n")


def test_program__exit_code_and_one_line():
    process = program("study", "run", "tiny", "--set", "folio_order=99")
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err == "memmodel: parameter folio_order: '99' is not allowed; whole numbers from 0 to 18\n"


def test_program__answer_alone_on_stdout():
    process = program("study", "run", "tiny", "--seed", "1", "--workers", "2", "--set", "folio_order=0:9:10", "--json")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["dims"] == {"folio_order": 10}


def test_program__nobody_reads():
    process = program("study", "show", "tiny")
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 141)
    process.stderr.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_program__interrupted(tmp_path, monkeypatch, workers):
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    # A shell starts what runs in the background deaf to the signal, and children inherit that.
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = program("study", "run", "slow", "--workers", workers, preexec_fn=listen)
    while process.poll() is None and not (tmp_path / "started").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


def test_geometry__device_tree(run):
    path = Path(__file__).parent / "data" / "cases" / "dts-arm64-imx91-256m-01.dts.txt"
    flags = ("geometry", "--arch", "arm64", "--page-size", "64KiB", "--device-tree", path)
    code, out, err = run(*flags)
    header, row = out.splitlines()
    assert (code, err) == (0, "memmodel: note: linux,cma: no reg: placed at boot, within its alloc-ranges\n")
    assert header.split("  ")[0] == "page size"
    assert "512 MiB" in row
    assert row.endswith("Reserved memory: incorrect alignment of CMA region")
    code, out, _ = run(*flags[:4], "16KiB", *flags[5:], "--cma", "64M", "--json")
    content = json.loads(out)
    (geo,), (node,) = content["builds"], content["nodes"]
    assert (geo["cma_min_alignment_bytes"], node["accepted"], node["errno"]) == (32 << 20, False, -16)
    _, out, _ = run(*flags[:4], "4KiB,16KiB,64KiB", *flags[5:])
    assert [row.split()[0] for row in out.splitlines()[1:]] == ["4", "16", "64"]


def test_geometry__device_tree_with_a_default_area(run):
    path = Path(__file__).parent / "data" / "cases" / "dts-arm64-imx91-256m-01.dts.txt"
    flags = ("geometry", "--arch", "arm64", "--page-size", "64KiB", "--device-tree", path, "--cma", "64M")
    _, out, _ = run(*flags)
    assert "(default area)" in out.splitlines()[-1]
    (area,) = json.loads(run(*flags, "--json")[1])["default_areas"]
    assert (area["accepted"], area["requested_bytes"], area["wasted_bytes"]) == (True, 64 << 20, 448 << 20)


def test_geometry__device_tree_that_is_cut(run):
    path = Path(__file__).parent / "data" / "cases" / "dts-arm64-cma-unbalanced-01.dts.txt"
    flags = ("geometry", "--arch", "arm64", "--device-tree", path)
    code, out, err = run(*flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{path}:12: found the end of the text with 3 braces open" in err
    code, out, err = run(*flags, "--close-nodes")
    assert code == 0
    assert "16 MiB" in out.splitlines()[1]
    for words in (
        "closed at the end",
        "alignment 8 KiB is less than",
        "no reg: placed at boot",
        "ion@200000000: not look",
    ):
        assert words in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device-tree", "nothing.dts"), "nothing.dts: cannot be read"),
        (("--cma", "1M"), "--cma: only with --device-tree"),
        (("--close-nodes",), "--close-nodes: only with --device-tree"),
        (("--page-size", "4KiB,16KiB"), "page size '4KiB,16KiB' is not a number of bytes"),
    ],
)
def test_geometry__device_tree_refused(run, options, words):
    code, out, err = run("geometry", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
