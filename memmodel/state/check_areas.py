"""The laws of CMA areas: where they lie, what they count, and that nobody else has what they gave out."""

from typing import Any

import numpy as np

from memmodel.state.cma_layout import taken_bits
from memmodel.state.layout import Kind, Memory, MigrateType, block_types

__all__ = ["free_page_taken", "wrong_count", "wrong_place"]


def wrong_place(memory: Memory) -> tuple[int, int] | None:
    """The first area that leaves its zone, overlaps the one before, or has a pageblock of another type; and its row."""
    shift, before = int(memory.params.pageblock_order), 0
    for number in np.argsort(memory.areas["row"]):
        first, end = _rows(memory.areas[number])
        zone = memory.zones[int(memory.areas[number]["zone"])]
        if first < max(before, int(zone["start"])) or end > int(zone["end"]) or first & ((1 << shift) - 1):
            return int(number), first
        types = block_types(memory.blocks[first >> shift : end >> shift])
        foreign = np.flatnonzero((types != MigrateType.CMA) & (types != MigrateType.ISOLATE))
        if foreign.size:
            return int(number), first + (int(foreign[0]) << shift)
        before = end
    return None


def wrong_count(memory: Memory) -> tuple[int, int] | None:
    """The first area whose available_count is not what its bitmap leaves; and that number."""
    for number, area in enumerate(memory.areas):
        taken = taken_bits(area, memory.area_bits)
        left = int(np.count_nonzero(~taken)) << int(area["order_per_bit"])
        if left != area["available"]:
            return number, left
    return None


def free_page_taken(memory: Memory) -> tuple[int, int] | None:
    """The first area that has given out a page which the allocator holds too; and the row of that block.

    Of a bit for several pages the first counts: the others may not have been asked for.
    """
    for number, area in enumerate(memory.areas):
        first, end = _rows(area)
        taken = np.zeros(end - first, np.bool_)
        taken[:: 1 << int(area["order_per_bit"])] = taken_bits(area, memory.area_bits)
        states = memory.pages["state"][first:end]
        kinds = states >> 4
        heads = np.flatnonzero((kinds == Kind.FREE) | (kinds == Kind.PCP) | (kinds == Kind.ISOLATED))
        ends = np.minimum(heads + (1 << (states[heads] & 15).astype(np.int64)), end - first)
        before = np.concatenate([[0], np.cumsum(taken)])
        held = heads[before[ends] > before[heads]]
        if held.size:
            return number, first + int(held[0])
    return None


def _rows(area: Any) -> tuple[int, int]:
    return int(area["row"]), int(area["row"]) + int(area["n_pages"])
