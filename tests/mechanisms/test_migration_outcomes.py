"""What callers of migrate_pages() and move_pages() see: contents, failures on the way, statuses, refusals."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.errors import InputError
from memmodel.jit import JIT_ENABLED
from memmodel.mechanisms.migration import CALLERS
from memmodel.state.layout import FolioBit, Kind, PageFlag
from tests.reference.views import refused

PAGE = 4096


SIZE, SMALL = "64MiB" if JIT_ENABLED else "40MiB", "16MiB"


def machine(kernel="6.12.117", size=SIZE, **options):
    return mm.PhysicalMemory(mm.Geometry(kernel=kernel), size, nodes=2, cpus=2, seed=1, **options)


def fill(mem, node, leave):
    """Take all of a node but every second page, as many as there must be and `leave` more."""
    taken = mm.alloc_pages(mem, count=1 << 20, node=node, gfp="GFP_ATOMIC|__GFP_MEMALLOC|__GFP_THISNODE|__GFP_MOVABLE")
    taken = taken[taken >= 0]
    zone = mem.state.zones[mem.state.zones["node"] == node][0]
    n_free = int(zone["watermark"][0]) + leave
    taken = taken[np.argsort(mem.pfn(taken))]
    mm.free_pages(mem, taken[: 2 * n_free : 2])
    mm.drain_all_pages(mem)
    return np.concatenate([taken[1 : 2 * n_free : 2], taken[2 * n_free :]])


def node_of(mem, folios):
    return mem.state.zones["node"][mem.state.pages["zone"][mem.index(mem.pfn(folios))]].tolist()


def rows_of(mem, folios):
    first = mem.index(mem.pfn(folios))
    orders = mem.state.pages["state"][first] & 15
    return [list(range(row, row + (1 << order))) for row, order in zip(first.tolist(), orders.tolist(), strict=True)]


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117"])
@pytest.mark.parametrize("orders", [[0, 3, 0, 9, 1, 0], [0] * 1500, [9] * 4])
def test_migrate_pages__contents_go_along(kernel, orders):
    mem = machine(kernel, contents=True)
    folios = np.concatenate([mm.alloc_pages(mem, order=order) for order in orders])
    rng = np.random.default_rng(0)
    before = []
    for rows in rows_of(mem, folios):
        mem.contents[rows] = rng.integers(0, 256, (len(rows), PAGE), np.uint8)
        before.append(mem.contents[rows].copy())
    out = mm.migrate_pages(mem, folios, 1)
    assert (out.rc, out.nr_succeeded) == (0, sum(1 << order for order in orders))
    assert node_of(mem, folios) == [1] * len(orders)
    for rows, content in zip(rows_of(mem, folios), before, strict=True):
        assert np.array_equal(mem.contents[rows], content)
    mem.check()


@pytest.mark.parametrize(("mode", "tries"), [("async", 1), ("sync", 2)])
def test_migrate_pages__an_error_in_the_300th_page(mode, tries):
    """The source stays where it was, mapped; each try queues it."""
    mem = machine(contents=True)
    pages = mm.alloc_pages(mem, count=512)
    pfns = mem.pfn(pages)
    mem.contents[mem.index(pfns)] = np.arange(512, dtype=np.uint64).astype(np.uint8)[:, None]
    mm.inject_poison(mem, pfn=int(pfns[299]), line=17)
    out = mm.migrate_pages(mem, pages, 1, mode=mode)
    assert (out.rc, out.nr_succeeded, out.nr_failed) == (1, 511, 1)
    assert (out.counts["n_poisoned"], out.counts["n_set"]) == (tries, 512 + tries - 1)
    assert out.counts["n_set"] == out.counts["n_removed"]
    assert np.flatnonzero(out.status).tolist() == [299]
    assert out.status[299] == -133
    assert mem.pfn(pages[299])[0] == pfns[299]
    others = np.delete(np.arange(512), 299)
    assert np.array_equal(mem.contents[mem.index(mem.pfn(pages[others])), 5], others.astype(np.uint8))
    assert mm.run_memory_failure_work(mem).pfn.tolist() == [pfns[299]] * tries
    mem.check()


def test_migrate_pages__an_error_in_a_thp():
    mem = machine()
    thp = mm.fault_thp(mem)
    pfn = int(mem.pfn(thp)[0])
    mm.inject_poison(mem, pfn=pfn + 300, line=17)
    out = mm.migrate_pages(mem, thp, 1, caller="demotion")
    assert (out.rc, out.nr_failed, out.nr_thp_failed, out.status.tolist()) == (1, 512, 1, [-133])
    assert mem.pfn(thp)[0] == pfn
    assert mem.vmstat()["pgmigrate_fail"] == 512
    assert mm.run_memory_failure_work(mem).pfn.tolist() == [pfn + 300]


@pytest.mark.parametrize("kernel", ["6.1", "6.12.117"])
@pytest.mark.parametrize("leave", [0, 1, 100, 513])
def test_migrate_pages__a_full_target_node(kernel, leave):
    """No page is lost or doubled; what found room has moved, the rest is where it was."""
    mem = machine(kernel, SMALL)
    others = fill(mem, 1, leave)
    pages = mm.alloc_pages(mem, count=600, gfp="GFP_HIGHUSER_MOVABLE|__GFP_THISNODE")
    pfns = mem.pfn(pages)
    out = mm.migrate_pages(mem, pages, 1)
    moved = np.array(node_of(mem, pages)) == 1
    assert out.nr_succeeded == moved.sum()
    assert abs(moved.sum() - leave) < 64  # the watermark is looked at once for each refill of the per-CPU list
    assert (out.rc, mem.vmstat()["pgmigrate_success"]) == (-12, moved.sum())
    assert np.array_equal(out.status == 0, moved)
    assert np.array_equal(mem.pfn(pages[~moved]), pfns[~moved])
    everything = np.concatenate([mem.pfn(pages), mem.pfn(others)])
    assert np.unique(everything).size == everything.size
    mem.check()
    mm.free_pages(mem, np.concatenate([pages, others]))
    mem.check()


@pytest.mark.parametrize("leave", [100, 600])
def test_migrate_pages__a_thp_without_a_target_is_split(leave):
    """The worked example: 512 pages follow one by one as far as there is room."""
    mem = machine(size=SMALL)
    some = fill(mem, 1, leave)
    thp = mm.fault_thp(mem)
    out = mm.migrate_pages(mem, thp, 1, caller="demotion")
    assert out.trace_line() == (
        f"mm_migrate_pages: nr_succeeded={out.nr_succeeded} nr_failed={out.nr_failed} nr_thp_succeeded=0"
        " nr_thp_failed=1 nr_thp_split=1 nr_split=1 mode=MIGRATE_ASYNC reason=demotion"
    )
    assert out.parts.size == 511
    assert set(out.part_of.tolist()) == {0}
    assert (out.nr_succeeded == 512) == (leave == 600)
    assert out.nr_succeeded > 0
    pieces = np.concatenate([thp, out.parts])
    assert node_of(mem, pieces).count(1) == out.nr_succeeded
    assert out.rc == (0 if out.nr_succeeded == 512 else 1)
    mem.check()
    mm.free_pages(mem, np.concatenate([pieces, some]))
    mem.check()


def test_migrate_pages__an_error_stays_with_its_page_when_a_thp_is_split():
    mem = machine(size=SMALL)
    thp = mm.fault_thp(mem)
    mm.set_folio(mem, thp, mapping="anon", pins=1)
    pfn = int(mem.pfn(thp)[0])
    assert mm.memory_failure(mem, pfn).page_type == "unsplit thp"
    mm.set_folio(mem, thp, pins=0)
    fill(mem, 1, 0)
    assert mm.migrate_pages(mem, thp, 1).nr_thp_split == 1
    assert mem.pfns.pfn(np.flatnonzero(mem.state.pages["pg_flags"] & PageFlag.HWPOISON)).tolist() == [pfn]
    mem.check()


def test_migrate_pages__pages_freed_instead_of_moved_have_no_handle():
    """The rows of the first THP's pages are the next one's targets: they are not its pages any more."""
    mem = machine("7.3")
    thps = mm.fault_thp(mem, 2)
    mm.set_folio(mem, thps, partially_mapped=True)
    mm.set_folio(mem, thps[:1], orphan=True)
    out = mm.migrate_pages(mem, thps, 0)
    assert (out.rc, out.nr_split) == (0, 2)
    assert set(out.parts[out.part_of == 0].tolist()) == {-1}
    kept = out.parts[out.part_of == 1]
    assert np.unique(mem.pfn(kept)).size == kept.size == 511
    mem.check()


@pytest.mark.parametrize(("order", "n_split"), [(0, 0), (1, 0), (2, 1)])
def test_migrate_pages__partially_mapped_folios_of_more_than_two_pages_are_split(order, n_split):
    mem = machine(size=SMALL)
    folio = mm.alloc_pages(mem, order)
    mm.set_folio(mem, folio, isolated=False, partially_mapped=True)
    out = mm.migrate_pages(mem, folio, 1)
    assert (out.rc, out.nr_split, out.nr_succeeded, out.nr_failed) == (0, n_split, 1 << order, 0)
    mem.check()


def test_migrate_pages__numa_balancing_never_splits():
    mem = machine(size=SMALL)
    fill(mem, 1, 600)
    thp = mm.fault_thp(mem)
    out = mm.migrate_pages(mem, thp, 1, caller="numa_balancing")
    assert (out.rc, out.nr_thp_split, out.nr_thp_failed, out.nr_failed) == (-12, 0, 1, 512)


def test_migrate_pages__kernel_memory_is_not_taken_on():
    mem = machine()
    folios = np.concatenate([mm.alloc_pages(mem), mm.alloc_pages(mem, migratetype="unmovable")])
    out = mm.migrate_pages(mem, folios, 1)
    assert (out.rc, out.n_not_isolated, out.status.tolist()) == (0, 1, [0, -16])


def test_migrate_pages__hugetlb_pages_have_a_flush_each():
    mem = machine()
    pages = mm.alloc_hugetlb(mem, 3, node=0)
    mm.set_folio(mem, pages, mapped_by=0)
    out = mm.migrate_pages(mem, pages, 1, cpumask=[0, 1])
    assert (out.rc, out.nr_succeeded, out.nr_thp_succeeded, out.n_flushes, out.n_ipis) == (0, 1536, 0, 3, 3)
    assert mem.state.folios["bits"][pages & 0xFFFFFFFF].tolist() == [FolioBit.HUGETLB] * 3


def test_migrate_pages__memory_failure_keeps_the_source():
    """Its caller must account for it, which soft_offline_page() does: nobody else is given a page without a handle."""
    mem = machine()
    page = mm.alloc_pages(mem)
    row = mem.index(mem.pfn(page))[0]
    refused(mem, "soft_offline_page moves", mm.migrate_pages, page, 1, caller="memory_failure")
    out = mm.soft_offline_page(mem, int(mem.pfns.pfn(row)))
    assert (out.rc, out.folio, mem.handles(row)[0]) == (0, int(page[0]), out.vacated)
    assert mem.state.pages["state"][row] == Kind.HWPOISON << 4
    assert mem.pfn(page)[0] == out.moved_to
    mem.check()


def test_migrate_pages__the_same_after_a_copy():
    mem = machine()
    pages = mm.alloc_pages(mem, count=700)
    twin = mem.copy()
    for each in (mem, twin):
        mm.migrate_pages(each, pages, 1, cpumask=[0, 1], batch=64)
    assert mem.digest == twin.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"caller": "nobody"}, "unknown caller 'nobody'; one of: move_pages, "),
        ({"mode": "later"}, "unknown mode 'later'; one of: async, sync_light, sync"),
        ({"batch": 0}, "batch 0; 1 to "),
        ({"cpu": 2}, "cpu 2; this machine has 0 to 1"),
        ({"node": 2}, "node 2; this machine has 0, 1"),
        ({"cpumask": [0, 2]}, "cpu 2 in a mask; this machine has 0 to 1"),
        ({"lazy": [1]}, "lazy: CPU 1 has no address space loaded to be lazy about"),
        ({"engine": "memcpy"}, r"pfn \d+: copying its error would stop the machine \(engine\)"),
    ],
)
def test_migrate_pages__refused(change, message):
    mem = machine()
    pages = mm.alloc_pages(mem, count=4)
    mm.inject_poison(mem, pfn=int(mem.pfn(pages)[2]), line=0)
    before = mem.digest
    with pytest.raises(InputError, match=f"^{message}"):
        mm.migrate_pages(mem, pages, **{"node": 1, **change})
    assert mem.digest == before


def test_migrate_pages__no_recovery_before_6_11():
    mem = machine("6.1")
    pages = mm.alloc_pages(mem, count=4)
    mm.inject_poison(mem, pfn=int(mem.pfn(pages)[2]), line=0)
    with pytest.raises(InputError, match=r"would stop the machine \(kernel 6.1\)$"):
        mm.migrate_pages(mem, pages, 1)
    assert mm.migrate_pages(mem, pages[:2], 1).rc == 0


def test_migrate_pages__handles_refused():
    mem = machine()
    pages = mm.alloc_pages(mem, count=4)
    mm.free_pages(mem, pages[3])
    for folios in (pages, pages[[0, 1, 0]], [-1]):
        with pytest.raises(InputError, match="is not live"):
            mm.migrate_pages(mem, folios, 1)
    mm.set_folio(mem, pages[0], mapped_by=[3])
    with pytest.raises(InputError, match=r"^a folio is mapped by address space 3; tlb has 1$"):
        mm.migrate_pages(mem, pages[:3], 1)
    with pytest.raises(InputError, match=r"^cpumask and lazy belong to a call without tlb$"):
        mm.migrate_pages(mem, pages[:3], 1, cpumask=[0], tlb=mm.Tlb(mem.geometry, 2, [[0]]))
    with pytest.raises(InputError, match=r"^tlb is of 4 CPUs, this machine has 2$"):
        mm.migrate_pages(mem, pages[1:3], 1, tlb=mm.Tlb(mem.geometry, 4, [[0]]))


def test_callers__their_modes():
    assert {caller.mode for caller in CALLERS.values()} == {"async", "sync"}
    assert [name for name, caller in CALLERS.items() if not caller.splits] == ["numa_balancing"]


# -- move_pages() ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "absent"), [("6.1", -14), ("6.12.117", -2), ("7.3", -2)])
def test_move_pages__each_entry_its_status(kernel, absent):
    mem = machine(kernel)
    pages = mm.alloc_pages(mem, count=3)
    there, kernels = mm.alloc_pages(mem, node=1), mm.alloc_pages(mem, migratetype="unmovable")
    mm.set_folio(mem, pages[1], mapped_by=[0, 1])
    entries = [
        *(pages[0], mm.Entry.ABSENT, mm.Entry.ABSENT_FILE, mm.Entry.ZERO_PAGE, mm.Entry.NO_MAPPING),
        *(pages[1], there[0], kernels[0], pages[2], pages[2]),
    ]
    out = mm.move_pages(mem, entries, 1, tlb=mm.Tlb(mem.geometry, 2, [[0], [0]]))
    assert out.ret == 0
    assert out.status.tolist() == [1, absent, -2, -14, -14, -13, 1, -16, 1, -16]
    assert [call.nr_succeeded for call in out.calls] == [1, 1]
    assert out.total("nr_succeeded") == out.total("n_set") == out.total("local_mm") == 2


def test_move_pages__a_call_for_each_run_with_one_target():
    mem = machine()
    pages = np.concatenate([mm.alloc_pages(mem, count=3), mm.alloc_pages(mem, count=2, node=1)])
    out = mm.move_pages(mem, pages, [1, 1, 1, 0, 0])
    assert (out.ret, len(out.calls), out.status.tolist()) == (0, 2, [1, 1, 1, 0, 0])


@pytest.mark.parametrize(
    ("targets", "ret", "status"),
    [
        ([1, 1, 0, 1, 1], 4, [-99] * 5),  # 1 failed, and 3 after the run
        ([1, 1, 1, 1, 1], 1, [-99] * 5),
    ],
)
def test_move_pages__it_ends_with_a_run_that_does_not_move_whole(targets, ret, status):
    """Of such a run no status is written, not even of the pages that moved."""
    mem = machine()
    pages = mm.alloc_pages(mem, count=5)
    mm.set_folio(mem, pages[1], pins=1)
    targets = np.array(targets)
    out = mm.move_pages(mem, pages, targets)
    assert (out.ret, out.status.tolist()) == (ret, status)
    assert node_of(mem, pages[:2]) == [1, 0]


def test_move_pages__an_entry_that_ends_a_failed_run_is_not_counted_again():
    mem = machine()
    pages = mm.alloc_pages(mem, count=3)
    mm.set_folio(mem, pages[0], pins=1)
    out = mm.move_pages(mem, [pages[0], mm.Entry.ABSENT, pages[1], pages[2]], 1)
    assert (out.ret, out.status.tolist()) == (1 + 2, [-99, -2, -99, -99])


def test_move_pages__errors():
    mem = machine(size=SMALL)
    pages = mm.alloc_pages(mem, count=600, gfp="GFP_HIGHUSER_MOVABLE|__GFP_THISNODE")
    assert mm.move_pages(mem, pages, 5).ret == -19
    fill(mem, 1, 0)
    assert mm.move_pages(mem, pages, 1).ret == -12
    with pytest.raises(InputError, match=r"^entry -9; a handle, or one of ABSENT, "):
        mm.move_pages(mem, [-9], 1)
    assert mem.state.lru["size"].tolist() == [31, 31]


# -- address spaces ----------------------------------------------------------------------------------------------------


def test_tlb__a_sleeper_and_huge_pages():
    """Every THP interrupts an idle CPU, as long as it comes back between them."""
    for wakes, ipis in ((False, 1), (True, 8)):
        mem = machine()
        tlb = mm.Tlb(mem.geometry, 2, [[0, 1]], lazy=[1], wakes=wakes)
        out = mm.migrate_pages(mem, mm.fault_thp(mem, 8), 1, tlb=tlb)
        assert (out.n_flushes, out.n_ipis) == (8, ipis)
        assert tlb.cpumasks == [[0, 1] if wakes else [0]]


def test_tlb__broadcast():
    mem = machine("7.3")
    tlb = mm.Tlb(mem.geometry, 2, [[0, 1]], invlpgb=True)
    out = mm.migrate_pages(mem, mm.alloc_pages(mem, count=1024), 1, tlb=tlb)
    assert (out.n_flushes, out.n_ipis, out.flushes["broadcasts"]) == (2, 0, 2)


def test_tlb__flush_from_outside():
    tlb = mm.Tlb(mm.Geometry(), 3, [[0, 1], [0, 2]], loaded={0: 1})
    tlb.flush(1, 0)
    tlb.flush(1, 0, 34)
    tlb.flush(0, 1, 33)
    counts = tlb.counts
    assert (counts["local_mm"], counts["local_full"], counts["local_pages"], counts["ipis"]) == (3, 1, 34, 2)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((2, []), {}, "0 address spaces; 1 to 32 are possible"),
        ((2, [[2]]), {}, "cpu 2 in a mask; this machine has 0 to 1"),
        ((2, [[0]]), {"loaded": {0: 1}}, "loaded: CPU 0 with address space 1; there are 2 and 1"),
        ((2, [[0]]), {"invlpgb": True}, "invlpgb: kernel 6.12.117 does not use it"),
    ],
)
def test_tlb__refused(arguments, options, message):
    with pytest.raises(InputError, match=f"^{message}"):
        mm.Tlb(mm.Geometry(), *arguments, **options)
    with pytest.raises(InputError, match=r"^address space 1, CPU 0; there are 1 and 1$"):
        mm.Tlb(mm.Geometry(), 1, [[0]]).flush(1, 0)


def test_set_folio__refused():
    mem = machine()
    page = mm.alloc_pages(mem)
    for options, message in (
        ({"upside_down": True}, "unknown mark 'upside_down'; one of: locked, writeback, "),
        ({"pins": 255}, "pins 255; 0 to 254 are possible"),
        ({"mapped_by": [32]}, "address space 32; 0 to 31 are possible"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            mm.set_folio(mem, page, locked=True, **options)
    assert mem.state.folios["bits"][page & 0xFFFFFFFF].tolist() == [0]
