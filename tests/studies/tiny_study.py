"""A study small enough to read: its rate is a random number that only the workload picks."""

import numpy as np

from memmodel.errors import InputError, InvariantError
from memmodel.studies.registry import Parameter, Params, Seeds, Study


def block(params: Params, seeds: Seeds) -> dict[str, np.ndarray]:
    if (params["folio_order"] == 13).any():
        raise InputError("order 13 is refused")
    if (params["folio_order"] == 14).any():
        raise InvariantError("order 14 breaks a law")
    if (params["folio_order"] == 15).any():
        raise ZeroDivisionError("order 15 divides by zero")
    rate = np.array([np.random.default_rng(seed).random() for seed in seeds])
    return {
        "throughput_gib_per_s": rate + params["poison_per_gib"],
        "n_calls": np.where(params["batch"] == "page", 2 ** params["folio_order"], 1),
        "calibrated": params["folio_order"] <= 9,
    }


STUDY = Study(
    name="tiny",
    doc="How fast is nothing copied?\n\nA study for tests.",
    parameters=(
        Parameter("folio_order", 9, "Order of the folios. From 0.", kind="int", range=(0, 18), workload=True),
        Parameter("poison_per_gib", 0.0, "Poisoned lines", "GiB-1", range=(0, None), workload=True),
        Parameter("batch", "page", "What one call copies", kind="choice", choices=("page", "extent")),
        Parameter("note", "", "Any text", kind="str"),
    ),
    outputs=("throughput_gib_per_s", "n_calls", "calibrated"),
    block=block,
    source="made up",
)
