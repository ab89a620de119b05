"""Run a workload on a memory."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.core.errors import NumbaError

from memmodel.errors import InputError, one_of
from memmodel.jit import JIT_ENABLED
from memmodel.mechanisms.buddy import whole_number
from memmodel.state.machine import Handles, Machine
from memmodel.workloads.catalogue import WORKLOADS, parse_mix, settings_of
from memmodel.workloads.generator import N_SETTINGS, SIGNATURE, Kind
from memmodel.workloads.live import ALLOCATED, FAILED, FREED, HELD, Live, first_stale, new_live
from memmodel.workloads.loop import run_built_in, run_generator
from memmodel.workloads.requests import request_table

__all__ = ["Session", "Workload", "WorkloadOutcome", "run_workload", "share_of_memory"]

Generator = Callable[[Any], Any]
Workload = str | Mapping[str, float] | Generator
Counts = npt.NDArray[np.int64]

OWN, TURNS = len(WORKLOADS), len(WORKLOADS) + 1  # streams of random numbers besides those of the built-in generators
MAX_SEED = (1 << 128) - 1
MAX_OPERATIONS = 1 << 40
SETTLING = 16  # operations a managed page after which a level counts as not reached


@dataclass(frozen=True, eq=False)
class WorkloadOutcome:
    """What a workload did in one call, and what it left; counts are folios of shape ``(kinds, orders)``, by `Kind`."""

    operations: int
    """Operations done: each is a request, the end of a lot, or nothing."""
    settled: bool
    """Whether every generator has been at its level."""
    allocated: Counts
    """Requests that succeeded."""
    failed: Counts
    """Requests that failed, first attempts of a fallback among them."""
    freed: Counts
    """Folios freed."""
    held: Counts
    """Folios that live now."""
    live: Live
    """What a later call continues from."""

    @property
    def folios(self) -> Handles:
        """Handles of all folios that live now; they can be freed, but then the workload cannot go on."""
        return self.live.handles

    def folios_of(self, kind: str) -> Handles:
        """Handles of those of one kind, such as "kernel".

        Raises
        ------
        InputError
            If there is no such kind.
        """
        names = [number.name.lower() for number in Kind]
        wanted = self.live.kinds == names.index(one_of(kind, names, "kind"))
        return np.asarray(self.live.handles[wanted])

    @property
    def held_pages(self) -> dict[str, int]:
        """Pages that live now, by kind."""
        pages = (self.held << np.arange(self.held.shape[1])).sum(axis=1)
        return {kind.name.lower(): int(pages[kind]) for kind in Kind}

    def __repr__(self) -> str:
        numbers = (int(counts.sum()) for counts in (self.allocated, self.failed, self.freed, self.held))
        said = "{} allocated, {} failed, {} freed, {} held".format(*numbers)
        return f"<WorkloadOutcome {self.operations} operations, folios: {said}>"


def run_workload(  # noqa: PLR0913 - what runs, how long, how full, where and from where: by keyword
    mem: Machine,
    workload: Workload,
    operations: int | None = None,
    *,
    fill: float = 0.8,
    seed: int | np.random.SeedSequence | None = None,
    cpu: int = 0,
    node: int = 0,
    after: WorkloadOutcome | None = None,
    **settings: Any,
) -> WorkloadOutcome:
    """Allocate and free pages as a made-up load does, in one compiled loop.

    Parameters
    ----------
    mem
        Changed in place.
    workload
        "anonymous", "page_cache", "kernel", "pinned", "thp", "dma_buf"; a mix, "mixed" or "4*anonymous+kernel" or
        workload to weight; or a generator of your own. Weights are shares of memory, and of the pages asked for.
    operations
        Requests and ends of lots; None goes on until the fill level is reached (`settled`), for at most 16 operations
        a page.
    fill
        Share of all managed pages that is to be in use, whoever uses them; each generator keeps its part of it.
    seed
        Of the random numbers. If not given: those of `after` go on, or the memory's own seed decides.
    cpu, node
        CPU that makes the requests, and the preferred node.
    after
        Outcome of the same workload, on this memory or the one that it was copied from: its folios and generators go
        on. The outcome itself does not change, so that many runs can start from it.
    **settings
        Of the generators, by the names in `memmodel.workloads.catalogue.WORKLOADS`; for one of your own
        ``settings=[...]``, up to 8 numbers.

    Returns
    -------
    Counts, and what lives.

    Raises
    ------
    InputError
        If an argument is none that is allowed, or a folio of `after` was freed; nothing has changed then. If a
        generator asks for what cannot be: what it did before that stays done.

    Notes
    -----
    A generator of your own is a function of one record, `memmodel.workloads.generator.work_dtype`, that returns an
    operation made by `begin`, `join`, `end_oldest`, `end_newest`, `end_random` or `nothing`: plain, ``numba.njit`` or
    ``numba.cfunc(SIGNATURE)``; it is compiled as the latter. Random numbers come from `draw`, `below` and `chance`.

    Requests make the attempts that `alloc_pages` describes: nothing is reclaimed or compacted. The results are the
    same with the JIT on and off.

    Examples
    --------
    >>> import memmodel as mm
    >>> mem = mm.PhysicalMemory(mm.Geometry(), size="64MiB", seed=0)
    >>> out = mm.run_workload(mem, "3*anonymous+kernel", fill=0.5, seed=1)
    >>> out.settled
    True
    >>> out = mm.run_workload(mem, "3*anonymous+kernel", 1000, fill=0.5, after=out)
    >>> mm.free_pages(mem, out.folios)
    """
    session = Session(mem, workload, seed=seed, cpu=cpu, node=node, after=after, settings=settings)
    return session.run(fill, operations)


class Session:
    """A workload on a memory, to be run piece by piece.

    Raises
    ------
    InputError
        As `run_workload`.
    """

    def __init__(
        self,
        mem: Machine,
        workload: Workload,
        *,
        seed: int | Sequence[int] | np.random.SeedSequence | None = None,
        cpu: int = 0,
        node: int = 0,
        after: WorkloadOutcome | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.mem = mem
        self.requests = request_table(mem, node, mem.check_cpu(cpu))
        self.generator: Generator | None = None
        if callable(workload):
            self.generator = _compiled(workload)
            shares, rows, codes = [1.0], [_own_settings(settings or {})], [OWN]
        else:
            mix = parse_mix(workload)
            if "thp" in mix and mem.geometry.hpage_pmd_order > mem.geometry.max_page_order:
                raise InputError(f"workload thp: an order of {mem.geometry.hpage_pmd_order} is beyond MAX_PAGE_ORDER")
            rows = list(settings_of(mix, settings or {}).values())
            shares, codes = list(mix.values()), [list(WORKLOADS).index(name) for name in mix]
        self.live = new_live(len(codes), 0) if after is None else self._continued(after, codes)
        works = self.live.works[:-1]
        works["code"], works["up_to"] = codes, np.cumsum(shares)
        works["up_to"][-1] = 1.0
        works["max_order"], works["pmd_order"] = mem.geometry.max_page_order, mem.geometry.hpage_pmd_order
        self.shares = np.array(shares)
        for work, row in zip(works, rows, strict=True):
            work["settings"][: len(row)] = row
        if seed is not None or after is None:
            self.live.works["rng"] = _streams(mem, seed, [*codes, TURNS])

    def _continued(self, after: WorkloadOutcome, codes: list[int]) -> Live:
        if not isinstance(after, WorkloadOutcome) or after.live.works["code"][:-1].tolist() != codes:
            raise InputError("after is not the outcome of the same workload")
        stale = first_stale(self.mem.state, after.live)
        if stale >= 0:
            raise InputError(f"after: its folio {stale:#x} is not live in this memory")
        return after.live.with_room(self.mem.state.folios.size)

    def run(self, fill: float, operations: int | None = None) -> WorkloadOutcome:
        """As `run_workload`, from where the last call ended."""
        mem = self.mem
        share = share_of_memory(fill, "fill")
        managed = int(mem.state.zones["managed"].sum())
        limit = SETTLING * managed
        if operations is not None:
            limit = whole_number(operations, "operations", 0, MAX_OPERATIONS)
        used = managed - _free_pages(mem)
        # Every request may succeed, and in the end every page may be a folio: huge ones come back as single pages.
        mem.reserve_folios(min(managed - int(mem.state.slots[0]), limit))
        if mem.state.folios.size > self.live.members.size:
            self.live = self.live.with_room(mem.state.folios.size)
        works = self.live.works[:-1]
        held = int(works["pages"].sum())
        works["level"] = (self.shares * max(share * managed - (used - held), 0.0)).astype(np.int64)
        works["heading"] = np.sign(works["level"] - works["pages"])
        before, done = self.live.counts.copy(), int(self.live.totals[0])
        if self.generator is None:
            run_built_in(mem.state, self.live, self.requests, limit, operations is None)
        else:
            run_generator(mem.state, self.live, self.requests, limit, operations is None, self.generator)
            self._refuse_impossible()
        shown = slice(mem.geometry.max_page_order + 1)
        counts = [np.ascontiguousarray(now[:, shown]) for now in self.live.counts - before]
        return WorkloadOutcome(
            operations=int(self.live.totals[0]) - done,
            settled=not works["heading"].any(),
            allocated=counts[ALLOCATED],
            failed=counts[FAILED],
            freed=counts[FREED],
            held=self.live.counts[HELD][:, shown].copy(),
            live=self.live,
        )

    def _refuse_impossible(self) -> None:
        word = int(self.live.totals[1])
        if word != -1:
            self.live.totals[1] = -1
            action, order, kind, pool = word & 15, word >> 4 & 15, word >> 8 & 15, (word & (1 << 64) - 1) >> 12
            raise InputError(
                f"the generator's operation {int(self.live.totals[0])} has action {action}, order {order}, kind {kind} "
                f"and pool {pool}: 0 to 5, {self.mem.geometry.max_page_order}, {len(Kind) - 1} and 3 are possible"
            )


def share_of_memory(value: float, what: str) -> float:
    """`value` as a share, 0 to 1.

    Raises
    ------
    InputError
        If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value) or not 0 <= value <= 1:
        raise InputError(f"{what} {value!r}; a share from 0 to 1 is possible")
    return float(value)


def _free_pages(mem: Machine) -> int:
    """Pages on the free lists and the per-CPU lists."""
    state = mem.state
    return int(state.zones["free_pages"].sum() + state.pcp["free_diff"].sum() + state.pcp["count"].sum())


def _streams(
    mem: Machine, seed: int | Sequence[int] | np.random.SeedSequence | None, codes: Sequence[int]
) -> npt.NDArray[np.uint64]:
    """A state of the random generator for each code: one workload's is the same whatever it is mixed with."""
    if seed is None:  # the memory's own, another one after each folio that there was
        seed = np.random.SeedSequence(mem.seed, spawn_key=(int(mem.state.slots[1]),))
    elif isinstance(seed, int | np.integer):
        seed = np.random.SeedSequence(whole_number(int(seed), "seed", 0, MAX_SEED))
    elif not isinstance(seed, np.random.SeedSequence):
        try:
            seed = np.random.SeedSequence(seed)
        except (TypeError, ValueError):
            raise InputError(f"seed {seed!r}; a whole number, 0 or more, is possible") from None
    keys = ((*seed.spawn_key, code) for code in codes)
    streams = [np.random.SeedSequence(seed.entropy, spawn_key=key).generate_state(4, np.uint64) for key in keys]
    return np.array(streams)


def _own_settings(settings: Mapping[str, Any]) -> list[float]:
    """The numbers for a user's generator."""
    for name in settings:
        one_of(name, ("settings",), "setting of a generator of your own")
    try:
        values = np.atleast_1d(np.asarray(settings.get("settings", []), np.float64))
    except (TypeError, ValueError):
        values = np.zeros((0, 0))
    if values.ndim != 1 or values.size > N_SETTINGS:
        raise InputError(f"settings {settings['settings']!r}; up to {N_SETTINGS} numbers are possible")
    return [float(value) for value in values]


@functools.lru_cache(maxsize=64)
def _compiled(generator: Generator) -> Generator:
    """A generator as the loop takes it: a C function of `SIGNATURE`, which the compiled loop can call by address."""
    function = getattr(generator, "py_func", generator)
    if not JIT_ENABLED:
        return function
    if hasattr(generator, "native_name"):  # a numba.cfunc
        found = numba.typeof(generator).signature
        if found != SIGNATURE:
            raise InputError("the generator is a numba.cfunc of another signature; numba.cfunc(SIGNATURE) is needed")
        return generator
    try:
        return numba.cfunc(SIGNATURE)(function)  # type: ignore[no-any-return]
    except (NumbaError, KeyError, TypeError) as error:  # KeyError: a field that the record has not
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = next((line for line in lines if not line.startswith(("Failed in", "During"))), "")
        raise InputError(f"the generator cannot be compiled: {said}") from None
