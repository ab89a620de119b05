"""alloc_contig_range(): a range of pages emptied and taken, whatever lies in it, or left as it was.

mm/page_alloc.c (alloc_contig_range, __alloc_contig_migrate_range, free_contig_range), mm/page_isolation.c
(test_pages_isolated), 6.1.192, 6.12.117 and 7.3.4.
"""

import numpy as np

from memmodel.jit import inlined, kernel, never_inline, outlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.contig_isolation import HOLE, RESERVED, isolate_pageblocks, old_type
from memmodel.kernels.contig_sources import drop_clean, isolate_sources
from memmodel.kernels.contig_task import WHY, ContigCount, Task, Why, stop_at
from memmodel.kernels.folios import is_hugetlb, slot_of
from memmodel.kernels.freelist import FREE, ONE, ORDER_BITS
from memmodel.kernels.isolation import isolate_free_page, undo_blocks
from memmodel.kernels.lru import BYPASSED, LRU, set_batches
from memmodel.kernels.migration import FAILED, FROM, count_migrated, migrate_isolated, put_back
from memmodel.kernels.migration_folio import EBUSY, ENOMEM
from memmodel.kernels.migration_job import ROWS_IN_USE, Job, splice
from memmodel.kernels.page_alloc import HWPOISON, LOST, free_block
from memmodel.kernels.pageblock import KIND_BITS, containing_head
from memmodel.kernels.pcp import drain_all_pages
from memmodel.kernels.tlb import Tlb
from memmodel.state.layout import NONE, Feature, Memory

U = np.uint64
ZERO = np.uint64(0)
EINTR, EINVAL = -4, -22
TRIES = 5
IN_CHUNKS = np.uint64(Feature.CONTIG_FREE_CHUNKS)
N_BATCHES, N_FREED = np.uint64(ContigCount.N_BATCHES), np.uint64(ContigCount.N_FREED)


@inlined
def find_targetless(job: Job, task: Task) -> None:
    """Which folio there was no target for."""
    for place in range(job.sizes[ROWS_IN_USE]):
        if job.status[place] == ENOMEM:
            stop_at(task, Why.NO_TARGET.value, job.rows[place])
            return


@inlined
def move_away(mem: Memory, tlb: Tlb, job: Job, task: Task) -> int:
    """All folios of the range, at least 32 pages at a time, each lot tried five times: 0 or an errno."""
    index, tries = task.start, 0
    while index < task.end or job.sizes[FROM]:
        if task.counts[N_BATCHES] >= np.int64(task.signal_after):
            stop_at(task, Why.SIGNAL.value, index)
            return EINTR
        if job.sizes[FROM]:
            tries += 1
            if tries == TRIES:
                return EBUSY
        else:
            tries = 0
            index, found = isolate_sources(mem, job, task, index)
            if not found:
                return ENOMEM
        drop_clean(mem, tlb, job, task)
        task.counts[N_BATCHES] += 1
        left = migrate_isolated(mem, tlb, job, task.one_by_one != ZERO)
        splice(job, FAILED, FROM)
        if left == ENOMEM:
            find_targetless(job, task)
            return ENOMEM
    return 0


@outlined
def migrate_range(mem: Memory, tlb: Tlb, job: Job, task: Task) -> int:
    """move_away() past the LRU-add batches; what did not move goes back through them."""
    never_inline()
    size = np.uint64(mem.lru[0]["size"])
    set_batches(mem, BYPASSED)
    problem = move_away(mem, tlb, job, task)
    set_batches(mem, size)
    put_back(mem, job, FROM)
    job.sizes[FROM] = 0
    count_migrated(mem, job)
    return problem


@inlined
def free_block_around(mem: Memory, index: U) -> U:
    """First row of the free block that holds a row, or that row (find_large_buddy)."""
    head = containing_head(mem, index)
    return head if np.uint64(mem.pages[head].state) & KIND_BITS == FREE else index


@inlined
def first_busy(mem: Memory, index: U, end: U) -> U:
    """First page that is not free, or NONE (test_pages_isolated). PG_hwpoison is no excuse here."""
    while index < end:
        state = np.uint64(mem.pages[index].state)
        if state & KIND_BITS != FREE:
            return index
        index += ONE << (state & ORDER_BITS)
    return NONE


@inlined
def take_free(mem: Memory, cpu: U, first: U, end: U) -> U:
    """Take all free blocks from a row on, as single pages in use; where the last one ends."""
    index = first
    while index < end:
        index += ONE << isolate_free_page(mem, index, cpu)
    for row in range(first, index):
        page = mem.pages[row]
        page.state = USED
        page.refcount = ONE
        page.next = NONE
    return index


@inlined
def chunk_order(mem: Memory, index: U, end: U) -> U:
    """Order of the largest aligned block that begins here, ends before the end, and has no poisoned page."""
    order, known = ZERO, index + ONE
    while order < mem.params.max_order and index & ((ONE << (order + ONE)) - ONE) == ZERO:
        after = index + (ONE << (order + ONE))
        if after > end:
            break
        while known < after and not np.uint64(mem.pages[known].pg_flags) & HWPOISON:
            known += ONE
        if known < after:
            break
        order += ONE
    return order


@outlined
def free_range(mem: Memory, first: U, end: U, cpu: U) -> None:
    """Single pages in use go back, ascending; since 7.2 in maximal aligned chunks (free_contig_range)."""
    never_inline()
    index = first
    while index < end:
        order = ZERO
        if mem.params.features & IN_CHUNKS and not np.uint64(mem.pages[index].pg_flags) & HWPOISON:
            order = chunk_order(mem, index, end)
        for row in range(index + ONE, index + (ONE << order)):
            mem.pages[row].state = ZERO
            mem.pages[row].refcount = ZERO
        if mem.pages[index].state != LOST:
            mem.pages[index].state = USED | order
        free_block(mem, index, cpu)
        index += ONE << order


@outlined
def take_range(mem: Memory, task: Task) -> int:
    """Test, take, and give back what lies before and behind the range: 0 or an errno."""
    never_inline()
    first = free_block_around(mem, task.start)
    busy = first_busy(mem, first, task.end)
    if busy != NONE:
        if task.counts[WHY] == Why.NOTHING.value:
            stop_at(task, Why.BUSY.value, busy)
        return EBUSY
    end = take_free(mem, task.cpu, first, task.end)
    if task.whole and (first != task.start or end != task.end):  # the kernel loses the pages, with a warning
        stop_at(task, Why.NOT_WHOLE.value, task.start)
        free_range(mem, first, end, task.cpu)
        return EINVAL
    free_range(mem, first, task.start, task.cpu)
    free_range(mem, task.end, end, task.cpu)
    task.counts[N_FREED] += np.int64(task.start - first + end - task.end)
    return 0


@kernel
def alloc_contig_range(mem: Memory, tlb: Tlb, job: Job, task: Task) -> int:
    """Isolate, drain, move away, test, take, undo: 0 or an errno; `task.counts` tells why."""
    if not isolate_pageblocks(mem, task):
        return EBUSY
    drain_all_pages(mem, task.zone, task.cpu)
    problem = migrate_range(mem, tlb, job, task)
    if problem == 0 or problem == EBUSY:
        problem = take_range(mem, task)
    undo_blocks(mem, task.zone, task.cpu, task.start, task.end, old_type(task))
    return problem


@inlined
def is_of_range(mem: Memory, index: U) -> bool:
    """Whether a page may be one of a range: only a poisoned one, which memory_failure() holds too, has a record."""
    page = mem.pages[index]
    if slot_of(mem, index) != NONE:
        return bool(page.state == USED and page.refcount > ONE and np.uint64(page.pg_flags) & HWPOISON)
    return bool(page.state == USED or (page.state == LOST and page.refcount > ZERO))


@kernel
def free_contig_range(mem: Memory, first: U, end: U, cpu: U) -> U:
    """Give back a range of single pages in use; the first row that is none, and nothing has changed then, or NONE."""
    for row in range(first, end):
        if not is_of_range(mem, np.uint64(row)):
            return np.uint64(row)
    free_range(mem, first, end, cpu)
    return NONE


@kernel
def folios_in(mem: Memory, first: U, end: U) -> tuple[U, U]:
    """Pages in large folios of a range; row of the first folio of more than a pageblock that may move, or NONE."""
    n_pages, large = ZERO, NONE
    head = containing_head(mem, first)
    while head < end:
        state = np.uint64(mem.pages[head].state)
        order = state & ORDER_BITS
        if order and state & KIND_BITS == USED:
            n_pages += ONE << order
            movable = np.uint64(mem.pages[head].pg_flags) & LRU or is_hugetlb(mem, head)
            if large == NONE and order > mem.params.pageblock_order and movable:
                large = head
        head += ONE << order
    return n_pages, large


@kernel
def may_be_contiguous(mem: Memory, zone: U, first: U, end: U) -> bool:
    """Whether all of a range is memory of the zone, not reserved, and not hugetlb's (pfn_range_valid_contig)."""
    head = containing_head(mem, first)
    while head < end:
        state = np.uint64(mem.pages[head].state)
        kind = state & KIND_BITS
        if kind == HOLE or kind == RESERVED or mem.pages[head].zone != zone or is_hugetlb(mem, head):
            return False
        head += ONE << (state & ORDER_BITS)
    return True
