"""PhysicalMemory: how it begins, its views and texts, copies and files."""

import io
import json
import pickle
import random
import zipfile

import numpy as np
import pytest

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED
from memmodel.kernels import allocate as kernels
from memmodel.memory import PhysicalMemory
from memmodel.results import fragmentation
from memmodel.state.layout import ZoneType
from tests.reference import buddy as reference
from tests.reference import views

MIB = 1 << 20


# -- boot --------------------------------------------------------------------------------------------------------------


def test_physical_memory__free_lists_after_boot_ascend():
    """x86_64, 21 MiB and 12 KiB: DMA below 16 MiB, behind it a largest block and ever smaller ones."""
    mem = PhysicalMemory(Geometry(), 21 * MIB + 3 * 4096, seed=0)
    lists = {key: pfns for key, pfns in views.free_lists(mem).items() if pfns}
    assert lists == {
        (0, 10, reference.MOVABLE): [0, 1024, 2048, 3072],
        (1, 10, reference.MOVABLE): [4096],
        (1, 8, reference.MOVABLE): [5120],
        (1, 1, reference.MOVABLE): [5376],
        (1, 0, reference.MOVABLE): [5378],
    }
    assert set(views.block_types(mem).values()) == {reference.MOVABLE}
    mem.check()


@pytest.mark.parametrize(
    ("options", "size", "memory"),
    [
        ({}, 150 * 4096, {}),
        ({"page_block_max_order": 4}, 99 * 4096, {}),
        ({}, 2 * 75 * 4096, {"nodes": 2}),
        ({"features": views.BEFORE_6_10}, 3 * 55 * 4096, {"nodes": 3, "movablecore": 3 * 10 * 4096}),
    ],
)
def test_physical_memory__boots_as_the_twin(small_geometry, options, size, memory):
    geometry = small_geometry.replace(**options)
    mem = PhysicalMemory(geometry, size, seed=0, **memory)
    twin = reference.Buddy(zones_of(mem), 4, geometry.pageblock_order, hygiene="freelist_hygiene" in geometry.features)
    assert views.free_lists(mem) == twin.lists
    assert mem.state.zones["managed"].sum() == mem.state.zones["present"].sum() == size // 4096
    assert mem.nodes == list(range(memory.get("nodes", 1)))
    mem.check()


def zones_of(mem):
    """Zones of a made-up machine as the twin takes them."""
    zones = []
    for number, zone in enumerate(mem.state.zones):
        start = int(mem.pfns.pfn(int(zone["start"])))
        end = start + int(zone["end"] - zone["start"])
        zones.append(reference.Zone(int(zone["node"]), mem.zone_name(number), start, end, [(start, end)]))
    return zones


def test_physical_memory__the_example_of_its_docstring():
    mem = PhysicalMemory(Geometry(), "64MiB", seed=0)
    assert mem.pfn(mm.alloc_pages(mem, order=9, count=2)).tolist() == [4096, 4608]


def test_physical_memory__seed_is_drawn_and_kept():
    drawn = [PhysicalMemory(Geometry(), "1MiB") for _ in range(2)]
    assert drawn[0].seed != drawn[1].seed
    assert drawn[0].copy().seed == drawn[0].seed
    assert PhysicalMemory(Geometry(), "1MiB", seed=0).seed == 0


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        ("1 MiB or so", {}, "is not a number of bytes"),
        (0, {}, "is not positive"),
        (-4096, {}, "is not positive"),
        (4097, {}, "is not a multiple"),
        ("1MiB", {"nodes": 3}, "is not a multiple of 3 nodes"),
        ("1MiB", {"nodes": 0}, "nodes 0"),
        ("1MiB", {"nodes": "2"}, "nodes '2'"),
        ("1MiB", {"nodes": 1.0}, "nodes 1.0"),
        ("1MiB", {"cpus": 0}, "cpus 0"),
        ("1MiB", {"cpus": "1"}, "cpus '1'"),
        ("1MiB", {"cpus": 1.5}, "cpus 1.5"),
        ("1MiB", {"movablecore": "1MiB"}, "movablecore"),
        ("1MiB", {"movablecore": -1}, "movablecore"),
        ("1MiB", {"movablecore": "a lot"}, "movablecore"),
        ("1MiB", {"seed": -1}, "seed -1"),
        ("1MiB", {"seed": "0"}, "seed '0'"),
        ("1MiB", {"seed": 1.5}, "seed 1.5"),
        ("9TiB", {}, "choose a larger page size"),
    ],
)
def test_physical_memory__bad_input(size, options, message):
    with pytest.raises(mm.InputError) as caught:
        PhysicalMemory(Geometry(), size, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# -- zones and pfns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", range(3))
@pytest.mark.parametrize("highest", ["DMA", "DMA32", "Normal", "HighMem", "Movable"])
def test_zonelist__own_zones_from_the_top_then_the_next_nodes(small_geometry, node, highest):
    zones, pfn = [], 0
    for owner in range(3):
        for name in ("DMA", "DMA32", "Normal", "Movable"):
            if owner == 0 or name in ("Normal", "Movable"):
                zones.append(reference.Zone(owner, name, pfn, pfn + 16, [(pfn, pfn + 16)]))
                pfn += 16
    mem = views.machine(small_geometry, zones)
    expected = reference.Buddy(zones, 4, 2).zonelist(node, highest)
    assert mem.zonelist(node, ZoneType[highest.upper()]).tolist() == expected
    if (node, highest) == (1, "Movable"):
        names = [f"{zones[i].node}:{zones[i].name}" for i in expected]
        assert names == ["1:Movable", "1:Normal", "2:Movable", "2:Normal", "0:Movable", "0:Normal", "0:DMA32", "0:DMA"]


@pytest.mark.parametrize("node", [3, -1, "0", 0.5, None])
def test_zonelist__bad_node(small, node):
    with pytest.raises(mm.InputError, match=r"node .*; this machine has 0, 1$"):
        small.zonelist(node, ZoneType.NORMAL)


def test_index__row_and_pfn():
    mem = PhysicalMemory(Geometry(page_size="16KiB"), "64MiB", contents=True, seed=0)
    first = (1 << 30) >> 14
    folios = mm.alloc_pages(mem, 0, 3)
    assert mem.pfn(folios).tolist() == [first, first + 1, first + 2]
    assert mem.index(mem.pfn(folios)).tolist() == [0, 1, 2]
    assert mem.contents.shape == (4096, 16384)
    with pytest.raises(mm.InputError, match=rf"^pfn {first - 1} is outside memory; there are {first}\.\."):
        mem.index(first - 1)


# -- views -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def worn(small_geometry):
    """Two nodes of two zones in some use, a CMA and an isolated pageblock, and the twin that went the same way."""
    zones = [
        reference.Zone(0, "Normal", 0, 77, [(0, 77)]),
        reference.Zone(0, "Movable", 77, 102, [(77, 102)]),
        reference.Zone(1, "Normal", 128, 180, [(128, 180)]),
    ]
    types = {8: reference.CMA, 40: reference.ISOLATE, 41: reference.RECLAIMABLE, 4: reference.HIGHATOMIC}
    mem = views.machine(small_geometry, zones, cpus=2, contents=True, types=types)
    twin = reference.Buddy(zones, 4, 2, True, types)
    rng, live = random.Random(3), []
    for _ in range(40):
        order, kind, node = rng.randrange(3), rng.randrange(2), rng.randrange(2)
        folio = mm.alloc_pages(mem, order, 1, ["unmovable", "movable"][kind], node=node)
        pfn = twin.alloc(order, kind, node, ["Normal", "Movable"][kind])
        if pfn is not None:
            live.append((folio, pfn))
        if rng.random() < 0.4 and live:
            folio, pfn = live.pop(rng.randrange(len(live)))
            mm.free_pages(mem, folio)
            twin.free(pfn)
    mem.contents[:] = np.random.default_rng(0).integers(0, 256, mem.contents.shape)
    mm.inject_poison(mem, pfn=[5, 130], line=[3, 4])
    mem.live = np.concatenate([folio for folio, _ in live])
    return mem, twin


def counts_of(twin):
    return [
        [[len(twin.lists[zone, order, mt]) for order in range(5)] for mt in range(6)] for zone in range(len(twin.zones))
    ]


def blocks_of(twin):
    """A zone's pageblocks: the kernel steps through its span from its first page."""
    counts = [[0] * 6 for _ in twin.zones]
    for number, zone in enumerate(twin.zones):
        for pfn in range(zone.start, zone.end, 2**twin.pageblock_order):
            counts[number][twin.type_of(pfn)] += 1
    return counts


def test_views__count_as_the_twin(worn):
    mem, twin = worn
    pagetypeinfo, buddyinfo, pageblocks = mem.pagetypeinfo(), mem.buddyinfo(), mem.pageblocks()
    assert pagetypeinfo.dims == ("zone", "migratetype", "order")
    assert buddyinfo.dims == ("zone", "order")
    assert pageblocks.dims == ("zone", "migratetype")
    assert pagetypeinfo.values.tolist() == counts_of(twin)
    assert buddyinfo.values.tolist() == [twin.nr_free(zone) for zone in range(3)]
    assert pageblocks.values.tolist() == blocks_of(twin)
    for view in (pagetypeinfo, buddyinfo, pageblocks):
        assert view.attrs["units"] == "1"
        assert view.attrs["long_name"]
        assert view.coords["zone"].values.tolist() == ["0:Normal", "0:Movable", "1:Normal"]
    assert buddyinfo.coords["order"].values.tolist() == [0, 1, 2, 3, 4]
    assert pagetypeinfo.coords["migratetype"].values.tolist() == [
        *("Unmovable", "Movable", "Reclaimable", "HighAtomic", "CMA", "Isolate")
    ]
    cma = pagetypeinfo.sel(zone="0:Normal", migratetype="CMA")
    assert int((cma * 2**cma.order).sum()) == int(mem.state.zones["free_cma"][0]) == 4


@pytest.mark.parametrize(("cma", "isolation", "shown"), [(True, True, 6), (False, True, 5), (False, False, 4)])
def test_to_procfs__as_the_twin_prints(worn, cma, isolation, shown):
    mem, twin = worn
    mem.geometry = mem.geometry.replace(cma=cma, memory_isolation=isolation)
    types = [0, 1, 2, 3, *[4] * cma, *[5] * isolation]
    assert len(types) == shown
    expected = reference.procfs(twin.zones, 4, 2, counts_of(twin), blocks_of(twin), types)
    assert mem.to_procfs() == expected


def test_repr__says_how_much_is_free(small):
    mm.alloc_pages(small, 3)
    assert repr(small) == (
        "<PhysicalMemory generic 4KiB: 0:Normal 56/56 pages free, 0:Movable 0/8 pages free,"
        " 1:Normal 56/56 pages free, 1:Movable 8/8 pages free>"
    )


def test_repr__counts_what_cpus_have_not_told_the_zone():
    """Each CPU keeps a difference of up to 4 pages to itself; the lists say what is free."""
    mem = PhysicalMemory(Geometry(arch="generic"), "16MiB", cpus=2, seed=0)
    for cpu, order in ((0, 4), (0, 1), (1, 0)):
        mm.alloc_pages(mem, order, 1, cpu=cpu)
    assert mem.state.pcp["free_diff"].tolist() == [-2, -1]
    lists = mem.buddyinfo()
    free = int((lists * 2**lists.order).sum())
    assert int(mem.state.zones["free_pages"][0]) == free + 3
    assert repr(mem) == f"<PhysicalMemory generic 4KiB: 0:Normal {free}/4096 pages free>"
    mem.check()


def test_fragmentation__as_the_functions_on_a_memory(worn):
    mem, _ = worn
    for name in ("unusable_free_index", "fragmentation_index", "extfrag_for_order"):
        found = getattr(mem, name)()
        assert found.identical(getattr(fragmentation, name)(mem))
        assert found.dims == ("zone", "order")
        assert found.shape == (3, 5)
    for order in (None, 2):
        assert mem.proactive_score(order).identical(fragmentation.proactive_score(mem, order))
    free = mem.buddyinfo().sel(zone="1:Normal").values
    large = sum(int(n) << order for order, n in enumerate(free) if order >= 2)
    everything = sum(int(n) << order for order, n in enumerate(free))
    assert 0 < large < everything
    assert mem.extfrag_for_order().sel(zone="1:Normal", order=2) == (everything - large) * 100 // everything
    assert mem.proactive_score(2)["fragmentation_score_node"].sel(node=1) > 0
    with pytest.raises(mm.InputError, match="order"):
        mem.proactive_score(-1)


def test_nbytes__a_page_takes_at_most_12_and_a_quarter_bytes():
    mem = PhysicalMemory(Geometry(), "1GiB", seed=0)
    n_pages = (1 << 30) // 4096
    assert mem.nbytes == {"pages": mem.nbytes["pages"], "folios": 0, "contents": 0}
    assert 12 * n_pages < mem.nbytes["pages"] <= 12.25 * n_pages
    folios = mm.alloc_pages(mem, 4, n_pages // 64)
    assert mem.nbytes["folios"] == 16 * folios.size
    mm.free_pages(mem, folios)
    mm.alloc_pages(mem, 0, n_pages // 64)
    assert mem.nbytes["folios"] == 16 * folios.size  # slots are used again


def test_nbytes__single_requests_grow_the_table_little_by_little(small):
    for _ in range(100):
        mm.alloc_pages(small)
    assert 16 * 100 <= small.nbytes["folios"] <= 17 * 100
    assert small.nbytes["contents"] == 128 * 4096


# -- copies and files --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["copy", "pickle", "file"])
def twice(request, tmp_path):
    """Ways to a second memory."""

    def file(mem):
        mem.save(tmp_path / "state.npz")
        assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]
        return mm.load(tmp_path / "state.npz")

    return {"copy": PhysicalMemory.copy, "pickle": lambda mem: pickle.loads(pickle.dumps(mem)), "file": file}[
        request.param
    ]


def test_copies__equal_in_everything(worn, twice):
    mem, _ = worn
    source = mm.alloc_pages(mem, count=2)
    mm.inject_poison(mem, pfn=mem.pfn(source))
    mm.folio_mc_copy(mem, mm.alloc_pages(mem, count=2), source, engine="fragile", cpu=1)
    assert mem.state.queues["count"].tolist() == [0, 2]
    other = twice(mem)
    assert views.frozen(other) == views.frozen(mem)
    for name, array in mem.state._asdict().items():
        if name != "params":
            assert type(getattr(other.state, name)) is type(array)
            assert not np.shares_memory(getattr(other.state, name), array)
    assert (other.geometry, other.cpus, other.seed) == (mem.geometry, mem.cpus, mem.seed)
    assert other.geometry.notes == mem.geometry.notes
    assert (other.differences, other.assumed, dict(other.files)) == (mem.differences, mem.assumed, dict(mem.files))
    assert other.pfn(mem.live).tolist() == mem.pfn(mem.live).tolist()
    assert other.index([130, 77]).tolist() == mem.index([130, 77]).tolist()
    other.check()


def test_copies__go_their_own_ways(worn, twice):
    mem, twin = worn
    before = views.frozen(mem)
    other = twice(mem)
    mm.free_pages(other, other.live if hasattr(other, "live") else mem.live)
    mm.alloc_pages(other, 0, 300)
    mm.inject_poison(other, pfn=6)
    other.contents[:] = 0
    assert views.frozen(mem) == before
    assert views.free_lists(mem) == twin.lists
    mm.free_pages(mem, mem.live)  # their handles still fit
    mem.check()
    other.check()


def test_copies__same_requests_same_pfns(worn, twice):
    mem, _ = worn
    other = twice(mem)
    got = [memory.pfn(mm.alloc_pages(memory, 0, 20)).tolist() for memory in (mem, other)]
    assert got[0] == got[1]


@pytest.mark.skipif(not JIT_ENABLED, reason="nothing is compiled with the JIT off")
def test_copies__compile_nothing_new(worn, twice):
    mem, _ = worn
    mm.alloc_pages(mem)
    known = len(kernels.alloc_folios.signatures)
    mm.alloc_pages(twice(mem))
    assert len(kernels.alloc_folios.signatures) == known


def test_copies__numbers_of_numpy(tmp_path):
    mem = PhysicalMemory(Geometry(), np.int64(MIB), nodes=np.int8(1), cpus=np.int32(2), seed=np.uint64(7))
    mem.save(tmp_path / "m.npz")
    other = mm.load(tmp_path / "m.npz")
    assert (other.cpus, other.seed) == (2, 7)


def test_save__another_suffix(small, tmp_path):
    for name in ("state", "state.npy", "state.nc", "npz"):
        with pytest.raises(mm.InputError, match=r"saved as \.npz"):
            small.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_save__where_nothing_can_be_written(small, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.npz").mkdir()
    for name in ("missing/state.npz", "file/state.npz", "folder.npz"):
        with pytest.raises(mm.InputError) as caught:
            small.save(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.npz"]


def test_save__replaces_as_a_whole(small, tmp_path):
    path = tmp_path / "state.npz"
    small.save(path)
    mm.alloc_pages(small, 0, 5)
    small.save(str(path))
    assert views.frozen(mm.load(str(path))) == views.frozen(small)


def unreadable(path):
    with pytest.raises(mm.InputError) as caught:
        mm.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"\x00" * 1000,
        b"\x80\x04N.",
        b"PK\x03\x04" + b"\xff" * 100,
        b"\x93NUMPY\x01\x00",
        "état\n".encode("latin-1"),
        bytes(range(256)) * 10,
    ],
)
def test_load__other_files(tmp_path, content):
    path = tmp_path / "state.npz"
    path.write_bytes(content)
    unreadable(path)


def test_load__other_npz_files(tmp_path, small):
    path = tmp_path / "state.npz"
    np.savez(path, a=np.arange(3))
    unreadable(path)
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    unreadable(path)
    np.savez(path, meta=np.array([None]))
    unreadable(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")
    unreadable(path)
    unreadable(tmp_path / "missing.npz")
    unreadable(tmp_path)


def saved(small):
    return {name: np.asarray(array) for name, array in small._saved().items()}, small._meta()


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, meta: arrays.pop("pages"),
        lambda arrays, meta: arrays.pop("pfns_rows"),
        lambda arrays, meta: arrays.update(more=np.zeros(3)),
        lambda arrays, meta: arrays.update(zones=np.zeros(3)),
        lambda arrays, meta: arrays.update(pages=arrays["pages"]["next"]),
        lambda arrays, meta: arrays.update(contents=arrays["contents"].reshape(-1)),
        lambda arrays, meta: arrays["zones"]["free_pages"].__setitem__(0, 7),
        lambda arrays, meta: meta.update(format=99),
        lambda arrays, meta: meta.update(format=1),
        lambda arrays, meta: arrays["lru"]["count"].__setitem__(0, 2),
        lambda arrays, meta: arrays["pcp"]["free_diff"].__setitem__(0, 2),
        lambda arrays, meta: meta.pop("geometry"),
        lambda arrays, meta: meta.pop("seed"),
        lambda arrays, meta: meta["geometry"].update(page_size=5000),
        lambda arrays, meta: meta["geometry"].update(colour="red"),
        lambda arrays, meta: meta.update(params=[1, 2]),
        lambda arrays, meta: meta.update(params="none"),
    ],
)
def test_load__states_that_were_changed(small, tmp_path, change):
    arrays, meta = saved(small.copy())
    change(arrays, meta)
    path = tmp_path / "state.npz"
    np.savez(path, meta=np.array(json.dumps(meta)), **arrays)
    unreadable(path)


def attempt(path):
    """The memory, or what is wrong with the file."""
    try:
        return mm.load(path), ""
    except mm.InputError as error:
        return None, str(error)


def test_load__damaged_files(small_geometry, tmp_path):
    """Cut short, bytes changed, bytes missing: refused, or what was changed does not matter."""
    mem = PhysicalMemory(small_geometry, 64 * 4096, seed=0)
    mm.alloc_pages(mem, 0, 3)
    path = tmp_path / "state.npz"
    mem.save(path)
    good, rng = path.read_bytes(), random.Random(4)
    refused = 0
    for _ in range(400):
        bad = bytearray(good)
        at = rng.randrange(len(good))
        match rng.randrange(4):
            case 0:
                del bad[at:]
            case 1:
                bad[at] ^= 1 << rng.randrange(8)
            case 2:
                bad[-1 - rng.randrange(2000)] = rng.randrange(256)  # the table of contents
            case 3:
                del bad[at : at + rng.randrange(1, 50)]
        path.write_bytes(bad)
        other, message = attempt(path)
        refused += other is None
        if other is None:
            assert message.startswith(f"{path}: ")
            assert "\n" not in message
        else:
            assert views.frozen(other) == views.frozen(mem)
    assert refused > 300


def test_load__a_pickle_is_never_run(tmp_path):
    """A state holds numbers: an object array inside is refused, not unpickled."""
    path = tmp_path / "state.npz"
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([{}], object), allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.npy", buffer.getvalue())
    unreadable(path)


def test_restore__is_a_copy_in_place(small):
    start = small.copy()
    folios = mm.alloc_pages(start, order=1, count=3)
    used = start.copy()
    mm.inject_poison(used, pfn=used.pfn(folios)[0])
    mm.free_pages(used, folios)
    mm.alloc_pages(used, count=20)
    used.restore(start)
    used.check()
    assert used.digest == start.digest
    for mem in (used, start):  # and goes on as the original does
        mm.free_pages(mem, folios)
    assert used.pfn(mm.alloc_pages(used, count=9)).tolist() == start.pfn(mm.alloc_pages(start, count=9)).tolist()
    assert used.digest == start.digest
    with pytest.raises(mm.InputError, match="same geometry"):
        used.restore(PhysicalMemory(Geometry(kernel="7.3"), "1MiB", seed=0))
