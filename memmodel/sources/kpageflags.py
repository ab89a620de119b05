"""/proc/kpageflags: what each page frame is, a word of KPF_ bits a frame (fs/proc/page.c, 6.1 to 7.3)."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from memmodel.errors import InputError
from memmodel.sources.records import BoolArray, UIntArray

__all__ = ["KPF", "has_flag", "parse_kpageflags"]

# Bits of include/uapi/linux/kernel-page-flags.h; RESERVED is of include/linux/kernel-page-flags.h.
KPF: Final[Mapping[str, int]] = {
    "LOCKED": 0,
    "ERROR": 1,
    "REFERENCED": 2,
    "UPTODATE": 3,
    "DIRTY": 4,
    "LRU": 5,
    "ACTIVE": 6,
    "SLAB": 7,
    "WRITEBACK": 8,
    "BUDDY": 10,
    "MMAP": 11,
    "ANON": 12,
    "SWAPCACHE": 13,
    "SWAPBACKED": 14,
    "COMPOUND_HEAD": 15,
    "COMPOUND_TAIL": 16,
    "HUGE": 17,
    "UNEVICTABLE": 18,
    "HWPOISON": 19,
    "NOPAGE": 20,
    "KSM": 21,
    "THP": 22,
    "OFFLINE": 23,
    "ZERO_PAGE": 24,
    "PGTABLE": 26,
    "RESERVED": 32,
    "MLOCKED": 33,
    "OWNER_2": 34,  # mappedtodisk until 6.11
}


def has_flag(flags: UIntArray, *names: str) -> BoolArray:
    """Pages with any of the named KPF_ bits."""
    found: BoolArray = flags & np.uint64(sum(1 << KPF[name] for name in names)) != 0
    return found


def parse_kpageflags(data: bytes, source: str) -> UIntArray:
    """KPF_ bits by pfn, from pfn 0: little-endian 64-bit words (``kpageflags_read``, fs/proc/page.c).

    Raises
    ------
    InputError
        If there is nothing or not a whole number of words.
    """
    if not data or len(data) % 8:
        raise InputError(f"{source}: {len(data)} bytes; kpageflags has 8 bytes a page and at least one page")
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)
