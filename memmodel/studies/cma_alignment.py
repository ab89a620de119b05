"""Pageblock order and CMA alignment, as published and as recorded, beside what `Geometry` gives."""

import csv
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from memmodel.geometry import Geometry
from memmodel.mechanisms.reserving import cma_area_bytes

__all__ = ["QUANTITIES", "AlignmentRow", "cma_alignment_rows"]

QUANTITIES = ("max_page_order", "pageblock_order", "cma_min_alignment_bytes", "cma_area_bytes")


class AlignmentRow(NamedTuple):
    """One configuration of a table."""

    table: str
    """Which table it belongs to; "recorded kernel" are boots of real kernels."""
    source: str
    """Message-ID, commit, or the kernel that was booted."""
    geometry: Geometry
    area_requested_bytes: int | None
    """Size of the CMA area that was asked for; None where the row has none."""
    published: Mapping[str, int]
    """Quantity -> the source's number, for those of `QUANTITIES` that it gives."""
    modelled: Mapping[str, int]
    """Quantity -> the model's number, for the same ones."""
    erratum: str
    """Why the source's numbers are not to be met, in words; empty for a sound row."""

    @property
    def agrees(self) -> bool:
        """Whether all numbers are equal."""
        return self.published == self.modelled


def cma_alignment_rows() -> tuple[AlignmentRow, ...]:
    """The alignment tables of the PAGE_BLOCK_ORDER patch, its examples, and the CMA areas of three booted kernels.

    Source: Juan Yescas, "mm: Add ARCH_FORCE_PAGE_BLOCK_ORDER to select page block order" (first posting, April 2025)
    and "mm: Add CONFIG_PAGE_BLOCK_ORDER to select page block order" (merged in 6.16).
    """
    text = (files("memmodel") / "studies" / "data" / "cma_alignment.csv").read_text(encoding="utf-8")
    return tuple(_row(fields) for fields in csv.DictReader(text.splitlines()))


def _row(fields: dict[str, str]) -> AlignmentRow:
    geo = Geometry(
        page_size=fields["page_size"],
        arch=fields["arch"],
        kernel=fields["kernel"],
        transparent_hugepage=fields["transparent_hugepage"] == "y",
        hugetlb=fields["hugetlb"] == "y",
        max_page_order=_number(fields["max_page_order_option"]),
        page_block_max_order=_number(fields["page_block_max_order"]),
    )
    published = {name: int(fields[name]) for name in QUANTITIES if fields[name]}
    requested = _number(fields["area_requested_bytes"])
    summary = geo.summary()
    if requested is not None:
        summary["cma_area_bytes"] = cma_area_bytes(geo, requested)
    modelled = {name: int(summary[name]) for name in published}
    return AlignmentRow(fields["table"], fields["source"], geo, requested, published, modelled, fields["erratum"])


def _number(text: str) -> int | None:
    return int(text) if text else None
