"""migrate_pages(): pages a second without contents, share of memcpy's rate with them."""

import ctypes
from functools import partial

import numpy as np

import memmodel as mm

from . import best_of, compiled, need_memory, pointer

PAGE = 4096
USED_SHARE = 3 / 8  # of a machine of two nodes: three quarters of the first


class There:
    """Folios of one order that go from node to node, and back the next time."""

    def __init__(self, size: int | str, order: int, kernel: str = "6.12.117", *, contents: bool = False) -> None:
        geometry = mm.Geometry(arch="generic", kernel=kernel)
        self.mem = mm.PhysicalMemory(geometry, size, nodes=2, cpus=2, contents=contents, seed=0)
        self.mem.contents[:] = 1
        count = int(self.mem.pfns.n_pages * USED_SHARE) >> order
        self.folios = mm.alloc_pages(self.mem, order, count)
        self.n_pages = count << order
        self.tlb = mm.Tlb(geometry, 2, [[0, 1]])
        self.node = 0

    def migrate(self, caller: str = "move_pages") -> None:
        self.node = 1 - self.node
        out = mm.migrate_pages(self.mem, self.folios, self.node, caller=caller, tlb=self.tlb)
        if out.nr_succeeded != self.n_pages:
            raise AssertionError("not all pages moved")


class SinglePages:
    """Without contents, all in one call."""

    unit = "M pages/s"
    kernel = ""
    timeout = 300
    size, turns = "4GiB", 7

    def setup(self):
        self.there = There(self.size, 0, self.kernel)
        self.there.migrate()

    def rate(self):
        return self.there.n_pages / best_of(self.turns, self.there.migrate)[0] / 1e6


class Order0(SinglePages):
    """512 a batch."""

    # Bar: 4 M pages/s.
    at_least = 4
    kernel = "6.12.117"

    def track_rate(self):
        return self.rate()


class Order0OneByOne(SinglePages):
    """As before 6.3: one by one, with an interrupt each."""

    kernel = "6.1"

    def track_rate(self):
        return self.rate()


class ContentsAgainstMemcpy:
    """Huge pages with their bytes: share of the rate of memcpy, folio by folio, from C."""

    # Bar: 0.85.
    at_least = 0.85
    unit = "share of memcpy's rate"
    timeout = 300
    size, turns = "1GiB", 7
    order = 9

    def setup(self):
        self.there = There(self.size, self.order, contents=True)
        need_memory(self.there.mem.contents.nbytes)
        self.there.migrate()

    def memcpy(self, rows):
        """As many folios between the halves of the memory."""
        mem = self.there.mem
        sources = rows * PAGE
        targets = (rows + np.uint64(mem.pfns.n_pages // 2)) * PAGE
        compiled("copy").copy_folios(
            pointer(mem.contents),
            ctypes.c_uint64(rows.size),
            pointer(targets),
            pointer(sources),
            ctypes.c_uint64(PAGE << self.order),
        )

    def track_share(self):
        n_folios = self.there.n_pages >> self.order
        rows = np.arange(n_folios, dtype=np.uint64) << np.uint64(self.order)
        ours, memcpy = best_of(self.turns, self.there.migrate, partial(self.memcpy, rows))
        return memcpy / ours
