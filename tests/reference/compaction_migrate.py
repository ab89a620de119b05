"""The slow obvious twin of moving what compaction has isolated (mm/migrate.c: migrate_pages as compaction calls it).

Part of Compaction, which has the state of a run. Generators yield the run's events.
"""

from tests.reference.compaction_state import ASYNC

PASSES = 10  # NR_MAX_MIGRATE_PAGES_RETRY


class Mover:
    def migrate(self):
        """Move `sources`; what did not move stays there: (pages moved, did the targets run out?)."""
        todo, left, n_moved, out = list(self.sources), [], 0, False
        move = self.move_batch if self.has("batched_migration") else self.move_one_by_one
        while todo and not out:
            n_group, out, rest = yield from move(self.next_group(todo))
            n_moved += n_group
            left += rest
        self.sources.clear()
        self.sources.extend(left + todo)
        return n_moved, out

    def next_group(self, todo):
        """Off the front; the one that fills the batch is the last."""
        group, n_pages = [], 0
        while todo and n_pages < self.compactor.batch_pages:
            group.append(todo.pop(0))
            n_pages += 1 << group[-1][1]
        return group

    def move_one_by_one(self, group):
        """Before 6.3: pinned ones have a try in each pass, with a target that they give back at once."""
        failed, n_moved = [], 0
        for _ in range(PASSES):
            waiting = []
            while group:
                source, order = group[0]
                target = yield from self.take_target(order)
                if target is None:
                    return n_moved, True, failed + waiting + group
                group.pop(0)
                if self.can_move(source):
                    yield from self.move(source, order, target)
                    n_moved += 1 << order
                else:
                    (waiting if source in self.pages.pinned else failed).append((source, order))
                    yield from self.give_back(target, order)
            group = waiting
        return n_moved, False, failed + group

    def move_batch(self, group):
        """All at once, then if it may wait what failed one by one; (pages moved, out of targets?, what did not move).

        Large folios without a target were split meanwhile: their pages have one try.
        """
        parts, failed = [], []
        n_moved, out = yield from self.move_group(group, failed, parts)
        if out:
            return n_moved, True, failed + group + parts
        if self.mode != ASYNC:
            waiting, failed = failed, []
            while waiting and not out:
                one = [waiting.pop(0)]
                n_one, out = yield from self.move_group(one, failed, parts)
                n_moved += n_one
                failed += one
            if out:
                return n_moved, True, failed + waiting + parts
        n_parts, _ = yield from self.move_group(parts, failed, [])
        return n_moved + n_parts, False, failed + parts

    def move_group(self, group, failed, parts):
        """All get their targets, then all move; (pages moved, did the targets run out?).

        What fails goes to `failed`; what has no target stays in `group`, or its pages go to `parts`.
        """
        pairs, waiting, n_moved, out = [], [], 0, False
        while group and not out:
            source, order = group[0]
            target = yield from self.take_target(order)
            if target is not None:
                pairs.append((*group.pop(0), target))
            elif order and source not in self.pages.pinned:
                group.pop(0)
                self.pages.split(source, order)
                parts += [(pfn, 0) for pfn in reversed(range(source, source + (1 << order)))]
            else:
                out = True
        for source, order, target in pairs:
            if self.can_move(source):
                yield from self.move(source, order, target)
                n_moved += 1 << order
            elif source in self.pages.pinned and source not in self.pages.fixed:
                waiting.append((source, order, target))  # somebody may let go of it up to the last pass
            else:
                failed.append((source, order))
                yield from self.give_back(target, order)
        for source, order, target in waiting:
            failed.append((source, order))
            yield from self.give_back(target, order)
        return n_moved, out

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
        yield "free", source

    def put_back(self):
        """Sources return by way of the LRU batch (putback_movable_pages)."""
        for pfn, order in self.sources:
            self.pages.lru.add(pfn, order, self.cpu)
        self.sources.clear()
