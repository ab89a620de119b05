"""Helpers of the benchmarks: resident memory, warm kernels, C twins, and both sides of a ratio in one run.

A class with a bar states it as `at_least` or `at_most`, in its `unit`. `size` is what its setup builds, `turns` how
often each side of a ratio is timed; either may be set smaller on an object. The first value of a parameter is the
cheapest.
"""

import ctypes
import functools
import gc
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import memmodel as mm
from memmodel.state.sizing import Sysctls
from memmodel.units import parse_bytes

REFERENCE = Path(__file__).parents[1] / "reference"


class RunOnce:
    """Base of what takes seconds: asv calls it once a sample, and takes few samples."""

    number = 1
    rounds = 1
    repeat = (1, 3, 20.0)
    warmup_time = 0.0
    timeout = 600


def best_of(rounds: int, *calls: Callable[[], object]) -> list[float]:
    """Shortest wall time of each call, called in turn `rounds` times, so that what slows the machine meets them all."""
    gc.disable()
    try:
        best = [float("inf")] * len(calls)
        for _ in range(rounds):
            for i, call in enumerate(calls):
                start = time.perf_counter()
                call()
                best[i] = min(best[i], time.perf_counter() - start)
        return best
    finally:
        gc.enable()


# -- what a benchmark needs, or asv skips it ---------------------------------------------------------------------------


def skip_slow() -> None:
    """Skip where ASV_SKIP_SLOW=1 asks for a quick look."""
    if os.environ.get("ASV_SKIP_SLOW", "0") == "1":
        raise NotImplementedError("slow, and ASV_SKIP_SLOW is set")


def need_memory(n_bytes: int) -> None:
    """Skip where so much memory is not free: a machine that swaps measures its disk."""
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    available = next(int(row[1]) << 10 for row in rows if row[0] == "MemAvailable:")
    if available < n_bytes:
        raise NotImplementedError(f"{available >> 20} MiB of memory are free, {n_bytes >> 20} are needed")


def last_level_cache_bytes() -> int:
    """Size of the largest cache that the first core sees."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    if not sizes:
        raise NotImplementedError("this machine does not tell the sizes of its caches")
    return max(map(parse_bytes, sizes))


@functools.cache
def compiled(name: str) -> ctypes.CDLL:
    """The C file reference/NAME.c, compiled for this machine."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise NotImplementedError("there is no gcc to compile the C twin with")
    with tempfile.TemporaryDirectory(prefix="memmodel-bench-") as folder:
        library = f"{folder}/{name}.so"
        subprocess.run(
            [gcc, "-O3", "-march=native", "-shared", "-fPIC", REFERENCE / f"{name}.c", "-o", library], check=True
        )
        return ctypes.CDLL(library)  # stays loaded without its file


def pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    """An array's first byte, as C takes it."""
    return ctypes.c_void_p(array.ctypes.data)


# -- memories ----------------------------------------------------------------------------------------------------------


def one_zone(size: int | str, *, contents: bool = False, kernel: str = "6.12.117") -> mm.PhysicalMemory:
    """A made-up machine with a single zone whose last page can be allocated, and frees reach the buddy lists at once.

    Contents are written to, since zeros never touched are not resident.
    """
    sysctls = Sysctls(min_free_kbytes=0, watermark_boost_factor=0, pcp=False)
    mem = mm.PhysicalMemory(
        mm.Geometry(arch="generic", kernel=kernel), size, contents=contents, sysctls=sysctls, seed=0
    )
    mem.state.zones["stat_threshold"] = 0  # a full zone has to know of each page that comes back
    mem.contents[:] = 1
    return mem


def machine(size: int | str) -> mm.PhysicalMemory:
    """A made-up machine with a single zone, and the watermarks, per-CPU lists and thresholds that a kernel gives it."""
    return mm.PhysicalMemory(mm.Geometry(arch="generic"), size, seed=0)


def half_free(mem: mm.PhysicalMemory) -> npt.NDArray[np.int64]:
    """Fill the memory with single pages and free a random half of them; the handles that are left."""
    folios = mm.alloc_pages(mem, order=0, count=mem.pfns.n_pages)
    folios = np.random.default_rng(0).permutation(folios)
    mm.free_pages(mem, folios[: folios.size // 2])
    return folios[folios.size // 2 :]


@functools.cache
def warm_kernels() -> None:
    """Compile every kernel that a mechanism calls, or load it from the cache."""
    mem = one_zone("8MiB", contents=True)
    folios = mm.alloc_pages(mem, order=0, count=8)
    mm.inject_poison(mem, mem.pfn(folios[:1]))
    mm.folio_mc_copy(mem, folios[4:], folios[:4], engine="fast_string")
    mm.run_memory_failure_work(mem)
    mm.free_pages(mem, folios)
    mem.check()
    mem.to_procfs()


# -- the model beside a C twin -----------------------------------------------------------------------------------------


class Churn:
    """Random single pages freed and as many allocated, again and again, by the model and by its C twin.

    Either side has `alloc(count)`, which gives an array, `free(array)`, and `rows(array)`: which pages these are.
    """

    def __init__(self, model: Any, twin: Any, n_folios: int, batch: int) -> None:
        warm_kernels()
        need_memory(1 << 30)
        self.sides = (model, twin)
        self.held = [side.alloc(n_folios) for side in self.sides]
        self.rng = np.random.default_rng(0)
        self.batch = min(batch, n_folios // 2)

    def turn(self) -> list[float]:
        """Time of each side, s."""
        places = self.rng.choice(self.held[0].size, self.batch, replace=False, shuffle=True)
        times = []
        for side, held in zip(self.sides, self.held, strict=True):
            items, got = held[places], []
            times += best_of(
                1, lambda side=side, items=items, got=got: (side.free(items), got.append(side.alloc(self.batch)))
            )
            held[places] = got[0]
        return times

    def times(self, turns: int) -> tuple[float, float]:
        """Shortest time of the model and of the twin; each turn frees other pages."""
        model, twin = np.min([self.turn() for _ in range(turns)], axis=0)
        if not np.array_equal(*(side.rows(held) for side, held in zip(self.sides, self.held, strict=True))):
            raise AssertionError("the C twin gave other pages than the model: the comparison says nothing")
        return float(model), float(twin)
