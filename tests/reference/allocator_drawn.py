"""Random machines for the page allocator: what is drawn, not yet built."""

from dataclasses import dataclass, field
from itertools import pairwise

from memmodel.geometry import Geometry
from memmodel.state.layout import ZoneType
from tests.reference.allocator_request import ZONE_INDEX
from tests.reference.allocator_zone import CMA, HIGHATOMIC, ISOLATE, MERGEABLE, MOVABLE
from tests.reference.buddy import Zone as Span

NO_ORDER = 99  # of per-CPU lists for huge pages where there are none


@dataclass(frozen=True)
class DrawnZone:
    """A zone's settings, pages."""

    span: Span
    managed_pages: int
    watermarks: tuple  # min, low, high
    lowmem_reserve: tuple  # by zone type
    threshold: int
    batch: int
    high_min: int
    high_max: int
    large_cache: bool


@dataclass(frozen=True)
class Drawn:
    """A machine."""

    kernel: str
    geometry: Geometry
    grouped: bool
    n_cpus: int
    zones: tuple
    types: dict = field(repr=False)  # first pfn >> pageblock_order -> migratetype
    thp_order: int
    scale_max: int
    boost_factor: int


def draw_machine(random, kernel, largest_order=10):
    """Any machine: orders, zones that begin and end inside pageblocks, types of pageblocks, watermarks, page sets."""
    max_order = random.randint(1, largest_order)
    geometry = Geometry(
        arch=random.choice(["x86_64", "x86_64", "generic"]),
        kernel=kernel,
        transparent_hugepage=False,
        max_page_order=max_order,
        page_block_max_order=random.randint(1, max_order),
        cma=random.random() < 0.8,
    )
    grouped, n_cpus = random.random() < 0.85, random.randint(1, 3)
    spans = draw_spans(random, geometry)
    thp_order = geometry.pageblock_order
    if "pcp_pmd_order" in geometry.features:
        thp_order = random.randint(1, max_order)
    scale_max = random.choice([5, 5, 5, 0, 2])
    return Drawn(
        kernel=kernel,
        geometry=geometry,
        grouped=grouped,
        n_cpus=n_cpus,
        zones=tuple(draw_zone(random, span, "pcp_autotune" in geometry.features) for span in spans),
        types=draw_types(random, geometry, grouped, spans),
        thp_order=thp_order if random.random() < 0.6 else NO_ORDER,
        scale_max=scale_max,
        boost_factor=random.choice([15000, 15000, 0]),
    )


def draw_spans(random, geometry):
    """Zones of one or two nodes, ascending, each with reserved pages and holes at its ends or inside."""
    unit = 1 << geometry.max_page_order
    spans, pfn = [], random.choice([0, 0, 1, unit, random.randrange(4 * unit)])
    for node in range(random.choice([1, 1, 2])):
        names = [name for name in ZONE_INDEX if random.random() < 0.6] or [random.choice(["Normal", "Movable"])]
        for name in names:
            n_pages = random.randint(1, 4) * unit if random.random() < 0.4 else random.randint(1, max(100, 3 * unit))
            cuts = sorted(random.randrange(n_pages + 1) for _ in range(random.choice([0, 0, 2, 4])))
            edges = [pfn, *[pfn + cut for cut in cuts], pfn + n_pages]
            ranges = [(start, end) for start, end in list(pairwise(edges))[::2] if start < end]
            spans.append(Span(node, name, pfn, pfn + n_pages, ranges))
            pfn += n_pages + random.choice([0, 0, 0, 1, random.randrange(3 * unit)])
    return spans


def draw_zone(random, span, autotune):
    n_pages = sum(end - start for start, end in span.ranges)
    most = int(n_pages * random.choice([0, 0.02, 0.1, 0.5]))
    batch = random.choice([1, 1, 3, 7, 15, 31, 63])
    high_min = max(4 * batch, random.randrange(12 * batch))
    high_max = high_min
    if random.random() < 0.1:
        batch, high_min, high_max = 1, 0, 0
    elif autotune and random.random() < 0.7:
        high_max = high_min + random.randrange(20 * batch)
    reserve = sorted(random.randint(0, most // random.choice([1, 4])) for _ in ZoneType)
    reserve[: ZoneType[span.name.upper()] + 1] = [0] * (ZoneType[span.name.upper()] + 1)
    reserve[ZoneType.HIGHMEM] = reserve[ZoneType.NORMAL]  # there is no HighMem
    return DrawnZone(
        span=span,
        managed_pages=n_pages * random.choice([1, 1, 1, 30]),
        watermarks=tuple(sorted(random.randint(0, most) for _ in range(3))),
        lowmem_reserve=tuple(reserve),
        threshold=random.choice([0, 0, 1, 2, 4, 10]),
        batch=batch,
        high_min=high_min,
        high_max=high_max,
        large_cache=random.random() < 0.7,
    )


def draw_types(random, geometry, grouped, spans):
    """Types by pageblock.

    One that two zones share is of a type that merges. Before 6.10 a free block is of its first pageblock's type, so
    that types change between the largest blocks; without grouping boot leaves MOVABLE ones.
    """
    order = geometry.pageblock_order
    unit = order if "freelist_hygiene" in geometry.features else geometry.max_page_order
    others = [HIGHATOMIC, *[CMA] * geometry.cma, ISOLATE]
    mixed = random.choice([0, 0.1, 0.7])
    kinds = [*MERGEABLE, *others] if random.random() < 0.6 else MERGEABLE
    drawn, types = {}, {}
    for block in {pfn >> order for span in spans for pfn in range(span.start, span.end)}:
        which = block << order >> unit
        inside = any(span.start <= which << unit and (which + 1) << unit <= span.end for span in spans)
        if which not in drawn:
            migratetype = random.choice(kinds) if random.random() < mixed else MOVABLE
            if not grouped and migratetype in MERGEABLE:
                migratetype = MOVABLE
            drawn[which] = migratetype if inside or migratetype in MERGEABLE else MOVABLE
        types[block] = drawn[which]
    return types
