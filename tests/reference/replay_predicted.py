"""A trace against the twin of compaction: each of its events is predicted, and nothing of it taken from the trace.

Given: that a compaction begins (try_to_compact_pages, kcompactd_wake, a begin without either: compact_memory) and who
runs when. The first prediction that is wrong ends the replay.
"""

import re
from collections import Counter
from dataclasses import replace

from memmodel.sources.kpageflags import has_flag
from tests.reference.allocator_request import ZONE_INDEX
from tests.reference.compaction import suitable
from tests.reference.compaction_state import Pages, ZoneMemory
from tests.reference.compaction_tasks import CompactionTask, Compactor
from tests.reference.replay_run import Replay

SCANS = "isolate_migratepages", "isolate_freepages", "fast_isolate_freepages"
SCAN = re.compile(r"range=\(0x(\w+) ~ 0x(\w+)\) nr_scanned=(\d+) nr_taken=(\d+)")
POSITION = ("zone_start", "migrate_pfn", "free_pfn", "zone_end")
DEFERRALS = {"deferred": "deferred", "defer_compaction": "defer", "defer_reset": "defer_reset"}
ROTATIONS = {"gtH": "first", "gtT": "last"}
OPERATIONS = {"gt-": "isolated", "gtH": "rotated", "gtT": "rotated"}
COMPACTION = {
    f"mm_compaction_{name}" for name in (*SCANS, "begin", "end", "finished", "suitable", "migratepages", *DEFERRALS)
}
AFTER = {  # events of a task that show that its compaction is over
    *("mm_page_alloc", "mm_vmscan_direct_reclaim_begin", "mm_compaction_try_to_compact_pages", "tracing_mark_write"),
    *("mm_compaction_kcompactd_sleep", "mm_compaction_kcompactd_wake"),
}


class WrongPredictionError(Exception):
    """The twin's compaction did something else: its state is not the kernel's any more."""


def pages_of(flags, lru):
    """What kpageflags tells of the pages in use."""
    pages = Pages(lru)
    anon, mlocked, dirty, unevictable, shmem, heads, tails = (
        has_flag(flags, name)
        for name in ("ANON", "MLOCKED", "DIRTY", "UNEVICTABLE", "SWAPBACKED", "COMPOUND_HEAD", "COMPOUND_TAIL")
    )
    pages.anon.update(anon.nonzero()[0].tolist())
    pages.mlocked.update(mlocked.nonzero()[0].tolist())
    ramfs = dirty & unevictable & ~(anon | mlocked | shmem)
    pages.fixed.update(ramfs.nonzero()[0].tolist())
    for head in heads.nonzero()[0].tolist():
        n_pages = 1 + next((n for n, tail in enumerate(tails[head + 1 :]) if not tail), tails.size)
        pages.make_compound(head, n_pages.bit_length() - 1)
    return pages


def memory_from_dump(lists):
    """The C line of a zone and its skip bits; where scans begin after a reset is not dumped."""
    dumped = lists.compaction
    return ZoneMemory(
        considered=dumped.compact_considered,
        defer_shift=dumped.compact_defer_shift,
        order_failed=dumped.compact_order_failed,
        cached_free=dumped.compact_cached_free_pfn,
        cached_migrate=[dumped.compact_cached_migrate_pfn_async, dumped.compact_cached_migrate_pfn_sync],
        blockskip_flush=bool(dumped.compact_blockskip_flush),
        skip=set(lists.block_pfns[lists.block_skip].tolist()),
    )


def shown(event):
    """The twin's words for a recorded event of a compacting task, or None."""
    name = event.name.removeprefix("mm_compaction_")
    fields = event.fields
    if name in SCANS:
        start, end, n_scanned, n_taken = SCAN.match(event.text).groups()
        return name, int(start, 16), int(end, 16), int(n_scanned), int(n_taken)
    if name in ("begin", "end"):
        words = tuple(int(fields[key].rstrip(","), 16) for key in POSITION)
        return name, *words, fields["mode"], *([fields["status"]] if name == "end" else ())
    if name in ("finished", "suitable"):
        return name, fields["ret"]
    if name == "migratepages":
        return name, int(fields["nr_migrated"]), int(fields["nr_failed"])
    if name in DEFERRALS:
        numbers = (int(fields[key]) for key in ("order", "order_failed", "consider", "limit"))
        return DEFERRALS[name], fields["zone"], *numbers
    return None


def same_free(predicted, recorded):
    """mm_page_free does not tell a source from an unused target or a released block; only the last has its order."""
    freed = recorded[0] == "free" and predicted[0] in ("free", "fictitious", "released")
    return freed and predicted[1:] == recorded[1 : len(predicted)]


def recorded_counts(trace):
    """{step: Counter} of the events that compaction made, mm_page_free apart: what PredictedReplay.counts must be."""
    counts, step = {}, ""
    for event in trace.events:
        kind = event.operation[0] if event.operation else ""
        if event.name == "tracing_mark_write" and event.text.startswith("step "):
            step = event.text.split()[2]
        name = event.name.removeprefix("mm_compaction_")
        what = DEFERRALS.get(name, name) if event.name in COMPACTION else OPERATIONS.get(kind)
        if what:
            counts.setdefault(step, Counter())[what] += 1
    return counts


class PredictedReplay(Replay):
    """`flags` are the kpageflags at the start; `later`, by label, those of later snapshots."""

    def __init__(self, *start, flags, later=None, **hidden):
        super().__init__(*start, **hidden)
        first = start[0][0]
        self.compactor = Compactor(self.allocator, pages_of(flags, self.lru))
        self.pages = self.compactor.pages
        for lists, zone in zip(first.zones, self.allocator.zones, strict=True):
            self.compactor.memory[id(zone)] = memory_from_dump(lists)
        self.later = later or {}
        self.running = {}  # task -> [CompactionTask, generator, is it between begin and end?]
        self.step = ""
        self.counts = {}  # step -> Counter of predicted events by name
        self.kswapd_runs = False

    def run(self, trace):
        try:
            yield from super().run(trace)
        except WrongPredictionError:
            pass

    # -- the twin's runs -----------------------------------------------------------------------------------------

    def start(self, event, method, *arguments):
        task = CompactionTask(self.compactor, event.cpu)
        self.running[event.task] = [task, getattr(task, method)(*arguments), False]

    def more(self):
        return {"compaction": {step: dict(counts) for step, counts in self.counts.items()}}

    def count(self, what):
        self.counts.setdefault(self.step, Counter())[what] += 1

    def pull(self, event):
        """The twin's next event, or None: the call is over."""
        task, generator, _ = self.running[event.task]
        predicted = next(generator, None)
        if predicted is None:
            del self.running[event.task]
            if task.captured is not None:
                self.found[event.context] = task.captured
                self.score.inferred["page captured by compaction"] += 1
        return predicted

    def expect(self, event, recorded):
        """The next thing that the twin does is this."""
        predicted = self.pull(event) if event.task in self.running else None
        if predicted is None and recorded[0] == "defer_reset":
            predicted = self.page_allocated(event)
        if predicted is None or (predicted != recorded and not same_free(predicted, recorded)):
            self.wrong(event, f"kernel {recorded}, twin {predicted}")
        self.count(predicted[0])
        if event.task in self.running:
            self.follow(event, predicted)

    def wrong(self, event, text):
        self.score.miss(event, "wrong compaction", text)
        raise WrongPredictionError

    def follow(self, event, predicted):
        """What belongs to an event at once: a capture that waits from now on, the drain behind it."""
        running = self.running[event.task]
        run = running[0].run
        if predicted[0] == "begin":
            running[2] = True
            if run.capture:
                self.captures[event.task] = run.zone, run.capture
        elif predicted[0] == "end":
            running[2] = False
            self.captures.pop(event.task, None)
        if run and run.drain_next:
            drained = self.pull(event)
            if drained is None or drained[0] != "drain":
                self.wrong(event, f"twin {drained} in place of a drain")
            self.score.inferred["drain: compaction"] += 1

    def over(self, event):
        """The task's compaction has nothing more to tell."""
        if event.task in self.running:
            predicted = self.pull(event)
            if predicted is not None:
                self.wrong(event, f"kernel's compaction is over, twin {predicted}")

    def page_allocated(self, event):
        request = self.tried.get(event.context)
        if request is None or not self.attempt(event):
            return None
        return self.compactor.page_allocated(self.allocator.zone_of(self.found[event.context]), request.order)

    # -- events --------------------------------------------------------------------------------------------------

    def handle(self, trace, index):
        event = trace.events[index]
        if not event.in_softirq:
            if event.name in AFTER:
                self.over(event)
            if event.name == "tracing_mark_write" and event.text.startswith("step "):
                self.step = event.text.split()[2]
            if event.task.startswith("kswapd") and event.name == "mm_compaction_suitable":
                self.kswapd_ended()
        super().handle(trace, index)

    def on_mm_compaction_try_to_compact_pages(self, event):
        super().on_mm_compaction_try_to_compact_pages(event)
        self.start(event, "direct", self.tried[event.context], int(event.fields["priority"]))

    def on_mm_compaction_kcompactd_wake(self, event):
        fields = event.fields
        self.start(event, "kcompactd", int(fields["order"]), ZONE_INDEX[fields["classzone_idx"]])

    def on_mm_compaction_begin(self, event):
        if event.task not in self.running:
            self.start(event, "compact_memory")
        self.expect(event, shown(event))

    def on_mm_compaction_suitable(self, event):
        if event.task in self.running:
            self.expect_of_zone(event)
            return
        fields, request = event.fields, self.tried.get(event.context)
        zone = next(zone for zone in self.allocator.zones if zone.name == fields["zone"])
        highest_zone = request.highest_zone if request else zone.index
        status = suitable(self.allocator, zone, int(fields["order"]), highest_zone)
        if status.text != fields["ret"]:
            self.wrong(event, f"zone {zone.name}: kernel {fields['ret']}, twin {status.text}")
        self.count("suitable")

    def on_finished(self, event, _start_pfn):
        self.expect_of_zone(event)

    def expect_of_zone(self, event):
        task = self.running[event.task][0] if event.task in self.running else None
        self.expect(event, shown(event))
        if task is None or task.zone.name != event.fields["zone"]:
            self.wrong(event, f"twin is at zone {task and task.zone.name}")

    def expect_shown(self, event):
        self.expect(event, shown(event))

    on_mm_compaction_end = on_mm_compaction_migratepages = expect_shown
    on_mm_compaction_fast_isolate_freepages = on_mm_compaction_defer_compaction = expect_shown
    on_mm_compaction_deferred = on_mm_compaction_defer_reset = expect_shown

    def on_mm_compaction_isolate_freepages(self, event):
        if event.task in self.running:
            self.expect_shown(event)

    def on_mm_compaction_isolate_migratepages(self, event):
        if event.task in self.running:
            self.expect_shown(event)
        else:
            super().on_mm_compaction_isolate_migratepages(event)

    # -- pages ---------------------------------------------------------------------------------------------------

    def on_mm_page_alloc(self, event):
        super().on_mm_page_alloc(event)
        pfn, order = event.page
        if pfn:
            gfp = event.fields["gfp_flags"].split("|")
            self.pages.forget(pfn, order)
            if "__GFP_COMP" in gfp or "GFP_TRANSHUGE" in event.fields["gfp_flags"]:
                self.pages.make_compound(pfn, order)
            if gfp == ["GFP_HIGHUSER", "__GFP_COMP"]:
                self.pages.fixed.add(pfn)
            elif "GFP_HIGHUSER_MOVABLE" in gfp and "__GFP_ZERO" in gfp:
                self.pages.anon.add(pfn)

    def on_free(self, event, batched, direct):
        pfn, order = event.page
        if event.task in self.running and self.running[event.task][2] and not event.in_softirq:
            self.expect(event, ("free", pfn, order))
            self.score.n_frees += 1
            return
        super().on_free(event, batched, direct)
        self.pages.forget(pfn, order)

    def drains_lru(self, pfn):
        """7.3 unmaps a range without emptying the batch of new pages."""
        return pfn in self.pages.anon and "pageblock_order_sources" not in self.features

    # -- kswapd --------------------------------------------------------------------------------------------------

    def on_mm_vmscan_kswapd_wake(self, event):
        super().on_mm_vmscan_kswapd_wake(event)
        self.kswapd_runs = True

    def kswapd_ended(self):
        if self.kswapd_runs:
            self.kswapd_runs = False
            super().kswapd_ended()
            self.compactor.before_kswapd_sleeps()

    # -- operations and snapshots --------------------------------------------------------------------------------

    def on_operation(self, event, words):
        kind, pfn = words[:2]
        if kind == "gt-" and event.task in self.running:
            self.expect(event, ("isolated", pfn, words[2]))
        elif kind in ROTATIONS:
            self.expect(event, ("rotated", pfn, words[2], ROTATIONS[kind]))
        else:
            state = self.states[0] if self.states else None
            super().on_operation(event, words)
            if kind == "gt" and pfn == "S" and state and state.label == str(words[2]):
                self.score.snapshots[-1] |= self.compare_memory(state)

    def compare_memory(self, state):
        """The C lines, the skip bits, and the LRU flag of each page."""
        equal = {"compaction_equal": True, "skip_bits_equal": True}
        for lists, zone in zip(state.zones, self.allocator.zones, strict=True):
            memory, real = self.compactor.memory_of(zone), memory_from_dump(lists)
            equal["skip_bits_equal"] &= memory.skip == real.skip
            same = {"skip": real.skip, "init_migrate": 0, "init_free": 0}
            equal["compaction_equal"] &= replace(memory, **same) == real
        if state.label in self.later:
            real = set(has_flag(self.later[state.label], "LRU").nonzero()[0].tolist())
            waiting = {pfn for batch in self.lru.batches.values() for pfn in batch}
            equal["lru_equal"] = not (real ^ self.lru.pages) - waiting
        return equal
