"""What a running compaction is about, followed by its events (mm/compaction.c, 6.12.117 and 7.3).

Which free blocks it isolates is given. Followed are the drain when it leaves the range that it last migrated from, and
the list that its search for sources rotates.
"""

from typing import Any

import numpy as np

from memmodel.kernels.isolation import rotate_to_tail
from memmodel.replaying.comparing import free_list_rows
from memmodel.state.layout import MigrateType
from memmodel.state.machine import Machine

__all__ = ["CompactionRun"]

CLUSTER_MAX = 32  # COMPACT_CLUSTER_MAX
COSTLY_ORDER = 3  # PAGE_ALLOC_COSTLY_ORDER


class CompactionRun:
    """One compact_zone() of a task, in rows.

    `order` is -1 for compact_memory; `migratetype` is that of the request which compacts, None in a kernel thread;
    `line` of the trace is its beginning.
    """

    def __init__(self, mem: Machine, slot: int, record: Any, order: int, migratetype: int | None, line: int) -> None:
        self.mem, self.slot, self.record, self.order = mem, slot, record, order
        self.line = line
        self.zone = int(record["zone"])
        movable = migratetype in (None, MigrateType.MOVABLE)
        if "pageblock_order_sources" in mem.geometry.features and order >= mem.geometry.pageblock_order:
            movable = True  # what such a request gets is a whole pageblock
        self.searches = order > COSTLY_ORDER and movable
        self.last_migrated: int | None = None

    @property
    def migrate(self) -> int:
        """Row of the migration scanner."""
        return int(self.record["migrate"])

    @property
    def start(self) -> int:
        """First row of the zone."""
        return int(self.mem.state.zones[self.zone]["start"])

    def block_of(self, row: int) -> int:
        """First row of the pageblock."""
        return row & -self.mem.geometry.pageblock_nr_pages

    def scanned(self, end: int, n_taken: int) -> None:
        """The migration scanner stands at `end` and took pages."""
        self.record["migrate"] = end
        if n_taken:
            self.last_migrated = max(self.start, self.block_of(end - 1))

    def leaves_range(self) -> bool:
        """Whether it has left the aligned range that it last migrated from (check_drain); True once a range."""
        if self.order <= 0 or self.last_migrated is None or self.last_migrated >= self.migrate & -(1 << self.order):
            return False
        self.last_migrated = None
        return True

    def find_source_block(self, scan_start: int | None) -> bool:
        """Rotate the free list in which the search for a source ended (fast_find_migrateblock).

        `scan_start` is the row where the scan began then, None if there was nothing to scan: a page of that pageblock
        is what the search found.
        """
        if not self.searches or self.migrate not in (self.start, self.block_of(self.migrate)):
            return False
        if self.last_migrated is not None and self.block_of(self.last_migrated) == self.block_of(self.migrate):
            return False  # the pageblock is to be finished
        row, found = self._search(None if scan_start is None else self.block_of(scan_start))
        self.record["fast_search_fail"] = 0 if found else self.record["fast_search_fail"] + 1
        return row is not None and bool(rotate_to_tail(self.mem.state, np.uint64(row)))

    def _search(self, block: int | None) -> tuple[int | None, bool]:
        """(entry at which the search ends, True if it is in the pageblock); None where the lists end first."""
        limit, n_scanned = (CLUSTER_MAX >> int(self.record["fast_search_fail"])) + 1, 0
        for order in range(self.order - 1, COSTLY_ORDER - 1, -1):
            if n_scanned >= limit:
                break
            for row in free_list_rows(self.mem, self.zone, order, MigrateType.MOVABLE)[: limit + 1].tolist():
                if n_scanned >= limit:
                    return row, False
                n_scanned += 1
                if self.block_of(row) == block:
                    return row, True
        return None, False
