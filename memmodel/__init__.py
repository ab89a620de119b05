r"""A model of Linux physical memory: pages where Linux places them, thousands of points in seconds.

::

    .config  DTS  /proc text  kernel log  ftrace text        machines.toml            grid
         \    |    |            |          /                      |                    |
          sources  ->  geometry  ->  state  ->  mechanisms  ->  cost  ->  studies  ->  Dataset -> report / CLI
                                                  |                          |
                                               kernels (count events)     results (names every variable)

Names are imported when they are first used, so that ``import memmodel`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memmodel.errors import GeometryError, InputError, InvariantError, MemmodelError
    from memmodel.geometry import Geometry
    from memmodel.mechanisms.buddy import alloc_pages, free_pages
    from memmodel.mechanisms.copying import CopyOutcome, copy_mc_highpages, folio_mc_copy
    from memmodel.mechanisms.poisoning import FailureWork, inject_poison, run_memory_failure_work
    from memmodel.memory import PhysicalMemory, load
    from memmodel.sources.snapshot import read_snapshot
    from memmodel.studies.sweep import rerun, run_study, sweep

__version__ = "0.1.0"

_HOME = {
    "memmodel.errors": ("GeometryError", "InputError", "InvariantError", "MemmodelError"),
    "memmodel.geometry": ("Geometry",),
    "memmodel.mechanisms.buddy": ("alloc_pages", "free_pages"),
    "memmodel.mechanisms.copying": ("CopyOutcome", "copy_mc_highpages", "folio_mc_copy"),
    "memmodel.mechanisms.poisoning": ("FailureWork", "inject_poison", "run_memory_failure_work"),
    "memmodel.memory": ("PhysicalMemory", "load"),
    "memmodel.sources.snapshot": ("read_snapshot",),
    "memmodel.studies.sweep": ("rerun", "run_study", "sweep"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CopyOutcome",
    "FailureWork",
    "Geometry",
    "GeometryError",
    "InputError",
    "InvariantError",
    "MemmodelError",
    "PhysicalMemory",
    "__version__",
    "alloc_pages",
    "copy_mc_highpages",
    "folio_mc_copy",
    "free_pages",
    "inject_poison",
    "load",
    "read_snapshot",
    "rerun",
    "run_memory_failure_work",
    "run_study",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'memmodel' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
