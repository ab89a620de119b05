"""run_workload(): against the slow twin operation by operation, its laws, and what it refuses."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED
from memmodel.state.layout import ZoneType
from memmodel.state.sizing import Sysctls
from memmodel.workloads import generator as g
from memmodel.workloads.generator import Kind
from memmodel.workloads.run import Session
from tests.reference.parts import alone
from tests.reference.views import plain_memory, refused

from .twin import NAMES, Twin

KINDS = [kind.name.lower() for kind in Kind]
SMALL = {
    "anonymous": {"process_pages": 6},
    "page_cache": {"file_pages": 4, "slab_chance": 0.5, "drop_chance": 0.01},
    "kernel": {"burst_requests": 5, "kernel_turnover": 0.5},
    "pinned": {"pinned_pages": 3, "pinned_turnover": 0.3},
    "thp": {"huge_pages": 2, "fallback_pages": 5},
    "dma_buf": {"dma_buf_pages": 24},
}
FLAT = {name: value for options in SMALL.values() for name, value in options.items()}
N_STEPS = 400


def flat(names):
    return {name: value for workload in names for name, value in SMALL[workload].items()}


@pytest.fixture(scope="module")
def tiny_geometry():
    """Blocks up to 32 pages, THPs of 8, pageblocks of 8."""
    return Geometry(arch="generic", max_page_order=5, page_block_max_order=3, transparent_hugepage=False)


def tiny(geometry, n_pages=256, **options):
    sysctls = Sysctls(min_free_kbytes=16, watermark_boost_factor=0)
    return mm.PhysicalMemory(geometry, n_pages * 4096, sysctls=sysctls, seed=0, **options)


# -- against the twin --------------------------------------------------------------------------------------------------


def both(mem, weights, seed, fill, cpu=0):
    options = {name: SMALL[name] for name in weights}
    session = Session(mem, weights, seed=seed, cpu=cpu, settings=flat(weights))
    return session, Twin(mem.copy(), weights, seed, fill, cpu, **options)


def compare(session, twin, fill, n_steps):
    """One operation of each, again and again: the whole state is the same after every one."""
    for step in range(n_steps):
        outcome = session.run(fill, 1)
        twin.step()
        assert session.mem.digest == twin.mem.digest, (step, twin.log[-1:])
        assert sorted(outcome.folios.tolist()) == twin.handles(), step
    return outcome


MIXES = [
    *({name: 1.0} for name in NAMES if name != "thp"),
    {"anonymous": 4, "page_cache": 3, "kernel": 2, "pinned": 1, "dma_buf": 2},
    {"kernel": 1, "page_cache": 1},
]


@pytest.mark.parametrize("fill", [0.6, 1.0])
@pytest.mark.parametrize("weights", MIXES, ids="+".join)
def test_run_workload__as_the_twin(tiny_geometry, weights, fill):
    session, twin = both(tiny(tiny_geometry), weights, 7, fill)
    compare(session, twin, fill, N_STEPS)
    session.mem.check()
    assert any(entry[0] == "freed" for entry in twin.log)
    assert fill < 1 or any(entry[0] == "failed" for entry in twin.log)


@pytest.mark.parametrize("fill", [0.5, 1.0])
def test_run_workload__thp_as_the_twin(fill):
    """2 MiB THPs, with fallback to single pages when no block is left."""
    mem = mm.PhysicalMemory(Geometry(kernel="7.3"), "20MiB", seed=0)
    weights = {"thp": 3.0, "kernel": 1.0} if fill < 1 else {"thp": 1.0}
    session, twin = both(mem, weights, 3, fill)
    compare(session, twin, fill, N_STEPS)
    kinds = {entry[:2] for entry in twin.log}
    assert ("allocated", "thp") in kinds
    assert fill < 1 or {("failed", "thp"), ("allocated", "anonymous")} <= kinds


@given(
    weights=st.dictionaries(st.sampled_from([n for n in NAMES if n != "thp"]), st.floats(0.1, 9), min_size=1),
    seed=st.integers(0, 2**128 - 1),
    fill=st.floats(0, 1),
    kernel=st.sampled_from(["6.12", "6.12.117", "7.3"]),
    cpu=st.integers(0, 1),
)
@settings(max_examples=25 if JIT_ENABLED else 5)
def test_run_workload__any_mix_as_the_twin(weights, seed, fill, kernel, cpu):
    geometry = Geometry(
        arch="generic", kernel=kernel, max_page_order=5, page_block_max_order=3, transparent_hugepage=False
    )
    mem = tiny(geometry, cpus=2)
    other = mem.copy()
    session, twin = both(mem, weights, seed, fill, cpu)
    outcome = session.run(fill, 150)
    for _ in range(150):
        twin.step()
    mem.check()
    assert mem.digest == twin.mem.digest
    for what in ("allocated", "failed", "freed"):
        assert np.array_equal(getattr(outcome, what), twin.counts(what, KINDS, 6)), what
    # and the same in pieces
    session = Session(other, weights, seed=seed, cpu=cpu, settings=flat(weights))
    for n in (1, 49, 0, 100):
        session.run(fill, n)
    assert other.digest == mem.digest


# -- laws --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start():
    return mm.PhysicalMemory(Geometry(), "48MiB" if JIT_ENABLED else "20MiB", cpus=2, seed=5)


def used_pages(mem):
    zones, pcp = mem.state.zones, mem.state.pcp
    free = zones["free_pages"].sum() + pcp["free_diff"].sum() + pcp["count"].sum()
    return int(zones["managed"].sum() - free)


@pytest.mark.parametrize("workload", [*NAMES, "mixed", "3*anonymous + kernel"])
def test_run_workload__counts_and_pages_agree(start, workload):
    mem = start.copy()
    out = mm.run_workload(mem, workload, 3000 if JIT_ENABLED else 300, fill=0.7, seed=2, cpu=1)
    mem.check()
    assert np.array_equal(out.allocated - out.freed, out.held)
    assert out.folios.size == out.held.sum()
    assert sum(out.held_pages.values()) == used_pages(mem)
    assert sum(out.folios_of(kind).size for kind in KINDS) == out.folios.size
    pfns = mem.pfn(out.folios)
    assert np.unique(pfns).size == pfns.size
    mm.free_pages(mem, out.folios)
    mem.check()
    assert used_pages(mem) == 0


@pytest.mark.skipif(not JIT_ENABLED, reason="many operations")
@pytest.mark.parametrize("workload", [*NAMES, "mixed"])
def test_run_workload__settles_at_the_level(start, workload):
    mem = start.copy()
    n_managed = int(mem.state.zones["managed"].sum())
    small = {"thp": {"huge_pages": 1}, "dma_buf": {"dma_buf_pages": 64}}
    given = small["thp"] | small["dma_buf"] if workload == "mixed" else small.get(workload, {})
    out = None
    for fill in (0.8, 0.3, 0.6):
        out = mm.run_workload(mem, workload, fill=fill, seed=1, after=out, **given)
        assert out.settled
        assert used_pages(mem) / n_managed == pytest.approx(fill, abs=0.08)
    mem.check()


def test_run_workload__what_is_used_already_counts(start):
    mem = start.copy()
    n_managed = int(mem.state.zones["managed"].sum())
    mm.alloc_pages(mem, count=n_managed // 2)
    out = mm.run_workload(mem, "pinned", fill=0.6, seed=1, pinned_pages=1)
    assert out.held.sum() == pytest.approx(0.1 * n_managed, rel=0.02)
    assert mm.run_workload(mem, "anonymous", 100, fill=0.4, seed=1).allocated.sum() == 0


def test_run_workload__nothing_to_do(start):
    mem = start.copy()
    out = mm.run_workload(mem, "mixed", 0)
    assert (out.operations, out.folios.size, out.settled) == (0, 0, False)
    out = mm.run_workload(mem, "mixed", fill=0)
    assert (out.operations, out.folios.size, out.settled) == (0, 0, True)
    assert used_pages(mem) == 0


def test_run_workload__after_goes_on_and_leaves_the_outcome_alone(start):
    mem = start.copy()
    first = mm.run_workload(mem, "mixed", 1000, seed=4)
    kept = first.folios.copy()
    fork = mem.copy()
    second = mm.run_workload(mem, "mixed", 500, after=first)
    again = mm.run_workload(fork, "mixed", 500, after=first)
    assert np.array_equal(first.folios, kept)
    assert mem.digest == fork.digest
    assert np.array_equal(second.folios, again.folios)
    whole = start.copy()
    both_in_one = mm.run_workload(whole, "mixed", 1500, seed=4)
    assert whole.digest == mem.digest
    assert np.array_equal(first.allocated + second.allocated, both_in_one.allocated)
    assert np.array_equal(second.held, both_in_one.held)


def test_run_workload__the_table_has_room_for_single_pages_in_place_of_huge_ones(start):
    mem = start.copy()
    out = mm.run_workload(mem, "thp", 12, fill=0.9, seed=1, huge_pages=1)
    assert out.held[Kind.THP].sum() > 1
    mm.run_workload(mem, "thp", fill=0, after=out)
    assert mem.state.folios.size >= mem.state.zones["managed"].sum()


def test_run_workload__seeds(start):
    def run(**options):
        mem = start.copy()
        mm.run_workload(mem, "mixed", 300, **options)
        return mem.digest

    assert run(seed=1) == run(seed=1) == run(seed=np.random.SeedSequence(1)) == run(seed=np.int64(1))
    assert run(seed=1) != run(seed=2)
    assert run() == run()


def test_run_workload__a_workload_draws_the_same_whatever_it_is_mixed_with(start):
    alone, mixed = start.copy(), start.copy()
    one = Session(alone, "kernel", seed=3).live.works
    two = Session(mixed, "anonymous+kernel", seed=3).live.works
    assert np.array_equal(one["rng"][0], two["rng"][1])
    assert np.array_equal(one["rng"][-1], two["rng"][-1])


def test_run_workload__lru_lists(start):
    """Anonymous memory and page cache are on LRU lists or on their way; pinned pages and the kernel's are not."""
    mem = start.copy()
    out = mm.run_workload(mem, "mixed", 3000, seed=1)
    for kind in KINDS:
        flags = mem.state.pages["pg_flags"][mem.index(mem.pfn(out.folios_of(kind)))]
        on_list = (flags & (2 | 32)) != 0
        assert on_list.all() if kind in ("anonymous", "page_cache", "thp") else not on_list.any(), kind


def test_run_workload__a_machine_without_kernel_zones(tiny_geometry):
    mem = plain_memory(tiny_geometry, 64 * 4096, seed=0)
    mem.state.zones["zone_type"] = ZoneType.MOVABLE
    out = mm.run_workload(mem, "kernel+anonymous", 200, seed=1)
    assert out.allocated[Kind.KERNEL].sum() == 0 < out.failed[Kind.KERNEL].sum()
    assert out.allocated[Kind.ANONYMOUS].sum() > 0
    mem.check()


@pytest.mark.skipif(not JIT_ENABLED, reason="it compares with the JIT on")
def test_run_workload__same_without_the_jit():
    code = (
        "import memmodel as mm\n"
        "mem = mm.PhysicalMemory(mm.Geometry(), '20MiB', seed=0)\n"
        "out = mm.run_workload(mem, 'mixed', 300, fill=.97, seed=9, dma_buf_pages=99, burst_requests=9)\n"
        "text = f'{mem.digest} {out}'\n"
    )
    compiled = {}
    exec(code, compiled)
    plain = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}print(text)"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert plain.stdout.strip() == compiled["text"]


# -- a generator of one's own ------------------------------------------------------------------------------------------

ANONYMOUS, KERNEL = int(Kind.ANONYMOUS), int(Kind.KERNEL)


def churn(work):
    """Single pages, a random one freed above the level."""
    if work.room > 0:
        return g.begin(0, ANONYMOUS, 0)
    return g.end_random(0)


def script(work):
    """Three lots of two pages; then what settings[0] says ends one, with a request of order 1 at last."""
    step = work.own[0]
    work.own[0] += 1
    if step < 6:
        return g.begin(0, KERNEL, 1) if step % 2 == 0 else g.join(0, KERNEL, 1)
    if step == 6:
        if work.settings[0] == 0:
            return g.end_oldest(1)
        if work.settings[0] == 1:
            return g.end_newest(1)
        return g.end_oldest(2)  # an empty pool
    return g.nothing()


def asks_for_too_much(work):
    return g.begin(7, KERNEL, 0) if work.own[0] else g.nothing()


def not_a_generator(work):
    return work.no_such_field


FORMS = {"plain": lambda f: f, "njit": numba.njit, "cfunc": numba.cfunc(g.SIGNATURE)}


@pytest.mark.parametrize("form", FORMS if JIT_ENABLED else ["plain"])
def test_run_workload__own_generator(tiny_geometry, form):
    mem = tiny(tiny_geometry)
    out = mm.run_workload(mem, FORMS[form](churn), 1000, fill=0.5, seed=1)
    mem.check()
    assert out.held.sum() in (127, 128)
    assert out.allocated.sum() + out.freed.sum() == 1000


@pytest.mark.parametrize(("end", "left"), [(0, [2, 3, 4, 5]), (1, [0, 1, 2, 3]), (2, [0, 1, 2, 3, 4, 5])])
def test_run_workload__lots_end_as_asked(tiny_geometry, end, left):
    mem = plain_memory(tiny_geometry, 64 * 4096, seed=0)
    out = mm.run_workload(mem, script, 6, seed=1, settings=[end])
    pfns = mem.pfn(out.folios)
    assert pfns.tolist() == [0, 1, 2, 3, 4, 5]
    out = mm.run_workload(mem, script, 5, after=out, settings=[end])
    assert mem.pfn(out.folios).tolist() == left
    assert mem.pfn(out.folios_of("kernel")).tolist() == left


@pytest.mark.parametrize("name", ["draw", "below"])
def test_draw__as_the_twin(name):
    from .twin import Random

    works = np.zeros(1, g.work_dtype).view(np.recarray)
    works["rng"] = np.random.SeedSequence(5, spawn_key=(1,)).generate_state(4, np.uint64)
    twin = Random(5, 1)
    draw, below = alone(g.draw), alone(g.below)
    for n in range(1, 200):
        mine = draw(works[0]) if name == "draw" else below(works[0], np.uint64(n))
        assert int(mine) == (twin.draw() if name == "draw" else twin.below(n))


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["anon"], {}, "unknown workload 'anon'; one of: anonymous, page_cache"),
        (["anonymous+"], {}, "'' in 'anonymous+' is no workload"),
        (["anonymous+anonymous"], {}, "'anonymous' comes twice"),
        (["mixed+thp"], {}, "'mixed' is a mix itself"),
        ([{"anonymous": 0}], {}, "a weight of 0"),
        ([{"anonymous": "1"}], {}, "a weight of '1'"),
        ([{}], {}, "a mix such as"),
        ([None], {}, "workload None"),
        (["anonymous", -1], {}, "operations -1"),
        (["anonymous", 1.5], {}, "operations 1.5"),
        (["anonymous"], {"fill": 1.5}, "fill 1.5; a share from 0 to 1"),
        (["anonymous"], {"fill": float("nan")}, "fill nan"),
        (["anonymous"], {"fill": "half"}, "fill 'half'"),
        (["anonymous"], {"seed": -1}, "seed -1"),
        (["anonymous"], {"seed": "x"}, "seed 'x'"),
        (["anonymous"], {"cpu": 2}, "cpu 2"),
        (["anonymous"], {"node": 1}, "node 1"),
        (["anonymous"], {"process_pages": 0}, "process_pages 0; numbers from 1"),
        (["anonymous"], {"process_pages": float("inf")}, "process_pages inf"),
        (["anonymous"], {"file_pages": 5}, "unknown setting of workload anonymous 'file_pages'; one of: process_pages"),
        (["page_cache"], {"drop_chance": 2}, "drop_chance 2; numbers from 0 to 1"),
        (["anonymous"], {"after": 3}, "after is not the outcome"),
        ([churn], {"process_pages": 5}, "unknown setting of a generator of your own 'process_pages'"),
        ([churn], {"settings": range(9)}, "up to 8 numbers"),
        ([churn], {"settings": ["x"]}, "up to 8 numbers"),
    ],
)
def test_run_workload__refused(start, arguments, options, message):
    refused(start.copy(), message, mm.run_workload, *arguments, **options)


def test_run_workload__thp_beyond_max_page_order():
    geometry = Geometry(arch="generic", max_page_order=8, transparent_hugepage=False)
    mem = mm.PhysicalMemory(geometry, "8MiB", seed=0)
    refused(mem, "an order of 9 is beyond MAX_PAGE_ORDER", mm.run_workload, "thp")


def test_run_workload__after_of_something_else(start):
    mem = start.copy()
    out = mm.run_workload(mem, "anonymous", 100, seed=1)
    refused(mem, "not the outcome of the same workload", mm.run_workload, "kernel", after=out)
    refused(start.copy(), "is not live in this memory", mm.run_workload, "anonymous", after=out)
    mm.free_pages(mem, out.folios[:1])
    refused(mem, "is not live in this memory", mm.run_workload, "anonymous", after=out)


def test_run_workload__impossible_operation(tiny_geometry):
    mem = tiny(tiny_geometry)
    out = mm.run_workload(mem, asks_for_too_much, 5, seed=1)
    out.live.works["own"][0] = 1
    with pytest.raises(mm.InputError, match="operation 5 has action 1, order 7, kind 3 and pool 0: 0 to 5, 5, 6 and 3"):
        mm.run_workload(mem, asks_for_too_much, 5, after=out)
    mem.check()


@pytest.mark.skipif(not JIT_ENABLED, reason="nothing is compiled")
def test_run_workload__generators_that_do_not_compile(tiny_geometry):
    mem = tiny(tiny_geometry)
    refused(mem, "the generator cannot be compiled: ", mm.run_workload, not_a_generator)
    other = numba.cfunc("float64(float64)")(lambda x: x)
    refused(mem, "numba.cfunc(SIGNATURE) is needed", mm.run_workload, other)


def test_folios_of__unknown_kind(start):
    out = mm.run_workload(start.copy(), "anonymous", 1)
    with pytest.raises(mm.InputError, match="unknown kind 'slab'; one of: anonymous"):
        out.folios_of("slab")
