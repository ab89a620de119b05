"""The command line: arguments in, one answer on stdout, one line on stderr for a mistake.

Exit codes: 0 done, 1 the model found a mismatch, 2 bad input, 130 interrupted.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memmodel.errors import InputError, InvariantError, MemmodelError
from memmodel.results.text import dataset_dict, describe, table, to_json
from memmodel.units import format_bytes

# NumPy, xarray and Numba are imported by the commands that need them, so that --help answers at once.
if TYPE_CHECKING:
    import xarray as xr

    from memmodel.geometry import Geometry
    from memmodel.sources.devicetree import DeviceTree
    from memmodel.studies.registry import Parameter, Study, Value

__all__ = ["cli", "main", "run_command"]

DONE, MISMATCH, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return run_command(cli, "memmodel", arguments)


def run_command(command: click.Command, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a mistake gets one line on stderr, whatever went wrong."""
    try:
        with command.make_context(name, list(sys.argv[1:] if arguments is None else arguments)) as context:
            code = command.invoke(context)
            return code if isinstance(code, int) else DONE
    except click.exceptions.Exit as request:
        return request.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what Python still flushes at exit
        return BROKEN_PIPE
    except InvariantError as error:
        _note(str(error))
        return MISMATCH
    except (click.ClickException, MemmodelError, OSError, MemoryError) as error:
        _note(_one_line(error))
        return BAD_INPUT


def _one_line(error: Exception) -> str:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{error.format_message()} (see {error.ctx.command_path} --help)"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _note(text: str) -> None:
    click.echo(f"memmodel: {' '.join(text.split())}", err=True)


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            click.echo(f"memmodel {metadata.version('memmodel')}")
        except metadata.PackageNotFoundError:
            click.echo("memmodel, not installed")
        context.exit()


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show it.")
def cli() -> None:
    """Linux physical memory, modelled: geometry, free lists, hardware errors, copying; more in the README."""


# -- studies -----------------------------------------------------------------------------------------------------------


@cli.group(no_args_is_help=False)
def study() -> None:
    """Run studies over grids of parameters."""


@study.command("list")
def study_list() -> None:
    """List the studies."""
    from memmodel.studies.registry import STUDIES, find_study

    click.echo(table([(name, find_study(name).title) for name in STUDIES]))


@study.command("show")
@click.argument("name")
def study_show(name: str) -> None:
    """Show a study's parameters and outputs."""
    from memmodel.results.variables import variable
    from memmodel.studies.registry import find_study

    found = find_study(name)
    parameters = [(p.name, p.default, p.allowed, p.units, p.doc) for p in found.parameters]
    outputs = [(v.name, v.units, v.long_name) for v in map(variable, found.outputs)]
    click.echo(f"{found.name}: {found.doc.strip()}\n\nSource: {found.source}\n")
    click.echo(table([("parameter", "default", "allowed", "units", "what it is"), *parameters]) + "\n")
    click.echo(table([("output", "units", "what it is"), *outputs]))


@study.command("run")
@click.argument("name")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUES", help="v1,v2,... or first:last:n; repeatable.")
@click.option("--machine", metavar="M", help="Machine that prices the counts: a name or a .toml file.")
@click.option(
    "--memory", multiple=True, metavar="PATH", help="Files or folder of a snapshot to start from; repeatable."
)
@click.option("--replicates", type=click.IntRange(1), default=1, show_default=True, help="Repetitions of each point.")
@click.option("--seed", type=click.IntRange(0), help="Root of all random numbers; drawn and recorded if not given.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Threads.")
@click.option("--out", metavar="FILE", help="Write the Dataset here: .nc or .zarr.")
@click.option("--plot", "plot_path", metavar="FILE.png", help="Draw the Dataset here.")
@_json
def study_run(name: str, settings: tuple[str, ...], plot_path: str | None, as_json: bool, **options: Any) -> int:
    """Run a study over the values that --set gives; a parameter with several values is swept."""
    from memmodel.studies.registry import find_study
    from memmodel.studies.sweep import run_study

    if plot_path is not None:
        from memmodel.report.panels import check_path

        check_path(plot_path)
    grid = _grid(find_study(name), settings)
    if plot_path is not None and not any(isinstance(values, list) for values in grid.values()):
        raise InputError("--plot: nothing is swept; give a parameter several values with --set")
    ds = run_study(name, grid, **options | {"memory": _snapshot(options["memory"]) if options["memory"] else None})
    if as_json:
        click.echo(to_json({"out": options["out"], **dataset_dict(ds)}))
    else:
        click.echo(describe(ds, shutil.get_terminal_size((100, 24)).columns))
        if options["out"] is not None:
            click.echo(f"written to  {options['out']}")
    if plot_path is not None:
        from memmodel.report.plots import plot_dataset

        plot_dataset(ds, plot_path)
    return _judge(ds)


def _grid(study: "Study", settings: Iterable[str]) -> dict[str, object]:
    """What the --set options say: a list where a parameter is swept, else its value."""
    grid: dict[str, object] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise InputError(f"--set {setting}: write name=value, name=v1,v2,... or name=first:last:n")
        parameter = study.parameter(name)
        if name in grid:
            raise InputError(f"--set {setting}: {name} is set twice")
        values = [value for part in text.split(",") for value in _values(parameter, part.strip())]
        grid[name] = values[0] if len(values) == 1 else values
    return grid


def _values(parameter: "Parameter", text: str) -> "list[Value]":
    """One value, or the n values of ``first:last:n`` (ends included) for a number."""
    import numpy as np

    from memmodel.studies.points import MAX_POINTS

    if ":" not in text or parameter.kind not in ("int", "float"):
        return [parameter.cast(text)]
    first, last, n_values = (*text.split(":"), "", "")[:3]
    if text.count(":") != 2 or not n_values.isdecimal() or not 1 <= int(n_values) <= MAX_POINTS:
        raise InputError(f"parameter {parameter.name}: {text!r} is not first:last:n, n values with both ends")
    ends = float(parameter.cast(first)), float(parameter.cast(last))
    return [parameter.cast(value) for value in np.linspace(*ends, int(n_values)).tolist()]


def _judge(ds: "xr.Dataset") -> int:
    """Say how many points failed, and with which exit code that ends."""
    from memmodel.results.variables import PointStatus

    if "calibrated" in ds:
        guessed = int(((ds["calibrated"] == 0) & (ds["status"] == PointStatus.OK)).sum())
        if guessed:
            _note(
                f"note: {guessed} of {ds['status'].size} points lie outside the machine's measurements (calibrated = 0)"
            )
    if "alloc_failed" in ds and float(ds["alloc_failed"].max()) > 0:
        _note("note: the memory held less than the study moves; alloc_failed counts the folios without a place")
    failed = ds["status"].values[ds["status"].values != PointStatus.OK]
    if not failed.size:
        return DONE
    messages = json.loads(ds.attrs.get("failures", "[]"))
    first = f"; the first: {messages[0]['message']}" if messages else ""
    _note(f"{failed.size} of {ds['status'].size} points failed{first}")
    if failed.size == ds["status"].size and (failed == PointStatus.REFUSED_INPUT).all():
        return BAD_INPUT
    return MISMATCH if (failed != PointStatus.REFUSED_INPUT).any() else DONE


# -- geometry and snapshots --------------------------------------------------------------------------------------------


@cli.command()
@click.option("--config", metavar="FILE", help="A kernel .config to start from; the other options change it.")
@click.option("--page-size", metavar="SIZE", help="4KiB, 16KiB, 64KiB; several with --device-tree.")
@click.option("--arch", metavar="ARCH", help="x86_64, arm64, powerpc64, generic.")
@click.option("--kernel", metavar="NAME", help="Kernel whose rules hold, such as 6.12.117.")
@click.option("--max-page-order", type=int, metavar="N", help="MAX_PAGE_ORDER, inclusive.")
@click.option("--page-block-max-order", type=int, metavar="N", help="Limit of the pageblock order.")
@click.option("--no-thp", is_flag=True, help="Without transparent huge pages.")
@click.option("--no-hugetlb", is_flag=True, help="Without hugetlb pages.")
@click.option("--device-tree", metavar="FILE", help="Show what becomes of the reserved-memory nodes of this .dts.")
@click.option("--close-nodes", is_flag=True, help="With --device-tree: close nodes that are open where the text ends.")
@click.option("--cma", metavar="SIZE", help="With --device-tree: what cma= of the boot line says.")
@_json
def geometry(  # noqa: PLR0913 - an argument an option
    config: str | None,
    kernel: str | None,
    no_thp: bool,
    no_hugetlb: bool,
    device_tree: str | None,
    close_nodes: bool,
    cma: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """The orders and alignments of a kernel configuration."""
    from memmodel.geometry import Geometry

    if device_tree is None and (cma is not None or close_nodes):
        raise InputError(f"{'--cma' if cma is not None else '--close-nodes'}: only with --device-tree")
    given |= {"transparent_hugepage": False if no_thp else None, "hugetlb": False if no_hugetlb else None}
    changes = {name: value for name, value in given.items() if value is not None}

    def build(**more: Any) -> "Geometry":
        if config is not None:
            return Geometry.from_kconfig(Path(config), kernel=kernel, **changes | more)
        return Geometry(**changes | more if kernel is None else {**changes, **more, "kernel": kernel})

    if device_tree is not None:
        from memmodel.sources.devicetree import read_device_tree

        sizes = changes.get("page_size", "").split(",")
        tree = read_device_tree(device_tree, close_nodes=close_nodes)
        _reserved_memory(tree, [build(**{"page_size": size} if size else {}) for size in sizes], cma, as_json)
        return
    summary = build().summary()
    notes, open_builds = summary.pop("notes"), []
    if config is not None:
        builds = Geometry.all_from_kconfig(Path(config), kernel, **changes)
        open_builds = [{key: geo.summary()[key] for key in summary} for geo in builds[1:]]
    if as_json:
        click.echo(to_json(summary | {"notes": notes} | ({"also_possible": open_builds} if open_builds else {})))
        return
    click.echo(table([_geometry_row(key, value, open_builds) for key, value in summary.items()]))
    for note in notes:
        _note(f"note: {note}")


def _geometry_row(key: str, value: int, open_builds: Iterable[dict[str, int]]) -> tuple[object, ...]:
    """An order or a size, and what else it may be where the configuration does not show what it hangs on."""
    in_words = format_bytes if key.endswith("_bytes") else str
    others = dict.fromkeys(in_words(build[key]) for build in open_builds if build[key] != value)
    cannot_tell = f"or {', '.join(others)}: cannot be told" if others else ""
    return key, value, f"({format_bytes(value)})" if key.endswith("_bytes") else "", cannot_tell


def _reserved_memory(tree: "DeviceTree", builds: "list[Geometry]", cma: str | None, as_json: bool) -> None:
    from memmodel.mechanisms.reserved_memory import reserved_memory

    found = reserved_memory(tree, builds, cma=cma)
    if as_json:
        areas = [area.as_dict() if area is not None else None for area in found.default_areas]
        content = {"builds": [geo.summary() for geo in builds], "cells": tree.cells, "nodes": found.rows()}
        click.echo(to_json(content | {"default_areas": areas, "notes": found.notes}))
        return
    click.echo(table(found.table()))
    of_nodes = (f"{row['node']}: {note}" for row in found.rows() for note in row["notes"])
    for note in dict.fromkeys((*(note for geo in builds for note in geo.notes), *found.notes, *of_nodes)):
        _note(f"note: {note}")


@cli.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE_OR_FOLDER...")
@click.option("--label", metavar="L", help="Which state of a free-list dump; the first if not given.")
@click.option("--page-size", metavar="SIZE", help="Where the files do not tell it.")
@click.option("--out", metavar="FILE", help="Write the zones as a Dataset: .nc or .zarr.")
@_json
def snapshot(paths: tuple[str, ...], label: str | None, page_size: str | None, out: str | None, as_json: bool) -> None:
    """Zones in /proc files, and how fragmented they are."""
    from memmodel.results.dataset import check_target, save
    from memmodel.results.zones import zone_dataset, zone_rows
    from memmodel.sources.snapshot import usual_page_size

    if out is not None:
        check_target(out)
    found, assumed = _snapshot(paths, label=label, page_size=page_size), []
    if found.page_size_bytes is None:
        size, remark = usual_page_size(found.max_order)
        found, assumed = replace(found, page_size_bytes=size), [remark]
    if out is not None:
        save(zone_dataset(found), out)
    rows = zone_rows(found)
    order = found.pageblock_order
    if as_json:
        content = {"page_size_bytes": found.page_size_bytes, "pageblock_order": order, "zones": rows}
        remarks = {"differences": list(found.differences), "assumed": assumed}
        click.echo(to_json(content | remarks | {"files": dict(found.files)}))
        return
    at_order = "" if order is None else f"[{order}]"
    header = {key: key.replace("_", " ") for key in ("node", "zone", "free_bytes", "managed_pages", "largest_order")}
    header |= {"extfrag_index": f"fragmentation{at_order}", "unusable_index": f"unusable{at_order}"}
    for row in rows:
        row |= {key: _at(row[key], order) for key in ("extfrag_index", "unusable_index")}
    click.echo(table([tuple(header.values()), *([row[key] for key in header] for row in rows)]))
    for difference in found.differences:
        click.echo(f"differs: {difference}")
    for remark in assumed:
        click.echo(f"assumed: {remark}")
    if order is None:
        _note("note: no file tells the pageblock order (pagetypeinfo does); the indices at that order are left out")


def _at(by_order: list[float] | None, order: int | None) -> float | None:
    return by_order[order] if by_order is not None and order is not None and order < len(by_order) else None


def _snapshot(paths: Iterable[str], **options: Any) -> Any:
    from memmodel.sources.snapshot import read_snapshot

    return read_snapshot(*paths, **options)


# -- replays -----------------------------------------------------------------------------------------------------------


@cli.command()
@click.argument("trace")
@click.option("--start", required=True, metavar="DUMP", help="State at its start: a dump, or a folder of /proc files.")
@click.option("--end", metavar="SNAPSHOT", help="Files or folder whose buddyinfo is compared at the end.")
@click.option("--kernel", metavar="NAME", help="Kernel whose rules hold, such as 7.3.")
@click.option(
    "--compaction", type=click.Choice(["given", "predicted"]), help="Whether the trace tells what compaction isolates."
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUES", help="What if: v1,v2,...; repeatable.")
@click.option("--out", metavar="FILE", help="Write the Dataset of --set here: .nc or .zarr.")
@_json
def replay(  # noqa: PLR0913 - an argument an option
    trace: str,
    start: str,
    end: str | None,
    kernel: str | None,
    compaction: str | None,
    settings: tuple[str, ...],
    out: str | None,
    as_json: bool,
) -> int:
    """Predict every allocation of a recorded trace, page for page.

    With --set its requests are replayed on other kernels and settings instead: page_block_max_order, kernel,
    percpu_pagelist_high_fraction, cma_size.
    """
    if settings:
        for option, given in (("--end", end), ("--compaction", compaction)):
            if given is not None:
                raise InputError(f"{option}: not with --set, which repeats requests and compares nothing")
        return _what_if(trace, start, kernel, settings, out, as_json)
    if out is not None:
        raise InputError("--out: only a replay with --set makes a Dataset")
    from memmodel.replaying import replay as run_replay

    report = run_replay(trace, start, end=end, kernel=kernel, compaction=compaction)
    if as_json:
        click.echo(to_json(report.as_dict()))
    else:
        click.echo(report.text())
    return MISMATCH if report.differs else DONE


def _what_if(
    trace: str, start: str, kernel: str | None, settings: tuple[str, ...], out: str | None, as_json: bool
) -> int:
    from memmodel.replaying.what_if import what_if
    from memmodel.results.dataset import check_target, save

    if out is not None:
        check_target(out)
    grid: dict[str, list[str]] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise InputError(f"--set {setting}: write name=value or name=v1,v2,...")
        if name in grid:
            raise InputError(f"--set {setting}: {name} is set twice")
        grid[name] = [part.strip() for part in text.split(",")]
    ds = what_if(trace, start, grid, kernel=kernel)
    if out is not None:
        save(ds, out)
    last = ds.isel(time_s=-1)
    if as_json:
        click.echo(to_json({"out": out, **last.to_dict()}))
    else:
        counts = last[[name for name in last.data_vars if str(name).startswith("n_")]].to_dataframe()
        click.echo(counts[[name for name in counts.columns if str(name).startswith("n_")]].to_string())
    return DONE


@cli.command()
@click.option("--records", metavar="DIR", help="Folder of kernel recordings, for the checks that need them whole.")
@_json
def validate(records: str | None, as_json: bool) -> int:
    """Check the model against recorded kernels.

    And against published numbers; exits with 1 where one does not hold.
    """
    if records is not None and not Path(records).is_dir():
        raise InputError(f"--records {records}: no such folder")
    from memmodel.validate import run_checks

    checks = run_checks(records)
    if as_json:
        click.echo(to_json(checks))
    else:
        keys = ("check", "source", "expected", "got", "error", "tolerance", "ok")
        click.echo(table([keys, *([check[key] for key in keys] for check in checks)]))
    return DONE if all(check["ok"] for check in checks) else MISMATCH


if __name__ == "__main__":
    sys.exit(main())
