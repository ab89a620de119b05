"""Fill a node with THPs while kswapd demotes them: what that costs, and how much the writer must demote itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from memmodel.cost.demotion import (
    THP_BYTES,
    DemotionRun,
    Work,
    demotion_times,
    draw_work,
    node_watermarks,
    simulate_demotion,
    steady_demotion,
)
from memmodel.cost.machines import DIRECTIONS, Machine
from memmodel.mechanisms.copying import BATCHES
from memmodel.state.sizing import Sysctls
from memmodel.studies.registry import Parameter, Params, PricedStudy, Seeds, points_of

__all__ = ["STUDY", "block"]

PARAMETERS = (
    Parameter(
        "write_gib_per_s",
        22.5,
        "Rate at which the thread faults in and writes THPs. Found from the direct reclaim that was published.",
        units="GiB s-1",
        range=(0.01, 1000),
    ),
    Parameter(
        "batch",
        "page",
        "What one call copies. page: mainline's call a page; extent: copy_mc_highpages().",
        kind="choice",
        choices=BATCHES,
    ),
    Parameter("direction", "D0-CXL", "From which node to which.", kind="choice", choices=DIRECTIONS),
    Parameter("write_gib", 96.0, "Memory that the thread writes.", "GiB", range=(0.01, 4096), workload=True),
    Parameter("node_gib", 16.0, "Memory of the node. One zone, all free at the start.", "GiB", range=(0.001, 4096)),
    Parameter(
        "watermark_scale_factor",
        10,
        "Distance of the watermarks, in 1/10000 of the zone. vm.watermark_scale_factor.",
        "1e-4",
        kind="int",
        range=(1, 3000),
    ),
    Parameter(
        "spread",
        0.1,
        "Coefficient of variation of the times of single THPs. Assumed: no source gives it.",
        range=(0, 10),
        workload=True,
    ),
    Parameter("form", "L", "Form of the cost model. L or F, as in folio_copy.", kind="choice", choices=("L", "F")),
)
OUTPUTS = (
    *("kswapd_ms_per_gib", "direct_share", "direct_share_fluid", "allocstall", "pgdemote_kswapd", "pgdemote_direct"),
    *("time_kswapd_ns", "time_stalled_ns", "time_to_first_stall_ns", "time_total_ns", "n_kswapd_wakes", "calibrated"),
)
NODE_PAGE_SHIFT = 12


def block(params: Params, seeds: Seeds, *, machine: Machine) -> Mapping[str, npt.ArrayLike]:
    """One run of the two threads a point; points of the same workload share the times that were drawn."""
    drawn: dict[tuple[int, float, bytes], Work] = {}
    columns: dict[str, list[float]] = {name: [] for name in OUTPUTS}
    for point, seed in zip(points_of(params), seeds, strict=True):
        n_thps = max(int(point["write_gib"] * 2**30 / THP_BYTES), 1)
        key = n_thps, point["spread"], seed.tobytes()
        if key not in drawn:
            drawn.clear()  # one workload at a time: long ones add up
            drawn[key] = draw_work(n_thps, point["spread"], seed)
        for name, value in run_point(point, drawn[key], machine).items():
            columns[name].append(value)
    return columns


def run_point(point: Mapping[str, Any], work: Work, machine: Machine) -> dict[str, float]:
    """All outputs of one point."""
    times = demotion_times(machine, point["batch"], point["direction"], point["form"])
    write_ns = THP_BYTES / 2**30 / point["write_gib_per_s"] * 1e9
    pages = int(point["node_gib"] * 2**30) >> NODE_PAGE_SHIFT
    marks = node_watermarks(pages, Sysctls(watermark_scale_factor=point["watermark_scale_factor"]))
    run = simulate_demotion(work, write_ns, times.kswapd_ns, times.direct_ns, pages, marks)
    fluid = steady_demotion(write_ns, times.kswapd_ns, times.direct_ns)
    return {**_counted(run), "direct_share_fluid": float(fluid.direct_share), "calibrated": times.calibrated}


def _counted(run: DemotionRun) -> dict[str, float]:
    pages = THP_BYTES >> NODE_PAGE_SHIFT
    demoted_gib = run.n_kswapd * THP_BYTES / 2**30
    return {
        "kswapd_ms_per_gib": run.kswapd_ns / 1e6 / demoted_gib if demoted_gib else np.nan,
        "direct_share": run.direct_share,
        "allocstall": run.n_direct,
        "pgdemote_kswapd": run.n_kswapd * pages,
        "pgdemote_direct": run.n_direct * pages,
        "time_kswapd_ns": run.kswapd_ns,
        "time_stalled_ns": run.stall_ns,
        "time_to_first_stall_ns": run.first_stall_ns,
        "time_total_ns": run.end_ns,
        "n_kswapd_wakes": run.n_wakes,
    }


STUDY = PricedStudy(
    name="demotion",
    doc=__doc__,
    parameters=PARAMETERS,
    outputs=OUTPUTS,
    block=block,
    source="mm/vmscan.c, mm/page_alloc.c (Linux 6.12.117); the copy_mc_highpages() series, RFC v2, October 2026",
    default_machine="zen6-cxl",
)
