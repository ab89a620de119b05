"""Where the kernel would not survive to copy a latent error, what migrates is refused before it has done anything."""

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.mechanisms.thp_faults import fault_compacting
from tests.reference.views import refused

compacting = {"compact": mm.try_to_compact_pages}
MACHINES = {"6.1": {"kernel": "6.1"}, "without a copy that survives": {"arch": "arm64", "kernel": "6.12.117"}}


def machine(options):
    """Two nodes of 16 MiB and a CMA area; every other page is in use."""
    mem = mm.PhysicalMemory(Geometry(**options), "32MiB", nodes=2, cpus=2, seed=0)
    area = mm.cma_reserve(mem, mem.geometry.cma_min_alignment_bytes)
    folios = mm.alloc_pages(mem, 0, 9000)
    folios = folios[folios >= 0]
    mm.free_pages(mem, folios[::2])
    mm.drain_all_pages(mem)
    return mem, area, folios[1::2]


ENTRIES = {
    "compact_zone": lambda mem, area, pages: mm.compact_zone(mem, mem.zone_name(0)),
    "compact_memory": lambda mem, area, pages: mm.compact_memory(mem),
    "run_kcompactd": lambda mem, area, pages: mm.run_kcompactd(mem, order=9),
    "run_proactive_compaction": lambda mem, area, pages: mm.run_proactive_compaction(mem, proactiveness=100),
    "thp_fault": lambda mem, area, pages: mm.thp_fault(mem, 12, base_pages=True, **compacting),
    "fault_thp": lambda mem, area, pages: mm.fault_thp(mem, 12, madvised=True, **compacting),
    "fault_compacting": lambda mem, area, pages: fault_compacting(mem, 12),
    "alloc_pages": lambda mem, area, pages: mm.alloc_pages(mem, 4, 2000, **compacting),
    "alloc_pages with kswapd": lambda mem, area, pages: mm.alloc_pages(
        mem, 4, 2000, kswapd=mm.WokenKswapd(), **compacting
    ),
    "alloc_hugetlb": lambda mem, area, pages: mm.alloc_hugetlb(mem, 12, **compacting),
    "alloc_hugetlb of gigantic pages": lambda mem, area, pages: mm.alloc_hugetlb(mem, 2, size="8MiB"),
    "khugepaged_collapse": lambda mem, area, pages: mm.khugepaged_collapse(mem, pages[-512:], **compacting),
    "cma_alloc": lambda mem, area, pages: mm.cma_alloc(mem, area, area.n_pages),
    "cma_heap_alloc": lambda mem, area, pages: mm.cma_heap_alloc(mem, area, "64KiB"),
    "alloc_contig_pages": lambda mem, area, pages: mm.alloc_contig_pages(mem, 1024),
    "migrate_pages": lambda mem, area, pages: mm.migrate_pages(mem, pages, 1),
    "move_pages": lambda mem, area, pages: mm.move_pages(mem, pages, np.arange(pages.size) % 2),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", MACHINES)
def test_latent_errors__refused_before_anything_is_done(name, entry):
    mem, area, pages = machine(MACHINES[name])
    pfns = mem.pfn(pages)
    if entry.startswith("cma"):
        pfns = pfns[(pfns >= area.pfn) & (pfns < area.pfn + area.n_pages)]
    mm.inject_poison(mem, int(pfns[-min(600, pfns.size)]), 5)
    digest = mem.digest
    refused(mem, "would stop the machine", lambda mem: ENTRIES[entry](mem, area, pages))
    assert mem.digest == digest
    mem.check()


@pytest.mark.parametrize("kernel", ["6.1"])
def test_latent_errors__a_dma_buf_whose_smaller_folios_may_compact(kernel):
    mem, _, _ = machine({"kernel": kernel})
    mm.inject_poison(mem, 5)
    refused(mem, "would stop the machine", mm.dmabuf_alloc, "4MiB", compact=mm.try_to_compact_pages)


def test_latent_errors__what_does_not_compact_goes_on():
    mem, _, _ = machine({"kernel": "6.1"})
    mm.inject_poison(mem, 5)
    assert mm.alloc_pages(mem, 0, 10, **compacting).min() >= 0
    assert mm.alloc_pages(mem, 3, 1, gfp="GFP_ATOMIC", **compacting).size == 1
    assert mm.thp_fault(mem, 1, defrag="never", madvised=False, **compacting).folios.size == 1
    mem.check()


def test_latent_errors__survived_where_the_kernel_can():
    mem, _, pages = machine({"kernel": "6.12.117"})
    mm.inject_poison(mem, int(mem.pfn(pages)[-600]))
    assert (mm.alloc_pages(mem, 4, 20, **compacting) >= 0).any()
    mm.compact_memory(mem)
    mem.check()
