"""folio_mc_copy() and copy_mc_highpages(): what decides how a folio is cut, what failures leave, what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.mechanisms.copying import STREAM_FROM_BYTES, copy_rule
from tests.reference import copying as reference
from tests.reference import views
from tests.reference.buddy import Zone
from tests.reference.views import refused

MIB = 1 << 20
EHWPOISON = -133
ENGINES = {
    "fragile": reference.fragile,
    "fast_string": reference.fast_string(64, 0),
    "powerpc": reference.powerpc,
    "memcpy": reference.unprotected,
    "none": reference.unprotected,
}
# geometry, engine it has by default, whether one call may take several pages
BUILDS = {
    "x86_64": (Geometry(), "fast_string", True),
    "powerpc64": (Geometry(page_size="64KiB", arch="powerpc64"), "powerpc", True),
    "arm64 4K": (Geometry(page_size="4KiB", arch="arm64"), "none", False),
    "arm64 16K": (Geometry(page_size="16KiB", arch="arm64"), "none", False),
    "HIGHMEM": (Geometry(arch="generic", highmem=True), "none", False),
}


def a_pair(geometry, order, lines=(), seed=0):
    """A memory with random bytes, and a source (with poisoned lines) and a destination folio."""
    shape = geometry.replace(transparent_hugepage=False, hugetlb=False, max_page_order=max(order, 4))
    mem = views.plain_memory(shape, (geometry.page_size_bytes << order) * 4, contents=True, seed=0)
    mem.contents[:] = np.random.default_rng(seed).integers(0, 256, mem.contents.shape, dtype=np.uint8)
    src, dst = mm.alloc_pages(mem, order, 1), mm.alloc_pages(mem, order, 1)
    lines_per_page = geometry.page_size_bytes // 64
    for line in lines:
        mm.inject_poison(mem, pfn=int(mem.pfn(src)[0]) + line // lines_per_page, line=line % lines_per_page)
    return mem, dst, src


def folio_bytes(mem, folio, order):
    row = int(mem.index(mem.pfn(folio))[0])
    return mem.contents[row : row + 2**order].tobytes()


def is_same(mem, before, dst, src, order, out, copier, lines, preempt):
    """Outcome, queue and bytes of one copied folio equal the twin's."""
    target = bytearray(folio_bytes(before, dst, order))
    expected = copier.copy(target, folio_bytes(before, src, order), 2**order, set(lines))
    assert folio_bytes(mem, dst, order) == target
    assert folio_bytes(mem, src, order) == folio_bytes(before, src, order)
    queued = -1 if expected.queued_page is None else int(mem.pfn(src)[0]) + expected.queued_page
    assert out.status.tolist() == [expected.status]
    assert out.bytes_not_copied.tolist() == [len(target) - expected.n_copied]
    assert out.pfn_queued.tolist() == [queued]
    assert (out.n_calls.tolist(), out.n_resched.tolist()) == ([expected.n_calls], [expected.n_resched])
    preemptible = preempt in ("lazy", "full")
    assert out.longest_stretch_bytes.tolist() == [expected.longest_stretch(preemptible)]
    assert mm.run_memory_failure_work(mem).pfn.tolist() == ([] if queued < 0 else [queued])
    return expected


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("preempt", ["none", "voluntary", "lazy", "full"])
@pytest.mark.parametrize("batch", ["page", "extent"])
@pytest.mark.parametrize("engine", [None, *ENGINES])
def test_folio_mc_copy__as_the_twin(build, engine, batch, preempt):
    geometry, default, one_call = BUILDS[build]
    page = geometry.page_size_bytes
    name = engine or default
    one_call = one_call and name != "none" and batch == "extent"
    non_preempt_batch = 32 * MIB // page if one_call else 1
    unit = None if batch == "extent" and preempt in ("lazy", "full") else non_preempt_batch
    copier = reference.Copier(ENGINES[name], page, unit, one_call)
    last = 4 * page // 64 - 1
    for lines in [(), (0,), (1,), (last // 4 + 1,), (last // 2,), (last,), (last, last // 2 + 3, last - 5)]:
        mem, dst, src = a_pair(geometry, 2, lines)
        before = mem.copy()
        out = mm.folio_mc_copy(mem, dst, src, batch=batch, preempt=preempt, engine=engine)
        is_same(mem, before, dst, src, 2, out, copier, lines, preempt)


def test_copy_rule__preempt_none_cuts_at_32_mib_whatever_the_page_size():
    for build in ("x86_64", "powerpc64"):
        geometry, _, _ = BUILDS[build]
        for preempt in ("none", "voluntary"):
            assert int(copy_rule(geometry, "extent", preempt).unit_pages) << geometry.page_shift == 32 * MIB


# -- the oracles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "knobs", "copied_before"),
    [
        ("fragile", {}, lambda p: p),
        ("powerpc", {}, lambda p: p),
        ("fast_string", {}, lambda p: p),
        ("fast_string", {"granule": 4096}, lambda p: p // 4096 * 4096),
        ("fast_string", {"granule": 1, "lag": 70}, lambda p: max(0, p - 70)),
        ("fast_string", {"granule": 8, "lag": 4100}, lambda p: max(0, p - 4100)),
    ],
)
def test_oracle_1__what_is_copied_and_what_is_queued(engine, knobs, copied_before):
    for line in [0, 1, 63, 64, 65, 100, 128, 191, 192, 255]:
        mem, dst, src = a_pair(Geometry(), 2, [line])
        source, target = folio_bytes(mem, src, 2), folio_bytes(mem, dst, 2)
        out = mm.folio_mc_copy(mem, dst, src, engine=engine, **knobs)
        copied = copied_before(64 * line)
        assert out.status.tolist() == [EHWPOISON]
        assert out.bytes_not_copied.tolist() == [4 * 4096 - copied]
        assert out.pfn_queued.tolist() == (mem.pfn(src) + copied // 4096).tolist()
        assert folio_bytes(mem, dst, 2) == source[:copied] + target[copied:]


@pytest.mark.parametrize("granule", [1, 8, 64])
@pytest.mark.parametrize("lag", [0, 1, 64, 500, 4000])
def test_oracle_2__old_and_new_name_the_same_page_unless_progress_lags(granule, lag):
    for line in [0, 1, 7, 8, 62, 63, 64, 65, 128, 191, 254, 255]:
        queued = {}
        for batch in ("page", "extent"):
            mem, dst, src = a_pair(Geometry(), 2, [line])
            out = mm.folio_mc_copy(mem, dst, src, batch=batch, engine="fast_string", granule=granule, lag=lag)
            queued[batch] = int(out.pfn_queued[0] - mem.pfn(src)[0])
        page, in_page = divmod(64 * line, 4096)
        assert queued["page"] == page
        assert queued["extent"] == (page - 1 if in_page < lag and page > 0 else page)


@pytest.mark.parametrize("granule", [1, 64, 4096])
def test_oracle_2__without_lag_any_granule_names_the_page(granule):
    for line in range(256):
        mem, dst, src = a_pair(Geometry(), 2, [line])
        out = mm.folio_mc_copy(mem, dst, src, engine="fast_string", granule=granule)
        assert out.pfn_queued[0] == mem.pfn(src)[0] + line // 64


@pytest.mark.parametrize("batch", ["page", "extent"])
def test_oracle_3__only_the_lowest_error_is_met(batch):
    mem, dst, src = a_pair(Geometry(), 3, [300, 70, 71, 500, 200])
    mm.set_folio(mem, src, mapping="kernel")  # which memory_failure() cannot do more about than mark
    out = mm.folio_mc_copy(mem, dst, src, batch=batch)
    assert out.pfn_queued.tolist() == (mem.pfn(src) + 1).tolist()
    assert out.bytes_not_copied.tolist() == [8 * 4096 - 70 * 64]
    assert mm.run_memory_failure_work(mem).pfn.tolist() == out.pfn_queued.tolist()
    again = mm.folio_mc_copy(mem, dst, src, batch=batch)
    assert again.pfn_queued.tolist() == out.pfn_queued.tolist()
    assert mm.run_memory_failure_work(mem).already_poisoned.tolist() == [True]


def test_oracle_4__calls_and_resched_points():
    mem = views.plain_memory(Geometry(), "64MiB", seed=0)
    for order in range(11):
        dst, src = mm.alloc_pages(mem, order), mm.alloc_pages(mem, order)
        old = mm.folio_mc_copy(mem, dst, src, batch="page", preempt="none")
        new = mm.folio_mc_copy(mem, dst, src, batch="extent", preempt="none")
        assert (old.n_calls.tolist(), old.n_resched.tolist()) == ([2**order], [2**order - 1])
        assert (new.n_calls.tolist(), new.n_resched.tolist()) == ([1], [0])


@pytest.mark.parametrize("build", ["arm64 4K", "arm64 16K", "HIGHMEM"])
@pytest.mark.parametrize("engine", ["none", "fragile", "fast_string"])
def test_oracle_5__a_build_without_the_fast_path_is_as_before(build, engine):
    geometry = BUILDS[build][0]
    for lines in [(), (3,), (geometry.page_size_bytes // 64 * 2 + 9,)]:
        results = {}
        for batch in ("page", "extent"):
            mem, dst, src = a_pair(geometry, 2, lines)
            out = mm.folio_mc_copy(mem, dst, src, batch=batch, preempt="none", engine=engine)
            results[batch] = [column.tolist() for column in vars(out).values()], views.frozen(mem)
        assert results["page"] == results["extent"]


def test_oracle_5__without_machine_check_support_the_copy_succeeds_or_the_machine_panics():
    mem, dst, src = a_pair(Geometry(page_size="4KiB", arch="arm64"), 2)
    assert mm.folio_mc_copy(mem, dst, src).status.tolist() == [0]
    mem, dst, src = a_pair(Geometry(page_size="4KiB", arch="arm64"), 2, [100])
    out = mm.folio_mc_copy(mem, dst, src)
    assert (out.status.tolist(), out.pfn_queued.tolist(), out.n_calls.tolist()) == ([1], [-1], [2])
    assert mm.run_memory_failure_work(mem).pfn.size == 0


def test_oracle_6__plain_memcpy_panics():
    mem, dst, src = a_pair(Geometry(), 2, [100])
    out = mm.folio_mc_copy(mem, dst, src, engine="memcpy")
    assert (out.status.tolist(), out.pfn_queued.tolist(), out.n_calls.tolist()) == ([1], [-1], [1])


def test_oracle_10__the_queue_holds_16_and_drops_the_newest():
    mem = views.plain_memory(Geometry(), "1MiB", cpus=2, seed=0)
    src, dst = mm.alloc_pages(mem, count=18), mm.alloc_pages(mem, count=18)
    mm.inject_poison(mem, pfn=mem.pfn(src))
    out = mm.folio_mc_copy(mem, dst[:17], src[:17], cpu=1)
    assert out.status.tolist() == [EHWPOISON] * 17
    assert out.pfn_queued.tolist() == mem.pfn(src[:17]).tolist()
    assert out.queue_dropped.tolist() == [False] * 16 + [True]
    assert mem.state.queues["dropped"].tolist() == [0, 1]
    assert mm.run_memory_failure_work(mem, cpu=0).pfn.size == 0
    done = mm.run_memory_failure_work(mem, cpu=1)
    assert done.pfn.tolist() == mem.pfn(src[:16]).tolist()  # first in, first out
    assert not mm.folio_mc_copy(mem, dst[17], src[17], cpu=1).queue_dropped.any()  # there is room again
    assert mm.run_memory_failure_work(mem, cpu=1).pfn.tolist() == mem.pfn(src[17]).tolist()


# -- larger folios -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", ["page", "extent"])
def test_folio_mc_copy__an_error_inside_a_huge_page(batch):
    mem = views.plain_memory(Geometry(), "8MiB", contents=True, seed=0)
    src, dst = mm.alloc_pages(mem, 9), mm.alloc_pages(mem, 9)
    base, target = (int(mem.index(mem.pfn(folio))[0]) for folio in (src, dst))
    mem.contents[base : base + 512] = np.random.default_rng(0).integers(0, 256, (512, 4096))
    mem.contents[target : target + 512] = 7
    mm.inject_poison(mem, pfn=mem.pfn(src) + 300, line=17)
    out = mm.folio_mc_copy(mem, dst, src, engine="fragile", batch=batch, preempt="none")
    assert out.pfn_queued.tolist() == (mem.pfn(src) + 300).tolist()
    assert out.bytes_not_copied.tolist() == [212 * 4096 - 17 * 64]
    assert out.n_calls.tolist() == [301 if batch == "page" else 1]
    source, got = mem.contents[base : base + 512], mem.contents[target : target + 512]
    assert np.array_equal(got[:300], source[:300])
    assert np.array_equal(got[300, : 17 * 64], source[300, : 17 * 64])
    assert (got[300, 17 * 64 :] == 7).all()
    assert (got[301:] == 7).all()


@pytest.mark.parametrize("n_folios", [1, 3])
def test_folio_mc_copy__a_batch_that_is_streamed_moves_every_byte(n_folios):
    """Two folios of 2 MiB are where the copy goes past the caches."""
    assert STREAM_FROM_BYTES == 2 * 2 * MIB
    mem = views.plain_memory(Geometry(), "48MiB", contents=True, seed=0)
    src, dst = mm.alloc_pages(mem, 9, n_folios), mm.alloc_pages(mem, 9, n_folios)
    mem.contents.view(np.uint64)[:] = np.arange(mem.contents.size // 8, dtype=np.uint64).reshape(-1, 512)
    mm.inject_poison(mem, pfn=mem.pfn(src)[0] + 100, line=1)
    expected = mem.contents.copy()
    for i, (to, of) in enumerate(zip(mem.index(mem.pfn(dst)), mem.index(mem.pfn(src)), strict=True)):
        n_bytes = 512 * 4096 if i else 100 * 4096 + 64
        expected[to : to + 512].reshape(-1)[:n_bytes] = expected[of : of + 512].reshape(-1)[:n_bytes]
    out = mm.folio_mc_copy(mem, dst, src)
    assert out.status.tolist() == [0 if i else EHWPOISON for i in range(n_folios)]
    assert np.array_equal(mem.contents, expected)


def test_copy_mc_highpages__ranges_need_be_no_folios():
    mem = views.plain_memory(Geometry(), "1MiB", contents=True, seed=0)
    mem.contents[:] = np.random.default_rng(0).integers(0, 256, mem.contents.shape)
    before = mem.contents.copy()
    mm.inject_poison(mem, pfn=17, line=2)
    out = mm.copy_mc_highpages(mem, to_pfn=100, from_pfn=11, nr_pages=13)
    assert (out.status.tolist(), out.pfn_queued.tolist()) == ([EHWPOISON], [17])
    assert (out.n_calls.tolist(), out.bytes_not_copied.tolist()) == ([1], [7 * 4096 - 128])
    expected = before.reshape(-1).copy()
    expected[100 * 4096 : 106 * 4096 + 128] = before.reshape(-1)[11 * 4096 : 17 * 4096 + 128]
    assert np.array_equal(mem.contents.reshape(-1), expected)
    assert mm.copy_mc_highpages(mem, 100, 18, 13).status.tolist() == [0]
    assert np.array_equal(mem.contents[100:113], before[18:31])


def test_copy_mc_highpages__a_gib_in_one_call():
    mem = views.plain_memory(Geometry(), "2GiB", seed=0)
    out = mm.copy_mc_highpages(mem, 1 << 18, 0, 1 << 18)
    assert [column.tolist() for column in vars(out).values()] == [[0], [0], [-1], [False], [1], [0], [0]]


def test_folio_mc_copy__no_folios():
    mem = views.plain_memory(Geometry(), "1MiB", seed=0)
    out = mm.folio_mc_copy(mem, [], [])
    assert [column.shape for column in vars(out).values()] == [(0,)] * 7


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stage():
    """Two free-standing folios of order 0 and two of order 1, a freed one, and a memory with a hole behind pfn 127."""
    geometry = Geometry(arch="generic", max_page_order=4, page_block_max_order=2, transparent_hugepage=False)
    zones = [Zone(0, "Normal", a, b, [(a, b)]) for a, b in ((0, 125), (200, 256))]
    mem = views.machine(geometry, zones, cpus=2, contents=True)
    single, double = mm.alloc_pages(mem, 0, 3), mm.alloc_pages(mem, 1, 2)
    mm.free_pages(mem, single[2])
    return mem, {"a": single[0], "b": single[1], "gone": single[2], "big": double[0], "big2": double[1]}


@pytest.mark.parametrize(
    ("dst", "src", "options", "message"),
    [
        (["a"], ["a"], {}, "overlap"),
        (["a", "a"], ["b", "b"], {}, "overlap"),
        (["a", "b"], ["b", "a"], {}, "overlap"),
        (["a"], ["gone"], {}, "not live"),
        (["gone"], ["a"], {}, "not live"),
        ([-1], ["a"], {}, "not live"),
        (["a"], [1 << 40], {}, "not live"),
        (["a"], [1.0], {}, "whole numbers"),
        (["a"], ["b" * 2], {}, "whole numbers"),
        (["a"], [True], {}, "whole numbers"),
        (["a"], ["b", "big"], {}, "1 destination folios for 2"),
        (["a"], ["big"], {}, "destination folio 0 has order 0, its source 1"),
        (["a"], ["b"], {"engine": "rep movsb"}, "engine 'rep movsb'; one of: fragile"),
        (["a"], ["b"], {"engine": ""}, "engine"),
        (["a"], ["b"], {"batch": "folio"}, "batch 'folio'; one of: page, extent"),
        (["a"], ["b"], {"preempt": "rt"}, "preemption model 'rt'"),
        (["a"], ["b"], {"cpu": 2}, "cpu 2"),
        (["a"], ["b"], {"cpu": -1}, "cpu -1"),
        (["a"], ["b"], {"engine": "fast_string", "granule": 3}, "granule 3"),
        (["a"], ["b"], {"engine": "fast_string", "granule": 8192}, "granule 8192"),
        (["a"], ["b"], {"engine": "fast_string", "lag": -1}, "lag -1"),
        (["a"], ["b"], {"engine": "fast_string", "lag": 1.5}, "lag 1.5"),
        (["a"], ["b"], {"engine": "fragile", "lag": 64}, "belong to engine fast_string"),
    ],
)
def test_folio_mc_copy__bad_input(stage, dst, src, options, message):
    mem, folios = stage
    handles = [[folios.get(name, name) for name in names] for names in (dst, src)]
    refused(mem, message, mm.folio_mc_copy, *handles, **options)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_folio_mc_copy__pairs_that_may_be_copied(stage, data):
    """Every target once, none of them a source, all live, sizes pairwise equal; a source may serve several targets."""
    mem = stage[0].copy()
    folios = stage[1] | dict(zip("cd", mm.alloc_pages(mem, 0, 2), strict=True))
    order = {"a": 0, "b": 0, "gone": None, "big": 1, "big2": 1, "c": 0, "d": 0}
    names = st.sampled_from(["a", "b", "c", "d", "big", "big2"]) | st.sampled_from(sorted(order))
    pairs = data.draw(st.lists(st.tuples(names, names), max_size=4))
    dst, src = [to for to, _ in pairs], [of for _, of in pairs]
    live = all(order[name] is not None for name in dst + src)
    fits = live and all(order[to] == order[of] for to, of in pairs)
    handles = [[folios[name] for name in names] for names in (dst, src)]
    if fits and len(set(dst)) == len(dst) and not set(dst) & set(src):
        assert mm.folio_mc_copy(mem, *handles).status.tolist() == [0] * len(pairs)
        mem.check()
    else:
        refused(mem, "", mm.folio_mc_copy, *handles)


@pytest.mark.parametrize(
    ("to_pfn", "from_pfn", "nr_pages", "message"),
    [
        (0, 0, 1, "overlap"),
        (4, 0, 5, "overlap"),
        (0, 4, 5, "overlap"),
        (0, 100, 0, "nr_pages 0"),
        (0, 100, -1, "nr_pages -1"),
        (0, 100, 1.0, "nr_pages 1.0"),
        (0, 100, 1 << 40, "nr_pages"),
        (0, 256, 1, "pfn 256 is outside memory"),
        (300, 0, 1, "pfn 300 is outside memory"),
        (-1, 0, 1, "pfn -1"),
        (0, 120, 8, "source pfns 120..127 cross a hole"),
        (120, 0, 8, "destination pfns 120..127 cross a hole"),
        (0, 120, 90, "hole"),
        ("0", 100, 1, "pfn '0'"),
        (True, 100, 1, "pfn True"),
        (0, None, 1, "pfn None"),
    ],
)
def test_copy_mc_highpages__bad_input(stage, to_pfn, from_pfn, nr_pages, message):
    refused(stage[0], message, mm.copy_mc_highpages, to_pfn, from_pfn, nr_pages)


def test_copy_mc_highpages__a_gap_between_pfns_that_lie_side_by_side_in_the_arrays(small_geometry):
    zones = [Zone(0, "Normal", a, b, [(a, b)]) for a, b in ((0, 64), (128, 256))]
    mem = views.machine(small_geometry, zones)
    assert mem.index([63, 128]).tolist() == [63, 64]
    refused(mem, "source pfns 60..131 cross a hole", mm.copy_mc_highpages, 140, 60, 72)
    assert mm.copy_mc_highpages(mem, 128, 0, 64).status.tolist() == [0]
