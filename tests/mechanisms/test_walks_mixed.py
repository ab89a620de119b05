"""No reservation, failure or undo loses a page: walks that mix all mechanisms; what such walks have found."""

from collections import Counter

import numpy as np
import pytest

import memmodel as mm
from memmodel.errors import InvariantError
from memmodel.jit import JIT_ENABLED
from memmodel.state.layout import Kind
from tests.conftest import LONG
from tests.mechanisms.walks import MACHINES, Walk
from tests.reference.views import plain_memory

STEPS = 3000 if LONG else 150 if JIT_ENABLED else 20
MOST_REFUSED = 0.3
walked = Counter()


@pytest.mark.parametrize("name", MACHINES)
def test_walk__the_laws_hold_after_each_step(name):
    walk = Walk(MACHINES[name], seed=7).run(STEPS)
    assert walk.n_steps == STEPS
    assert walk.counts["refused"] <= MOST_REFUSED * STEPS
    walked.update(walk.counts)


@pytest.mark.skipif(not JIT_ENABLED, reason="too few steps without the JIT")
def test_walk__every_mechanism_did_something():
    if not walked["compaction"]:
        pytest.skip("counts of the walks before")
    wanted = (
        *("allocated", "freed", "given back", "huge pages", "reclaimed", "parts", "said", "latent errors"),
        *("moved by compaction", "moved by migration", "moved by move_pages"),
        *("moved for ranges", "compaction success", "compact_stall"),
        *("cma 0", "cma -16", "contig 0", "contig -16"),
        *("failure recovered", "failure failed", "offline done", "offline failed", "unpoison done"),
        "collapse succeed",
    )
    assert not [what for what in wanted if not walked[what]]
    assert walked["compaction complete"] + walked["compaction partial_skipped"]


# -- what breaks is seen -----------------------------------------------------------------------------------------------


def walk_with_folios():
    walk = Walk(MACHINES["6.12-7-bytes"], seed=1)
    folios = mm.alloc_pages(walk.mem, 1, 4)
    walk.stamp(folios.tolist())
    walk.check_owners()
    walk.check_bytes()
    return walk, walk.mem.index(walk.mem.pfn(folios))


def test_walk__sees_a_byte_that_changes():
    walk, rows = walk_with_folios()
    walk.mem.contents[rows[2] + 1, 1024] ^= 1
    with pytest.raises(InvariantError, match=f"row {rows[2] + 1} holds"):
        walk.check_bytes()


def test_walk__sees_a_page_that_nobody_holds():
    walk, rows = walk_with_folios()
    del walk.live[list(walk.live)[1]]
    with pytest.raises(InvariantError, match=rf"row {rows[1]} \(kind USED, flags \d+\) has 0 owners"):
        walk.check_owners()


def test_walk__sees_a_held_page_that_is_free():
    walk, rows = walk_with_folios()
    walk.ranges.append((None, mm.ContigRange(int(walk.mem.pfns.pfn(int(rows[3]))), 1)))
    with pytest.raises(InvariantError, match=f"row {rows[3]} .* has 2 owners"):
        walk.check_owners()
    free = int(np.flatnonzero(walk.mem.state.pages["state"] >> 4 == Kind.FREE)[0])
    walk.ranges[-1] = (None, mm.ContigRange(int(walk.mem.pfns.pfn(free)), 1))
    with pytest.raises(InvariantError, match=f"row {free} .* has 1 owners"):
        walk.check_owners()


# -- what walks have found ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
def test_compact_memory__folios_of_any_address_space(kernel):
    mem = mm.PhysicalMemory(mm.Geometry(kernel=kernel), "16MiB", cpus=2, seed=0)
    folios = mm.alloc_pages(mem, 0, 3000)
    mm.free_pages(mem, folios[::2])
    mm.set_folio(mem, folios[1::2], mapping="anon", mapped_by=[1, 31])
    assert mm.compact_memory(mem).pgmigrate_success > 100
    for cpu in range(2):
        task = mem.requests.get(("compactor", cpu))
        assert task is None or len(task.tlb.masks) == 32  # compiled code does not look where it writes
    mem.check()


@pytest.mark.parametrize("kernel", ["6.12.117", "7.3"])
def test_compact_memory__splits_more_folios_than_a_pageblock_holds_pages(kernel):
    mem = plain_memory(mm.Geometry(kernel=kernel, page_block_max_order=5), "8MiB", seed=0)
    area = mm.cma_reserve(mem, "4MiB")
    pages = mm.cma_alloc(mem, area, area.n_pages).pages
    folios = mm.alloc_pages(mem, 4, 64)
    assert folios.min() >= 0
    for pfn in range(pages.pfn, pages.pfn + pages.n_pages, 2):
        mm.cma_release(mem, area, mm.ContigRange(pfn, 1))
    mm.drain_all_pages(mem)
    assert mm.compact_memory(mem).pgmigrate_success == 512
    live, used = mem.state.slots[:2].tolist()
    assert live == used >= 64 + 32 * 15  # a split folio may find no target for all its pages
    assert used <= mem.state.folios.size
    mem.check()


def test_compact_memory__refused_before_anything_changes():
    mem = mm.PhysicalMemory(mm.Geometry(kernel="6.1"), "16MiB", seed=0)
    folios = mm.alloc_pages(mem, 0, 5)  # in a CPU's LRU batch
    mm.inject_poison(mem, int(mem.pfn(folios)[0]))
    before = mem.digest
    with pytest.raises(mm.InputError, match="latent error"):
        mm.compact_memory(mem)
    assert mem.digest == before
