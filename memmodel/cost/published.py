"""Published copy measurements that the cost model is held against."""

import csv
from importlib.resources import files
from typing import NamedTuple

__all__ = ["SYSTEMATIC", "PublishedCell", "published_copy_table"]

SYSTEMATIC = 0.015
"""Relative error added to the error of a mean: no smooth model meets cells known to 0.1 %. A choice, not a reading."""

_FOLIO_ORDER = {"2MB": 9, "1GB": 18}
_BATCH = {"base": "page", "patched": "extent"}


class PublishedCell(NamedTuple):
    """One cell of a published table of copy rates.

    Attributes
    ----------
    direction
        Source and target node, as in `memmodel.cost.machines.DIRECTIONS`.
    folio_order, batch
        The study's coordinates of the cell: 9 (2 MB) or 18 (1 GB) 4 KiB pages; "page" (base kernel) or "extent".
    folio, kind, kernel
        The same in the source's words, and whether the folios were THP or hugetlb.
    mean_gib_per_s, sd_gib_per_s, n_runs
        Mean and standard deviation over the runs.
    source
        Message-ID of the mail.
    usable, reason
        Whether a fit should use the cell, and why not.
    """

    direction: str
    folio_order: int
    batch: str
    folio: str
    kind: str
    kernel: str
    mean_gib_per_s: float
    sd_gib_per_s: float
    n_runs: int
    source: str
    usable: bool
    reason: str

    @property
    def ns_per_page(self) -> float:
        """Time of 4 KiB in ns at the mean rate."""
        return 4096e9 / 2**30 / self.mean_gib_per_s

    @property
    def relative_error(self) -> float:
        """Error of the mean and `SYSTEMATIC`, in quadrature."""
        of_mean = self.sd_gib_per_s / self.mean_gib_per_s
        return float((of_mean**2 / self.n_runs + SYSTEMATIC**2) ** 0.5)


def published_copy_table() -> tuple[PublishedCell, ...]:
    """The 16 cells of move_pages() on EPYC Zen 6 with CXL, base kernel and with batch page copy, in GiB/s.

    Source: Shivank Garg, "[PATCH RFC v2] mm: introduce copy_mc_highpages() and batch copy in folio_mc_copy()".
    """
    text = (files("memmodel") / "studies" / "data" / "batch_page_copy.csv").read_text(encoding="utf-8")
    return tuple(
        PublishedCell(
            direction=row["direction"],
            folio_order=_FOLIO_ORDER[row["folio"]],
            batch=_BATCH[row["kernel"]],
            folio=row["folio"],
            kind=row["kind"],
            kernel=row["kernel"],
            mean_gib_per_s=float(row["mean"]),
            sd_gib_per_s=float(row["sd"]),
            n_runs=int(row["runs"]),
            source=row["source"],
            usable=row["usable"] == "yes",
            reason=row["reason"],
        )
        for row in csv.DictReader(text.splitlines())
    )
