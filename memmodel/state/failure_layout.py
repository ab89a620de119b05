"""Enums and records of memory_failure(): flags, types of pages, results, what a node and the machine count."""

from enum import IntEnum, IntFlag

import numpy as np

__all__ = [
    *("Errno", "MfFlag", "MfNote", "MfResult", "MfType", "Offline", "Refused", "Unpoison"),
    *("event_dtype", "failure_dtype", "node_failures_dtype"),
]


class MfFlag(IntFlag):
    """MF_ flags of memory_failure() and soft_offline_page() (include/linux/mm.h)."""

    COUNT_INCREASED = 1  # the caller holds a reference
    ACTION_REQUIRED = 2  # the current task has consumed the error
    MUST_KILL = 4  # it cannot go on
    SOFT_OFFLINE = 8
    UNPOISON = 16
    SW_SIMULATED = 32  # an injected error: it may be taken back
    NO_RETRY = 64
    MEM_PRE_REMOVE = 128


class MfResult(IntEnum):
    """What became of a page (enum mf_result)."""

    IGNORED = 0
    FAILED = 1
    DELAYED = 2
    RECOVERED = 3

    @property
    def label(self) -> str:
        """The word that the log has."""
        return self.name.capitalize()


class MfType(IntEnum):
    """What a page was taken for (enum mf_action_page_type); `label` is the log's name of it."""

    label: str

    KERNEL = 0, "reserved kernel page"
    KERNEL_HIGH_ORDER = 1, "high-order kernel page"
    HUGE = 2, "huge page"
    FREE_HUGE = 3, "free huge page"
    GET_HWPOISON = 4, "get hwpoison page"
    UNMAP_FAILED = 5, "unmapping failed page"
    DIRTY_SWAPCACHE = 6, "dirty swapcache page"
    CLEAN_SWAPCACHE = 7, "clean swapcache page"
    DIRTY_MLOCKED_LRU = 8, "dirty mlocked LRU page"
    CLEAN_MLOCKED_LRU = 9, "clean mlocked LRU page"
    DIRTY_UNEVICTABLE_LRU = 10, "dirty unevictable LRU page"
    CLEAN_UNEVICTABLE_LRU = 11, "clean unevictable LRU page"
    DIRTY_LRU = 12, "dirty LRU page"
    CLEAN_LRU = 13, "clean LRU page"
    TRUNCATED_LRU = 14, "already truncated LRU page"
    BUDDY = 15, "free buddy page"
    UNSPLIT_THP = 16, "unsplit thp"
    ALREADY_POISONED = 17, "already poisoned page"
    UNKNOWN = 18, "unknown page"
    NO_TYPE = 19, ""  # the filter has let it go

    def __new__(cls, value: int, label: str) -> "MfType":
        """Number and label."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.label = label
        return member


class MfNote(IntFlag):
    """What one memory_failure() did beside the result: most are a line of the log."""

    UNHANDLABLE = 1
    KEPT_IN_SWAP_CACHE = 2
    WAS_CLEAN = 4
    STAYS_MAPPED = 8
    UNKNOWN_STATE = 16
    PUNCH_FAILED = 32
    NOT_INVALIDATED = 64
    REFERENCED = 128
    COUNTED = 256  # action_result() has run
    COLLECTED = 512  # the tasks that map it were looked for
    FORCE_KILL = 1024  # and those found get a signal
    SPLIT = 2048


class Refused(IntEnum):
    """Why a page is not looked at at all; above zero: so many free places in the folio table are wanted."""

    NOTHING = 0
    HOLE = -1
    UNKNOWN = -2  # no source says what it is
    DEVICE = -3
    NOT_HELD = -4  # nobody can hold a reference of it
    PANIC = -5  # vm.memory_failure_recovery is 0


class Unpoison(IntEnum):
    """How unpoison_memory() ends."""

    DONE = 0
    NOT_POISONED = 1
    GRABBED = 2  # somebody else holds a reference
    NOT_USERS = 3  # of the kernel itself
    MAPPED = 4
    OF_FILE = 5


class Offline(IntEnum):
    """How far soft_offline_page() gets without moving anything."""

    DONE = 0  # a free page, out of the allocator
    INVALIDATED = 1  # dropped from the page cache
    UNHANDLABLE = 2
    FILTERED = 3
    UNSPLIT = 4
    TO_MIGRATE = 5


class Errno(IntEnum):
    """Errors of these functions, negative as the kernel returns them."""

    EIO = -5
    ENXIO = -6
    EFAULT = -14
    EBUSY = -16
    EOPNOTSUPP = -95
    EHWPOISON = -133


node_failures_dtype = np.dtype(
    [(name, "i8") for name in ("total", "ignored", "failed", "delayed", "recovered")]  # by MfResult from the second on
)
failure_dtype = np.dtype(
    [
        ("num_poisoned", "i8"),  # pages: HardwareCorrupted
        ("filter_mask", "u8"),  # corrupt-filter-flags-mask and -value, of kpageflags bits; no mask: no filter
        ("filter_value", "u8"),
        ("zero_page", "u4"),  # its row, or NONE where no file says which it is
        ("hw_memory_failure", "u1"),  # an error of the hardware was handled: nothing is unpoisoned any more
        ("recovery", "u1"),  # vm.memory_failure_recovery
        ("early_kill", "u1"),  # vm.memory_failure_early_kill
        ("enable_soft_offline", "u1"),  # vm.enable_soft_offline
        ("panic_unrecoverable", "u1"),  # vm.panic_on_unrecoverable_memory_failure
        ("told_disabled", "u1"),  # that soft offlining is off was said, which is done once
    ]
)
event_dtype = np.dtype(  # what one memory_failure() did
    [
        ("rc", "i8"),
        ("type", "u8"),  # MfType
        ("result", "u8"),  # MfResult
        ("notes", "u8"),  # MfNote
        ("users", "u8"),  # references that are left, with MfNote.REFERENCED
        ("mms", "u8"),  # address spaces that mapped it, with MfNote.COLLECTED
        ("file", "u8"),  # 1: of a file: tasks count whose VMA covers it, mapped or not
        ("order", "u8"),  # of the folio that they mapped
        ("head", "u8"),  # first row of the page's folio now, or the page itself
        ("slot", "u8"),  # of that folio, or NONE
        ("whole", "u8"),  # with MfNote.SPLIT: first row of the folio that there was
        ("whole_order", "u8"),
    ]
)
