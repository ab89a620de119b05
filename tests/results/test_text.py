import json

import numpy as np
import pytest

from memmodel.results.text import dataset_dict, describe, table, to_json
from memmodel.studies.sweep import sweep


@pytest.fixture
def ds():
    return sweep(
        lambda params, seeds: {"y": params["x"] / 3, "n_long_name": np.where(params["x"] == 2, np.nan, 0.5)},
        {"x": range(20), "mode": "fast"},
        outputs={"y": {"units": "ns"}, "n_long_name": {"units": "1"}},
        seed=5,
    )


def test_table__aligned():
    assert table([("a", None), ("bbb", 1 / 3), (True, False)]) == "a    -\nbbb  0.333333\nyes  NO"


def test_describe__first_rows_and_facts(ds):
    lines = describe(ds, 100).splitlines()
    assert lines[0].split() == ["x", "y", "n_long_name", "status"]
    assert lines[2].split() == ["1", "0.333333", "0.5", "0"]
    assert len(lines) == 1 + 10 + 1 + 3
    assert lines[-3].split(maxsplit=1) == ["points", "20 (10 shown)"]
    assert lines[-2].split() == ["fixed", "mode=fast"]
    assert lines[-1].split() == ["seed", "5"]


def test_describe__narrow(ds):
    text = describe(ds, 12)
    assert text.splitlines()[0].split() == ["x", "y"]
    assert "not shown  n_long_name, status" in text
    assert describe(ds, 0).splitlines()[0] == "x"


def test_describe__one_point():
    ds = sweep(lambda params, seeds: {"y": params["x"]}, {"x": 1}, outputs={"y": {"units": "1"}}, seed=1)
    assert describe(ds, 80).splitlines()[:2] == ["y  status", "1  0"]


def test_to_json__is_strict(ds):
    content = json.loads(to_json(dataset_dict(ds)))
    assert content["data_vars"]["n_long_name"]["data"][1:4] == [0.5, None, 0.5]
    assert content["data_vars"]["status"]["attrs"]["flag_values"] == [0, 1, 2, 3]
    assert content["provenance"]["seed"] == 5
    assert content["failures"] == []
    assert content["dims"] == {"x": 20}
    assert to_json([np.float64("inf"), np.int8(3), (1,)]).split() == ["[", "null,", "3,", "[", "1", "]", "]"]
