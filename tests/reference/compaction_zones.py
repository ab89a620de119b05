"""Zones for compaction, drawn a letter a page, a word a pageblock.

`m` anonymous memory, `l` the same mlocked, `s` shmem, `p` pinned, `r` ramfs, `b` anonymous memory still in the LRU
batch, `u` what never moves, `.` free.
"""

from collections import OrderedDict

from memmodel.sources.features import kernel_features
from tests.reference.allocator import Allocator
from tests.reference.allocator_pcp import PcpSet
from tests.reference.allocator_pcp_old import Allocator61, PcpSet61
from tests.reference.allocator_request import Request
from tests.reference.allocator_zone import MOVABLE, Zone, ZoneCounter
from tests.reference.allocator_zone_old import Zone61
from tests.reference.compaction import Compaction
from tests.reference.compaction_state import SYNC_LIGHT
from tests.reference.compaction_tasks import Compactor

NOTHING_HELD = {"high": 0, "high_min": 0, "high_max": 0}  # a freed page goes straight to the buddy lists
PLENTY = 1000  # free pages that are nowhere to be found
ALL_HELD = dict.fromkeys(NOTHING_HELD, 10**6)


def free_blocks(free, start, max_order, pageblock_order):
    """Maximal aligned blocks of runs of free pages, ascending, as (pfn, order); none spans pageblocks."""
    found, pfn = [], start
    while pfn < start + len(free):
        if not free[pfn - start]:
            pfn += 1
            continue
        order = 0
        while order < min(max_order, pageblock_order):
            size = 2 << order
            if pfn % size or not all(free[pfn - start : pfn - start + size]) or pfn + size > start + len(free):
                break
            order += 1
        found.append((pfn, order))
        pfn += 1 << order
    return found


def build(words, kernel="6.12.117", start=None, types=None, held=False, pmd_order=9, max_order=None):
    """A Compactor of one zone; it begins one pageblock above 0 unless `start` says so."""
    words = words.split()
    n_pages = max(map(len, words))
    pageblock_order = n_pages.bit_length() - 1
    assert n_pages == 1 << pageblock_order
    start = n_pages if start is None else start
    letters = "".join(words)
    max_order = max_order or pageblock_order + 1
    types = dict.fromkeys(range(start & -n_pages, start + len(letters), n_pages), MOVABLE) | (types or {})
    lists = {}
    for pfn, order in free_blocks([c == "." for c in letters], start, max_order, pageblock_order):
        lists.setdefault((order, types[pfn & -n_pages]), OrderedDict())[pfn] = None
    old = kernel == "6.1"
    zone = (Zone61 if old else Zone)(
        name="Normal",
        index=2,
        start_pfn=start,
        end_pfn=start + len(letters),
        managed_pages=len(letters),
        max_order=max_order,
        pageblock_order=pageblock_order,
        watermarks={"min": 0, "low": 0, "high": 0},
        lowmem_reserve=(0, 0, 0, 0),
        free_pages=ZoneCounter(letters.count("."), threshold=0),
        free_cma_pages=ZoneCounter(0, threshold=0),
        block_types=types,
        lists=lists,
        free_orders={pfn: order for (order, _), pfns in lists.items() for pfn in pfns},
        features=kernel_features(kernel),
    )
    if old:
        pcp = PcpSet61(zone=zone, batch=1, hpage_pmd_order=pmd_order, **(ALL_HELD if held else NOTHING_HELD))
    else:
        pcp = PcpSet(zone=zone, batch=1, hpage_pmd_order=pmd_order, **(ALL_HELD if held else NOTHING_HELD))
    compactor = Compactor((Allocator61 if old else Allocator)([zone], {(2, 0): pcp}))
    fill(compactor.pages, letters, start)
    return compactor


def fill(pages, letters, start):
    for pfn, letter in enumerate(letters, start):
        if letter in "mlspr":
            pages.lru.pages.add(pfn)
        if letter in "mlpb":
            pages.anon.add(pfn)
        if letter == "b":
            pages.lru.batches.setdefault(0, []).append(pfn)
        for kind, pfns in (("l", pages.mlocked), ("r", pages.fixed), ("p", pages.pinned)):
            if letter == kind:
                pfns.add(pfn)


def compaction(compactor, order, mode, **options):
    return Compaction(compactor, compactor.allocator.zones[0], order, mode, **options)


def run_of(compactor, **options):
    """A run in the middle of things: its parts are called one by one. No watermark is near."""
    zone_of(compactor).free_pages.value += PLENTY
    run = compaction(compactor, options.pop("order", 4), options.pop("mode", SYNC_LIGHT), **options)
    run.n_wanted = 1
    return run


def events(generator):
    """(what it yielded, what it returned)."""
    found = []
    while True:
        try:
            found.append(next(generator))
        except StopIteration as end:
            return found, end.value


def named(found, *names):
    return [event for event in found if event[0] in names]


def memory_of(compactor):
    return compactor.memory_of(zone_of(compactor))


def zone_of(compactor):
    return compactor.allocator.zones[0]


def request(order, migratetype=MOVABLE, gfp="GFP_TRANSHUGE"):
    return Request.parse(order, migratetype, gfp)
