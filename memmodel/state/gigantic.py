"""Gigantic hugetlb pages: single pages in a row that are one, for no block is as large; and their law."""

from typing import Any

import numpy as np

from memmodel.state.layout import Kind, Memory

__all__ = ["gigantic_dtype", "not_whole"]

gigantic_dtype = np.dtype(
    [
        ("row", "u8"),  # first row in `pages`
        ("order", "u4"),  # beyond MAX_PAGE_ORDER
        ("area", "u4"),  # CMA area that it was taken from, or NONE
    ]
)


def not_whole(memory: Memory) -> tuple[int, int] | None:
    """The first gigantic page of which a row is not in use as a single page of its own; and that row."""
    end = 0
    for number in np.argsort(memory.gigantic["row"]).tolist():
        row, after = rows_of(memory.gigantic[number])
        if row < end or after > int(memory.params.n_pages):
            return number, row
        pages, end = memory.pages[row:after], after
        wrong = (pages["state"] != Kind.USED << 4) | (pages["next"] < memory.slots[1])
        if wrong.any():
            return number, row + int(wrong.argmax())
    return None


def rows_of(page: Any) -> tuple[int, int]:
    """First row of a record's page, and the one behind its last."""
    return int(page["row"]), int(page["row"]) + (1 << int(page["order"]))
