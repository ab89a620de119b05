"""From counts of copies to time: pure NumPy, for one point or a whole grid.

Form L (overlap). Per 4 KiB, ``t = (core**p + memory**p)**(1/p)``: the core's own work (starting the copy, missing
cache lines) runs partly at the same time as the memory's. ``memory`` depends on source and target memory alone,
``core`` on the extent alone. Between the extents that a machine gives, ``core`` is linear in log2(extent); past the
last one it stays constant (zero where the machine says that the CPU stops allocating cache lines for so long a copy).
A move costs ``pages * t + n_folios * folio_overhead``.

Form F (limit). Per 4 KiB, ``t = max(core, memory)`` where ``memory`` depends on the extent too, plus a constant for
each call of the primitive. It has its own numbers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memmodel.cost.machines import DIRECTIONS, PAIR_OF_DIRECTION, PAIRS, Knots, Machine
from memmodel.errors import InputError, one_of

__all__ = [
    "ENGINES",
    "PAGE_BYTES",
    "CopyCounts",
    "CopyTime",
    "clear_ns",
    "direction_codes",
    "engine_cycles",
    "interpolate",
    "overlap",
    "price",
    "stretch_ns",
    "throughput_gib_per_s",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PAGE_BYTES = 4096
"""All times are given per 4 KiB, whatever the page size."""

ENGINES = ("word_loop", "rep_movs_32", "rep_movs_64", "manual_startup")


class CopyCounts(NamedTuple):
    """What was copied; the arrays broadcast against each other.

    Attributes
    ----------
    bytes_copied
        Bytes that the primitive copied.
    extent_bytes
        Bytes that one call of the primitive copies, at least 4 KiB.
    n_calls
        Calls of the primitive.
    n_folios
        Folios moved: each pays the folio overhead. 0 prices a bare copy.
    direction
        Index into `DIRECTIONS`; see `direction_codes`.
    """

    bytes_copied: ArrayLike
    extent_bytes: ArrayLike
    n_calls: ArrayLike
    n_folios: ArrayLike
    direction: ArrayLike


class CopyTime(NamedTuple):
    """Times in ns, all of the counts' common shape.

    Attributes
    ----------
    core_ns, memory_ns
        What core and memory would take alone.
    copy_ns
        The two overlapped: the copy itself.
    folio_overhead_ns
        The rest of the move: unmap, flush, remap.
    total_ns
        ``copy_ns + folio_overhead_ns``.
    calibrated
        True where the extent lies within 4 KiB and the machine's largest measured one, and neither core nor memory time
        there is assumed.
    interpolated
        True where the extent lies between two of the machine's extents: no reading there, the curve alone. (zen6-cxl:
        readings at 4 KiB, 2 MiB and 1 GiB; from 32 MiB its core time is zero, so nothing is left to interpolate.)
    """

    core_ns: Floats
    memory_ns: Floats
    copy_ns: Floats
    folio_overhead_ns: Floats
    total_ns: Floats
    calibrated: Bools
    interpolated: Bools


class _Form(NamedTuple):
    """One form's numbers in one shape: F is L with an infinite exponent, a memory time by extent and a call's price."""

    core: Knots
    memory: dict[str, Knots]
    exponent: float
    per_call_ns: float
    folio_ns: float


def direction_codes(directions: ArrayLike) -> NDArray[np.int8]:
    """Codes of `CopyCounts` for names of `DIRECTIONS`, in the shape of `directions`.

    Raises
    ------
    InputError
        If a name is not a direction.
    """
    names = np.asarray(directions)
    codes = [DIRECTIONS.index(one_of(str(name), DIRECTIONS, "direction")) for name in names.ravel()]
    return np.array(codes, np.int8).reshape(names.shape)


def overlap(core: ArrayLike, memory: ArrayLike, exponent: float) -> Floats:
    """``(core**p + memory**p)**(1/p)``, element by element, whatever their size; infinite p takes the longer one."""
    core, memory = np.asarray(core, np.float64), np.asarray(memory, np.float64)
    longer, shorter = np.maximum(core, memory), np.minimum(core, memory)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    # np.power: for a single number ** takes another path than for arrays, whose last bit may differ
    return np.asarray(longer * np.power(1.0 + np.power(ratio, exponent), 1.0 / exponent))


def interpolate(extent_bytes: ArrayLike, knot_bytes: ArrayLike, knot_ns: ArrayLike) -> Floats:
    """Times at some extents: linear in log2(extent) between the knots, constant outside them."""
    return np.asarray(np.interp(np.log2(extent_bytes), np.log2(knot_bytes), np.asarray(knot_ns, np.float64)))


def price(counts: CopyCounts, machine: Machine, form: str = "L") -> CopyTime:
    """Time that `machine` takes for `counts`.

    Source of the forms and of the numbers: the mail that proposed copy_mc_highpages() (20261019-batpagecopy-v2-1), as
    fitted by scripts/fit_copy_machines.py; see `memmodel/cost/machines.toml`.

    Raises
    ------
    InputError
        If the machine lacks the form or a direction, an extent is below 4 KiB, or a count is negative or not a number.
    """
    numbers = _form(machine, form)
    n_bytes, extent, n_calls, n_folios, direction = _checked(counts)
    pair = np.asarray(PAIR_OF_DIRECTION)[direction]
    core = interpolate(extent, *machine.curve(numbers.core))
    memory = np.empty(extent.shape)
    measured = np.empty(extent.shape, np.bool_)
    core_measured = all(number.how != "assumed" for _, number in numbers.core if number.value)  # 0: no term, no claim
    for code in np.unique(pair):
        name = PAIRS[code]
        if name not in numbers.memory:
            raise InputError(
                f"machine {machine.name} has no memory time for {name}; it has: {', '.join(numbers.memory)}"
            )
        here, knots = pair == code, numbers.memory[name]
        memory[here] = interpolate(extent[here], *machine.curve(knots))
        measured[here] = core_measured and all(number.how != "assumed" for _, number in knots)
    pages = n_bytes / PAGE_BYTES
    copy_ns = pages * overlap(core, memory, numbers.exponent) + n_calls * numbers.per_call_ns
    folio_ns = n_folios * numbers.folio_ns
    knot_bytes = [knot for knot, _ in numbers.core]
    return CopyTime(
        core_ns=pages * core,
        memory_ns=pages * memory,
        copy_ns=copy_ns,
        folio_overhead_ns=folio_ns,
        total_ns=copy_ns + folio_ns,
        calibrated=measured & (extent <= machine.largest_extent.value),
        interpolated=(extent < knot_bytes[-1]) & ~np.isin(extent, knot_bytes),
    )


def throughput_gib_per_s(n_bytes: ArrayLike, time_ns: ArrayLike) -> Floats:
    """Bytes over time in GiB/s (2**30 bytes); NaN where no time passed."""
    n_bytes, time_ns = np.broadcast_arrays(np.asarray(n_bytes, np.float64), np.asarray(time_ns, np.float64))
    rate = np.full(n_bytes.shape, np.nan)
    np.divide(n_bytes * (1e9 / 2**30), time_ns, out=rate, where=time_ns > 0)
    return rate


def stretch_ns(n_bytes: ArrayLike, rate: Machine | float, direction: str | None = None) -> Floats:
    """Time that one uninterrupted copy of `n_bytes` keeps the CPU: the longest wait for a reschedule.

    `rate` is a machine (priced by form L in `direction`, or in its slowest one) or bytes a second: 32 MiB at 1e10 B/s
    take 3.3554432 ms.

    Raises
    ------
    InputError
        If the rate is not positive, or as `price` does.
    """
    if not isinstance(rate, Machine):
        if not rate > 0:
            raise InputError(f"rate {rate} is not a positive number of bytes a second")
        return np.asarray(n_bytes, np.float64) * 1e9 / rate
    known = {pair for pair, _ in rate.memory}
    every = [name for name, pair in zip(DIRECTIONS, PAIR_OF_DIRECTION, strict=True) if PAIRS[pair] in known]
    codes = direction_codes([direction] if direction else every).reshape(-1, *[1] * np.ndim(n_bytes))
    extent = np.maximum(n_bytes, PAGE_BYTES)
    return np.asarray(price(CopyCounts(n_bytes, extent, 1, 0, codes), rate).copy_ns.max(axis=0))


def clear_ns(n_bytes: ArrayLike, extent_bytes: ArrayLike, machine: Machine) -> Floats:
    """Time to clear `n_bytes` in calls of `extent_bytes`: a step at each extent that the machine gives.

    A step, not a slope: on Zen 3 calls of 8 MiB clear 2 to 5 % faster than 4 KiB ones, one of 1 GiB 2.5 times faster
    (Ankur Arora's clear_pages() series).

    Raises
    ------
    InputError
        If the machine has no clear times, or an extent is below 4 KiB.
    """
    if not machine.clear:
        raise InputError(f"machine {machine.name} has no clear times")
    extent = np.asarray(extent_bytes, np.float64)
    _refuse_short(extent)
    knot_bytes, knot_ns = machine.curve(machine.clear)
    step = np.searchsorted(knot_bytes, extent, side="right") - 1
    return np.asarray(np.asarray(n_bytes, np.float64) / PAGE_BYTES * knot_ns[step])


def engine_cycles(engine: str, n_bytes: ArrayLike, aligned: bool = True) -> Floats:
    """Core cycles that a copy engine needs when every line is in the cache: a lower bound.

    ``word_loop`` writes 8 bytes a clock, ``rep_movs_32`` 32 (Sandy Bridge) and ``rep_movs_64`` 64 (later cores, aligned
    target): David Laight's bounds, 512, 128 and 64 cycles a 4 KiB page. ``manual_startup`` is the Intel optimization
    manual's section 2.4.6 for rep movsq: 20 cycles up to 12 words, 15 and one a word below 76 words, then 40 and 4 a
    cache line, or 35 and 6 where accesses split lines (`aligned` false). A 4 KiB page takes 296 cycles.

    Raises
    ------
    InputError
        If the engine is unknown, a size negative, or no bound is known for an unaligned target.
    """
    one_of(engine, ENGINES, "copy engine")
    size = np.asarray(n_bytes, np.float64)
    if not np.all(size >= 0):
        raise InputError(f"{_first(size, ~(size >= 0)):g} is not a number of bytes")
    if engine == "word_loop":
        return np.ceil(size / 8)
    if engine != "manual_startup":
        if not aligned:
            raise InputError(f"{engine}: no bound is known for an unaligned target")
        return np.ceil(size / (32 if engine == "rep_movs_32" else 64))
    words, lines = np.ceil(size / 8), np.ceil(size / 64)
    fast_string = 40 + 4 * lines if aligned else 35 + 6 * lines
    return np.select([words == 0, words <= 12, words < 76], [0.0, 20.0, 15 + words], fast_string)


def _checked(counts: CopyCounts) -> tuple[Floats, Floats, Floats, Floats, NDArray[np.intp]]:
    """The counts as float arrays, checked; they broadcast when used."""
    for name, value in zip(counts._fields[:4], counts[:4], strict=True):
        array = np.asarray(value, np.float64)
        bad = ~((array >= 0) & np.isfinite(array))
        if bad.any():
            raise InputError(f"{name}: {_first(array, bad):g} is not a count")
    codes = np.asarray(counts.direction)
    if codes.dtype.kind not in "iu":
        raise InputError("direction: give codes from direction_codes, not names")
    bad = (codes < 0) | (codes >= len(DIRECTIONS))
    if bad.any():
        raise InputError(f"direction: code {codes[bad].flat[0]} is not one of 0 to {len(DIRECTIONS) - 1}")
    try:
        n_bytes, extent, n_calls, n_folios, direction = np.broadcast_arrays(*counts[:4], codes)
    except ValueError:
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in zip(counts._fields, counts, strict=True))
        raise InputError(f"the counts do not broadcast: {shapes}") from None
    _refuse_short(np.asarray(extent, np.float64))
    floats = [np.asarray(array, np.float64) for array in (n_bytes, extent, n_calls, n_folios)]
    return floats[0], floats[1], floats[2], floats[3], direction.astype(np.intp)


def _form(machine: Machine, form: str) -> _Form:
    one_of(form, machine.forms, f"form of machine {machine.name}")
    limit = machine.limit
    if form == "F" and limit is not None:
        return _Form(limit.core, dict(limit.memory), np.inf, limit.per_call.value, limit.folio_overhead.value)
    memory: dict[str, Knots] = {pair: ((PAGE_BYTES, number),) for pair, number in machine.memory}
    return _Form(machine.core, memory, machine.overlap_exponent.value, 0.0, machine.folio_overhead.value)


def _refuse_short(extent: Floats) -> None:
    short = ~(extent >= PAGE_BYTES)
    if short.any():
        raise InputError(f"extent {_first(extent, short):g} bytes: the cost model starts at 4 KiB")


def _first(array: Floats, mask: Bools) -> float:
    return float(array[mask].flat[0])
