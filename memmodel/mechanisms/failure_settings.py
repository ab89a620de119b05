"""What the machine is told about memory failures (vm.* settings, the injection filter), and what it has counted."""

from memmodel.errors import InputError
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.memory_failure import MAX_PFN, row_of
from memmodel.state.layout import Kind
from memmodel.state.machine import Machine

__all__ = ["hardware_corrupted_kib", "memory_failure_stats", "set_memory_failure"]

SETTINGS = {
    "recovery": "recovery",
    "early_kill": "early_kill",
    "enable_soft_offline": "enable_soft_offline",
    "panic_on_unrecoverable": "panic_unrecoverable",
}
NEEDS = {"enable_soft_offline": "enable_soft_offline", "panic_on_unrecoverable": "mf_panic_sysctl"}
MAX_WORD = (1 << 64) - 1


def set_memory_failure(
    mem: Machine,
    *,
    filter_flags: tuple[int, int] | None = None,
    zero_page: int | None = None,
    **settings: bool,
) -> None:
    """Change settings of memory failure handling.

    Parameters
    ----------
    mem
        Changed in place.
    filter_flags
        corrupt-filter-flags-mask and -value of debugfs/hwpoison: pages whose kpageflags differ from the value in the
        mask are let go (-EOPNOTSUPP); a mask of 0 ends it.
    zero_page
        Pfn of the page of zeros, one of the reserved ones.
    settings
        By name, True or False: recovery, early_kill (vm.memory_failure_*, 1 and 0 after boot), enable_soft_offline
        (vm.enable_soft_offline, 1), panic_on_unrecoverable (vm.panic_on_unrecoverable_memory_failure, 0).

    Raises
    ------
    InputError
        If the kernel has no such setting, or a value is outside its range; nothing has changed then.
    """
    failure = mem.state.failure
    for name in settings:
        if name not in SETTINGS:
            raise InputError(f"unknown setting {name!r}; one of: {', '.join(SETTINGS)}")
        if NEEDS.get(name, "") not in ("", *mem.geometry.features):
            raise InputError(f"kernel {mem.geometry.kernel} has no vm setting for {name}")
    if filter_flags is not None:
        mask, value = (whole_number(word, "filter word", 0, MAX_WORD) for word in filter_flags)
    row = -1 if zero_page is None else row_of(mem, whole_number(zero_page, "zero page", 0, MAX_PFN))
    if zero_page is not None and (row < 0 or mem.state.pages["state"][row] >> 4 != Kind.RESERVED):
        raise InputError(f"pfn {zero_page} is no reserved page, as the page of zeros is")
    for name, setting in settings.items():
        failure[SETTINGS[name]] = bool(setting)
    if filter_flags is not None:
        failure["filter_mask"], failure["filter_value"] = mask, value
    if row >= 0:
        failure["zero_page"] = row


def hardware_corrupted_kib(mem: Machine) -> int:
    """HardwareCorrupted of /proc/meminfo, KiB: pages that errors took, soft offlined ones, less unpoisoned ones."""
    return int(mem.state.failure["num_poisoned"][0]) << mem.geometry.page_shift - 10


def memory_failure_stats(mem: Machine) -> dict[int, dict[str, int]]:
    """Events by node, as /sys/devices/system/node/node*/memory_failure counts them (6.1 has no such files)."""
    counters = mem.state.node_failures
    return {node: {name: int(counters[node][name]) for name in counters.dtype.names or ()} for node in mem.nodes}
