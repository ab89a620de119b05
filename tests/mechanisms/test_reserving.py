"""CMA areas at boot: recorded kernels, the rules one by one, and what holds for all."""

import lzma
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.geometry import Geometry, ZoneLimits
from memmodel.mechanisms.memblock import MemoryMap
from memmodel.mechanisms.reserving import activate, declare_contiguous, reserve_default
from memmodel.sources.spans import Span
from tests.reference import memblock as twin

RECORDS = os.environ.get("MEMMODEL_RECORDS")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ARM = Geometry(page_size="16KiB", kernel="7.3.4")
X86 = Geometry(kernel="6.12.117")
X86_PB7 = Geometry(kernel="7.3.4", page_block_max_order=7)
# What was taken when the area was placed: on arm64 the node's data at the very top, on x86 the initial RAM disk.
ARM_MAP = MemoryMap([(GIB, 768 * MIB)], [(GIB + 768 * MIB - 600 * KIB, 600 * KIB)])
X86_MAP = MemoryMap([(0x1000, 0x9E000), (0x100000, 0xFEDD000)], [(0xFF6D000, 0x63000), (0xFFDAB00, 0x2500)])


@pytest.mark.parametrize(
    ("geo", "memory", "asked", "mib", "base", "line", "total_kib"),
    [
        (ARM, ARM_MAP, "1M", 32, 0x6C000000, "cma: Reserved 1 MiB at 0x000000006c000000", 32768),
        (ARM, ARM_MAP, "8M", 32, 0x6C000000, "cma: Reserved 8 MiB at 0x000000006c000000", 32768),
        (ARM, ARM_MAP, "40M", 64, 0x6A000000, "cma: Reserved 40 MiB at 0x000000006a000000", 65536),
        (ARM, ARM_MAP, "100M", 128, 0x66000000, "cma: Reserved 100 MiB at 0x0000000066000000", 131072),
        (X86, X86_MAP, "1M", 2, 0xFC00000, "cma: Reserved 2 MiB at 0x000000000fc00000 on node -1", 2048),
        (X86, X86_MAP, "3M", 4, 0xFA00000, "cma: Reserved 4 MiB at 0x000000000fa00000 on node -1", 4096),
        (X86, X86_MAP, "5M", 6, 0xF800000, "cma: Reserved 6 MiB at 0x000000000f800000 on node -1", 6144),
        (X86, X86_MAP, "40M", 40, 0xD600000, "cma: Reserved 40 MiB at 0x000000000d600000 on node -1", 40960),
        (X86_PB7, X86_MAP, "1M", 1, 0xFE00000, "cma: Reserved 1 MiB at 0x000000000fe00000", 1024),
        (X86_PB7, X86_MAP, "3M", 3, 0xFC00000, "cma: Reserved 3 MiB at 0x000000000fc00000", 3072),
        (X86_PB7, X86_MAP, "40M", 40, 0xD700000, "cma: Reserved 40 MiB at 0x000000000d700000", 40960),
        (X86_PB7, X86_MAP, "5M", 5, 0xFA00000, "cma: Reserved 5 MiB at 0x000000000fa00000", 5120),
    ],
)
def test_reserve_default__as_recorded(geo, memory, asked, mib, base, line, total_kib):
    area, left = reserve_default(geo, memory, cma=asked)
    assert (area.accepted, area.size_bytes, area.base, area.log) == (True, mib * MIB, base, (line,))
    assert area.wasted_bytes == mib * MIB - int(asked[:-1]) * MIB
    assert area.below_4gib
    done = activate(geo, area, left)
    assert (done.cma_total_bytes, done.error) == (total_kib * KIB, "")
    assert done.zone == ("DMA" if geo is ARM else "DMA32")


@pytest.mark.skipif(RECORDS is None, reason="MEMMODEL_RECORDS names no recordings")
def test_reserve_default__every_row_of_the_recorded_table():
    text = Path(RECORDS, "R5-cma-align", "table.txt").read_text()
    builds = {"arm64 16K": (ARM, ARM_MAP), "612gt": (X86, X86_MAP), "ORDER=7": (X86_PB7, X86_MAP)}
    rows = text.split("# ")[1:]
    assert len(rows) == 11
    for row in rows:
        title, _, body = row.partition("\n")
        geo, memory = next(build for words, build in builds.items() if words in title)
        area, left = reserve_default(geo, memory, cma=title)
        assert f"Page block order: {geo.pageblock_order}\n" in body
        assert re.search(r"cma: .*", body)[0] == area.log[0]
        assert f"CmaTotal: {activate(geo, area, left).cma_total_bytes >> 10:>14} kB" in body


@pytest.mark.skipif(RECORDS is None, reason="MEMMODEL_RECORDS names no recordings")
@pytest.mark.parametrize("name", ["R5-73-arm64-16k", "R5-73gt-pb7"])
def test_reserve_default__recorded_boots(name):
    folder = Path(RECORDS, name)
    log = lzma.open(folder / "dmesg.txt.xz", "rt").read()
    geo, memory = (ARM, MemoryMap([(GIB, GIB)], [(0x7FF64000, 0x9C000)])) if "arm64" in name else (X86_PB7, X86_MAP)
    area, _ = reserve_default(geo, memory, cma=(folder / "cmdline").read_text())
    assert area.log[0] in log


def test_reserve_default__where_it_comes_from():
    assert reserve_default(X86, X86_MAP) == (None, X86_MAP)
    assert reserve_default(X86, X86_MAP, cma="0", config_bytes=MIB) == (None, X86_MAP)
    area, _ = reserve_default(X86, X86_MAP, config_bytes=3 * MIB)
    assert (area.requested_bytes, area.size_bytes) == (3 * MIB, 4 * MIB)


def test_reserve_default__large_machines():
    memory = MemoryMap([(GIB, 15 * GIB)])
    area, _ = reserve_default(X86, memory, cma="64M")
    assert (area.base, area.below_4gib) == (4 * GIB, False)
    area, _ = reserve_default(Geometry(arch="arm64"), memory, cma="64M")
    assert (area.base, area.below_4gib) == (4 * GIB - 64 * MIB, True)
    area, _ = reserve_default(Geometry(arch="arm64"), memory, cma="64M", dma_limit=2 * GIB)
    assert area.base == 2 * GIB - 64 * MIB
    taken = memory.reserve(Span(4 * GIB, 12 * GIB))
    area, _ = reserve_default(X86, taken, cma="64M")
    assert area.base == 4 * GIB - 64 * MIB


def test_reserve_default__a_range_on_the_boot_line():
    memory = MemoryMap([(0, 4 * GIB)])
    area, _ = reserve_default(X86, memory, cma="16M@0x10000000")
    assert area.base == 0x10000000
    area, _ = reserve_default(X86, memory, cma="16M@0x10000000-0x20000000")
    assert area.base == 0x20000000 - 16 * MIB
    area, left = reserve_default(X86, memory, cma="16M@0x10100000")
    assert (area.accepted, area.errno, left) == (False, -22, memory)
    assert area.log == (
        "cma: Region at 0x0000000010100000 must be aligned to 0x0000000000200000 bytes",
        "cma: Failed to reserve 16 MiB on node -1",
    )
    area, _ = reserve_default(X86, memory.reserve(Span(0x10000000, 4096)), cma="16M@0x10000000")
    assert (area.errno, area.log) == (-16, ("cma: Failed to reserve 16 MiB on node -1",))
    area, _ = reserve_default(X86, memory, cma="16M@0xfff00000-0x100000000")
    assert area.log[0] == (
        "cma: Size (0x0000000001000000) of region at 0x0000000100000000 exceeds limit (0x0000000100000000)"
    )


def test_reserve_default__no_room_at_64k():
    """raspberrypi/linux#6053: the default pool becomes 512 MiB and does not fit the first GiB."""
    geo = Geometry(page_size="64KiB", kernel="6.1.73")
    memory = MemoryMap([(0, 0x3B400000), (0x40000000, 0xBC000000)], [(0x200000, 0x3000000)])
    area, left = reserve_default(geo, memory, config_bytes=64 * MIB, dma_limit=GIB)
    assert (area.accepted, area.size_bytes, area.errno, left) == (False, 512 * MIB, -12, memory)
    assert area.log == ("cma: Failed to reserve 512 MiB",)
    assert area.wasted_bytes == 0
    smaller, _ = reserve_default(
        geo.replace(page_size="4KiB", arch="arm64"), memory, config_bytes=64 * MIB, dma_limit=GIB
    )
    assert (smaller.base, smaller.log[0]) == (0x3B400000 - 64 * MIB, "cma: Reserved 64 MiB at 0x0000000037400000")


def test_declare_contiguous__place_not_known():
    area, memory = declare_contiguous(ARM, 4 * MIB)
    assert (area.accepted, area.base, area.below_4gib, area.reach, memory) == (True, None, None, "cannot be told", None)
    assert area.wasted_bytes == 28 * MIB
    assert activate(ARM, area).cma_total_bytes == 32 * MIB
    area, _ = declare_contiguous(ARM, 4 * MIB, limit=4 * GIB)
    assert area.reach == "below 4 GiB"
    area, _ = declare_contiguous(ARM, 4 * MIB, base=4 * GIB, limit=8 * GIB)
    assert area.reach == "beyond 4 GiB"
    high = Geometry(arch="generic", highmem=True)
    area, _ = declare_contiguous(high, 4 * MIB, MemoryMap([(0, GIB)]))
    assert (area.base, area.notes) == (None, ("where a kernel with HIGHMEM puts an area is not modelled",))


def test_declare_contiguous__silent_refusals():
    for kernel, lines in (("6.12.117", 0), ("7.3", 1)):
        geo = Geometry(kernel=kernel)
        for options in ({"size_bytes": 0}, {"size_bytes": MIB, "alignment_bytes": 3 * MIB}):
            area, _ = declare_contiguous(geo, **options)
            assert (area.accepted, area.errno, len(area.log)) == (False, -22, lines)
        area, _ = declare_contiguous(geo, 2 * MIB, order_per_bit=10)
        assert (area.errno, area.error) == (-22, "size is no multiple of order 10")
    area, _ = declare_contiguous(geo, MIB, alignment_bytes=64 * MIB)
    assert (area.size_bytes, area.alignment_bytes, area.granularity_bytes) == (64 * MIB, 64 * MIB, 2 * MIB)
    for number in (-1, 1.5, "64M"):
        with pytest.raises(InputError, match="are whole, not negative"):
            declare_contiguous(geo, number)


def test_declare_contiguous__before_5_19():
    area, _ = declare_contiguous(Geometry(kernel="5.15"), MIB)
    assert area.size_bytes == 4 * MIB


def test_activate__one_zone():
    area, _ = declare_contiguous(X86, 4 * MIB, base=14 * MIB, fixed=True)
    done = activate(X86, area)
    assert (done.zone, done.cma_total_bytes) == (None, 0)
    assert done.error == "cma: CMA area reserved could not be activated"
    assert activate(X86, area, zones=(ZoneLimits("Normal", 0, GIB),)).zone == "Normal"
    hole = MemoryMap([(0, 16 * MIB), (17 * MIB, MIB)])
    assert "are not all RAM" in activate(X86, area, hole, (ZoneLimits("Normal", 0, GIB),)).error
    refused, _ = declare_contiguous(X86, MIB, base=MIB, fixed=True)
    with pytest.raises(InputError, match="there is none"):
        activate(X86, refused)


SPANS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 900)), min_size=1, max_size=6)


@given(
    geo=st.sampled_from([X86, X86_PB7, ARM, Geometry(page_size="64KiB")]),
    ram=SPANS,
    taken=SPANS,
    size=st.integers(1, 700),
    base=st.integers(0, 3000),
    limit=st.integers(0, 9000),
    fixed=st.booleans(),
)
def test_declare_contiguous__holds_for_all(geo, ram, taken, size, base, limit, fixed):
    """Aligned, inside, over nothing taken, no more lost than the area; and nothing at all where it is refused."""
    unit = 2 * MIB
    memory = MemoryMap([(a * unit, n * unit) for a, n in ram], [(a * unit + 4096, n * unit) for a, n in taken])
    area, left = declare_contiguous(geo, size * MIB, memory, base=base * MIB, limit=limit * MIB, fixed=fixed)
    if not area.accepted:
        assert left is memory
        assert area.error
        assert area.errno < 0
        return
    assert area.base % area.granularity_bytes == area.size_bytes % area.granularity_bytes == 0
    assert 0 <= area.wasted_bytes < area.granularity_bytes
    assert not any(area.span.overlaps(span) for span in memory.reserved)
    rounded = limit * MIB // area.alignment_bytes * area.alignment_bytes
    assert not rounded or area.span.end <= rounded  # one that rounds down to 0 is none, as in the kernel
    if fixed and base:
        assert area.base == base * MIB
    else:
        assert any(bank.holds(area.span) for bank in memory.memory)
        lost = sum(span.size_bytes for span in memory.free) - sum(span.size_bytes for span in left.free)
        assert lost == area.size_bytes
    assert left.give_back([area.span]).free == memory.free


UNITS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=4)


@given(ram=UNITS, taken=UNITS, size=st.integers(1, 12), base=st.integers(0, 40), limit=st.integers(0, 90))
def test_declare_contiguous__placed_as_the_twin_does(ram, taken, size, base, limit):
    """In units of 128 MiB, so that 4 GiB are 32 of them, with an alignment of one."""
    unit = 128 * MIB
    memory = MemoryMap([(a * unit, n * unit) for a, n in ram], [(a * unit, n * unit) for a, n in taken])
    area, _ = declare_contiguous(X86, size * unit, memory, base=base * unit, limit=limit * unit, alignment_bytes=unit)
    expected = twin.place(ram, taken, size, base, limit, 32)
    assert area.base == (None if expected is None else expected * unit)
