"""A recorded trace of Linux 6.12.117 or 7.3 against the twin of its page allocator.

Starts from the first state of the recording's gt_snap.txt. Each mm_page_alloc is predicted: which page, or that there
is none; each free is followed through the per-CPU lists into the buddy lists. Given by the trace: the free blocks
that compaction and CMA isolate, the lists that compaction's search for targets rotates, which softirq frees found
their page set locked or came amid a drain, and runs of the vmstat worker. With --predict-compaction compaction is
predicted too, event by event, from its begin on. The exit status is 1 if a prediction, a snapshot or (--check-ops) a
list operation differs.
"""

import argparse
import json
import pathlib
import sys

if __package__ in (None, ""):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from memmodel.sources.features import DEFAULT_KERNEL, kernel_features, kernel_version
from memmodel.sources.freelists import read_free_lists
from memmodel.sources.kpageflags import has_flag
from memmodel.sources.snapshot import read_snapshot
from tests.reference.replay_events import GIVEN, ROTATES, Trace, read_events
from tests.reference.replay_predicted import PredictedReplay
from tests.reference.replay_run import Replay

ALLOC_FACTORS = range(6)  # 0 .. CONFIG_PCP_BATCH_SCALE_MAX
MORE_FEATURES = {"pageblock_order_sources": (7, 2, 0)}  # only the twin has them: first release known to


def features_of(recording):
    """What the recorded kernel does, by name; a recording without a version is of the default kernel."""
    path = recording / "version"
    kernel = path.read_text().removeprefix("Linux version ") if path.exists() else DEFAULT_KERNEL
    more = {name for name, since in MORE_FEATURES.items() if kernel_version(kernel) >= since}
    return kernel_features(kernel) | more


def load(recording):
    """(states, protection, vm stat thresholds, pfns on an LRU list, features) at the start of a recording."""
    states = read_free_lists(next(recording.glob("gt_snap.txt*")))
    snapshot = read_snapshot(recording / "snap" / states[0].label)
    zones = {name: zone for (_, name), zone in snapshot.zones.items()}
    protection = {name: zone.protection for name, zone in zones.items()}
    thresholds = {name: zone.vm_stats_threshold for name, zone in zones.items()}
    lru = has_flag(snapshot.kpageflags, "LRU").nonzero()[0].tolist()
    return states, protection, thresholds, lru, features_of(recording)


def load_predicted(recording, states):
    """What PredictedReplay needs besides: kpageflags at the start, and by label those of later snapshots."""
    folders = {path.parent.name: path.parent for path in recording.glob("snap/*/kpageflags*")}
    flags = {state.label: read_snapshot(folders[state.label]).kpageflags for state in states if state.label in folders}
    return {"flags": flags.pop(states[0].label), "later": flags}


class OperationCheck:
    """Every list operation of a whole trace against the twin's, up to the first that differs.

    Those of the per-CPU lists and those of the buddy lists are two sequences: a softirq may free to the buddy lists
    while a task is about to push a page.
    """

    def __init__(self, path):
        self.kernel = ([], [])  # buddy lists, per-CPU lists: (line, words)
        for event in read_events(path)[0]:
            words = event.operation
            if words and words[0] not in ("gt", "gtd"):
                self.kernel[words[0].startswith("gtp")].append((event.line, words))
        self.restart()

    def restart(self):
        self.log, self.twin, self.differs = [], ([], []), False

    def compare(self):
        """Take what the twin has logged since the last call; nothing more after the first difference."""
        for words in self.log:
            if self.differs:
                break
            which = words[0].startswith("gtp")
            at = len(self.twin[which])
            self.twin[which].append(words)
            self.differs = at >= len(self.kernel[which]) or self.kernel[which][at][1] != words
        self.log.clear()

    def report(self, n_context=10):
        n_equal = sum(map(len, self.twin)) - self.differs
        rows = [f"operations equal: {n_equal} of {sum(map(len, self.kernel))}"]
        for name, kernel, twin in zip(("buddy", "per-CPU"), self.kernel, self.twin, strict=True):
            if self.differs and (len(twin) > len(kernel) or kernel[len(twin) - 1][1] != twin[-1]):
                last = slice(max(0, len(twin) - n_context), len(twin))
                rows.append(f"{name} lists, trace | twin:")
                rows += [f"{k!s:50} | {t}" for k, t in zip(kernel[last], twin[last], strict=False)]
        return "\n".join(rows)

    def all_equal(self):
        return not self.differs and list(map(len, self.twin)) == list(map(len, self.kernel))


def run(start, trace, hidden, check=None, stop=False, known=None):
    """A replay to the end, or with `stop` to the first difference: (Replay, number of events done).

    `known` is of load_predicted: compaction is predicted.
    """
    replay, n_done = PredictedReplay(*start, **known, **hidden) if known else Replay(*start, **hidden), 0
    if check:
        check.restart()
        replay.allocator.log_to(check.log)
    for _ in replay.run(trace):
        n_done += 1
        if check:
            check.compare()
        if stop and differs(replay, check):
            break
    return replay, n_done


def differs(replay, check):
    return replay.score.differs or bool(check and check.differs)


def infer_hidden(start, trace, check=None, alloc_factors=ALLOC_FACTORS, known=None):
    """(hidden, Replay): what no file tells of the start are the first values with which nothing differs.

    If there are none, those that get furthest. Three frees forget an alloc_factor, and while the sets are nearly full
    it does not show: often any value fits. The counters' differences at the start are forgotten as fast.
    """
    tried = []
    for folded in (True, False):
        for factor in alloc_factors:
            hidden = {"alloc_factor": factor, "folded": folded}
            replay, n_done = run(start, trace, hidden, check, stop=True, known=known)
            if not differs(replay, check):
                return hidden, replay
            tried.append((n_done, hidden))
    hidden = max(tried, key=lambda item: item[0])[1]
    return hidden, run(start, trace, hidden, check, known=known)[0]


def infer_alloc_factor(start, trace, check=None):
    hidden, replay = infer_hidden(start, trace, check)
    return hidden["alloc_factor"], replay


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=pathlib.Path, help="folder with gt_snap.txt, snap/ and trace.txt")
    parser.add_argument("--stripped", type=pathlib.Path, help="the trace without what the allocator must predict")
    parser.add_argument("--check-ops", action="store_true", help="compare every list operation of the whole trace")
    parser.add_argument("--predict-compaction", action="store_true", help="take nothing of compaction from the trace")
    parser.add_argument("--alloc-factor", type=int, choices=ALLOC_FACTORS, help="of the page sets at the start")
    arguments = parser.parse_args()
    whole = next(arguments.recording.glob("trace.txt*"))
    predict = arguments.predict_compaction
    start = load(arguments.recording)
    trace = Trace(arguments.stripped or whole, GIVEN | {ROTATES} if predict else GIVEN)
    known = load_predicted(arguments.recording, start[0]) if predict else None
    check = OperationCheck(whole) if arguments.check_ops else None
    factors = ALLOC_FACTORS if arguments.alloc_factor is None else [arguments.alloc_factor]
    hidden, replay = infer_hidden(start, trace, check, factors, known)
    print(json.dumps(replay.score.summary(trace) | {"hidden": hidden} | replay.more(), indent=1))
    for mismatch in replay.score.mismatches[:20]:
        print(f"line {mismatch.line}: {mismatch.kind}: {mismatch.text}", file=sys.stderr)
    if check:
        print(check.report())
    return int(differs(replay, check) or bool(check and not check.all_equal()))


if __name__ == "__main__":
    sys.exit(main())
