"""Datasets: the only place that builds one, stamps where it came from, writes it and reads it back."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from memmodel.errors import InputError
from memmodel.results.variables import Variable

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Column", "build", "check_target", "extend", "load", "provenance", "save", "stamp"]

_PACKAGES = ("memmodel", "numpy", "numba", "xarray")
_ENGINES = {".nc": "h5netcdf", ".zarr": "zarr"}
_EXACT_IN_JSON = 2**53  # readers other than Python's round larger integers


class Column(NamedTuple):
    """A variable and its values, of the shape that `Variable.dims` names."""

    variable: Variable
    values: ArrayLike


def build(coordinates: Iterable[Column], data: Iterable[Column], attrs: Mapping[str, str]) -> "xr.Dataset":
    """Dataset of `data` over `coordinates`, each with its units, long_name and comment.

    Raises
    ------
    InputError
        If a name occurs twice, or a variable has no units or no long_name.
    """
    import xarray as xr

    names: set[str] = set()

    def labelled(columns: Iterable[Column]) -> dict[str, xr.Variable]:
        made = {}
        for entry, values in columns:
            if entry.name in names:
                raise InputError(f"two variables are named {entry.name!r}")
            names.add(entry.name)
            made[entry.name] = xr.Variable(entry.dims, np.asarray(values, entry.dtype), _attrs(entry))
        return made

    return xr.Dataset(coords=labelled(coordinates), data_vars=labelled(data), attrs=dict(attrs))


def extend(ds: "xr.Dataset", data: Iterable[Column]) -> "xr.Dataset":
    """`ds` with more variables over its own dimensions.

    Raises
    ------
    InputError
        As `build`.
    """
    import xarray as xr

    more = build((), data, {})
    for name in more.variables.keys() & ds.variables.keys():
        raise InputError(f"two variables are named {name!r}")
    return xr.Dataset({**ds.data_vars, **more.data_vars}, ds.coords, ds.attrs)


def _attrs(entry: Variable) -> dict[str, Any]:
    attrs: dict[str, Any] = {"long_name": entry.long_name, "units": entry.units, "comment": entry.doc}
    for key in ("long_name", "units"):
        if not attrs[key]:
            raise InputError(f'variable {entry.name!r} has no {key} (a quantity without a unit has the units "1")')
    if entry.flags:
        attrs["flag_values"] = np.arange(len(entry.flags), dtype=entry.dtype)
        attrs["flag_meanings"] = " ".join(entry.flags)
    return attrs


def stamp(record: Mapping[str, Any]) -> str:
    """JSON of `record` and of the versions that made it: what the attribute ``provenance`` holds.

    Nothing that changes from run to run belongs here, so that equal runs give equal files. Integers that other readers
    of JSON would round, such as 128-bit seeds, become text.
    """
    versions = {package: _version(package) for package in _PACKAGES}
    return json.dumps({**versions, **{key: _exact(value) for key, value in record.items()}})


def _exact(value: Any) -> Any:
    return str(value) if isinstance(value, int) and abs(value) > _EXACT_IN_JSON else value


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def provenance(ds: "xr.Dataset") -> dict[str, Any]:
    """What `stamp` wrote into a Dataset.

    Raises
    ------
    InputError
        If the Dataset has no such attribute, or it is not ours.
    """
    text = ds.attrs.get("provenance")
    if text is None:
        raise InputError("the Dataset has no attribute 'provenance'; only one that memmodel made can be run again")
    try:
        record = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InputError(f"the Dataset's attribute 'provenance' is not JSON: {error}") from error
    if not isinstance(record, dict) or "memmodel" not in record:
        raise InputError("the Dataset's attribute 'provenance' was not written by memmodel")
    return record


def check_target(path: str | os.PathLike[str]) -> Path:
    """`path` if a Dataset can be written there; asked before a long run, not after it.

    Raises
    ------
    InputError
        If the suffix is neither .nc nor .zarr, the folder is missing or closed to us, or what is there already is of
        another kind.
    """
    target = Path(path)
    if target.suffix not in _ENGINES:
        raise InputError(f"{target}: cannot tell the format; the name must end in {' or '.join(_ENGINES)}")
    if not target.parent.is_dir():
        raise InputError(f"{target}: the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{target}: no permission to write into the folder {target.parent}")
    if target.suffix == ".nc" and target.is_dir():
        raise InputError(f"{target}: is a folder, not a file")
    if target.suffix == ".zarr" and target.exists() and not _is_zarr(target):
        raise InputError(f"{target}: exists and is not a Zarr store; not overwritten")
    return target


def _is_zarr(path: Path) -> bool:
    return any((path / name).is_file() for name in (".zgroup", "zarr.json"))


def save(ds: "xr.Dataset", path: str | os.PathLike[str]) -> None:
    """Write a Dataset as NetCDF-4 (``.nc``) or Zarr (``.zarr``).

    It is written beside the target and renamed when complete, so a reader never meets half a file. Equal Datasets give
    equal bytes.

    Raises
    ------
    InputError
        As `check_target`, or if the zarr package is missing.
    OSError
        If there is no space or no permission.
    """
    target = check_target(path)
    workshop = Path(tempfile.mkdtemp(prefix=".memmodel-", dir=target.parent))
    try:
        new = workshop / target.name
        if target.suffix == ".nc":
            ds.to_netcdf(new, engine="h5netcdf")
        else:
            _write_zarr(ds, new)
            if target.exists():
                target.rename(workshop / "old")
        new.replace(target)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(target)) from error  # HDF5 tells it in three lines
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _write_zarr(ds: "xr.Dataset", path: Path) -> None:
    # Format 2: both consolidated metadata and variable-length text are specified there, so no reader is warned.
    text = {str(name): var.astype(object) for name, var in ds.variables.items() if var.dtype.kind == "U"}
    try:
        ds.assign(text).to_zarr(path, mode="w", zarr_format=2, consolidated=True)
    except ImportError as error:
        raise InputError(
            "writing .zarr needs the package zarr: pip install 'memmodel[distributed]'; or write .nc"
        ) from error


def load(path: str | os.PathLike[str]) -> "xr.Dataset":
    """Read a whole Dataset into memory and close the file.

    Raises
    ------
    InputError
        If there is no such file, or it is not a NetCDF-4 file or Zarr store.
    """
    import xarray as xr

    source = Path(path)
    if source.suffix not in _ENGINES:
        raise InputError(f"{source}: cannot tell the format; the name must end in {' or '.join(_ENGINES)}")
    if not source.exists():
        raise InputError(f"{source}: no such file")
    try:
        ds = xr.load_dataset(source, engine=_ENGINES[source.suffix]).drop_encoding()
    except Exception as error:  # HDF5 and Zarr name a bad file by a dozen kinds of exception
        raise InputError(f"{source}: not a readable {source.suffix} file: {' '.join(str(error).split())}") from error
    return ds.assign(
        {str(name): var.astype(object).astype(str) for name, var in ds.variables.items() if var.dtype.kind in "OT"}
    )
