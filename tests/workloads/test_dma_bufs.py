"""The compiled stream of dma-bufs against the same buffers one by one."""

from collections import Counter, deque

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED
from memmodel.memory import PhysicalMemory
from memmodel.workloads.dma_bufs import run_dma_bufs
from tests.reference import views

SIZE, N_BUFFERS = ("32MiB", 60) if JIT_ENABLED else ("8MiB", 12)


def one_by_one(mem, sizes, level):
    """The twin: dmabuf_alloc() and dmabuf_free() by hand."""
    page, held, live = mem.geometry.page_size_bytes, 0, deque()
    orders, n_failed = Counter(), 0

    def end(buffer):
        nonlocal held
        held -= buffer.size_bytes // page
        mm.dmabuf_free(mem, buffer)

    for size in sizes.tolist():
        while live and held + size > level:
            end(live.popleft())
        buffer = mm.dmabuf_alloc(mem, size * page)
        if buffer is None:
            n_failed += 1
            continue
        orders.update(buffer.orders.tolist())
        held += size
        live.append(buffer)
    while live:
        end(live.popleft())
    return orders, n_failed


def used_memory(page_size, limit, kernel, used):
    """A memory of which a share is used, in single pages and blocks all over."""
    geo = Geometry(page_size=page_size, arch="arm64", kernel=kernel, page_block_max_order=limit)
    mem = PhysicalMemory(geo, SIZE, seed=0)
    mm.run_workload(mem, "2*anonymous+kernel", fill=0.9, seed=1)
    out = mm.run_workload(mem, "pinned", fill=0.9, seed=2)
    folios = out.folios.copy()
    np.random.default_rng(0).shuffle(folios)
    n_free = int(mem.state.zones["managed"].sum()) - int(used * mem.pfns.n_pages)
    mm.free_pages(mem, folios[:n_free])
    return mem


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
@pytest.mark.parametrize(("page_size", "limit"), [("4KiB", 10), ("4KiB", 3), ("16KiB", 7)])
@pytest.mark.parametrize("used", [0.3, 0.7])
def test_run_dma_bufs__as_one_by_one(page_size, limit, kernel, used):
    mem = used_memory(page_size, limit, kernel, used)
    other = mem.copy()
    page = mem.geometry.page_size_bytes
    sizes = np.array([1, 3, 40, 257, 1100], np.int64) * 4096 // page + 1
    drawn = np.random.default_rng(3).choice(sizes, N_BUFFERS)
    level = int(mem.state.zones["free_pages"].sum()) * 2 // 3
    run = run_dma_bufs(mem, drawn, level)
    orders, n_failed = one_by_one(other, drawn, level)
    mem.check()
    assert views.free_lists(mem) == views.free_lists(other)
    assert mem.vmstat() == other.vmstat()
    assert (run.n_bufs, run.n_failed) == (drawn.size - n_failed, n_failed)
    if not n_failed:  # a buffer that fails gives back what the twin does not tell
        assert run.folios == {order: orders[order] for order in (8, 4, 0)}


@pytest.mark.parametrize(
    ("sizes", "level", "message"),
    [
        ([0, 1], 9, "whole numbers of pages, 1 or more"),
        ([-1], 9, "whole numbers of pages, 1 or more"),
        ([1.5], 9, "whole numbers of pages, 1 or more"),
        ([[1]], 9, "in one row"),
        ([1], -1, "level -1"),
        ([1], "all", "level 'all'"),
    ],
)
def test_run_dma_bufs__refused(sizes, level, message):
    mem = views.plain_memory(Geometry(arch="generic"), "4MiB", seed=0)
    views.refused(mem, message, run_dma_bufs, sizes, level)


def test_run_dma_bufs__larger_than_memory():
    mem = views.plain_memory(Geometry(arch="generic"), "4MiB", seed=0)
    run = run_dma_bufs(mem, np.array([2000, 300, 1024, 1], np.int64), 600)
    assert (run.n_bufs, run.n_failed) == (3, 1)
    assert run.folios == {8: 4 + 1 + 4, 4: 2, 0: 12 + 1}
    assert run.failed_requests == {8: 1, 4: 1, 0: 1}
    mem.check()
    assert int(mem.state.zones["free_pages"].sum()) == 1024
