"""Demotion THP by THP: what one run of writer and kswapd costs."""

from functools import partial

import memmodel as mm
from memmodel.cost.demotion import draw_work, node_watermarks, simulate_demotion
from memmodel.state.sizing import Sysctls

from . import best_of


class Run:
    """40,000 THPs (80 GB) written to a node of 16 GiB, with kswapd as fast as the writer or slower."""

    params = (["keeps_up", "falls_behind"],)
    param_names = ("kswapd",)
    unit = "ns a THP"
    n_thps = 40_000

    def setup(self, kswapd):
        pages = 16 << 18
        self.work = draw_work(self.n_thps, 0.1, 0)
        times = 90_000, 85_000 if kswapd == "keeps_up" else 120_000, 100_000
        self.run = partial(simulate_demotion, self.work, *times, pages, node_watermarks(pages, Sysctls()))
        self.run()

    def track_time(self, kswapd):
        (best,) = best_of(5, self.run)
        return best * 1e9 / self.n_thps


class Study:
    """A point of the study, its times drawn and priced."""

    unit = "ms a point"
    n_points = 64

    def setup(self):
        self.sweep(1)

    def sweep(self, n_points):
        rates = [20.0 + 0.1 * number for number in range(n_points)]
        return mm.run_study("demotion", {"write_gib_per_s": rates}, seed=0)

    def track_point(self):
        (best,) = best_of(3, partial(self.sweep, self.n_points))
        return best * 1e3 / self.n_points
