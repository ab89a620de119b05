"""Pageblocks isolated for a contiguous allocation, and given back."""

import numpy as np

from memmodel.kernels import isolation as kernels
from memmodel.state.layout import MigrateType

from . import best_of, half_free, need_memory, one_zone, warm_kernels

ZERO = np.uint64(0)


class Isolate:
    """All pageblocks of a zone whose free blocks change their lists twice: whole ones, or half of the single pages."""

    unit = "us a pageblock, there and back"
    params = (["free", "half of the pages free at random"],)
    param_names = ("pageblocks",)
    size = "1GiB"
    turns = 5

    def setup(self, pageblocks):
        warm_kernels()
        need_memory(1 << 30)
        self.mem = one_zone(self.size)
        if pageblocks != "free":
            half_free(self.mem)
        self.there_and_back()

    def there_and_back(self):
        state = self.mem.state
        whole = ZERO, ZERO, ZERO, state.params.n_pages  # zone, CPU, rows
        kernels.isolate_range(state, *whole)
        if state.zones["free_pages"][0]:
            raise AssertionError("free pages are left outside of isolation")
        kernels.undo_isolation(state, *whole, np.uint64(MigrateType.MOVABLE))

    def track_range(self, pageblocks):
        return best_of(self.turns, self.there_and_back)[0] * 1e6 / self.mem.state.blocks.size
