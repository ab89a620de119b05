"""What moving equal folios takes, counted without a memory: many points at once.

What `migrate_pages` counts on a machine where nothing stands in the way, worked out from the numbers alone. Tests hold
it against that.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memmodel.errors import InputError
from memmodel.sources.features import kernel_features

__all__ = ["HPAGE_PMD_ORDER", "Moves", "Plan", "count_moves", "is_batched", "ptes_per_folio", "receivers"]

Ints = NDArray[np.int64]
HPAGE_PMD_ORDER = 9  # 4 KiB pages


class Plan(NamedTuple):
    """What is moved, and by whom; arrays that broadcast against each other."""

    n_folios: ArrayLike
    folio_order: ArrayLike
    """Below `HPAGE_PMD_ORDER` mapped by PTEs, at it by a PMD, above it hugetlb's."""
    folios_per_call: ArrayLike
    """Of one migrate_pages(); the last call gets the rest."""
    batch_pages: ArrayLike
    """NR_MAX_BATCHED_MIGRATION: base pages that make a batch full."""
    n_cpus: ArrayLike
    """In the address space's mask, the migrating one among them."""
    n_lazy: ArrayLike
    """Of these, how many idle; they come back before the next flush."""
    batched: ArrayLike
    """Whether the kernel batches (6.3 on)."""
    broadcast: ArrayLike
    """Whether flushes reach other CPUs by INVLPGB."""


class Moves(NamedTuple):
    """What that takes, an int64 array each."""

    n_calls: Ints
    n_pages: Ints
    n_ptes: Ints
    """Migration PTEs set, and as many removed."""
    n_batches: Ints
    """Lists unmapped together."""
    largest_batch: Ints
    """Folios of the longest."""
    n_full: Ints
    """Flushes of everything on the migrating CPU."""
    n_page: Ints
    """Pages flushed one by one there."""
    n_requests: Ints
    n_ipis: Ints
    n_broadcasts: Ints

    @property
    def n_flushes(self) -> Ints:
        """Flush operations on the migrating CPU, or broadcast."""
        return self.n_full + self.n_page + self.n_broadcasts


def is_batched(kernels: ArrayLike) -> NDArray[np.bool_]:
    """Whether kernels, by name, batch migration."""
    names = np.asarray(kernels)
    known = {name: "batched_migration" in kernel_features(name) for name in np.unique(names).tolist()}
    return np.array([known[name] for name in names.ravel().tolist()], np.bool_).reshape(names.shape)


def ptes_per_folio(order: ArrayLike) -> Ints:
    """PTEs that map a folio, by its order: a PMD in their place has none, hugetlb one entry."""
    orders = np.asarray(order, np.int64)
    pages = 1 << np.minimum(orders, HPAGE_PMD_ORDER)
    return np.where(orders == HPAGE_PMD_ORDER, 0, np.where(orders > HPAGE_PMD_ORDER, 1, pages))


def receivers(order: ArrayLike, n_cpus: ArrayLike, n_lazy: ArrayLike) -> Ints:
    """CPUs that a flush interrupts: page tables may go with a PMD, so that idle ones are too."""
    others = np.asarray(n_cpus, np.int64) - 1
    return np.where(np.asarray(order) == HPAGE_PMD_ORDER, others, others - np.asarray(n_lazy, np.int64))


def count_moves(plan: Plan) -> Moves:
    """What `plan` takes.

    Raises
    ------
    InputError
        If more CPUs idle than there are besides the migrating one.

    References
    ----------
    mm/migrate.c: migrate_pages, migrate_pages_batch; mm/rmap.c: try_to_migrate; Linux 6.12.117 and 6.1.192.
    """
    arrays = np.broadcast_arrays(*(np.asarray(array) for array in plan))
    folios, order, per_call, batch_pages, cpus, lazy = (array.astype(np.int64) for array in arrays[:6])
    batched, broadcast = (array.astype(np.bool_) for array in arrays[6:])
    others = cpus - 1
    if np.any(lazy > others):
        raise InputError(f"{lazy.max()} idle CPUs; no more than the {others[lazy > others].flat[0]} others can idle")
    by_pmd, hugetlb = order == HPAGE_PMD_ORDER, order > HPAGE_PMD_ORDER
    ptes = folios * ptes_per_folio(order)
    in_batch = np.where(batched & ~hugetlb, -(-batch_pages // (1 << order)), 1)
    in_call = np.minimum(per_call, folios)
    whole_calls, rest = folios // per_call, folios % per_call
    n_batches = whole_calls * -(-per_call // in_batch) + -(-rest // in_batch)
    deferred = batched & ~by_pmd & ~hugetlb & (others > 0)
    by_page = ~deferred & ~by_pmd
    operations = np.where(deferred, n_batches, np.where(by_pmd, folios, ptes))
    remote = others > 0
    sent = np.where(remote & ~broadcast, operations, 0)
    here = np.where(remote & broadcast, 0, operations)
    return Moves(
        n_calls=-(-folios // per_call),
        n_pages=folios << order,
        n_ptes=ptes,
        n_batches=n_batches,
        largest_batch=np.minimum(in_call, in_batch),
        n_full=np.where(by_page, 0, here),
        n_page=np.where(by_page, here, 0),
        n_requests=sent,
        n_ipis=sent * receivers(order, cpus, lazy),
        n_broadcasts=np.where(remote & broadcast, operations, 0),
    )
