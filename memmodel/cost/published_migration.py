"""Published measurements of migration, demotion, TLB flushing and clearing, as packaged in `memmodel/studies/data`."""

import csv
from importlib.resources import files
from typing import NamedTuple

__all__ = [
    "ClearRate",
    "MigrationRate",
    "ThpCopy",
    "demotion_table",
    "published_clear_rates",
    "published_migration_rates",
    "published_thp_copies",
    "tlb_table",
]

NAN = float("nan")


class MigrationRate(NamedTuple):
    """One cell of the migration offload series: 1 GB moved on EPYC Zen 3.

    Attributes
    ----------
    table
        "folio_size", "placement" (2 MiB folios, threads spread over CCDs or filling them), or "folios_a_call".
    series, kernel
        V2 to V5, and what it was based on.
    impl, n, placement
        "page_by_page" is the kernel without the series; "threads" and "dma" copy with `n` threads or channels.
    folio_kib, folios_per_call
        Size of the folios; how many one call moved, 0 where it moved all of 1 GB.
    gb_per_s, sd
        Mean and standard deviation, decimal GB assumed; NaN where none is given.
    source
        Message-ID or archive number of the mail.
    """

    table: str
    series: str
    kernel: str
    impl: str
    n: int
    placement: str
    folio_kib: int
    folios_per_call: int
    gb_per_s: float
    sd: float
    source: str


class ThpCopy(NamedTuple):
    """One row of Zi Yan's table of 2019: rates of migrate_pages() in all and of its copies alone, decimal GB/s."""

    n_folios: int
    folio_kib: int
    impl: str
    n: int
    batched: bool
    total_gb_per_s: float
    copy_gb_per_s: float
    source: str

    @property
    def rest_ns(self) -> float:
        """Time of a folio that is not spent copying."""
        return self.folio_kib * 1024 * (1 / self.total_gb_per_s - 1 / self.copy_gb_per_s)


class ClearRate(NamedTuple):
    """One rate of Ankur Arora's clear_pages() series; the GB of perf bench is read as 2**30 bytes.

    Attributes
    ----------
    benchmark
        "memset" clears in chunks of `folio_kib`; "demand_fault" faults 64 GB in folios of that size.
    cpu, version, preempt
        As the mails say; "any" where the model of preemption makes no difference.
    batch
        "page": the kernel before the series; "extent": with it.
    """

    benchmark: str
    cpu: str
    version: str
    folio_kib: int
    preempt: str
    batch: str
    gib_per_s: float
    sd: float
    source: str


def published_migration_rates() -> tuple[MigrationRate, ...]:
    """Rates by folio size, threads, DMA channels and batch: the migration offload series, V2 to V5.

    Source: Shivank Garg, "Accelerate page migration with batch copying and hardware offload" (2025, 2026). Of V2 the
    2 MiB folios alone: below, it measured its own first implementation. V4 and V5 were read in excerpts.
    """
    return tuple(
        MigrationRate(
            table=row["table"],
            series=row["series"],
            kernel=row["kernel"],
            impl=row["impl"],
            n=int(row["n"]),
            placement=row["placement"],
            folio_kib=int(row["folio_kib"]),
            folios_per_call=int(row["folios_per_call"] or 0),
            gb_per_s=float(row["mean"]),
            sd=float(row["sd"] or NAN),
            source=row["source"],
        )
        for row in _rows("migration_rates.csv")
    )


def published_thp_copies() -> tuple[ThpCopy, ...]:
    """Migrations of pages and THPs on two Xeon E5-2650 v3, copied by several threads (2019).

    Source: Zi Yan, "Accelerate page migration and use memcg for PMEM management", LWN 784925.
    """
    return tuple(
        ThpCopy(
            n_folios=int(row["n_folios"]),
            folio_kib=int(row["folio_kib"]),
            impl=row["impl"],
            n=int(row["n"]),
            batched=row["batched"] == "yes",
            total_gb_per_s=float(row["total"]),
            copy_gb_per_s=float(row["copy"]),
            source=row["source"],
        )
        for row in _rows("thp_copies.csv")
    )


def published_clear_rates() -> tuple[ClearRate, ...]:
    """Rates of clearing, from memset and from demand faults (2023 to 2026)."""
    return tuple(
        ClearRate(
            benchmark=row["benchmark"],
            cpu=row["cpu"],
            version=row["version"],
            folio_kib=int(row["folio_kib"]),
            preempt=row["preempt"],
            batch=row["batch"],
            gib_per_s=float(row["mean"]),
            sd=float(row["sd"] or NAN),
            source=row["source"],
        )
        for row in _rows("clear_pages.csv")
    )


def demotion_table() -> dict[tuple[str, str], float]:
    """The kswapd experiment of the copy_mc_highpages() mail: (kernel, quantity) to number, medians of ten runs."""
    return {(row["kernel"], row["quantity"]): float(row["value"]) for row in _rows("demotion.csv")}


def tlb_table() -> dict[tuple[str, str, str], float]:
    """Numbers of TLB flush batching: (case, kernel, quantity) to number."""
    return {(row["case"], row["kernel"], row["quantity"]): float(row["value"]) for row in _rows("tlb_flush.csv")}


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("memmodel") / "studies" / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
