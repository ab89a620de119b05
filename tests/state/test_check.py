"""Every law is broken by hand, just that one, and check() names it."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.errors import InvariantError
from memmodel.geometry import Geometry
from memmodel.state.build import with_area, with_gigantic
from memmodel.state.check import Law
from memmodel.state.layout import BlockBit, Kind, PageFlag
from tests.reference import views
from tests.reference.buddy import CMA, HIGHATOMIC, ISOLATE, Zone

HEADS_A_ZONE = 5 * 6 + 2 * 14  # free lists of 5 orders, per-CPU lists of two CPUs


@pytest.fixture
def mem():
    """Rows 0 to 32 in use: zone 0 is 0 to 20, zone 1 is 21 to 95.

    The folio at 2 has order 1, those at 0, 1, 4, 5 order 0; pageblock 20 (rows 80 to 83) is CMA, 22 is isolated,
    23 is of the reserve. Counters are exact: any difference of a CPU is beyond the threshold.
    """
    geometry = Geometry(arch="generic", max_page_order=4, page_block_max_order=2, transparent_hugepage=False)
    zones = [Zone(0, "Normal", 0, 21, [(0, 21)]), Zone(0, "Movable", 21, 96, [(21, 96)])]
    mem = views.machine(geometry, zones, cpus=2, types={20: CMA, 22: ISOLATE, 23: HIGHATOMIC})
    single = mm.alloc_pages(mem, 0, 2, "unmovable")
    double = mm.alloc_pages(mem, 1, 1, "unmovable")
    more = mm.alloc_pages(mem, 0, 2, "unmovable")
    assert mem.pfn([*single, *double, *more]).tolist() == [0, 1, 2, 4, 5]
    mem.check()
    return mem


def head(mem, zone, order, migratetype):
    return int(mem.state.params.n_pages) + HEADS_A_ZONE * zone + 6 * order + migratetype


def take_out(mem, row):
    pages = mem.state.pages
    before, after = int(pages["prev"][row]), int(pages["next"][row])
    pages["next"][before], pages["prev"][after] = after, before


def put_behind(mem, row, before):
    pages = mem.state.pages
    after = int(pages["next"][before])
    pages["prev"][row], pages["next"][row] = before, after
    pages["next"][before] = pages["prev"][after] = row


def pcp_list(mem, zone, cpu, pindex):
    return int(mem.state.params.n_pages) + HEADS_A_ZONE * zone + 30 + 14 * cpu + pindex


def to_pcp(mem, row, pindex):
    """The order-0 page in use at `row` of zone 0 waits on a list of CPU 1."""
    slot = int(mem.state.pages["next"][row])
    mem.state.folios["index"][slot] = 0xFFFFFFFF
    mem.state.slots[0] -= np.uint64(1)
    mem.state.pages["state"][row] = Kind.PCP << 4
    put_behind(mem, row, pcp_list(mem, 0, 1, pindex))
    mem.state.pcp["count"][1] += 1


def set_state(mem, row, kind, order=0):
    mem.state.pages["state"][row] = kind << 4 | order


def on_the_wrong_order(mem):
    """A block of order 3 of zone 1 on the list of order 2."""
    row = int(mem.state.pages["next"][head(mem, 1, 3, 1)])
    take_out(mem, row)
    put_behind(mem, row, head(mem, 1, 2, 1))


def in_the_wrong_zone(mem):
    row = int(mem.state.pages["next"][head(mem, 1, 2, 1)])
    take_out(mem, row)
    put_behind(mem, row, head(mem, 0, 2, 1))


def lost_from_its_list(mem):
    row = int(mem.state.pages["next"][head(mem, 1, 4, 1)])
    take_out(mem, row)
    mem.state.zones[1]["nr_free"][4] -= 1
    mem.state.zones[1]["free_pages"] -= 16


def two_pages_on_one_pcp_list_of_another_order(mem):
    to_pcp(mem, 4, 0)
    to_pcp(mem, 5, 3)
    mem.state.pages["prev"][5] = 12345


def differ(field, set_number, n, threshold=5):
    """A CPU that has not told the zone's counter of some pages."""

    def change(mem):
        mem.state.zones["stat_threshold"] = threshold
        mem.state.pcp[field][set_number] = n

    return change


def wait_for_lru(*rows, cpu=0, flag=PageFlag.LRU_BATCH):
    def change(mem):
        batch = mem.state.lru[cpu]
        for row in rows:
            batch["index"][batch["count"]] = row
            batch["count"] += np.uint32(1)
            mem.state.pages["pg_flags"][row] |= flag

    return change


def both(*changes):
    def change(mem):
        for one in changes:
            one(mem)

    return change


def capture(zone, row, order):
    return both(assign("zones", "captured", zone, row), assign("zones", "capture_order", zone, order))


def add(field, zone=0, n=1):
    def change(mem):
        mem.state.zones[field][zone] += np.array(n, mem.state.zones[field].dtype)

    return change


def nr_free(order):
    def change(mem):
        mem.state.zones["nr_free"][1, order] += 1

    return change


def assign(array, field, where, value):
    def change(mem):
        getattr(mem.state, array)[field][where] = value

    return change


def area(row=80, zone=1, taken=0, available=4, count=1):
    """Areas of one pageblock each; the first one's bitmap and its count of what is left."""

    def break_it(mem):
        for _ in range(count):
            mem.state = with_area(mem.state, row, 4, 0, zone)
        mem.state.area_bits[0], mem.state.areas[0]["available"] = taken, available

    return break_it


def gigantic(row, order=5):
    """A record of a gigantic page."""

    def break_it(mem):
        mem.state = with_gigantic(mem.state, row, order, 0xFFFFFFFF)

    return break_it


BREAKS = {
    "a folio's first page is a tail": (Law.TAIL_WITHOUT_HEAD, lambda mem: set_state(mem, 0, Kind.TAIL)),
    "a block behind the last row": (Law.TAIL_WITHOUT_HEAD, lambda mem: set_state(mem, 88, Kind.HOLE, 5)),
    "a page of no zone": (Law.TAIL_WITHOUT_HEAD, assign("pages", "zone", 2, 9)),
    "order 1 at an odd row": (Law.BLOCK_MISALIGNED, lambda mem: set_state(mem, 1, Kind.USED, 1)),
    "order 2 at row 2": (Law.BLOCK_MISALIGNED, lambda mem: set_state(mem, 2, Kind.USED, 2)),
    "order 1 at the zone's last row": (Law.BLOCK_CROSSES_ZONE, lambda mem: set_state(mem, 20, Kind.USED, 1)),
    "order 1 of the zone above": (Law.BLOCK_CROSSES_ZONE, assign("pages", "zone", slice(0, 2), 1)),
    "a folio over its neighbour": (Law.BLOCKS_OVERLAP, lambda mem: set_state(mem, 4, Kind.USED, 1)),
    "a tail of another zone": (Law.BLOCKS_OVERLAP, assign("pages", "zone", 3, 1)),
    "a prev link": (Law.LIST_LINKS, assign("pages", "prev", 64, 7)),
    "a next link": (Law.LIST_LINKS, assign("pages", "next", 64, 7)),
    "a next link beyond all rows": (Law.LIST_LINKS, assign("pages", "next", 64, 1 << 20)),
    "a list's head": (Law.LIST_LINKS, lambda mem: assign("pages", "prev", head(mem, 1, 4, 1), 3)(mem)),
    "a per-CPU link": (Law.LIST_LINKS, two_pages_on_one_pcp_list_of_another_order),
    "a block on another order's list": (Law.LIST_MEMBER, on_the_wrong_order),
    "a block on another zone's list": (Law.LIST_MEMBER, in_the_wrong_zone),
    "a used page on a per-CPU list": (Law.LIST_MEMBER, lambda mem: put_behind(mem, 4, pcp_list(mem, 0, 1, 0))),
    "a pageblock's type": (Law.LIST_TYPE, assign("blocks", "migratetype", 16, 0)),
    "a pageblock isolated": (Law.LIST_TYPE, assign("blocks", "bits", 16, BlockBit.ISOLATE)),
    "nr_free": (Law.NR_FREE, nr_free(0)),
    "nr_free of the largest order": (Law.NR_FREE, nr_free(4)),
    "a free block on no list": (Law.ON_NO_LIST, lost_from_its_list),
    "NR_FREE_PAGES": (Law.FREE_PAGES, add("free_pages", 1)),
    "NR_FREE_PAGES with isolated ones": (Law.FREE_PAGES, add("free_pages", 1, 4)),
    "NR_FREE_CMA_PAGES": (Law.FREE_CMA, add("free_cma", 1)),
    "NR_FREE_CMA_PAGES of a zone without": (Law.FREE_CMA, add("free_cma", 0)),
    "NR_FREE_PAGES with a difference": (Law.FREE_PAGES, differ("free_diff", 2, 3)),
    "NR_FREE_PAGES with a difference below": (Law.FREE_PAGES, differ("free_diff", 1, -5)),
    "NR_FREE_CMA_PAGES with a difference": (Law.FREE_CMA, differ("cma_diff", 3, -1)),
    "nr_free_highatomic": (Law.FREE_HIGHATOMIC, add("free_highatomic", 1)),
    "nr_free_highatomic of a zone without": (Law.FREE_HIGHATOMIC, add("free_highatomic", 0, 4)),
    "a difference beyond the threshold": (
        Law.STAT_THRESHOLD,
        both(differ("free_diff", 1, 6), add("free_pages", 0, -6)),
    ),
    "a difference far below": (Law.STAT_THRESHOLD, both(differ("free_diff", 3, -6), add("free_pages", 1, 6))),
    "a difference of CMA pages": (Law.STAT_THRESHOLD, both(differ("cma_diff", 2, 1, 0), add("free_cma", 1, -1))),
    "a per-CPU count": (Law.PCP_COUNT, assign("pcp", "count", 3, 2)),
    "a per-CPU count with pages": (Law.PCP_COUNT, lambda mem: (to_pcp(mem, 4, 0), assign("pcp", "count", 1, 2)(mem))),
    "managed pages": (Law.CONSERVATION, add("managed", 1)),
    "a page that became reserved": (
        Law.CONSERVATION,
        lambda mem: (
            to_pcp(mem, 4, 0),
            take_out(mem, 4),
            set_state(mem, 4, Kind.RESERVED),
            assign("pcp", "count", 1, 0)(mem),
        ),
    ),
    "pages beyond the managed ones": (Law.CONSERVATION, add("beyond_managed", 0)),
    "nr_isolate_pageblock": (Law.NR_ISOLATE_PAGEBLOCK, add("nr_isolate_pageblock", 0)),
    "nr_isolate_pageblock of none": (Law.NR_ISOLATE_PAGEBLOCK, assign("zones", "nr_isolate_pageblock", 1, 0)),
    "another zone's isolated pageblock": (
        Law.NR_ISOLATE_PAGEBLOCK,
        both(assign("zones", "nr_isolate_pageblock", 1, 0), assign("zones", "nr_isolate_pageblock", 0, 1)),
    ),
    "a captured page that is free": (Law.CAPTURED, capture(1, 64, 4)),
    "a captured page of another order": (Law.CAPTURED, capture(0, 2, 2)),
    "a captured page of another zone": (Law.CAPTURED, capture(1, 2, 1)),
    "a captured page beyond all rows": (Law.CAPTURED, capture(1, 5000, 1)),
    "a captured page that nobody waits for": (Law.CAPTURED, assign("zones", "captured", 0, 2)),
    "a free page on an LRU list": (Law.LRU_NOT_USED, assign("pages", "pg_flags", 64, PageFlag.LRU)),
    "a free block's tail on an LRU list": (Law.LRU_NOT_USED, assign("pages", "pg_flags", 67, PageFlag.LRU)),
    "a free page in a batch": (Law.LRU_NOT_USED, wait_for_lru(64)),
    "a per-CPU page on an LRU list": (
        Law.LRU_NOT_USED,
        lambda mem: (to_pcp(mem, 4, 0), assign("pages", "pg_flags", 4, PageFlag.LRU)(mem)),
    ),
    "a page that waits in no batch": (Law.LRU_BATCH, assign("pages", "pg_flags", 4, PageFlag.LRU_BATCH)),
    "a page in a batch that does not wait": (Law.LRU_BATCH, wait_for_lru(4, flag=PageFlag.LRU)),
    "a page in two batches": (Law.LRU_BATCH, both(wait_for_lru(4), wait_for_lru(4, cpu=1))),
    "a page twice in a batch": (Law.LRU_BATCH, wait_for_lru(4, 5, 4)),
    "a tail in a batch": (Law.LRU_BATCH, wait_for_lru(3)),
    "a batch beyond all rows": (Law.LRU_BATCH, both(wait_for_lru(4), assign("lru", "index", (0, 0), 5000))),
    "a batch that is too full": (Law.LRU_BATCH, both(wait_for_lru(4, 5), assign("lru", "size", 0, 1))),
    "a slot of another page": (Law.FOLIO_TABLE, assign("folios", "index", 0, 4)),
    "a slot of a free page": (Law.FOLIO_TABLE, assign("folios", "index", 0, 64)),
    "a slot beyond all rows": (Law.FOLIO_TABLE, assign("folios", "index", 0, 5000)),
    "a page of another slot": (Law.FOLIO_TABLE, assign("pages", "next", 0, 3)),
    "the number of live folios": (Law.FOLIO_TABLE, lambda mem: mem.state.slots.__setitem__(0, 4)),
    "a slot of a reserved page": (
        Law.FOLIO_TABLE,
        both(lambda mem: set_state(mem, 5, Kind.RESERVED), assign("zones", "managed", 0, 20)),
    ),
    "a marked page that does not count": (Law.HWPOISON_COUNT, assign("pages", "pg_flags", 3, PageFlag.HWPOISON)),
    "a corrupted page too many": (Law.HWPOISON_COUNT, assign("failure", "num_poisoned", 0, 1)),
    "a failure without result": (Law.FAILURE_EVENTS, assign("node_failures", "total", 0, 1)),
    "a result of no failure": (Law.FAILURE_EVENTS, assign("node_failures", "delayed", 0, 2)),
    "an area on pageblocks of another type": (Law.AREA_PLACE, area(row=84)),
    "an area of another zone": (Law.AREA_PLACE, area(zone=0)),
    "an area that begins inside a pageblock": (Law.AREA_PLACE, area(row=82)),
    "two areas in one place": (Law.AREA_PLACE, area(count=2)),
    "an area that counts too many": (Law.AREA_COUNT, area(available=5)),
    "an area that counts what it gave out": (Law.AREA_COUNT, area(taken=1)),
    "an area that gave out a free page": (Law.AREA_PAGE, area(taken=4, available=3)),
    "a gigantic page of free pages": (Law.GIGANTIC_PAGE, gigantic(64)),
    "a gigantic page of folios": (Law.GIGANTIC_PAGE, gigantic(0)),
    "a gigantic page beyond all rows": (Law.GIGANTIC_PAGE, gigantic(64, 6)),
    "two gigantic pages in one place": (
        Law.GIGANTIC_PAGE,
        lambda mem: (mm.alloc_contig_pages(mem, 32), gigantic(32, 5)(mem), gigantic(48, 4)(mem)),
    ),
    "a used page without its slot": (Law.FOLIO_TABLE, assign("folios", "index", 1, 0xFFFFFFFF)),
}


@pytest.mark.parametrize("how", BREAKS)
def test_check__names_the_broken_law(mem, how):
    law, break_it = BREAKS[how]
    break_it(mem)
    with pytest.raises(InvariantError) as caught:
        mem.check()
    assert str(caught.value).startswith(f"{law.name}: ")
    assert "\n" not in str(caught.value)


def test_check__every_law_can_be_broken():
    assert {law for law, _ in BREAKS.values()} == set(Law)


def test_check__area_whose_pages_are_free(mem):
    area()(mem)
    mem.check()


def test_check__per_cpu_pages_are_accounted_for(mem):
    to_pcp(mem, 4, 0)
    to_pcp(mem, 5, 2)
    mem.check()


def test_check__isolated_and_lost_pages_are_accounted_for(mem):
    """Compaction holds a block of order 2, and a page in use is known to be broken."""
    row = int(mem.state.pages["next"][head(mem, 1, 2, 1)])
    take_out(mem, row)
    set_state(mem, row, Kind.ISOLATED, 2)
    mem.state.zones[1]["nr_free"][2] -= 1
    mem.state.zones[1]["free_pages"] -= 4
    mem.state.pages["pg_flags"][0] = 1
    mem.state.failure["num_poisoned"] = 1
    mem.check()


def test_check__differences_of_cpus_are_accounted_for(mem):
    """Two CPUs have not told zone 1 of 3 pages more and 5 less, and one not of CMA pages."""
    for change in (differ("free_diff", 2, 3), differ("free_diff", 3, -5), differ("cma_diff", 3, 2)):
        change(mem)
    add("free_pages", 1, 2)(mem)
    add("free_cma", 1, -2)(mem)
    mem.check()


def test_check__folios_in_batches_and_a_captured_page(mem):
    wait_for_lru(0, 2)(mem)
    wait_for_lru(5, cpu=1)(mem)
    assign("pages", "pg_flags", [1, 3], PageFlag.LRU)(mem)
    capture(0, 2, 1)(mem)
    mem.check()


def test_check__kernels_that_do_not_count_the_free_reserve(mem):
    geometry = mem.geometry.replace(features={"free_highatomic": False})
    other = views.machine(geometry, [Zone(0, "Normal", 0, 64, [(0, 64)])])
    add("free_highatomic")(other)
    other.check()


def test_check__an_isolated_pageblock_that_zones_share_is_the_lower_ones(small_geometry):
    """Pageblock 4 (rows 16 to 19) begins in a gap, then has two zones; pageblock 0 begins before the zone does."""
    zones = [Zone(0, "Normal", 2, 12, [(2, 12)]), Zone(0, "Movable", 17, 18, [(17, 18)])]
    zones.append(Zone(1, "Normal", 18, 64, [(18, 64)]))
    mem = views.machine(small_geometry, zones, types={0: ISOLATE, 4: ISOLATE, 9: ISOLATE})
    assert mem.state.zones["nr_isolate_pageblock"].tolist() == [1, 1, 1]
    mem.check()


def test_check__before_6_10_lists_may_hold_blocks_of_another_type(mem):
    old = mem.geometry.replace(features=views.BEFORE_6_10)
    zones = [Zone(0, "Normal", 0, 32, [(0, 32)])]
    for geometry, fails in ((mem.geometry, True), (old, False)):
        other = views.machine(geometry, zones)
        other.state.blocks["migratetype"][0] = 0
        if fails:
            with pytest.raises(InvariantError, match="LIST_TYPE: row 0 is on a list of migratetype 1"):
                other.check()
        else:
            other.check()


def test_check__a_tiny_machine_does_not_group_by_mobility(small_geometry):
    """A MOVABLE block merges with an UNMOVABLE one: the kernel makes the pageblocks UNMOVABLE, its list is MOVABLE."""
    mem = views.machine(small_geometry, [Zone(0, "Normal", 0, 20, [(0, 20)])], types={4: CMA})
    folios = mm.alloc_pages(mem, 2, 4)
    mem.state.blocks["migratetype"][1] = 1
    mm.free_pages(mem, folios[0])
    mm.free_pages(mem, folios[1])
    assert views.free_lists(mem)[0, 3, 1] == [0]
    assert views.block_types(mem)[0] == 0
    mem.check()
    mem.state.blocks["migratetype"][4] = 0  # but CMA stays CMA
    with pytest.raises(InvariantError, match="LIST_TYPE: row 16 is on a list of migratetype 4"):
        mem.check()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("order 2 at row 2", "BLOCK_MISALIGNED: block of order 2 at row 2 is not aligned to its size"),
        ("a folio over its neighbour", "BLOCKS_OVERLAP: the block at row 4 holds row 5, which begins a block"),
        ("nr_free", r"NR_FREE: zone 1: nr_free\[0\] differs"),
        ("NR_FREE_CMA_PAGES", "FREE_CMA: zone 1: NR_FREE_CMA_PAGES with the CPUs' differences is not the lists' 4"),
        ("a per-CPU count", "PCP_COUNT: per-CPU set 3: its count differs from the lists' 0 pages"),
        ("managed pages", "CONSERVATION: zone 1: .* = 75, not its managed pages"),
        ("nr_free_highatomic", "FREE_HIGHATOMIC: zone 1: nr_free_highatomic differs from the lists' 4"),
        (
            "a difference far below",
            "STAT_THRESHOLD: per-CPU set 3: .* is beyond the threshold of 5",
        ),
        ("nr_isolate_pageblock of none", "NR_ISOLATE_PAGEBLOCK: zone 1: .* its 1 isolated pageblocks"),
        ("a captured page that is free", "CAPTURED: zone 1: captured row 64"),
        ("a free page on an LRU list", "LRU_NOT_USED: row 64 "),
        ("a page in two batches", "LRU_BATCH: LRU batch of CPU 1: row 4 "),
        ("a page that waits in no batch", "LRU_BATCH: .*: row 4 "),
        ("a slot of another page", "FOLIO_TABLE: folio slot 0 and row 4"),
    ],
)
def test_check__says_where(mem, how, message):
    BREAKS[how][1](mem)
    with pytest.raises(InvariantError, match=message):
        mem.check()
