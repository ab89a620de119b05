import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.results.dataset import Column, build, check_target, load, provenance, save, stamp
from memmodel.results.variables import Variable, variable

ORDER = Variable("folio_order", "int64", "1", "order of the folios", "Order.", ("folio_order",))
BATCH = Variable("batch", "str", "1", "what a call copies", "Page or extent.", ("batch",))
MACHINE = Variable("machine", "str", "1", "machine", "Prices.")


def example() -> xr.Dataset:
    rate = replace(variable("throughput_gib_per_s"), dims=("folio_order", "batch"))
    status = replace(variable("status"), dims=("folio_order", "batch"))
    return build(
        [Column(ORDER, [0, 9, 18]), Column(BATCH, ["page", "extént"]), Column(MACHINE, "zen")],
        [Column(rate, [[1, 2], [3, np.nan], [5, 6]]), Column(status, [[0, 0], [0, 1], [0, 0]])],
        {"title": "Example", "provenance": stamp({"study": "example", "seed": 2**100})},
    )


def test_build__every_variable_has_units_and_long_name():
    ds = example()
    for name, values in ds.variables.items():
        assert values.attrs["units"], name
        assert values.attrs["long_name"], name
        assert values.attrs["comment"], name
    assert ds["throughput_gib_per_s"].dims == ("folio_order", "batch")
    assert ds["status"].dtype == np.int8
    assert ds["status"].attrs["flag_values"].tolist() == [0, 1, 2, 3]
    assert ds["status"].attrs["flag_values"].dtype == np.int8
    assert ds["status"].attrs["flag_meanings"] == "ok refused_input invariant_broken error"
    assert ds["machine"].ndim == 0


def test_build__duplicate_name():
    with pytest.raises(InputError, match="two variables are named 'folio_order'"):
        build([Column(ORDER, [1])], [Column(ORDER, [1])], {})


@pytest.mark.parametrize("field", ["units", "long_name"])
def test_build__missing_units_or_label(field):
    with pytest.raises(InputError, match=f"'folio_order' has no {field}"):
        build([Column(replace(ORDER, **{field: ""}), [1])], [], {})


def test_stamp__versions_and_large_seed():
    record = provenance(example())
    assert record["numpy"] == np.__version__
    assert record["xarray"] == xr.__version__
    assert list(record)[:4] == ["memmodel", "numpy", "numba", "xarray"]
    assert record["seed"] == str(2**100)
    assert json.loads(stamp({"seed": 7}))["seed"] == 7


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", 3])
def test_provenance__not_ours(text):
    ds = xr.Dataset(attrs={} if text is None else {"provenance": text})
    with pytest.raises(InputError, match="provenance"):
        provenance(ds)


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_save__comes_back_identical(tmp_path, suffix):
    if suffix == ".zarr":
        pytest.importorskip("zarr", reason="Zarr is an extra")
    ds = example()
    path = tmp_path / f"ds{suffix}"
    save(ds, path)
    xr.testing.assert_identical(load(path), ds)
    save(ds.assign(more=ds["status"]), path)  # over what is there
    assert "more" in load(path)
    assert os.listdir(tmp_path) == [path.name]


def test_save__netcdf_opens_with_xarray_alone(tmp_path):
    save(example(), tmp_path / "ds.nc")
    with xr.open_dataset(tmp_path / "ds.nc") as ds:
        xr.testing.assert_identical(ds.load(), example())


def test_save__netcdf_opens_with_the_c_library(tmp_path):
    netcdf4 = pytest.importorskip("netCDF4", reason="reads the file with Unidata's own library")
    save(example(), tmp_path / "ds.nc")
    with netcdf4.Dataset(tmp_path / "ds.nc") as file:
        assert file["batch"].dtype is str
        assert file["batch"][:].tolist() == ["page", "extént"]
        assert json.loads(file.provenance)["study"] == "example"


def test_save__equal_datasets_give_equal_bytes(tmp_path):
    save(example(), tmp_path / "a.nc")
    save(example(), tmp_path / "b.nc")
    save(load(tmp_path / "a.nc"), tmp_path / "c.nc")
    code = "import sys; from tests.results.test_dataset import example; from memmodel.results.dataset import save;"
    code += "save(example(), sys.argv[1])"
    environment = {**os.environ, "PYTHONHASHSEED": "12", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, tmp_path / "d.nc"], check=True, env=environment)
    first = (tmp_path / "a.nc").read_bytes()
    assert all((tmp_path / name).read_bytes() == first for name in ("b.nc", "c.nc", "d.nc"))


@settings(deadline=None, max_examples=15)
@given(
    values=st.lists(st.floats(), min_size=1, max_size=5), texts=st.lists(st.text(max_size=5), min_size=1, max_size=5)
)
def test_save__any_values_come_back(tmp_path_factory, values, texts):
    texts = [text.replace("\0", "") for text in texts]  # NetCDF text ends at NUL
    columns = [Column(replace(ORDER, name="x", dtype="float64", dims=("x",)), values)]
    texts_of = Column(Variable("t", "str", "1", "text", "Text.", ("t",)), texts)
    ds = build([*columns, texts_of], [], {"provenance": stamp({})})
    path = tmp_path_factory.mktemp("any") / "ds.nc"
    save(ds, path)
    xr.testing.assert_identical(load(path), ds)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ds.txt", "must end in .nc or .zarr"),
        ("ds", "must end in .nc or .zarr"),
        ("missing/ds.nc", "missing does not exist"),
        ("folder.nc", "is a folder"),
        ("folder.zarr", "is not a Zarr store"),
    ],
)
def test_check_target__refused(tmp_path, name, message):
    (tmp_path / "folder.nc").mkdir()
    (tmp_path / "folder.zarr").mkdir()
    for function in (check_target, lambda path: save(example(), path)):
        with pytest.raises(InputError, match=message) as caught:
            function(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_check_target__folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="no permission"):
        check_target(tmp_path / "ds.nc")


@pytest.mark.parametrize(
    ("error", "message"),
    [(OSError(28, "three lines\nof HDF5"), r"No space left on device: '.*ds\.nc'"), (OSError("odd"), "odd")],
)
def test_save__failure_leaves_what_was_there(tmp_path, monkeypatch, error, message):
    path = tmp_path / "ds.nc"
    save(example(), path)
    before = path.read_bytes()

    def no_space(self, target, **_):
        target.write_bytes(b"half")
        raise error

    monkeypatch.setattr(xr.Dataset, "to_netcdf", no_space)
    with pytest.raises(OSError, match=message):
        save(example(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["ds.nc"]


def test_save__zarr_missing(tmp_path, monkeypatch):
    def absent(self, *_, **__):
        raise ImportError("no zarr")

    monkeypatch.setattr(xr.Dataset, "to_zarr", absent)
    with pytest.raises(InputError, match="pip install 'memmodel"):
        save(example(), tmp_path / "ds.zarr")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"junk" * 100, "half"], ids=["empty", "junk", "truncated"])
def test_load__bad_file(tmp_path, content):
    path = tmp_path / "ds.nc"
    save(example(), path)
    path.write_bytes(path.read_bytes()[:3000] if content == "half" else content)
    with pytest.raises(InputError, match=r"ds\.nc: not a readable \.nc file") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_load__no_file_and_no_format(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "ds.nc")
    with pytest.raises(InputError, match="must end in"):
        load(tmp_path / "ds.csv")
    (tmp_path / "ds.zarr").mkdir()
    with pytest.raises(InputError, match=r"not a readable \.zarr"):
        load(tmp_path / "ds.zarr")
