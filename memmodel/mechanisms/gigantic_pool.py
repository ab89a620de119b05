"""Gigantic pages of the hugetlb pool: where they come from, and how they go back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.errors import GeometryError, InputError
from memmodel.kernels.gigantic import free_compound
from memmodel.mechanisms.cma import area_row, cma_alloc, cma_forget
from memmodel.mechanisms.cma_areas import CmaArea
from memmodel.mechanisms.contig import Contig, ContigOutcome, give_back
from memmodel.mechanisms.contig_pages import EBUSY, walk_zones
from memmodel.mechanisms.gigantic import GiganticPage, gigantic_pages
from memmodel.mechanisms.migration import refuse_latent
from memmodel.mechanisms.request import highest_zone
from memmodel.sources.gfp import parse_gfp
from memmodel.state.build import with_gigantic, without_gigantic
from memmodel.state.layout import NONE
from memmodel.state.machine import Machine

__all__ = ["GiganticOutcome", "free_gigantic", "grow"]


@dataclass(frozen=True)
class GiganticOutcome:
    """What a request for gigantic pages came to."""

    pages: tuple[GiganticPage, ...]
    """Those that came, in order: the handles that are given back."""
    tries: tuple[tuple[int, ContigOutcome], ...]
    """Node and outcome of each request for a range, in order: of the node's CMA area first, if it has one."""

    @property
    def reason(self) -> str:
        """What stood in the way of the last range, or that no range was worth a try; empty if the last page came."""
        if not self.tries or not self.tries[-1][1].errno:
            return ""
        return self.tries[-1][1].reason or "no range without holes, reserved memory and hugetlb pages"


def grow(
    mem: Machine, count: int, order: int, nodes: Sequence[int], cma: Mapping[int, CmaArea], cpu: int
) -> GiganticOutcome:
    """`count` gigantic pages, the nodes by turns, until none of them gives one.

    Raises
    ------
    InputError
        If the kernel makes none, an argument is none, or it would not survive what it moves; nothing has changed then.
    """
    if not mem.geometry.memory_isolation and not mem.geometry.cma:
        raise GeometryError("this kernel makes no gigantic pages once it runs (CONFIG_CONTIG_ALLOC)")
    mem.check_cpu(cpu)
    for node in {*nodes, *cma}:
        if node not in mem.nodes:
            raise InputError(f"node {node!r}; this machine has {', '.join(map(str, mem.nodes))}")
    for node, area in cma.items():
        row = area_row(mem, area)
        if int(mem.state.zones["node"][mem.state.pages["zone"][row]]) != node:
            raise InputError(f"CMA area {area.number} does not lie on node {node}")
    _refuse_what_moves(mem, nodes, cma, cpu)
    pages: list[GiganticPage] = []
    tries: list[tuple[int, ContigOutcome]] = []
    turn = 0
    for _ in range(count):
        for _ in nodes:
            node = nodes[turn % len(nodes)]
            turn += 1
            page = _from_node(mem, order, node, cma.get(node), cpu, tries)
            if page is not None:
                pages.append(page)
                break
        else:
            break
    return GiganticOutcome(tuple(pages), tuple(tries))


def _from_node(
    mem: Machine, order: int, node: int, area: CmaArea | None, cpu: int, tries: list[tuple[int, ContigOutcome]]
) -> GiganticPage | None:
    """A page of one node: of its area, else of any range (alloc_gigantic_folio)."""
    if area is not None:
        tries.append((node, cma_alloc(mem, area, 1 << order, order, cpu=cpu)))
        if tries[-1][1].pages:
            return _note(mem, tries[-1][1].pfn, order, area.number)
    tries.append((node, _any_range(mem, order, node, cpu)))
    return _note(mem, tries[-1][1].pfn, order, int(NONE)) if tries[-1][1].pages else None


def _any_range(mem: Machine, order: int, node: int, cpu: int) -> ContigOutcome:
    """The first range of the node that can be had; since 6.12 as one compound page."""
    zonelist = _zones(mem, node)
    zone = zonelist[0] if zonelist.size else np.flatnonzero(mem.state.zones["node"] == node)[0]
    contig = Contig(mem, int(zone), cpu, whole="gigantic_compound" in mem.geometry.features)
    return walk_zones(mem, contig, zonelist, 1 << order) if zonelist.size else contig.outcome(EBUSY, None)


def _zones(mem: Machine, node: int) -> npt.NDArray[np.uint64]:
    """Zones of a node that gigantic pages may lie in (htlb_alloc_mask): none that is for movable pages only."""
    return mem.zonelist(node, highest_zone(mem.geometry, parse_gfp("GFP_HIGHUSER")), this_node=True)


def _refuse_what_moves(mem: Machine, nodes: Sequence[int], cma: Mapping[int, CmaArea], cpu: int) -> None:
    """Refuse, before the first page, what a later one would be refused for."""
    refuse_latent(mem)
    zones = [(int(zone), mem.state.zones[zone]) for node in nodes for zone in _zones(mem, node)]
    spans = [(zone, int(record["start"]), int(record["end"])) for zone, record in zones]
    areas = [mem.state.areas[area.number] for area in cma.values()]
    spans += [(int(area["zone"]), int(area["row"]), int(area["row"] + area["n_pages"])) for area in areas]
    for zone, first, end in spans:
        Contig(mem, zone, cpu).refuse(first, end)


def _note(mem: Machine, pfn: int, order: int, area: int) -> GiganticPage:
    mem.state = with_gigantic(mem.state, int(mem.index(pfn)), order, area)
    return GiganticPage(pfn, order)


def free_gigantic(mem: Machine, page: GiganticPage, *, cpu: int = 0) -> None:
    """Take a gigantic page out of the hugetlb pool, as a write to nr_hugepages does, and free it.

    Before 6.12 page by page through the CPU's lists, as `free_contig_range`; since then (feature gigantic_compound)
    past them, pageblock by pageblock. A CMA area has its range back.

    Raises
    ------
    InputError
        If the memory has no such page; then nothing has been freed.

    References
    ----------
    mm/hugetlb.c: free_gigantic_page, Linux 6.1; hugetlb_free_folio, 6.12; mm/page_alloc.c: split_large_buddy, 6.12.
    """
    on_cpu = mem.check_cpu(cpu)
    live = gigantic_pages(mem)
    if not isinstance(page, GiganticPage) or page not in live:
        raise InputError(f"{page!r} is no gigantic page of this memory: freed before, or of another one")
    number = live.index(page)
    row, area = int(mem.state.gigantic["row"][number]), int(mem.state.gigantic["area"][number])
    mem.state = without_gigantic(mem.state, number)
    if "gigantic_compound" in mem.geometry.features:
        free_compound(mem.state, np.uint64(row), np.uint64(page.order), on_cpu)
    else:
        give_back(mem, row, page.n_pages, on_cpu)
    if area != NONE:
        cma_forget(mem, area, row, page.n_pages)
