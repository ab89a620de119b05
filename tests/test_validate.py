"""The accuracy table: all of it holds, and a wrong model would show."""

import os

import pytest

from memmodel import validate
from memmodel.errors import InputError


def test_run_checks__all_hold() -> None:
    checks = validate.run_checks()
    assert [check["check"] for check in checks if not check["ok"]] == []
    assert sum("batch page copy" in check["check"] for check in checks) == 2
    assert sum("pageblock order and CMA" in check["check"] for check in checks) == 23
    assert sum("kswapd" in check["check"] or "direct reclaim" in check["check"] for check in checks) == 3
    assert sum("laws" in check["check"] for check in checks) == 4
    assert set(checks[0]) == {"check", "source", "expected", "got", "error", "tolerance", "ok"}


def test_run_checks__recordings() -> None:
    records = os.environ.get("MEMMODEL_RECORDS")
    if not records:
        pytest.skip("MEMMODEL_RECORDS does not name the recordings")
    checks = validate.run_checks(records)
    assert sum("state from a dump" in check["check"] for check in checks) == 41
    assert [check["check"] for check in checks if not check["ok"]] == []


def test_run_checks__a_slow_machine_misses_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    real = validate.copy_table
    monkeypatch.setattr(validate, "copy_table", lambda: real("zen5-cxl"))
    missed = [check for check in validate._copy_table() if not check.ok]
    assert [check.check for check in missed] == ["batch page copy, rms", "batch page copy, worst cell"]


def test_run_checks__a_folder_without_dumps(tmp_path: object) -> None:
    with pytest.raises(InputError, match="no dump of free lists"):
        validate.run_checks(str(tmp_path))
