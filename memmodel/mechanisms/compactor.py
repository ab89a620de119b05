"""A task that compacts: its struct compact_control, its list of sources, and the migrations that it makes."""

import numpy as np
import numpy.typing as npt

from memmodel.kernels.compact_control import CLUSTER_MAX, Compact, control_dtype, said_dtype
from memmodel.kernels.compact_run import Compactor
from memmodel.kernels.folios import count_parts
from memmodel.kernels.migration_job import Count, Mode
from memmodel.mechanisms.migration import CALLERS, migration_job, refuse_latent
from memmodel.mechanisms.tlb import MAX_MMS, Tlb
from memmodel.state.layout import NR_ORDERS
from memmodel.state.machine import Machine

__all__ = ["compactor", "populated_zones", "prepare", "room_for_parts"]


def compactor(mem: Machine, cpu: np.uint64) -> Compactor:
    """A task of a CPU that compacts, made once and kept with the machine; the folio table has room for what it splits.

    Raises
    ------
    InputError
        If a page has a latent error, and migration cannot survive it.
    """
    refuse_latent(mem)
    mem.reserve_folios(room_for_parts(mem))
    key = ("compactor", int(cpu))
    if key not in mem.requests:
        mem.requests[key] = _new_compactor(mem, cpu)
    task: Compactor = mem.requests[key]
    return task


def room_for_parts(mem: Machine) -> int:
    """Folios that come of splitting every large one that finds no target; those of a pageblock never move."""
    zones, live = mem.state.zones, int(mem.state.slots[0])
    free = int((zones["nr_free"] << np.arange(NR_ORDERS, dtype=np.uint64)).sum()) + int(mem.state.pcp["count"].sum())
    most = int(zones["managed"].sum()) + int(zones["beyond_managed"].sum()) - free - live
    return most if most <= mem.geometry.pageblock_nr_pages else int(count_parts(mem.state))


def _new_compactor(mem: Machine, cpu: np.uint64) -> Compactor:
    room = mem.geometry.pageblock_nr_pages + CLUSTER_MAX
    control, said = np.zeros(1, control_dtype), np.zeros(0, said_dtype)
    compact = Compact(control.view(np.recarray), np.zeros(room, np.uint64), said.view(np.recarray))
    starts = mem.state.zones["start"].astype(np.int64)
    return Compactor(
        tlb=Tlb(mem.geometry, mem.cpus, [[int(cpu)]] * MAX_MMS).state,
        job=migration_job(mem, CALLERS["compaction"], room, cpu, compact),
        compact=compact,
        pfn_0=starts - mem.pfns.pfn(starts),
        one_by_one=np.uint64("batched_migration" not in mem.geometry.features),
        totals=np.zeros(len(Count) + 1, np.int64),
    )


def prepare(mem: Machine, cpu: np.uint64, order: int, mode: Mode, migratetype: int, **bits: int) -> Compactor:
    """The task with a fresh struct compact_control."""
    task = compactor(mem, cpu)
    control = task.compact.control.view(control_dtype, np.ndarray)
    control[...] = np.zeros(1, control_dtype)
    values = {"order": order, "search_order": order, "mode": mode, "migratetype": migratetype, **bits}
    for name, value in values.items():
        control[name] = value
    control["cpu"], control["pmd_order"] = cpu, mem.geometry.hpage_pmd_order
    return task._replace(job=task.job._replace(mode=np.uint64(mode)))


def populated_zones(mem: Machine, node: int) -> list[int]:
    """Rows of a node's zones with pages, ascending by type (populated_zone)."""
    zones = mem.state.zones
    rows: npt.NDArray[np.int64] = np.flatnonzero((zones["node"] == node) & (zones["present"] > 0))
    return sorted(rows.tolist(), key=lambda row: int(zones["zone_type"][row]))
