"""Copies of folios: share of libc's rate, and where streaming past the caches begins to pay."""

import ctypes
from functools import partial

import numpy as np

import memmodel as mm
from memmodel.kernels import copying as kernels
from memmodel.mechanisms.copying import copy_rule
from memmodel.units import parse_bytes

from . import best_of, compiled, last_level_cache_bytes, need_memory, one_zone, pointer, warm_kernels

ORDERS = {"2MiB": 9, "4KiB": 0}
WRITERS = {"plain": 0, "streamed": kernels.LANES}
PAGE = 4096
BARS = {"2MiB": 0.95, "4KiB": 0.9}  # of memcpy's rate, by folio


class Batch:
    """Clean folios of one order, sources in the lower half of a memory and targets in the upper, and ways to copy."""

    def __init__(self, order: int, n_bytes: int) -> None:
        need_memory(3 * n_bytes)
        warm_kernels()
        self.folio_bytes = PAGE << order
        self.n_folios = n_bytes // self.folio_bytes
        self.n_bytes = self.n_folios * self.folio_bytes
        self.turns = max(5, min(200, (1 << 30) // self.n_bytes))  # small ones are noisy
        self.mem = one_zone(2 * self.n_bytes, contents=True)
        folios = mm.alloc_pages(self.mem, order, 2 * self.n_folios)
        folios = folios[np.argsort(self.mem.pfn(folios))]
        self.sources, self.targets = folios[: self.n_folios], folios[self.n_folios :]
        self.source_rows = np.arange(self.n_folios, dtype=np.uint64) << np.uint64(order)
        self.target_rows = self.source_rows + np.uint64(self.n_folios << order)
        self.n_pages = np.full(self.n_folios, 1 << order, np.uint64)
        self.results = kernels.new_outcomes(self.n_folios)
        self.source_bytes, self.target_bytes = self.source_rows * PAGE, self.target_rows * PAGE

    def folio_mc_copy(self) -> None:
        """As users call it, with its checks and outcome arrays."""
        mm.folio_mc_copy(self.mem, self.targets, self.sources, engine="fast_string")

    def copy_folios(self, writer: str) -> None:
        """The compiled loop alone."""
        rule, lanes = copy_rule(self.mem.geometry), np.zeros((2, WRITERS[writer]), np.uint64)
        rows = self.target_rows, self.source_rows, self.n_pages
        kernels.copy_folios(self.mem.state, rule, np.uint64(0), *rows, lanes, self.results)

    def memcpy(self) -> None:
        """Folio by folio with libc's memcpy, from C."""
        compiled("copy").copy_folios(
            pointer(self.mem.contents),
            ctypes.c_uint64(self.n_folios),
            pointer(self.target_bytes),
            pointer(self.source_bytes),
            ctypes.c_uint64(self.folio_bytes),
        )

    def copyto(self) -> None:
        """Everything in one np.copyto."""
        half = self.n_bytes // PAGE
        np.copyto(self.mem.contents[half:], self.mem.contents[:half])


class FoliosAgainstMemcpy:
    """Rate of folio_mc_copy() as a share of memcpy's, folio by folio."""

    at_least = BARS
    unit = "share of memcpy's rate"
    params = (list(ORDERS), ["8MiB", "64MiB"])
    param_names = ("folio", "batch")
    timeout = 300
    turns = 15

    def setup(self, folio, batch):
        self.batch = Batch(ORDERS[folio], parse_bytes(batch))
        self.batch.memcpy()

    def track_mechanism(self, folio, batch):
        ours, memcpy = best_of(self.turns, self.batch.folio_mc_copy, self.batch.memcpy)
        return memcpy / ours

    def track_kernel(self, folio, batch):
        """Without what the mechanism checks and returns, whatever the size through the caches."""
        ours, memcpy = best_of(self.turns, partial(self.batch.copy_folios, "plain"), self.batch.memcpy)
        return memcpy / ours


class BeyondTheCache:
    """A batch larger than the last-level cache against the two plain ways to copy it."""

    params = (list(ORDERS),)
    param_names = ("folio",)
    timeout = 300
    turns = 7
    size: int | str = 0  # bytes; 0: twice the last-level cache

    def setup(self, folio):
        self.batch = Batch(ORDERS[folio], parse_bytes(self.size or 2 * last_level_cache_bytes()))
        self.batch.memcpy()

    def share(self, other):
        ours, theirs = best_of(self.turns, self.batch.folio_mc_copy, other)
        return theirs / ours


class BeyondTheCacheAgainstCopyto(BeyondTheCache):
    """Against one np.copyto of the whole: at this size libc streams too."""

    unit = "share of np.copyto's rate"
    # Bar: 0.9.
    at_least = 0.9

    def track_share(self, folio):
        return self.share(self.batch.copyto)


class BeyondTheCacheAgainstMemcpy(BeyondTheCache):
    """Against memcpy folio by folio, which brings every target line into the caches first."""

    unit = "share of memcpy's rate"
    # Bar: 1.3.
    at_least = 1.3

    def track_share(self, folio):
        return self.share(self.batch.memcpy)


class SwitchPoint:
    """Rate of the compiled loop by batch size; STREAM_FROM_BYTES of memmodel/mechanisms/copying.py is chosen by it."""

    params = (list(ORDERS), list(WRITERS), [f"{1 << n}MiB" for n in range(10)])
    param_names = ("folio", "writer", "batch")
    unit = "GiB/s"
    timeout = 300

    def setup(self, folio, writer, batch):
        self.batch = Batch(ORDERS[folio], max(parse_bytes(batch), PAGE << ORDERS[folio]))

    def track_rate(self, folio, writer, batch):
        (time,) = best_of(self.batch.turns, partial(self.batch.copy_folios, writer))
        return self.batch.n_bytes / time / (1 << 30)


class SmallestStreamed:
    """Smallest batch from which on streaming is the faster way at every larger size too."""

    params = (list(ORDERS),)
    param_names = ("folio",)
    unit = "MiB"
    timeout = 600
    sizes_mib = tuple(1 << n for n in range(10))

    def track_size(self, folio):
        smallest = float("nan")
        for mib in reversed(self.sizes_mib):
            if mib << 20 < PAGE << ORDERS[folio]:
                break
            batch = Batch(ORDERS[folio], mib << 20)
            plain, streamed = best_of(batch.turns, *(partial(batch.copy_folios, writer) for writer in WRITERS))
            if streamed > plain:
                break
            smallest = mib
        return smallest


class OutcomesAlone:
    """What a page costs where no bytes move: a memory without contents."""

    params = (["clean", "100 lines a GiB"],)
    param_names = ("errors",)
    unit = "ns a page"
    size = "4GiB"

    def setup(self, errors):
        warm_kernels()
        self.mem = one_zone(self.size)
        folios = mm.alloc_pages(self.mem, 0, self.mem.pfns.n_pages)
        self.sources, self.targets = np.split(folios, 2)
        if errors != "clean":
            mm.inject_poison(self.mem, rate_per_gib=100, seed=0)

    def track_folio_mc_copy(self, errors):
        copy = partial(mm.folio_mc_copy, self.mem, self.targets, self.sources, engine="fast_string")
        (time,) = best_of(3, copy)
        return time * 1e9 / self.sources.size
