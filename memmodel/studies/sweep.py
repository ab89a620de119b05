"""Sweeps: a grid or a list of cases in, one labelled Dataset out, and the same again from its own attrs."""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memmodel.errors import InputError, one_of
from memmodel.results.dataset import provenance
from memmodel.results.variables import Variable, variable
from memmodel.results.zones import file_digests
from memmodel.studies.plan import Plan
from memmodel.studies.points import RESERVED, Points, axes_of, check_seed, whole
from memmodel.studies.registry import Block, Study, find_study

if TYPE_CHECKING:
    import xarray as xr

    from memmodel.cost.machines import Machine

__all__ = ["rerun", "run_study", "sweep"]

Grid = Mapping[str, object]
Cases = Iterable[Mapping[str, object]]
PathLike = str | os.PathLike[str]

_TYPES = {"bool": (bool,), "int64": (int,), "float64": (int, float), "str": (str,)}
# What the names of a user's own parameters say of their units; the longest ending wins.
_UNITS = {"_gib_per_s": "GiB s-1", "_per_gib": "GiB-1", "_bytes": "byte", "_ns": "ns"}


def run_study(  # noqa: PLR0913 - what to run, from what, how often and where: none of it can be left out
    name: str,
    grid: Grid | None = None,
    *,
    cases: Cases | None = None,
    machine: "str | PathLike | Machine | None" = None,
    memory: object | None = None,
    replicates: int = 1,
    seed: int | None = None,
    workers: int | Executor = 1,
    chunk: int | None = None,
    progress: bool | None = None,
    out: PathLike | None = None,
) -> "xr.Dataset":
    """Run a study at every point of a grid.

    Parameters
    ----------
    name
        One of `memmodel.studies.registry.STUDIES`.
    grid
        Parameter to list of values: each list becomes a dimension, in the order given. A single value sets the
        parameter; one that is not named keeps its default.
    cases
        Points listed one by one, each a mapping of the same parameters: one dimension ``case``, after those of `grid`.
    machine
        What prices the counts: a name, a machine file or a `Machine`.
    memory
        What the study starts from, where it asks for one: a `PhysicalMemory` or a `Snapshot`.
    replicates
        Repetitions with fresh random numbers; more than one make the last dimension, ``replicate``.
    seed
        Root of all random numbers; None draws one. It is recorded in the Dataset.
    workers
        Threads; or an executor, such as a Dask client's ``get_executor()``, to which block and points must pickle.
    chunk
        Points in one call of the block. Neither this nor `workers` changes a byte of the result.
    progress
        Whether to draw a bar after the first second; None: where stderr is a terminal.
    out
        File to write the Dataset to, as `memmodel.results.dataset.save` does.

    Returns
    -------
        The study's outputs and ``status`` over the swept parameters. A point that fails is NaN, its status says why,
        and the attribute ``failures`` (JSON) holds the first 20 messages.

    Raises
    ------
    InputError
        Before anything runs: if the study, a parameter, a value, the machine or an option is none that is allowed.
    """
    study = find_study(name)
    resources, origin = _resources(study, machine, memory)
    outputs = tuple(variable(output) for output in study.outputs)
    axes, given = axes_of(
        grid or {}, cases, lambda parameter, values: study.parameter(parameter).column(values), study.outputs
    )
    swept = {parameter for axis in axes for parameter in axis.columns}
    constants = {p.name: given.get(p.name, p.default) for p in study.parameters if p.name not in swept}
    workload = {p.name for p in study.parameters if p.workload}
    points = Points(axes, constants, workload, whole("replicates", replicates, 1), check_seed(seed))
    labels = {p.name: p.variable() for p in study.parameters}
    plan = Plan(study.bind(resources), points, labels, outputs, study.title, {"study": study.name, **origin})
    return plan.execute(workers, chunk, progress, out)


def _resources(study: Study, machine: object | None, memory: object | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the study gets besides its parameters, and what provenance says of it."""
    from memmodel.cost.machines import Machine, load_machine, machine_names

    resources: dict[str, Any] = {}
    origin: dict[str, Any] = {"machine": None, "memory": None, "inputs": []}
    chosen = study.default_machine if machine is None else machine
    if isinstance(chosen, str | os.PathLike):
        chosen = load_machine(chosen)
    if isinstance(chosen, Machine):
        resources["machine"] = chosen
        origin["machine"] = {"name": chosen.name, "digest": chosen.digest}
        if chosen.name not in machine_names() or load_machine(chosen.name).digest != chosen.digest:
            origin["machine"]["table"] = chosen.as_dict()  # the user's own: the record must stand without the file
    elif chosen is not None:
        raise InputError(f"machine is a {type(chosen).__name__}; give a name, a machine file or a Machine")
    if memory is not None:
        resources["memory"] = memory
        said = {"kind": type(memory).__name__, "digest": getattr(memory, "digest", None)}
        origin |= {"memory": said, "inputs": file_digests(memory)}
    return resources, origin


def sweep(  # noqa: PLR0913 - as run_study
    block: Block,
    grid: Grid | None = None,
    *,
    outputs: Mapping[str, Variable | Mapping[str, str]],
    cases: Cases | None = None,
    workload: Iterable[str] | None = None,
    replicates: int = 1,
    seed: int | None = None,
    workers: int | Executor = 1,
    chunk: int | None = None,
    progress: bool | None = None,
    out: PathLike | None = None,
) -> "xr.Dataset":
    """Run a function of the user's own at every point of a grid.

    Parameters
    ----------
    block
        Called as ``block(params, seeds)`` with the parameters by name, each ``[n_points]``, and ``uint64[n_points, 4]``
        of seeds; returns a dict of the outputs, each ``[n_points]``, and may add ``status`` (0 to 3).
        A point's result must depend on that point alone.
    grid, cases, replicates, seed, workers, chunk, progress, out
        As for `run_study`; the types of the parameters are those of the values given.
    outputs
        Name to ``{"units": ..., "long_name": ...}`` (stored as float64) or to a `Variable`.
    workload
        Parameters that pick the random numbers; levels of the others are compared on the same ones. None: all.

    Returns
    -------
        As `run_study`.

    Raises
    ------
    InputError
        If an option or value is not allowed, or the block returns other names, lengths or types than `outputs` say.
    """
    if not callable(block):
        raise InputError(f"the block is a {type(block).__name__}; give a function of params and seeds")
    entries = tuple(_output(name, given) for name, given in outputs.items())
    axes, constants = axes_of(grid or {}, cases, _infer_column, outputs)
    kinds = {name: column.dtype.name for axis in axes for name, column in axis.columns.items()}
    kinds |= {name: np.asarray(value).dtype.name for name, value in constants.items()}
    picked = list(kinds if workload is None else workload)
    for name in picked:
        one_of(name, kinds, "parameter in workload")
    points = Points(axes, constants, picked, whole("replicates", replicates, 1), check_seed(seed))
    labels = {name: _label(name, "str" if kind.startswith("str") else kind) for name, kind in kinds.items()}
    origin = {"block": _import_name(block), "outputs": [asdict(entry) for entry in entries], "workload": picked}
    title = f"Sweep of {getattr(block, '__name__', type(block).__name__)}"
    return Plan(block, points, labels, entries, title, origin).execute(workers, chunk, progress, out)


def _output(name: str, given: Variable | Mapping[str, str]) -> Variable:
    if name in RESERVED:
        raise InputError(f"output {name!r}: the sweep itself has a variable of that name")
    if isinstance(given, Variable) and given.name == name:
        return given
    if not isinstance(given, Mapping) or not given.keys() <= {"units", "long_name", "doc"} or "units" not in given:
        raise InputError(f"output {name!r}: give {{'units': ..., 'long_name': ...}} or a Variable of that name")
    label = given.get("long_name") or _in_words(name)
    return Variable(name, "float64", given["units"], label, given.get("doc", label))


def _label(name: str, dtype: str) -> Variable:
    units = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "1")
    return Variable(name, dtype, units, _in_words(name), "A parameter of the user's own.")


def _in_words(name: str) -> str:
    return name.replace("_", " ")


def _infer_column(name: str, values: Sequence[object]) -> NDArray[Any]:
    """The values of a parameter that nothing declares, as one type."""
    items = [value.item() if isinstance(value, np.generic) else value for value in values]
    fitting = [dtype for dtype, kinds in _TYPES.items() if all(isinstance(item, kinds) for item in items)]
    if not fitting:
        raise InputError(f"parameter {name}: {items!r:.60} are not all numbers or all texts")
    dtype = fitting[0]
    try:
        column = np.array(items, dtype)
    except OverflowError:
        raise InputError(f"parameter {name}: {items!r:.60} do not fit {dtype}") from None
    if dtype == "float64" and not np.isfinite(column).all():
        raise InputError(f"parameter {name}: {column[~np.isfinite(column)][0]} is not a value to sweep")
    return column


def _import_name(block: Block) -> str | None:
    module, qualname = getattr(block, "__module__", None), getattr(block, "__qualname__", None)
    return f"{module}:{qualname}" if module and qualname else None


def rerun(
    ds: "xr.Dataset",
    *,
    block: Block | None = None,
    machine: "str | PathLike | Machine | None" = None,
    memory: object | None = None,
    workers: int | Executor = 1,
    progress: bool | None = None,
    out: PathLike | None = None,
) -> "xr.Dataset":
    """Run a Dataset of `run_study` or `sweep` again, from its own attribute ``provenance``.

    Parameters
    ----------
    block
        The function, where it cannot be imported by the name recorded.
    machine, memory
        What it was run with, where that was none of memmodel's own; it must have the digest recorded.
    workers, progress, out
        As for `run_study`.

    Raises
    ------
    InputError
        If the record is missing or broken, the function cannot be imported, or a machine or input is another one now.
    """
    record = provenance(ds)
    options = {**_recorded(record), "workers": workers, "progress": progress, "out": out}
    if "study" not in record:
        return sweep(_import_block(record.get("block")) if block is None else block, **options)
    if machine is None:
        machine = _recorded_machine(record)
    _, origin = _resources(find_study(record["study"]), machine, memory)
    for option, key in (("machine", "machine"), ("memory", "memory"), ("memory", "inputs")):
        if origin[key] != record.get(key):
            said, now = _named(record.get(key)), _named(origin[key])
            raise InputError(f"the Dataset was made with {key} {said}, not {now}; give {option}=")
    return run_study(record["study"], machine=machine, memory=memory, **options)


def _named(resource: object) -> object:
    """A machine or memory of a record in a few words."""
    if not isinstance(resource, Mapping) or not resource:
        return resource
    name, digest = resource.get("name", resource.get("kind")), resource.get("digest")
    return name if digest is None else f"{name} {str(digest)[:12]}"


def _recorded_machine(record: Mapping[str, Any]) -> "str | Machine | None":
    from memmodel.cost.machines import machine_from_dict

    said = record.get("machine")
    if not isinstance(said, Mapping) or "table" not in said:
        return said["name"] if isinstance(said, Mapping) and "name" in said else None
    return machine_from_dict(str(said.get("name")), said["table"], "provenance")


def _recorded(record: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a record and a new call share."""
    try:
        cases: Mapping[str, list[object]] = record["cases"]
        options = {
            "grid": {**record["parameters"], **record["grid"]},
            "cases": [dict(zip(cases, row, strict=True)) for row in zip(*cases.values(), strict=True)] or None,
            "replicates": record["replicates"],
            "seed": int(record["seed"]),
        }
        if "study" not in record:
            entries = [{**entry, "dims": (), "flags": tuple(entry["flags"])} for entry in record["outputs"]]
            options["outputs"] = {entry["name"]: Variable(**entry) for entry in entries}
            options["workload"] = record["workload"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"the Dataset's attribute 'provenance' is broken: {error!r}") from error
    return options


def _import_block(name: str | None) -> Block:
    try:
        module, qualname = (name or "").split(":")
        block: Block = attrgetter(qualname)(import_module(module))
    except (AttributeError, ImportError, ValueError):
        raise InputError(f"the function {name} cannot be imported; give it as block=") from None
    return block
