"""The state of a memory as plain Python objects, read by following its links, and memories of any layout."""

import numpy as np
import pytest

from memmodel.errors import InputError
from memmodel.jit import JIT_ENABLED
from memmodel.kernels.buddy import free_ranges
from memmodel.memory import PhysicalMemory
from memmodel.state.build import ZoneSpan, empty_memory, size_memory, with_contents
from memmodel.state.layout import BlockBit, Kind, ZoneType
from memmodel.state.sizing import Sysctls
from tests.reference.buddy import ISOLATE

# Fills a zone of a hundred thousand pages: minutes as plain Python, and what it runs is run so elsewhere on less.
large = pytest.mark.skipif(not JIT_ENABLED, reason="a large zone; without the JIT it takes minutes")
NOTHING_KEPT_BACK = Sysctls(min_free_kbytes=0, watermark_boost_factor=0, pcp=False)
BEFORE_6_10 = {"freelist_hygiene": False, "claim_steal": False}


def plain_memory(geometry, size, **options):
    """A memory whose last page can be allocated, whose frees reach the buddy at once, and whose counters are exact.

    For tests of something else than watermarks and per-CPU lists. lowmem_reserve and mobility grouping stay.
    """
    return without_marks(PhysicalMemory(geometry, size, sysctls=NOTHING_KEPT_BACK, **options))


def without_marks(mem):
    """No watermark, which ZONE_MOVABLE has whatever the settings, and exact counters."""
    mem.state.zones["watermark"] = 0
    return exact_counters(mem)


def exact_counters(mem):
    """No CPU keeps a difference from the zones' counters."""
    mem.state.zones["stat_threshold"] = 0
    return mem


def free_lists(mem):
    """{(zone, order, migratetype): pfns, head first}."""
    state = mem.state
    after = state.pages["next"].tolist()
    lists = {}
    for zone in range(state.zones.size):
        head = int(state.params.n_pages) + zone * int(state.params.heads_per_zone)
        for order in range(int(state.params.max_order) + 1):
            for migratetype in range(6):
                rows, row = [], after[head]
                while row != head:
                    rows.append(row)
                    row = after[row]
                lists[zone, order, migratetype] = mem.pfns.pfn(rows).tolist()
                head += 1
    return lists


def block_types(mem):
    """{pfn of a pageblock >> pageblock_order: migratetype}."""
    order = int(mem.state.params.pageblock_order)
    first = mem.pfns.pfn(np.arange(mem.state.blocks.size) << order) >> order
    types = np.where(mem.state.blocks["bits"] & BlockBit.ISOLATE, ISOLATE, mem.state.blocks["migratetype"])
    return dict(zip(first.tolist(), types.tolist(), strict=True))


def pages_of_kind(mem, kind):
    """Pfns of the rows where a block of this kind begins."""
    rows = np.flatnonzero(mem.state.pages["state"][: int(mem.state.params.n_pages)] >> 4 == kind)
    return set(mem.pfns.pfn(rows).tolist())


def frozen(mem):
    """Everything that the state holds, to be compared with ==."""
    arrays = {name: array for name, array in mem.state._asdict().items() if name != "params"}
    return {"params": mem.state.params} | {
        (name, field): (array.shape, array[field].tobytes())  # field by field: padding between them says nothing
        for name, array in arrays.items()
        for field in array.dtype.names or [...]
    }


def machine(geometry, zones, *, cpus=1, contents=False, types=None, isolate_bit=False):
    """A plain memory with these zones (tests.reference.buddy.Zone); what no range of theirs holds is reserved.

    `types`: {pageblock: migratetype}, MOVABLE where it says nothing.
    """
    mem = PhysicalMemory(geometry, geometry.page_size_bytes, cpus=cpus, seed=0)  # its state comes from here
    spans = [ZoneSpan(zone.node, ZoneType[zone.name.upper()], zone.start, zone.end) for zone in zones]
    state, pfns = empty_memory(geometry, spans, cpus)
    order = geometry.pageblock_order
    for block, migratetype in (types or {}).items():
        row = int(pfns.index(block << order)) >> order
        if migratetype == ISOLATE and isolate_bit:
            state.blocks[row]["bits"] = BlockBit.ISOLATE
        else:
            state.blocks[row]["migratetype"] = migratetype
    for number, zone in enumerate(zones):
        span = slice(int(state.zones[number]["start"]), int(state.zones[number]["end"]))
        state.pages["state"][span] = Kind.RESERVED << 4
        state.zones[number]["present"] = zone.end - zone.start
        for start, end in zone.ranges:
            first = int(pfns.index(start))
            state.pages["state"][first : first + end - start] = Kind.TAIL << 4
            state.zones[number]["managed"] += np.uint64(end - start)
            free_ranges(state, np.array([first], np.uint64), np.array([first + end - start], np.uint64))
    for number, isolated in enumerate(isolated_blocks(zones, types or {}, order)):
        state.zones[number]["nr_isolate_pageblock"] = isolated
    state = size_memory(state, geometry, NOTHING_KEPT_BACK)
    mem.state, mem.pfns = with_contents(state) if contents else state, pfns
    without_marks(mem).check()
    return mem


def isolated_blocks(zones, types, order):
    """Isolated pageblocks of each zone; one that several share is the lowest one's."""
    counted, n_isolated = set(), dict.fromkeys(range(len(zones)), 0)
    for number, zone in sorted(enumerate(zones), key=lambda item: item[1].start):
        blocks = {pfn >> order for pfn in range(zone.start, zone.end) if types.get(pfn >> order) == ISOLATE}
        n_isolated[number] = len(blocks - counted)
        counted |= blocks
    return n_isolated.values()


def refused(mem, message, function, *arguments, **options):
    """The call raises InputError, one line that says `message`, and nothing has happened to the memory."""
    before = frozen(mem)
    with pytest.raises(InputError) as caught:
        function(mem, *arguments, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert frozen(mem) == before
