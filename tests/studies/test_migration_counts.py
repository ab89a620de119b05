"""Counts of moves from numbers alone, against migrate_pages() on a machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.errors import InputError
from memmodel.jit import JIT_ENABLED
from memmodel.state.layout import FolioBit
from memmodel.studies.migration_counts import HPAGE_PMD_ORDER, Plan, count_moves, is_batched

CPUS = 6


def counted(plan, kernel):
    """The same by the algorithm itself."""
    mem = mm.PhysicalMemory(mm.Geometry(kernel=kernel), "64MiB", nodes=2, cpus=CPUS, seed=0)
    folios = mm.alloc_pages(mem, plan.folio_order, plan.n_folios)
    if plan.folio_order > HPAGE_PMD_ORDER:
        mem.state.folios["bits"][folios & 0xFFFFFFFF] = FolioBit.HUGETLB
    masks = [list(range(plan.n_cpus))]
    lazy = list(range(plan.n_cpus - plan.n_lazy, plan.n_cpus))
    tlb = mm.Tlb(mem.geometry, CPUS, masks, lazy=lazy, wakes=True, invlpgb=plan.broadcast)
    outs = [
        mm.migrate_pages(mem, folios[i : i + plan.folios_per_call], 1, batch=plan.batch_pages, tlb=tlb)
        for i in range(0, plan.n_folios, plan.folios_per_call)
    ]
    flushes = tlb.counts
    return {
        "n_calls": len(outs),
        "n_pages": sum(out.nr_succeeded for out in outs),
        "n_ptes": sum(out.counts["n_set"] for out in outs),
        "n_batches": sum(out.counts["n_batches"] for out in outs),
        "largest_batch": max(out.counts["max_unmapped"] for out in outs) >> plan.folio_order,
        "n_full": flushes["local_full"],
        "n_page": flushes["local_pages"],
        "n_requests": flushes["requests"],
        "n_ipis": flushes["ipis"],
        "n_broadcasts": flushes["broadcasts"],
    }


@st.composite
def plans(draw):
    kernel = draw(st.sampled_from(["6.1", "6.12.117", "7.3"]))
    order = draw(st.sampled_from([0, 0, 1, 4, 9, 10]))
    cpus = draw(st.integers(1, CPUS))
    plan = Plan(
        n_folios=draw(st.integers(1, min(700, 2048 >> order))),
        folio_order=order,
        folios_per_call=draw(st.integers(1, 700)),
        batch_pages=draw(st.sampled_from([1, 3, 32, 512, 600])),
        n_cpus=cpus,
        n_lazy=draw(st.integers(0, cpus - 1)),
        batched=bool(is_batched(kernel)),
        broadcast=draw(st.booleans()) if kernel == "7.3" else False,
    )
    return plan, kernel


@settings(max_examples=80 if JIT_ENABLED else 5, deadline=None)
@given(drawn=plans())
def test_count_moves__as_migrate_pages(drawn):
    plan, kernel = drawn
    moves = count_moves(plan)
    assert {name: int(value) for name, value in moves._asdict().items()} == counted(plan, kernel)


def test_count_moves__many_at_once():
    plan = Plan(1024, [0, 9], 1024, [[512], [64]], 16, 0, True, False)
    assert count_moves(plan).n_ipis.tolist() == [[30, 15360], [240, 15360]]


def test_count_moves__refused():
    with pytest.raises(InputError, match=r"^4 idle CPUs; no more than the 3 others can idle$"):
        count_moves(Plan(1, 0, 1, 512, 4, 4, True, False))


def test_is_batched__by_name():
    assert np.array_equal(is_batched(np.array([["6.1", "6.3"], ["6.12.117", "6.2"]])), [[False, True], [True, False]])
