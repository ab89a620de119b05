"""memory_failure() by kind of page, soft offlining, and taking errors back: calls a second from Python."""

from functools import partial

import numpy as np

import memmodel as mm
from memmodel.state.failure_layout import MfFlag

from . import best_of, machine, warm_kernels

N_TASKS = 8


class Calls:
    """Random pages of a machine, each once, on a copy of it."""

    unit = "thousand calls/s"
    timeout = 300
    size, n_requests = "1GiB", 5000

    def prepare(self, kind):
        warm_kernels()
        self.mem = machine(self.size)
        self.folios = np.empty(0, np.int64)
        if kind == "hugetlb":
            self.folios = mm.alloc_hugetlb(self.mem, self.mem.pfns.n_pages >> 10)
        elif kind != "free":
            order = {"anon": 0, "thp": 9}[kind]
            self.folios = mm.alloc_pages(self.mem, order, self.mem.pfns.n_pages * 3 // 4 >> order)
            mm.set_folio(self.mem, self.folios, mapping="anon", mapped_by=3)
        pool = (
            self.mem.pfn(self.folios[self.folios >= 0])
            if self.folios.size
            else self.mem.pfns.pfn(np.arange(self.mem.pfns.n_pages))
        )
        self.pfns = np.random.default_rng(0).permutation(pool)[: self.n_requests].tolist()

    def rate(self, turn):
        best = np.inf
        for _ in range(3):
            mem = self.mem.copy()
            best = min(best, *best_of(1, partial(turn, mem)))
        return len(self.pfns) / best / 1e3


class MemoryFailure(Calls):
    """One error a page; those who map it are told."""

    params = (["free", "anon", "thp", "hugetlb"],)
    param_names = ("page",)

    def setup(self, page):
        self.prepare(page)
        self.tasks = [mm.Task(f"task{i}", i + 1, i, 0x7F0000000000) for i in range(N_TASKS)]

    def track_rate(self, page):
        def turn(mem):
            for pfn in self.pfns:
                mm.memory_failure(mem, pfn, tasks=self.tasks)

        return self.rate(turn)


class SoftOffline(Calls):
    """Pages in use moved away, and kept from others."""

    def setup(self):
        self.prepare("anon")

    def track_rate(self):
        def turn(mem):
            for pfn in self.pfns:
                mm.soft_offline_page(mem, pfn)

        return self.rate(turn)


class Unpoison(Calls):
    """Injected errors in free pages taken back."""

    def setup(self):
        self.prepare("free")
        for pfn in self.pfns:
            mm.memory_failure(self.mem, pfn, flags=MfFlag.SW_SIMULATED)

    def track_rate(self):
        def turn(mem):
            for pfn in self.pfns:
                mm.unpoison_memory(mem, pfn)

        return self.rate(turn)
