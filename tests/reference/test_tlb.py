"""The slow twin of TLB flushing: who is interrupted, who leaves a mask, how much is flushed."""

import pytest

from tests.reference.tlb import INIT_MM, KERNELS, Tlb

SELF, CHILD = 1, 2  # mms
ONE_CPU, TWO_CPUS = {SELF: {0}}, {SELF: {0, 1}}


@pytest.mark.parametrize(("masks", "first_writes"), [(ONE_CPU, 4), (ONE_CPU, 5), (TWO_CPUS, 3), (TWO_CPUS, 4)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_flush_page__shared_move_shows_copies_on_write_only(kernel, masks, first_writes):
    tlb = Tlb(masks, kernel=KERNELS[kernel])
    for _ in range(first_writes):
        tlb.flush_page(SELF, 0)
    assert (tlb.flush_ops, tlb.local_mm, tlb.local_pages) == (first_writes,) * 3
    assert tlb.requests == (first_writes if masks == TWO_CPUS else 0)


@pytest.mark.parametrize(("n_entries", "pages", "full"), [(1, 1, 0), (33, 33, 0), (34, 0, 1), (512, 0, 1)])
def test_flush_range__more_than_33_entries_flush_everything(n_entries, pages, full):
    tlb = Tlb(ONE_CPU)
    tlb.flush_range(SELF, 0, n_entries, tables_freed=False)
    assert (tlb.flush_ops, tlb.local_pages, tlb.local_full) == (1, pages, full)


def test_flush_page__is_full_behind_deferred_ones_which_then_find_nothing_to_do():
    tlb = Tlb(TWO_CPUS)
    tlb.defer(SELF)
    tlb.flush_page(SELF, 0)
    assert (tlb.local_pages, tlb.local_full) == (0, 1)
    tlb.flush_batch(0)
    assert (tlb.local_mm, tlb.local_batch, tlb.local_full, tlb.remote) == (1, 1, 1, 2)
    tlb.flush_batch(0)
    assert tlb.local_batch == 1


def test_flush_page__of_an_mm_loaded_elsewhere_or_nowhere():
    tlb = Tlb({SELF: {0}, CHILD: {1}})
    tlb.flush_page(CHILD, 0)
    assert (tlb.flush_ops, tlb.requests, tlb.ipis, tlb.remote) == (0, 1, 1, 1)
    tlb.flush_page(99, 0)
    assert (tlb.flush_ops, tlb.requests) == (0, 1)


def test_defers__asks_the_mask_of_the_ptes_mm_only():
    tlb = Tlb({SELF: {0}, CHILD: {1}}, lazy={1})
    assert (tlb.defers(SELF, 0), tlb.defers(CHILD, 0), tlb.defers(99, 0)) == (False, True, False)
    assert (tlb.defers(SELF, 1), tlb.defers(CHILD, 1)) == (True, False)
    assert not Tlb(TWO_CPUS, kernel=KERNELS["6.1"]).defers(SELF, 0)


def test_init__a_cpu_has_the_lowest_mm_loaded_whose_mask_holds_it():
    assert Tlb({5: {0, 1}, 3: {1, 2}, 4: {2}}).loaded == {0: 5, 1: 3, 2: 3}
    assert Tlb({5: {0}}, loaded={1: 5}).loaded_mm(0) == INIT_MM


@pytest.mark.parametrize(("kernel", "ipis"), [("6.1", 1), ("6.12.117", 0), ("7.3", 0)])
def test_flush_page__a_cpu_with_another_mm(kernel, ipis):
    tlb = Tlb({SELF: {0, 1}}, loaded={0: SELF, 1: CHILD}, kernel=KERNELS[kernel])
    tlb.flush_page(SELF, 0)
    assert (tlb.local_mm, tlb.requests, tlb.ipis, tlb.remote) == (1, 1, ipis, 0)
    assert tlb.masks[SELF] == {0, 1}


def test_flush_range__clears_a_wrong_cpu_in_73():
    tlb = Tlb({SELF: {0, 1}}, loaded={0: SELF, 1: CHILD}, kernel=KERNELS["7.3"])
    tlb.flush_range(SELF, 0, 512, tables_freed=True)
    assert (tlb.ipis, tlb.remote, tlb.wrong_cpu, tlb.masks[SELF]) == (1, 0, 1, {0})
    tlb.flush_range(SELF, 0, 512, tables_freed=True)
    assert (tlb.local_mm, tlb.requests, tlb.ipis) == (2, 1, 1)


def test_flush_batch__names_no_mm_and_reaches_every_cpu_that_does_not_sleep():
    masks = {SELF: {0, 1, 2, 3}, CHILD: {4}}
    tlb = Tlb(masks, lazy={3}, loaded={0: SELF, 1: CHILD, 3: SELF, 4: CHILD}, kernel=KERNELS["7.3"])
    tlb.defer(SELF)
    tlb.flush_batch(0)
    assert (tlb.local_batch, tlb.requests, tlb.ipis) == (1, 1, 2)
    assert tlb.remote == 1  # CPU 2 has init_mm, and says nothing
    assert (tlb.wrong_cpu, tlb.masks) == (0, masks)


def test_flush_batch__one_for_all_mms():
    tlb = Tlb({SELF: {0, 1}, CHILD: {2, 3}})
    tlb.defer(SELF)
    tlb.defer(CHILD)
    tlb.flush_batch(0)
    assert (tlb.local_batch, tlb.requests, tlb.ipis, tlb.remote) == (1, 1, 3, 3)
    tlb.defer(CHILD)
    tlb.flush_batch(0)
    assert (tlb.local_batch, tlb.requests, tlb.ipis) == (1, 2, 5)
    tlb.defer(99)  # an mm that is nowhere
    tlb.flush_batch(0)
    assert (tlb.local_batch, tlb.requests) == (1, 2)


def test_flush_range__on_a_cpu_that_is_lazy_itself():
    """A kernel thread migrates: its CPU lets go of the mm instead of flushing."""
    tlb = Tlb(ONE_CPU, lazy={0})
    tlb.flush_page(SELF, 0)
    assert (tlb.flush_ops, tlb.loaded[0], tlb.masks[SELF]) == (0, INIT_MM, set())


def test_run__a_sleeper_has_flushed_all_it_missed():
    tlb = Tlb(TWO_CPUS, lazy={1})
    for _ in range(3):
        tlb.flush_page(SELF, 0)
    tlb.run(SELF, 1)
    tlb.flush_page(SELF, 1)
    assert (tlb.local_pages, tlb.local_full) == (4, 0)


def test_run__leaves_the_old_mask_before_73():
    for name, old_mask in ("6.1", {0}), ("6.12.117", {0}), ("7.3", {0, 1}):
        tlb = Tlb(TWO_CPUS, kernel=KERNELS[name])
        tlb.run(CHILD, 1)
        assert tlb.masks == {SELF: old_mask, CHILD: {1}}
