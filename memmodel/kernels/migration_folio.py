"""The steps of moving one folio: a target, unmapping, the copy, the new mapping, or all of it undone; splitting one.

mm/migrate.c (migrate_folio_unmap, migrate_folio_move, migrate_folio_undo_src, try_split_folio), mm/rmap.c
(try_to_migrate), 6.12.117.
"""

import numpy as np

from memmodel.jit import count_trailing_zeros, inlined, never_inline, outlined
from memmodel.kernels.buddy import USED
from memmodel.kernels.compact_free import compaction_alloc, compaction_free
from memmodel.kernels.copying import copy_outcome, first_error, move_bytes
from memmodel.kernels.folio_state import count_mms
from memmodel.kernels.folios import drop_folio, is_hugetlb, new_folio_as, slot_of
from memmodel.kernels.freelist import ONE, ORDER_BITS
from memmodel.kernels.lru import LRU_ISOLATED, add_lru, drain_lru_batch, leave_lru
from memmodel.kernels.migration_job import ROWS_IN_USE, Count, Errno, Job, List, Mode, count_one, push
from memmodel.kernels.page_alloc import Request, alloc_block, free_block, free_row, mark_used, pcp_hit
from memmodel.kernels.poisoning import queue_failure
from memmodel.kernels.tlb import Tlb, defer_flush, flush_mm
from memmodel.kernels.used import cut_off
from memmodel.state.layout import NONE, FolioBit, Memory, PageFlag

U = np.uint64
ZERO = np.uint64(0)
LOCKED, WRITEBACK, DIRTY = (np.uint64(bit) for bit in (FolioBit.LOCKED, FolioBit.WRITEBACK, FolioBit.DIRTY))
NO_MIGRATE, INACCESSIBLE = np.uint64(FolioBit.NO_MIGRATE_FOLIO), np.uint64(FolioBit.INACCESSIBLE)
BY_PTES, PARTIALLY = np.uint64(FolioBit.PTE_MAPPED), np.uint64(FolioBit.PARTIALLY_MAPPED)
HUGETLB, PROTNONE, ORPHAN = (np.uint64(bit) for bit in (FolioBit.HUGETLB, FolioBit.PROTNONE, FolioBit.ORPHAN))
OF_THE_FRAME = np.uint64(PageFlag.HWPOISON | PageFlag.LRU | PageFlag.LRU_BATCH | PageFlag.LRU_ISOLATED)
MOVED, UNMAPPED, NOT_TRIED = Errno.MOVED.value, Errno.UNMAPPED.value, Errno.NOT_TRIED.value
EAGAIN, ENOMEM, EBUSY = Errno.EAGAIN.value, Errno.ENOMEM.value, Errno.EBUSY.value
ENOSYS, EOPNOTSUPP, EHWPOISON = Errno.ENOSYS.value, Errno.EOPNOTSUPP.value, Errno.EHWPOISON.value
MLOCKED = np.uint64(FolioBit.MLOCKED)
ASYNC, SYNC = np.uint64(Mode.ASYNC), np.uint64(Mode.SYNC)
SPLIT_LIST = np.uint64(List.SPLIT)
N_SET, N_REMOVED, N_TARGETS = (np.uint64(count) for count in (Count.N_SET, Count.N_REMOVED, Count.N_TARGETS))
N_TARGET_PAGES = np.uint64(Count.N_TARGET_PAGES)
N_UNMAPPED_FOLIOS, N_UNMAPPED_PAGES = np.uint64(Count.N_UNMAPPED_FOLIOS), np.uint64(Count.N_UNMAPPED_PAGES)
N_COPIED_FOLIOS, N_COPIED = np.uint64(Count.N_COPIED_FOLIOS), np.uint64(Count.N_COPIED)
N_COPY_CALLS, N_POISONED = np.uint64(Count.N_COPY_CALLS), np.uint64(Count.N_POISONED)
LOCK_WAITS, WRITEBACK_WAITS = np.uint64(Count.LOCK_WAITS), np.uint64(Count.WRITEBACK_WAITS)


@inlined
def bits_of(mem: Memory, index: U) -> U:
    """FolioBits of the folio at a row."""
    slot = slot_of(mem, index)
    return ZERO if slot == NONE else np.uint64(mem.folios[slot].bits)


@inlined
def mms_of(mem: Memory, index: U) -> U:
    """The address spaces that map it, a bit each; pages without a folio belong to the first."""
    slot = slot_of(mem, index)
    return ONE if slot == NONE else np.uint64(mem.folios[slot].mms)


@inlined
def clear_bit(mem: Memory, index: U, bit: U) -> None:
    """Take back a FolioBit."""
    slot = slot_of(mem, index)
    mem.folios[slot].bits = np.uint64(mem.folios[slot].bits) & ~bit


@inlined
def by_pmd(job: Job, bits: U, order: U) -> bool:
    """Whether a PMD maps the folio."""
    return bool(order == job.pmd_order) and not bits & (HUGETLB | BY_PTES)


@inlined
def ptes_of(job: Job, bits: U, order: U) -> U:
    """PTEs by which each address space maps it; hugetlb has one entry."""
    if by_pmd(job, bits, order):
        return ZERO
    return ONE if bits & HUGETLB else ONE << order


@inlined
def free_source(mem: Memory, job: Job, index: U, hugetlb: bool) -> None:
    """What the folio lay in goes back to the allocator, but for memory_failure(), which keeps it from others."""
    if hugetlb or not job.keeps_sources:
        free_row(mem, index, job.cpu)  # no call of free_block(): a tenth of a move
    else:
        leave_lru(mem, index)


@inlined
def take_target(mem: Memory, job: Job, order: U) -> U:
    """A destination folio, or NONE."""
    if job.compact.control.size:
        index = compaction_alloc(mem, job.compact, order)
        if index != NONE:
            count_one(job, N_TARGETS, 1)
            count_one(job, N_TARGET_PAGES, np.int64(ONE << order))
        return index
    like = job.large if order else job.small
    request = Request(order, like.migratetype, like.highest, like.fast, like.slow, like.lru)
    index = NONE
    zonelist = job.large_zonelist if order else job.zonelist
    if zonelist.size:
        index = pcp_hit(mem, zonelist, job.cpu, request)  # before the call: 4.6 to 5.5 M single pages/s
    if index == NONE:
        index = alloc_block(mem, zonelist, job.cpu, request)
    if index != NONE:
        mark_used(mem, index, order)
        count_one(job, N_TARGETS, 1)
        count_one(job, N_TARGET_PAGES, np.int64(ONE << order))
    return index


@inlined
def put_target(mem: Memory, job: Job, target: U) -> None:
    """A destination that its source did not use goes back to where it came from."""
    if job.compact.control.size:
        compaction_free(mem, job.compact, target, np.uint64(mem.pages[target].state) & ORDER_BITS)
    else:
        free_block(mem, target, job.cpu)


@inlined
def flush_pmds(tlb: Tlb, mms: U, cpu: U) -> None:
    """A PMD is gone from each of these address spaces, and may have left a page table to free."""
    while mms:
        flush_mm(tlb, count_trailing_zeros(mms), cpu, ZERO, True)
        mms &= mms - ONE


@inlined
def flush_ptes(tlb: Tlb, mms: U, cpu: U, n_ptes: U, deferred: bool) -> None:
    """PTEs are gone from each of these address spaces, and are flushed one by one unless that can wait."""
    while mms:
        mm = count_trailing_zeros(mms)
        mms &= mms - ONE
        if deferred and defer_flush(tlb, mm, cpu, n_ptes):
            continue
        for _ in range(n_ptes):
            flush_mm(tlb, mm, cpu, ONE, False)


@inlined
def unmap_by(mem: Memory, tlb: Tlb, job: Job, index: U, deferred: bool) -> None:
    """Migration entries in place of all mappings, and the flushes that cannot wait (try_to_migrate)."""
    bits, mms = bits_of(mem, index), mms_of(mem, index)
    n_ptes = ptes_of(job, bits, np.uint64(mem.pages[index].state) & ORDER_BITS)
    count_one(job, N_SET, np.int64(n_ptes * count_mms(mms)))
    if not n_ptes:
        flush_pmds(tlb, mms, job.cpu)
    elif not bits & PROTNONE:
        flush_ptes(tlb, mms, job.cpu, n_ptes, deferred and not bits & HUGETLB)


@inlined
def count_mapped_again(mem: Memory, job: Job, index: U) -> None:
    """Migration entries are replaced, by the new mapping or by the old one (remove_migration_ptes)."""
    n_ptes = ptes_of(job, bits_of(mem, index), np.uint64(mem.pages[index].state) & ORDER_BITS)
    count_one(job, N_REMOVED, np.int64(n_ptes * count_mms(mms_of(mem, index))))


@inlined
def lock_source(mem: Memory, job: Job, index: U, mode: U, waits: bool) -> int:
    """The folio lock and the end of writeback, slept for where the mode allows; 0 or why not."""
    bits = bits_of(mem, index)
    if bits & LOCKED:
        if not waits or (not bits & HUGETLB and (mode == ASYNC or job.memalloc)):
            return EAGAIN
        clear_bit(mem, index, LOCKED)
        count_one(job, LOCK_WAITS, 1)
    if bits & WRITEBACK and not bits & HUGETLB:
        if mode != SYNC:
            return EBUSY
        if not waits:
            return EAGAIN
        clear_bit(mem, index, WRITEBACK)
        count_one(job, WRITEBACK_WAITS, 1)
    return 0


@inlined
def unmap_folio(mem: Memory, tlb: Tlb, job: Job, place: U, mode: U, deferred: bool, waits: bool) -> int:
    """UNMAPPED, with a target; MOVED if only this task's reference was left; or why it stays (migrate_folio_unmap)."""
    index, order = job.rows[place], job.orders[place]
    if bits_of(mem, index) & ORPHAN:
        hugetlb = is_hugetlb(mem, index)
        drop_folio(mem, slot_of(mem, index))
        free_source(mem, job, index, hugetlb)
        job.rows[place] = NONE
        return MOVED
    target = take_target(mem, job, order)
    if target == NONE:
        return ENOMEM
    problem = lock_source(mem, job, index, mode, waits)
    if problem:
        put_target(mem, job, target)
        return problem
    job.targets[place] = target
    unmap_by(mem, tlb, job, index, deferred)
    count_one(job, N_UNMAPPED_FOLIOS, 1)
    count_one(job, N_UNMAPPED_PAGES, np.int64(ONE << order))
    return UNMAPPED


@inlined
def copy_folio(mem: Memory, job: Job, index: U, target: U, order: U, waiting: int) -> tuple[bool, int]:
    """Copy a folio; whether that went well, and how many chunks wait in the lanes then."""
    n_pages = ONE << order
    error = first_error(mem, index, n_pages)
    status, written, page, calls, _, _ = copy_outcome(job.copy, n_pages, mem.params.page_shift, error)
    waiting = move_bytes(mem, target, index, written, job.lanes, waiting)
    count_one(job, N_COPY_CALLS, np.int64(calls))
    if status:
        count_one(job, N_POISONED, 1)
        queue_failure(mem, job.cpu, index + page)
        return False, waiting
    count_one(job, N_COPIED_FOLIOS, 1)
    count_one(job, N_COPIED, np.int64(n_pages))
    return True, waiting


@inlined
def hand_over(mem: Memory, job: Job, index: U, target: U, order: U) -> None:
    """The target is the folio from here on; the source goes back to the allocator."""
    source, page = mem.pages[index], mem.pages[target]
    slot = slot_of(mem, index)
    page.pg_flags = (np.uint64(page.pg_flags) & OF_THE_FRAME) | (np.uint64(source.pg_flags) & ~OF_THE_FRAME)
    page.next = slot
    if slot != NONE:
        mem.folios[slot].index = target
    source.next = NONE
    if np.uint64(source.pg_flags) & LRU_ISOLATED:
        add_lru(mem, target, job.cpu, order)
        if bits_of(mem, target) & MLOCKED:  # it may be on its list only once the batch is emptied
            drain_lru_batch(mem, job.cpu)
    source.pg_flags = np.uint64(source.pg_flags) & OF_THE_FRAME
    free_source(mem, job, index, is_hugetlb(mem, target))


@inlined
def move_folio(mem: Memory, job: Job, place: U, waiting: int) -> tuple[int, int]:
    """Copy an unmapped folio and map it again at its target; errno, and chunks in the lanes (migrate_folio_move)."""
    index, target = job.rows[place], job.targets[place]
    order, bits = job.orders[place], bits_of(mem, index)
    if bits & INACCESSIBLE:
        return EOPNOTSUPP, waiting
    if bits & NO_MIGRATE and bits & DIRTY:
        return EBUSY, waiting
    if mem.pages[index].refcount > ONE:  # somebody holds on to it
        return EAGAIN, waiting
    copied, waiting = copy_folio(mem, job, index, target, order, waiting)
    if not copied:
        return EHWPOISON, waiting
    count_mapped_again(mem, job, index)
    hand_over(mem, job, index, target, order)
    job.rows[place] = target
    return MOVED, waiting


@outlined
def undo_unmap(mem: Memory, job: Job, place: U) -> None:
    """The old mapping again, and the target back (migrate_folio_undo_src, migrate_folio_undo_dst)."""
    never_inline()
    count_mapped_again(mem, job, job.rows[place])
    put_target(mem, job, job.targets[place])


@inlined
def add_part(mem: Memory, job: Job, place: U, index: U, mms: U, bits: U) -> None:
    """A page of a folio that was split becomes one of its own, on the list of split folios."""
    number = np.uint64(job.sizes[ROWS_IN_USE])
    job.sizes[ROWS_IN_USE] += 1
    job.rows[number] = index
    job.orders[number] = ZERO
    job.parents[number] = np.int64(place)
    job.status[number] = NOT_TRIED
    if slot_of(mem, job.rows[place]) != NONE:
        new_folio_as(mem, index, mms, bits)
    push(job, SPLIT_LIST, number)


@outlined
def split_folio(mem: Memory, tlb: Tlb, job: Job, place: U, mode: U) -> int:
    """Single pages in place of a large folio, the last first and the head at the end; 0 or why not (try_split_folio).

    A PMD that maps it is flushed; its pages have PTEs from then on.
    """
    never_inline()
    index = job.rows[place]
    page = mem.pages[index]
    order, bits, mms = job.orders[place], bits_of(mem, index), mms_of(mem, index)
    if bits & LOCKED:
        if mode == ASYNC:
            return EAGAIN
        bits &= ~LOCKED
        clear_bit(mem, index, LOCKED)
        count_one(job, LOCK_WAITS, 1)
    if bits & WRITEBACK:
        return EBUSY
    if page.refcount > ONE:
        return EAGAIN
    if by_pmd(job, bits, order):
        flush_pmds(tlb, mms, job.cpu)
    bits &= ~(BY_PTES | PARTIALLY)
    part = index + (ONE << order)
    while part > index + ONE:
        part -= ONE
        cut_off(mem, index, part, ZERO)
        mem.pages[part].next = NONE
        add_part(mem, job, place, part, mms, bits)
    page.state = USED
    job.orders[place] = ZERO
    job.thp[place] = 0
    slot = slot_of(mem, index)
    if slot != NONE:
        mem.folios[slot].bits = bits
    push(job, SPLIT_LIST, place)
    return 0
