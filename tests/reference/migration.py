"""The slow obvious twin of migrate_pages(): batch by batch and pass by pass, with the kernel's lists as lists."""

from errno import EAGAIN, ENOMEM

from tests.reference.migration_steps import ASYNC, DONE, MODES, SYNC, SYNC_LIGHT, UNMAPPED, Batch, Folio, Stats, Steps

__all__ = ["ASYNC", "SYNC", "SYNC_LIGHT", "Folio", "Migrator", "demote_folio_list"]

REASONS = {
    *("compaction", "memory_failure", "memory_hotplug", "syscall_or_cpuset", "mempolicy_mbind"),
    *("numa_misplaced", "contig_range", "longterm_pin", "demotion", "damon"),
}
PASSES, ASYNC_PASSES, SYNC_PASSES = 10, 3, 7


class Migrator(Steps):
    """What is done to lists of folios."""

    def migrate_pages(self, folios, mode, reason):
        """`folios` is not changed; what the caller's list would hold afterwards is the outcome's `left`."""
        if mode not in MODES or reason not in REASONS:
            raise ValueError(f"mode {mode!r}, reason {reason!r}")
        self.begin(reason)
        todo, failed = list(folios), []
        rc = self.hugetlb_pass(todo, failed, mode)
        if rc >= 0:
            rc = self.all_batches(todo, failed, mode, rc)
        self.out.left = failed + todo
        self.out.rc = rc if self.out.left else 0
        return self.out

    def hugetlb_pass(self, todo, failed, mode):
        """All hugetlb folios before all others, one at a time: the number that failed, or -ENOMEM."""
        batch = Batch(todo, mode, PASSES, failed, [], self.out)
        for passed in range(PASSES):
            retry = []
            for folio in [folio for folio in todo if folio.hugetlb]:
                folio.status = self.move_hugetlb(folio, may_sleep=passed > 2 and mode == SYNC)
                if folio.status == -ENOMEM:
                    self.fail([folio, *retry], batch)
                    return -ENOMEM
                if folio.status == -EAGAIN:
                    retry.append(folio)
                else:
                    self.leave(folio, batch)
            if not retry:
                return batch.n_failed
        self.fail(retry, batch)
        return batch.n_failed

    def all_batches(self, todo, failed, mode, n_failed):
        """The number of folios that failed, the hugetlb ones before included, or -ENOMEM."""
        while True:
            folios, splits = self.next_batch(todo, failed), []
            if not self.kernel.batched_migration:
                rc = self.migrate_one_by_one(folios, mode, failed)
            elif mode == ASYNC:
                rc = self.migrate_batch(Batch(folios, ASYNC, PASSES, failed, splits, self.out))
            else:
                rc = self.migrate_sync(folios, mode, failed, splits)
            failed += folios
            if rc < 0:
                failed += splits
                return rc
            if splits:  # the large folio has counted as one failure, and that is all
                self.migrate_batch(Batch(splits, ASYNC, 1, failed, [], self.out))
                failed += splits
            n_failed += rc
            if not todo:
                return n_failed

    def next_batch(self, todo, failed):
        """Off the head of the list, with the folio that fills the batch; in 6.1 without the one that would burst it."""
        folios, n_pages = [], 0
        while todo:
            if todo[0].hugetlb:  # it has had its passes
                failed.append(todo.pop(0))
                continue
            n_pages += todo[0].n_pages
            if not self.kernel.batched_migration and n_pages > self.batch and folios:
                break
            folios.append(todo.pop(0))
            if self.kernel.batched_migration and n_pages >= self.batch:
                break
        return folios

    def migrate_sync(self, folios, mode, failed, splits):
        """All together without sleeping on any; then those that failed, for whatever reason, one at a time."""
        out, first, again = self.out, Stats(), []
        rc = self.migrate_batch(Batch(folios, ASYNC, ASYNC_PASSES, again, splits, first))
        out.nr_succeeded += first.nr_succeeded
        out.nr_thp_succeeded += first.nr_thp_succeeded
        out.nr_thp_split += first.nr_thp_split
        out.nr_split += first.nr_split
        if rc < 0:
            out.nr_failed += first.nr_failed
            out.nr_thp_failed += first.nr_thp_failed
            failed += again
            return rc
        out.nr_thp_failed += first.nr_thp_split
        n_failed = first.nr_split
        folios += again
        while folios:
            one = [folios.pop(0)]
            rc = self.migrate_batch(Batch(one, mode, SYNC_PASSES, failed, splits, out))
            failed += one
            if rc < 0:
                return rc
            n_failed += rc
        return n_failed

    def migrate_one_by_one(self, folios, mode, failed):
        """6.1: each folio is unmapped, flushed and moved before the next; then once the pieces of split ones."""
        batch = Batch(folios, mode, PASSES, failed, [], self.out)
        self.unmap_phase(batch)
        if batch.out_of_memory:
            failed[:0] = batch.splits
            return -ENOMEM
        if batch.splits:
            failed[:0] = folios
            folios[:] = batch.splits
            pieces = Batch(folios, mode, 1, failed, [], self.out)
            self.unmap_phase(pieces)
            if pieces.out_of_memory:
                return -ENOMEM
        return batch.n_failed

    # -- one batch --------------------------------------------------------------------------------------------------

    def migrate_batch(self, batch):
        """Unmap all, flush once, move all: the number of folios that failed, or -ENOMEM (migrate_pages_batch)."""
        assert batch.mode == ASYNC or len(batch.folios) <= 1, "sleeping on one lock, holding another"
        self.unmap_phase(batch)
        if batch.unmapped:
            self.tlb.flush_batch(self.cpu)
            self.move_phase(batch)
        for folio in batch.unmapped:
            self.restore(folio)
            batch.failed.append(folio)
        return -ENOMEM if batch.out_of_memory else batch.n_failed

    def unmap_phase(self, batch):
        for passed in range(batch.passes):
            retry = []
            for folio in list(batch.folios):
                if self.is_split_first(folio, batch):
                    continue
                if self.is_stuck(folio):
                    self.leave(folio, batch)
                    continue
                folio.status = self.first_step(folio, batch.mode, passed)
                if folio.status == -EAGAIN:
                    retry.append(folio)
                elif folio.status != -ENOMEM:
                    self.leave(folio, batch)
                elif not self.is_split_instead(folio, batch, retry):
                    self.fail([folio, *retry], batch)
                    batch.out_of_memory = True
                    return
            if not retry:
                return
        self.fail(retry, batch)

    def move_phase(self, batch):
        for _ in range(batch.passes):
            retry = []
            for folio in list(batch.unmapped):
                folio.status = self.move(folio)
                if folio.status == -EAGAIN:
                    retry.append(folio)
                    continue
                if folio.status != DONE:
                    self.restore(folio)
                batch.unmapped.remove(folio)
                self.finish(folio, batch)
            if not retry:
                return
        self.fail(retry, batch)

    def first_step(self, folio, mode, passed):
        """Up to where it waits for the flush; in 6.1 to the end."""
        if self.kernel.batched_migration:
            return self.unmap(folio, mode)
        result = self.unmap(folio, mode, force=passed > 2)
        return self.move_or_restore(folio) if result == UNMAPPED else result

    def is_stuck(self, folio):
        """Can it move in pieces only?"""
        return self.is_thp(folio) and not self.thp_migration

    def is_split_first(self, folio, batch):
        """For its holes, since 6.3, or as it cannot move whole."""
        has_holes = folio.n_pages > 2 and folio.partially_mapped and self.kernel.batched_migration
        if not has_holes and not self.is_stuck(folio):
            return False
        folio.status = self.split(folio, batch) or None
        return folio.status is None

    def is_split_instead(self, folio, batch, retry):
        """There was no destination. One that was in use is tried again where it is to be pinned for long."""
        if folio.order == 0 or self.reason == "numa_misplaced":
            return False
        result = self.split(folio, batch)
        if result == -EAGAIN and self.reason == "longterm_pin":
            retry.append(folio)
            return True
        return result == 0

    def leave(self, folio, batch):
        """Off the list of those that are to be unmapped."""
        batch.folios.remove(folio)
        if folio.status == UNMAPPED:
            batch.unmapped.append(folio)
        else:
            self.finish(folio, batch)

    def finish(self, folio, batch):
        if folio.status == DONE:
            batch.stats.nr_succeeded += folio.n_pages
            batch.stats.nr_thp_succeeded += self.is_thp(folio)
        else:
            self.fail([folio], batch)
            batch.failed.append(folio)

    def fail(self, folios, batch):
        batch.n_failed += len(folios)
        batch.stats.nr_failed += sum(folio.n_pages for folio in folios)
        batch.stats.nr_thp_failed += sum(self.is_thp(folio) for folio in folios)


def demote_folio_list(migrator, folios, proactive=False):
    """What reclaim makes of demotion: (base pages reclaimed, folios to be swapped out instead, folios kept)."""
    outcome = migrator.migrate_pages(folios, ASYNC, "demotion")  # its return value is not looked at
    if proactive:
        return outcome.nr_succeeded, [], outcome.left
    return outcome.nr_succeeded, outcome.left, []
