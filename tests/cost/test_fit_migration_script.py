from types import ModuleType

import pytest

from memmodel.cost.machines import load_machine, machine_from_dict
from tests.cost.scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("fit_migration_machines")


def test_main__the_file_agrees(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main() == 0
    text = capsys.readouterr().out
    assert "20 cells, chi2 13.1, chi2/dof 0.77" in text
    assert "111 pages a flush" in text
    assert "435 pages a flush" in text
    assert "differs" not in text
    assert "machines.toml agrees" in text


@pytest.mark.parametrize(
    ("machine", "part", "key", "value"),
    [
        ("zen3-32c", "memory", "DRAM-DRAM", 375.2),
        ("zen6-cxl", "migration", "reclaim_slowdown", 1.2),
        ("milan", "clear", "32 MiB", 90.2),
        ("haswell-2s", "migration", "call", 5500.0),
    ],
)
def test_main__a_wrong_digit_is_found(
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    part: str,
    key: str,
    value: float,
) -> None:
    table = load_machine(machine).as_dict()
    table[part][key]["value"] = value
    wrong = machine_from_dict(machine, table, "test")
    monkeypatch.setattr(script, "load_machine", lambda name: wrong if name == machine else load_machine(name))
    assert script.main() == 1
    assert "differs" in capsys.readouterr().out


def test_every_fitted_number_of_these_machines_is_fitted_here(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """`how = "fitted"` of a machine that this script fits is a promise that it prints the number."""
    script.main()
    printed = capsys.readouterr().out
    for machine in ("zen3-32c", "haswell-2s", "milan"):
        for place in fitted_places(load_machine(machine).as_dict()):
            assert f"  {place} " in printed, (machine, place)


def fitted_places(table: dict[str, object], above: str = "") -> list[str]:
    found = []
    for key, value in table.items():
        if isinstance(value, dict):
            place = f"{above}{key}"
            found += [place] if value.get("how") == "fitted" else fitted_places(value, f"{place}.")
    return found
