"""Moves by folio size, threads, DMA channels and batch, as published and as the machines' numbers give them."""

from collections.abc import Iterable

import numpy as np

from memmodel.cost.machines import Machine, load_machine
from memmodel.cost.migration import MigrationCounts, price_migration
from memmodel.cost.offload import DmaChannels, Offload, Threads
from memmodel.cost.published_migration import MigrationRate, ThpCopy, published_migration_rates, published_thp_copies
from memmodel.studies.comparison import Row

__all__ = ["folio_size_rows", "move_counts", "rest_of_thp_ns", "thp_copy_rows"]

PAGE_BYTES = 4096
PMD_PAGES = 512
MOVED_BYTES = 1 << 30
_TITLE = {
    ("folio_size", "page_by_page"): "Moves of 1 GB by folio size, page by page, EPYC Zen 3",
    ("folio_size", "threads"): "Moves of 1 GB by folio size, copied by threads, EPYC Zen 3",
    ("folio_size", "dma"): "Moves of 1 GB by folio size, copied by DMA, EPYC Zen 3",
    ("placement", "threads"): "Moves of 2 MiB folios by placement of the threads, EPYC Zen 3",
    ("folios_a_call", "page_by_page"): "Moves of some 2 MiB folios, page by page, EPYC Zen 3",
    ("folios_a_call", "threads"): "Moves of some 2 MiB folios, copied by a thread, EPYC Zen 3",
    ("folios_a_call", "dma"): "Moves of some 2 MiB folios, copied by a DMA channel, EPYC Zen 3",
}


def move_counts(n_folios: int, pages: int, by_folio: bool) -> MigrationCounts:
    """Counts of one call that moves folios of a process of one thread: no flush reaches another CPU.

    Copied page by page, or folio by folio (`by_folio`, DMA). PTEs are unmapped below PMD order alone.
    """
    ptes = n_folios * pages if pages < PMD_PAGES else 0
    extent = pages * PAGE_BYTES if by_folio else PAGE_BYTES
    n_bytes = n_folios * pages * PAGE_BYTES
    return MigrationCounts(
        n_calls=1,
        n_folios=n_folios,
        n_pages=n_folios * pages,
        n_ptes_unmapped=ptes,
        n_ptes_remapped=ptes,
        n_flushes_full=0 if ptes else n_folios,
        n_flushes_page=ptes,
        n_flush_requests=0,
        n_ipis=0,
        n_copy_calls=n_bytes // extent,
        bytes_copied=n_bytes,
        extent_bytes=extent,
        direction=0,
    )


def folio_size_rows(machine: Machine | None = None) -> tuple[Row, ...]:
    """The migration offload series, V2 to V5, beside the model.

    Fitted were the baselines by folio size, and threads and DMA of V3 to V5 (the 2 MiB folios of V2, the placement and
    the folios a call are predicted).
    """
    chosen = machine or load_machine("zen3-32c")
    order = list(_TITLE)
    rates = sorted(published_migration_rates(), key=lambda rate: order.index((rate.table, rate.impl)))
    return tuple(_row(rate, chosen) for rate in rates)


def _row(rate: MigrationRate, machine: Machine) -> Row:
    pages = rate.folio_kib // 4
    n_folios = rate.folios_per_call or MOVED_BYTES // (rate.folio_kib << 10)
    offload: Offload | None = None
    if rate.impl == "threads":
        offload = Threads(rate.n, rate.placement)
    elif rate.impl == "dma":
        offload = DmaChannels(rate.n)
    time = price_migration(move_counts(n_folios, pages, rate.impl == "dma"), machine, offload=offload)
    modelled = n_folios * rate.folio_kib * 1024 / float(time.total_ns)
    who = {"threads": "thread", "dma": "channel"}.get(rate.impl)
    many = f", {_some(rate.n, who)}" if who else ""
    place = f", {rate.placement}" if rate.table == "placement" else ""
    calls = f", {rate.folios_per_call} a call" if rate.folios_per_call else ""
    v3_only = rate.impl == "threads" and rate.series != "V3"
    fitted = rate.table == "folio_size" and rate.series != "V2" and not v3_only
    label = f"{rate.series}, {rate.folio_kib} KiB{many}{place}{calls}"
    title = _TITLE[rate.table, rate.impl]
    return Row(title, label, rate.gb_per_s, modelled, "GB/s", rate.source, fitted, rate.sd)


def rest_of_thp_ns(row: ThpCopy, machine: Machine) -> float:
    """What the move of a THP of the row takes besides the copy: with a flush for each, or one for all of a batch."""
    counts = move_counts(row.n_folios, PMD_PAGES, by_folio=False)
    if row.batched:
        counts = counts._replace(n_flushes_full=1)
    time = price_migration(counts, machine)
    return float(time.total_ns - time.copy_ns) / row.n_folios


def thp_copy_rows(machine: Machine | None = None) -> tuple[Row, ...]:
    """Zi Yan's THPs of 2019: the total rate from the copy's, and the time of a THP that is not its copy.

    The copy's rate is the published one: what is modelled is the rest. The row with an I/OAT DMA engine is predicted.
    """
    chosen = machine or load_machine("haswell-2s")
    copies = [row for row in published_thp_copies() if row.folio_kib == PMD_PAGES * 4]
    return (*_thp_rows("total rate", copies, chosen), *_thp_rows("time besides the copy", copies, chosen))


def _thp_rows(what: str, copies: Iterable[ThpCopy], machine: Machine) -> Iterable[Row]:
    for copy in copies:
        rest = rest_of_thp_ns(copy, machine)
        n_bytes = copy.folio_kib * 1024
        published, modelled, units = copy.rest_ns / 1e3, rest / 1e3, "us"
        if what == "total rate":
            published, modelled, units = copy.total_gb_per_s, n_bytes / (n_bytes / copy.copy_gb_per_s + rest), "GB/s"
        batched = "together" if copy.batched else "one by one" if copy.n_folios > 1 else "alone"
        who = _some(copy.n, "thread" if copy.impl == "threads" else "I/OAT channel")
        label = f"{copy.n_folios} THP {batched}, {who}"
        title = f"THPs on two Xeon E5-2650 v3: {what}"
        yield Row(title, label, published, modelled, units, copy.source, copy.impl == "threads", np.nan)


def _some(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
