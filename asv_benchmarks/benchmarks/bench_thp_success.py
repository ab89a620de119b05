"""A point of the study thp_success, whole: load, and huge page faults with direct compaction."""

from functools import partial

import numpy as np

import memmodel as mm
from memmodel.mechanisms.thp_faults import fault_compacting
from memmodel.state.layout import Vmstat
from memmodel.studies.thp_success import STUDY, machine_of, settle

from . import RunOnce, best_of, skip_slow

N_FAULTS = 2000


class Point(RunOnce):
    """4 GiB filled, emptied to half, churned by ten million requests and frees; then 2,000 faults."""

    # Bar: 1.5 s on one core.
    at_most = 1.5
    unit = "s"
    size_mib = 4096
    n_operations = 10_000_000  # requests and frees of the load, together
    quick_size = None

    def setup(self):
        skip_slow()
        mm.run_study("thp_success", {"size_mib": 64, "churn": 0.1}, seed=0, progress=False)
        self.point = {parameter.name: parameter.default for parameter in STUDY.parameters}
        self.point |= {"size_mib": self.size_mib, "fill": 0.5, "churn": self.n_operations / 2 / (self.size_mib << 8)}
        self.starts = {}
        self.seed = np.arange(4, dtype=np.uint64)
        self.run()
        vmstat = self.mem.state.vmstat
        n_done = int(vmstat[Vmstat.PGALLOC_DMA : Vmstat.PGFREE].sum() + vmstat[Vmstat.PGFREE])
        assert n_done > self.n_operations, f"{n_done} pages allocated and freed"

    def run(self):
        self.mem = machine_of(self.point, self.starts)
        settle(self.mem, self.point, self.seed)
        fault_compacting(self.mem, N_FAULTS)

    def track_seconds(self):
        return best_of(3, self.run)[0]


class TwoThreads(RunOnce):
    """How much faster a sweep of such points is on two threads."""

    # Bar: 1.8.
    at_least = 1.8
    unit = "times"
    turns = 3
    size_mib = 512

    def setup(self):
        skip_slow()
        self.sweep(1)

    def sweep(self, workers):
        grid = {"page_block_max_order": [7, 9], "size_mib": self.size_mib}
        mm.run_study("thp_success", grid, replicates=4, seed=0, progress=False, workers=workers)

    def track_speed_up(self):
        one, two = best_of(self.turns, partial(self.sweep, 1), partial(self.sweep, 2))
        return one / two
