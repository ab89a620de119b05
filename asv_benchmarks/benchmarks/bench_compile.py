"""The first study of a new installation, and of a new session: a Python started, kernels compiled or loaded."""

import os
import subprocess
import sys
import tempfile

from . import RunOnce, best_of, skip_slow

SESSIONS = {
    "study": 'mm.run_study("folio_copy", {"folio_order": [0, 9, 18], "batch": ["page", "extent"]}, seed=0)',
    "study in a memory": """
mem = mm.PhysicalMemory(mm.Geometry(), "256MiB", contents=True)
mm.free_pages(mem, mm.alloc_pages(mem, order=9, count=8))
mem.check()
mm.run_study("folio_copy", {"folio_order": [0, 9], "poison_per_gib": 10}, memory=mem, seed=0)
""",
}


class FirstStudy(RunOnce):
    """Wall time of a Python process that runs one small study, with a cache of its own."""

    unit = "s"
    params = (list(SESSIONS),)
    param_names = ("session",)

    def setup(self, session):
        self.cache = tempfile.TemporaryDirectory(prefix="memmodel-bench-")

    def teardown(self, session):
        self.cache.cleanup()

    def run(self, session):
        code = f"import memmodel as mm\n{SESSIONS[session]}"
        environment = {**os.environ, "XDG_CACHE_HOME": self.cache.name}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True)


class FirstStudyCold(FirstStudy):
    """With an empty cache: every kernel is compiled."""

    # Bar: 30 s.
    at_most = 30

    def setup(self, session):
        super().setup(session)
        skip_slow()

    def track_cold(self, session):
        return best_of(1, lambda: self.run(session))[0]


class FirstStudyWarm(FirstStudy):
    """With the cache that a session before has left."""

    # Bar: 2 s.
    at_most = 2

    def setup(self, session):
        super().setup(session)
        self.run(session)

    def track_warm(self, session):
        return best_of(5, lambda: self.run(session))[0]
