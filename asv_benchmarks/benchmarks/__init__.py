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


def one_zone(size: int | str, *, contents: bool = False) -> mm.PhysicalMemory:
    """A made-up machine with a single zone; contents are written to, since zeros never touched are not resident."""
    mem = mm.PhysicalMemory(mm.Geometry(arch="generic"), size, contents=contents, seed=0)
    mem.contents[:] = 1
    return mem


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
