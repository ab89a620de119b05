"""What users say of a folio that the allocator does not know."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.errors import one_of
from memmodel.kernels import lru
from memmodel.mechanisms.buddy import folio_rows, whole_number
from memmodel.mechanisms.tlb import MAX_MMS
from memmodel.state.layout import MAPPING_SHIFT, MIN_ORDER_SHIFT, FolioBit, Mapping, PageFlag
from memmodel.state.machine import Machine

__all__ = ["MAPPINGS", "set_folio"]

MAX_PINS = 254  # a page's count of references has a byte
MAPPING_BITS = np.uint32(15 << MAPPING_SHIFT)
MIN_ORDER_BITS = np.uint32(15 << MIN_ORDER_SHIFT)
ON_LRU = PageFlag.LRU | PageFlag.LRU_BATCH
NO_FLAGS = PageFlag(0)
OWN = PageFlag.SLAB | PageFlag.TABLE | PageFlag.ANON | PageFlag.UNEVICTABLE


@dataclass(frozen=True)
class Kept:
    """What pages of a mapping are unless the user says otherwise."""

    mapping: Mapping
    bits: FolioBit
    flags: PageFlag = NO_FLAGS
    lru: bool = True


MARKS = [name.lower() for name in FolioBit.__members__]
UPTODATE = FolioBit.UPTODATE
CACHED = UPTODATE | FolioBit.FILE
MAPPINGS = {
    "anon": Kept(Mapping.ANON, UPTODATE | FolioBit.SWAPBACKED | FolioBit.PTE_DIRTY | FolioBit.OWNER_2),
    "shmem": Kept(Mapping.SHMEM, CACHED | FolioBit.SWAPBACKED | FolioBit.PTE_DIRTY),
    "ramfs": Kept(Mapping.RAMFS, CACHED, PageFlag.UNEVICTABLE),
    "block_device": Kept(Mapping.BLOCK_DEVICE, CACHED | FolioBit.OWNER_2),
    "block_device_iomap": Kept(Mapping.BLOCK_DEVICE_IOMAP, CACHED),
    "file": Kept(Mapping.FILE, CACHED),
    "hugetlbfs": Kept(Mapping.HUGETLBFS, CACHED | FolioBit.HUGETLB, lru=False),
    "nothing": Kept(Mapping.NOTHING, UPTODATE),
    "slab": Kept(Mapping.KERNEL, FolioBit(0), PageFlag.SLAB, lru=False),
    "page_table": Kept(Mapping.KERNEL, FolioBit(0), PageFlag.TABLE, lru=False),
    "kernel": Kept(Mapping.KERNEL, FolioBit(0), lru=False),
}
"""What a folio's pages can belong to: private memory, kinds of files by what an error does to them, the kernel."""


def set_folio(
    mem: Machine,
    folios: npt.ArrayLike,
    *,
    mapping: str | None = None,
    mapped_by: int | Iterable[int] | None = None,
    pins: int | None = None,
    min_order: int | None = None,
    isolated: bool | None = None,
    **marks: bool,
) -> None:
    """Say what folios are, who maps them, who holds on to them, and what is being done with them.

    Parameters
    ----------
    mem
        Changed in place.
    folios
        Handles, shape ``(folios,)``.
    mapping
        One of `MAPPINGS`. All marks become what is usual for it: private memory written to, page cache clean and up to
        date; user memory goes on an LRU list, the kernel's own and hugetlb folios leave it. Memory of which nothing is
        said is private and written to if it is on an LRU list, else the kernel's.
    mapped_by
        Number or numbers of the address spaces that map each of them, 0 to 31; new folios belong to 0. With a mapping
        of the kernel's own nobody maps them if it is not given.
    pins
        References beyond those of mappings and page cache, such as of get_user_pages().
    min_order
        Least order of folios of their file, 0 to 15.
    isolated
        Taken off their LRU list by somebody, or on it again.
    marks
        By name, True or False: locked, writeback, dirty, file, no_migrate_folio, inaccessible, mlocked, pte_mapped,
        partially_mapped, hugetlb, protnone, orphan, uptodate, referenced, active, swapbacked, swapcache, pte_dirty,
        owner_2, error, mapping_eio, poison_entries, unmap_fails; see `memmodel.state.layout.FolioBit`.

    Raises
    ------
    InputError
        If a handle is stale, a mark unknown, or a number out of range; nothing has changed then.
    """
    rows, _ = folio_rows(mem, folios)
    for name in marks:
        one_of(name, MARKS, "mark")
    kept = None if mapping is None else MAPPINGS[one_of(mapping, MAPPINGS, "mapping")]
    lowest = None if min_order is None else whole_number(min_order, "min_order", 0, 15)
    holds = None if pins is None else whole_number(pins, "pins", 0, MAX_PINS)
    owners = _owners(mapped_by, kept)
    slots = mem.state.pages["next"][rows]
    if kept is not None:
        _become(mem, rows, slots, kept)
    if holds is not None:
        mem.state.pages["refcount"][rows] = 1 + holds
    if owners is not None:
        mem.state.folios["mms"][slots] = owners
    bits = mem.state.folios["bits"][slots]
    if lowest is not None:
        bits = bits & ~MIN_ORDER_BITS | np.uint32(lowest << MIN_ORDER_SHIFT)
    for name, value in marks.items():
        bit = np.uint32(FolioBit[name.upper()])
        bits = bits | bit if value else bits & ~bit
    mem.state.folios["bits"][slots] = bits
    if "mlocked" in marks:
        stays = bits >> MAPPING_SHIFT == Mapping.RAMFS
        flags = mem.state.pages["pg_flags"]
        unevictable = np.where(stays | marks["mlocked"], np.uint8(PageFlag.UNEVICTABLE), np.uint8(0))
        flags[rows] = flags[rows] & ~np.uint8(PageFlag.UNEVICTABLE) | unevictable
    if isolated is not None:
        lru.set_on_lru(mem.state, rows, np.uint64(PageFlag.LRU_ISOLATED if isolated else PageFlag.LRU))


def _owners(mapped_by: int | Iterable[int] | None, kept: Kept | None) -> int | None:
    """The bit mask of address spaces, or None to leave it."""
    if mapped_by is None:
        return 0 if kept is not None and kept.mapping == Mapping.KERNEL else None
    numbers = mapped_by if isinstance(mapped_by, Iterable) else [mapped_by]
    return sum(1 << whole_number(mm, "address space", 0, MAX_MMS - 1) for mm in set(numbers))


def _become(mem: Machine, rows: npt.NDArray[np.uint64], slots: npt.NDArray[np.uint32], kept: Kept) -> None:
    """The usual state of a mapping's pages; a least order and an LRU list that there is already are kept."""
    least = mem.state.folios["bits"][slots] & MIN_ORDER_BITS
    huge = mem.state.folios["bits"][slots] & np.uint32(FolioBit.HUGETLB if kept.mapping == Mapping.ANON else 0)
    mem.state.folios["bits"][slots] = np.uint32(kept.mapping << MAPPING_SHIFT | kept.bits) | least | huge
    pages = mem.state.pages
    pages["pg_flags"][rows] = pages["pg_flags"][rows] & ~np.uint8(OWN) | np.uint8(kept.flags)
    if not kept.lru:
        lru.set_on_lru(mem.state, rows, np.uint64(0))
    else:
        off = (pages["pg_flags"][rows] & ON_LRU == 0) & (huge == 0)
        lru.set_on_lru(mem.state, rows[off], np.uint64(PageFlag.LRU))
