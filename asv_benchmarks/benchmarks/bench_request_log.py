"""What-if replays: the requests of a recording on other machines."""

from functools import partial

import memmodel as mm
from memmodel.sources.ftrace import parse_trace

from . import best_of
from .bench_replaying import recording, trace_text


class Points:
    """What one more point of the grid costs, once the recording has been replayed."""

    unit = "ms a point"
    timeout = 300
    turns = 3
    n_points = 16

    def setup(self):
        folder = recording()
        text, digest = trace_text(folder, "stripped")
        self.trace, self.start = parse_trace(text, "trace", digest), folder / "gt_snap.txt.xz"
        self.what_if(1)

    def what_if(self, n_points):
        fractions = [8 + n for n in range(n_points)]
        return mm.what_if(self.trace, self.start, {"percpu_pagelist_high_fraction": fractions}, samples=1)

    def track_point(self):
        one, many = best_of(self.turns, partial(self.what_if, 1), partial(self.what_if, 1 + self.n_points))
        return (many - one) * 1e3 / self.n_points
