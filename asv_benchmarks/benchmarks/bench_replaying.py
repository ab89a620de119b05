"""Replays of recorded traces: lines a second from decompressed text to the report, and what each step takes.

The recording is R1-612gt of the folder that MEMMODEL_RECORDS names, else the first step of it, which tests bring.
"""

import os
import re
from functools import partial
from pathlib import Path

from memmodel.replaying.plan import make_plan
from memmodel.replaying.replay import begin, find_hidden
from memmodel.replaying.start import read_start
from memmodel.sources.ftrace import parse_trace
from memmodel.sources.reading import read_bytes

from . import best_of

SHORT = Path(__file__).parents[2] / "tests" / "data" / "replay_612"
PREDICTED = re.compile(  # what only the allocator itself can say, and a replay predicts
    rb": (?:__rmqueue_pcplist|__free_one_page|free_pcppages_bulk|free_unref_page_commit|mm_page_pcpu_drain"
    rb"|mm_page_alloc_zone_locked|mm_page_alloc_extfrag|__move_freepages_block|try_to_steal_block"
    rb"|get_page_from_freelist|set_pageblock_migratetype)[ :]"
)


def recording() -> Path:
    """Folder with a trace and the dump that it starts from."""
    records = os.environ.get("MEMMODEL_RECORDS")
    folder = Path(records, "R1-612gt") if records else SHORT
    if not folder.is_dir():
        raise NotImplementedError(f"{folder} is not there")
    return folder


def trace_text(folder: Path, events: str) -> tuple[bytes, str]:
    """All lines of its trace, or those without what the allocator has to predict; the digest of the file."""
    text, digest = read_bytes(next(folder.glob("trace.txt*")))
    if events == "stripped":
        text = b"".join(line for line in text.splitlines(keepends=True) if not PREDICTED.search(line))
    return text, digest


class Replay:
    """Every allocation predicted, as mm.replay() does once the files are read and the trace is decompressed.

    It runs twice where nothing differs: the search for what no file tells of the start is a replay of its own.
    """

    # Bar: 1 M lines/s.
    at_least = 1
    unit = "M trace lines/s"
    params = (["stripped", "whole"],)
    param_names = ("trace",)
    timeout = 300
    turns = 7

    def setup(self, trace):
        folder = recording()
        self.text, self.digest = trace_text(folder, trace)
        self.trace = self.parse()
        self.base = read_start(folder / "gt_snap.txt.xz", self.trace, None, None)
        self.plan = make_plan(self.base.memory, self.trace, self.base.first_row)
        self.hidden = find_hidden(self.base, self.trace, self.plan, 0)[0]
        if self.run().mismatches:
            raise AssertionError("the replay differs from the recording: its rate says nothing")

    def parse(self):
        return parse_trace(self.text, "trace", self.digest)

    def run(self):
        return begin(self.base, self.trace, self.plan, self.hidden, 0).run()

    def replay(self):
        """From text to report."""
        trace = self.parse()
        plan = make_plan(self.base.memory, trace, self.base.first_row)
        hidden, run = find_hidden(self.base, trace, plan, 0)
        if run is None:
            begin(self.base, trace, plan, hidden, 0).run()

    def rate(self, call):
        return self.text.count(b"\n") / best_of(self.turns, call)[0] / 1e6

    def track_rate(self, trace):
        return self.rate(self.replay)

    def track_parse_alone(self, trace):
        return self.rate(self.parse)

    def track_plan_alone(self, trace):
        return self.rate(partial(make_plan, self.base.memory, self.trace, self.base.first_row))

    def track_run_alone(self, trace):
        return self.rate(self.run)
