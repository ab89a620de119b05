"""What the parsers of /proc texts share: numbered rows, counts by order, zones that must not come twice."""

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from memmodel.sources.reading import refuse
from memmodel.sources.records import IntArray, ZoneKey, zone_label

__all__ = ["MAX_ORDERS", "check_orders", "counts", "fields", "numbered_rows", "refuse_twice", "zone_head"]

MIN_ORDERS, MAX_ORDERS = 8, 16  # MAX_PAGE_ORDER is 7 (powerpc, 64 KiB pages) to 15 (arm64, 4 KiB, as configured)


def numbered_rows(text: str) -> Iterator[tuple[int, str]]:
    """The rows that are not blank, with their line numbers, without trailing blanks."""
    for line, row in enumerate(text.split("\n"), 1):
        row = row.rstrip()
        if row:
            yield line, row


def counts(text: str) -> IntArray:
    """Numbers between blanks."""
    return np.array([int(word) for word in text.split()], np.int64)


def check_orders(source: str, line: int, found: int, expected: int) -> int:
    """The number of orders, which is the same in all rows of a file (`expected` 0: this is the first).

    Raises
    ------
    InputError
        If it is another, or one that no kernel has.
    """
    if expected and found != expected:
        raise refuse(source, line, f"{found} counts", f"the rows above have {expected} orders")
    if not MIN_ORDERS <= found <= MAX_ORDERS:
        raise refuse(source, line, f"{found} counts", f"kernels have {MIN_ORDERS} to {MAX_ORDERS} orders")
    return found


def refuse_twice(source: str, line: int, key: ZoneKey, seen: Collection[ZoneKey]) -> None:
    """Refuse a zone that has been there before.

    Raises
    ------
    InputError
        If it is in `seen`.
    """
    if key in seen:
        raise refuse(source, line, zone_label(key), "a zone comes once in a file, and this one comes twice")


def zone_head(key: ZoneKey) -> str:
    """The start of a row as buddyinfo and the block counts of pagetypeinfo print it."""
    return f"Node {key[0]}, zone {key[1]:>8} "


def fields(values: Iterable[object], width: int) -> str:
    """Right-aligned fields, each followed by a blank."""
    return "".join(f"{value!s:>{width}} " for value in values)
