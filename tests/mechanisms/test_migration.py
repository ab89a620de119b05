"""migrate_pages() against its slow twin, on machines that both allocate from; what is refused; what is kept."""

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.jit import JIT_ENABLED
from memmodel.kernels import lru, page_alloc
from memmodel.kernels.page_alloc import Request
from memmodel.mechanisms.migration import CALLERS, move_folios, targets_of
from memmodel.state.layout import NONE, FolioBit, Kind, PageFlag
from tests.reference import tlb as reference
from tests.reference.migration import Folio, Migrator
from tests.reference.parts import alone

KERNELS = ("6.1", "6.12.117", "7.3")
MARKS = ("locked", "writeback", "dirty", "no_migrate_folio", "inaccessible", "pte_mapped", "partially_mapped")
MARKS += ("protnone", "orphan", "hugetlb")
OF_HUGE_FOLIOS = {"pte_mapped", "partially_mapped", "hugetlb"}
PINNED, BAD = "pins", "bad"
CPUS = 3

alloc_block, free_block = alone(page_alloc.alloc_block), alone(page_alloc.free_block)
mark_used, add_lru = alone(page_alloc.mark_used), alone(lru.add_lru)


@dataclass
class Case:
    """What is drawn."""

    kernel: str
    orders: list
    marks: list  # of each folio
    owners: list
    caller: str
    mode: str | None
    batch: int
    masks: list
    lazy: list
    left_on_target: int | None  # pages


@st.composite
def cases(draw):
    orders = draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 9]), min_size=1, max_size=40))
    marks = st.lists(st.sampled_from((*MARKS, PINNED, BAD)), max_size=2, unique=True)
    some = st.one_of(st.just([]), marks)
    masks = draw(st.lists(st.lists(st.integers(0, CPUS - 1), unique=True), min_size=2, max_size=2))
    held = sorted({cpu for mask in masks for cpu in mask} - {0})
    return Case(
        kernel=draw(st.sampled_from(KERNELS)),
        orders=orders,
        marks=[draw(some) for _ in orders],
        owners=[draw(st.sampled_from([[0], [0], [1], [0, 1], []])) for _ in orders],
        caller=draw(st.sampled_from(sorted(CALLERS))),
        mode=draw(st.sampled_from([None, "async", "sync_light", "sync"])),
        batch=draw(st.sampled_from([1, 2, 7, 32, 512])),
        masks=masks,
        lazy=draw(st.lists(st.sampled_from(held), unique=True)) if held else [],
        left_on_target=draw(st.one_of(st.none(), st.integers(0, 700))),
    )


def machine(case):
    """Two nodes, the folios on the first, the second filled up to some pages."""
    mem = mm.PhysicalMemory(
        mm.Geometry(kernel=case.kernel), "64MiB" if JIT_ENABLED else "24MiB", nodes=2, cpus=CPUS, seed=1
    )
    if case.left_on_target is not None:
        mm.alloc_pages(mem, count=8192, node=1, gfp="GFP_HIGHUSER_MOVABLE|__GFP_THISNODE")
        some = mm.alloc_pages(mem, count=1 << 20, node=1, gfp="GFP_ATOMIC|__GFP_MEMALLOC|__GFP_THISNODE")
        mm.free_pages(mem, some[some >= 0][: case.left_on_target])
    folios = np.concatenate([mm.alloc_pages(mem, order=order) for order in case.orders])
    assume(folios.min() >= 0)  # they have room
    rows = mem.index(mem.pfn(folios))
    for handle, row, order, marks, owners in zip(folios, rows, case.orders, case.marks, case.owners, strict=True):
        flags = {name: True for name in marks if name in MARKS}
        if order != 9:
            flags = {name: flag for name, flag in flags.items() if name not in OF_HUGE_FOLIOS}
        mm.set_folio(mem, handle, mapped_by=owners, pins=1 if PINNED in marks else 0, **flags)
        if BAD in marks and case.kernel != "6.1":  # whose copies survive no error
            mm.inject_poison(mem, pfn=int(mem.pfns.pfn(row)) + (1 << order) // 2, line=3)
    for cpu in range(CPUS):
        lru.drain_lru(mem.state, np.uint64(cpu))
    mem.state.pages["pg_flags"][is_hugetlb(mem, rows)] = 0
    return mem, folios


def is_hugetlb(mem, rows):
    """Those of some rows."""
    return rows[mem.state.folios["bits"][mem.state.pages["next"][rows]] & FolioBit.HUGETLB != 0]


class Twin(Migrator):
    """The slow twin, on a copy of the memory, with the compiled allocator under it."""

    def __init__(self, case, mem, folios):
        self.mem, self.cpu_number = mem, np.uint64(0)
        kernel = reference.KERNELS[case.kernel]
        masks = dict(enumerate(case.masks))
        loaded = {cpu: m for m in (1, 0) for cpu in case.masks[m]}
        tlb = reference.Tlb(masks, case.lazy, loaded, kernel)
        asked = CALLERS[case.caller]
        self.mode, self.why = case.mode or asked.mode, asked.reason
        self.targets = targets_of(mem, asked, 1)
        super().__init__(kernel, tlb, self.take, self.give, batch=case.batch, memalloc=asked.memalloc)
        self.folios = []
        rows = mem.index(mem.pfn(folios))
        for row, order, marks, owners in zip(rows.tolist(), case.orders, case.marks, case.owners, strict=True):
            bits = FolioBit(int(mem.state.folios["bits"][mem.state.pages["next"][row]]))
            flags = {name: bool(bits & FolioBit[name.upper()]) for name in MARKS}
            pins, bad = int(mem.state.pages["refcount"][row]) - 1, BAD in marks and case.kernel != "6.1"
            self.folios.append(Folio(pfn=row, order=order, owners=set(owners), pins=pins, bad=bad, **flags))
            mem.state.pages["pg_flags"][row] = 0 if flags["hugetlb"] else PageFlag.LRU_ISOLATED
        if asked.drains_lru:
            lru.set_lru_batch(mem.state, np.uint64(1))

    def take(self, order):
        small, large = self.targets[:2], self.targets[2:]
        zonelist, like = large if order else small
        request = Request(np.uint64(order), *like[1:])
        row = alloc_block(self.mem.state, zonelist, self.cpu_number, request)
        if row == NONE:
            return None
        mark_used(self.mem.state, np.uint64(row), np.uint64(order))
        return int(row)

    def give(self, row, order):
        free_block(self.mem.state, np.uint64(row), self.cpu_number)

    def free_source(self, folio):
        if folio.target is not None and not folio.hugetlb:
            add_lru(self.mem.state, np.uint64(folio.target), self.cpu_number, np.uint64(folio.order))
        self.mem.state.pages["pg_flags"][folio.pfn] = 0
        super().free_source(folio)

    def pieces(self, folio):
        rows = np.arange(folio.pfn, folio.pfn + folio.n_pages)
        self.mem.state.pages["state"][rows] = Kind.USED << 4
        self.mem.state.pages["refcount"][rows] = 1
        self.mem.state.pages["pg_flags"][rows] = PageFlag.LRU_ISOLATED
        bad_page, bad = folio.pfn + folio.n_pages // 2, folio.bad
        parts = super().pieces(folio)
        for part in parts:
            part.bad = bad and part.pfn == bad_page
        return parts

    def run(self):
        out = self.migrate_pages(self.folios, self.mode, self.why)
        for folio in [folio for folio in out.left if not folio.hugetlb]:
            self.mem.state.pages["pg_flags"][folio.pfn] = 0
            add_lru(self.mem.state, np.uint64(folio.pfn), self.cpu_number, np.uint64(folio.order))
        return out


NUMBERS = ("rc", "nr_succeeded", "nr_failed", "nr_thp_succeeded", "nr_thp_failed", "nr_thp_split", "nr_split")
COUNTS = ("n_set", "n_removed", "n_targets", "n_copied", "n_poisoned", "lock_waits", "writeback_waits", "max_unmapped")
FLUSHES = ("local_mm", "local_batch", "requests", "ipis", "remote", "wrong_cpu", "local_full", "local_pages")


def compare(mem, twin_mem):
    """Everything that the allocator keeps."""
    mine, theirs = mem.state, twin_mem.state
    n = int(mine.params.n_pages)
    assert np.array_equal(mine.pages["state"], theirs.pages["state"])
    assert np.array_equal(mine.pages["pg_flags"][:n], theirs.pages["pg_flags"][:n])
    listed = np.ones(mine.pages.size, bool)
    listed[:n] = np.isin(mine.pages["state"][:n] >> 4, (Kind.FREE, Kind.PCP))
    for name in ("next", "prev"):
        assert np.array_equal(mine.pages[name][listed], theirs.pages[name][listed])
    for name in ("blocks", "zones", "pcp"):
        assert getattr(mine, name).tobytes() == getattr(theirs, name).tobytes(), name
    assert np.array_equal(mine.lru["count"], theirs.lru["count"])


@settings(max_examples=150 if JIT_ENABLED else 10, deadline=None)
@given(case=cases())
def test_migrate_pages__as_the_twin(case):
    mem, folios = machine(case)
    mem.check()
    twin = Twin(case, mem.copy(), folios)
    loaded = {cpu: m for m in (1, 0) for cpu in case.masks[m]}
    tlb = mm.Tlb(mem.geometry, CPUS, case.masks, lazy=case.lazy, loaded=loaded)
    asked = CALLERS[case.caller]
    asked = replace(asked, mode=case.mode or asked.mode)
    out = move_folios(mem, folios, 1, asked, batch=case.batch, tlb=tlb)
    theirs = twin.run()
    mem.check()
    assert {name: getattr(out, name) for name in NUMBERS} == {name: getattr(theirs, name) for name in NUMBERS}
    assert {name: out.counts[name] for name in COUNTS} == {name: getattr(theirs, name) for name in COUNTS}
    assert {name: out.flushes[name] for name in FLUSHES} == {name: getattr(twin.tlb, name) for name in FLUSHES}
    assert tlb.cpumasks == [sorted(twin.tlb.masks[m]) for m in (0, 1)]
    status = [2 if folio.status is None else folio.status for folio in twin.folios]
    assert [2 if status == 3 else status for status in out.status.tolist()] == status  # split, its head not tried
    compare(mem, twin.mem)
    live = [i for i, folio in enumerate(twin.folios) if not (folio.orphan and folio.status == 0)]
    assert mem.index(mem.pfn(folios[live])).tolist() == [twin.folios[i].pfn for i in live]
    pieces = [folio for folio in theirs.pieces if not any(folio is given for given in twin.folios)]
    moved = [folio for folio in pieces if not (folio.orphan and folio.status == 0)]
    assert sorted(mem.index(mem.pfn(out.parts[out.parts >= 0])).tolist()) == sorted(folio.pfn for folio in moved)
