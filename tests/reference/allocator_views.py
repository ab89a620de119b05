"""A drawn machine as a memory and as its slow twin, and where their states differ."""

import numpy as np

from memmodel.state.layout import (
    N_COUNTERS,
    NONE,
    NR_ORDERS,
    NR_PCP_LISTS,
    Feature,
    Kind,
    PageFlag,
    PcpFlag,
    Vmstat,
    ZoneType,
)
from tests.reference import views
from tests.reference.allocator_nodes import KERNELS, ReadCounter, ZoneFlags
from tests.reference.allocator_pcp import PcpSet
from tests.reference.allocator_pcp_old import PcpSet61
from tests.reference.allocator_request import ZONE_INDEX
from tests.reference.allocator_zone import HIGHATOMIC, ISOLATE, MOVABLE

FLAGS = {"BOOSTED": 1, "BELOW_HIGH": 2, "RECLAIM_ACTIVE": 4}
RESERVE_TYPES = (0, 1, 2, 4)  # zone types that the twin knows, by its zone index

# -- building --------------------------------------------------------------------------------------------------------


def build_memory(drawn):
    spans = [zone.span for zone in drawn.zones]
    bit = "isolate_bit" in drawn.geometry.features
    mem = views.machine(drawn.geometry, spans, cpus=drawn.n_cpus, types=drawn.types, isolate_bit=bit)
    state = mem.state
    features = int(state.params.features) & ~Feature.NO_MOBILITY | (0 if drawn.grouped else Feature.NO_MOBILITY)
    numbers = {
        "features": features,
        "pcp_thp_order": min(drawn.thp_order, NR_ORDERS),
        "pcp_batch_scale_max": drawn.scale_max,
        "watermark_boost_factor": drawn.boost_factor,
    }
    mem.state = state._replace(
        params=state.params._replace(**{name: np.uint64(number) for name, number in numbers.items()})
    )
    state.zones["captured"], state.zones["capture_order"] = NONE, NR_ORDERS
    for number, zone in enumerate(drawn.zones):
        row = state.zones[number]
        n_pages = int(row["managed"])
        row["managed"], row["beyond_managed"] = zone.managed_pages, n_pages - zone.managed_pages
        row["watermark"], row["lowmem_reserve"] = zone.watermarks, zone.lowmem_reserve
        row["stat_threshold"] = zone.threshold
        row["reserved_highatomic"] = n_blocks(drawn, zone, HIGHATOMIC) << drawn.geometry.pageblock_order
        row["nr_isolate_pageblock"] = n_blocks(drawn, zone, ISOLATE)
        sets = state.pcp[number * drawn.n_cpus : (number + 1) * drawn.n_cpus]
        sets["batch"], sets["high_min"], sets["high_max"] = zone.batch, zone.high_min, zone.high_max
        sets["high"] = 0 if "pcp_autotune" in drawn.geometry.features else zone.high_min
        sets["flags"] = PcpFlag.FREE_HIGH_BATCH if zone.large_cache else 0
    return mem


def n_blocks(drawn, zone, migratetype):
    order = drawn.geometry.pageblock_order
    blocks = range(-(-zone.span.start >> order), zone.span.end >> order)
    return sum(drawn.types[block] == migratetype for block in blocks)


def build_twin(drawn):
    allocator_kind, grouped, ungrouped = KERNELS[drawn.kernel]
    zone_kind, finder = grouped if drawn.grouped else ungrouped
    order = drawn.geometry.pageblock_order
    block_types = {block << order: migratetype for block, migratetype in drawn.types.items()}
    zones, sets = [], {}
    for settings in drawn.zones:
        zone = twin_zone(drawn, settings, zone_kind, block_types)
        zones.append(zone)
        for cpu in range(drawn.n_cpus):
            sets.setdefault(zone.node, {})[zone.index, cpu] = twin_set(drawn, settings, zone)
    twin = allocator_kind(zones, None, drawn.boost_factor)
    twin.config_dma32, twin.config_cma = drawn.geometry.arch != "generic", drawn.geometry.cma
    twin.start(sets, finder, 31 if "lru_batch_31" in drawn.geometry.features else 15)
    return twin


def twin_zone(drawn, settings, kind, block_types):
    """All of it freed at boot, in the largest blocks that fit."""
    span, max_order = settings.span, drawn.geometry.max_page_order
    zone = kind(
        name=span.name,
        index=ZONE_INDEX[span.name],
        start_pfn=span.start,
        end_pfn=span.end,
        managed_pages=settings.managed_pages,
        max_order=max_order,
        pageblock_order=drawn.geometry.pageblock_order,
        watermarks=dict(zip(("min", "low", "high"), settings.watermarks, strict=True)),
        lowmem_reserve=tuple(settings.lowmem_reserve[zone_type] for zone_type in RESERVE_TYPES),
        free_pages=ReadCounter(0, 0),
        free_cma_pages=ReadCounter(0, 0),
        block_types=block_types,
        features=drawn.geometry.features,
        nr_reserved_highatomic=n_blocks(drawn, settings, HIGHATOMIC) << drawn.geometry.pageblock_order,
        flags=ZoneFlags(),
    )
    zone.node = span.node
    if "isolate_bit" in zone.features:
        isolated = {block for block in block_types if zone.spans_block(block) and block_types[block] == ISOLATE}
        block_types.update(dict.fromkeys(isolated, MOVABLE))
        zone.isolated |= isolated
    for start, end in span.ranges:
        pfn = start
        while pfn < end:
            order = next(o for o in range(max_order, -1, -1) if not pfn & (1 << o) - 1 and pfn + (1 << o) <= end)
            zone.free_direct(pfn, order, to_tail=True)
            pfn += 1 << order
    zone.free_pages.threshold = zone.free_cma_pages.threshold = settings.threshold
    return zone


def twin_set(drawn, settings, zone):
    autotune = "pcp_autotune" in drawn.geometry.features
    return (PcpSet if autotune else PcpSet61)(
        zone=zone,
        batch=settings.batch,
        high=0 if autotune else settings.high_min,
        high_min=settings.high_min,
        high_max=settings.high_max,
        hpage_pmd_order=drawn.thp_order,
        scale_max=drawn.scale_max,
        large_cache=settings.large_cache,
    )


# -- comparing -------------------------------------------------------------------------------------------------------


class Views:
    """Both sides' states in the same form: names of numbers and lists, and their values."""

    def __init__(self, drawn, mem, twin):
        self.drawn, self.mem, self.twin = drawn, mem, twin
        self.hygiene = "freelist_hygiene" in drawn.geometry.features
        self.autotune = "pcp_autotune" in drawn.geometry.features
        self.sets = [twin.sets[zone.node][zone.index, cpu] for zone in twin.zones for cpu in range(drawn.n_cpus)]
        # Plain arrays: reading a field of a record array takes ten times as long.
        zones, pcp = (array.view(np.ndarray) for array in (mem.state.zones, mem.state.pcp))
        zone_fields = ["free_pages", "free_cma", "reserved_highatomic", "watermark_boost", "flags", "captured"]
        zone_fields += ["free_highatomic"] * self.hygiene
        set_fields = ["count", "high", "free_diff", "cma_diff", "flags"]
        set_fields += ["free_count", "alloc_factor"] if self.autotune else ["free_factor"]
        self.fields = {("zone", name): zones[name] for name in zone_fields}
        self.fields |= {("set", name): pcp[name] for name in set_fields}
        self.fields["vmstat", ""] = mem.state.vmstat

    def memory_numbers(self):
        return [array.tolist() for array in self.fields.values()]

    def twin_numbers(self):
        """In the order of `fields`."""
        zones, sets, twin = self.twin.zones, self.sets, self.twin
        cpus = range(self.drawn.n_cpus)
        numbers = [
            [zone.free_pages.total for zone in zones],
            [zone.free_cma_pages.total for zone in zones],
            [zone.nr_reserved_highatomic for zone in zones],
            [zone.watermark_boost for zone in zones],
            [sum(FLAGS[flag] for flag in zone.flags) for zone in zones],
            [int(NONE)] * len(zones),
        ]
        if self.hygiene:
            numbers.append([zone.nr_free_highatomic for zone in zones])
        numbers += [
            [pcp.count for pcp in sets],
            [pcp.high for pcp in sets],
            [zone.free_pages.differences.get(cpu, 0) for zone in zones for cpu in cpus],
            [zone.free_cma_pages.differences.get(cpu, 0) for zone in zones for cpu in cpus],
            [pcp.freed_high_order + 2 * pcp.large_cache for pcp in sets],
        ]
        if self.autotune:
            numbers += [[pcp.free_count for pcp in sets], [pcp.alloc_factor for pcp in sets]]
        else:
            numbers.append([pcp.free_factor for pcp in sets])
        allocated = {ZoneType[name.upper()]: twin.n_allocated.get(index, 0) for name, index in ZONE_INDEX.items()}
        counted = {Vmstat.PGFREE: twin.n_freed, Vmstat.KSWAPD_WOKEN: sum(zone.flags.n_woken for zone in zones)}
        counted |= {
            Vmstat.BUDDY_SPLITS: sum(zone.n_splits for zone in zones),
            Vmstat.EXTFRAG_EVENTS: sum(zone.n_fallbacks for zone in zones),
            Vmstat.PCP_REFILLS: sum(pcp.n_refills for pcp in sets),
        }
        return [*numbers, [(allocated | counted).get(counter, 0) for counter in range(N_COUNTERS)]]

    def difference_of_numbers(self):
        """Names of what differs and both values, or None. Cheap."""
        memory, twin = self.memory_numbers(), self.twin_numbers()
        if memory == twin:
            return None
        return "; ".join(
            f"{' '.join(name)}: {m}, the twin {t}"
            for name, m, t in zip(self.fields, memory, twin, strict=True)
            if m != t
        )

    def difference(self):
        """The first difference of all that there is, or None."""
        memory, twin = self.memory_state(), self.twin_state()
        for key in memory | twin:
            if memory.get(key) != twin.get(key):
                return f"{key}: {memory.get(key)}, the twin {twin.get(key)}"
        return self.difference_of_numbers()

    def memory_state(self):
        """Lists by (what, zone, ...), head first; types; what is in use; LRU."""
        mem, state = self.mem, self.mem.state
        n_pages, pages = int(state.params.n_pages), state.pages.view(np.ndarray)
        found = {("free", *key): pfns for key, pfns in views.free_lists(mem).items() if pfns}
        found |= {("type", block): kind for block, kind in views.block_types(mem).items() if block in self.drawn.types}
        found["isolate"] = state.zones["nr_isolate_pageblock"].tolist()
        found["nr_free"] = state.zones["nr_free"].tolist()
        for number in range(len(self.sets)):
            found |= self.memory_lists(number, pages)
        kinds, orders = pages["state"][:n_pages] >> 4, pages["state"][:n_pages] & 15
        for kind in (Kind.USED, Kind.ISOLATED):
            rows = np.flatnonzero(kinds == kind)
            found[kind.name] = dict(zip(mem.pfns.pfn(rows).tolist(), orders[rows].tolist(), strict=True))
        flags = pages["pg_flags"][:n_pages]
        found["lru"] = mem.pfns.pfn(np.flatnonzero(flags & PageFlag.LRU)).tolist()
        for cpu, batch in enumerate(state.lru.view(np.ndarray)):
            found["batch", cpu] = mem.pfns.pfn(batch["index"][: int(batch["count"])].astype(np.int64)).tolist()
        found["in a batch"] = int(np.count_nonzero(flags & PageFlag.LRU_BATCH))
        return found

    def memory_lists(self, number, pages):
        """Per-CPU lists of one set, and before 6.10 what each page remembers."""
        state, found = self.mem.state, {}
        zone, cpu = divmod(number, self.drawn.n_cpus)
        first = int(state.params.n_pages) + zone * int(state.params.heads_per_zone)
        first += (int(state.params.max_order) + 1) * 6 + cpu * NR_PCP_LISTS
        for pindex in range(NR_PCP_LISTS):
            rows, row = [], int(pages["next"][first + pindex])
            while row != first + pindex:
                rows.append(row)
                row = int(pages["next"][row])
            if rows:
                found["pcp", zone, cpu, pindex] = self.mem.pfns.pfn(rows).tolist()
                if not self.hygiene:
                    found["remembers", zone, cpu, pindex] = pages["refcount"][rows].tolist()
        return found

    def twin_state(self):
        drawn, twin = self.drawn, self.twin
        orders = range(drawn.geometry.max_page_order + 1)
        found = {
            ("free", number, *key): list(pfns)
            for number, zone in enumerate(twin.zones)
            for key, pfns in zone.lists.items()
            if pfns
        }
        shift = drawn.geometry.pageblock_order
        isolated = set().union(*(zone.isolated for zone in twin.zones))
        types = {block: twin.zones[0].block_types[block << shift] for block in drawn.types}
        found |= {("type", block): ISOLATE if block << shift in isolated else kind for block, kind in types.items()}
        found["isolate"] = [self.n_isolated(zone) for zone in twin.zones]
        found["nr_free"] = [
            [sum(len(zone.lists.get((order, kind), ())) for kind in range(6)) for order in orders]
            + [0] * (NR_ORDERS - len(orders))
            for zone in twin.zones
        ]
        for number, pcp in enumerate(self.sets):
            zone, cpu = divmod(number, drawn.n_cpus)
            for pindex, pfns in enumerate(pcp.lists):
                if pfns:
                    found["pcp", zone, cpu, pindex] = list(pfns)
                    if not self.hygiene:
                        known = pcp.zone.pcppage_migratetypes
                        found["remembers", zone, cpu, pindex] = [known[pfn] for pfn in pfns]
        found["USED"], found["ISOLATED"] = dict(sorted(twin.used.items())), dict(sorted(twin.isolated.items()))
        found["lru"] = sorted(twin.lru & twin.used.keys())
        batches = {cpu: [pfn for pfn in pfns if pfn in twin.used] for cpu, pfns in twin.lru_state.batches.items()}
        found |= {("batch", cpu): batches.get(cpu, []) for cpu in range(drawn.n_cpus)}
        found["in a batch"] = sum(map(len, batches.values()))
        return found

    def n_isolated(self, zone):
        size = zone.pageblock_nr_pages
        blocks = range(-(-zone.start_pfn // size) * size, zone.end_pfn - size + 1, size)
        return sum(zone.type_of(block) == ISOLATE for block in blocks)
