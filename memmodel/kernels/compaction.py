"""The loop of compact_zone() in pieces: a replay does the migrations between them itself, event by event.

mm/compaction.c (compact_zone), 6.12.117.
"""

import numpy as np

from memmodel.jit import inlined, never_inline, outlined
from memmodel.kernels.compact_control import (
    NOT_SEEN,
    Compact,
    CompactResult,
    Said,
    first_of_block,
    pageblock_pages,
    say,
    scanners_met,
    zone_end,
    zone_start,
)
from memmodel.kernels.compact_finished import compact_finished, restarting
from memmodel.kernels.compact_hints import reset_hints
from memmodel.kernels.compact_migrate import end_of_chunk, isolate_block, isolate_migratepages
from memmodel.kernels.freelist import ONE
from memmodel.kernels.lru import drain_lru_batch
from memmodel.kernels.migration_folio import ENOMEM
from memmodel.kernels.migration_job import Mode
from memmodel.kernels.pcp import drain_all_pcp
from memmodel.state.layout import NONE, Feature, Memory

U = np.uint64
I = np.int64  # noqa: E741 - the pair of U
ZERO = np.uint64(0)
ASYNC, SYNC = Mode.ASYNC.value, Mode.SYNC.value
CONTINUE, CONTENDED, SUCCESS = CompactResult.CONTINUE.value, CompactResult.CONTENDED.value, CompactResult.SUCCESS.value
BEGIN = Said.BEGIN.value
RESCANS = np.uint64(Feature.COMPACTION_RESCANS)


@inlined
def place_scanners(mem: Memory, c: Compact) -> None:
    """Where the last run stopped, or at the zone's ends."""
    control = c.control[0]
    zone = mem.zones[control.zone]
    start, end = zone_start(mem, c), zone_end(mem, c)
    last = first_of_block(mem, end - 1)
    if control.whole_zone:
        control.migrate, control.free = start, last
        return
    sync = 0 if control.mode == ASYNC else 1
    control.migrate, control.free = zone.cached_migrate[sync], zone.cached_free
    if control.free < start or control.free >= end:
        control.free = zone.cached_free = last
    if control.migrate < start or control.migrate >= end:
        control.migrate = zone.cached_migrate[0] = zone.cached_migrate[1] = start
    if control.migrate <= zone.init_migrate:
        control.whole_zone = ONE


@inlined
def begin_compaction(mem: Memory, c: Compact) -> None:
    """The state at mm_compaction_begin, and what follows directly on it."""
    control = c.control[0]
    if restarting(mem, np.uint64(control.zone), np.int64(control.order)):
        reset_hints(mem, np.uint64(control.zone))
    control.fast_start = NOT_SEEN
    control.nr_free = control.nr_migrate = control.n_sources = control.n_pages = 0
    control.migrate_scanned = control.free_scanned = 0
    place_scanners(mem, c)
    control.last_migrated = control.row_of_pfn_0
    zone = mem.zones[control.zone]
    control.update_cached = control.mode == ASYNC and zone.cached_migrate[0] == zone.cached_migrate[1]
    control.finish_block = ZERO
    say(c, BEGIN, np.int64(control.migrate), np.int64(control.free), np.int64(0), np.int64(0))
    drain_lru_batch(mem, np.uint64(control.cpu))


@inlined
def check_drain(mem: Memory, c: Compact) -> None:
    """Behind the aligned range that pages were last moved out of, what was freed shall merge."""
    control = c.control[0]
    if control.order > 0 and control.last_migrated != control.row_of_pfn_0:
        size = np.int64(ONE << np.uint64(control.order))
        if control.last_migrated < np.int64(control.migrate) & -size:
            cpu = np.uint64(control.cpu)
            drain_lru_batch(mem, cpu)
            drain_all_pcp(mem, np.uint64(control.zone), cpu, cpu)
            control.last_migrated = control.row_of_pfn_0


@inlined
def note_scan(mem: Memory, c: Compact) -> bool:
    """Whether a scan found sources for the next migration."""
    control = c.control[0]
    if control.n_sources == 0:
        if control.update_cached and not control.paused:
            zone = mem.zones[control.zone]
            zone.cached_migrate[1] = zone.cached_migrate[0]
        return False
    control.update_cached = ZERO
    control.last_migrated = max(zone_start(mem, c), first_of_block(mem, np.int64(control.migrate) - 1))
    control.nr_migrate = control.n_pages
    return True


@inlined
def scan(mem: Memory, c: Compact) -> bool:
    """Sources for the next migration; False where this pageblock has none."""
    isolate_migratepages(mem, c)
    return note_scan(mem, c)


@outlined
def next_sources(mem: Memory, c: Compact) -> int:
    """Scan on: CONTINUE with sources to migrate, or how the run ends."""
    never_inline()
    control = c.control[0]
    while True:
        result = compact_finished(mem, c)
        if result != CONTINUE:
            return result
        same = first_of_block(mem, np.int64(control.last_migrated)) == first_of_block(mem, np.int64(control.migrate))
        control.finish_block = ONE if same else ZERO
        if scan(mem, c) or control.paused:
            return CONTINUE
        check_drain(mem, c)


@outlined
def resumed_sources(mem: Memory, c: Compact) -> int:
    """next_sources() from the pageblock on before whose scan the task gave the CPU away."""
    never_inline()
    control = c.control[0]
    row = np.int64(control.paused_at)
    control.paused = ZERO
    isolate_block(mem, c, row, first_of_block(mem, row) + pageblock_pages(mem))
    if note_scan(mem, c):
        return CONTINUE
    check_drain(mem, c)
    return next_sources(mem, c)


@inlined
def after_failure(mem: Memory, c: Compact, rc: I) -> int:
    """What did not move is back on its LRU list. CONTENDED: no targets were left; SUCCESS: scan this pageblock again.

    Before 6.6 a request that cannot wait leaves out the rest of the chunk instead.
    """
    control = c.control[0]
    if rc == ENOMEM and not scanners_met(mem, c):
        return CONTENDED
    inside = control.migrate != first_of_block(mem, np.int64(control.migrate))
    if not mem.params.features & RESCANS:
        if control.direct and control.mode == ASYNC:
            control.migrate = end_of_chunk(c, np.int64(control.migrate) - 1)
            control.last_migrated = control.row_of_pfn_0
        return CONTINUE
    if inside and not control.ignore_skip and not control.finish_block and control.mode != SYNC:
        control.finish_block = ONE
        if control.order == control.pmd_order:  # COMPACTION_HPAGE_ORDER
            control.last_migrated = control.row_of_pfn_0
        return SUCCESS
    return CONTINUE


@outlined
def after_migration(mem: Memory, c: Compact, rc: I) -> int:
    """What follows on a migration, up to the next one: CONTINUE, or how the run ends."""
    never_inline()
    control = c.control[0]
    control.n_sources = control.n_pages = 0
    if rc:
        next_step = after_failure(mem, c, rc)
        if next_step == CONTENDED:
            return CONTENDED
        if next_step == SUCCESS and scan(mem, c):
            return CONTINUE
        if next_step == SUCCESS:
            check_drain(mem, c)
            return next_sources(mem, c)
    if mem.zones[control.zone].captured != NONE:
        return SUCCESS
    check_drain(mem, c)
    return next_sources(mem, c)
