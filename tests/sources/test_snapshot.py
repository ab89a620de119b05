import contextlib
import gzip
import hashlib
import lzma
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.errors import InputError
from memmodel.sources.pagetypeinfo import format_pagetypeinfo
from memmodel.sources.procfs import format_buddyinfo
from memmodel.sources.records import MIGRATE_CMA, MIGRATE_MOVABLE
from memmodel.sources.snapshot import read_snapshot

DATA = Path(__file__).parents[1] / "data"
X86 = DATA / "snap_612_x86"
RECORDS = os.environ.get("MEMMODEL_RECORDS")


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(X86, tmp_path / "snap")
    return tmp_path / "snap"


def test_read_snapshot__a_folder():
    snapshot = read_snapshot(X86)
    assert (snapshot.page_size_bytes, snapshot.pageblock_order, snapshot.max_order) == (4096, 9, 10)
    assert list(snapshot.zones) == [(0, "DMA"), (0, "DMA32")]
    zone = snapshot.zones[0, "DMA32"]
    assert (zone.start_pfn, zone.spanned_pages, zone.managed_pages) == (4096, 61405, 57069)
    assert zone.nr_free.tolist() == zone.type_free.sum(axis=0).tolist()
    assert snapshot.kpageflags.size == 65536
    assert snapshot.vmstat["nr_free_pages"] == 14558
    assert snapshot.node_counters[0]["nr_isolated_anon"] == 0
    assert snapshot.free_lists is None
    assert snapshot.differences == ()
    path = str(X86 / "kpageflags.xz")
    assert snapshot.files[path] == hashlib.sha256((X86 / "kpageflags.xz").read_bytes()).hexdigest()
    assert len(snapshot.files) == 6


def test_read_snapshot__page_size_of_arm64():
    snapshot = read_snapshot(DATA / "snap_73_arm64_16k")
    assert (snapshot.page_size_bytes, snapshot.pageblock_order, snapshot.max_order) == (16384, 11, 11)
    assert snapshot.zones[0, "DMA"].type_blocks[MIGRATE_CMA] == 2


def test_read_snapshot__two_nodes():
    snapshot = read_snapshot(DATA / "snap_73_two_nodes")
    assert list(snapshot.zones) == [(0, "DMA"), (0, "DMA32"), (1, "DMA32")]
    assert snapshot.kpageflags is None
    assert snapshot.zones[1, "DMA32"].type_free[MIGRATE_MOVABLE, 10] == 54


def test_read_snapshot__contents_before_names(tmp_path):
    (tmp_path / "a.txt").write_bytes((X86 / "pagetypeinfo").read_bytes())
    (tmp_path / "pagetypeinfo").write_bytes(gzip.compress((X86 / "buddyinfo").read_bytes()))
    (tmp_path / "frames").write_bytes(lzma.decompress((X86 / "kpageflags.xz").read_bytes()))
    (tmp_path / "notes.md").write_text("Node 0 is slow\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "below").mkdir()
    snapshot = read_snapshot(tmp_path)
    assert [Path(path).name for path in snapshot.files] == ["a.txt", "frames", "pagetypeinfo"]
    assert [Path(path).name for path in snapshot.ignored] == ["empty", "notes.md"]
    assert snapshot.zones[0, "DMA"].nr_free.tolist() == [1, 0, 1, 1, 0, 0, 0, 0, 2, 0, 3]
    assert snapshot.page_size_bytes is None


def test_read_snapshot__one_state_of_a_dump():
    path = DATA / "gt_snap_612.txt.xz"
    first, later = read_snapshot(path), read_snapshot(path, label="c03a")
    assert (first.free_lists.label, later.free_lists.label) == ("c00", "c03a")
    zone = first.zones[0, "DMA32"]
    assert zone.nr_free.tolist() == [2, 1, 2, 3, 2, 0, 2, 2, 1, 5, 34]
    assert zone.type_blocks.tolist() == [24, 78, 2, 0, 16, 0]
    assert zone.watermarks == {"min": 2818, "low": 3522, "high": 4226, "boost": 0}
    assert (first.page_size_bytes, first.pageblock_order, first.max_order) == (4096, 9, 10)


def test_read_snapshot__page_size_given():
    assert read_snapshot(X86 / "buddyinfo", page_size="64KiB").page_size_bytes == 65536
    with pytest.raises(
        InputError, match=r"page size: 65536 by page_size, 4096 by the dump; these files are not of one"
    ):
        read_snapshot(DATA / "gt_snap_612.txt.xz", page_size="64KiB")
    with pytest.raises(InputError, match="a page is a power of two"):
        read_snapshot(X86 / "buddyinfo", page_size=5000)


def test_read_snapshot__pagetypeinfo_alone_gives_the_sums():
    zone = read_snapshot(X86 / "pagetypeinfo").zones[0, "DMA"]
    assert zone.nr_free.tolist() == [1, 0, 1, 1, 0, 0, 0, 0, 2, 0, 3]
    assert zone.start_pfn is None


# -- differences -------------------------------------------------------------------------------------------------------


def test_read_snapshot__differences_name_zone_files_and_numbers(folder):
    text = (folder / "buddyinfo").read_text()
    (folder / "buddyinfo").write_text(text.replace("  7403      3 ", "  7303      4 "))
    assert read_snapshot(folder).differences == (
        "Node 0, zone DMA32: free blocks in buddyinfo and in pagetypeinfo: "
        "7303 and 7403 of order 0, 4 and 3 of order 1",
        "Node 0, zone DMA32: zoneinfo has 10961 free pages (its counters may lag by 4), buddyinfo 10863",
        "Node 0, zone DMA32: kpageflags has 10961 free pages, buddyinfo 10863",
    )


def test_read_snapshot__a_zone_that_one_file_has_not(folder):
    rows = (folder / "buddyinfo").read_text().splitlines(keepends=True)
    (folder / "buddyinfo").write_text(rows[1])
    differences = read_snapshot(folder).differences
    assert differences == ("Node 0, zone DMA: in zoneinfo and pagetypeinfo, not in buddyinfo",)


def test_read_snapshot__memory_totals_that_do_not_fit(folder):
    text = (folder / "meminfo").read_text()
    (folder / "meminfo").write_text(text.replace("243636 kB", "243640 kB"))
    snapshot = read_snapshot(folder)
    assert snapshot.page_size_bytes == 4096
    assert snapshot.differences == ("all zones: zoneinfo has 60909 managed pages, meminfo 243640 KiB of MemTotal",)
    (folder / "meminfo").write_text(text.replace("243636 kB", "343640 kB"))
    assert read_snapshot(folder).page_size_bytes is None


def test_read_snapshot__a_dump_and_later_files():
    snapshot = read_snapshot(DATA / "gt_snap_612.txt.xz", X86 / "buddyinfo", X86 / "pagetypeinfo", X86 / "zoneinfo")
    assert snapshot.zones[0, "DMA"].nr_free.tolist() == [1, 0, 1, 1, 0, 0, 0, 0, 2, 0, 3]
    assert snapshot.differences[0].startswith("Node 0, zone DMA: free blocks in the dump and in buddyinfo: 0 and 1 of")
    assert "Node 0, zone DMA32: pageblocks of type CMA: the dump has 16, pagetypeinfo 0" in snapshot.differences


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_read_snapshot__nothing_usable(tmp_path):
    with pytest.raises(InputError, match="no file of a snapshot; the kinds are gt_snap, buddyinfo"):
        read_snapshot(tmp_path)
    with pytest.raises(InputError, match="no path given"):
        read_snapshot()
    with pytest.raises(InputError, match="nowhere: cannot be read"):
        read_snapshot(tmp_path / "nowhere")
    (tmp_path / "x").write_text("hello\n")
    with pytest.raises(InputError, match="x: not recognised; the kinds are"):
        read_snapshot(tmp_path / "x")


def test_read_snapshot__two_of_one_kind(folder):
    shutil.copy(folder / "buddyinfo", folder / "buddyinfo.old")
    with pytest.raises(InputError, match=r"buddyinfo.old: a second buddyinfo beside \S+buddyinfo; a snapshot has one"):
        read_snapshot(folder)


def test_read_snapshot__unknown_label():
    with pytest.raises(InputError, match=r"no state has the label 'x'; there are: c00, c01, c02\.4"):
        read_snapshot(DATA / "gt_snap_612.txt.xz", label="x")
    with pytest.raises(InputError, match="none, for there is no dump"):
        read_snapshot(X86, label="x")


def test_read_snapshot__binary_as_pagetypeinfo(folder):
    (folder / "pagetypeinfo").write_bytes(lzma.decompress((X86 / "kpageflags.xz").read_bytes()))
    with pytest.raises(InputError, match=r"pagetypeinfo:1: byte 0x00 at offset 0; text is needed here"):
        read_snapshot(folder)


def test_read_snapshot__empty_file_of_a_known_name(folder):
    (folder / "zoneinfo").write_bytes(b"")
    with pytest.raises(InputError, match="zoneinfo: the file is empty"):
        read_snapshot(folder)


@pytest.mark.parametrize("length", [0, 4, 65500 * 8, 65500 * 8 + 3])
def test_read_snapshot__truncated_kpageflags(folder, length):
    words = lzma.decompress((X86 / "kpageflags.xz").read_bytes())
    (folder / "kpageflags.xz").unlink()
    (folder / "kpageflags").write_bytes(words[:length])
    with pytest.raises(InputError, match=rf"kpageflags: ({length} bytes|65500 frames, but Node 0, zone DMA32 ends at)"):
        read_snapshot(folder)


def test_read_snapshot__truncated_compression(folder):
    data = (folder / "kpageflags.xz").read_bytes()
    (folder / "kpageflags.xz").write_bytes(data[:-40])
    with pytest.raises(InputError, match=r"kpageflags.xz: the compressed data end too early"):
        read_snapshot(folder)


def test_read_snapshot__files_of_two_machines(folder):
    shutil.copy(DATA / "snap_73_arm64_16k" / "pagetypeinfo", folder)
    with pytest.raises(InputError, match="largest order: 10 by buddyinfo, 11 by pagetypeinfo"):
        read_snapshot(folder)


def test_read_snapshot__less_memory_than_pages(folder):
    """A meminfo cut short inside MemTotal."""
    (folder / "meminfo").write_bytes(b"MemTotal:          2 kB\n")
    assert any("meminfo 2 KiB of MemTotal" in line for line in read_snapshot(folder).differences)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_read_snapshot__damaged_files_never_raise_anything_else(folder, data):
    name = data.draw(st.sampled_from(["buddyinfo", "pagetypeinfo", "zoneinfo", "vmstat", "meminfo", "kpageflags.xz"]))
    whole = bytearray((X86 / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    (folder / name).write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(InputError):
        read_snapshot(folder)
    shutil.copy(X86 / name, folder)


# -- recordings --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not RECORDS, reason="MEMMODEL_RECORDS is not set")
def test_read_snapshot__all_recordings_are_given_back():
    folders = sorted(Path(RECORDS).glob("**/snap/*"))
    n_different = 0
    for folder in folders:
        names = ["buddyinfo", "pagetypeinfo", "zoneinfo", "vmstat"]
        snapshot = read_snapshot(*(folder / name for name in names))
        zones = snapshot.zones
        assert format_buddyinfo({key: zone.nr_free for key, zone in zones.items()}) == (folder / names[0]).read_text()
        text = format_pagetypeinfo(
            snapshot.pageblock_order,
            {key: zone.type_free for key, zone in zones.items()},
            {key: zone.type_blocks for key, zone in zones.items()},
            next(iter(zones.values())).migratetypes,
        )
        assert text == (folder / names[1]).read_text(), folder
        assert all(np.all(zone.nr_free >= 0) for zone in zones.values())
        n_different += bool(snapshot.differences)
    assert (len(folders), n_different) == (397, 4)


def test_read_snapshot__kernel_of_the_version_file(tmp_path):
    folder = shutil.copytree(DATA / "snap_612_x86", tmp_path / "snap")
    assert read_snapshot(folder).kernel is None
    (folder / "version").write_text("Linux version 6.12.117-gt (root@vm) (gcc 12.2.0) #3 SMP Mon Nov 30 2026\n")
    snapshot = read_snapshot(folder)
    assert snapshot.kernel == "6.12.117-gt"
    assert mm.PhysicalMemory.from_snapshot(snapshot).geometry.kernel == "6.12.117-gt"
    with pytest.raises(InputError, match="no file of a snapshot"):
        read_snapshot(folder / "version")
