"""Workloads: operations a second of each, and what a generator of the user's own costs against a built-in one."""

import memmodel as mm
from memmodel.workloads import generator as g
from memmodel.workloads.generator import Kind
from memmodel.workloads.run import Session

from . import best_of, need_memory

FILL = 0.8
ANONYMOUS = int(Kind.ANONYMOUS)


def session_of(size, workload, **settings):
    """A workload on a new machine."""
    need_memory(1 << 30)
    return Session(mm.PhysicalMemory(mm.Geometry(), size, seed=0), workload, seed=1, settings=settings)


class BuiltIn:
    """Churn at the fill level, on a machine with watermarks and per-CPU lists."""

    unit = "M requests and frees/s"
    params = (["anonymous", "page_cache", "kernel", "pinned", "thp", "dma_buf", "mixed"],)
    param_names = ("workload",)
    timeout = 300
    size = "4GiB"
    n_operations = 1_000_000
    turns = 5

    def setup(self, workload):
        self.session = session_of(self.size, workload)
        self.session.run(FILL)

    def track_rate(self, workload):
        best = 0.0
        for _ in range(self.turns):
            outcomes = []
            (time,) = best_of(1, lambda done=outcomes: done.append(self.session.run(FILL, self.n_operations)))
            (outcome,) = outcomes
            n_done = outcome.allocated.sum() + outcome.failed.sum() + outcome.freed.sum()
            best = max(best, float(n_done) / time / 1e6)
        return best


def anonymous_of_my_own(work):
    """The built-in `anonymous`, as a user would write it."""
    own = work.own
    if work.failed:
        own[own[4]] = 0
        return g.end_random(own[4])
    pool = g.below(work, 4)
    own[4] = pool
    if own[pool] > 0:
        own[pool] -= 1
        return g.join(0, ANONYMOUS, pool)
    if work.room <= 0:
        return g.end_random(pool)
    own[pool] = g.about(work, work.settings[0]) - 1
    return g.begin(0, ANONYMOUS, pool)


class OwnGeneratorAgainstBuiltIn:
    """The same operations from a user's generator, compiled as a C function: share of the built-in's rate.

    Bar: 0.5.
    """

    unit = "share of the built-in's rate"
    timeout = 300
    size = "4GiB"
    n_operations = 1_000_000
    turns = 7

    def setup(self):
        self.own = session_of(self.size, anonymous_of_my_own, settings=[512])
        self.built_in = session_of(self.size, "anonymous")
        self.own.live.works["rng"] = self.built_in.live.works["rng"]  # each generator has a stream of its own
        for session in (self.own, self.built_in):
            session.run(FILL)

    def track_share(self):
        own, built_in = best_of(
            self.turns,
            lambda: self.own.run(FILL, self.n_operations),
            lambda: self.built_in.run(FILL, self.n_operations),
        )
        if self.own.mem.digest != self.built_in.mem.digest:
            raise AssertionError("the two did not do the same: the comparison says nothing")
        return built_in / own
