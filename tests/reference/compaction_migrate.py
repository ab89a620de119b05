"""The slow obvious twin of moving what compaction has isolated (mm/migrate.c: migrate_pages as compaction calls it).

Part of Compaction, which has the state of a run. Generators yield the run's events.
"""

from tests.reference.compaction_state import ASYNC

BATCH = 512  # NR_MAX_BATCHED_MIGRATION


class Mover:
    def migrate(self):
        """Move `sources`; what did not move stays there: (pages moved, did the targets run out?)."""
        todo, left, n_moved, out = list(self.sources), [], 0, False
        while todo and not out:
            group, failed = self.next_group(todo), []
            n_group, out = yield from self.move_group(group, failed)
            n_moved += n_group
            if not out and self.mode != ASYNC and self.has("batched_migration"):
                group, failed = failed, []
                while group and not out:
                    one = [group.pop(0)]
                    n_one, out = yield from self.move_group(one, failed)
                    n_moved += n_one
                    failed += one
            left += failed + group
        self.sources.clear()
        self.sources.extend(left + todo)
        return n_moved, out

    def next_group(self, todo):
        """Off the front; the one that fills the batch is the last. Before 6.3 each goes by itself."""
        group, n_pages, most = [], 0, BATCH if self.has("batched_migration") else 1
        while todo and n_pages < most:
            group.append(todo.pop(0))
            n_pages += 1 << group[-1][1]
        return group

    def move_group(self, group, failed):
        """All get their targets, then all move; (pages moved, did the targets run out?).

        What fails goes to `failed`; what has no target stays in `group`.
        """
        pairs, n_moved = [], 0
        while group:
            target = yield from self.take_target(group[0][1])
            if target is None:
                break
            pairs.append((*group.pop(0), target))
        for source, order, target in pairs:
            if self.can_move(source):
                self.move(source, order, target)
                n_moved += 1 << order
                yield "free", source
            else:
                failed.append((source, order))
                yield from self.give_back(target, order)
        return n_moved, bool(group)

    def can_move(self, pfn):
        return pfn not in self.pages.fixed and pfn not in self.pages.pinned and pfn not in self.pages.writeback

    def move(self, source, order, target):
        """The target takes the source's place in the LRU batch; the source is freed."""
        pages, lru = self.pages, self.pages.lru
        mlocked = source in pages.mlocked
        pages.move(source, target, order)
        lru.add(target, order, self.cpu)
        if mlocked:
            lru.drain(self.cpu)
        self.free_pages(source, order)

    def put_back(self):
        """Sources return by way of the LRU batch (putback_movable_pages)."""
        for pfn, order in self.sources:
            self.pages.lru.add(pfn, order, self.cpu)
        self.sources.clear()
