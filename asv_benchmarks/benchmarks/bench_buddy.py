"""The buddy lists alone, compiled code on rows of pages: pages a second, and share of the C twin's rate."""

import ctypes
from functools import partial

import numpy as np

from memmodel.jit import kernel
from memmodel.kernels.buddy import MOVABLE, USED, ZERO, free_one, take_smallest
from memmodel.kernels.freelist import ORDER_BITS, block_type

from . import Churn, best_of, compiled, need_memory, one_zone, pointer

WHOLE = 1 << 31


@kernel
def take_rows(mem, order, rows):
    """Blocks of movable pages from zone 0 as long as there are any."""
    for i in range(rows.size):
        index = take_smallest(mem, ZERO, ZERO, order, MOVABLE)
        mem.pages[index].state = USED | order
        rows[i] = index


@kernel
def free_rows(mem, rows):
    """Each back to the lists of its pageblock's type."""
    for i in range(rows.size):
        index = np.uint64(rows[i])
        order = np.uint64(mem.pages[index].state) & ORDER_BITS
        mem.pages[index].state = ZERO
        free_one(mem, index, ZERO, order, block_type(mem, index), False)


class Rows:
    """Side of a comparison that has rows of pages in its hands."""

    def rows(self, rows):
        return rows


class Model(Rows):
    """The model's kernels, without requests, per-CPU lists and folios."""

    def __init__(self, size: str, order: int = 0) -> None:
        self.mem, self.order = one_zone(size), np.uint64(order)

    def alloc(self, count):
        rows = np.empty(count, np.uint32)
        take_rows(self.mem.state, self.order, rows)
        return rows

    def free(self, rows):
        free_rows(self.mem.state, rows)


class Twin(Rows):
    """The C twin's zone: the same lists on the same records."""

    def __init__(self, n_pages: int) -> None:
        self.library = compiled("buddy")
        self.library.zone_new.restype = ctypes.c_void_p
        self.zone = ctypes.c_void_p(self.library.zone_new(ctypes.c_uint64(n_pages)))

    def alloc(self, count):
        rows = np.empty(count, np.uint32)
        self.library.zone_alloc(self.zone, ctypes.c_int(0), ctypes.c_uint64(count), pointer(rows))
        return rows

    def free(self, rows):
        self.library.zone_free(self.zone, ctypes.c_uint64(rows.size), pointer(rows))

    def __del__(self):
        self.library.zone_delete(self.zone)


def buddy_churn(size: str, batch: int) -> Churn:
    """Churn of a zone that is full."""
    model = Model(size)
    n_pages = model.mem.pfns.n_pages
    return Churn(model, Twin(n_pages), n_pages, batch)


class BulkOrder0:
    """All pages of a free zone, one by one, in a new memory or after random frees of all of them."""

    # Bar: 30 M pages/s, for the zone of 16 GiB.
    at_least = 30
    unit = "M pages/s"
    params = (["new", "used before"],)
    param_names = ("memory",)
    timeout = 300
    size, quick_size = "16GiB", "1GiB"
    turns = 5

    def setup(self, memory):
        need_memory(1 << 30)
        self.model = Model(self.size)
        self.n_pages = self.model.mem.pfns.n_pages
        if memory == "used before":
            self.model.free(np.random.default_rng(0).permutation(self.model.alloc(self.n_pages)))

    def track_rate(self, memory):
        best, start = np.inf, self.model.mem
        for _ in range(self.turns):
            self.model.mem = start.copy()
            best = min(best, *best_of(1, partial(self.model.alloc, self.n_pages)))
        return self.n_pages / best / 1e6


class RandomFreeAllocAgainstC:
    """Random frees and as many allocations: share of the C twin's rate on the same operations."""

    # Bar: 0.8.
    at_least = 0.8
    unit = "share of the C twin's rate"
    params = (["256MiB", "4GiB", "16GiB"], ["4096 pages", "half the zone"])
    param_names = ("zone", "batch")
    timeout = 300

    def setup(self, zone, batch):
        self.few = batch == "4096 pages"
        self.churn = buddy_churn(zone, 4096 if self.few else WHOLE)

    def track_share(self, zone, batch):
        model, twin = self.churn.times(turns=64 if self.few else 5)
        return twin / model


class ZoneSize:
    """Random free + alloc in batches of 4096 as the zone outgrows the caches."""

    unit = "ns a pair"
    params = (["1GiB", "4GiB", "16GiB", "64GiB"],)
    param_names = ("size",)
    timeout = 300

    def setup(self, size):
        need_memory(4 << 30)
        self.churn = buddy_churn(size, 4096)

    def track_model(self, size):
        return self.churn.times(64)[0] * 1e9 / self.churn.batch

    def track_c_twin(self, size):
        return self.churn.times(64)[1] * 1e9 / self.churn.batch


class Order9:
    """All of a zone in blocks of 2 MiB, then back."""

    unit = "M blocks/s"
    size = "16GiB"

    def setup(self):
        self.model = Model(self.size, order=9)

    def track_alloc_free(self):
        n_blocks = self.model.mem.pfns.n_pages >> 9
        (time,) = best_of(20, lambda: self.model.free(self.model.alloc(n_blocks)))
        return n_blocks / time / 1e6
