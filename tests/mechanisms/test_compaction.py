"""The public functions of compaction: what they leave, count and refuse; requests, kswapd and faults that use them."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED
from memmodel.kernels.buddy import count_free
from memmodel.kernels.lru import drain_lru
from memmodel.kernels.pageblock import set_pageblock_type
from memmodel.mechanisms.thp_faults import fault_compacting
from memmodel.memory import PhysicalMemory
from memmodel.sources.gfp import parse_gfp
from memmodel.state.layout import Alloc, BlockBit, MigrateType, ZoneType
from tests.reference import views
from tests.reference.buddy import Zone as Span
from tests.reference.parts import alone
from tests.reference.views import plain_memory, refused

SMALL = {"arch": "generic", "max_page_order": 5, "page_block_max_order": 4, "transparent_hugepage": False}
KERNELS = ("6.1", "6.12.117", "7.3")
N_PAGES = 512
COUNTED = ("compact_migrate_scanned", "compact_free_scanned", "compact_isolated", "pgmigrate_success", "pgmigrate_fail")
SUCCESS, COMPLETE = mm.CompactResult.SUCCESS, mm.CompactResult.COMPLETE
PARTIAL_SKIPPED, DEFERRED = mm.CompactResult.PARTIAL_SKIPPED, mm.CompactResult.DEFERRED
set_type = alone(set_pageblock_type)
MOVABLE, KERNEL = "GFP_HIGHUSER_MOVABLE", "GFP_KERNEL"


def holes(kernel="6.12.117", *, one_in=2, gfp=MOVABLE, n_pages=N_PAGES, seed=None, arch="generic", **options):
    """Full of single pages, of which one in so many, or as many at random, are free again; (memory, folios)."""
    mem = plain_memory(Geometry(kernel=kernel, **SMALL | {"arch": arch}), n_pages * 4096, seed=0, **options)
    folios = mm.alloc_pages(mem, count=n_pages, gfp=gfp)
    folios = folios[folios >= 0]
    drain_lru(mem.state, np.uint64(0))
    free = np.zeros(folios.size, np.bool_)
    free[::one_in] = True
    if seed is not None:
        np.random.default_rng(seed).shuffle(free)
    mm.free_pages(mem, folios[free])
    return mem, folios[~free]


def largest_free(mem):
    return int(np.flatnonzero(count_free(mem.state).sum(axis=(0, 1)))[-1])


def number(mem, folios):
    """Each page's bytes say whose it is."""
    mem.contents[:] = 0
    mem.contents[mem.index(mem.pfn(folios)), :8] = folios.view(np.uint8).reshape(-1, 8)


def keeps_contents(mem, folios):
    return (mem.contents[mem.index(mem.pfn(folios)), :8] == folios.view(np.uint8).reshape(-1, 8)).all()


def flags(mem):
    """Of zone 0: skip hints, considered, shift."""
    zone = mem.state.zones[0]
    n_skipped = int(np.count_nonzero(mem.state.blocks["bits"] & BlockBit.SKIP))
    return n_skipped, int(zone["compact_considered"]), int(zone["compact_defer_shift"])


# -- one zone, and all of them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mode", ["async", "sync_light", "sync"])
def test_compact_zone__makes_the_block_that_is_wanted(kernel, mode):
    mem, folios = holes(kernel, contents=True)
    number(mem, folios)
    assert largest_free(mem) == 0
    out = mm.compact_zone(mem, order=3, mode=mode)
    assert out.results == {"0:Normal": SUCCESS}
    assert out.result == SUCCESS
    assert largest_free(mem) >= 3
    assert 0 < out.pgmigrate_success < 64  # no more than it takes
    assert out.compact_isolated >= 2 * out.pgmigrate_success  # sources and targets
    assert keeps_contents(mem, folios)
    mem.check()
    assert mm.compact_zone(mem, order=3, mode=mode) == mm.CompactionOutcome({"0:Normal": SUCCESS}, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_compact_memory__gathers_what_is_free(kernel):
    """Sources below, targets above; what lies in the pageblock where the scanners meet stays."""
    mem, folios = holes(kernel, contents=True, nodes=2, cpus=2)
    number(mem, folios)
    before = mem.vmstat()
    out = mm.compact_memory(mem, cpu=1)
    assert out.results == dict.fromkeys(["0:Normal", "1:Normal"], COMPLETE)
    assert [mem.vmstat()[name] - before[name] for name in COUNTED] == list(out[1:6])
    free = count_free(mem.state).sum(axis=1) << np.arange(6)
    assert (free.sum(axis=1) == N_PAGES // 4).all()
    assert (free[:, 4:].sum(axis=1) >= N_PAGES // 4 - 16).all()
    assert keeps_contents(mem, folios)
    mem.check()
    again = mm.compact_memory(mem, node=1)
    assert again.results == {"1:Normal": COMPLETE}


@settings(deadline=None, max_examples=30 if JIT_ENABLED else 4)
@given(seed=st.integers(0, 1 << 20), kernel=st.sampled_from(KERNELS), order=st.integers(1, 5), gfp=st.booleans())
def test_compaction__keeps_pages_and_bytes(seed, kernel, order, gfp):
    random = np.random.default_rng(seed)
    mem, folios = holes(kernel, one_in=3, contents=True, seed=seed, n_pages=256)
    for options in ({"pins": 1}, {"mlocked": True}, {"mapping": "ramfs", "dirty": True, "no_migrate_folio": True}):
        mm.set_folio(mem, random.choice(folios, 12, replace=False), **options)
    number(mem, folios)
    gfp = MOVABLE if gfp else KERNEL
    calls = [
        lambda: mm.compact_zone(mem, order=order, mode="async"),
        lambda: mm.compact_zone(mem, whole_zone=True),
        lambda: mm.compact_memory(mem),
        lambda: mm.run_kcompactd(mem, order=order),
        lambda: mm.run_proactive_compaction(mem, proactiveness=90),
        lambda: mm.free_pages(mem, mm.alloc_pages(mem, order, 2, gfp=gfp, compact=mm.try_to_compact_pages)),
    ]
    for place in random.integers(0, len(calls), 5):
        calls[place]()
        mem.check()
        assert keeps_contents(mem, folios)
    rows = mem.index(mem.pfn(folios))
    assert (mem.handles(rows) == folios).all()


def test_compact_zone__begins_where_the_last_run_stopped():
    mem, _ = holes()
    first = mm.compact_zone(mem, order=4, mode="async")
    zone = mem.state.zones[0]
    assert zone["cached_migrate"][0] > 0
    assert flags(mem)[0] > 0
    rest = mm.compact_zone(mem, order=5, mode="async")
    whole = mm.compact_zone(mem, order=5, whole_zone=True)
    assert first.result == SUCCESS
    assert rest.compact_migrate_scanned < N_PAGES
    assert whole.result == SUCCESS


def test_compact_memory__a_zone_without_managed_pages_has_its_turn():
    """It is populated: all its pages are reserved."""
    spans = [Span(0, "DMA", 16, 32, []), Span(0, "Normal", 32, 96, [(32, 96)])]
    mem = views.machine(Geometry(kernel="6.12.117", **SMALL), spans)
    assert set(mm.compact_memory(mem).results) == {"0:DMA", "0:Normal"}


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117", "7.3"])
def test_compact_memory__what_its_migrations_count(kernel):
    """Of this run alone. A batch is 32 sources; before 6.3 each has a flush of its own."""
    mem, _ = holes(kernel)
    first = mm.compact_memory(mem)
    done = first.counts
    moved = first.pgmigrate_success
    assert moved > 50
    assert {done[name] for name in ("nr_succeeded", "n_copied", "n_set", "n_removed")} == {moved}
    assert moved / 32 <= done["n_calls"] <= moved
    flushes = done.get("local_full", 0) + done.get("local_pages", 0)
    assert flushes == moved if kernel == "6.1" else flushes >= done["n_calls"]
    assert "ipis" not in done
    again = mm.compact_memory(mem)
    assert again.counts.get("nr_succeeded", 0) == again.pgmigrate_success < moved


# -- errors on the way -------------------------------------------------------------------------------------------------


def test_compact_memory__a_latent_error_leaves_the_page():
    mem, folios = holes(contents=True, arch="x86_64")
    number(mem, folios)
    bad = folios[[5, 20]]
    pfns = mem.pfn(bad)
    clean = mm.compact_memory(mem.copy())
    mm.inject_poison(mem, pfns, 3)
    out = mm.compact_memory(mem)
    assert (mem.pfn(bad) == pfns).all()
    assert out.pgmigrate_fail == clean.pgmigrate_fail + 2
    assert out.pgmigrate_success > 50
    assert mem.state.queues["count"].tolist() == [4]  # each is tried in a batch, and then by itself
    assert keeps_contents(mem, folios)
    mem.check()


@pytest.mark.parametrize(("kernel", "arch"), [("6.1", "x86_64"), ("6.12.117", "arm64")])
def test_compaction__cannot_survive_a_latent_error(kernel, arch):
    """Before 6.11, and where no copy recovers."""
    mem, folios = holes(kernel, arch=arch)
    mm.inject_poison(mem, mem.pfn(folios[:1]))
    refused(mem, "would stop the machine", mm.compact_memory)
    refused(mem, "would stop the machine", mm.compact_zone, "DMA", order=3)


# -- kcompactd and proactive compaction --------------------------------------------------------------------------------


def test_run_kcompactd__is_put_off_for_twice_as_long_after_each_failure():
    """Up to 63 times; then skip hints may be forgotten."""
    mem, folios = holes(n_pages=128)
    mm.set_folio(mem, folios, pins=1)
    waits, n_waits = [], 0
    while len(waits) < 9:
        out = mm.run_kcompactd(mem, order=3)
        if out.results:
            assert out.results["0:Normal"] in (COMPLETE, PARTIAL_SKIPPED)
            waits.append(n_waits)
            n_waits = -1
        n_waits += 1
    assert waits == [0, 1, 3, 7, 15, 31, 63, 63, 63]
    assert flags(mem)[1:] == (0, 6)
    assert mem.vmstat()["compact_daemon_wake"] == sum(waits) + 9
    assert mem.vmstat()["compact_daemon_migrate_scanned"] == mem.vmstat()["compact_migrate_scanned"] > 0
    mem.state.zones["blockskip_flush"] = 1
    for _ in range(63):
        assert not mm.run_kcompactd(mem, order=3).results
    assert mm.run_kcompactd(mem, order=3).results
    assert mem.state.zones["blockskip_flush"][0] == 0
    mm.set_folio(mem, folios, pins=0)
    handle = mm.alloc_pages(mem, 3, gfp=KERNEL, compact=mm.try_to_compact_pages)[0]
    assert handle == -1  # put off
    while handle < 0:
        handle = mm.alloc_pages(mem, 3, gfp=KERNEL, compact=mm.try_to_compact_pages)[0]
    assert flags(mem)[1:] == (0, 0)
    assert mem.state.zones["compact_order_failed"][0] == 4
    mem.check()


def test_run_kcompactd__succeeds():
    mem, _ = holes()
    assert mm.run_kcompactd(mem, order=3).results == {"0:Normal": SUCCESS}
    assert mm.run_kcompactd(mem, order=3).results == {}
    assert mem.state.zones["compact_order_failed"][0] == 4


@pytest.mark.parametrize("kernel", KERNELS)
def test_run_proactive_compaction__down_to_the_low_mark(kernel):
    mem = plain_memory(Geometry(arch="generic", kernel=kernel, page_block_max_order=5), "8MiB", seed=0)
    folios = mm.alloc_pages(mem, count=mem.pfns.n_pages)
    drain_lru(mem.state, np.uint64(0))
    mm.free_pages(mem, folios[::2])
    assert mm.run_proactive_compaction(mem, proactiveness=0).results == {}
    out = mm.run_proactive_compaction(mem, proactiveness=90)
    assert out.result in (SUCCESS, COMPLETE)
    assert out.pgmigrate_success > 0
    mem.check()
    moved = mm.run_proactive_compaction(mem, proactiveness=20)
    assert moved == mm.CompactionOutcome({}, 0, 0, 0, 0, 0)


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("gfp", [MOVABLE, KERNEL])
def test_alloc_pages__compacts(kernel, gfp):
    mem, folios = holes(kernel, contents=True)
    number(mem, folios)
    before = mem.vmstat()
    trace = []
    got = mm.alloc_pages(mem, 4, 6, gfp=gfp, compact=mm.try_to_compact_pages, trace=trace)
    assert (got >= 0).all()
    steps = [step for step in trace if step.startswith("compact") and not step.endswith(" skipped")]
    assert "captured" in trace
    stalled = mem.vmstat()["compact_stall"] - before["compact_stall"]
    assert stalled == len(steps) == mem.vmstat()["compact_success"] + mem.vmstat()["compact_fail"]
    assert keeps_contents(mem, folios)
    mem.check()
    mm.free_pages(mem, got)
    mem.check()


def test_alloc_pages__fails_where_nothing_moves():
    mem, folios = holes(gfp=KERNEL)
    trace = []
    got = mm.alloc_pages(mem, 3, gfp=f"{KERNEL}|__GFP_NORETRY", compact=mm.try_to_compact_pages, trace=trace)
    assert got[0] == -1
    assert mem.vmstat()["compact_fail"] == mem.vmstat()["compact_stall"] > 0
    assert mem.vmstat()["pgmigrate_success"] == 0
    assert mem.pfn(folios).size == folios.size


def test_run_kswapd__takes_hints_back():
    """What a direct compaction marked that went through the zone; kcompactd asks for nothing."""
    mem, folios = holes(n_pages=128)
    mm.set_folio(mem, folios, pins=1)
    mm.run_kcompactd(mem, order=3)
    mm.run_kswapd(mem, reclaim=lambda mem, request: 0)
    hints = flags(mem)[0]
    assert hints > 0
    for _ in range(4):
        mm.alloc_pages(mem, 3, gfp=f"{KERNEL}|__GFP_NORETRY", compact=mm.try_to_compact_pages)
    assert mem.state.zones["blockskip_flush"][0] == 1
    mm.run_kswapd(mem, reclaim=lambda mem, request: 0)
    assert mem.state.zones["blockskip_flush"][0] == 0
    assert flags(mem)[0] < hints
    mem.check()


@settings(deadline=None, max_examples=8 if JIT_ENABLED else 1)
@given(seed=st.integers(0, 1 << 20), kernel=st.sampled_from(["6.12.117", "7.3"]), held=st.integers(0, 40))
def test_fault_compacting__as_the_slow_path(seed, kernel, held):
    """Pages, lists, counters: everything is the same."""
    geometry = Geometry(arch="generic", kernel=kernel)
    mem = PhysicalMemory(geometry, "32MiB" if JIT_ENABLED else "8MiB", seed=0)
    random = np.random.default_rng(seed)
    if held:
        kept = mm.alloc_pages(mem, 0, held * 8, gfp=KERNEL)
        mm.free_pages(mem, random.permutation(kept)[: kept.size // 2])
    folios = mm.alloc_pages(mem, count=mem.pfns.n_pages)
    folios = random.permutation(folios[folios >= 0])
    mm.free_pages(mem, folios[: folios.size // 2])
    other = mem.copy()
    count = 12 if JIT_ENABLED else 4
    ours = fault_compacting(mem, count)
    theirs = mm.fault_thp(other, count, madvised=True, compact=mm.try_to_compact_pages)
    assert (ours == theirs).all()
    assert mem.vmstat() == other.vmstat()
    assert mem.digest == other.digest
    mem.check()


def test_compaction__has_room_for_the_parts_of_every_folio_that_is_split():
    """Folios of four pages among holes of one: no target is large enough."""
    mem = plain_memory(Geometry(kernel="6.12.117", **SMALL), 2048 * 4096, seed=0)
    large = mm.alloc_pages(mem, 2, 256)
    singles = mm.alloc_pages(mem, 0, 1024)
    assert (large >= 0).all()
    mm.free_pages(mem, singles[::2])
    mm.compact_memory(mem)
    mem.check()
    assert mem.vmstat()["pgmigrate_success"] > 0
    n_split = int(np.count_nonzero(mem.state.pages["state"][mem.index(mem.pfn(large))] & 15 == 0))
    assert n_split > 100
    assert int(mem.state.slots[0]) == 512 + 256 + 3 * n_split


# -- refusals, and what is kept ----------------------------------------------------------------------------------------


def test_compaction__refuses():
    mem, _ = holes(n_pages=64)
    refused(mem, "zone", mm.compact_zone, "DMA")
    refused(mem, "node", mm.compact_zone, node=3)
    refused(mem, "order", mm.compact_zone, order=6)
    refused(mem, "order", mm.compact_zone, order=-1)
    refused(mem, "mode", mm.compact_zone, mode="hard")
    refused(mem, "migratetype", mm.compact_zone, order=1, migratetype="cma")
    refused(mem, "cpu", mm.compact_zone, cpu=1)
    refused(mem, "node", mm.compact_memory, node=1)
    refused(mem, "cpu", mm.compact_memory, cpu=-1)
    refused(mem, "order", mm.run_kcompactd, order=6)
    refused(mem, "zone", mm.run_kcompactd, order=1, highest="High")
    refused(mem, "node", mm.run_kcompactd, 7, order=1)
    refused(mem, "proactiveness", mm.run_proactive_compaction, proactiveness=101)
    refused(mem, "node", mm.run_proactive_compaction, 2)
    refused(mem, "node", mm.run_proactive_compaction, [0])
    refused(mem, "node", mm.compact_zone, node=True)
    refused(mem, "CompactRequest", mm.try_to_compact_pages, 5)


@pytest.mark.parametrize(
    ("what", "wrong"),
    [("order", {"order": 6}), ("order", {"order": 0}), ("zones", {"zones": [1]}), ("migratetype", {"migratetype": 4})],
)
def test_try_to_compact_pages__refuses_a_request_that_cannot_be(what, wrong):
    mem, _ = holes()
    request = mm.CompactRequest(
        *(np.zeros(1, np.uint64), 3, parse_gfp(KERNEL), 0, 0, mm.CompactPriority.SYNC_LIGHT, Alloc(0), ZoneType.NORMAL)
    )
    refused(mem, what, mm.try_to_compact_pages, request._replace(**wrong))
    assert mm.try_to_compact_pages(mem, request).result == SUCCESS


def test_compaction__turns_the_list_that_it_searches():
    """Before 6.10 free blocks stay on a list when their pageblock's type changes."""
    mem, folios = holes("6.1", one_in=4096, n_pages=4096)
    rows = mem.index(mem.pfn(folios))
    mm.free_pages(mem, folios[(rows >> 3 & 1 == 1) | (rows & 15 == 0)])
    for first in range(0, 4096, 32):
        set_type(mem.state, np.uint64(0), np.uint64(first), np.uint64(MigrateType.UNMOVABLE))
    mem.check()
    mm.alloc_pages(mem, 4, 20, gfp="GFP_TRANSHUGE", compact=mm.try_to_compact_pages)
    mem.check()
    assert mem.vmstat()["compact_success"] > 0


def test_compaction__state_is_kept(tmp_path):
    """Positions, hints and deferral go along: what follows comes out the same."""
    mem, _ = holes(one_in=3)
    mm.compact_zone(mem, order=3, mode="async")
    zone = mem.state.zones[0]
    zone["compact_defer_shift"], zone["compact_considered"], zone["blockskip_flush"] = 2, 3, 1
    mem.save(tmp_path / "mem.npz")
    restored = holes(one_in=3)[0]
    restored.restore(mem)
    others = [mem.copy(), restored, pickle.loads(pickle.dumps(mem)), mm.load(tmp_path / "mem.npz")]
    assert {other.digest for other in others} == {mem.digest}
    outcomes = {(str(mm.compact_zone(other, order=5)), other.digest) for other in [mem, *others]}
    assert len(outcomes) == 1
