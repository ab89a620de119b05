"""Per-CPU lists and counters from outside: drains, and the vmstat worker."""

import numpy as np

from memmodel.errors import InputError
from memmodel.kernels import pcp as kernels
from memmodel.state.layout import ZoneType
from memmodel.state.machine import Machine

__all__ = ["drain_all_pages", "vmstat_update", "zone_row"]


def drain_all_pages(mem: Machine, zone: str | None = None, *, cpu: int = 0) -> bool:
    """Give all pages on per-CPU lists back to the buddy lists: CPUs ascending, of each its zones ascending.

    Parameters
    ----------
    mem
        Changed in place.
    zone
        That zone alone: its name ("Normal"), with its node in front where several have one ("1:Normal").
    cpu
        CPU that asks: it does the work, and its counter differences change.

    Returns
    -------
    Whether there were any.

    Raises
    ------
    InputError
        If there is no such zone, or more than one.

    References
    ----------
    mm/page_alloc.c: drain_all_pages, drain_pages_zone, Linux 6.12.117.
    """
    row = mem.state.zones.size if zone is None else zone_row(mem, zone)
    return bool(kernels.drain_all_pages(mem.state, np.uint64(row), mem.check_cpu(cpu)))


def vmstat_update(mem: Machine, cpu: int) -> None:
    """What a CPU does every vm.stat_interval (1 s): bring its counter differences in, and let its lists decay.

    Since 6.7 a list whose mark has grown beyond its minimum lowers it by an eighth, and frees what is above.

    Raises
    ------
    InputError
        If there is no such CPU.

    References
    ----------
    mm/vmstat.c: refresh_cpu_vm_stats; mm/page_alloc.c: decay_pcp_high, Linux 6.12.117. Lists of other nodes' zones,
    which expire after three intervals without use, are not modelled.
    """
    kernels.refresh_cpu_vm_stats(mem.state, mem.check_cpu(cpu))


def zone_row(mem: Machine, zone: str) -> int:
    """Row of the zone that a user names.

    Raises
    ------
    InputError
        If it is none, or could be several.
    """
    names = [f"{one['node']}:{ZoneType(int(one['zone_type'])).label}" for one in mem.state.zones]
    rows = [row for row, name in enumerate(names) if zone in (name, name.partition(":")[2])]
    if len(rows) != 1:
        raise InputError(f"zone {zone!r}; one of: {', '.join(names)}")
    return rows[0]
