"""CMA lines of kernel logs, wherever they stand."""

import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.sources.cmalog import CmaBitmap, parse_cma_log, read_cma_log
from memmodel.sources.spans import Span

CASES = Path(__file__).parents[1] / "data" / "cases"
MIB = 1 << 20
FAILED = "[ 1.0] cma: cma_alloc: linux,cma: alloc failed, req-size: 4 pages, ret: -12"


def case(name):
    return read_cma_log(CASES / name)


def test_case__bitmap_behind_a_task_prefix():
    log = case("cma-android-bitmap-enomem-01.txt")
    (failure,) = log.failures
    assert (failure.line, failure.area, failure.pages, failure.errno) == (1, None, 256, -12)
    assert failure.bitmap.runs == ((4, 572), (7, 585), (7, 601), (8, 632), (38, 730), (166, 1114), (127, 1921))
    assert (failure.bitmap.free_pages, failure.bitmap.total_pages, failure.bitmap.largest_run_pages) == (357, 2048, 166)
    assert (log.bitmaps, log.notes, log.page_size_bytes) == ((failure.bitmap,), (), None)


def test_case__busy_ranges():
    log = case("cma-arm32-rpi-alloc_contig-busy-01.txt")
    assert len(log.busy) == 14
    assert (log.busy[0].start_pfn, log.busy[-1].end_pfn, log.busy[13].line) == (0x2F100, 0x2FF0A, 14)
    assert {found.pages for found in log.busy} == {266}
    assert log.page_size_bytes == 4096  # 1089536 bytes are 266 pages


def test_case__zones_and_page_size():
    log = case("cma-arm64-4k-rpi4-8gb-01.txt")
    assert {zone: pages * 4096 // MIB for zone, pages in log.zones} == {"DMA": 895, "DMA32": 3008, "Normal": 4096}
    assert log.page_size_bytes == 4096  # larger ones would not fit into the node
    assert (log.failures[0].pages, log.failures[0].errno) == (19200, -12)


def test_case__boot_of_two_kernels():
    log = case("cma-arm64-64k-reserve-fails-01.txt")
    assert [(boot.kind, boot.name) for boot in log.boots] == [
        ("pool", None),
        ("initialized", "linux,cma"),
        ("misaligned", None),
        ("given back", "linux,cma"),
        ("not reserved", None),
    ]
    assert log.boots[0].span == Span(0x2AE00000, 64 * MIB)
    assert (log.boots[4].size_mib, log.boots[4].span) == (512, None)


def test_case__ten_records_on_one_line():
    log = case("cma-arm64-desktop-repeat-enomem-01.txt")
    assert [failure.pages for failure in log.failures] == [16, 64] * 5
    assert {(failure.area, failure.errno, failure.line, failure.bitmap) for failure in log.failures} == {
        ("reserved", -12, 1, None)
    }


def test_case__whole_pool():
    (failure,) = case("cma-arm64-zynqmp-wholepool-busy-01.txt").failures
    assert (failure.pages, failure.errno) == (524288, -16)
    assert failure.bitmap == CmaBitmap(5, ((524288, 0),), 524288, 524288)


@pytest.mark.skipif("MEMMODEL_RECORDS" not in os.environ, reason="MEMMODEL_RECORDS names no recordings")
def test_read_cma_log__recorded(tmp_path):
    folder = Path(os.environ["MEMMODEL_RECORDS"])
    for name, base, mib in (("R5-73-arm64-16k", 0x7A000000, 64), ("R5-73gt-pb7", 0xFA00000, 5)):
        log = read_cma_log(folder / name / "dmesg.txt.xz")
        assert [(boot.kind, boot.span) for boot in log.boots] == [("reserved", Span(base, mib * MIB))]
        assert log.kernel.startswith("7.3.4")
    text = lzma.compress((folder / "R5-cma-align" / "table.txt").read_bytes())
    (tmp_path / "table.xz").write_bytes(text)
    assert len(read_cma_log(tmp_path / "table.xz").boots) == 11


def test_parse_cma_log__quoted_and_wrapped():
    text = f"{FAILED}\nnumber of available pages: 1@3+2@7=> 3 free of 64 total pages\n"
    (plain,) = parse_cma_log(text, "f").failures
    wrapped = "> " + text.replace(" alloc failed,", "\n> alloc failed,").replace("+2@7", "+\n> 2@7").replace(
        "\nn", "\n> n"
    )
    (quoted,) = parse_cma_log(wrapped, "f").failures
    assert quoted.bitmap.runs == plain.bitmap.runs == ((1, 3), (2, 7))
    assert (plain.area, quoted.area) == ("linux,cma", "linux,cma")


def test_parse_cma_log__a_bitmap_belongs_to_the_failure_before_it():
    bitmap = "number of available pages: => 0 free of 64 total pages"
    log = parse_cma_log(f"{bitmap}\n{FAILED}\n{FAILED} {bitmap}", "f")
    assert [failure.bitmap for failure in log.failures] == [None, CmaBitmap(3, (), 0, 64)]
    assert len(log.bitmaps) == 2
    assert log.bitmaps[0].largest_run_pages == 0


def test_parse_cma_log__what_is_cut_or_does_not_add_up():
    text = (
        f"{FAILED}\ncma: number of available pages: 4@0=> 5 free of 64 total pages\n"
        "cma: cma_alloc: alloc failed, req-size: 12\ncma: number of available pages: 4@0+3@1"
    )
    assert parse_cma_log(text, "f").notes == (
        "f:2: the runs come to 4 pages, the line says 5",
        "f:4: not read: a bitmap that is cut before its sum",
        "f:3: not read: a record that is cut at 'req-size:'",
    )


def test_parse_cma_log__a_bitmap_of_several_ranges():
    text = """[    9.100000] cma: __cma_alloc: reserved: alloc failed, req-size: 256 pages, ret: -16
[    9.100010] cma: number of available pages:
[    9.100020] cma: range 0: +4@572+7@585
[    9.100030] cma:
[    9.100040] cma: range 1: 166@0+2@1114
[    9.100050] cma:
[    9.100060] => 179 free of 4096 total pages
"""
    (failure,) = parse_cma_log(text, "f").failures
    assert failure.bitmap == CmaBitmap(2, ((4, 572), (7, 585), (166, 0), (2, 1114)), 179, 4096)
    assert parse_cma_log(text, "f").notes == ()


def test_parse_cma_log__page_size_by_the_buffers_that_match():
    text = (
        "vc4-drm soc:gpu: failed to allocate buffer with size 4194304\n"
        "cma: cma_alloc: alloc failed, req-size: 2040 pages, ret: -12\n"
        "vc4-drm soc:gpu: failed to allocate buffer with size 8355840\n"
    )
    log = parse_cma_log(text, "f")
    assert log.page_size_bytes == 4096
    assert log.buffers == ((1, 4194304), (3, 8355840))


def test_parse_cma_log__newer_names():
    text = "alloc_contig_range_noprof: [1000, 1100) PFNs busy\nalloc_contig_frozen_range: [1100, 1200) PFNs busy\n"
    assert [found.pages for found in parse_cma_log(text, "f").busy] == [256, 256]
    boots = parse_cma_log(
        "OF: reserved mem: failed to allocate memory for node 'a@1'\ncma: CMA area b could not be activated\n"
        "Reserved memory: bypass c node, using cmdline CMA params instead\n"
        "cma: Reserved 6 MiB at 0x000000000f800000 on node -1\n",
        "f",
    ).boots
    assert [(boot.kind, boot.name) for boot in boots] == [
        ("no room", "a@1"),
        ("not activated", "b"),
        ("bypassed", "c"),
        ("reserved", None),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "cma_alloc: alloc failed, req-size: {} pages, ret: -12",
        "cma_alloc: alloc failed, req-size: 1 pages, ret: -{}",
        "number of available pages: {}@1=> {} free of {} total pages",
        "cma: Reserved {} MiB at 0x0",
        "cma: Failed to reserve {} MiB",
        "created CMA memory pool at 0x{}, size 64 MiB",
        "alloc_contig_range: [0, {}) PFNs busy",
    ],
)
def test_parse_cma_log__numbers_that_no_kernel_prints(text):
    huge = "9" * 5000
    log = parse_cma_log(f"{FAILED}\n{text.replace('{}', huge)}\n", "f")
    assert [failure.pages for failure in log.failures] == [4]
    assert (log.bitmaps, log.busy, log.boots) == ((), (), ())


def test_parse_cma_log__a_version_that_is_none_is_not_taken():
    assert parse_cma_log(f"Linux version 6.1x\n{FAILED}", "f").kernel is None
    assert parse_cma_log(f"Linux version {'9' * 5000}.1\n{FAILED}", "f").kernel is None
    assert parse_cma_log(f"Linux version 6.6-rc1+ (a@b)\n{FAILED}", "f").kernel == "6.6-rc1+"


@pytest.mark.parametrize("name", ["cma-alignment-table-arm64-pagesizes-01.txt", "config-x86-cma-nothp-01.config"])
def test_read_cma_log__no_such_line(name):
    with pytest.raises(InputError, match="found no line of CMA; such are cma_alloc: alloc failed"):
        case(name)


@given(
    st.lists(
        st.sampled_from(
            [
                *("cma_alloc: ", "alloc failed, ", "req-size: ", "9 pages, ", "ret: -12", "0x", "> ", "\n", "1@2", "+"),
                *("number of available pages: ", "=> ", "3 free of 9 total pages", "a, b) PFNs busy"),
                "alloc_contig_range: [",
            ]
        ),
        max_size=30,
    ).map("".join)
)
def test_parse_cma_log__junk_gives_input_error_only(text):
    try:
        found = bool(parse_cma_log(text, "f").path)
    except InputError as error:
        found = "\n" not in str(error)
    assert found
