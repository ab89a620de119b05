"""Every dtype, enum and constant of the state, each with its meaning.

Kernels take one ``Memory``. It is defined in this module (and not where it is used) because Numba's disk cache never
hits for a NamedTuple of ``__main__``. Everything is unsigned: a signed index pays a branch for wrap-around.
"""

from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_COMPACTIONS",
    "MIGRATE_TYPES",
    "NONE",
    "N_COUNTERS",
    "NR_ORDERS",
    "NR_PCP_LISTS",
    "PRIVATE_LISTS",
    "RAMFS_BITS",
    "SLOT_CHAINS",
    "TARGETS",
    "Alloc",
    "BlockBit",
    "Feature",
    "FolioBit",
    "Kind",
    "MAPPING_SHIFT",
    "MIN_ORDER_SHIFT",
    "Mapping",
    "Memory",
    "MigrateType",
    "MthpStat",
    "PageFlag",
    "Params",
    "PcpFlag",
    "Vmstat",
    "Wmark",
    "ZoneFlag",
    "ZoneType",
    "block_types",
    "free_list_head",
    "mthp_counter",
    "pcp_list_head",
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
    LRU_BATCH = 32  # waits in a CPU's LRU-add batch: not on an LRU list yet
    LRU_ISOLATED = 64  # taken off its LRU list to be migrated
    TABLE = 128  # a page table


class FolioBit(IntFlag):
    """What decides a folio's fate in migration and memory_failure(), beside the flags of its pages.

    None set: an anonymous folio that nobody works on, mapped by a PMD if it has that order, else by PTEs.
    """

    LOCKED = 1  # another task holds PG_locked
    WRITEBACK = 2
    DIRTY = 4
    FILE = 8  # in the page cache
    NO_MIGRATE_FOLIO = 0x10  # of a file system without that operation
    INACCESSIBLE = 0x20  # the mapping may not be read (guest_memfd)
    MLOCKED = 0x40
    PTE_MAPPED = 0x80  # of PMD order, but mapped by PTEs
    PARTIALLY_MAPPED = 0x100  # and waits to be split (deferred_split_queue)
    HUGETLB = 0x200
    PROTNONE = 0x400  # its PTEs are NUMA hints: no TLB holds them
    ORPHAN = 0x800  # all but the migrating task's reference are gone
    UPTODATE = 0x1000
    REFERENCED = 0x2000
    ACTIVE = 0x4000
    SWAPBACKED = 0x8000
    SWAPCACHE = 0x10000
    PTE_DIRTY = 0x20000  # written to through a mapping, which PG_dirty does not know yet
    OWNER_2 = 0x40000  # PG_mappedtodisk until 6.11; of anonymous memory: no other process shares it
    ERROR = 0x80000
    MAPPING_EIO = 0x100000  # AS_EIO of its file: the next fsync() reports it
    POISON_ENTRIES = 0x200000  # unmapped by memory_failure(): the PTEs of `mms` are hwpoison entries now
    UNMAP_FAILS = 0x400000  # some mapping of it cannot be taken away
    # Four bits from MIN_ORDER_SHIFT on: the least order of folios of its file. Above them: `Mapping`.


MIN_ORDER_SHIFT = 24
MAPPING_SHIFT = 28


class Mapping(IntEnum):
    """What a folio's pages belong to: the highest four of its bits."""

    UNSAID = (
        0  # anonymous and written to if it is on an LRU list (a file's with `FolioBit.FILE`), else the kernel's own
    )
    ANON = 1
    SHMEM = 2  # shared anonymous memory and tmpfs: an error leaves the page in the page cache
    RAMFS = 3  # no error_remove operation, never written back
    BLOCK_DEVICE = 4  # with buffer heads: no error_remove operation
    BLOCK_DEVICE_IOMAP = 5  # without CONFIG_BUFFER_HEAD: the generic operation, which refuses what is no regular file
    FILE = 6  # a regular file of a file system with the generic operation (ext4, xfs, btrfs, nfs)
    HUGETLBFS = 7
    NOTHING = 8  # truncated or evicted: of no file any more
    KERNEL = 9  # not user memory


RAMFS_BITS = (
    Mapping.RAMFS << MAPPING_SHIFT | FolioBit.FILE | FolioBit.DIRTY | FolioBit.UPTODATE | FolioBit.NO_MIGRATE_FOLIO
)
"""Of a page of ramfs: written once, never written back, and never moved."""


class BlockBit(IntFlag):
    """Pageblock bits beside the migratetype."""

    ISOLATE = 1  # 6.17 and later keep the migratetype below this bit
    SKIP = 2  # compaction's skip hint
    OFFLINE = 4  # spanned by a zone, but without a memory map: the kernel does not count it


class Feature(IntFlag):
    """Features of the geometry, and settings of the machine, that kernels test."""

    FREELIST_HYGIENE = 1  # 6.10: a free list's type is its block's type; frees split at pageblocks
    CLAIM_STEAL = 2  # 6.15: claim pageblocks first, then steal single blocks; the mode is remembered
    PCP_AUTOTUNE = 4  # 6.7: high_min, high_max, alloc_factor, free_count; the HIGH watermark is looked at first
    PCP_FREE_HIGH_HALF_MIN = 8  # 7.2: a run of frees counts as one from batch + high_min / 2 on
    PCP_FREE_IN_BATCHES = 16  # 7.2: drains in pieces of batch pages
    ISOLATE_BIT = 32  # 6.17: ISOLATE is a bit beside the migratetype
    HIGHATOMIC_ROUNDED = 64  # 6.12: whole pageblocks, and none in zones of less than a hundred
    FREE_HIGHATOMIC = 128  # 6.12: watermarks leave out the free pages of the reserve, not all of it
    HIGHATOMIC_BY_BUDDY = 256  # 7.2: the reserve is made in rmqueue_buddy(), and its requests refill no per-CPU list
    SKIP_AWAKE_NODES = 512  # 7.2: nodes whose kswapd runs are tried in a second round
    BOOST_NEEDS_KSWAPD = 1024  # 6.12: only requests that may wake kswapd do so for a boosted zone
    NO_MOBILITY = 2048  # page_group_by_mobility_disabled
    MF_GET_TYPE = 1 << 12  # 6.12: a page that memory_failure() cannot take is of a type of its own
    MF_KERNEL_FIRST = 1 << 13  # 7.3: the kernel's own pages are told apart before any retry
    MF_ALWAYS_GET = 1 << 14  # 7.3: a page that the caller holds is looked at like any other
    MF_UNSPLIT_KILLS = 1 << 15  # 6.12: a THP that cannot be split has failed, and its users are killed at once
    MF_UNMAP_FAILED = 1 << 16  # 6.12: a page that cannot be unmapped has failed, and its users get SIGBUS
    MF_UNKNOWN_IGNORED = 1 << 17  # 6.12: a page in an unknown state is ignored, not failed
    MF_FILTER_FIRST = 1 << 18  # 6.12: hwpoison_filter() is asked before a THP is split
    MF_HUGE_REPORTS = 1 << 19  # 6.12: a further page of a poisoned hugetlb folio is reported and counted
    MF_MIN_ORDER = 1 << 20  # 7.3: folios of files with a least order are split down to that
    NO_PG_ERROR = 1 << 21  # 6.12: there is no PG_error
    KPAGEFLAGS_OF_FOLIO = 1 << 22  # 6.12: every page of a folio shows the folio's flags
    KPAGEFLAGS_KSM = 1 << 23  # 6.12: KSM shows on every anonymous page
    KPAGEFLAGS_KSM_EXACT = 1 << 24  # 7.3: and no more
    LARGE_FOLIO_COMPACTION = 1 << 25  # 6.10: compaction moves large folios whole, into large targets
    COMPACTION_COUNTS_PAGES = 1 << 26  # 6.6: what the scanners pass over counts as scanned
    COMPACTION_RESCANS = 1 << 27  # 6.6: a pageblock of which a page did not move is finished at once
    PAGEBLOCK_ORDER_SOURCES = 1 << 28  # 7.2: who wants a pageblock or more takes sources as a movable request does
    COMPACT_SUITABLE_MARK = 1 << 29  # 7.2: compaction needs its targets above the request's own watermark
    COMPACT_GAP_CAPPED = 1 << 30  # 7.2: compact_gap() is at most 32 pages
    CONTIG_FREE_CHUNKS = 1 << 31  # 7.2: contiguous ranges are freed in maximal aligned chunks


class ZoneFlag(IntFlag):
    """enum zone_flags."""

    BOOSTED_WATERMARK = 1  # kswapd is to be woken
    BELOW_HIGH = 2  # the HIGH watermark failed: per-CPU lists shrink
    RECLAIM_ACTIVE = 4  # kswapd balances the zone


class PcpFlag(IntFlag):
    """PCPF_ bits."""

    PREV_FREE_HIGH_ORDER = 1  # the last free was of order 1 to 3
    FREE_HIGH_BATCH = 2  # the CPU's slice of the last data cache holds more than 3 batches


class Wmark(IntEnum):
    """enum zone_watermarks, as far as requests look at it."""

    MIN = 0
    LOW = 1
    HIGH = 2


class Alloc(IntFlag):
    """ALLOC_ bits of one attempt (mm/internal.h); the lowest two are a `Wmark`."""

    NO_WATERMARKS = 4
    OOM = 8
    NON_BLOCK = 0x10
    MIN_RESERVE = 0x20
    CMA = 0x80
    NOFRAGMENT = 0x100
    HIGHATOMIC = 0x200
    KSWAPD = 0x800


class Vmstat(IntEnum):
    """Counters by their /proc/vmstat names, lower case; pgalloc_<zone> is PGALLOC_DMA + zone type."""

    PGALLOC_DMA = 0
    PGALLOC_DMA32 = 1
    PGALLOC_NORMAL = 2
    PGALLOC_HIGH = 3
    PGALLOC_MOVABLE = 4
    PGALLOC_DEVICE = 5
    PGFREE = 6
    KSWAPD_WOKEN = 7  # times that a request found ZONE_BOOSTED_WATERMARK set, and so woke kswapd
    ALLOCSTALL_DMA = 8  # allocstall_<zone>: direct reclaims, by the highest zone type of the request
    ALLOCSTALL_DMA32 = 9
    ALLOCSTALL_NORMAL = 10
    ALLOCSTALL_HIGH = 11
    ALLOCSTALL_MOVABLE = 12
    ALLOCSTALL_DEVICE = 13
    PGSTEAL_KSWAPD = 14
    PGSTEAL_DIRECT = 15
    PAGEOUTRUN = 16
    COMPACT_STALL = 17
    COMPACT_FAIL = 18
    COMPACT_SUCCESS = 19
    THP_FAULT_ALLOC = 20
    THP_FAULT_FALLBACK = 21
    HTLB_BUDDY_ALLOC_SUCCESS = 22
    HTLB_BUDDY_ALLOC_FAIL = 23
    PGMIGRATE_SUCCESS = 24
    PGMIGRATE_FAIL = 25
    THP_MIGRATION_SUCCESS = 26
    THP_MIGRATION_FAIL = 27
    THP_MIGRATION_SPLIT = 28
    THP_SPLIT_PAGE = 29
    THP_SPLIT_PAGE_FAILED = 30
    COMPACT_MIGRATE_SCANNED = 31
    COMPACT_FREE_SCANNED = 32
    COMPACT_ISOLATED = 33
    COMPACT_DAEMON_WAKE = 34
    COMPACT_DAEMON_MIGRATE_SCANNED = 35
    COMPACT_DAEMON_FREE_SCANNED = 36
    THP_COLLAPSE_ALLOC = 37
    THP_COLLAPSE_ALLOC_FAILED = 38
    PCP_REFILLS = 39  # the model's own: times that an empty per-CPU list was filled from the buddy lists
    BUDDY_SPLITS = 40  # free blocks cut in two for a request, step by step
    EXTFRAG_EVENTS = 41  # mm_page_alloc_extfrag: blocks that came from another type's list
    CMA_ALLOC_SUCCESS = 42
    CMA_ALLOC_FAIL = 43


class MthpStat(IntEnum):
    """Files of hugepages-<size>kB/stats; their counters lie behind those of `Vmstat`, one an order."""

    ANON_FAULT_ALLOC = 0
    ANON_FAULT_FALLBACK = 1


NR_ORDERS = 16  # room for MAX_PAGE_ORDER 15, the largest that any architecture can be built with
MIGRATE_TYPES = 6
NR_PCP_LISTS = 14  # orders 0..3 by three types, and two for huge pages
NONE = np.uint64(0xFFFFFFFF)  # no page, no folio
HANDLE_SLOT = 0xFFFFFFFF  # the part of a handle that says where its folio is kept; the sequence number is above
SLOT_CHAINS = 8
MF_QUEUE_SLOTS = 16  # MEMORY_FAILURE_FIFO_SIZE, mm/memory-failure.c
LRU_BATCH_SLOTS = 31  # room for PAGEVEC_SIZE
NR_ZONE_TYPES = 6
MAX_COMPACTIONS = 4  # that run at one time
TARGETS = NR_ORDERS  # the private list behind those by order: targets handed to sources
PRIVATE_LISTS = NR_ORDERS + 1

page_dtype = np.dtype(
    [
        ("next", "u4"),  # links while on a list; of an allocated folio's first page `next` is its slot in `folios`
        ("prev", "u4"),
        ("state", "u1"),  # kind << 4 | order: "is the head of a free block of this order" is one comparison
        ("pg_flags", "u1"),  # PageFlag
        ("zone", "u1"),  # row of `zones`, as page_zone(): blocks never merge over a zone's border
        ("refcount", "u1"),  # on a per-CPU list: migratetype of the pageblock when the page came there
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
        (
            "free_pages",
            "i8",
        ),  # NR_FREE_PAGES, without isolated ones and without the CPUs' differences
        ("free_cma", "i8"),  # NR_FREE_CMA_PAGES, likewise
        ("nr_free", "u8", (NR_ORDERS,)),  # free blocks by order, isolated ones too: what buddyinfo prints
        ("free_highatomic", "i8"),  # nr_free_highatomic
        ("reserved_highatomic", "i8"),  # nr_reserved_highatomic
        ("watermark", "i8", (3,)),  # by Wmark, without the boost
        ("watermark_boost", "i8"),
        ("lowmem_reserve", "i8", (NR_ZONE_TYPES,)),  # by the highest zone type of the request
        ("nr_isolate_pageblock", "u8"),
        ("stat_threshold", "i8"),  # a CPU's difference beyond it is folded into the counters
        ("captured", "u4"),  # row of the page that the compacting task got, or NONE
        ("compact_considered", "u4"),  # requests since compaction was deferred
        ("cached_free", "i8"),  # rows where the scanners of compaction go on, -1: as at boot (compact_cached_free_pfn)
        ("cached_migrate", "i8", (2,)),  # of asynchronous compaction, and of the others
        ("init_migrate", "i8"),  # where they began after the last reset of skip hints
        ("init_free", "i8"),
        ("capture_order", "u1"),  # that it waits for; NR_ORDERS: no task does
        ("capture_type", "u1"),  # and its migratetype
        ("blockskip_flush", "u1"),  # compact_blockskip_flush: skip hints may be reset
        ("compact_defer_shift", "u1"),
        ("compact_order_failed", "u1"),  # the least order that failed
        ("flags", "u1"),  # ZoneFlag
        ("node", "u1"),
        ("zone_type", "u1"),
    ],
    align=True,
)
pcp_dtype = np.dtype(
    [
        *((name, "u4") for name in ("count", "high", "high_min", "high_max", "batch", "free_count", "alloc_factor")),
        ("free_factor", "u4"),  # before 6.7, in place of free_count and alloc_factor
        ("free_diff", "i4"),  # of NR_FREE_PAGES, not yet in the zone's counter
        ("cma_diff", "i4"),  # of NR_FREE_CMA_PAGES
        ("flags", "u4"),  # PcpFlag
    ]
)
lru_batch_dtype = np.dtype(
    [
        ("count", "u4"),
        ("size", "u4"),  # PAGEVEC_SIZE; 1 while lru_cache_disable() holds
        ("index", "u4", (LRU_BATCH_SLOTS,)),
    ]
)
folio_dtype = np.dtype(
    [
        ("index", "u4"),  # first row in `pages`; bit 31 marks a handle met twice in one request
        ("sequence", "u4"),  # grows when the slot is given back: a stale handle no longer fits
        ("mms", "u4"),  # the address spaces that map it, a bit each; of an unused slot: the next unused one
        ("bits", "u4"),  # FolioBit
    ]
)
queue_dtype = np.dtype(
    [
        *(("head", "u4"), ("count", "u4"), ("dropped", "u8")),
        *(("index", "u4", (MF_QUEUE_SLOTS,)), ("flags", "u4", (MF_QUEUE_SLOTS,))),  # rows, and MF_ flags of each
    ],
    align=True,
)


class Params(NamedTuple):
    """Constants that reach kernels (as an argument, never as module globals)."""

    n_pages: np.uint64  # rows of `pages` that are pages; list heads lie behind
    private_heads: np.uint64  # row of the first head of compactions' private lists
    page_shift: np.uint64
    max_order: np.uint64  # MAX_PAGE_ORDER, inclusive
    pageblock_order: np.uint64
    heads_per_zone: np.uint64
    features: np.uint64  # Feature bits
    n_cpus: np.uint64
    pcp_thp_order: np.uint64  # order of the per-CPU lists for huge pages; beyond max_order without them
    pcp_batch_scale_max: np.uint64  # CONFIG_PCP_BATCH_SCALE_MAX
    watermark_boost_factor: np.uint64  # vm.watermark_boost_factor


N_COUNTERS = len(Vmstat) + len(MthpStat) * NR_ORDERS


def mthp_counter(stat: MthpStat, order: int) -> int:
    """Place of a counter in `Memory.vmstat`."""
    return len(Vmstat) + stat * NR_ORDERS + order


def block_types(blocks: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Migratetypes of pageblocks as get_pageblock_migratetype() says them: ISOLATE hides the one below it."""
    return np.where(blocks["bits"] & BlockBit.ISOLATE, MigrateType.ISOLATE, blocks["migratetype"])


def free_list_head(params: Params, zone: int, order: int, migratetype: int) -> int:
    """Row of the head of free_list[order][migratetype]."""
    return int(params.n_pages) + zone * int(params.heads_per_zone) + order * MIGRATE_TYPES + migratetype


def pcp_list_head(params: Params, zone: int, cpu: int, pindex: int) -> int:
    """Row of the head of a per-CPU list; those of a zone lie behind its free lists."""
    return free_list_head(params, zone, int(params.max_order) + 1, 0) + cpu * NR_PCP_LISTS + pindex


class Memory(NamedTuple):
    """The whole state, as kernels take it."""

    params: Params
    pages: npt.NDArray[Any]  # page_dtype, [n_pages + list heads]
    blocks: npt.NDArray[Any]  # pageblock_dtype, [pageblocks]
    zones: npt.NDArray[Any]  # zone_dtype, [zones]
    pcp: npt.NDArray[Any]  # pcp_dtype, [zones * cpus]
    lru: npt.NDArray[Any]  # lru_batch_dtype, [cpus]
    folios: npt.NDArray[Any]  # folio_dtype, [slots]
    slots: npt.NDArray[np.uint64]  # live folios, slots ever used, then the heads of SLOT_CHAINS chains of unused ones
    ue_pages: npt.NDArray[np.uint64]  # latent hardware errors, a bit a page
    ue_lines: npt.NDArray[np.uint64]  # their 64-byte lines, sorted: row << (page_shift - 6) | line
    queues: npt.NDArray[Any]  # queue_dtype, [cpus]: memory_failure_queue()
    failure: npt.NDArray[Any]  # failure_dtype, one: what memory_failure() counts and is told, for the whole machine
    node_failures: npt.NDArray[Any]  # node_failures_dtype, [highest node + 1]
    areas: npt.NDArray[Any]  # area_dtype, [CMA areas]
    area_bits: npt.NDArray[np.uint64]  # their bitmaps, one behind the other, each from a new word on
    gigantic: npt.NDArray[Any]  # gigantic_dtype, [gigantic hugetlb pages]
    contents: npt.NDArray[np.uint8]  # [n_pages, page_size], or no rows
    vmstat: npt.NDArray[np.int64]  # Vmstat, then MthpStat by order
