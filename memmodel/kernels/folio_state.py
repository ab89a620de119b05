"""What a page is to memory_failure() and /proc/kpageflags: its folio's bits, its mapping, who holds references."""

import numpy as np

from memmodel.jit import inlined
from memmodel.kernels.folios import SLOT_BITS, new_folio, slot_of
from memmodel.kernels.freelist import ONE
from memmodel.kernels.lru import drain_lru_batch
from memmodel.kernels.pageblock import KIND_BITS
from memmodel.state.layout import MAPPING_SHIFT, NONE, FolioBit, Kind, Mapping, Memory, PageFlag

U = np.uint64
ZERO = np.uint64(0)
SHIFT, MAPPING_BITS = np.uint64(MAPPING_SHIFT), np.uint64(15 << MAPPING_SHIFT)
USED, RESERVED = np.uint64(Kind.USED << 4), np.uint64(Kind.RESERVED << 4)
ANON, SHMEM, HUGETLBFS = np.uint64(Mapping.ANON), np.uint64(Mapping.SHMEM), np.uint64(Mapping.HUGETLBFS)
OF_FILE, NOTHING, KERNEL = np.uint64(Mapping.FILE), np.uint64(Mapping.NOTHING), np.uint64(Mapping.KERNEL)
FILE, HUGETLB, SWAPCACHE = np.uint64(FolioBit.FILE), np.uint64(FolioBit.HUGETLB), np.uint64(FolioBit.SWAPCACHE)
POISON_ENTRIES = np.uint64(FolioBit.POISON_ENTRIES)
HUGE_DEFAULT = np.uint64(Mapping.ANON << MAPPING_SHIFT | FolioBit.UPTODATE | FolioBit.PTE_DIRTY)
ANON_DEFAULT = HUGE_DEFAULT | np.uint64(FolioBit.SWAPBACKED | FolioBit.OWNER_2)
FILE_DEFAULT = np.uint64(Mapping.FILE << MAPPING_SHIFT | FolioBit.FILE | FolioBit.UPTODATE)
KERNEL_DEFAULT = np.uint64(Mapping.KERNEL << MAPPING_SHIFT)
FLAG_ANON = np.uint64(PageFlag.ANON)
OWN = np.uint64(PageFlag.SLAB | PageFlag.TABLE)
LRU, ON_LRU = np.uint64(PageFlag.LRU), np.uint64(PageFlag.LRU | PageFlag.LRU_BATCH | PageFlag.LRU_ISOLATED)
HELD_FOR_LRU = np.uint64(PageFlag.LRU_BATCH | PageFlag.LRU_ISOLATED)


@inlined
def own_slot(mem: Memory, head: U) -> U:
    """The folio's slot; one that came from a snapshot gets one. The table must have room."""
    slot = slot_of(mem, head)
    if slot == NONE:
        slot = np.uint64(new_folio(mem, head)) & SLOT_BITS
        flags = np.uint64(mem.pages[head].pg_flags)
        if flags & ON_LRU and not flags & FLAG_ANON:
            mem.folios[slot].bits = FILE
    return slot


@inlined
def bits_of(mem: Memory, head: U, slot: U) -> U:
    """The folio's bits, with what follows where nobody said what it is."""
    bits = ZERO
    if slot != NONE:
        bits = np.uint64(mem.folios[slot].bits)
    if bits & MAPPING_BITS:
        return bits
    flags = np.uint64(mem.pages[head].pg_flags)
    if bits & HUGETLB:
        return bits | HUGE_DEFAULT
    if not flags & ON_LRU:
        return bits | KERNEL_DEFAULT
    if bits & FILE or (slot == NONE and not flags & FLAG_ANON):
        return bits | FILE_DEFAULT
    return bits | ANON_DEFAULT


@inlined
def mapping_of(bits: U) -> U:
    """Its `Mapping`."""
    return bits >> SHIFT


@inlined
def with_mapping(bits: U, mapping: U) -> U:
    """The same bits with another one."""
    return (bits & ~MAPPING_BITS) | mapping << SHIFT


@inlined
def cached(bits: U) -> bool:
    """Whether it is in a file's page cache, which holds a reference."""
    mapping = mapping_of(bits)
    return bool(mapping >= SHMEM) and bool(mapping <= HUGETLBFS)


@inlined
def mappers(mem: Memory, slot: U, bits: U) -> U:
    """The address spaces whose page tables point at it; at the kernel's own memory none unless somebody says so."""
    if slot == NONE or bits & POISON_ENTRIES:
        return ZERO
    if mapping_of(bits) == KERNEL and not np.uint64(mem.folios[slot].bits) & MAPPING_BITS:
        return ZERO
    return np.uint64(mem.folios[slot].mms)


@inlined
def count_mms(mms: U) -> U:
    """How many address spaces that are."""
    n = ZERO
    while mms:
        mms &= mms - ONE
        n += ONE
    return n


@inlined
def count_references(mem: Memory, head: U) -> U:
    """page_count() of a folio, or of a page that is in nobody's hands."""
    page = mem.pages[head]
    kind, held = np.uint64(page.state) & KIND_BITS, np.uint64(page.refcount)
    if kind == RESERVED:
        return held + ONE
    slot = slot_of(mem, head)
    if kind != USED or slot == NONE:
        return held
    bits = bits_of(mem, head, slot)
    if mapping_of(bits) == KERNEL:
        return held
    n = max(held, ONE) - ONE + count_mms(mappers(mem, slot, bits))
    if cached(bits):
        n += ONE
    if bits & SWAPCACHE:
        n += ONE
    if np.uint64(page.pg_flags) & HELD_FOR_LRU:
        n += ONE
    return n


@inlined
def drain_lru_all(mem: Memory) -> None:
    """Empty every CPU's LRU-add batch (lru_add_drain_all, what shake_folio() does)."""
    for cpu in range(mem.params.n_cpus):
        drain_lru_batch(mem, np.uint64(cpu))
