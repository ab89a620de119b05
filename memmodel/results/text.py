"""Results as text: tables for people, JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["dataset_dict", "describe", "table", "to_json"]

_N_ROWS = 10


def table(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines with aligned columns; "-" where there is no value."""
    lines = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cell(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "NO"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def describe(ds: "xr.Dataset", width: int) -> str:
    """The first points of a sweep with as many outputs as `width` holds, then its size, constants and seed."""
    import numpy as np

    dims, shape = ds["status"].dims, ds["status"].shape
    places = [dict(zip(dims, place, strict=True)) for place in islice(np.ndindex(shape), _N_ROWS)]
    names = [str(name) for name, values in ds.coords.items() if values.ndim] + [str(name) for name in ds.data_vars]
    columns = {name: [name, *_column(ds[name], places)] for name in names}
    room = width + 2
    shown: list[str] = []
    for name, cells in columns.items():
        room -= max(map(len, cells)) + 2
        if room < 0 and shown:
            break
        shown.append(name)
    fixed = [f"{name}={_cell(values.item())}" for name, values in ds.coords.items() if not values.ndim]
    record = json.loads(ds.attrs["provenance"])
    facts = {
        "points": f"{ds['status'].size} ({len(places)} shown)",
        "not shown": ", ".join(names[len(shown) :]),
        "fixed": ", ".join(fixed),
        "machine": (record.get("machine") or {}).get("name", ""),
        "seed": record["seed"],
    }
    first_points = table(zip(*(columns[name] for name in shown), strict=True))
    return f"{first_points}\n\n{table((key, value) for key, value in facts.items() if value != '')}"


def _column(values: "xr.DataArray", places: Iterable[dict[Any, int]]) -> list[str]:
    own = ({dim: index for dim, index in place.items() if dim in values.dims} for place in places)
    return [_cell(values.isel(place).item()) for place in own]


def dataset_dict(ds: "xr.Dataset") -> dict[str, Any]:
    """A sweep as nested dicts and lists: xarray's own form, with provenance and failures as objects."""
    content = ds.to_dict()
    record = {key: json.loads(content["attrs"].get(key, "[]")) for key in ("provenance", "failures")}
    return {"title": ds.attrs["title"], **record, **{key: content[key] for key in ("dims", "coords", "data_vars")}}


def to_json(content: object) -> str:
    """Strict JSON: NumPy's values become plain ones, and what is not finite becomes null."""
    return json.dumps(_plain(content), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return _plain(value.tolist())
    return None if isinstance(value, float) and not isfinite(value) else value
