"""The state as a whole: building, checking, copying, saving, and the memory it takes."""

import tempfile
from functools import partial
from pathlib import Path

import memmodel as mm

from . import RunOnce, best_of, half_free, need_memory, one_zone, skip_slow, warm_kernels

GIB = 1 << 30


class Build(RunOnce):
    """A made-up machine, all free."""

    params = (["16MiB", "1GiB", "16GiB", "128GiB"],)
    param_names = ("size",)

    def setup(self, size):
        warm_kernels()
        need_memory(2 * GIB)

    def time_build(self, size):
        one_zone(size)


class BuildTerabyte(RunOnce):
    """268 million pages; takes 3.2 GB."""

    # Bar: 15 s.
    at_most = 15
    unit = "s"
    size = "1TiB"

    def setup(self):
        skip_slow()
        need_memory(6 * GIB)
        warm_kernels()

    def track_build(self):
        return best_of(1, partial(one_zone, self.size))[0]


class BytesAPage:
    """All that grows with memory, contents and live folios apart."""

    # Bar: 12.25 bytes.
    at_most = 12.25
    unit = "bytes a page"
    size = "16GiB"

    def track_bytes(self):
        mem = one_zone(self.size)
        return mem.nbytes["pages"] / mem.pfns.n_pages


class BytesAFolio:
    """The table of folios, over the folios that live."""

    # Bar: 16 bytes.
    at_most = 16
    unit = "bytes a live folio"
    params = (["one request", "requests of 4096"],)
    param_names = ("allocated_by",)
    size = "16GiB"

    def track_bytes(self, allocated_by):
        mem = one_zone(self.size)
        n_folios = mem.pfns.n_pages
        request = n_folios if allocated_by == "one request" else 4096
        for _ in range(n_folios // request):
            mm.alloc_pages(mem, order=0, count=request)
        return mem.nbytes["folios"] / n_folios


class Fragmented(RunOnce):
    """What is done to a state whole, half of its single pages free at random."""

    params = (["64MiB", "1GiB", "16GiB"],)
    param_names = ("size",)

    def setup(self, size):
        self.folder = tempfile.TemporaryDirectory(prefix="memmodel-bench-")
        warm_kernels()
        need_memory(2 * GIB)
        self.mem = one_zone(size)
        half_free(self.mem)
        self.path = Path(self.folder.name, "state.npz")
        self.mem.save(self.path)

    def teardown(self, size):
        self.folder.cleanup()

    def time_check(self, size):
        self.mem.check()

    def time_copy(self, size):
        self.mem.copy()

    def time_save(self, size):
        self.mem.save(self.path)

    def time_load(self, size):
        mm.load(self.path)

    def time_to_procfs(self, size):
        self.mem.to_procfs()


class PeakMemory(RunOnce):
    """Peak of the whole process, half of the memory in THPs; subtract `peakmem_reference`."""

    params = (["1GiB", "64GiB"],)
    param_names = ("size",)

    def setup(self, size):
        self.folder = tempfile.TemporaryDirectory(prefix="memmodel-bench-")
        need_memory(4 * GIB)
        warm_kernels()
        self.mem = one_zone(size)
        mm.alloc_pages(self.mem, order=9, count=self.mem.pfns.n_pages >> 10)
        self.path = Path(self.folder.name, "state.npz")
        self.mem.save(self.path)

    def teardown(self, size):
        self.folder.cleanup()

    def peakmem_reference(self, size):
        pass

    def peakmem_build(self, size):
        one_zone(size)

    def peakmem_copy(self, size):
        self.mem.copy()

    def peakmem_save(self, size):
        self.mem.save(self.path)

    def peakmem_load(self, size):
        mm.load(self.path)
