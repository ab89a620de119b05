"""The slow obvious twin of what migrate_pages() does to one folio, and the records it keeps.

What stands in a folio's way is written on the folio. A lock is let go once somebody sleeps on it, writeback ends once
somebody waits for it; everything else stays as it is for the whole call.
"""

from dataclasses import dataclass, field, replace
from errno import EAGAIN, EBUSY, ENOMEM, EOPNOTSUPP

ASYNC, SYNC_LIGHT, SYNC = MODES = ("async", "sync_light", "sync")
EHWPOISON = 133  # Python's errno knows it from 3.14 on
DONE, UNMAPPED = 0, 1  # results of a step; errors are negative


@dataclass(eq=False, kw_only=True)
class Folio:
    """A folio off the LRU, who maps it, and what stands in its way."""

    pfn: int
    order: int = 0
    owners: set = field(default_factory=set)  # mms
    pins: int = 0  # references nobody accounts for
    locked: bool = False  # by another task
    writeback: bool = False
    dirty: bool = False
    file: bool = False  # this and mlocked change nothing here
    no_migrate_folio: bool = False  # its file system cannot move it
    inaccessible: bool = False
    mlocked: bool = False
    pte_mapped: bool = False
    partially_mapped: bool = False  # and on the list of deferred splits
    hugetlb: bool = False
    protnone: bool = False  # no TLB holds it
    orphan: bool = False  # only the caller's reference is left
    bad: bool = False  # a latent hardware error: no copy ends well
    status: int | None = None
    target: int | None = None  # pfn of the destination it has been given

    @property
    def n_pages(self):
        return 1 << self.order


@dataclass
class Stats:
    """What one batch counts (struct migrate_pages_stats)."""

    nr_succeeded: int = 0
    nr_failed: int = 0
    nr_thp_succeeded: int = 0
    nr_thp_failed: int = 0
    nr_thp_split: int = 0
    nr_split: int = 0


@dataclass
class Outcome(Stats):
    rc: int = 0
    n_set: int = 0
    n_removed: int = 0
    n_targets: int = 0
    n_moves: int = 0  # attempts to move an unmapped folio
    n_copied: int = 0
    n_poisoned: int = 0
    lock_waits: int = 0
    writeback_waits: int = 0
    max_unmapped: int = 0
    left: list = field(default_factory=list)
    pieces: list = field(default_factory=list)  # all that came out of splits


@dataclass
class Batch:
    """Folios on their way; `folios` are those that are not unmapped yet."""

    folios: list
    mode: str
    passes: int
    failed: list  # for good
    splits: list
    stats: Stats
    unmapped: list = field(default_factory=list)
    n_failed: int = 0  # folios
    out_of_memory: bool = False


class Steps:
    """One task that migrates, on one CPU."""

    def __init__(self, kernel, tlb, alloc, free, cpu=0, batch=512, pmd_order=9, thp_migration=True, memalloc=False):
        self.kernel, self.tlb, self.alloc, self.free = kernel, tlb, alloc, free
        self.cpu, self.batch, self.pmd_order = cpu, batch, pmd_order
        self.thp_migration, self.memalloc = thp_migration, memalloc
        self.begin("compaction")

    def begin(self, reason):
        self.out, self.reason, self.n_unmapped = Outcome(), reason, 0

    # -- the two halves of a migration ------------------------------------------------------------------------------

    def unmap(self, folio, mode, force=True):
        """migrate_folio_unmap(): a destination first, then what stands in the way, then its mappings."""
        if folio.orphan:
            self.free_source(folio)
            return DONE
        if not self.take_target(folio):
            return -ENOMEM
        if folio.locked and (mode == ASYNC or not force or self.memalloc):
            return self.give_back_target(folio, -EAGAIN)
        self.wait_for_lock(folio)
        if folio.writeback and mode != SYNC:
            return self.give_back_target(folio, -EBUSY)
        if folio.writeback and not force:
            return self.give_back_target(folio, -EAGAIN)
        self.wait_for_writeback(folio)
        self.set_migration_entries(folio, may_defer=mode == ASYNC and self.kernel.batched_migration)
        return UNMAPPED

    def move(self, folio):
        """migrate_folio_move(): the references are looked at before anything is copied."""
        self.out.n_moves += 1
        if folio.inaccessible:
            return -EOPNOTSUPP
        if folio.dirty and folio.no_migrate_folio:
            return -EBUSY
        if folio.pins:
            return -EAGAIN
        if folio.bad:
            self.out.n_poisoned += 1
            return -EHWPOISON
        self.out.n_copied += folio.n_pages
        self.remove_migration_entries(folio)
        self.free_source(folio)
        folio.pfn, folio.target = folio.target, None
        return DONE

    def restore(self, folio):
        """It stays where it was, and its mappings lead there again."""
        self.remove_migration_entries(folio)
        self.give_back_target(folio, None)

    def move_or_restore(self, folio):
        result = self.move(folio)
        if result != DONE:
            self.restore(folio)
        return result

    def move_hugetlb(self, folio, may_sleep):
        """unmap_and_move_huge_page()."""
        if folio.orphan:
            self.free_source(folio)
            return DONE
        if not self.take_target(folio):
            return -ENOMEM
        if folio.locked and not may_sleep:
            return self.give_back_target(folio, -EAGAIN)
        self.wait_for_lock(folio)
        self.set_migration_entries(folio, may_defer=False)
        return self.move_or_restore(folio)

    # -- sources and destinations -----------------------------------------------------------------------------------

    def take_target(self, folio):
        folio.target = self.alloc(folio.order)
        self.out.n_targets += folio.target is not None
        return folio.target is not None

    def give_back_target(self, folio, result):
        self.free(folio.target, folio.order)
        folio.target = None
        return result

    def free_source(self, folio):
        """Who moves a page away for its errors frees the page later himself, so that nobody else gets it."""
        if folio.hugetlb or self.reason != "memory_failure":
            self.free(folio.pfn, folio.order)

    def wait_for_lock(self, folio):
        self.out.lock_waits += folio.locked
        folio.locked = False

    def wait_for_writeback(self, folio):
        self.out.writeback_waits += folio.writeback
        folio.writeback = False

    # -- mappings ---------------------------------------------------------------------------------------------------

    def is_thp(self, folio):
        return folio.order >= self.pmd_order and not folio.hugetlb

    def is_pmd_mapped(self, folio):
        return self.is_thp(folio) and not folio.pte_mapped

    def n_ptes(self, folio):
        """Of each owner; a hugetlb folio has one entry."""
        if self.is_pmd_mapped(folio):
            return 0
        return 1 if folio.hugetlb else folio.n_pages

    def set_migration_entries(self, folio, may_defer):
        """try_to_migrate()."""
        for mm in sorted(folio.owners):
            if self.is_pmd_mapped(folio):  # NUMA hints too: pmdp_invalidate() does not look
                self.tlb.flush_range(mm, self.cpu, folio.n_pages, tables_freed=True)
            for _ in range(self.n_ptes(folio)):
                self.out.n_set += 1
                if folio.protnone:
                    continue
                if may_defer and self.tlb.defers(mm, self.cpu):
                    self.tlb.defer(mm)
                else:
                    self.tlb.flush_page(mm, self.cpu)
        self.n_unmapped += folio.n_pages
        self.out.max_unmapped = max(self.out.max_unmapped, self.n_unmapped)

    def remove_migration_entries(self, folio):
        """remove_migration_ptes(): nothing is flushed, as no TLB holds what was not present."""
        self.out.n_removed += len(folio.owners) * self.n_ptes(folio)
        self.n_unmapped -= folio.n_pages

    # -- splits -----------------------------------------------------------------------------------------------------

    def split(self, folio, batch):
        """try_split_folio(): 0, or an error. The large folio has failed; its pieces count for themselves."""
        if folio.locked and batch.mode == ASYNC:
            return -EAGAIN
        self.wait_for_lock(folio)
        if folio.writeback:
            return -EBUSY
        if folio.pins:
            return -EAGAIN
        if self.is_pmd_mapped(folio):
            for mm in sorted(folio.owners):
                self.tlb.flush_range(mm, self.cpu, folio.n_pages, tables_freed=True)
        batch.n_failed += 1
        batch.stats.nr_thp_failed += self.is_thp(folio)
        batch.stats.nr_thp_split += self.is_thp(folio)
        batch.stats.nr_split += 1
        batch.folios.remove(folio)
        pieces = self.pieces(folio)
        batch.splits += pieces
        self.out.pieces += pieces
        return 0

    def pieces(self, folio):
        """The tails, last one first, then the head, which is what the large folio has become."""
        n_pages = folio.n_pages
        folio.order, folio.pte_mapped, folio.partially_mapped, folio.status = 0, False, False, None
        tails = [replace(folio, pfn=folio.pfn + i, owners=set(folio.owners)) for i in range(1, n_pages)]
        return [*reversed(tails), folio]
