from types import ModuleType

import pytest

from memmodel.cost.machines import load_machine, machine_from_dict
from tests.cost.scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("fit_copy_machines")


def test_main__the_file_agrees(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main() == 0
    text = capsys.readouterr().out
    assert "form L: rms 2.13 %, at worst 5.77 %" in text
    assert "machines.toml agrees" in text


def test_main__a_wrong_digit_is_found(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load_machine("zen6-cxl").as_dict()
    table["memory"]["DRAM-DRAM"]["value"] = 70.9
    wrong = machine_from_dict("zen6-cxl", table, "test")
    monkeypatch.setattr(script, "load_machine", lambda name: wrong if name == "zen6-cxl" else load_machine(name))
    assert script.main() == 1
    assert "differs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "written", "same"),
    [(70.833, 70.8, True), (70.86, 70.8, False), (114.955, 115.0, True), (6277.4, 6277.0, True), (2.6049, 2.605, True)],
)
def test_agrees__at_the_printed_digits(script: ModuleType, value: float, written: float, same: bool) -> None:
    assert script.agrees(value, written) == same
