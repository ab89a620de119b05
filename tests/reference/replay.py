"""A recorded trace of Linux 6.12.117 against the twin of its page allocator.

Starts from the first state of the recording's gt_snap.txt. Each mm_page_alloc is predicted: which page, or that there
is none; each free is followed through the per-CPU lists into the buddy lists. Given by the trace: the free blocks
that compaction and CMA isolate, the lists that compaction's search for targets rotates, and which softirq frees found
their page set locked. The exit status is 1 if a prediction, a snapshot or (--check-ops) a list operation differs.
"""

import argparse
import json
import pathlib
import sys

if __package__ in (None, ""):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from memmodel.sources.freelists import read_free_lists
from memmodel.sources.kpageflags import has_flag
from memmodel.sources.snapshot import read_snapshot
from tests.reference.replay_events import Trace, read_events
from tests.reference.replay_run import Replay

ALLOC_FACTORS = range(6)  # 0 .. CONFIG_PCP_BATCH_SCALE_MAX


def load(recording):
    """(states, protection, vm stat thresholds, pfns on an LRU list) at the start of a recording."""
    states = read_free_lists(next(recording.glob("gt_snap.txt*")))
    snapshot = read_snapshot(recording / "snap" / states[0].label)
    zones = {name: zone for (_, name), zone in snapshot.zones.items()}
    protection = {name: zone.protection for name, zone in zones.items()}
    thresholds = {name: zone.vm_stats_threshold for name, zone in zones.items()}
    return states, protection, thresholds, has_flag(snapshot.kpageflags, "LRU").nonzero()[0].tolist()


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


def run(start, trace, alloc_factor, check=None, stop=False):
    """A replay to the end, or with `stop` to the first difference: (Replay, number of events done)."""
    replay, n_done = Replay(*start, alloc_factor=alloc_factor), 0
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


def infer_alloc_factor(start, trace, check=None):
    """(factor, Replay): what no file tells of the start is the first value with which nothing differs.

    If there is none, the one that gets furthest. Three frees forget it, and while the sets are nearly full it does not
    show: often any value fits.
    """
    done = {}
    for factor in ALLOC_FACTORS:
        replay, done[factor] = run(start, trace, factor, check, stop=True)
        if not differs(replay, check):
            return factor, replay
    factor = max(done, key=done.get)
    return factor, run(start, trace, factor, check)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=pathlib.Path, help="folder with gt_snap.txt, snap/ and trace.txt")
    parser.add_argument("--stripped", type=pathlib.Path, help="the trace without what the allocator must predict")
    parser.add_argument("--check-ops", action="store_true", help="compare every list operation of the whole trace")
    parser.add_argument("--alloc-factor", type=int, choices=ALLOC_FACTORS, help="of the page sets at the start")
    arguments = parser.parse_args()
    whole = next(arguments.recording.glob("trace.txt*"))
    start, trace = load(arguments.recording), Trace(arguments.stripped or whole)
    check = OperationCheck(whole) if arguments.check_ops else None
    factor = arguments.alloc_factor
    if factor is None:
        factor, replay = infer_alloc_factor(start, trace, check)
        replay.score.inferred["alloc_factor at the start"] += 1
    else:
        replay, _ = run(start, trace, factor, check)
    print(json.dumps(replay.score.summary(trace) | {"alloc_factor": factor}, indent=1))
    for mismatch in replay.score.mismatches[:20]:
        print(f"line {mismatch.line}: {mismatch.kind}: {mismatch.text}", file=sys.stderr)
    if check:
        print(check.report())
    return int(differs(replay, check) or bool(check and not check.all_equal()))


if __name__ == "__main__":
    sys.exit(main())
