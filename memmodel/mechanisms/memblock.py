"""The boot allocator's view of memory: ranges of RAM, ranges taken, and where the next one goes (mm/memblock.c)."""

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from memmodel.errors import InputError
from memmodel.sources.spans import END_OF_MEMORY_BYTES, Span, merge, subtract

__all__ = ["MemoryMap"]


@dataclass(frozen=True)
class MemoryMap:
    """RAM at boot, before the page allocator has it.

    Parameters
    ----------
    memory
        Ranges of RAM, ``(base, size in bytes)``.
    reserved
        Ranges taken: the kernel's image, the initial RAM disk, the device tree. Without them a placement is that of an
        empty machine.

    Raises
    ------
    InputError
        If there is no RAM, or a range is none: not of two whole numbers, negative, empty, or beyond 4 PiB.
    """

    memory: tuple[Span, ...]
    reserved: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        for name in ("memory", "reserved"):
            object.__setattr__(self, name, merge(_spans(getattr(self, name), name)))
        if not self.memory:
            raise InputError("memory without a range of RAM; give at least one (base, size)")

    @property
    def end(self) -> int:
        """Behind the last byte of RAM (memblock_end_of_DRAM)."""
        return self.memory[-1].end

    @property
    def free(self) -> tuple[Span, ...]:
        """RAM that is not taken, ascending."""
        return subtract(self.memory, self.reserved)

    def reserve(self, span: Span) -> "MemoryMap":
        """The same with `span` taken."""
        return MemoryMap(self.memory, (*self.reserved, span))

    def give_back(self, spans: Iterable[Span]) -> "MemoryMap":
        """The same with `spans` free again, where they are RAM."""
        return MemoryMap(self.memory, subtract(self.reserved, spans))

    def find(
        self, size_bytes: int, alignment_bytes: int, start: int, end: int, *, bottom_up: bool = False
    ) -> int | None:
        """Where a range of that size goes between `start` and `end`; None: nowhere.

        Top-down: the highest aligned place in the highest free range that has one; bottom-up the lowest in the lowest.

        References
        ----------
        mm/memblock.c: memblock_find_in_range_node, Linux 6.1 to 7.3.
        """
        for span in self.free if bottom_up else reversed(self.free):
            low, high = max(span.base, start), min(span.end, end)
            first = -(-low // alignment_bytes) * alignment_bytes
            last = (high - size_bytes) // alignment_bytes * alignment_bytes
            if low <= first <= last:
                return first if bottom_up else last
        return None


def _spans(given: Any, name: str) -> list[Span]:
    try:
        pairs = [(base, size) for base, size in given]
    except (TypeError, ValueError):
        raise InputError(f"{name} {str(given)[:60]!r} is no list of ranges (base, size in bytes)") from None
    for base, size in pairs:
        whole = isinstance(base, Integral) and isinstance(size, Integral)
        if not whole or base < 0 or size <= 0 or base + size > END_OF_MEMORY_BYTES:
            raise InputError(f"{name} range at {base!r} of {size!r} bytes; a range is not empty and ends within 4 PiB")
    return [Span(int(base), int(size)) for base, size in pairs]
