"""Kernel builds with bursts of THP faults, run after run in one memory.

Does the success of the faults wear off? Until 6.9 free pages may stand on a list of another migratetype than their
pageblock's; since 6.10 ("freelist hygiene") they never do. The load is made up: by turns processes take memory up to a
random level, page cache, slabs and kernel memory fill the rest up to the build's, and a burst of huge page faults
comes, whose pages are freed at once. Then part of it goes, and all processes exit.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.mechanisms.buddy import free_pages
from memmodel.mechanisms.huge_pages import THP_DEFRAG, thp_fault
from memmodel.mechanisms.kswapd import run_kswapd
from memmodel.mechanisms.policies import CompactPolicy
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import Vmstat
from memmodel.studies.fragmentation import KERNEL, PAGE_BLOCK_MAX_ORDER, memory_of
from memmodel.studies.registry import Parameter, Params, Seeds, Study
from memmodel.workloads.pageblocks import count_type_mismatches, pageblock_use
from memmodel.workloads.run import Session

__all__ = ["STUDY", "Run", "Trend", "block", "build_runs", "trend"]

MOST_RUNS = 1000
PARAMETERS = (
    Parameter("run", 15, "Which run in a row it is. Points that differ in it alone are of one memory.", kind="int",
              range=(1, MOST_RUNS)),
    KERNEL,
    PAGE_BLOCK_MAX_ORDER,
    Parameter("page_size", "4KiB", "Base page size.", kind="choice", choices=("4KiB", "16KiB", "64KiB")),
    Parameter("size_mib", 512, "Memory of the machine.", "MiB", kind="int", range=(16, 1 << 22), workload=True),
    Parameter("fill", 0.8, "Share of managed pages in use during a build.", range=(0, 1), workload=True),
    Parameter("rest", 0.4, "Share in use after a burst, at least.", range=(0, 1), workload=True),
    Parameter("mix", "4*page_cache+kernel", "What fills memory beside processes. As run_workload() takes it.",
              kind="str", workload=True),
    Parameter("bursts", 8, "Bursts of THP faults in a build.", kind="int", range=(1, 1 << 20), workload=True),
    Parameter("burst_mib", 32, "Memory that a burst asks for.", "MiB", kind="int", range=(1, 1 << 22), workload=True),
    Parameter("defrag", "madvise", "transparent_hugepage/defrag.", kind="choice", choices=tuple(THP_DEFRAG)),
)  # fmt: skip
OUTPUTS = (
    *("pageblock_order", "thp_success", "n_thp_faults", "type_mismatch_pages", "extfrag_events"),
    *("n_pageblocks_free", "n_pageblocks_movable", "n_pageblocks_unmovable", "n_pageblocks_mixed"),
)


class Run(NamedTuple):
    """One build."""

    n_faults: int
    n_huge: int
    """Faults that got a huge page."""
    mismatches: float
    """Free pages on a list of another type than their pageblock's, mean over the bursts."""
    fallbacks: int
    """Blocks that came from another type's list (mm_page_alloc_extfrag)."""
    use: tuple[int, ...]
    """Pageblocks free, movable, unmovable, mixed at its end."""


class Trend(NamedTuple):
    """A straight line through values run by run."""

    slope: float
    """A run."""
    error: float
    """Standard error of the slope."""
    low: float
    """95 % interval of the slope, here and in the next."""
    high: float
    mean: float

    @property
    def falls(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high < 0


def trend(values: npt.ArrayLike) -> Trend:
    """Least squares over runs 1, 2, 3 ...; the interval is of Student's t, as if runs were independent."""
    from scipy.stats import linregress, t

    y = np.asarray(values, np.float64)
    fit = linregress(np.arange(1, y.size + 1), y)
    reach = float(t.ppf(0.975, y.size - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    return Trend(slope, float(fit.stderr), slope - reach, slope + reach, float(y.mean()))


def build_runs(
    mem: PhysicalMemory,
    point: Mapping[str, Any],
    seed: npt.NDArray[np.uint64],
    *,
    compact: CompactPolicy | None = None,
) -> list[Run]:
    """Builds 1 to ``point["run"]`` in one memory, which they change.

    `compact` is for the faults, as of `thp_fault`; without it none compacts.
    """
    words = seed.tolist()
    processes = Session(mem, "anonymous", seed=[*words, 1])
    files = Session(mem, point["mix"], seed=[*words, 2])
    n_faults = max(1, (point["burst_mib"] << 20) // (mem.geometry.page_size_bytes << mem.geometry.hpage_pmd_order))
    full, rest = point["fill"], point["rest"]
    random = np.random.default_rng([*words, 3])
    runs = []
    for _ in range(point["run"]):
        before = int(mem.state.vmstat[Vmstat.EXTFRAG_EVENTS])
        n_huge, mismatches = 0, 0
        for _ in range(point["bursts"]):
            give_boost_back(mem)
            processes.run(random.uniform(rest, full))
            give_boost_back(mem)
            files.run(full)
            faults = thp_fault(mem, n_faults, defrag=point["defrag"], compact=compact)
            n_huge += int(np.count_nonzero(faults.success))
            mismatches += int(count_type_mismatches(mem.state))
            free_pages(mem, faults.folios)
            files.run(random.uniform(rest, full))
            processes.run(rest)
        fallbacks = int(mem.state.vmstat[Vmstat.EXTFRAG_EVENTS]) - before
        use = pageblock_use(mem.state)
        runs.append(Run(n_faults * point["bursts"], n_huge, mismatches / point["bursts"], fallbacks, tuple(use)))
    return runs


def give_boost_back(mem: PhysicalMemory) -> None:
    """kswapd, for which the load leaves nothing to reclaim: the watermarks' boosts end."""
    for node in mem.nodes:
        run_kswapd(mem, node, reclaim=lambda mem, request: 0)


def block(params: Params, seeds: Seeds, *, compact: CompactPolicy | None = None) -> Mapping[str, npt.ArrayLike]:
    """Each point's run; points that differ in `run` alone share the memory that is run the longest."""
    starts: dict[tuple[Any, ...], tuple[PhysicalMemory, PhysicalMemory]] = {}
    names = [parameter.name for parameter in PARAMETERS[1:]]
    rows = zip(*(params[name].tolist() for name in names), (seed.tobytes() for seed in seeds), strict=True)
    keys = list(rows)
    longest: dict[tuple[Any, ...], int] = {}
    for key, number in zip(keys, params["run"].tolist(), strict=True):
        longest[key] = max(longest.get(key, 0), number)
    done: dict[tuple[Any, ...], tuple[int, list[Run]]] = {}
    columns: dict[str, list[float]] = {name: [] for name in OUTPUTS}
    for i, key in enumerate(keys):
        if key not in done:
            point = {"run": longest[key], **dict(zip(names, key[:-1], strict=True))}
            mem = memory_of(point, starts)
            done[key] = mem.geometry.pageblock_order, build_runs(mem, point, seeds[i], compact=compact)
        order, runs = done[key]
        run = runs[int(params["run"][i]) - 1]
        values = (order, run.n_huge / run.n_faults, run.n_faults, run.mismatches, run.fallbacks, *run.use)
        for name, value in zip(OUTPUTS, values, strict=True):
            columns[name].append(value)
    return columns


STUDY = Study(
    name="freelist_hygiene",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/page_alloc.c (Linux 6.1, 6.12.117, 7.3); made-up loads; 20240320180429.678181-1-hannes@cmpxchg.org",
)
