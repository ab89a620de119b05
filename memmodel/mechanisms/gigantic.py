"""Gigantic hugetlb pages: their handles, and the refusal of what is not modelled for them."""

from dataclasses import dataclass

from memmodel.errors import InputError
from memmodel.state.gigantic import rows_of
from memmodel.state.machine import Machine

__all__ = ["GiganticPage", "gigantic_in", "gigantic_pages", "refuse_gigantic"]


@dataclass(frozen=True)
class GiganticPage:
    """A huge page beyond MAX_PAGE_ORDER: a range in which nothing is a folio; `free_gigantic` gives it back."""

    pfn: int
    order: int

    @property
    def n_pages(self) -> int:
        """Base pages."""
        return 1 << self.order


def gigantic_pages(mem: Machine) -> tuple[GiganticPage, ...]:
    """All gigantic pages of a memory, the oldest first."""
    return tuple(GiganticPage(int(mem.pfns.pfn(page["row"])), int(page["order"])) for page in mem.state.gigantic)


def gigantic_in(mem: Machine, first: int, n_pages: int = 1) -> int:
    """Number of a gigantic page that has some of these rows, or -1."""
    for number, page in enumerate(mem.state.gigantic):
        row, end = rows_of(page)
        if row < first + n_pages and first < end:
            return number
    return -1


def refuse_gigantic(mem: Machine, first: int, what: str, n_pages: int = 1) -> None:
    """Refuse what is not done with a part of a gigantic page.

    Raises
    ------
    InputError
        If one of the rows is of one.
    """
    number = gigantic_in(mem, first, n_pages) if mem.state.gigantic.size else -1
    if number >= 0:
        row = max(first, int(mem.state.gigantic["row"][number]))
        raise InputError(f"pfn {int(mem.pfns.pfn(row))} is of a gigantic hugetlb page: {what}")
