"""memory_failure()'s decisions against the slow twin, over page states, flags and kernels."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.state.layout import Kind, PageFlag
from tests.reference import memory_failure as twin
from tests.reference import views
from tests.reference.buddy import Zone

KERNELS = (twin.OLD, twin.MIDDLE, twin.NEW)
ORDER = 2  # of large folios
HUGETLB = {"dirty", "pte_dirty", "unmap_fails"}


@pytest.fixture(scope="module")
def memories():
    """A machine of 64 pages with one reserved, by kernel."""
    zones = [Zone(0, "Normal", 0, 64, [(0, 40), (41, 64)])]
    options = {"arch": "generic", "max_page_order": 4, "page_block_max_order": 2, "transparent_hugepage": False}
    return {kernel: views.machine(Geometry(kernel=kernel, **options), zones) for kernel in KERNELS}


@st.composite
def pages(draw):
    where = draw(st.sampled_from(["user"] * 8 + ["hugetlb"] * 2 + ["free", "reserved", "kernel", "slab", "page_table"]))
    flag = st.booleans()
    page = twin.Page(where=where, pins=draw(st.sampled_from([0, 0, 0, 1, 2, 7])))
    if where in ("free", "reserved"):
        return twin.Page(where=where)
    if where in ("kernel", "slab", "page_table"):
        page.on_lru, page.n_mms, page.order = "none", 0, draw(st.sampled_from([0, 0, ORDER]))
        return page
    page.n_mms = draw(st.sampled_from([0, 1, 1, 2, 3]))
    page.dirty, page.pte_dirty, page.unmap_fails = draw(flag), draw(flag), draw(st.sampled_from([False] * 4 + [True]))
    if where == "hugetlb":
        page.mapping, page.order = draw(st.sampled_from(["anon", "anon", "hugetlbfs"])), ORDER
        return page
    page.mapping = draw(st.sampled_from(["anon", "anon", "nothing", *twin.FILES]))
    page.swapcache = page.mapping == "anon" and draw(flag)
    page.on_lru = draw(st.sampled_from(["lru", "lru", "batch", "isolated"]))
    page.mlocked, page.writeback = draw(flag), draw(st.sampled_from([False, False, True]))
    page.order = draw(st.sampled_from([0, 0, 0, ORDER])) if page.on_lru == "lru" else 0
    page.min_order = draw(st.sampled_from([0, 0, 1, ORDER])) if page.order and page.mapping in twin.FILES else 0
    return page


def put(mem, page, place):
    """The page in the model: its pfn, and its folio or -1."""
    if page.where in ("free", "reserved"):
        return 40 if page.where == "reserved" else 48, -1
    if page.where == "hugetlb":
        folio = int(mm.alloc_hugetlb(mem, 1, size=4096 << ORDER)[0])
    else:
        folio = int(mm.alloc_pages(mem, page.order, migratetype="movable" if page.where == "user" else "unmovable")[0])
    names = {"kernel": "kernel", "slab": "slab", "page_table": "page_table"}
    marks = ("dirty", "pte_dirty", "mlocked", "swapcache", "writeback", "unmap_fails")
    if page.where == "user":
        options = {name: getattr(page, name) for name in marks} | {"min_order": page.min_order}
        mm.set_folio(mem, folio, mapping=page.mapping, mapped_by=range(page.n_mms), pins=page.pins, **options)
        if page.on_lru != "batch" or page.order:
            mm.set_folio(mem, folio, isolated=page.on_lru == "isolated")
    elif page.where == "hugetlb":
        options = {name: getattr(page, name) for name in HUGETLB}
        mm.set_folio(mem, folio, mapping=page.mapping, mapped_by=range(page.n_mms), pins=page.pins, **options)
    else:
        mm.set_folio(mem, folio, mapping=names[page.where], pins=page.pins)
    return int(mem.pfn(folio)[0]) + min(place, (1 << page.order) - 1), folio


def later(mem, outcome):
    access = mm.access_page(mem, outcome.folio)
    return "signal" if access.signal else "reread" if access.reread else "data"


@settings(max_examples=600)
@given(
    kernel=st.sampled_from(KERNELS), page=pages(), held=st.booleans(), must_kill=st.booleans(), place=st.integers(0, 3)
)
def test_memory_failure__decides_as_the_twin(memories, kernel, page, held, must_kill, place):
    held = held and page.where in ("user", "hugetlb", "reserved", "kernel")
    mem = memories[kernel].copy()
    pfn, _ = put(mem, page, place)
    tasks = [mm.Task("t", 10 + n, n, 0x1000, early_kill=True) for n in range(4)]
    flags = mm.MfFlag.COUNT_INCREASED * held | mm.MfFlag.MUST_KILL * must_kill | mm.MfFlag.SW_SIMULATED
    out = mm.memory_failure(mem, pfn, flags=int(flags), tasks=tasks)
    mem.check()
    expected = twin.decide(kernel, page, held, must_kill)
    assert (out.page_type, out.result, out.rc) == (expected.page_type, expected.result, expected.rc)
    told = [signal.line for signal in out.signals]
    assert [line.split(": ", 2)[2] for line in out.log if line.split(": ", 2)[2] not in told] == [
        *expected.lines,
        f"recovery action for {expected.page_type}: {expected.result}",
    ]
    in_file = page.mapping in (*twin.FILES, "hugetlbfs")
    hit = [task.mm for task in tasks if task.mm < page.n_mms or in_file]
    assert [signal.task.mm for signal in out.signals] == (hit if expected.kills else [])
    assert {signal.number for signal in out.signals} <= {9 if expected.sigkill else 7}
    assert out.counted
    row = int(mem.index([pfn])[0])
    assert mem.state.pages["pg_flags"][row] & PageFlag.HWPOISON
    assert (mem.state.pages["state"][row] >> 4 == Kind.HWPOISON) == expected.lost
    assert out.parts.size == (1 if not page.order else (1 << page.order >> page.min_order)) * expected.split
    if out.folio >= 0 and (page.n_mms or in_file):
        assert later(mem, out) == expected.later
        reads_poison = page.mapping in ("shmem", "hugetlbfs") and not expected.lost
        assert mm.access_page(mem, out.folio, "pread").errno == 5 * reads_poison
        reported = expected.io_error and page.mapping in twin.WRITTEN_BACK
        assert [mm.access_page(mem, out.folio, "fsync").errno for _ in range(2)] == [5 * reported, 0]
    assert mm.hardware_corrupted_kib(mem) == 4
    assert mm.memory_failure_stats(mem)[0]["total"] == 1
