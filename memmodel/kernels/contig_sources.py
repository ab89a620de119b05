"""Which folios of a contiguous range are moved away, and which clean page cache is dropped in place of that.

mm/compaction.c (isolate_migratepages_range), mm/vmscan.c (reclaim_clean_pages_from_list), mm/hugetlb.c
(isolate_or_dissolve_huge_folio), 6.12.117.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.contig_task import ContigCount, Task, Why, stop_at
from memmodel.kernels.folio_state import mapping_of
from memmodel.kernels.folios import drop_folio, is_hugetlb, slot_of
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.lru import LRU, isolate_folio
from memmodel.kernels.migration_folio import NOT_TRIED, bits_of, flush_ptes, hand_over, mms_of, ptes_of
from memmodel.kernels.migration_job import ROWS_IN_USE, Job, List, begin_list, push, splice_front
from memmodel.kernels.page_alloc import Request, alloc_block, free_block, mark_used
from memmodel.kernels.pageblock import KIND_BITS, block_start
from memmodel.kernels.tlb import Tlb, flush_deferred
from memmodel.state.layout import NONE, FolioBit, Mapping, Memory, PageFlag, Vmstat

U = np.uint64
ZERO = np.uint64(0)
CLUSTER = np.uint64(32)  # COMPACT_CLUSTER_MAX
FROM, KEPT = np.uint64(List.FROM), np.uint64(List.KEPT)
N_DROPPED, N_REPLACED = np.uint64(ContigCount.N_DROPPED), np.uint64(ContigCount.N_REPLACED)
FILE, SWAPCACHE = np.uint64(FolioBit.FILE), np.uint64(FolioBit.SWAPCACHE)
INACCESSIBLE = np.uint64(FolioBit.INACCESSIBLE)
MAY_NOT_DROP = np.uint64(FolioBit.DIRTY | FolioBit.SWAPBACKED | FolioBit.MLOCKED | FolioBit.HUGETLB)
CANNOT_DROP = np.uint64(
    FolioBit.LOCKED | FolioBit.WRITEBACK | FolioBit.PTE_DIRTY | FolioBit.UNMAP_FAILS | FolioBit.ORPHAN
)
UNEVICTABLE = np.uint64(PageFlag.UNEVICTABLE)
UNSAID, ANON = np.uint64(Mapping.UNSAID), np.uint64(Mapping.ANON)
HTLB_SUCCESS, HTLB_FAIL = np.uint64(Vmstat.HTLB_BUDDY_ALLOC_SUCCESS), np.uint64(Vmstat.HTLB_BUDDY_ALLOC_FAIL)


@inlined
def may_isolate(mem: Memory, head: U) -> bool:
    """Whether a folio on an LRU list is taken: not a pinned one without a mapping, not one that nobody may read."""
    bits = bits_of(mem, head)
    mapping = mapping_of(bits)
    anonymous = (mapping == ANON or (mapping == UNSAID and not bits & FILE)) and not bits & SWAPCACHE
    return not (anonymous and mem.pages[head].refcount > ONE) and not bits & INACCESSIBLE


@inlined
def add_source(mem: Memory, job: Job, head: U, order: U) -> None:
    """A folio becomes one of the job's."""
    place = job.sizes[ROWS_IN_USE]
    job.sizes[ROWS_IN_USE] += 1
    job.rows[place] = head
    job.orders[place] = order
    job.thp[place] = order == job.pmd_order and not is_hugetlb(mem, head)
    job.parents[place] = -1
    job.status[place] = NOT_TRIED


@outlined
def replace_hugetlb(mem: Memory, job: Job, task: Task, head: U, order: U) -> bool:
    """A free folio of the hugetlb pool: the pool gets another, and this one goes back to the allocator."""
    never_inline()
    huge = task.huge
    target = NONE
    if task.huge_zones.size:
        request = Request(order, huge.migratetype, huge.highest, huge.fast, huge.slow, huge.lru)
        target = alloc_block(mem, task.huge_zones, task.cpu, request)
    if target == NONE:
        mem.vmstat[HTLB_FAIL] += 1
        stop_at(task, Why.NO_TARGET.value, head)
        return False
    mem.vmstat[HTLB_SUCCESS] += 1
    mark_used(mem, target, order)
    hand_over(mem, job, head, target, order)
    task.counts[N_REPLACED] += np.int64(ONE << order)
    return True


@inlined
def isolate_in_block(mem: Memory, job: Job, task: Task, index: U, end: U, taken: U) -> tuple[U, U, bool]:
    """Folios that begin in [index, end) leave their LRU lists until there are enough.

    (Where it ended, pages taken so far, False if there was no folio for the hugetlb pool.)
    """
    while index < end and taken < CLUSTER:
        page = mem.pages[index]
        state = np.uint64(page.state)
        order = state & ORDER_BITS
        if state & KIND_BITS == USED:
            if is_hugetlb(mem, index):
                if mms_of(mem, index) == ZERO and page.refcount == ONE:
                    if not replace_hugetlb(mem, job, task, index, order):
                        return index, taken, False
                else:
                    add_source(mem, job, index, order)
                    taken += ONE << order
            elif np.uint64(page.pg_flags) & LRU and may_isolate(mem, index):
                isolate_folio(mem, index)
                add_source(mem, job, index, order)
                taken += ONE << order
        index += ONE << order
    return min(index, end), taken, True


@inlined
def isolate_sources(mem: Memory, job: Job, task: Task, index: U) -> tuple[U, bool]:
    """The next folios of the range, pageblock by pageblock, on FROM with the last first.

    (Where the next call goes on, False if there was no folio for the hugetlb pool.)
    """
    job.sizes[ROWS_IN_USE] = 0
    taken, found = ZERO, True
    while index < task.end and taken < CLUSTER and found:
        end = min(block_start(mem, index) + (ONE << mem.params.pageblock_order), task.end)
        index, taken, found = isolate_in_block(mem, job, task, index, end, taken)
    place = job.sizes[ROWS_IN_USE]
    while place > 0:
        place -= 1
        if not is_hugetlb(mem, job.rows[place]):
            push(job, FROM, np.uint64(place))
    for place in range(job.sizes[ROWS_IN_USE]):  # these are put at the list's tail
        if is_hugetlb(mem, job.rows[place]):
            push(job, FROM, np.uint64(place))
    return index, found


@inlined
def try_drop(mem: Memory, tlb: Tlb, job: Job, task: Task, place: U) -> bool:
    """Drop a folio of clean page cache; False where somebody uses it."""
    index, order = job.rows[place], job.orders[place]
    bits = bits_of(mem, index)
    if bits & CANNOT_DROP or mem.pages[index].refcount > ONE:
        return False
    flush_ptes(tlb, mms_of(mem, index), task.cpu, ptes_of(job, bits, order), True)
    drop_folio(mem, slot_of(mem, index))
    free_block(mem, index, task.cpu)
    task.counts[N_DROPPED] += np.int64(ONE << order)
    return True


@outlined
def drop_clean(mem: Memory, tlb: Tlb, job: Job, task: Task) -> None:
    """Clean page cache of FROM is dropped; what cannot be comes to the front, the last first."""
    never_inline()
    n_folios = begin_list(job, FROM)
    for i in range(n_folios):
        place = job.lists[FROM, i]
        index = job.rows[place]
        bits = bits_of(mem, index)
        clean = bool(bits & FILE) and not bits & MAY_NOT_DROP
        if not clean or np.uint64(mem.pages[index].pg_flags) & UNEVICTABLE:
            push(job, FROM, place)
        elif not try_drop(mem, tlb, job, task, place):
            push(job, KEPT, place)
    flush_deferred(tlb, task.cpu)
    n_kept = job.sizes[KEPT]
    for i in range(n_kept // 2):
        job.lists[KEPT, i], job.lists[KEPT, n_kept - 1 - i] = job.lists[KEPT, n_kept - 1 - i], job.lists[KEPT, i]
    if n_kept:
        splice_front(job, KEPT, FROM)
