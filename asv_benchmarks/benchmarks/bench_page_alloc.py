"""Requests and frees on a machine with watermarks and per-CPU lists: share of the C twin's rate, and folios a second.

A request for many folios is as many single ones in a row: what it saves is the call from Python.
"""

import ctypes
from functools import partial

import numpy as np

import memmodel as mm
from memmodel.state.layout import Kind, pcp_dtype, zone_dtype

from . import Churn, best_of, compiled, machine, need_memory, pointer, warm_kernels

RECORDS = {  # as the C twin lays them out
    "zones": np.dtype(
        [
            *((name, "i8") for name in ("free_pages", "free_cma", "free_highatomic")),
            ("watermark", "i8", (3,)),
            *((name, "i8") for name in ("watermark_boost", "stat_threshold")),
            ("nr_free", "u8", (16,)),
            *((name, "i8") for name in ("flags", "allocated", "freed")),
        ]
    ),
    "pcp": np.dtype(
        [
            *((name, "i8") for name in ("count", "high", "high_min", "high_max", "batch")),
            *((name, "i8") for name in ("free_count", "alloc_factor", "free_diff", "cma_diff", "flags")),
        ]
    ),
}
DTYPES = {"zones": zone_dtype, "pcp": pcp_dtype}
SHARED = {name: [field for field in RECORDS[name].names if field in dtype.names] for name, dtype in DTYPES.items()}
USED_SHARE = 3 / 4  # of a zone: per-CPU lists may keep an eighth, and watermarks a tenth of the smallest
WHOLE = 1 << 31
SLOT_BITS = 0xFFFFFFFF


class Model:
    """mm.alloc_pages and mm.free_pages."""

    def __init__(self, mem: mm.PhysicalMemory) -> None:
        self.mem = mem

    def alloc(self, count):
        return mm.alloc_pages(self.mem, order=0, count=count)

    def free(self, folios):
        mm.free_pages(self.mem, folios)

    def rows(self, folios):
        return self.mem.index(self.mem.pfn(folios))


class Twin:
    """The C twin on a copy of a machine's records; it works on handles, or on rows without a table of folios."""

    def __init__(self, mem: mm.PhysicalMemory, n_folios: int, handles: bool) -> None:
        params = mem.state.params
        if (mem.state.zones.size, mem.cpus, params.max_order, params.pageblock_order) != (1, 1, 10, 9):
            raise AssertionError("the C twin is made for one zone, one CPU, and x86's orders")
        library = compiled("page_alloc")
        self.handles = handles
        self.calls = (
            (library.alloc_folios, library.free_folios) if handles else (library.alloc_pages, library.free_pages)
        )
        copy = mem.copy()  # arrays of the same kind as the model's
        copy.reserve_folios(n_folios if handles else 0)
        self.state = copy.state
        self.records = {name: np.zeros(1, dtype) for name, dtype in RECORDS.items()}
        for name, fields in SHARED.items():
            for field in fields:
                self.records[name][field] = getattr(mem.state, name)[field]
        arrays = (self.state.pages, self.state.blocks, *self.records.values(), *self.state[5:8])
        self.memory = np.array([params.n_pages, *(array.ctypes.data for array in arrays)], np.uint64)

    def alloc(self, count):
        given = np.zeros(count, np.int64 if self.handles else np.uint32)
        self.calls[0](pointer(self.memory), ctypes.c_uint64(count), pointer(given))
        return given

    def free(self, given):
        self.calls[1](pointer(self.memory), ctypes.c_uint64(given.size), pointer(given))

    def rows(self, given):
        return self.state.folios["index"][given & SLOT_BITS] if self.handles else given

    def compare(self, mem: mm.PhysicalMemory) -> None:
        """Every record must be the model's; without handles there are no slots of live folios."""
        model, twin = mem.state, self.state
        listed = model.pages["state"] >> 4 != Kind.USED
        same = all(np.array_equal(model.pages[name], twin.pages[name]) for name in ("state", "pg_flags", "refcount"))
        same &= all(np.array_equal(model.pages[name][listed], twin.pages[name][listed]) for name in ("next", "prev"))
        same &= np.array_equal(model.lru, twin.lru)
        if self.handles:
            same &= np.array_equal(model.slots, twin.slots) and np.array_equal(model.folios, twin.folios)
        for name, fields in SHARED.items():
            same &= all(np.array_equal(getattr(model, name)[field], self.records[name][field]) for field in fields)
        if not same:
            raise AssertionError("the C twin came to another state than the model: the comparison says nothing")


def page_churn(size: str, batch: int, *, handles: bool = True, used_share: float = USED_SHARE) -> Churn:
    """Churn of a zone that is in use up to a share."""
    mem = machine(size)
    n_folios = int(mem.pfns.n_pages * used_share)
    return Churn(Model(mem), Twin(mem, n_folios, handles), n_folios, batch)


class RandomFreeAllocAgainstC:
    """Random single pages freed and as many allocated through the API: share of the C twin's rate.

    The twin brings in early what it will touch, as the model does. With handles it checks and gives them out as the
    model does, too; without, it is the allocator alone.
    """

    # Bar: 0.8.
    at_least = 0.8
    unit = "share of the C twin's rate"
    params = (["256MiB", "4GiB", "16GiB"], ["4096 folios", "half the zone"], ["handles", "no handles"])
    param_names = ("zone", "request", "twin")
    timeout = 300

    def setup(self, zone, request, twin):
        self.few = request == "4096 folios"
        self.churn = page_churn(zone, 4096 if self.few else WHOLE, handles=twin == "handles")

    def track_share(self, zone, request, twin):
        model, c_twin = self.churn.times(turns=64 if self.few else 5)
        model_side, twin_side = self.churn.sides
        twin_side.compare(model_side.mem)
        return c_twin / model


class Bulk:
    """Single pages for three quarters of a zone, through the CPU's list: one call of alloc_pages or alloc_pages_bulk.

    Folio slots are resident. Except in a new memory the same pages were freed before, in random order; in one that is
    drained the CPU's list was emptied then.
    """

    unit = "M pages/s"
    param_names = ("memory", "request")
    timeout = 300
    size, quick_size = "16GiB", "1GiB"
    turns = 5

    def setup(self, memory, request):
        warm_kernels()
        need_memory(2 << 30)
        self.request = getattr(mm, request)
        self.mem = machine(self.size)
        self.n_pages = int(self.mem.pfns.n_pages * USED_SHARE)
        self.mem.reserve_folios(self.n_pages)
        self.mem.state.folios.view(np.uint32)[:] = 0
        if memory != "new":
            folios = mm.alloc_pages(self.mem, count=self.n_pages)
            mm.free_pages(self.mem, np.random.default_rng(0).permutation(folios))
        if memory == "drained":
            mm.drain_all_pages(self.mem)

    def rate(self):
        best = np.inf
        for _ in range(self.turns):
            mem = self.mem.copy()
            best = min(best, *best_of(1, partial(self.request, mem, count=self.n_pages)))
            if mem.state.slots[0] != self.n_pages:
                raise AssertionError("not all pages were given")
        return self.n_pages / best / 1e6


class BulkOrder0(Bulk):
    """From a zone whose free blocks are large."""

    # Bar: 30 M pages/s, for the zone of 16 GiB.
    at_least = 30
    params = (["new", "drained"], ["alloc_pages", "alloc_pages_bulk"])

    def track_rate(self, memory, request):
        return self.rate()


class BulkOrder0AfterFrees(Bulk):
    """With an eighth of the zone, in random order, on the CPU's list: these pages are cache misses one by one."""

    params = (["not drained"], ["alloc_pages", "alloc_pages_bulk"])

    def track_rate(self, memory, request):
        return self.rate()


class Order9:
    """Three quarters of a zone in THPs, then back, through the CPU's THP lists."""

    # Bar: 5 M folios/s.
    at_least = 5
    unit = "M folios/s"
    size = "16GiB"
    turns = 20

    def setup(self):
        warm_kernels()
        self.mem = machine(self.size)

    def track_alloc_free(self):
        n_folios = int(self.mem.pfns.n_pages * USED_SHARE) >> 9
        (time,) = best_of(self.turns, lambda: mm.free_pages(self.mem, mm.alloc_pages(self.mem, 9, n_folios)))
        return n_folios / time / 1e6


class SingleRequest:
    """One folio a call: what a call costs in Python."""

    unit = "us a pair"
    params = ([0, 9],)
    param_names = ("order",)
    size = "1GiB"

    def setup(self, order):
        warm_kernels()
        self.mem = machine(self.size)

    def track_alloc_free(self, order):
        def pairs():
            for _ in range(1000):
                mm.free_pages(self.mem, mm.alloc_pages(self.mem, order=order))

        return best_of(5, pairs)[0] * 1e6 / 1000
