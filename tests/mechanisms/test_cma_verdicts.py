"""Why CMA allocations failed, by the numbers of the log."""

import re
from pathlib import Path

import pytest

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.mechanisms.cma_verdicts import VERDICTS, cma_granule_bounds, cma_verdicts
from memmodel.sources.cmalog import parse_cma_log, read_cma_log

CASES = Path(__file__).parents[1] / "data" / "cases"
MIB = 1 << 20
OLD, NEW = Geometry(kernel="6.12.117"), Geometry(kernel="7.3")


def case(name, geometry=None):
    return cma_verdicts(read_cma_log(CASES / name), geometry)


def verdict(errno, pages=256, bitmap=None, geometry=None):
    text = f"cma: cma_alloc: alloc failed, req-size: {pages} pages, ret: {errno}\n"
    if bitmap is not None:
        runs = [int(run.split("@")[0]) for run in bitmap.split("+") if run]
        text += f"cma: number of available pages: {bitmap}=> {sum(runs)} free of 2048 total pages\n"
    (found,) = cma_verdicts(parse_cma_log(text, "f"), geometry)
    assert found.kind in VERDICTS
    return found


def test_case__fragmentation():
    (found,) = case("cma-android-bitmap-enomem-01.txt")
    assert (found.kind, found.free_pages, found.largest_run_pages, found.request_pages) == (
        "fragmentation",
        357,
        166,
        256,
    )


def test_case__pinned_pages():
    (found,) = case("cma-arm32-rpi-alloc_contig-busy-01.txt")
    assert (found.kind, found.n_candidates, found.request_pages) == ("migration failure", 14, 266)
    assert (found.step_pages, found.align_order, found.cma_alignment) == (256, 8, 8)
    assert found.request_bytes == 1089536
    assert found.failed
    assert found.words.endswith("so the area is not exhausted")


def test_case__no_run_of_75_mib():
    (found,) = case("cma-arm64-4k-rpi4-8gb-01.txt", Geometry(arch="arm64", kernel="5.10"))
    assert (found.kind, found.request_bytes) == ("full or fragmented", 75 * MIB)
    assert (found.fallback_order, found.fallback_too_large) == (15, True)
    assert found.words.startswith("no free run of 19200 aligned pages")
    with pytest.raises(InputError, match="the log is of 4 KiB pages, the geometry of 16 KiB"):
        case("cma-arm64-4k-rpi4-8gb-01.txt", Geometry(page_size="16KiB"))


def test_case__full():
    found = case("cma-arm64-desktop-repeat-enomem-01.txt", Geometry(arch="arm64", kernel="6.6"))
    assert [each.request_bytes >> 10 for each in found] == [64, 256] * 5
    assert {each.kind for each in found} == {"exhaustion"}
    assert all(
        "as good as full; neither the area's size nor what is free in it is shown" in each.words for each in found
    )
    assert {each.total_pages for each in found} == {None}
    found = case("cma-arm64-desktop-repeat-enomem-01.txt")  # the log has no page size
    assert {each.request_bytes for each in found} == {None}
    assert found[0].words.endswith(
        "; 16 pages are 64 KiB with 4 KiB pages, 256 KiB with 16 KiB pages, 1 MiB with 64 KiB pages"
    )


def test_case__whole_pool_does_not_move():
    (found,) = case("cma-arm64-zynqmp-wholepool-busy-01.txt", Geometry(arch="arm64", kernel="5.4"))
    assert (found.kind, found.whole_area, found.request_bytes) == ("migration failure", True, 2048 * MIB)
    assert (found.free_pages, found.largest_run_pages) == (524288, 524288)
    assert case("cma-arm64-zynqmp-wholepool-busy-01.txt")[0].kind == "migration failure"  # whatever the kernel


def test_case__granule_by_what_was_taken_and_refused():
    log = read_cma_log(CASES / "cma-arm64-64k-reserve-fails-01.txt")
    taken, refused, default = cma_granule_bounds(log, Geometry(page_size="64KiB", kernel="6.1.73"))
    assert taken.at_most_bytes == 2 * MIB
    assert (refused.above_bytes, refused.words) == (2 * MIB, "node linux,cma is a multiple of 2 MiB only")
    assert default.at_most_bytes == 512 * MIB
    small = Geometry(arch="arm64", kernel="6.1.73")
    large = small.replace(page_size="64KiB")
    assert small.cma_min_alignment_bytes <= taken.at_most_bytes
    assert refused.above_bytes < large.cma_min_alignment_bytes <= default.at_most_bytes
    assert len(cma_granule_bounds(log)) == 2  # a kernel not known may print the size before rounding


def test_case__alignment_table_and_the_row_that_does_not_hold():
    text = (CASES / "cma-alignment-table-arm64-pagesizes-01.txt").read_text()
    rows = [[int(n) for n in row] for row in re.findall(r"> +(\d+)Ki[Bb] +\| +(\d+) +\| +(\d+) .*= +(\d+)MiB", text)]
    assert len(rows) == 6
    for at, (page_kib, top, order, mib) in enumerate(rows):
        thp = at < 3
        geo = Geometry(
            page_size=page_kib << 10,
            arch="arm64",
            kernel="6.15",
            transparent_hugepage=thp,
            hugetlb=False,
            max_page_order=top,
        )
        model = (geo.max_page_order, geo.pageblock_order, geo.cma_min_alignment_bytes // MIB)
        assert model == ((10, 9, 2) if at == 0 else (top, order, mib))
        older = geo.replace(kernel="6.9")
        assert (older.pageblock_order, older.cma_min_alignment_bytes // MIB) == (order, mib)


@pytest.mark.parametrize(
    ("errno", "pages", "bitmap", "kind"),
    [
        (-12, 4096, "2048@0", "exhaustion"),
        (-12, 256, "100@0+50@300", "exhaustion"),
        (-12, 256, "", "exhaustion"),
        (-16, 256, "200@0+200@300", "fragmentation"),  # as from 7.2 on
        (-16, 256, "300@0", "migration failure"),
        (-12, 256, "300@0", "migration failure"),  # room, and nowhere to move to
        (-12, 256, "300@1", "cannot be told"),  # long enough, but no multiple of 256 in it
        (-4, 256, "300@0", "interrupted"),
    ],
)
def test_verdict__with_a_bitmap(errno, pages, bitmap, kind):
    assert verdict(errno, pages, bitmap).kind == kind


@pytest.mark.parametrize(
    ("errno", "geometry", "kind", "words"),
    [
        (-16, OLD, "migration failure", "did not move"),
        (-16, NEW, "cannot be told", "the bitmap line is missing"),
        (-16, None, "cannot be told", "the kernel's version or the bitmap line is missing"),
        (-12, OLD, "full or fragmented", "neither the area's size"),
        (-12, NEW, "migration failure", "nowhere to move its pages to"),  # no free run would be EBUSY
        (-4, OLD, "interrupted", "fatal signal"),
        (-22, OLD, "cannot be told", "error -22 is none"),
    ],
)
def test_verdict__without_a_bitmap(errno, geometry, kind, words):
    found = verdict(errno, geometry=geometry)
    assert (found.kind, words in found.words) == (kind, True)
    assert found.request_bytes == (None if geometry is None else MIB)


def test_verdict__the_kernel_that_the_log_names():
    text = "Linux version 6.1.0-9-arm64\ncma_alloc: alloc failed, req-size: 9 pages, ret: -16\n"
    assert cma_verdicts(parse_cma_log(text, "f"))[0].kind == "migration failure"
    assert cma_verdicts(parse_cma_log(text.replace("6.1.0", "7.2.1"), "f"))[0].kind == "cannot be told"


def test_busy__series_and_their_steps():
    def busy(*starts, pages=16):
        rows = [f"alloc_contig_range: [{start:x}, {start + pages:x}) PFNs busy" for start in starts]
        return cma_verdicts(parse_cma_log("\n".join(rows), "f"))

    (found,) = busy(0x1000, 0x1010, 0x1020)
    assert (found.step_pages, found.align_order, found.cma_alignment) == (16, 4, None)  # its own order: no cap shows
    (found,) = busy(0x1001, 0x1002, 0x1003)
    assert (found.step_pages, found.align_order, found.cma_alignment) == (1, 0, None)
    (found,) = busy(0x1001, 0x1011)
    assert (found.step_pages, found.align_order) == (16, None)
    (found,) = busy(0x1000)
    assert (found.n_candidates, found.step_pages, found.align_order) == (1, None, None)
    assert [each.n_candidates for each in busy(0x1000, 0x1010, 0x1000, 0x1010, 0x1020)] == [2, 3]


def test_busy__requests_apart_in_time_are_apart():
    text = """Jan 11 14:29:18 localhost kernel: [ 5009.361913] alloc_contig_range: [700fb, 700fc) PFNs busy
Jan 11 14:37:29 localhost kernel: [ 5500.027057] alloc_contig_range: [700fc, 700fd) PFNs busy
Jan 11 14:37:29 localhost kernel: [ 5500.028057] alloc_contig_range: [700fd, 700fe) PFNs busy
"""
    first, second = cma_verdicts(parse_cma_log(text, "f"))
    assert (first.n_candidates, second.n_candidates, second.step_pages) == (1, 2, 1)
    assert not second.failed
    assert "whether a later range did is not shown" in second.words
    (_, second, failure) = cma_verdicts(
        parse_cma_log(f"{text}cma_alloc: alloc failed, req-size: 1 pages, ret: -16", "f")
    )
    assert (second.failed, failure.line) == (True, 4)
