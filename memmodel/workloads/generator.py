"""What a generator gets and gives: one `Work` record in, one operation out, random numbers on the way.

The built-in workloads are written with these functions, and so are a user's own:

>>> from memmodel.workloads.generator import Kind, begin, end_random
>>> PINNED = int(Kind.PINNED)
>>> def churn(work):
...     return begin(0, PINNED, 0) if work.room > 0 else end_random(0)
>>> out = mm.run_workload(mem, churn, 1000, fill=0.5, seed=1)
"""

from enum import IntEnum
from typing import Any

import numba
import numpy as np

from memmodel.jit import inlined

__all__ = [
    "N_SETTINGS",
    "POOLS",
    "SIGNATURE",
    "Kind",
    "begin",
    "below",
    "chance",
    "draw",
    "end_newest",
    "end_oldest",
    "end_random",
    "join",
    "nothing",
    "work_dtype",
]

U = np.uint64


class Kind(IntEnum):
    """What a request is for; it decides gfp flags, and whether the pages go on an LRU list."""

    ANONYMOUS = 0
    PAGE_CACHE = 1
    RECLAIMABLE_SLAB = 2  # inodes and dentries
    KERNEL = 3
    PINNED = 4  # asked for as movable, and then held: on no LRU list
    THP = 5
    DMA_BUF = 6


POOLS = 4
"""Pools of a generator: lots that live and die alike."""
N_OWN, N_SETTINGS = 8, 8

work_dtype = np.dtype(
    [
        ("rng", "u8", (4,)),  # xoshiro256++; for draw()
        ("room", "i8"),  # pages that may be taken before the fill level is reached; negative: beyond it
        ("failed", "i8"),  # 1: the last operation was a request, and failed
        ("max_order", "i8"),
        ("pmd_order", "i8"),
        ("lots", "i8", (POOLS,)),  # live lots of each pool
        ("own", "i8", (N_OWN,)),  # the generator's memory: all 0 at first, and kept
        ("settings", "f8", (N_SETTINGS,)),
        # the loop's part
        ("code", "i8"),  # which generator
        ("pages", "i8"),  # that it holds
        ("level", "i8"),  # that it is to hold
        ("heading", "i8"),  # 1: has not come up to its level yet; -1: not down; 0: has been there
        ("debt", "i8"),  # turns to sit out after a large request: turns are for pages
        ("up_to", "f8"),  # its turn where a random number lies below it, and not below that of the one before
        ("head", "u8", (POOLS,)),  # of the ring of lots
        ("open", "u8", (POOLS,)),  # slot of the first folio of the lot that join() adds to, or NONE
    ],
    align=True,
)
"""A generator's record. It reads `room`, `failed`, `max_order`, `pmd_order`, `lots`, `settings`, and writes `own`."""

SIGNATURE = numba.types.uint64(numba.from_dtype(work_dtype))
"""``numba.cfunc(SIGNATURE)`` is how a user's generator can be compiled; run_workload() does so if it is not."""

LOW_BITS, TOP_BIT = np.uint64((1 << 63) - 1), np.uint64(1 << 63)
SHIFTS = np.uint64(17), np.uint64(23), np.uint64(45)
WORD = np.uint64(64)
HALF, ONE = np.uint64(32), np.uint64(1)
FRACTION_SHIFT, FRACTION = np.uint64(11), 2.0**-53

# An operation in one word: action, order, kind and pool, four bits each.
NOTHING, BEGIN, JOIN, END_OLDEST, END_NEWEST, END_RANDOM = (np.uint64(action) for action in range(6))
ORDER_SHIFT, KIND_SHIFT, POOL_SHIFT = np.uint64(4), np.uint64(8), np.uint64(12)
FIELD = np.uint64(15)


@inlined
def wrapping_add(a: U, b: U) -> U:
    """Sum modulo 2**64 without the overflow that NumPy warns of where nothing is compiled."""
    return ((a & LOW_BITS) + (b & LOW_BITS)) ^ ((a ^ b) & TOP_BIT)


@inlined
def rotate(word: U, left: U) -> U:
    """Bits rotated to the left."""
    return (word << left) | (word >> (WORD - left))


@inlined
def draw(work: Any) -> U:
    """The next 64 random bits (xoshiro256++ of Blackman and Vigna)."""
    s0, s1, s2, s3 = work.rng[0], work.rng[1], work.rng[2], work.rng[3]
    drawn = wrapping_add(rotate(wrapping_add(s0, s3), SHIFTS[1]), s0)
    s2 ^= s0
    s3 ^= s1
    work.rng[0] = s0 ^ s3
    work.rng[2] = s2 ^ (s1 << SHIFTS[0])
    work.rng[1] = s1 ^ s2
    work.rng[3] = rotate(s3, SHIFTS[2])
    return drawn


@inlined
def below(work: Any, n: U) -> U:
    """A random whole number from 0 to n - 1; n is at most 2**32, and the bias n / 2**32."""
    return ((draw(work) >> HALF) * np.uint64(n)) >> HALF


@inlined
def fraction(work: Any) -> float:
    """A random number from 0 up to 1."""
    return np.float64(draw(work) >> FRACTION_SHIFT) * FRACTION


@inlined
def chance(work: Any, probability: float) -> bool:
    """True that often."""
    return bool(fraction(work) < probability)


@inlined
def about(work: Any, mean: float) -> np.int64:
    """A random whole number from 1 to 2 * mean - 1."""
    return np.int64(below(work, np.uint64(2.0 * mean - 1.0)) + ONE)


@inlined
def begin(order: U, kind: U, pool: U) -> U:
    """Request that begins a new lot of the pool: the folios that will be freed together."""
    return BEGIN | np.uint64(order) << ORDER_SHIFT | np.uint64(kind) << KIND_SHIFT | np.uint64(pool) << POOL_SHIFT


@inlined
def join(order: U, kind: U, pool: U) -> U:
    """Request that adds to the lot begun last in the pool; it begins one if that is gone, or its request failed."""
    return JOIN | np.uint64(order) << ORDER_SHIFT | np.uint64(kind) << KIND_SHIFT | np.uint64(pool) << POOL_SHIFT


@inlined
def end_oldest(pool: U) -> U:
    """Free the oldest lot of the pool (first in, first out), its folios in the order in which they came."""
    return END_OLDEST | np.uint64(pool) << POOL_SHIFT


@inlined
def end_newest(pool: U) -> U:
    """Free the newest lot of the pool (last in, first out)."""
    return END_NEWEST | np.uint64(pool) << POOL_SHIFT


@inlined
def end_random(pool: U) -> U:
    """Free any lot of the pool; the newest takes its place in the order of age."""
    return END_RANDOM | np.uint64(pool) << POOL_SHIFT


@inlined
def nothing() -> U:
    """No operation."""
    return NOTHING
