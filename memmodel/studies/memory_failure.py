"""Let hardware errors hit a machine full of folios: what the kernel loses by them, and whom it has to tell."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.geometry import Geometry
from memmodel.mechanisms.buddy import alloc_pages
from memmodel.mechanisms.failure_settings import hardware_corrupted_kib, memory_failure_stats, set_memory_failure
from memmodel.mechanisms.failure_signals import Task
from memmodel.mechanisms.folio_state import set_folio
from memmodel.mechanisms.hugetlb import pool_folios
from memmodel.mechanisms.memory_failure import memory_failure
from memmodel.mechanisms.poisoning import inject_poison
from memmodel.mechanisms.soft_offline import soft_offline_page
from memmodel.memory import PhysicalMemory
from memmodel.sources.features import PRESETS
from memmodel.state.layout import HANDLE_SLOT, PageFlag
from memmodel.studies.registry import Parameter, Params, Seeds, Study

__all__ = ["STUDY", "block"]

BACKINGS = ("anon", "shmem", "file", "hugetlb")
POLICIES = ("late_kill", "early_kill", "soft_offline")
IN_USE = 0.85  # of memory; soft offlining needs somewhere to move to
ORDER_2MIB, ORDER_1GIB = 9, 18
LINE_SHIFT = 6
PARAMETERS = (
    Parameter("errors_per_gib", 1.0, "Poisoned lines a GiB. Poisson, uniform.", "GiB-1", range=(0, 1e4), workload=True),
    Parameter("memory_gib", 4.0, "Memory of the machine.", "GiB", range=(0.0625, 64), workload=True),
    Parameter("folio_order", 0, "Order of the folios. 9 is a THP.", kind="int", range=(0, 9)),
    Parameter(
        "backing",
        "anon",
        "What the folios belong to. file: clean page cache; hugetlb: 2 MiB pages whatever folio_order.",
        kind="choice",
        choices=BACKINGS,
    ),
    Parameter(
        "policy",
        "late_kill",
        "What is done. vm.memory_failure_early_kill, or the pages moved away before the error grows (soft offline).",
        kind="choice",
        choices=POLICIES,
    ),
    Parameter("n_tasks", 32, "Processes that share the memory, a part each.", kind="int", range=(1, 32)),
    Parameter("kernel", "6.12.117", "Its rules.", kind="choice", choices=PRESETS),
)
OUTPUTS = (
    *("n_errors", "pages_lost", "blocks_2mib_lost", "blocks_1gib_lost", "pages_with_data_lost", "tasks_signalled"),
    *("tasks_hit", "n_recovered", "n_failed", "n_ignored"),
)


def block(params: Params, seeds: Seeds) -> Mapping[str, npt.ArrayLike]:
    """A machine a point; its errors are the same for every level of what is done about them."""
    columns: dict[str, list[float]] = {name: [] for name in OUTPUTS}
    machines: dict[tuple[Any, ...], PhysicalMemory] = {}
    for i, seed in enumerate(seeds):
        point = {name: column[i].item() for name, column in params.items()}
        key = tuple(point[name] for name in ("memory_gib", "folio_order", "backing", "n_tasks", "kernel"))
        if key not in machines:
            machines.clear()  # one at a time: they add up
            machines[key] = filled(point)
        for name, value in run_point(machines[key], point, seed).items():
            columns[name].append(value)
    return columns


def filled(point: Mapping[str, Any]) -> PhysicalMemory:
    """A machine whose folios belong to the processes by turns."""
    geometry = Geometry(kernel=point["kernel"])
    mem = PhysicalMemory(geometry, int(point["memory_gib"] * 2**30), seed=0)
    n_pages = int(mem.state.zones["managed"].sum() * IN_USE)
    if point["backing"] == "hugetlb":
        folios = pool_folios(mem, n_pages >> ORDER_2MIB)
    else:
        folios = alloc_pages(mem, point["folio_order"], n_pages >> point["folio_order"])
    folios = folios[folios >= 0]
    if point["backing"] != "hugetlb":
        set_folio(mem, folios, mapping=point["backing"])
    for task in range(point["n_tasks"]):
        set_folio(mem, folios[task :: point["n_tasks"]], mapped_by=task)
    return mem


def run_point(start: PhysicalMemory, point: Mapping[str, Any], seed: npt.NDArray[np.uint64]) -> dict[str, float]:
    """All errors of one machine, in the order of their addresses."""
    mem, soft = start.copy(), point["policy"] == "soft_offline"
    inject_poison(mem, rate_per_gib=point["errors_per_gib"], seed=np.random.SeedSequence(seed.tolist()))
    n_errors = mem.state.ue_lines.size
    rows = np.unique(mem.state.ue_lines >> np.uint64(mem.geometry.page_shift - LINE_SHIFT)).astype(np.int64)
    pfns = mem.pfns.pfn(rows)
    if soft:  # before that the lines can still be corrected: copies meet no error
        mem = start.copy()
    set_memory_failure(mem, early_kill=point["policy"] == "early_kill")
    tasks = [Task(f"task{number}", 100 + number, number, 0x7F0000000000) for number in range(point["n_tasks"])]
    pages_of_an_error = 1 << ORDER_2MIB if point["backing"] == "hugetlb" else 1  # hugetlb pages are unmapped whole
    hit, signalled, with_data, n_failed_soft = set[int](), set[int](), 0, 0
    for pfn in pfns.tolist():
        if soft:
            n_failed_soft += soft_offline_page(mem, pfn).rc != 0
            continue
        out = memory_failure(mem, pfn, tasks=tasks)
        signalled |= {signal.task.mm for signal in out.signals}
        owners = int(mem.state.folios["mms"][out.folio & HANDLE_SLOT]) if out.folio >= 0 else 0
        if owners and point["backing"] != "file":
            with_data += pages_of_an_error
            hit |= {task.mm for task in tasks if owners >> task.mm & 1}
    lost = mem.pfns.pfn(
        np.flatnonzero(mem.state.pages["pg_flags"][: int(mem.state.params.n_pages)] & PageFlag.HWPOISON)
    )
    events = memory_failure_stats(mem)[0]
    return {
        "n_errors": float(n_errors),
        "pages_lost": hardware_corrupted_kib(mem) * 1024 / mem.geometry.page_size_bytes,
        "blocks_2mib_lost": float(np.unique(lost >> ORDER_2MIB).size),
        "blocks_1gib_lost": float(np.unique(lost >> ORDER_1GIB).size),
        "pages_with_data_lost": float(with_data),
        "tasks_signalled": float(len(signalled)),
        "tasks_hit": float(len(hit)),
        "n_recovered": float(pfns.size - n_failed_soft if soft else events["recovered"]),
        "n_failed": float(n_failed_soft if soft else events["failed"]),
        "n_ignored": float(events["ignored"]),
    }


STUDY = Study(
    name="memory_failure",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/memory-failure.c (Linux 6.1.192, 6.12.117, 7.3.4)",
)
