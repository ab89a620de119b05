"""The benchmarks cannot rot: who has one is written down, and each of them runs on something tiny. Nothing is timed."""

import inspect
import math
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from memmodel.jit import JIT_ENABLED

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "asv_benchmarks"
MODULES = sorted(path.stem for path in (SUITE / "benchmarks").glob("bench_*.py"))
METHODS = ("time_", "track_", "peakmem_")
COVERED_BY = {
    "freelist": "buddy",
    **dict.fromkeys(("cma", "contig_isolation", "contig_sources", "contig_task", "gigantic"), "contig"),
    "pageblock": "fallback",
    "reclaiming": "slowpath",
    **dict.fromkeys(("compact_control", "compact_finished", "compact_hints", "compact_run"), "compaction"),
    **dict.fromkeys(("compact_free", "compact_free_scan", "compact_migrate", "compact_search"), "compaction"),
    "thp_faults": "compaction",
    **dict.fromkeys(("migration_batch", "migration_folio", "migration_job", "migration_old", "tlb"), "migration"),
    **dict.fromkeys(("failure_actions", "failure_unmap", "folio_state", "huge_failure"), "memory_failure"),
    **dict.fromkeys(("page_flags", "soft_offline", "unpoison"), "memory_failure"),
    **dict.fromkeys(("allocate", "bulk", "folios", "lru", "pcp", "watermark"), "page_alloc"),
    **dict.fromkeys(
        (
            "private_lists",
            "replay_compaction",
            "replay_contig",
            "replay_helpers",
            "replay_state",
            "trace_frees",
            "used",
        ),
        "replaying",
    ),
}
TINY = {
    "size": "64MiB",
    "quick_size": "64MiB",
    "turns": 1,
    "sizes_mib": (1, 4),
    "n_lines": 100,
    "n_points": 8,
    "n_loops": 1000,
    "n_operations": 100_000,
    "n_requests": 256,
    "grid": {"folio_order": [0, 9]},
}


@pytest.fixture(autouse=True)
def suite(monkeypatch):
    """The suite as asv imports it: its folder on the path."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(SUITE))
    yield
    for name in set(sys.modules) - before:
        if name == "bars" or name.split(".")[0] == "benchmarks":
            del sys.modules[name]


def benchmark_classes(module):
    """Classes of a module that have something to run."""
    found = inspect.getmembers(import_module(f"benchmarks.{module}"), inspect.isclass)
    return [cls for _, cls in found if cls.__module__ == f"benchmarks.{module}" and methods_of(cls)]


def methods_of(cls):
    return [name for name in dir(cls) if name.startswith(METHODS)]


def run_tiny(cls, method):
    """Setup and method with the cheapest parameters on something tiny; what it returned."""
    benchmark = cls()
    for name in TINY.keys() & set(dir(cls)):
        setattr(benchmark, name, TINY[name])
    params = [values[0] for values in getattr(cls, "params", ())]
    try:
        getattr(benchmark, "setup", lambda *_: None)(*params)
        return getattr(benchmark, method)(*params)
    finally:
        getattr(benchmark, "teardown", lambda *_: None)(*params)


def test_benchmarks__every_kernel_file_has_one():
    kernels = {path.stem for path in (ROOT / "memmodel" / "kernels").glob("*.py")} - {"__init__"}
    assert not {name for name in kernels if f"bench_{COVERED_BY.get(name, name)}" not in MODULES}
    assert COVERED_BY.keys() <= kernels


@pytest.mark.parametrize("module", MODULES)
def test_benchmarks__modules_import_and_have_something_to_run(module):
    functions = inspect.getmembers(import_module(f"benchmarks.{module}"), inspect.isfunction)
    assert benchmark_classes(module) or any(name.startswith(METHODS) for name, _ in functions)


@pytest.mark.parametrize("module", MODULES)
def test_benchmarks__figures_have_a_unit_and_parameters_a_name(module):
    for cls in benchmark_classes(module):
        assert len(getattr(cls, "params", ())) == len(getattr(cls, "param_names", ())), cls
        if any(name.startswith("track_") for name in methods_of(cls)):
            assert isinstance(cls.unit, str), cls


@pytest.mark.skipif(not JIT_ENABLED, reason="the benchmarks are of compiled code")
@pytest.mark.parametrize("module", [name for name in MODULES if name != "bench_compile"])
def test_benchmarks__run_on_something_tiny(module):
    for cls in benchmark_classes(module):
        for method in methods_of(cls):
            try:
                figure = run_tiny(cls, method)
            except NotImplementedError:  # asv's way to skip: no gcc, one CPU
                continue
            if method.startswith("track_"):
                assert math.isnan(figure) or math.isfinite(figure), (cls, method)


@pytest.mark.skipif(not JIT_ENABLED, reason="the benchmarks are of compiled code")
def test_bench_compile__sessions_are_sound():
    for session in import_module("benchmarks.bench_compile").SESSIONS.values():
        exec(f"import memmodel as mm\n{session}", {})


def same_pages(churn):
    """Some turns, which raise where model and C twin differ; whether pages moved at all."""
    first = churn.sides[1].rows(churn.held[1]).copy()
    churn.times(3)
    return not np.array_equal(churn.sides[1].rows(churn.held[1]), first)


@pytest.mark.skipif(not JIT_ENABLED, reason="the benchmarks are of compiled code")
def test_bench_buddy__model_and_c_twin_give_the_same_pages():
    try:
        assert same_pages(import_module("benchmarks.bench_buddy").buddy_churn("16MiB", 512))
    except NotImplementedError as reason:
        pytest.skip(str(reason))


@pytest.mark.skipif(not JIT_ENABLED, reason="the benchmarks are of compiled code")
@pytest.mark.parametrize("batch", [100, 5000, 20000])
@pytest.mark.parametrize("used_share", [0.75, 0.94])
def test_bench_page_alloc__model_and_c_twin_come_to_the_same_state(batch, used_share):
    churn_of = import_module("benchmarks.bench_page_alloc").page_churn
    try:
        for handles in (True, False):
            churn = churn_of("256MiB", batch, handles=handles, used_share=used_share)
            assert same_pages(churn)
            model, twin = churn.sides
            twin.compare(model.mem)
    except NotImplementedError as reason:
        pytest.skip(str(reason))


@pytest.mark.skipif(not JIT_ENABLED, reason="the benchmarks are of compiled code")
def test_bench_page_alloc__a_different_state_shows():
    try:
        model, twin = import_module("benchmarks.bench_page_alloc").page_churn("256MiB", 100).sides
    except NotImplementedError as reason:
        pytest.skip(str(reason))
    model.mem.state.pcp["free_count"] += 1
    with pytest.raises(AssertionError, match="another state"):
        twin.compare(model.mem)


@pytest.mark.skipif(not JIT_ENABLED, reason="the benchmarks are of compiled code")
def test_bench_scaling__the_yardstick_goes_everywhere():
    scaling = import_module("benchmarks.bench_scaling")
    words, place, seen = scaling.random_ring(64), np.uint64(0), set()
    for _ in range(64):
        place = np.uint64(scaling.chase(words, place, 1))
        seen.add(int(place))
    assert len(seen) == 64


def test_bars__every_class_with_a_bar_has_a_row():
    bars = import_module("bars")
    rows = list(bars.figures())
    assert len({(row.benchmark, row.method, row.params) for row in rows}) == len(rows)
    with_bar = {
        cls
        for module in MODULES
        for cls in benchmark_classes(module)
        if hasattr(cls, "at_least") or hasattr(cls, "at_most")
    }
    assert {row.benchmark for row in rows} == with_bar
    for row in rows:
        assert row.method in methods_of(row.benchmark)
        assert all(
            value in values for value, values in zip(row.params, getattr(row.benchmark, "params", ()), strict=True)
        )
        assert bars.bar_of(row)[1] > 0


def test_bars__quick_figure(monkeypatch):
    bars = import_module("bars")
    row = next(row for row in bars.figures() if row.benchmark.__name__ == "BytesAPage")
    monkeypatch.setattr(row.benchmark, "size", "64MiB")
    assert 12 < bars.measure(row, quick=True) < 13
