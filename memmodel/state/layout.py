"""Every dtype, enum and constant of the state, each with its meaning.

Kernels take one ``Memory``. It is defined in this module (and not where it is used) because Numba's disk cache never
hits for a NamedTuple of ``__main__``. Everything is unsigned: a signed index pays a branch for wrap-around.
"""

from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "MIGRATE_TYPES",
    "NONE",
    "NR_ORDERS",
    "NR_PCP_LISTS",
    "SLOT_CHAINS",
    "BlockBit",
    "Feature",
    "Kind",
    "Memory",
    "MigrateType",
    "PageFlag",
    "Params",
    "Vmstat",
    "ZoneType",
]


class MigrateType(IntEnum):
    """Migratetypes, numbered the same whatever the kernel's configuration (include/linux/mmzone.h)."""

    UNMOVABLE = 0
    MOVABLE = 1
    RECLAIMABLE = 2
    HIGHATOMIC = 3
    CMA = 4
    ISOLATE = 5


class ZoneType(IntEnum):
    """Zones of a node, low to high (enum zone_type)."""

    DMA = 0
    DMA32 = 1
    NORMAL = 2
    HIGHMEM = 3
    MOVABLE = 4
    DEVICE = 5

    @property
    def label(self) -> str:
        """The name that /proc prints."""
        return {"NORMAL": "Normal", "HIGHMEM": "HighMem", "MOVABLE": "Movable", "DEVICE": "Device"}.get(
            self.name, self.name
        )


class Kind(IntEnum):
    """What a row of `pages` is the first page of. All other pages of a block are TAIL."""

    TAIL = 0
    HOLE = 1  # no memory here
    RESERVED = 2  # present, never given to the buddy (memblock, firmware, the kernel image)
    FREE = 3  # PageBuddy: on a free list
    PCP = 4  # on a per-CPU list
    USED = 5  # allocated
    ISOLATED = 6  # taken off the free lists by compaction or alloc_contig, not in use
    HWPOISON = 7  # lost to a hardware error: out of the allocator's reach
    UNKNOWN = 8  # not free; a source without page flags does not say whether it is used, reserved or a hole


class PageFlag(IntFlag):
    """PG_ bits that decide something in the model."""

    HWPOISON = 1  # memory_failure() has dealt with this page: not the same as a latent hardware error
    LRU = 2
    ANON = 4
    SLAB = 8
    UNEVICTABLE = 16


class BlockBit(IntFlag):
    """Pageblock bits beside the migratetype."""

    ISOLATE = 1  # 6.17 and later keep the migratetype below this bit
    SKIP = 2  # compaction's skip hint
    OFFLINE = 4  # spanned by a zone, but without a memory map: the kernel does not count it


class Feature(IntFlag):
    """Features of the geometry that kernels test."""

    FREELIST_HYGIENE = 1  # 6.10: a free list's type is its block's type; frees split at pageblocks


class Vmstat(IntEnum):
    """Counters by their /proc/vmstat names, lower case; pgalloc_<zone> is PGALLOC_DMA + zone type."""

    PGALLOC_DMA = 0
    PGALLOC_DMA32 = 1
    PGALLOC_NORMAL = 2
    PGALLOC_HIGH = 3
    PGALLOC_MOVABLE = 4
    PGALLOC_DEVICE = 5
    PGFREE = 6


NR_ORDERS = 16  # room for MAX_PAGE_ORDER 15, the largest that any architecture can be built with
MIGRATE_TYPES = 6
NR_PCP_LISTS = 14  # orders 0..3 by three types, and two for huge pages
NONE = np.uint64(0xFFFFFFFF)  # no page, no folio
SLOT_CHAINS = 8
MF_QUEUE_SLOTS = 16  # MEMORY_FAILURE_FIFO_SIZE, mm/memory-failure.c

page_dtype = np.dtype(
    [
        ("next", "u4"),  # links while on a list; of an allocated folio's first page `next` is its slot in `folios`
        ("prev", "u4"),
        ("state", "u1"),  # kind << 4 | order: "is the head of a free block of this order" is one comparison
        ("pg_flags", "u1"),  # PageFlag
        ("zone", "u1"),  # row of `zones`, as page_zone(): blocks never merge over a zone's border
        ("refcount", "u1"),
    ]
)
pageblock_dtype = np.dtype([("migratetype", "u1"), ("bits", "u1")])
zone_dtype = np.dtype(
    [
        ("start", "u8"),  # first row in `pages`
        ("end", "u8"),  # one past the last row
        ("present", "u8"),  # pages, without holes
        ("managed", "u8"),  # pages given to the buddy
        ("beyond_managed", "i8"),  # pages counted as used, lost or UNKNOWN that a source's `managed` leaves out
        ("free_pages", "u8"),  # NR_FREE_PAGES: without isolated ones
        ("free_cma", "u8"),  # NR_FREE_CMA_PAGES
        ("nr_free", "u8", (NR_ORDERS,)),  # free blocks by order, isolated ones too: what buddyinfo prints
        ("node", "u1"),
        ("zone_type", "u1"),
    ],
    align=True,
)
pcp_dtype = np.dtype(
    [(name, "u4") for name in ("count", "high", "high_min", "high_max", "batch", "free_count", "alloc_factor")]
)
folio_dtype = np.dtype(
    [
        ("index", "u4"),  # first row in `pages`; bit 31 marks a handle met twice in one request
        ("sequence", "u4"),  # grows when the slot is given back: a stale handle no longer fits
        ("next", "u4"),  # the next unused slot, while this one is unused
        ("prev", "u4"),
    ]
)
queue_dtype = np.dtype(
    [("head", "u4"), ("count", "u4"), ("dropped", "u8"), ("index", "u4", (MF_QUEUE_SLOTS,))], align=True
)


class Params(NamedTuple):
    """Constants that reach kernels (as an argument, never as module globals)."""

    n_pages: np.uint64  # rows of `pages` that are pages; list heads lie behind
    page_shift: np.uint64
    max_order: np.uint64  # MAX_PAGE_ORDER, inclusive
    pageblock_order: np.uint64
    heads_per_zone: np.uint64
    features: np.uint64  # Feature bits


class Memory(NamedTuple):
    """The whole state, as kernels take it."""

    params: Params
    pages: npt.NDArray[Any]  # page_dtype, [n_pages + list heads]
    blocks: npt.NDArray[Any]  # pageblock_dtype, [pageblocks]
    zones: npt.NDArray[Any]  # zone_dtype, [zones]
    pcp: npt.NDArray[Any]  # pcp_dtype, [zones * cpus]
    folios: npt.NDArray[Any]  # folio_dtype, [slots]
    slots: npt.NDArray[np.uint64]  # live folios, slots ever used, then the heads of SLOT_CHAINS chains of unused ones
    ue_pages: npt.NDArray[np.uint64]  # latent hardware errors, a bit a page
    ue_lines: npt.NDArray[np.uint64]  # their 64-byte lines, sorted: row << (page_shift - 6) | line
    queues: npt.NDArray[Any]  # queue_dtype, [cpus]: memory_failure_queue()
    contents: npt.NDArray[np.uint8]  # [n_pages, page_size], or no rows
    vmstat: npt.NDArray[np.int64]
