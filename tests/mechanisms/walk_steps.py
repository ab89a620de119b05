"""The steps of a walk over all mechanisms. Each takes the walk and says which folios it gave out and which it freed."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import memmodel as mm
from memmodel.errors import InputError
from memmodel.mechanisms.copying import copy_rule
from memmodel.mechanisms.khugepaged import NOT_PLAIN
from memmodel.mechanisms.migration import CALLERS, survives_errors
from memmodel.mechanisms.thp_faults import fault_compacting
from memmodel.state.layout import MAPPING_SHIFT, FolioBit, Mapping, PageFlag

__all__ = ["STEPS", "Effect"]

SLOT = 0xFFFFFFFF
NODES_OF_TLB = 3
GFPS = (
    *("GFP_HIGHUSER_MOVABLE", "GFP_KERNEL", "GFP_ATOMIC", "GFP_NOWAIT|__GFP_MOVABLE", "GFP_NOFS|__GFP_RECLAIMABLE"),
    *("GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_RETRY_MAYFAIL", "GFP_KERNEL|__GFP_NORETRY", "GFP_ATOMIC|__GFP_MEMALLOC"),
    *("GFP_HIGHUSER_MOVABLE|__GFP_THISNODE", "GFP_TRANSHUGE"),
)
USER = ("anon", "anon", "anon", "shmem", "file", "file", "ramfs", "block_device", "nothing")
KERNELS_OWN = ("slab", "page_table", "kernel")
PASSING = ("locked", "writeback")
LASTING = ("dirty", "pte_dirty", "mlocked", "no_migrate_folio", "inaccessible", "unmap_fails", "protnone", "orphan")
LARGE = ("pte_mapped", "partially_mapped")
CLEAN = FolioBit.DIRTY | FolioBit.SWAPBACKED | FolioBit.MLOCKED | FolioBit.HUGETLB
UNUSUAL = sum(NOT_PLAIN)
ACTIONS = {"Recovered": "recovered", "Delayed": "recovered", "Failed": "failed", "Ignored": "failed"}


@dataclass
class Effect:
    """What a step did to the folios."""

    gained: set = field(default_factory=set)
    freed: set = field(default_factory=set)
    splits: bool = False
    """Whether folios may have been split."""
    orphans: bool = False
    """Whether folios may go that nobody but a migrating task holds."""
    drops: bool = False
    """Whether clean page cache may."""
    hit: frozenset = frozenset()
    """Folios that an error hit: they may go in any way."""
    rows: tuple = ()
    """Of pages that an error hit, or left."""

    def may_go(self, handle, bits):
        """Whether a folio with these bits may be gone."""
        orphan = self.orphans and bits & FolioBit.ORPHAN
        clean = self.drops and bits & FolioBit.FILE and not bits & CLEAN
        return bool(handle in self.freed or handle in self.hit or orphan or clean)


def there(handles):
    """Those that came."""
    handles = np.asarray(handles)
    return set(handles[handles >= 0].tolist())


def migrating(**more):
    return Effect(splits=True, orphans=True, **more)


def cpu_of(walk):
    return walk.rng.randrange(walk.mem.cpus)


def node_of(walk):
    return walk.rng.choice(walk.mem.nodes)


def some(walk, most, handles=None):
    """Some of the live folios."""
    handles = list(walk.live) if handles is None else handles
    return walk.rng.sample(handles, min(len(handles), walk.rng.randint(1, most)))


def plain_folios(walk):
    """(handles, first pages, records of the table) of anonymous folios that nobody but their owners holds."""
    state = walk.mem.state
    handles = np.fromiter(walk.live, np.int64, len(walk.live))
    table = state.folios.view(np.ndarray)[handles & SLOT]
    pages = state.pages.view(np.ndarray)[table["index"]]
    on_lru = pages["pg_flags"] & (PageFlag.LRU | PageFlag.LRU_BATCH) != 0
    plain = on_lru & (pages["pg_flags"] & PageFlag.HWPOISON == 0) & (pages["refcount"] == 1)
    plain &= np.isin(table["bits"] >> MAPPING_SHIFT, (Mapping.UNSAID, Mapping.ANON))
    return handles[plain], pages[plain], table[plain]


def free_share(walk):
    zones = walk.mem.state.zones
    return float(zones["free_pages"].sum() / zones["managed"].sum())


class Reclaims:
    """A policy that frees some folios, and knows which."""

    def __init__(self, walk):
        chosen = some(walk, 64, plain_folios(walk)[0].tolist())
        self.handles, self.policy = chosen, mm.LeastRecentlyAllocated(chosen)

    def freed(self, walk):
        return set(self.handles) - set(walk.handles().tolist())


# -- the allocator -----------------------------------------------------------------------------------------------------


def allocate(walk):
    rng = walk.rng
    if free_share(walk) < 0.1 and rng.random() < 0.7:
        return free(walk)
    most = min(walk.mem.geometry.max_page_order, walk.most_order)
    order = rng.choice([0, 0, 0, 0, 1, 1, 2, 3, 4, most, rng.randint(0, most)])
    order = min(order, most)
    count = rng.randint(1, max(1, min(256, walk.mem.pfns.n_pages >> order + 3)))
    where = {"node": node_of(walk), "cpu": cpu_of(walk)}
    gfp = rng.choice([None, rng.choice(GFPS)])
    kind = rng.choice(["movable", "movable", "unmovable", "reclaimable"])
    got = mm.alloc_pages(walk.mem, order, count, kind, gfp=gfp, **where)
    walk.counts["allocated"] += len(there(got))
    return Effect(there(got))


def allocate_hard(walk):
    """With direct compaction, reclaim and kswapd."""
    rng = walk.rng
    reclaims = Reclaims(walk)
    vmstat = walk.mem.vmstat()
    order = rng.randint(0, min(walk.most_order, walk.mem.geometry.max_page_order))
    wakes = mm.WokenKswapd(reclaims.policy) if rng.random() < 0.5 else walk.kswapd
    got = mm.alloc_pages(
        *(walk.mem, order, rng.randint(1, 4)),
        gfp=rng.choice(GFPS),
        compact=mm.try_to_compact_pages if rng.random() < 0.8 else None,
        reclaim=reclaims.policy if rng.random() < 0.4 else None,
        kswapd=wakes if rng.random() < 0.5 else None,
        node=node_of(walk),
        cpu=cpu_of(walk),
    )
    count_compaction(walk, vmstat)
    return migrating(gained=there(got), freed=reclaims.freed(walk))


def count_compaction(walk, before):
    now = walk.mem.vmstat()
    for name in ("compact_stall", "compact_success", "compact_fail", "pgmigrate_success", "pgmigrate_fail"):
        walk.counts[name] += now[name] - before[name]


def free(walk):
    rng = walk.rng
    share = rng.choice([0.02, 0.1, 0.3])
    chosen = [handle for handle in walk.live if rng.random() < share]
    rng.shuffle(chosen)
    mm.free_pages(walk.mem, chosen, cpu=cpu_of(walk))
    walk.counts["freed"] += len(chosen)
    return Effect(freed=set(chosen))


def free_twice(walk):
    """What is refused, and changes nothing."""
    chosen = some(walk, 4)
    mm.free_pages(walk.mem, [*chosen, *chosen[:1]])
    return Effect(freed=set(chosen))


def bulk(walk):
    rng = walk.rng
    got = mm.alloc_pages_bulk(
        walk.mem, rng.randint(1, 100), gfp=rng.choice(GFPS[:4]), node=node_of(walk), cpu=cpu_of(walk)
    )
    return Effect(there(got))


def dmabuf(walk):
    """A buffer comes, or the oldest goes: if nothing has taken a folio of it."""
    if len(walk.buffers) >= 3:
        buffer = walk.buffers.pop(0)
        if not there(buffer.folios) <= set(walk.live):
            return Effect()
        mm.dmabuf_free(walk.mem, buffer, cpu=cpu_of(walk))
        return Effect(freed=there(buffer.folios))
    pages = walk.rng.randint(1, 300)
    buffer = mm.dmabuf_alloc(walk.mem, pages * walk.mem.geometry.page_size_bytes, node=node_of(walk), cpu=cpu_of(walk))
    if buffer is None:
        return Effect()
    walk.buffers.append(buffer)
    return Effect(there(buffer.folios))


def hugetlb(walk):
    order = walk.rng.randint(1, min(5, walk.most_order))
    size = walk.mem.geometry.page_size_bytes << order
    compact = mm.try_to_compact_pages if walk.rng.random() < 0.5 else None
    got = mm.alloc_hugetlb(walk.mem, walk.rng.randint(1, 3), size=size, compact=compact, cpu=cpu_of(walk))
    return migrating(gained=there(got))


def drain(walk):
    if walk.rng.random() < 0.5:
        mm.drain_all_pages(walk.mem, cpu=cpu_of(walk))
    else:
        mm.vmstat_update(walk.mem, cpu_of(walk))


def kswapd(walk):
    reclaims = Reclaims(walk)
    run = mm.run_kswapd(
        walk.mem,
        node_of(walk),
        reclaim=reclaims.policy,
        order=walk.rng.randint(0, walk.mem.geometry.max_page_order),
        cpu=cpu_of(walk),
    )
    walk.counts["reclaimed"] += run.n_reclaimed
    return Effect(freed=reclaims.freed(walk))


# -- huge pages and compaction -----------------------------------------------------------------------------------------


def thp_fault(walk):
    rng = walk.rng
    where = {"node": node_of(walk), "cpu": cpu_of(walk)}
    vmstat = walk.mem.vmstat()
    if rng.random() < 0.5:
        got = fault_compacting(walk.mem, rng.randint(1, 2), **where)
    else:
        defrag = rng.choice(["always", "defer", "madvise", "never"])
        compact = mm.try_to_compact_pages if rng.random() < 0.5 else None
        some_orders = [2, 4, walk.mem.geometry.hpage_pmd_order] if "mthp" in walk.mem.geometry.features else None
        faults = mm.thp_fault(walk.mem, rng.randint(1, 2), defrag=defrag, orders=some_orders, compact=compact, **where)
        got = faults.folios
    count_compaction(walk, vmstat)
    walk.counts["huge pages"] += len(there(got))
    return migrating(gained=there(got))


def collapse(walk):
    """Single pages of one owner on one node become a huge page, which holds what they held."""
    mem, rng = walk.mem, walk.rng
    state, n_pages = mem.state, 1 << mem.geometry.hpage_pmd_order
    handles, pages, table = plain_folios(walk)
    fit = state.zones["node"][pages["zone"]] == node_of(walk)
    fit &= (pages["state"] & 15 == 0) & (table["mms"] == 1) & (table["bits"] & UNUSUAL == 0)
    plain = handles[fit].tolist()
    chosen = rng.sample(plain, min(len(plain), n_pages))
    if not chosen:
        return Effect()
    places = np.full(n_pages, -1)
    places[rng.sample(range(n_pages), len(chosen))] = chosen
    tags = np.array([walk.live[handle] if handle >= 0 else 0 for handle in places.tolist()])
    compact = mm.try_to_compact_pages if rng.random() < 0.5 else None
    done = mm.khugepaged_collapse(mem, places, compact=compact, cpu=cpu_of(walk))
    walk.counts[f"collapse {done.result}"] += 1
    if done.folio < 0:
        return migrating()
    if walk.spec.contents:
        walk.check_tags(done.folio, tags)
    return migrating(gained={done.folio}, freed=set(chosen))


def compact(walk):
    """One of the ways to compact outside a request."""
    rng, mem = walk.rng, walk.mem
    where = {"node": node_of(walk), "cpu": cpu_of(walk)}
    way = rng.choice(["zone", "zone", "memory", "kcompactd", "kcompactd", "proactive"])
    order = rng.randint(1, mem.geometry.max_page_order)
    if way == "zone":
        row = rng.choice([row for row in range(mem.state.zones.size) if mem.state.zones["managed"][row]])
        node, zone = mem.zone_labels[row].split(":")
        done = mm.compact_zone(
            *(mem, zone, rng.choice([None, order]), rng.choice(["async", "sync_light", "sync"])),
            node=int(node),
            cpu=where["cpu"],
            migratetype=rng.choice(["unmovable", "movable", "reclaimable"]),
            whole_zone=rng.random() < 0.3,
        )
    elif way == "memory":
        done = mm.compact_memory(mem, node=rng.choice([None, where["node"]]), cpu=where["cpu"])
    elif way == "kcompactd":
        done = mm.run_kcompactd(mem, order=order, **where)
    else:
        done = mm.run_proactive_compaction(mem, proactiveness=rng.choice([20, 60, 100]), **where)
    for result in done.results.values():
        walk.counts[f"compaction {result.name.lower()}"] += 1
    walk.counts["moved by compaction"] += done.pgmigrate_success
    return migrating()


# -- contiguous ranges -------------------------------------------------------------------------------------------------


def reserve(walk):
    """One more area, until there are three."""
    mem = walk.mem
    if len(mm.cma_areas(mem)) >= 3:
        return cma(walk)
    unit = mem.geometry.cma_min_alignment_bytes
    n_units = max(1, min(walk.rng.randint(1, 8), mem.pfns.n_pages * mem.geometry.page_size_bytes // 16 // unit))
    mm.cma_reserve(mem, unit * n_units, order_per_bit=walk.rng.choice([0, 0, 1]), cpu=cpu_of(walk))
    walk.counts["areas"] += 1
    return Effect()


def cma(walk):
    """An allocation from an area, mostly of a size that it could hold."""
    rng, mem = walk.rng, walk.mem
    areas = mm.cma_areas(mem)
    if not areas:
        return reserve(walk)
    area = rng.choice(areas)
    n_pages = rng.choice([1, 3, 16, area.n_pages // 4, area.n_pages // 2, rng.randint(1, area.n_pages + 1)])
    n_pages = max(n_pages, 1)
    if rng.random() < 0.3:
        done = mm.cma_heap_alloc(mem, area, n_pages * mem.geometry.page_size_bytes, cpu=cpu_of(walk))
    else:
        signal = rng.choice([None, None, None, 1])
        done = mm.cma_alloc(mem, area, n_pages, rng.randint(0, 4), cpu=cpu_of(walk), tlb=walk.tlb, fatal_signal=signal)
    walk.counts[f"cma {done.errno}"] += 1
    walk.counts["moved for ranges"] += done.n_migrated
    if done.pages is not None:
        walk.ranges.append((area, done.pages))
    return migrating(drops=True)


def contig(walk):
    rng = walk.rng
    n_pages = 1 << rng.randint(0, min(walk.most_order, 10)) if rng.random() < 0.7 else rng.randint(1, 700)
    gfp = rng.choice(["GFP_KERNEL", "GFP_HIGHUSER_MOVABLE", "GFP_KERNEL|__GFP_COMP"])
    done = mm.alloc_contig_pages(walk.mem, n_pages, gfp=gfp, node=node_of(walk), cpu=cpu_of(walk), tlb=walk.tlb)
    walk.counts[f"contig {done.errno}"] += 1
    walk.counts["moved for ranges"] += done.n_migrated
    if done.pages is not None:
        walk.ranges.append((None, done.pages))
    return migrating(drops=True)


def gigantic(walk):
    """A page of the first order that the buddy allocator has not."""
    mem, areas = walk.mem, mm.cma_areas(walk.mem)
    size = mem.geometry.page_size_bytes << mem.geometry.max_page_order + 1
    nodes = {node_at(mem, area): area for area in areas} if walk.rng.random() < 0.5 else None
    done = mm.alloc_hugetlb(mem, walk.rng.randint(1, 2), size=size, cpu=cpu_of(walk), cma=nodes)
    walk.counts["gigantic"] += len(done.pages)
    walk.counts["gigantic failed"] += bool(done.reason)
    walk.ranges += [(page, mm.ContigRange(page.pfn, page.n_pages)) for page in done.pages]
    return migrating(drops=True)


def node_at(mem, area):
    return int(mem.state.zones["node"][mem.state.pages["zone"][int(mem.index(area.pfn))]])


def give_back(walk):
    """A range, or its first or last pages; an area's in whole bits, a gigantic page whole."""
    rng = walk.rng
    if not walk.ranges:
        return contig(walk)
    number = rng.randrange(len(walk.ranges))
    area, (pfn, n_pages) = walk.ranges[number]
    if isinstance(area, mm.GiganticPage):
        mm.free_gigantic(walk.mem, area, cpu=cpu_of(walk))
        del walk.ranges[number]
        walk.counts["given back"] += n_pages
        return Effect()
    unit = 1 if area is None else 1 << area.order_per_bit
    n_first = rng.choice([0, rng.randrange(n_pages) // unit * unit])
    parts = [mm.ContigRange(pfn, n_first), mm.ContigRange(pfn + n_first, n_pages - n_first)]
    parts = [part for part in parts if part.n_pages]
    back = parts.pop(rng.randrange(len(parts)))
    if area is None:
        mm.free_contig_range(walk.mem, back, cpu=cpu_of(walk))
    else:
        mm.cma_release(walk.mem, area, back, cpu=cpu_of(walk))
    walk.ranges[number : number + 1] = [(area, part) for part in parts]
    walk.counts["given back"] += back.n_pages
    return Effect()


# -- migration, and what stands in its way -----------------------------------------------------------------------------


def migrate(walk):
    rng = walk.rng
    batch = rng.choice([None, 1, 32])
    done = mm.migrate_pages(
        *(walk.mem, some(walk, 60), node_of(walk)),
        caller=rng.choice(sorted(set(CALLERS) - {"memory_failure"})),  # which soft_offline_page alone may be
        mode=rng.choice([None, "async", "sync_light", "sync"]),
        batch=batch,
        cpu=cpu_of(walk),
        tlb=walk.tlb,
    )
    walk.counts["moved by migration"] += done.nr_succeeded
    walk.counts["split by migration"] += done.nr_split
    return migrating()


def move(walk):
    rng = walk.rng
    chosen = [*some(walk, 40), *rng.choices([-1, -2, -3], k=rng.randint(0, 2))]
    rng.shuffle(chosen)
    nodes = [node_of(walk) for _ in chosen]
    done = mm.move_pages(walk.mem, chosen, nodes, move_all=rng.random() < 0.5, cpu=cpu_of(walk), tlb=walk.tlb)
    walk.counts["moved by move_pages"] += done.total("nr_succeeded")
    return migrating()


def say(walk):
    """Who holds some folios and what is done with them; most of it is passing, or nothing would move in the end."""
    rng, mem = walk.rng, walk.mem
    for handle in some(walk, 12):
        bits = int(mem.state.folios["bits"][handle & SLOT])
        row = int(mem.state.folios["index"][handle & SLOT])
        order = int(mem.state.pages["state"][row]) & 15
        if np.any(mem.state.pages["pg_flags"][row : row + (1 << order)] & PageFlag.HWPOISON):
            continue
        huge = bool(bits & FolioBit.HUGETLB)
        own = mem.state.pages["pg_flags"][row] & (PageFlag.LRU | PageFlag.LRU_BATCH) == 0 and not huge
        marks = {mark: True for mark in PASSING if rng.random() < 0.1}
        marks |= {mark: True for mark in LASTING if rng.random() < 0.06 and not own and not huge}
        marks |= {mark: True for mark in LARGE if rng.random() < 0.2 and not own and not huge}
        name = "hugetlbfs" if huge else rng.choice(KERNELS_OWN) if own else rng.choice(USER)
        owners = [] if own else [number for number in range(NODES_OF_TLB) if rng.random() < 0.4]
        pins = rng.choice([0, 0, 0, 0, 0, 1, 3])
        mm.set_folio(mem, handle, mapping=name, mapped_by=owners, pins=pins, **marks)
        walk.counts["said"] += 1
    return Effect()


def let_go(walk):
    """All pins go, all locks and writeback end."""
    handles = np.fromiter(walk.live, np.int64, len(walk.live))
    rows, _ = walk.rows(handles)
    sound = walk.mem.state.pages["pg_flags"][rows] & PageFlag.HWPOISON == 0
    mm.set_folio(walk.mem, handles[sound], pins=0, locked=False, writeback=False)
    return Effect()


# -- hardware errors ---------------------------------------------------------------------------------------------------


def pfn_of(walk):
    """Any page, or one of a folio."""
    if walk.live and walk.rng.random() < 0.5:
        handle = walk.rng.choice(list(walk.live))
        rows, orders = walk.rows([handle])
        return int(walk.mem.pfns.pfn(int(rows[0]) + walk.rng.randrange(1 << int(orders[0]))))
    return int(walk.mem.pfns.pfn(walk.rng.randrange(walk.mem.pfns.n_pages)))


def folios_at(walk, pfn):
    """The folio that a page is of, if any."""
    row = int(walk.mem.index(pfn))
    rows, orders = walk.rows(list(walk.live))
    here = (rows <= row) & (row < rows + (1 << orders))
    return frozenset(handle for handle, hit in zip(walk.live, here.tolist(), strict=True) if hit)


def inject(walk):
    """A latent error. A kernel that does not survive its copies refuses to go on, and the walk goes back."""
    mem, rng = walk.mem, walk.rng
    survives = survives_errors(mem, copy_rule(mem.geometry))
    if mem.state.ue_lines.size >= 40:
        return fail(walk)
    start = None if survives else mem.copy()
    if rng.random() < 0.7:
        mm.inject_poison(mem, pfn_of(walk), rng.randrange(64))
    else:
        mm.inject_poison(mem, rate_per_gib=rng.choice([50, 200]), seed=rng.getrandbits(32))
    walk.counts["latent errors"] += 1
    if survives:
        walk.taint_all()
        return Effect()
    if mem.state.ue_lines.size:
        digest = walk.digest()
        with pytest.raises(InputError, match="latent error"):
            mm.compact_memory(mem)
        assert walk.digest() == digest
    mem.restore(start)
    return Effect()


def fail(walk):
    pfn = pfn_of(walk)
    hit = folios_at(walk, pfn)
    done = mm.memory_failure(walk.mem, pfn, flags=int(mm.MfFlag.SW_SIMULATED), cpu=cpu_of(walk))
    walk.counts[f"failure {ACTIONS.get(done.result, 'of no page')}"] += 1
    return migrating(hit=hit, rows=(int(walk.mem.index(pfn)),))


def offline(walk):
    pfn = pfn_of(walk)
    hit = folios_at(walk, pfn)
    done = mm.soft_offline_page(walk.mem, pfn, cpu=cpu_of(walk))
    walk.counts[f"offline {'done' if done.rc == 0 else 'failed'}"] += 1
    return migrating(hit=hit, rows=(int(walk.mem.index(pfn)),))


def unpoison(walk):
    """Pages of a range are left alone: the kernel drops its owner's reference with the last one of the error."""
    mem = walk.mem
    flagged = np.flatnonzero(mem.state.pages["pg_flags"][: mem.pfns.n_pages] & PageFlag.HWPOISON)
    flagged = [row for row in flagged.tolist() if not walk.in_range(row)]
    if not flagged:
        return fail(walk)
    hit, rows = frozenset(), walk.rng.sample(flagged, min(len(flagged), walk.rng.randint(1, 4)))
    for row in rows:
        hit |= folios_at(walk, int(mem.pfns.pfn(row)))
        try:
            done = mm.unpoison_memory(mem, int(mem.pfns.pfn(row)), cpu=cpu_of(walk))
        except InputError:
            if row == rows[0]:
                raise  # nothing has been done
            break
        walk.counts[f"unpoison {'done' if done.rc == 0 else 'failed'}"] += 1
        for handle in hit - set(walk.handles().tolist()):
            walk.live.pop(handle, None)
    return migrating(hit=hit, rows=tuple(rows))


# -- copies and files --------------------------------------------------------------------------------------------------


def go_on(walk):
    """With a copy, with what a file brings back, or with what another step did undone."""
    mem, way = walk.mem, walk.rng.choice(["copy", "load", "restore"])
    digest = walk.digest()
    if way == "load":
        with TemporaryDirectory() as folder:
            mem.save(Path(folder) / "state.npz")
            walk.mem = mm.load(Path(folder) / "state.npz")
    else:
        twin = mem.copy()
        mm.alloc_pages(mem, 0, 50, cpu=cpu_of(walk))
        mm.drain_all_pages(mem)
        if walk.digest() == digest:
            walk.counts["undone nothing"] += 1
        if way == "copy":
            walk.mem = twin
        else:
            mem.restore(twin)
    assert walk.digest() == digest
    return Effect()


STEPS = {
    "alloc_pages": (14, allocate),
    "alloc_pages hard": (8, allocate_hard),
    "free_pages": (9, free),
    "free_pages twice": (1, free_twice),
    "alloc_pages_bulk": (3, bulk),
    "dmabuf": (3, dmabuf),
    "hugetlb": (3, hugetlb),
    "drain": (2, drain),
    "kswapd": (2, kswapd),
    "thp_fault": (4, thp_fault),
    "khugepaged_collapse": (2, collapse),
    "compaction": (8, compact),
    "cma_reserve": (1, reserve),
    "cma_alloc": (8, cma),
    "alloc_contig_pages": (5, contig),
    "gigantic pages": (3, gigantic),
    "give back": (8, give_back),
    "migrate_pages": (5, migrate),
    "move_pages": (3, move),
    "set_folio": (8, say),
    "let go": (2, let_go),
    "inject_poison": (2, inject),
    "memory_failure": (4, fail),
    "soft_offline_page": (2, offline),
    "unpoison_memory": (4, unpoison),
    "copy and file": (1, go_on),
}
"""How often each is drawn, and what does it."""
