"""soft_offline_page(): a page that has had corrected errors leaves before it goes bad; nobody loses anything."""

from dataclasses import dataclass

import numpy as np

from memmodel.errors import InputError
from memmodel.kernels import memory_failure as failure_kernels
from memmodel.kernels import soft_offline as kernels
from memmodel.mechanisms.buddy import whole_number
from memmodel.mechanisms.gigantic import refuse_gigantic
from memmodel.mechanisms.memory_failure import MAX_PFN, NO_PARTS, REFUSALS, block_of, handles_of, row_of
from memmodel.mechanisms.migration import CALLERS, move_folios
from memmodel.mechanisms.page_flags import FlagsLayout, format_page_flags
from memmodel.mechanisms.tlb import Tlb
from memmodel.state.failure_layout import Errno, Offline, Refused
from memmodel.state.layout import HANDLE_SLOT, FolioBit, PageFlag
from memmodel.state.machine import Handles, Machine

__all__ = ["OfflineOutcome", "soft_offline_page"]

ENDS = {  # return value and message
    Offline.DONE: (0, ""),
    Offline.UNHANDLABLE: (int(Errno.EIO), "unhandlable page."),
    Offline.FILTERED: (int(Errno.EOPNOTSUPP), ""),
    Offline.UNSPLIT: (int(Errno.EBUSY), "thp split failed"),
}
DISABLED = "Soft offline: disabled by /proc/sys/vm/enable_soft_offline"


@dataclass(frozen=True)
class OfflineOutcome:
    """What one soft_offline_page() did."""

    pfn: int
    rc: int
    """0, -5 (not a page that can be handled), -6, -16 (not moved), -95 (switched off, or filtered), or migration's."""
    log: tuple[str, ...]
    """Lines of the kernel's log, without time; none for a page that was moved."""
    moved_to: int
    """Pfn where the page's content is now; -1: it was not moved."""
    folio: int
    """Handle of what the page was, wherever it is now; -1: none."""
    vacated: int
    """Handle that stands for the page that was left; -1: none."""
    parts: Handles
    """Where a large folio was split: handles of all its parts, in order, else empty."""


def soft_offline_page(mem: Machine, pfn: int, *, cpu: int = 0, layout: FlagsLayout | None = None) -> OfflineOutcome:
    """Take a page out of use that still has its content: free it, drop it, or move it.

    Parameters
    ----------
    mem
        Changed in place. HardwareCorrupted grows; the nodes' counters of errors do not.
    pfn
        The page.
    cpu
        Where it runs.
    layout
        Of page->flags, for the message of a migration that failed.

    Raises
    ------
    InputError
        If an argument is outside its range, no source says what the page is, or it is of a gigantic page (not
        modelled); nothing has changed then.

    References
    ----------
    mm/memory-failure.c: soft_offline_page, soft_offline_in_use_page, page_handle_poison, Linux 6.12.117. Pages of
    drivers that can be moved (zsmalloc, balloons) are not modelled.
    """
    on_cpu = mem.check_cpu(cpu)
    pfn = whole_number(pfn, "pfn", 0, MAX_PFN)
    row = row_of(mem, pfn)
    if row < 0:
        return _nothing(pfn, Errno.ENXIO)
    refuse_gigantic(mem, row, "its soft offlining is not modelled")
    if "enable_soft_offline" in mem.geometry.features and not mem.state.failure["enable_soft_offline"][0]:
        told = bool(mem.state.failure["told_disabled"][0])
        mem.state.failure["told_disabled"] = 1
        return _nothing(pfn, Errno.EOPNOTSUPP, *([] if told else [DISABLED]))
    refused = int(failure_kernels.refuse_page(mem.state, np.uint64(row), np.uint64(0)))
    if refused in (Refused.HOLE, Refused.DEVICE):
        return _nothing(pfn, Errno.EIO)
    if refused < 0:
        raise InputError(f"pfn {pfn}: {REFUSALS[Refused(refused)]}")
    if mem.state.pages["pg_flags"][row] & PageFlag.HWPOISON:
        return _nothing(pfn, 0, _line(mem, pfn, "page already poisoned", "soft_offline_page: "))
    mem.reserve_folios(refused)
    return _offline(mem, pfn, row, on_cpu, layout)


def _nothing(pfn: int, rc: int, *log: str) -> OfflineOutcome:
    return OfflineOutcome(pfn, int(rc), log, -1, -1, -1, NO_PARTS)


def _line(mem: Machine, pfn: int, what: str, old_prefix: str = "soft offline: ") -> str:
    """A line of the log; before 6.12 prefixes differ from place to place, and this one has no colon."""
    if "mf_log_pfn_first" in mem.geometry.features:
        return f"Soft offline: {pfn:#x}: {what}"
    colon = "" if old_prefix == "soft_offline_page: " else ":"
    return f"{old_prefix}{pfn:#x}{colon} {what}"


def _offline(mem: Machine, pfn: int, row: int, cpu: np.uint64, layout: FlagsLayout | None) -> OfflineOutcome:
    whole, order = block_of(mem, row)
    step = Offline(kernels.offline_page(mem.state, np.uint64(row), cpu))
    parts = handles_of(mem, whole, order) if order and block_of(mem, row)[1] < order else NO_PARTS
    if step == Offline.TO_MIGRATE:
        return _migrate(mem, pfn, row, cpu, parts, layout)
    folio = int(mem.handles(block_of(mem, row)[0])[0])
    if step == Offline.INVALIDATED:
        return OfflineOutcome(pfn, 0, (_line(mem, pfn, "invalidated", "soft_offline: "),), -1, -1, folio, parts)
    rc, log = ENDS[step]
    line = f"Memory failure: {pfn:#x}: {log}" if step == Offline.UNHANDLABLE else _line(mem, pfn, log)
    return OfflineOutcome(pfn, rc, (line,) if log else (), -1, folio, -1, parts)


def _migrate(
    mem: Machine, pfn: int, row: int, cpu: np.uint64, parts: Handles, layout: FlagsLayout | None
) -> OfflineOutcome:
    """Move a page in use, and keep the one that it leaves; a hugetlb folio moves whole."""
    head, _ = block_of(mem, row)
    folio = int(mem.handles(head)[0])
    slot = folio & HANDLE_SLOT
    bits = np.uint64(mem.state.folios["bits"][slot])
    huge = bool(int(bits) & FolioBit.HUGETLB)
    rc = _migrate_folio(mem, folio, row, int(cpu))
    if rc:
        if int(bits) & FolioBit.PTE_DIRTY:  # unmapping has told the page
            mem.state.folios["bits"][slot] = bits & ~np.uint64(FolioBit.PTE_DIRTY) | np.uint64(FolioBit.DIRTY)
        kind = "hugepage" if huge else "page"
        flags = format_page_flags(mem, pfn, layout)
        line = _line(mem, pfn, f"{kind} migration failed {rc}, type {flags}")
        return OfflineOutcome(pfn, int(Errno.EBUSY) if rc > 0 else rc, (line,), -1, folio, -1, parts)
    mem.reserve_folios(1)
    vacated = kernels.keep_vacated(mem.state, np.uint64(row), cpu, bits)
    to = int(mem.pfns.pfn([int(mem.state.folios["index"][slot])])[0]) + row - head
    if vacated < 0:
        return OfflineOutcome(pfn, int(Errno.EBUSY), (), to, folio, -1, parts)
    return OfflineOutcome(pfn, 0, (), to, folio, int(vacated), parts)


def _migrate_folio(mem: Machine, folio: int, row: int, cpu: int) -> int:
    """What migrate_pages() returns for one folio, whose content goes to any node, its own first."""
    mms = int(mem.state.folios["mms"][folio & HANDLE_SLOT])
    tlb = Tlb(mem.geometry, mem.cpus, [[cpu]] * max(mms.bit_length(), 1))
    node = int(mem.state.zones["node"][mem.state.pages["zone"][row]])
    return move_folios(mem, [folio], node, CALLERS["memory_failure"], cpu=cpu, tlb=tlb).rc
