"""The events of a trace, one after the other, against the twin of the page allocator."""

from tests.reference.allocator import Allocator
from tests.reference.allocator_request import Request
from tests.reference.allocator_zone import CMA, MOVABLE, RECLAIMABLE, UNMOVABLE, Capture
from tests.reference.replay_cma import CmaArea, CmaEvents
from tests.reference.replay_compaction import Compaction
from tests.reference.replay_lru import LruState, joins_lru
from tests.reference.replay_score import Score, compare_snapshot, explain, put_in_step

COMPACTION_DONE = ("complete", "partial_skipped")  # status of an end after which kcompactd drains
COMPACTION_GOES_ON = ("continue", "no_suitable_page")  # ret of compact_finished


class Replay(CmaEvents):
    """The twin, what is known of each task, and the score. A method on_EVENT handles the events of that name.

    `states` are the dumps, the first of them the start. Hidden there: `alloc_factor` of the page sets, and whether
    the counters' differences were `folded` right after it.
    """

    def __init__(self, states, protection, thresholds, lru, features=frozenset(), alloc_factor=0, folded=True):
        self.states = list(states)
        self.features = features
        self.allocator = Allocator.from_free_lists(self.states.pop(0), protection, thresholds, features, folded)
        for pcp in self.allocator.pcp.values():
            pcp.alloc_factor = alloc_factor if pcp.high else 0  # high is 0 until the set is first used
        self.allocator.lru.update(lru)
        self.lru = LruState(self.allocator.lru)
        self.cma = CmaArea(max(self.allocator.zones, key=lambda zone: CMA in zone.block_types.values()))
        self.score = Score()
        self.score.inferred["zone flags clear at the start"] = len(self.allocator.zones)
        self.batch = {}  # pfn -> order of the pages whose mm_page_free_batched is to come
        self.tried = {}  # context -> the Request whose first attempts have failed
        self.found = {}  # context -> the page that it has already, to be told by its mm_page_alloc
        self.compactions = {}  # task -> Compaction
        self.captures = {}  # task -> (zone, Capture)
        self.kcompactd_orders = {}  # task -> order that it was woken for
        self.kswapd_boosts = {}  # zone index -> boost at the start of kswapd's run
        self.interrupts = {}  # of this event: blocks drained before -> indices of softirq events

    def run(self, trace):
        """Handle all events; yields each of them afterwards."""
        self.allocator.after_piece(lambda n_blocks: self.interrupt(trace, n_blocks))
        for index, event in enumerate(trace.events):
            self.interrupts = dict(trace.interrupts.get(index, {}))
            if index not in trace.early:
                self.handle(trace, index)
            for n_blocks in list(self.interrupts):  # the twin drained less
                self.interrupt(trace, n_blocks)
            yield event
        self.score.inferred["LRU batches emptied"] = self.lru.n_drains

    def interrupt(self, trace, n_blocks):
        """A drain has freed so many blocks: softirqs of which the trace says that they came then."""
        indices = self.interrupts.pop(n_blocks, ())
        later, self.interrupts = self.interrupts, {}
        for index in indices:
            self.score.given["softirq amid a drain"] += 1
            self.handle(trace, index)
        self.interrupts = later

    def handle(self, trace, index):
        event = trace.events[index]
        if index in trace.kswapd_ends:
            self.kswapd_ended()
        if event.task.startswith("<idle>") or index in trace.pauses:
            self.score.inferred["counters folded on an idle CPU"] += self.allocator.fold_counters(event.cpu)
        self.allocator.run_on(event.cpu, self.captures.get(event.task))
        if event.operation:
            self.on_operation(event, event.operation)
        elif event.name == "mm_page_free":
            if not self.on_contig_free(event, index, trace.released):
                self.on_free(event, index in trace.batched, index in trace.direct)
        elif index in trace.vmstat_runs:
            self.score.given["run of the vmstat worker"] += 1
            self.allocator.vmstat_update(event.cpu)
        elif event.name == "mm_compaction_finished":
            self.on_finished(event, trace.scan_starts[index])
        else:
            getattr(self, "on_" + event.name, self.ignore)(event)

    def more(self):
        """Of a summary, beside the score."""
        return {}

    def ignore(self, event):
        """It says nothing about pages."""

    # -- allocations ---------------------------------------------------------------------------------------------

    def on_mm_page_alloc(self, event):
        pfn, order = event.page
        request = Request.parse(order, int(event.fields["migratetype"]), event.fields["gfp_flags"])
        actual = pfn or None
        predicted = self.predict(event, request)
        if actual is None:
            self.score.n_failed += 1
        else:
            self.score.n_allocations += 1
        if predicted != actual:
            kind = "wrong page" if predicted and actual else "unexpected success" if actual else "missed failure"
            self.score.miss(event, kind, explain(self.allocator, request, predicted, actual))
            put_in_step(self.allocator, predicted, actual, order)
        if actual is not None and joins_lru(request):
            self.lru.add(pfn, order, event.cpu)

    def predict(self, event, request):
        tried = self.tried.get(event.context)
        if tried is None or tried.order != request.order:
            return self.allocator.alloc_pages(request, event.cpu)
        del self.tried[event.context]
        if event.context in self.found:
            return self.found.pop(event.context)
        return self.allocator.slow_attempt(request, event.cpu)

    def first_attempts(self, event, order, gfp):
        """Direct compaction and direct reclaim begin when a fast and a slow attempt have failed, or one more slow."""
        if event.context in self.tried:
            self.attempt(event)
            return
        bits = Request.parse(int(order), UNMOVABLE, gfp).gfp
        types = [number for name, number in (("MOVABLE", MOVABLE), ("RECLAIMABLE", RECLAIMABLE)) if name in bits]
        request = Request.parse(int(order), (types or [UNMOVABLE])[0], gfp)
        self.tried[event.context] = request
        pfn = self.allocator.alloc_pages(request, event.cpu)
        if pfn is not None:
            self.score.miss(event, "missed failure", explain(self.allocator, request, pfn, None))
            put_in_step(self.allocator, pfn, None, request.order)

    def attempt(self, event):
        """A slow attempt in between; a page that it finds is the one that mm_page_alloc will tell."""
        if event.context not in self.found:
            pfn = self.allocator.slow_attempt(self.tried[event.context], event.cpu)
            if pfn is not None:
                self.found[event.context] = pfn
        return event.context in self.found

    # -- frees ---------------------------------------------------------------------------------------------------

    def on_free(self, event, batched, direct):
        pfn, order = event.page
        compaction = self.compactions.get(event.task)
        if compaction and compaction.migrating and not event.in_softirq:
            if pfn in compaction.pages:
                compaction.give_back(pfn)
                self.score.inferred["mm_page_free of an unused compaction target"] += 1
                return
            target = compaction.next_target()
            if target is not None:
                self.lru.add(target, order, event.cpu)
        if batched and self.drains_lru(pfn):
            self.lru.drain(event.cpu)
        self.lru.remove(pfn, order)
        self.score.n_frees += 1
        if direct:
            self.score.given["gtd"] += 1
            self.allocator.zone_of(pfn).free_direct(pfn, order)
        elif batched:
            self.batch[pfn] = order
        else:
            self.allocator.free_pages(pfn, order, event.cpu)

    def drains_lru(self, _pfn):
        """Does a batched free of the page show that a range was unmapped, which empties the batch of new pages?"""
        return True

    def on_mm_page_free_batched(self, event):
        pfn, _ = event.page  # it says order 0 whatever the order is
        self.allocator.free_pages(pfn, self.batch.pop(pfn), event.cpu)

    # -- kswapd and direct reclaim -------------------------------------------------------------------------------

    def on_mm_vmscan_kswapd_wake(self, event):
        for zone in self.allocator.zones:
            self.kswapd_boosts[zone.index] = zone.watermark_boost
            zone.flags.add("RECLAIM_ACTIVE")

    def kswapd_ended(self):
        """The boost that the run started with is given back (balance_pgdat)."""
        self.score.inferred["end of a kswapd run"] += 1
        for zone in self.allocator.zones:
            zone.watermark_boost -= min(zone.watermark_boost, self.kswapd_boosts[zone.index])
            zone.flags.discard("RECLAIM_ACTIVE")

    def on_mm_vmscan_direct_reclaim_begin(self, event):
        self.first_attempts(event, event.fields["order"], event.fields["gfp_flags"])

    def on_mm_vmscan_direct_reclaim_end(self, event):
        """Progress is worth an attempt; if it fails, another one after all page sets were emptied."""
        if int(event.fields["nr_reclaimed"]) and not self.attempt(event):
            self.allocator.unreserve_highatomic(self.tried[event.context])
            self.drain("direct reclaim", *self.allocator.zones)
            self.attempt(event)

    def drain(self, cause, *zones):
        if self.allocator.drain_all(*zones):
            self.score.inferred["drain: " + cause] += 1

    # -- compaction ----------------------------------------------------------------------------------------------

    def on_mm_compaction_kcompactd_wake(self, event):
        self.kcompactd_orders[event.task] = int(event.fields["order"])

    def on_mm_compaction_try_to_compact_pages(self, event):
        self.first_attempts(event, event.fields["order"], event.fields["gfp_mask"])

    def on_mm_compaction_begin(self, event):
        zone = self.allocator.zone_of(int(event.fields["zone_start"], 16))
        request = self.tried.get(event.context)
        order = request.order if request else self.kcompactd_orders.get(event.task, -1)
        compaction = Compaction(zone, order, int(event.fields["migrate_pfn"], 16), request and request.migratetype)
        self.compactions[event.task] = compaction
        if request:
            self.captures[event.task] = zone, Capture(order, request.migratetype)

    def on_finished(self, event, start_pfn):
        """compact_finished says whether it goes on; then a source is searched at once."""
        if event.fields["ret"] in COMPACTION_GOES_ON:
            rotated = self.compactions[event.task].find_source_block(start_pfn)
            self.score.inferred["list rotated by the search for sources"] += rotated

    def on_mm_compaction_isolate_migratepages(self, event):
        start, end, n_taken = event.scan
        if n_taken:
            self.lru.isolate(event.task, start, end)
        compaction = self.compactions.get(event.task)
        if compaction:
            compaction.scanned(end, n_taken)
            if not n_taken:
                self.check_drain(event, compaction)

    def on_mm_compaction_fast_isolate_freepages(self, event):
        _, free_pfn, n_taken = event.scan
        self.compactions[event.task].searched_free(free_pfn, n_taken)

    def on_mm_migrate_pages_start(self, event):
        if event.task in self.compactions:
            self.compactions[event.task].start_migration()

    def on_mm_migrate_pages(self, event):
        if event.task in self.compactions:
            self.compactions[event.task].end_migration()

    def on_mm_compaction_migratepages(self, event):
        self.lru.put_back(event.task, event.cpu)
        _, capture = self.captures.get(event.task, (None, None))
        if capture is None or capture.pfn is None:
            self.check_drain(event, self.compactions[event.task])

    def check_drain(self, event, compaction):
        if compaction.drain_is_due():
            self.lru.drain(event.cpu)
            self.allocator.pcp[compaction.zone.index, event.cpu].drain_all()
            self.score.inferred["drain: compaction left its range"] += 1

    def on_mm_compaction_end(self, event):
        compaction = self.compactions.pop(event.task)
        _, capture = self.captures.pop(event.task, (None, None))
        if capture and capture.pfn is not None:
            self.found[event.context] = capture.pfn
            self.score.inferred["page captured by compaction"] += 1
        if event.task.startswith("kcompactd") and event.fields["status"] in COMPACTION_DONE:
            self.drain("end of kcompactd", compaction.zone)

    # -- what the trace gives ------------------------------------------------------------------------------------

    def on_operation(self, event, words):
        """A mark, a free block that is isolated, or a list that compaction rotates."""
        kind, pfn = words[:2]
        if kind == "gt":
            if pfn == "S" and self.states and self.states[0].label == str(words[2]):
                self.score.snapshots.append(compare_snapshot(self.states.pop(0), self.allocator))
            return
        self.score.given[kind] += 1
        zone = self.allocator.zone_of(pfn)
        if not zone.is_free(pfn, words[2]):
            self.score.miss(event, "given block not free", f"{words}: twin has {zone.free_orders.get(pfn)}")
        elif kind == "gtH":
            zone.rotate_to(pfn)
        elif kind == "gt-":
            order = self.allocator.isolate_free_page(pfn)
            if event.task in self.compactions:
                self.compactions[event.task].isolate(pfn, order)
            elif self.cma.range:
                self.cma.take(pfn, order)
