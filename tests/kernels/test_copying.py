"""The copy kernel against the twin that plays every call through: errors everywhere, every way to cut a folio."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.cost.model import stretch_ns
from memmodel.geometry import Geometry
from memmodel.kernels import copying as kernels
from memmodel.kernels.copying import CopyRule, Total
from memmodel.mechanisms.copying import copy_rule
from tests.reference import copying as reference
from tests.reference import views

N_PAGES = 4
LINES = N_PAGES * 64
CUTS = [
    (0, 0),
    (0, 1),
    (1, 0),
    (1, 1),
    (2, 0),
    (3, 0),
    (3, 1),
    (4, 0),
    (9, 0),
]  # unit in pages (0: folio), page by page


def small_blocks(page_size=4096):
    """Memory is held in whole largest blocks: with small ones there are no more bytes than asked for."""
    return Geometry(arch="generic", page_size=page_size, max_page_order=3, transparent_hugepage=False)


def rule(unit=0, per_page=0, preemptible=0, recovers=1, granule=64, lag=0):
    """The kernel's rule: units of `unit` pages (0: the folio), in one call or page by page."""
    return CopyRule(*map(np.uint64, (unit, per_page, preemptible, recovers, granule, lag)))


def copy(mem, copy_rule, targets, sources, n_pages, stream=False):
    out = kernels.new_outcomes(len(sources))
    lanes = np.zeros((2, 4 if stream else 0), np.uint64)
    rows = (np.array(rows, np.uint64) for rows in (targets, sources, n_pages))
    kernels.copy_folios(mem.state, copy_rule, np.uint64(0), *rows, lanes, out)
    return out


def poison(mem, row, lines):
    """Poison lines (counted from a row's first byte) without any of the package's own code for that."""
    lines_per_page = mem.geometry.page_size_bytes // 64
    numbers = np.array([row * lines_per_page + line for line in sorted(lines)], np.uint64)
    mem.state = mem.state._replace(ue_lines=np.union1d(mem.state.ue_lines, numbers))
    for line in lines:
        page = row + line // lines_per_page
        mem.state.ue_pages[page // 64] |= np.uint64(1 << page % 64)


@pytest.fixture(scope="module")
def gallery():
    """257 sources of 4 pages: folio i has its error in line i, the last one none. 257 targets behind them."""
    mem = views.plain_memory(small_blocks(), 2 * (LINES + 1) * N_PAGES * 4096, contents=True, seed=0)
    rng = np.random.default_rng(3)
    mem.contents[:] = rng.integers(0, 256, mem.contents.shape, dtype=np.uint8)
    for i in range(LINES):
        poison(mem, N_PAGES * i, [i])
    return mem


ENGINES = {
    "fragile": (reference.fragile, {"granule": 8}),
    "powerpc": (reference.powerpc, {"granule": 1}),
    "fast_string": (reference.fast_string(64, 0), {}),
    "coarse": (reference.fast_string(4096, 0), {"granule": 4096}),
    "late": (reference.fast_string(64, 100), {"lag": 100}),
    "very late": (reference.fast_string(8, 5000), {"granule": 8, "lag": 5000}),
    "coarse and late": (reference.fast_string(1024, 1), {"granule": 1024, "lag": 1}),
}


@pytest.mark.parametrize(
    ("engine", "preemptible", "unit", "per_page"),
    [(engine, 0, *cut) for engine in ENGINES for cut in CUTS] + [("late", 1, *cut) for cut in CUTS],
)
def test_copy_folios__every_error_offset(gallery, engine, preemptible, unit, per_page):
    mem = gallery.copy()
    twin_engine, knobs = ENGINES[engine]
    copier = reference.Copier(twin_engine, 4096, unit or None, not per_page)
    sources = [N_PAGES * i for i in range(LINES + 1)]
    targets = [N_PAGES * (LINES + 1 + i) for i in range(LINES + 1)]
    out = copy(mem, rule(unit, per_page, preemptible, **knobs), targets, sources, [N_PAGES] * (LINES + 1))
    for i in range(LINES + 1):
        src = gallery.contents[sources[i] : sources[i] + N_PAGES].tobytes()
        dst = bytearray(gallery.contents[targets[i] : targets[i] + N_PAGES].tobytes())
        expected = copier.copy(dst, src, N_PAGES, {i} if i < LINES else set())
        assert mem.contents[targets[i] : targets[i] + N_PAGES].tobytes() == dst, f"bytes, error in line {i}"
        queued = -1 if expected.queued_page is None else sources[i] + expected.queued_page
        assert tuple(column[i].item() for column in out) == (
            expected.status,
            N_PAGES * 4096 - expected.n_copied,
            queued,
            i >= 16 and i < LINES,
            expected.n_calls,
            expected.n_resched,
            expected.longest_stretch(preemptible),
        ), f"error in line {i}"
    assert np.array_equal(mem.contents[: N_PAGES * (LINES + 1)], gallery.contents[: N_PAGES * (LINES + 1)])


@pytest.mark.parametrize(("unit", "per_page"), [(0, 0), (0, 1), (3, 0)])
def test_copy_folios__an_engine_without_recovery_panics(gallery, unit, per_page):
    mem = gallery.copy()
    copier = reference.Copier(reference.unprotected, 4096, unit or None, not per_page)
    for i in range(0, LINES, 5):
        source, target = N_PAGES * i, N_PAGES * (LINES + 1 + i)
        clean = N_PAGES * LINES
        out = copy(
            mem,
            rule(unit, per_page, recovers=0, granule=1),
            [target, N_PAGES * (2 * LINES + 1)],
            [source, clean],
            [N_PAGES] * 2,
        )
        dst = bytearray(gallery.contents[target : target + N_PAGES].tobytes())
        expected = copier.copy(dst, gallery.contents[source : source + N_PAGES].tobytes(), N_PAGES, {i})
        assert mem.contents[target : target + N_PAGES].tobytes() == dst
        assert (out.status.tolist(), out.index_queued.tolist()) == ([1, 2], [-1, -1])
        assert (out.n_calls[0], out.n_resched[0]) == (expected.n_calls, expected.n_resched)
        assert out.longest_stretch_bytes[0] == expected.longest_stretch(False)
    assert np.array_equal(mem.contents[-N_PAGES:], gallery.contents[-N_PAGES:])
    assert mem.state.queues["count"].tolist() == [0]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), page_size=st.sampled_from([4096, 16384, 65536]), stream=st.booleans())
def test_copy_folios__several_folios_and_errors(data, page_size, stream):
    """Folios of mixed sizes with several errors each: only the first counts, whichever way the bytes move."""
    sizes = data.draw(st.lists(st.sampled_from([1, 1, 2, 4, 8]), min_size=1, max_size=6))
    mem = views.plain_memory(small_blocks(page_size), 2 * sum(sizes) * page_size, contents=True, seed=0)
    mem.contents[:] = np.random.default_rng(1).integers(0, 256, mem.contents.shape, dtype=np.uint8)
    before = mem.contents.copy()
    granule, lag = data.draw(st.sampled_from([(1, 0), (64, 0), (64, 1), (256, 4097)]))
    unit = data.draw(st.integers(0, 5))
    sources = (np.cumsum(sizes) - sizes).tolist()
    targets = [row + sum(sizes) for row in sources]
    lines = page_size // 64
    bad = [
        set(data.draw(st.lists(st.integers(0, n * lines - 1), max_size=3) if data.draw(st.booleans()) else st.just([])))
        for n in sizes
    ]
    for row, some in zip(sources, bad, strict=True):
        poison(mem, row, some)
    out = copy(mem, rule(unit, granule=granule, lag=lag), targets, sources, sizes, stream)
    copier = reference.Copier(reference.fast_string(granule, lag), page_size, unit or None, True)
    for i, n in enumerate(sizes):
        dst = bytearray(before[targets[i] : targets[i] + n].tobytes())
        expected = copier.copy(dst, before[sources[i] : sources[i] + n].tobytes(), n, bad[i])
        assert mem.contents[targets[i] : targets[i] + n].tobytes() == dst
        assert (out.status[i], out.bytes_not_copied[i]) == (expected.status, n * page_size - expected.n_copied)
        assert out.index_queued[i] == (-1 if expected.queued_page is None else sources[i] + expected.queued_page)
        assert (out.n_calls[i], out.n_resched[i]) == (expected.n_calls, expected.n_resched)
        assert out.longest_stretch_bytes[i] == expected.longest_stretch(False)
    assert np.array_equal(mem.contents[: sum(sizes)], before[: sum(sizes)])


@pytest.mark.parametrize("page_size", [4096, 16384, 65536])
@pytest.mark.parametrize("n_folios", range(6))
def test_copy_folios__streaming_moves_the_same_bytes(page_size, n_folios):
    """Odd numbers of 4 KiB chunks, and rests that end anywhere, because the error is reported late."""
    mem = views.plain_memory(small_blocks(page_size), 64 * page_size, contents=True, seed=0)
    mem.contents[:] = np.random.default_rng(2).integers(0, 256, mem.contents.shape, dtype=np.uint8)
    sizes = [1, 3, 2, 5, 1][:n_folios]
    sources = [0, 1, 4, 6, 11][:n_folios]
    for row, line in ((1, 70), (6, 200), (11, 0)):
        poison(mem, row, [line])
    plain, streamed = mem.copy(), mem.copy()
    outs = [
        copy(memory, rule(lag=37), [row + 32 for row in sources], sources, sizes, stream)
        for memory, stream in ((plain, False), (streamed, True))
    ]
    assert all(np.array_equal(a, b) for a, b in zip(*outs, strict=True))
    assert np.array_equal(plain.contents, streamed.contents)
    if n_folios:
        assert np.array_equal(streamed.contents[32], mem.contents[0])
    if n_folios > 3:
        copied = 200 * 64 - 37  # bytes of the fourth folio before its error is noticed
        assert outs[1].bytes_not_copied[3] == 5 * page_size - copied
        got, was, source = (m.contents.reshape(-1) for m in (streamed, mem, mem))
        start, end = 38 * page_size, 43 * page_size
        assert np.array_equal(got[start : start + copied], source[6 * page_size : 6 * page_size + copied])
        assert np.array_equal(got[start + copied : end], was[start + copied : end])


@pytest.mark.parametrize(
    ("page_size", "arch", "preempt", "calls", "stretch_bytes"),
    [
        ("4KiB", "x86_64", "none", 32, 32 << 20),
        ("4KiB", "x86_64", "voluntary", 32, 32 << 20),
        ("4KiB", "x86_64", "lazy", 1, 0),
        ("4KiB", "x86_64", "full", 1, 0),
        ("64KiB", "powerpc64", "none", 32, 32 << 20),
        ("64KiB", "powerpc64", "full", 1, 0),
        ("64KiB", "arm64", "none", 16384, 64 << 10),
        ("64KiB", "arm64", "full", 16384, 0),
    ],
)
def test_copy_folios__one_gib(page_size, arch, preempt, calls, stretch_bytes):
    """In 32 MiB units 1 GiB keeps a CPU for 3.36 ms at 10 GB/s at most."""
    mem = views.plain_memory(Geometry(page_size=page_size, arch=arch), "2GiB", seed=0)
    n = (1 << 30) // mem.geometry.page_size_bytes
    out = copy(mem, copy_rule(mem.geometry, "extent", preempt), [n], [0], [n])
    resched = 0 if preempt in ("lazy", "full") else calls - 1
    counts = (out.status, out.bytes_not_copied, out.n_calls, out.n_resched, out.longest_stretch_bytes)
    assert [column.item() for column in counts] == [0, 0, calls, resched, stretch_bytes]
    wait_ns = {0: 0, 64 << 10: 6553.6, 32 << 20: 3355443.2}[stretch_bytes]
    assert float(stretch_ns(out.longest_stretch_bytes[0], 1e10)) == wait_ns


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_count_points__adds_up_what_the_twin_does(data):
    n_folios, n_pages = data.draw(st.integers(1, 60)), data.draw(st.sampled_from([1, 2, 4]))
    recovers, preemptible = data.draw(st.booleans()), data.draw(st.booleans())
    unit, per_page = data.draw(st.integers(0, 3)), data.draw(st.booleans())
    drain_folios = data.draw(st.sampled_from([1, 7, 20, 1000]))
    lines = st.integers(0, 64 * n_pages - 1)
    some = st.dictionaries(st.integers(0, n_folios - 1), lines)
    every = st.lists(lines, min_size=n_folios, max_size=n_folios).map(lambda bad: dict(enumerate(bad)))
    first_bad = data.draw(some | every)
    fields = [(name, "u8") for name in (*CopyRule._fields, "n_pages", "page_shift", "n_folios", "drain_folios")]
    numbers = rule(unit, per_page, preemptible, recovers, granule=64)
    points = np.array([(*numbers, n_pages, 12, n_folios, drain_folios)], fields).view(np.recarray)
    folios = np.array(sorted(first_bad), np.int64)
    errors = np.array([first_bad[folio] * 64 for folio in sorted(first_bad)], np.uint64)
    totals = np.zeros((1, len(Total)), np.int64)
    kernels.count_points(points, np.array([0, folios.size]), folios, errors, totals)

    engine = reference.fast_string(64, 0) if recovers else reference.unprotected
    copier = reference.Copier(engine, 4096, unit or None, not per_page)
    expected, waiting = dict.fromkeys(Total, 0), 0
    for folio in range(n_folios):
        if folio % drain_folios == 0:
            waiting = 0
        src, dst = bytes(4096 * n_pages), bytearray(4096 * n_pages)
        out = copier.copy(dst, src, n_pages, {first_bad[folio]} if folio in first_bad else set())
        expected[Total.TRIED] += 1
        expected[Total.FAILED] += out.status == -133
        expected[Total.BYTES_WRITTEN] += out.n_copied
        expected[Total.CALLS] += out.n_calls
        expected[Total.RESCHED] += out.n_resched
        expected[Total.STRETCH_BYTES] = max(expected[Total.STRETCH_BYTES], out.longest_stretch(preemptible))
        if out.status == -133:
            expected[Total.DROPPED] += waiting == 16
            waiting = min(waiting + 1, 16)
        if out.status == 1:
            expected[Total.PANICKED] = 1
            break
    assert totals[0].tolist() == list(expected.values())
