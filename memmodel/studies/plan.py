"""A sweep with everything that decides its result, and the Dataset that comes of it."""

import json
import os
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memmodel.results.dataset import Column, build, check_target, save, stamp
from memmodel.results.variables import Variable, variable
from memmodel.studies.points import Points
from memmodel.studies.registry import Block
from memmodel.studies.runner import Outcome, run

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """All that decides the bytes of the result."""

    block: Block
    points: Points
    parameters: Mapping[str, Variable]
    """The coordinate of each parameter, without its dimension."""
    outputs: tuple[Variable, ...]
    title: str
    origin: Mapping[str, Any]
    """What provenance says besides the points: study or function, machine, inputs."""

    def execute(
        self,
        workers: int | Executor,
        chunk: int | None,
        progress: bool | None,
        out: str | os.PathLike[str] | None,
    ) -> "xr.Dataset":
        """Run it; how and where to does not change the result."""
        if out is not None:
            check_target(out)
        ds = self._dataset(run(self.block, self.points, self.outputs, workers=workers, chunk=chunk, progress=progress))
        if out is not None:
            save(ds, out)
        return ds

    def _dataset(self, outcome: Outcome) -> "xr.Dataset":
        points = self.points
        coordinates = []
        for axis in points.axes:
            if axis.listed:  # listed cases: the dimension is the place in the list
                coordinates.append(Column(variable(axis.name), np.arange(len(axis))))
            for name, values in axis.columns.items():
                coordinates.append(Column(replace(self.parameters[name], dims=(axis.name,)), values))
        if points.replicates > 1:
            coordinates.append(Column(variable("replicate"), np.arange(points.replicates)))
        coordinates += [Column(self.parameters[name], value) for name, value in points.constants.items()]
        columns = {**outcome.columns, "status": outcome.status}
        data = [
            Column(replace(entry, dims=points.dims), columns[entry.name].reshape(points.shape))
            for entry in (*self.outputs, variable("status"))
        ]
        attrs = {"title": self.title, "provenance": self._provenance()}
        if outcome.failures:
            failures = [{**points.label(point), "message": message} for point, message in outcome.failures]
            attrs["failures"] = json.dumps(failures)
        return build(coordinates, data, attrs)

    def _provenance(self) -> str:
        axes = self.points.axes
        return stamp(
            {
                **self.origin,
                "parameters": self.points.constants,
                "grid": {axis.name: axis.columns[axis.name].tolist() for axis in axes if not axis.listed},
                "cases": {
                    name: values.tolist() for axis in axes if axis.listed for name, values in axis.columns.items()
                },
                "replicates": self.points.replicates,
                "seed": self.points.seed,
            }
        )
