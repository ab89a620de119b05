"""Allocation and freeing through the buddy lists: pages a second, and share of the C twin's rate."""

import ctypes
from functools import partial

import numpy as np

import memmodel as mm

from . import best_of, compiled, need_memory, one_zone, pointer, warm_kernels


class Twin:
    """The C twin's zone: the same lists on the same records, without a table of folios."""

    def __init__(self, n_pages: int) -> None:
        self.library = compiled("buddy")
        self.library.zone_new.restype = ctypes.c_void_p
        self.zone = ctypes.c_void_p(self.library.zone_new(ctypes.c_uint64(n_pages)))

    def alloc(self, order, pfns):
        self.library.zone_alloc(self.zone, ctypes.c_int(order), ctypes.c_uint64(pfns.size), pointer(pfns))

    def free(self, pfns):
        self.library.zone_free(self.zone, ctypes.c_uint64(pfns.size), pointer(pfns))

    def __del__(self):
        self.library.zone_delete(self.zone)


class Churn:
    """Random single pages freed and as many allocated, again and again, on the model and on the twin."""

    def __init__(self, size: str, batch: int) -> None:
        warm_kernels()
        need_memory(1 << 30)
        self.mem = one_zone(size)
        self.folios = mm.alloc_pages(self.mem, order=0, count=self.mem.pfns.n_pages)
        self.pfns = np.empty(self.folios.size, np.uint32)
        self.twin = Twin(self.folios.size)
        self.twin.alloc(0, self.pfns)
        self.rng = np.random.default_rng(0)
        self.batch = min(batch, self.folios.size // 2)
        self.draw()

    def draw(self) -> None:
        """Which folios go next, as the arrays that either side takes."""
        self.places = self.rng.choice(self.folios.size, self.batch, replace=False, shuffle=True)
        self.handles, self.pfns_freed = self.folios[self.places], self.pfns[self.places]
        self.pfns_got = np.zeros(self.batch, np.uint32)

    def model(self) -> None:
        mm.free_pages(self.mem, self.handles)
        self.folios[self.places] = mm.alloc_pages(self.mem, order=0, count=self.batch)

    def c_twin(self) -> None:
        self.twin.free(self.pfns_freed)
        self.twin.alloc(0, self.pfns_got)
        self.pfns[self.places] = self.pfns_got

    def times(self, turns: int) -> tuple[float, float]:
        """Shortest time of each side; each turn frees other folios."""
        both = []
        for _ in range(turns):
            self.draw()
            both.append(best_of(1, self.model, self.c_twin))
        if not np.array_equal(self.mem.index(self.mem.pfn(self.folios)), self.pfns):
            raise AssertionError("the C twin gave other pages than the model: the comparison says nothing")
        model, twin = np.min(both, axis=0)
        return float(model), float(twin)


class BulkOrder0:
    """All pages of a free zone in one request."""

    # Bar: 30 M pages/s, for the zone of 16 GiB.
    at_least = 30
    unit = "M pages/s"
    params = (["new", "folio table grown", "used before"],)
    param_names = ("memory",)
    timeout = 300
    size, quick_size = "16GiB", "1GiB"

    def setup(self, memory):
        warm_kernels()
        need_memory(1 << 30)
        self.mem = one_zone(self.size)
        n_pages = self.mem.pfns.n_pages
        if memory == "folio table grown":
            self.mem.reserve_folios(n_pages)
            self.mem.state.folios.view(np.uint32)[:] = 0  # resident
        if memory == "used before":  # list order and unused folio slots are as random frees left them
            folios = mm.alloc_pages(self.mem, order=0, count=n_pages)
            mm.free_pages(self.mem, np.random.default_rng(0).permutation(folios))

    def track_rate(self, memory):
        n_pages = self.mem.pfns.n_pages
        best = np.inf
        for _ in range(5):
            request = partial(mm.alloc_pages, self.mem.copy(), order=0, count=n_pages)
            best = min(best, *best_of(1, request))
        return n_pages / best / 1e6


class RandomFreeAllocAgainstC:
    """Random frees and as many allocations through the API: share of the C twin's rate on the same operations.

    The twin has no handles to check and no table of folios; in a small zone, all in the caches, that is what is left.
    """

    # Bar: 0.8.
    at_least = 0.8
    unit = "share of the C twin's rate"
    params = (["256MiB", "4GiB", "16GiB"], ["4096 folios", "half the zone"])
    param_names = ("zone", "request")
    timeout = 300

    def setup(self, zone, request):
        self.few = request == "4096 folios"
        self.churn = Churn(zone, 4096 if self.few else 1 << 31)

    def track_share(self, zone, request):
        model, twin = self.churn.times(turns=64 if self.few else 5)
        return twin / model


class ZoneSize:
    """Random free + alloc in requests of 4096 as the zone outgrows the caches."""

    unit = "ns a pair"
    params = (["1GiB", "4GiB", "16GiB", "64GiB"],)
    param_names = ("size",)
    timeout = 300

    def setup(self, size):
        need_memory(4 << 30)
        self.churn = Churn(size, 4096)

    def track_model(self, size):
        return self.churn.times(64)[0] * 1e9 / self.churn.batch

    def track_c_twin(self, size):
        return self.churn.times(64)[1] * 1e9 / self.churn.batch


class Order9:
    """All of a zone in THPs, then back."""

    unit = "M folios/s"
    size = "16GiB"

    def setup(self):
        warm_kernels()
        self.mem = one_zone(self.size)

    def track_alloc_free(self):
        n_folios = self.mem.pfns.n_pages >> 9
        (time,) = best_of(20, lambda: mm.free_pages(self.mem, mm.alloc_pages(self.mem, order=9, count=n_folios)))
        return n_folios / time / 1e6


class SingleRequest:
    """One folio a call: what a call costs in Python."""

    unit = "us a pair"
    params = ([0, 9],)
    param_names = ("order",)
    size = "1GiB"

    def setup(self, order):
        warm_kernels()
        self.mem = one_zone(self.size)

    def track_alloc_free(self, order):
        def pairs():
            for _ in range(1000):
                mm.free_pages(self.mem, mm.alloc_pages(self.mem, order=order))

        return best_of(5, pairs)[0] * 1e6 / 1000
