"""What users say of a folio that the allocator does not know."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.mechanisms.buddy import folio_rows, whole_number
from memmodel.mechanisms.tlb import MAX_MMS
from memmodel.state.layout import FolioBit
from memmodel.state.machine import Machine

__all__ = ["set_folio"]

MAX_PINS = 254  # a page's count of references has a byte


def set_folio(
    mem: Machine,
    folios: npt.ArrayLike,
    *,
    mapped_by: Iterable[int] | None = None,
    pins: int | None = None,
    **marks: bool,
) -> None:
    """Say who maps folios, who holds on to them, and what is being done with them.

    Parameters
    ----------
    mem
        Changed in place.
    folios
        Handles, shape ``(folios,)``.
    mapped_by
        Numbers of the address spaces that map each of them, 0 to 31; new folios belong to 0.
    pins
        References beyond those of mappings and page cache, such as of get_user_pages().
    marks
        By name, True or False: locked, writeback, dirty, file, no_migrate_folio, inaccessible, mlocked, pte_mapped,
        partially_mapped, hugetlb, protnone, orphan; see `memmodel.state.layout.FolioBit`.

    Raises
    ------
    InputError
        If a handle is stale, a mark unknown, or a number out of range; nothing has changed then.
    """
    rows, _ = folio_rows(mem, folios)
    values = {}
    for name, value in marks.items():
        if name.upper() not in FolioBit.__members__:
            raise InputError(f"unknown mark {name!r}; one of: {', '.join(bit.name.lower() for bit in FolioBit)}")  # type: ignore[union-attr]
        values[FolioBit[name.upper()]] = bool(value)
    owners = None
    if mapped_by is not None:
        owners = sum(1 << whole_number(mm, "address space", 0, MAX_MMS - 1) for mm in set(mapped_by))
    if pins is not None:
        mem.state.pages["refcount"][rows] = 1 + whole_number(pins, "pins", 0, MAX_PINS)
    slots = mem.state.pages["next"][rows]
    if owners is not None:
        mem.state.folios["mms"][slots] = owners
    for bit, value in values.items():
        bits = mem.state.folios["bits"][slots]
        mem.state.folios["bits"][slots] = bits | np.uint32(bit) if value else bits & ~np.uint32(bit)
