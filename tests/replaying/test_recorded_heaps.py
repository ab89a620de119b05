"""The dma-bufs of recordings R1, each predicted whole from the state before it: its orders, its pages, what is left.

8M 4M 1M 1M 64K*4 4K*4 twice (t10), then all freed (t11), in memory fragmented before. What else was allocated in
between is given as a request alone; where its page comes from is predicted too.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import memmodel as mm
from memmodel.mechanisms.heaps import ORDERS, gfp_of
from memmodel.memory import PhysicalMemory
from memmodel.replaying.comparing import compare_dump
from memmodel.sources.freelists import read_free_lists
from memmodel.sources.ftrace import Event, parse_trace
from memmodel.sources.gfp import parse_gfp
from memmodel.sources.procfs import parse_version
from memmodel.sources.records import Snapshot
from memmodel.sources.snapshot import read_snapshot
from tests.replaying.recorded import DATA, event, lines_of, place_of, recording

SIZES = ["8MiB", "4MiB", "1MiB", "1MiB", *["64KiB"] * 4, *["4KiB"] * 4] * 2
BEGIN, ALLOCATED, FREED = "t09", "t10", "t11"


@dataclass
class Prediction:
    """What the heap's requests and frees came to, beside the trace."""

    mem: PhysicalMemory
    dumps: dict
    buffers: list = field(default_factory=list)
    wrong: list = field(default_factory=list)
    given: list = field(default_factory=list)  # (order, gfp) of the requests of others

    def count(self, order):
        """Folios of an order, of all buffers."""
        return sum(int((buffer.orders == order).sum()) for buffer in self.buffers)

    def compare(self, label):
        return compare_dump(self.mem, self.dumps[label])


def piece(folder):
    """Lines of the trace from the dump before the buffers to the one after them."""
    lines = lines_of(folder)
    return list(lines[place_of(lines, f"gt S {BEGIN}") : place_of(lines, f"gt E {FREED}") + 1])


def start_of(folder):
    """The memory at the first dump, and the dumps by label."""
    dumps = {dump.label: dump for dump in read_free_lists(folder / "gt_snap.txt.xz")}
    kernel = parse_version((folder / "version").read_text(), "version")
    beside = folder / "snap" / BEGIN  # kpageflags: what is on an LRU list decides claims of pageblocks
    files = read_snapshot(beside) if beside.is_dir() else Snapshot(zones={})
    mem = PhysicalMemory.from_snapshot(replace(files, free_lists=dumps[BEGIN], kernel=kernel))
    return mem, dumps


def events_of(mem, buffer):
    """(pfn, order) as the trace has them: a smaller order than the rest needs comes after a request that failed."""
    left, largest, events = buffer.size_bytes >> mem.geometry.page_shift, ORDERS[0], []
    for pfn, order in zip(mem.pfn(buffer.folios).tolist(), buffer.orders.tolist(), strict=True):
        events += [(0, failed) for failed in ORDERS if order < failed <= largest and left >> failed]
        events.append((pfn, order))
        left, largest = left - (1 << order), order
    return events


def predict(folder, lines):
    """Each buffer is asked for where the trace has its first folio, and freed where it frees the first one."""
    mem, dumps = start_of(folder)
    done = Prediction(mem, dumps)
    trace = parse_trace(b"".join(lines), "trace.txt")
    heap = {(order, gfp_of(mem, order)) for order in ORDERS}
    sizes, expected, owner, freeing, others = iter(SIZES), [], {}, [], {}
    for row in np.flatnonzero(np.isin(trace.event, [Event.MM_PAGE_ALLOC, Event.MM_PAGE_FREE])).tolist():
        values = trace.values(row)
        found = (max(values["pfn"], 0), values["order"])  # -1: the request failed
        if trace.event[row] == Event.MM_PAGE_FREE and found in others:
            assert not freeing
            mm.free_pages(mem, others.pop(found))
            predicted = found
        elif trace.event[row] == Event.MM_PAGE_FREE:
            if not freeing:
                buffer = done.buffers[owner[found]]
                freeing = [event for event in events_of(mem, buffer) if event[0]]
                mm.dmabuf_free(mem, buffer)
            predicted = freeing.pop(0)
        elif (values["order"], parse_gfp(values["gfp_flags"])) in heap:
            if not expected:
                buffer = mm.dmabuf_alloc(mem, next(sizes))
                expected = events_of(mem, buffer)
                owner |= dict.fromkeys(expected, len(done.buffers))
                done.buffers.append(buffer)
            predicted = expected.pop(0)
        else:
            assert not expected, "a request of another in the middle of a buffer"
            done.given.append((values["order"], values["gfp_flags"]))
            folio = mm.alloc_pages(mem, values["order"], gfp=values["gfp_flags"])
            predicted = (int(mem.pfn(folio)[0]), values["order"])
            others[found] = folio
        if predicted != found:
            done.wrong.append((row, found, predicted))
    assert not expected
    assert not freeing
    return done


def split_at_free(lines):
    """The lines up to the second dump, without frees."""
    return lines[: place_of(lines, f"gt E {ALLOCATED}")]


def exact(folder):
    """Both halves of a recording: every page is predicted, and all lists are equal after each."""
    lines = piece(folder)
    first = predict(folder, split_at_free(lines))
    assert (first.wrong, len(first.buffers)) == ([], len(SIZES))
    assert first.compare(ALLOCATED).equal, first.compare(ALLOCATED).differences
    both = predict(folder, lines)
    assert both.wrong == []
    mm.vmstat_update(both.mem, 0)  # the program sleeps before the dump, and an idle CPU folds its counters
    assert both.compare(FREED).equal, both.compare(FREED).differences
    assert not first.compare(FREED).equal  # the comparison can fail
    both.mem.check()
    return both


def test_dmabuf__piece_of_a_recording():
    done = exact(DATA / "replay_612_dmabuf")
    orders = [buffer.orders.tolist() for buffer in done.buffers]
    assert orders == ([[8] * 8, [8] * 4, [8], [8], *[[4]] * 4, *[[0]] * 4] * 2)
    assert done.given == [(0, "GFP_KERNEL|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP")] * len(done.given)
    assert len(done.given) == 4


def test_dmabuf__another_page_shows():
    """A buffer that the trace has and the program did not ask for moves all later ones."""
    folder = DATA / "replay_612_dmabuf"
    lines = split_at_free(piece(folder))
    number = place_of(lines, "order=4")
    lines.insert(
        number, event("mm_page_alloc: page=00000000bbd26ffb pfn=0xf370 order=4 migratetype=0 gfp_flags=GFP_KERNEL")
    )
    done = predict(folder, lines)
    assert done.wrong[0][1] == (0xF370, 4)
    assert not done.compare(ALLOCATED).equal


@pytest.mark.parametrize(("name", "orders", "n_given"), [("R1-612gt", (28, 8, 8), 4), ("R1-73gt", (13, 29, 3512), 30)])
def test_dmabuf__recording(name, orders, n_given):
    """In R1-73gt orders 8 and 4 run out on the way, and pageblocks are claimed for single pages."""
    done = exact(recording(name))
    assert tuple(done.count(order) for order in ORDERS) == orders
    assert len(done.given) == n_given
    assert {order for order, _ in done.given} == {0}
