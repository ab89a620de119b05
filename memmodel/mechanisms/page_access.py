"""What a page gives to those who come back to it: its bytes, others read anew, an error, or SIGBUS."""

from dataclasses import dataclass

import numpy as np

from memmodel.errors import InputError, one_of
from memmodel.kernels import soft_offline as kernels
from memmodel.mechanisms.buddy import folio_rows, free_pages
from memmodel.mechanisms.failure_signals import BUS_MCEERR_AR, SIGBUS, Signal, Task
from memmodel.state.layout import MAPPING_SHIFT, FolioBit, Kind, Mapping, PageFlag
from memmodel.state.machine import Machine

__all__ = ["ACCESSES", "PageAccess", "access_page", "truncate_page"]

ACCESSES = ("load", "pread", "fsync")
EIO = 5
WRITTEN_BACK = (Mapping.BLOCK_DEVICE, Mapping.BLOCK_DEVICE_IOMAP, Mapping.FILE)
TESTS_POISON = (Mapping.SHMEM, Mapping.HUGETLBFS)


@dataclass(frozen=True)
class PageAccess:
    """How one access ended."""

    errno: int
    """Of pread() and fsync(): 0, or 5 (EIO)."""
    signal: Signal | None
    """SIGBUS, for a task that touched a page which is not there any more."""
    reread: bool
    """The page was dropped when it was clean: the data come from where they were kept, in another page."""
    log: tuple[str, ...]


def access_page(mem: Machine, folio: int, how: str = "load", task: Task | None = None) -> PageAccess:
    """Come back to a page by its folio's handle, after memory_failure() or without it.

    Parameters
    ----------
    mem
        Changed in place by "fsync" alone: a page that can be written out is clean then, and the error of its file has
        been told.
    folio
        `FailureOutcome.folio`, or any other handle.
    how
        "load": through a mapping; "pread", "fsync": by way of its file.
    task
        Who does it; for the signal.

    Raises
    ------
    InputError
        If the handle is stale or `how` unknown.

    References
    ----------
    mm/memory.c: do_swap_page, do_fault; mm/filemap.c: filemap_read, file_check_and_advance_wb_err; mm/shmem.c:
    shmem_file_read_iter, Linux 6.12.117. A second MAP_PRIVATE or shared user of the page gets the same answer.
    """
    one_of(how, ACCESSES, "access")
    row = int(folio_rows(mem, [folio])[0][0])
    slot = int(mem.state.pages["next"][row])
    bits, mms = int(mem.state.folios["bits"][slot]), int(mem.state.folios["mms"][slot])
    mapping = bits >> MAPPING_SHIFT
    if how == "fsync":
        return PageAccess(_sync(mem, slot, bits, mapping), None, False, ())
    order = int(mem.state.pages["state"][row]) & 15
    poisoned = bool((mem.state.pages["pg_flags"][row : row + (1 << order)] & PageFlag.HWPOISON).any())
    lost = mem.state.pages["state"][row] >> 4 == Kind.HWPOISON
    gone = poisoned and (lost or mapping == Mapping.NOTHING) and not bits & FolioBit.POISON_ENTRIES
    if how == "pread":
        errno = EIO if poisoned and not lost and mapping in TESTS_POISON else 0
        return PageAccess(errno, None, bool(poisoned and mapping == Mapping.NOTHING), ())
    still_mapped = mms and not bits & FolioBit.POISON_ENTRIES
    if not poisoned or gone or still_mapped:
        return PageAccess(0, None, bool(gone and not still_mapped), ())
    return _killed(mem, task, order if bits & FolioBit.HUGETLB else 0)


def _killed(mem: Machine, task: Task | None, order: int) -> PageAccess:
    """The page fault meets a hwpoison entry, or a poisoned page in a cache (VM_FAULT_HWPOISON)."""
    if task is None:
        task = Task("", 0, 0, 0)
        return PageAccess(0, Signal(task, SIGBUS, BUS_MCEERR_AR, order + mem.geometry.page_shift), False, ())
    line = f"MCE: Killing {task.comm}:{task.pid} due to hardware memory corruption fault at {task.address or 0:x}"
    return PageAccess(0, Signal(task, SIGBUS, BUS_MCEERR_AR, order + mem.geometry.page_shift), False, (line,))


def _sync(mem: Machine, slot: int, bits: int, mapping: int) -> int:
    """fsync() of the page's file: files that are never written back do not look at the error either."""
    if mapping not in WRITTEN_BACK and not bits & FolioBit.MAPPING_EIO:
        return 0
    if mapping in (Mapping.SHMEM, Mapping.RAMFS, Mapping.HUGETLBFS):
        return 0
    clean = bits & ~int(FolioBit.DIRTY | FolioBit.ERROR | FolioBit.MAPPING_EIO)
    mem.state.folios["bits"][slot] = np.uint32(clean)
    return EIO if bits & FolioBit.MAPPING_EIO else 0


def truncate_page(mem: Machine, folio: int, *, cpu: int = 0) -> None:
    """The file of a single page of page cache goes away, or is cut short before it; so do its mappings.

    The page is freed, unless memory_failure() has it: then it is out of reach from here on, and the handle stays.

    Raises
    ------
    InputError
        If the handle is stale, or not that of a single page of page cache.

    References
    ----------
    mm/truncate.c: truncate_inode_folio, truncate_cleanup_folio, Linux 6.12.117.
    """
    on_cpu = mem.check_cpu(cpu)
    row, order = (int(number[0]) for number in folio_rows(mem, [folio]))
    slot = int(mem.state.pages["next"][row])
    mapping = int(mem.state.folios["bits"][slot]) >> MAPPING_SHIFT
    if order or not Mapping.SHMEM <= mapping <= Mapping.FILE:
        raise InputError(f"folio {folio:#x} is no single page of page cache")
    if mem.state.pages["pg_flags"][row] & PageFlag.HWPOISON:
        kernels.drop_poisoned(mem.state, np.uint64(slot))
    else:
        free_pages(mem, [folio], cpu=int(on_cpu))
