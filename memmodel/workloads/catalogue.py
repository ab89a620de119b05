"""The workloads by name, with their settings; mixes by share of memory."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Real

from memmodel.errors import InputError, one_of

__all__ = ["MIXED", "WORKLOADS", "Setting", "parse_mix", "settings_of"]

MOST = float(1 << 31)


@dataclass(frozen=True)
class Setting:
    """A number that a generator asks for."""

    name: str
    default: float
    low: float
    high: float
    doc: str


def _sizes(name: str, default: int, doc: str) -> Setting:
    return Setting(name, default, 1, MOST, doc)


def _share(name: str, default: float, doc: str) -> Setting:
    return Setting(name, default, 0, 1, doc)


WORKLOADS: dict[str, tuple[Setting, ...]] = {
    "anonymous": (_sizes("process_pages", 512, "Pages of a process, on average."),),
    "page_cache": (
        _sizes("file_pages", 32, "Pages of a file, on average."),
        _share("slab_chance", 0.4, "Slabs of inodes or dentries: one before a file, or another, this often."),
        _share("drop_chance", 0, "As much is reclaimed as there are files, after a new one, this often."),
    ),
    "kernel": (
        _sizes("burst_requests", 64, "Requests of a burst, on average."),
        _share("long_chance", 0.25, "Share of the requests that live long, close below the level."),
        _share("larger_chance", 0.3, "An order is the next larger one this often, up to 3."),
        _share("kernel_turnover", 0.1, "At the level, a long-lived block goes after a burst this often."),
    ),
    "pinned": (
        _sizes("pinned_pages", 64, "Pages of a pinned buffer, on average."),
        _share("pinned_turnover", 0.01, "At the level, a buffer goes in place of an operation this often."),
    ),
    "thp": (
        _sizes("huge_pages", 8, "THPs of a process, on average."),
        _sizes("fallback_pages", 512, "Single pages that take the place of a THP that failed."),
    ),
    "dma_buf": (_sizes("dma_buf_pages", 2048, "Pages of a buffer, on average."),),
}
"""Settings of each workload; the place of a name is the generator's code."""

MIXED: Mapping[str, float] = {"anonymous": 8, "page_cache": 6, "kernel": 2, "pinned": 1, "thp": 2, "dma_buf": 1}
"""What "mixed" stands for: shares of memory, made up."""

_PART = re.compile(r"\s*(?:(\d+(?:\.\d+)?)\s*\*\s*)?(\w+)\s*")


def parse_mix(mix: str | Mapping[str, float]) -> dict[str, float]:
    """Share of each workload in a mix, summing to 1, in the order of `WORKLOADS`.

    Parameters
    ----------
    mix
        "anonymous", "mixed", "anonymous+kernel" (equal shares), "4*anonymous+kernel", or workload to weight.

    Raises
    ------
    InputError
        If a name is none, comes twice, or a weight is not above 0.
    """
    if isinstance(mix, str):
        mix = MIXED if mix.strip() == "mixed" else _parts(mix)
    if not isinstance(mix, Mapping) or not mix:
        raise InputError(f"workload {mix!r}; a name, a mix such as '4*anonymous+kernel', or a mapping to weights")
    for name, weight in mix.items():
        one_of(name, (*WORKLOADS, "mixed"), "workload")
        if not isinstance(weight, Real) or isinstance(weight, bool) or not 0 < weight < MOST:
            raise InputError(f"workload {name}: a weight of {weight!r}; numbers above 0 are possible")
    if "mixed" in mix:
        raise InputError("workload 'mixed' is a mix itself, and cannot be part of one")
    total = float(sum(mix.values()))
    return {name: float(mix[name]) / total for name in WORKLOADS if name in mix}


def _parts(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in text.split("+"):
        match = _PART.fullmatch(part)
        if match is None or match[2] in weights:
            found = "comes twice" if match else f"in {text!r} is no workload"
            raise InputError(f"{part.strip()!r} {found}; a mix is written '4*anonymous+kernel'")
        weights[match[2]] = float(match[1] or 1)
    return weights


def settings_of(workloads: Mapping[str, float], given: Mapping[str, object]) -> dict[str, list[float]]:
    """The settings of each workload of a mix, as its generator takes them.

    Raises
    ------
    InputError
        If a setting is of none of these workloads, or out of its range.
    """
    known = {setting.name: setting for name in workloads for setting in WORKLOADS[name]}
    values = {name: setting.default for name, setting in known.items()}
    for name, value in given.items():
        setting = known[one_of(name, known, f"setting of workload {'+'.join(workloads)}")]
        number = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
        if not number or not setting.low <= float(value) <= setting.high:  # type: ignore[arg-type]
            raise InputError(f"{name} {value!r}; numbers from {setting.low:g} to {setting.high:g} are possible")
        values[name] = float(value)  # type: ignore[arg-type]
    return {name: [values[setting.name] for setting in WORKLOADS[name]] for name in workloads}
