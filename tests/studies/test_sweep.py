import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from memmodel.cost.machines import load_machine
from memmodel.errors import InputError
from memmodel.results.dataset import load, provenance
from memmodel.results.variables import variable
from memmodel.sources.records import Snapshot
from memmodel.studies import registry
from memmodel.studies.registry import Study
from memmodel.studies.sweep import rerun, run_study, sweep

from . import tiny_study

OUTPUTS = {"y": {"units": "ns", "long_name": "time"}}
MACHINE = "zen6-cxl"


class PricedStudy(Study):
    """Uses both resources."""

    def bind(self, context):
        scale = len(context["machine"].name)
        return lambda params, seeds: {"n_calls": params["folio_order"] * scale + len(context.get("memory").zones)}


@pytest.fixture(autouse=True)
def _studies(monkeypatch):
    monkeypatch.setitem(registry.STUDIES, "tiny", tiny_study.__name__)


@pytest.fixture
def priced(monkeypatch):
    study = PricedStudy(
        "priced",
        "Priced.",
        tiny_study.STUDY.parameters,
        ("n_calls",),
        tiny_study.block,
        "made up",
        default_machine=MACHINE,
    )
    monkeypatch.setattr("memmodel.studies.sweep.find_study", lambda name: study)


def y_of(params, seeds):
    return {"y": params["x"] + seeds[:, 0] % 2**20}


def test_run_study__dims_coordinates_and_scalars():
    grid = {"batch": ["page", "extent"], "folio_order": np.array([0, 9])}
    ds = run_study("tiny", grid, replicates=3, seed=0)
    rate = ds["throughput_gib_per_s"]
    assert rate.dims == ("batch", "folio_order", "replicate")
    assert rate.shape == (2, 2, 3)
    assert ds["batch"].values.tolist() == ["page", "extent"]
    assert ds["poison_per_gib"].item() == 0.0
    assert ds["poison_per_gib"].attrs["units"] == "GiB-1"
    assert ds["note"].item() == ""
    assert ds["folio_order"].attrs["long_name"] == "Order of the folios"
    assert ds["n_calls"].dtype == np.float64
    assert ds["calibrated"].dtype == ds["status"].dtype == np.int8
    assert ds["n_calls"].sel(batch="page", folio_order=9, replicate=2) == 512
    for name, values in ds.variables.items():
        assert values.attrs["units"], name
        assert values.attrs["long_name"], name
    assert ds.attrs["title"] == "How fast is nothing copied?"
    assert all(isinstance(value, str) for value in ds.attrs.values())


def test_run_study__compared_levels_share_random_numbers():
    rate = run_study("tiny", {"batch": ["page", "extent"], "folio_order": [0, 9]}, replicates=2, seed=0)[
        "throughput_gib_per_s"
    ]
    assert (rate.sel(batch="page") == rate.sel(batch="extent")).all()
    assert len(np.unique(rate.values)) == 4


def test_run_study__a_longer_grid_keeps_its_bytes():
    short = run_study("tiny", {"folio_order": [0, 9]}, seed=4)["throughput_gib_per_s"]
    grid = {"folio_order": [9, 3, 0], "poison_per_gib": [1.0, 0.0]}
    long = run_study("tiny", grid, replicates=2, seed=4)["throughput_gib_per_s"]
    again = long.sel(folio_order=[0, 9], poison_per_gib=0.0, replicate=0)
    assert again.values.tobytes() == short.values.tobytes()


def test_run_study__workers_and_chunks_do_not_show(tmp_path):
    grid = {"folio_order": range(13), "batch": ["page", "extent"]}
    first = run_study("tiny", grid, seed=1, out=tmp_path / "a.nc")
    for workers, chunk in ((2, None), (3, 1), (1, 100)):
        ds = run_study("tiny", grid, seed=1, workers=workers, chunk=chunk, out=tmp_path / "b.nc")
        xr.testing.assert_identical(ds, first)
        assert (tmp_path / "a.nc").read_bytes() == (tmp_path / "b.nc").read_bytes()


def test_run_study__failing_points():
    ds = run_study("tiny", {"batch": ["page", "extent"], "folio_order": [12, 13, 14, 15]}, seed=1)
    assert ds["status"].values.tolist() == [[0, 1, 2, 3]] * 2
    assert np.isnan(ds["throughput_gib_per_s"].values).tolist() == [[False, True, True, True]] * 2
    failures = json.loads(ds.attrs["failures"])
    assert failures[0] == {"batch": "page", "folio_order": 13, "message": "order 13 is refused"}
    assert failures[-1]["message"] == "ZeroDivisionError: order 15 divides by zero"
    assert "failures" not in ds.attrs["provenance"]
    assert "failures" not in run_study("tiny", seed=1).attrs


def test_run_study__cases():
    cases = [{"folio_order": 0, "batch": "page"}, {"folio_order": 9, "batch": "extent"}]
    ds = run_study("tiny", {"poison_per_gib": [0, 1]}, cases=cases, seed=1)
    assert ds["n_calls"].dims == ("poison_per_gib", "case")
    assert ds["folio_order"].dims == ("case",)
    assert ds["n_calls"].values.tolist() == [[1, 1]] * 2
    assert ds["case"].values.tolist() == [0, 1]
    xr.testing.assert_identical(rerun(ds), ds)


def test_run_study__one_point_with_defaults():
    ds = run_study("tiny", seed=3)
    assert dict(ds.sizes) == {}
    assert ds["folio_order"].item() == 9
    xr.testing.assert_identical(rerun(ds), ds)


def test_run_study__drawn_seed_is_recorded():
    ds = run_study("tiny", {"folio_order": [0, 1]})
    seed = provenance(ds)["seed"]
    assert int(seed) >= 0
    xr.testing.assert_identical(rerun(ds), ds)
    assert run_study("tiny", seed=np.int32(3)).identical(run_study("tiny", seed=3))


def test_run_study__provenance():
    record = provenance(run_study("tiny", {"folio_order": [0, 9], "batch": "extent"}, replicates=2, seed=2**70))
    assert record["study"] == "tiny"
    assert record["grid"] == {"folio_order": [0, 9]}
    assert record["parameters"] == {"poison_per_gib": 0.0, "batch": "extent", "note": ""}
    assert (record["replicates"], record["seed"], record["machine"], record["inputs"]) == (2, str(2**70), None, [])
    assert not record.keys() & {"workers", "chunk", "time", "out"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "large"}, "unknown study 'large'; one of: "),
        ({"grid": {"size": [1]}}, "unknown parameter of study tiny 'size'; one of: "),
        ({"grid": {"folio_order": [0, 99]}}, "parameter folio_order: 99 is not allowed; whole numbers from 0 to 18"),
        ({"grid": {"folio_order": [[1]]}}, "is not allowed"),
        ({"grid": {"folio_order": None}}, "None is not allowed"),
        ({"grid": {"batch": "half"}}, "one of: page, extent"),
        ({"grid": [1]}, "the grid is a list"),
        ({"cases": [{"batch": "half"}]}, "one of: page, extent"),
        ({"replicates": 0}, "replicates 0 is not a whole number from 1 up"),
        ({"seed": -3}, "seed -3 is not a whole number from 0 up"),
        ({"workers": 0}, "workers 0 is not a whole number from 1 up"),
        ({"machine": "abacus"}, "unknown machine 'abacus'"),
        ({"machine": MACHINE}, "study tiny uses no machine"),
        ({"machine": 3}, "machine is a int; give a name, a machine file or a Machine"),
        ({"memory": object()}, "study tiny uses no memory"),
        ({"out": "no/folder/ds.nc"}, "does not exist"),
        ({"out": "ds.txt"}, "must end in"),
    ],
)
def test_run_study__refused_before_anything_runs(monkeypatch, arguments, message):
    monkeypatch.setattr("memmodel.studies.plan.run", lambda *_, **__: pytest.fail("it ran"), raising=True)
    if "workers" in arguments:  # the runner itself refuses it
        monkeypatch.undo()
        monkeypatch.setitem(registry.STUDIES, "tiny", tiny_study.__name__)
    with pytest.raises(InputError, match=message) as caught:
        run_study(**{"name": "tiny", **arguments})
    assert "\n" not in str(caught.value)


def snapshot(digest="ab"):
    return Snapshot(zones={}, files={"/proc/buddyinfo": digest})


@pytest.mark.usefixtures("priced")
def test_run_study__resources_in_provenance():
    ds = run_study("priced", memory=snapshot(), seed=1)
    record = provenance(ds)
    assert record["machine"] == {"name": MACHINE, "digest": load_machine(MACHINE).digest}
    assert record["inputs"] == [{"file": "buddyinfo", "sha256": "ab"}]
    assert ds["n_calls"].item() == 9 * len(MACHINE)
    xr.testing.assert_identical(run_study("priced", memory=snapshot(), machine=load_machine(MACHINE), seed=1), ds)


@pytest.mark.usefixtures("priced")
def test_rerun__the_same_resources_only():
    ds = run_study("priced", memory=snapshot(), seed=1)
    xr.testing.assert_identical(rerun(ds, memory=snapshot()), ds)
    with pytest.raises(InputError, match=r"made with memory Snapshot, not None; give memory="):
        rerun(ds)
    with pytest.raises(InputError, match=r"made with inputs .*; give memory="):
        rerun(ds, memory=snapshot("cd"))
    other = replace(load_machine(MACHINE), about="another")
    with pytest.raises(InputError, match=r"made with machine .*; give machine="):
        rerun(ds, memory=snapshot(), machine=other)


def test_sweep__own_function():
    ds = sweep(y_of, {"x": [1, 2], "size_bytes": 4096, "mode": "fast"}, outputs=OUTPUTS, seed=1, replicates=2)
    assert ds["y"].dims == ("x", "replicate")
    assert (ds["y"].attrs["units"], ds["y"].attrs["long_name"]) == ("ns", "time")
    assert ds["size_bytes"].attrs["units"] == "byte"
    assert ds["size_bytes"].attrs["long_name"] == "size bytes"
    assert ds["mode"].item() == "fast"
    assert provenance(ds)["block"] == f"{__name__}:y_of"
    xr.testing.assert_identical(rerun(ds, workers=2), ds)


def test_sweep__variable_as_output():
    entry = replace(variable("calibrated"), name="flag")

    def block(params, seeds):
        return {"flag": params["x"] > 1}

    ds = sweep(block, {"x": [1, 2]}, outputs={"flag": entry}, seed=1)
    assert ds["flag"].dtype == np.int8
    assert ds["flag"].attrs["flag_meanings"] == "extrapolated measured"
    xr.testing.assert_identical(rerun(ds, block=block), ds)


def test_sweep__workload():
    shared = sweep(y_of, {"x": [0, 1]}, outputs=OUTPUTS, seed=1, workload=[])["y"].values
    assert shared[1] - shared[0] == 1
    own = sweep(y_of, {"x": [0, 1]}, outputs=OUTPUTS, seed=1)["y"].values
    assert own[1] - own[0] != 1
    with pytest.raises(InputError, match="unknown parameter in workload 'z'; one of: x"):
        sweep(y_of, {"x": [0, 1]}, outputs=OUTPUTS, workload=["z"])


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1, 2], "i"), ([1, 2.5], "f"), ([True, False], "b"), (["a", "bc"], "U"), (np.array([1, 2], np.uint8), "i")],
)
def test_sweep__types_of_the_values(tmp_path, values, kind):
    seen = []

    def block(params, seeds):
        seen.append(params["x"].dtype.kind)
        return {"y": np.zeros(len(seeds))}

    ds = sweep(block, {"x": values}, outputs=OUTPUTS, seed=1, out=tmp_path / "ds.nc")
    assert set(seen) == {kind}
    assert ds["x"].dtype.kind == kind
    xr.testing.assert_identical(load(tmp_path / "ds.nc"), ds)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "a"], "not all numbers or all texts"),
        ([None], "not all numbers or all texts"),
        ([[1, 2]], "not all numbers or all texts"),
        ([2**70], "do not fit int64"),
        ([1.0, float("nan")], "nan is not a value to sweep"),
        ([float("inf")], "inf is not a value to sweep"),
    ],
)
def test_sweep__values_refused(values, message):
    with pytest.raises(InputError, match=f"parameter x: .*{message}|parameter x: {message}"):
        sweep(y_of, {"x": values}, outputs=OUTPUTS)


@pytest.mark.parametrize(
    "given", [{}, {"long_name": "no units"}, {"units": "1", "colour": "red"}, 3, variable("status")]
)
def test_sweep__output_refused(given):
    with pytest.raises(InputError, match="output 'y': give"):
        sweep(y_of, {"x": [1]}, outputs={"y": given})


def test_sweep__block_and_output_names_refused():
    with pytest.raises(InputError, match="output 'status': the sweep itself"):
        sweep(y_of, {"x": [1]}, outputs={"status": {"units": "1"}})
    with pytest.raises(InputError, match="the block is a str; give a function"):
        sweep("y_of", {"x": [1]}, outputs=OUTPUTS)


def test_sweep__ten_thousand_points():
    ds = sweep(y_of, {"x": range(100), "z": range(100)}, outputs=OUTPUTS, seed=1, workers=2)
    assert ds["y"].shape == (100, 100)
    assert (ds["status"] == 0).all()


def test_rerun__function_that_cannot_be_imported():
    ds = sweep(lambda params, seeds: {"y": params["x"]}, {"x": [1]}, outputs=OUTPUTS, seed=1)
    with pytest.raises(InputError, match="cannot be imported; give it as block="):
        rerun(ds)
    assert rerun(ds, block=lambda params, seeds: {"y": params["x"]})["y"].values.tolist() == [1]

    class Callable:
        def __call__(self, params, seeds):
            return {"y": params["x"]}

    with pytest.raises(InputError, match="the function None cannot be imported"):
        rerun(sweep(Callable(), {"x": [1]}, outputs=OUTPUTS, seed=1))


def test_rerun__from_the_file(tmp_path):
    ds = run_study("tiny", {"folio_order": [0, 13]}, replicates=2, out=tmp_path / "ds.nc")
    again = rerun(load(tmp_path / "ds.nc"), out=tmp_path / "again.nc")
    xr.testing.assert_identical(again, ds)
    assert (tmp_path / "ds.nc").read_bytes() == (tmp_path / "again.nc").read_bytes()


@pytest.mark.parametrize("missing", ["grid", "parameters", "cases", "seed", "replicates"])
def test_rerun__broken_record(missing):
    ds = run_study("tiny", seed=1)
    record = provenance(ds)
    del record[missing]
    with pytest.raises(InputError, match="'provenance' is broken"):
        rerun(ds.assign_attrs(provenance=json.dumps(record)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": "many"}, "'provenance' is broken"),
        ({"cases": [1]}, "'provenance' is broken"),
        ({"study": None}, "unknown study None"),
        ({"inputs": None}, "made with inputs None"),
        ({"memory": "Snapshot"}, "made with memory Snapshot"),
        ({"machine": {"name": "abacus"}}, "unknown machine 'abacus'"),
        ({"machine": {}}, "made with machine {}"),
    ],
)
def test_rerun__record_that_someone_changed(changes, message):
    ds = run_study("tiny", seed=1)
    with pytest.raises(InputError, match=message):
        rerun(ds.assign_attrs(provenance=json.dumps(provenance(ds) | changes)))


def test_rerun__neither_study_nor_function():
    ds = sweep(y_of, {"x": [1]}, outputs=OUTPUTS, seed=1)
    record = provenance(ds)
    del record["block"]
    with pytest.raises(InputError, match="the function None cannot be imported"):
        rerun(ds.assign_attrs(provenance=json.dumps(record)))
