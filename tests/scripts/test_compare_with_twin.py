"""The long comparison of allocator and twin, small: it runs, and a wrong rule does not get past it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "compare_with_twin.py"
# A twin that never finds the merging likely: its blocks go to the head of their lists where they belong at the tail.
WRONG_RULE = """
import runpy, sys
sys.path.insert(0, {root!r})
from tests.reference.allocator_zone import Zone
Zone.merge_likely = lambda *_: False
sys.argv = [{script!r}, *sys.argv[1:]]
runpy.run_path({script!r}, run_name="__main__")
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_script__no_difference(tmp_path: Path) -> None:
    done = run(str(SCRIPT), "--operations", "5000", "--per-machine", "500", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("5000 operations, ")
    assert lines[0].endswith(" a second, no difference")
    assert lines[1:] == [f"{kernel}: 1000" for kernel in ("6.1", "6.10", "6.12", "6.12.117", "7.3")]


def test_script__prints_what_leads_to_a_difference(tmp_path: Path) -> None:
    code = WRONG_RULE.format(root=str(ROOT), script=str(SCRIPT))
    done = run("-c", code, "--operations", "4000", "--kernel", "6.12.117", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("DIFFERS: kernel 6.12.117, machine 0/")
    history = [line for line in lines if line.startswith("('")]
    assert lines[-1].startswith(f"{len(history)} operations: ")
    assert "the twin" in lines[-1]


def test_script__refuses_an_unknown_kernel(tmp_path: Path) -> None:
    done = run(str(SCRIPT), "--kernel", "5.4", cwd=tmp_path)
    assert done.returncode == 2
    assert "'5.4' is not one of" in done.stderr
