"""A memory from a snapshot: exact from a dump, its own text again from /proc files, and usable afterwards."""

from pathlib import Path

import numpy as np
import pytest

import memmodel as mm
from memmodel.sources.freelists import read_free_lists
from memmodel.sources.records import Snapshot
from memmodel.state.layout import MIGRATE_TYPES, Kind
from memmodel.validate import implied_texts

DATA = Path(__file__).parents[1] / "data"
DUMPS = ("gt_snap_612.txt.xz", "gt_snap_73_pb7.txt.xz")
FOLDERS = ("snap_612_x86", "snap_73_arm64_16k", "snap_73_two_nodes")


def listed(mem: mm.PhysicalMemory, zone: int, order: int, migratetype: int) -> list[int]:
    """Pfns of one free list, head first, by following its links."""
    params, pages = mem.state.params, mem.state.pages
    head = int(params.n_pages) + zone * int(params.heads_per_zone) + order * MIGRATE_TYPES + migratetype
    rows, row = [], int(pages["next"][head])
    while row != head:
        rows.append(row)
        row = int(pages["next"][row])
    return mem.pfns.pfn(rows).tolist()


@pytest.mark.parametrize("dump", DUMPS)
def test_from_snapshot__dump_is_exact(dump: str) -> None:
    for state in read_free_lists(DATA / dump):
        mem = mm.PhysicalMemory.from_snapshot(Snapshot(zones={}, free_lists=state))
        mem.check()
        assert mem.to_procfs() == implied_texts(state)
        for number, zone in enumerate(state.zones):
            for (order, migratetype), pfns in zone.lists.items():
                assert listed(mem, number, order, migratetype) == pfns.tolist()
            record = mem.state.zones[number]
            assert int(record["managed"]) == zone.managed_pages
            assert int(record["nr_free"].sum()) == sum(pfns.size for pfns in zone.lists.values())
            assert [int(n) for n in mem.state.pcp["count"][number : number + 1]] == [p.count for p in zone.pcp]


def test_from_snapshot__limit_of_the_pageblock_order() -> None:
    state = read_free_lists(DATA / "gt_snap_73_pb7.txt.xz")[0]
    mem = mm.PhysicalMemory.from_snapshot(Snapshot(zones={}, free_lists=state))
    assert (mem.geometry.pageblock_order, mem.geometry.page_block_max_order) == (7, 7)


@pytest.mark.parametrize("folder", FOLDERS)
def test_from_snapshot__proc_files_print_their_text(folder: str) -> None:
    snapshot = mm.read_snapshot(DATA / folder)
    mem = mm.PhysicalMemory.from_snapshot(snapshot)
    mem.check()
    for name, text in mem.to_procfs().items():
        assert text == (DATA / folder / name).read_text()
    assert mem.files == snapshot.files
    assert any("order of the blocks in each free list" in line for line in mem.assumed)


def test_from_snapshot__used_pages_keep_their_flags() -> None:
    snapshot = mm.read_snapshot(DATA / "snap_612_x86")
    flags = snapshot.kpageflags
    assert flags is not None
    mem = mm.PhysicalMemory.from_snapshot(snapshot)
    kinds = mem.state.pages["state"][: mem.pfns.n_pages] >> 4
    zone = mem.state.zones[1]
    lru = flags[mem.pfns.pfn(np.arange(int(zone["start"]), int(zone["end"])))] >> np.uint64(5) & np.uint64(1)
    in_zone = slice(int(zone["start"]), int(zone["end"]))
    assert ((mem.state.pages["pg_flags"][in_zone] & 2 != 0) == (lru == 1)).all()
    assert (kinds[in_zone][lru == 1] == Kind.USED).mean() > 0.99  # tails of large folios have no kind of their own


def test_from_snapshot__a_loaded_memory_allocates_and_frees() -> None:
    mem = mm.PhysicalMemory.from_snapshot(mm.read_snapshot(DATA / DUMPS[0]), contents=True)
    before = mem.to_procfs()
    state = read_free_lists(DATA / DUMPS[0])[0]
    head = state.zones[1].lists[3, 1][0]
    folios = mm.alloc_pages(mem, order=3, count=1)
    assert mem.pfn(folios).tolist() == [head]
    mem.check()
    mm.free_pages(mem, folios)
    assert mem.to_procfs() == before


def test_from_snapshot__geometry_must_fit() -> None:
    snapshot = mm.read_snapshot(DATA / DUMPS[0])
    with pytest.raises(mm.InputError, match="pageblock order 7, the snapshot 9"):
        mm.PhysicalMemory.from_snapshot(snapshot, mm.Geometry(page_block_max_order=7))
    mm.PhysicalMemory.from_snapshot(snapshot, mm.Geometry(kernel="7.3")).check()


def test_from_snapshot__survives_save_and_pickle(tmp_path: Path) -> None:
    import pickle

    mem = mm.PhysicalMemory.from_snapshot(mm.read_snapshot(DATA / "snap_73_two_nodes"))
    mem.save(tmp_path / "m.npz")
    for other in (mm.load(tmp_path / "m.npz"), pickle.loads(pickle.dumps(mem)), mem.copy()):
        other.check()
        assert other.to_procfs() == mem.to_procfs()
        assert (other.assumed, other.differences, other.files) == (mem.assumed, mem.differences, mem.files)
