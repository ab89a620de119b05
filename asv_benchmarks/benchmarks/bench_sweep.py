"""Sweeps: ten thousand points of a study, and what a second thread brings."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar

import numba
import numpy as np

import memmodel as mm

from . import RunOnce, best_of, one_zone, warm_kernels

GRID = {
    "folio_order": list(range(19)),
    "batch": ["page", "extent"],
    "preempt": ["none", "voluntary", "lazy", "full"],
    "engine": ["fragile", "fast_string", "memcpy"],
    "poison_per_gib": np.linspace(0, 20, 22).tolist(),
}
TLB_GRID = {
    "n_folios": [2**n for n in range(20)],
    "batch_pages": [2**n for n in range(10)],
    "n_cpus": [1, 2, 4, 8, 16, 32, 64, 128, 192, 256],
    "kernel": ["6.1", "6.12.117"],
    "folio_order": [0, 2, 9],
}
SECOND_CORE_FREE = 1.7  # an ALU loop's speed-up, at least


class StudyGrid(RunOnce):
    """A study's grid, from the call to the Dataset."""

    unit = "s"
    study = ""
    grid: ClassVar[dict[str, list]] = {}

    def setup(self):
        mm.run_study(self.study, seed=0)

    def seconds(self):
        return best_of(3, partial(mm.run_study, self.study, self.grid, seed=0, progress=False))[0]


class TenThousandPoints(StudyGrid):
    """10,032 points of folio_copy."""

    # Bar: 5 s.
    at_most = 5
    study, grid = "folio_copy", GRID

    def track_run_study(self):
        return self.seconds()


class TlbBatchGrid(StudyGrid):
    """12,000 points of tlb_batch."""

    # Bar: 5 s.
    at_most = 5
    study, grid = "tlb_batch", TLB_GRID

    def track_run_study(self):
        return self.seconds()


@numba.njit(nogil=True)
def alu_loop(n, x):
    """Nothing but registers: what a second core is worth on this machine."""
    for _ in range(n):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
    return x


def fragment(params, seeds, memory):
    """Points of 2 ms, nearly all in kernels: fill a memory with single pages, free all but the last `stride`."""
    free = []
    mem = memory.copy()
    for stride in params["stride"].tolist():
        mem.restore(memory)
        folios = mm.alloc_pages(mem, order=0, count=mem.pfns.n_pages)
        mm.free_pages(mem, folios[:-stride])
        free.append(mem.state.zones["free_pages"].sum())
    return {"free_pages": np.array(free, np.float64)}


class TwoThreads(RunOnce):
    """Speed-up of a sweep on two threads as a share of a pure ALU loop's, measured in the same run.

    The loop's is 2 on two idle cores and less where they are shared: the share is what the model is to answer for. Near
    1 there is no second core to use, and a sweep that does not scale at all would have a fine share: then it is nan.
    """

    # Bar: 1.8 of 2.
    at_least = 0.9
    unit = "share of an ALU loop's speed-up"
    params = (["buddy", "folio_copy"],)
    param_names = ("points",)
    size = "256MiB"
    n_points = 64  # a second or two of work: the Dataset around it is made on one thread
    n_loops = 50_000_000
    turns = 5

    def setup(self, points):
        if len(os.sched_getaffinity(0)) < 2:
            raise NotImplementedError("there is one CPU only")
        warm_kernels()
        self.memory = one_zone(self.size)
        mm.run_study("folio_copy", memory=self.memory.copy(), seed=0)
        alu_loop(1, np.uint64(1))

    def sweep(self, points, workers):
        options = {"seed": 0, "progress": False, "workers": workers}
        if points == "buddy":
            block, outputs = partial(fragment, memory=self.memory), {"free_pages": {"units": "1"}}
            mm.sweep(block, {"stride": [2, 4, 8, 16]}, outputs=outputs, replicates=self.n_points // 4, **options)
        else:
            poison = np.linspace(0, 100, self.n_points).tolist()
            mm.run_study("folio_copy", {"folio_order": 0, "poison_per_gib": poison}, memory=self.memory, **options)

    def loops(self, workers):
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(alu_loop, [self.n_loops] * 4, [np.uint64(1)] * 4))

    def speed_ups(self, points):
        """Of the ALU loop and of the sweep."""
        calls = [partial(self.loops, n) for n in (1, 2)] + [partial(self.sweep, points, n) for n in (1, 2)]
        alu_one, alu_two, one, two = best_of(self.turns, *calls)
        return alu_one / alu_two, one / two

    def track_share(self, points):
        alu, sweep = self.speed_ups(points)
        return sweep / alu if alu >= SECOND_CORE_FREE else float("nan")

    def track_speed_up(self, points):
        """Of the sweep as it is."""
        return self.speed_ups(points)[1]

    def track_alu_speed_up(self, points):
        return self.speed_ups(points)[0]
