"""Ranges of physical addresses, and how they are cut out of one another."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["END_OF_MEMORY_BYTES", "Span", "merge", "subtract"]

END_OF_MEMORY_BYTES = 1 << 52
"""The most that any of the architectures can address."""


class Span(NamedTuple):
    """`size_bytes` from `base` on."""

    base: int
    size_bytes: int

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.base + self.size_bytes

    def holds(self, other: "Span") -> bool:
        """Whether all of `other` lies in it."""
        return self.base <= other.base and other.end <= self.end

    def overlaps(self, other: "Span") -> bool:
        """Whether any of `other` lies in it."""
        return self.base < other.end and other.base < self.end


def merge(spans: Iterable[Span]) -> tuple[Span, ...]:
    """What the spans cover, ascending, no two that touch."""
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.size_bytes):
        if merged and span.base <= merged[-1].end:
            last = merged.pop()
            span = Span(last.base, max(last.end, span.end) - last.base)
        merged.append(span)
    return tuple(merged)


def subtract(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """What the spans cover and none of `taken` does, ascending."""
    rest: list[Span] = []
    holes = merge(taken)
    for span in merge(spans):
        start = span.base
        for hole in (hole for hole in holes if hole.overlaps(span)):
            rest.append(Span(start, max(hole.base - start, 0)))
            start = hole.end
        rest.append(Span(start, max(span.end - start, 0)))
    return tuple(span for span in rest if span.size_bytes)
