"""The geometry against the fact tables, a slow twin, and the recorded kernels."""

import json
import lzma
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import GeometryError, InputError
from memmodel.geometry import Geometry, zone_limits
from memmodel.sources.features import FEATURES, kernel_features, kernel_version
from memmodel.sources.kconfig import read_kconfig
from tests.reference import geometry as reference

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("options", "pageblock_order", "cma_bytes"),
    [
        ({"page_size": "16KiB", "arch": "arm64"}, 11, 33554432),
        ({"page_size": "16KiB", "arch": "arm64", "page_block_max_order": 7}, 7, 2097152),
        ({}, 9, 2097152),
        ({"page_size": "4KiB", "arch": "arm64"}, 9, 2097152),
        ({"page_size": "64KiB"}, 13, 536870912),
        ({"page_size": "64KiB", "page_block_max_order": 5}, 5, 2097152),
        ({"transparent_hugepage": False, "hugetlb": False, "max_page_order": 15}, 15, 134217728),
        ({"arch": "arm64", "transparent_hugepage": False, "hugetlb": False, "max_page_order": 15}, 15, 134217728),
        ({"kernel": "5.15"}, 9, 4194304),
        ({"kernel": "5.15", "page_size": "16KiB", "page_block_max_order": 7}, 7, 33554432),
        ({"kernel": "6.1", "hugetlb": False}, 10, 4194304),
        ({"kernel": "6.10", "hugetlb": False}, 9, 2097152),
        ({"kernel": "6.12.117", "transparent_hugepage": False, "hugetlb": False}, 10, 4194304),
        ({"arch": "ppc64le", "page_size": "64KiB", "hugetlb_size_variable": True}, 5, 2097152),
        ({"arch": "ppc64le", "page_size": "64KiB", "hugetlb": False, "transparent_hugepage": False}, 8, 16777216),
    ],
)
def test_geometry__table_values(options, pageblock_order, cma_bytes):
    geo = Geometry(**options)
    assert (geo.pageblock_order, geo.cma_min_alignment_bytes) == (pageblock_order, cma_bytes)
    assert geo.pageblock_nr_pages == 1 << pageblock_order


@settings(deadline=None, max_examples=400)
@given(
    arch=st.sampled_from(["x86_64", "arm64", "powerpc64", "generic"]),
    page_size=st.sampled_from([KIB << n for n in range(2, 11)]),
    kernel=st.sampled_from(list(reference.THP_BRANCH)),
    thp=st.booleans(),
    hugetlb=st.booleans(),
    size_variable=st.booleans(),
    max_page_order=st.none() | st.integers(0, 18),
    page_block_max_order=st.none() | st.integers(0, 18),
    cma=st.booleans(),
    isolation=st.booleans(),
)
def test_geometry__agrees_with_reference(
    arch, page_size, kernel, thp, hugetlb, size_variable, max_page_order, page_block_max_order, cma, isolation
):
    expected = reference.geometry(
        arch, page_size, kernel, thp, hugetlb, size_variable, max_page_order, page_block_max_order, cma, isolation
    )
    options = {
        "arch": arch,
        "page_size": page_size,
        "kernel": kernel,
        "transparent_hugepage": thp,
        "hugetlb": hugetlb,
        "hugetlb_size_variable": size_variable,
        "max_page_order": max_page_order,
        "page_block_max_order": page_block_max_order,
        "cma": cma,
        "memory_isolation": isolation,
    }
    if isinstance(expected, str):
        with pytest.raises(GeometryError, match=expected) as caught:
            Geometry(**options)
        assert "\n" not in str(caught.value)
        return
    geo = Geometry(**options)
    assert expected == (
        geo.max_page_order,
        geo.hpage_pmd_order,
        geo.pageblock_order,
        geo.pageblock_nr_pages,
        geo.cma_min_alignment_bytes,
        geo.n_migratetypes,
    )
    again = Geometry(**json.loads(json.dumps(geo.as_dict())))
    assert again == geo == pickle.loads(pickle.dumps(geo)) == geo.replace()
    assert hash(again) == hash(geo)
    assert again.notes == geo.notes


def test_geometry__arch_follows_page_size():
    assert [Geometry(page_size=size).arch for size in (4096, "8KiB", "16K", "64KiB")] == [
        "x86_64",
        "generic",
        "arm64",
        "arm64",
    ]
    assert Geometry() == Geometry(page_size=np.int64(4096), arch="AMD64") != Geometry(arch="arm64")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_size": 5000}, "power of two from 4 KiB to 1 MiB"),
        ({"page_size": 2048}, "power of two"),
        ({"page_size": "2MiB"}, "power of two"),
        ({"page_size": "16KiB", "arch": "x86_64"}, "x86_64 has 4 KiB"),
        ({"page_size": "8KiB", "arch": "arm64"}, "arm64 has 4 KiB, 16 KiB, 64 KiB"),
        ({"arch": "vax"}, "unknown arch 'vax'; one of: x86_64"),
        (
            {"page_block_max_order": 12},
            r"pageblock order limit 12 > MAX_PAGE_ORDER 10: PAGE_BLOCK_MAX_ORDER must not exceed MAX_PAGE_ORDER",
        ),
        ({"page_block_max_order": 0}, "PAGE_BLOCK_MAX_ORDER is 1 to 10"),
        ({"page_block_max_order": 7.5}, "page_block_max_order is 7.5; a whole number"),
        ({"max_page_order": "nine"}, "max_page_order is 'nine'"),
        ({"max_page_order": float("nan")}, "max_page_order is nan"),
        ({"max_page_order": 16}, "SECTION_SIZE_BITS.*x86_64 with 4 KiB pages allows 1 to 15"),
        ({"page_size": "16KiB", "max_page_order": 10}, "HPAGE_PMD_ORDER 11 > MAX_PAGE_ORDER 10"),
        ({"memory_isolation": False}, "selects CONFIG_MEMORY_ISOLATION"),
        ({"hugetlb_size_variable": True}, "HUGETLB_PAGE_SIZE_VARIABLE is powerpc's"),
        ({"highmem": True}, "only 32-bit kernels"),
        ({"preempt": "rt"}, "unknown preempt 'rt'; one of: none, voluntary, lazy, full"),
        ({"kernel": "linus"}, "begins with X.Y"),
        ({"kernel": 6.1}, "kernel 6.1 has no version"),
        ({"features": ["claim_stael"]}, "unknown feature 'claim_stael'; one of: cma_pageblock_alignment"),
        ({"features": {"nope": True}}, "unknown feature 'nope'"),
    ],
)
def test_geometry__refused(options, message):
    with pytest.raises(GeometryError, match=message) as caught:
        Geometry(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"page_size": "banana"}, {"hugetlb": "no"}, {"cma": None}])
def test_geometry__refused_value(options):
    with pytest.raises(InputError):
        Geometry(**options)


def test_geometry__notes():
    assert Geometry().notes == ()
    (note,) = Geometry(max_page_order=15).notes
    assert "upstream x86_64 has 10" in note
    (note,) = Geometry(page_block_max_order=7).notes
    assert "kernel 6.12.117 has no such option" in note
    assert Geometry(kernel="7.3", page_block_max_order=7).notes == ()
    (note,) = Geometry(kernel="6.12.30").notes
    assert note == "kernel 6.12.30: not known whether it has claim_steal, flush_skips_other_mm; taken as absent"
    assert Geometry(notes=["mine"], arch="powerpc", page_size=65536).notes[0] == "mine"


def test_replace__defaults_follow():
    geo = Geometry()
    assert geo.replace(page_size="16KiB").max_page_order == 11
    assert geo.replace(page_size="16KiB").arch == "arm64"
    assert "claim_steal" in geo.features
    assert "claim_steal" not in geo.replace(kernel="6.1").features
    assert Geometry(page_block_max_order=7).replace(page_size="64KiB").pageblock_order == 7
    with pytest.raises(AttributeError):
        geo.arch = "arm64"


def test_summary__keys():
    assert Geometry(page_size="16KiB", arch="arm64", kernel="7.3", page_block_max_order=7).summary() == {
        "page_size_bytes": 16384,
        "max_page_order": 11,
        "hpage_pmd_order": 11,
        "pageblock_order": 7,
        "cma_min_alignment_bytes": 2097152,
        "notes": [],
    }


@pytest.mark.parametrize(
    ("kernel", "version"),
    [
        ("6.1", (6, 1, 0)),
        ("6.12.117-gt", (6, 12, 117)),
        ("7.3.4+deb13-arm64-16k", (7, 3, 4)),
        ("v6.18-rc3", (6, 18, 0)),
        ("6.1.0-57-amd64", (6, 1, 0)),
        ("2.6.32.71", (2, 6, 32)),
    ],
)
def test_kernel_version__names(kernel, version):
    assert kernel_version(kernel) == version


@pytest.mark.parametrize("kernel", ["", "6", "6.", "six.one", "6.12345", "-6.1", "linux", None])
def test_kernel_version__refused(kernel):
    with pytest.raises(GeometryError, match="no version"):
        kernel_version(kernel)


def test_features__by_kernel():
    assert kernel_features("5.15") == set()
    assert kernel_features("6.1") == {"cma_pageblock_alignment"}
    assert "pcp_autotune" not in kernel_features("6.6.50")
    assert {"pcp_autotune", "freelist_hygiene", "thp_pageblock", "max_order_inclusive"} <= kernel_features("6.10")
    assert "claim_steal" not in kernel_features("6.12.116")
    assert "claim_steal" in kernel_features("6.12.117")
    assert "claim_steal" not in kernel_features("6.13.7")
    assert "claim_steal" in kernel_features("6.15")
    assert "defrag_mode" not in kernel_features("6.12.117")
    assert kernel_features("6.17") - kernel_features("6.16") == {"isolate_bit", "page_block_max_order"}
    assert kernel_features("7.3") == set(FEATURES)


def test_features__overrides():
    preset = kernel_features("6.12.117")
    assert Geometry(features={"claim_steal": False}).features == preset - {"claim_steal"}
    assert Geometry(features={"isolate_bit": True}).features == preset | {"isolate_bit"}
    assert Geometry(features=("isolate_bit",)).features == {"isolate_bit"}
    assert Geometry(features=()).features == set()
    assert Geometry(features=()).cma_min_alignment_bytes == 4 * MIB
    changed = Geometry(features={"thp_pageblock": False}, hugetlb=False)
    assert changed.pageblock_order == 10
    assert Geometry(**changed.as_dict()) == changed


def test_zone_limits__by_arch():
    assert zone_limits(Geometry()) == (
        ("DMA", 0, 16 * MIB),
        ("DMA32", 16 * MIB, 4 * GIB),
        ("Normal", 4 * GIB, 1 << 52),
    )
    arm64 = Geometry(page_size="16KiB")
    assert [zone[:2] for zone in zone_limits(arm64)] == [("DMA", 0), ("Normal", 4 * GIB)]
    assert (arm64.ram_start_bytes, Geometry().ram_start_bytes) == (GIB, 0)
    assert [zone.name for zone in zone_limits(Geometry(arch="powerpc"))] == ["Normal"]
    highmem = Geometry(arch="generic", highmem=True)
    assert zone_limits(highmem)[1] == ("HighMem", 896 * MIB, 1 << 52)


@pytest.mark.parametrize(
    ("text", "kernel", "expected", "note"),
    [
        ("CONFIG_ARM64_16K_PAGES=y", None, ("arm64", 11, 11), "no kernel version given: 6.12.117 taken"),
        ("CONFIG_ARM64_64K_PAGES=y", "7.3", ("arm64", 13, 13), ""),
        ("CONFIG_ARM64_16K_PAGES=y\nCONFIG_PAGE_BLOCK_MAX_ORDER=7\n", None, ("arm64", 11, 7), "6.17 taken"),
        ("CONFIG_ARM64_16K_PAGES=y\nCONFIG_PAGE_BLOCK_ORDER=7\n", None, ("arm64", 11, 7), "6.16 taken"),
        ("CONFIG_ARM64_16K_PAGES=y\nCONFIG_ARCH_FORCE_PAGE_BLOCK_ORDER=7\n", "6.12.117", ("arm64", 11, 7), "no such"),
        ("CONFIG_ARM64_16K_PAGES=y\nCONFIG_ARCH_FORCE_MAX_ORDER=12\n", "6.1.192", ("arm64", 11, 11), ""),
        ("CONFIG_ARM64_16K_PAGES=y\nCONFIG_ARCH_FORCE_MAX_ORDER=12\n", "6.12.117", ("arm64", 12, 11), "upstream arm64"),
        ("CONFIG_ARM64_16K_PAGES=y\nCONFIG_ARCH_FORCE_MAX_ORDER=12\n", None, ("arm64", 12, 11), "order is 11"),
        ("CONFIG_ARM64_4K_PAGES=y\nCONFIG_FORCE_MAX_ZONEORDER=11\n", "5.19", ("arm64", 10, 9), ""),
        ("CONFIG_ARM64_4K_PAGES=y\nCONFIG_ARM64_16K_PAGES=y\n", "7.3", ("arm64", 10, 9), "4 KiB and 16 KiB are both"),
        ("CONFIG_PPC64=y\n", "7.3", ("powerpc64", 8, 5), "page size not given: 64 KiB taken"),
        ("CONFIG_PPC_4K_PAGES=y\nCONFIG_PPC64=y\n", "7.3", ("powerpc64", 12, 9), ""),
        ("# CONFIG_TRANSPARENT_HUGEPAGE is not set\n# CONFIG_HUGETLBFS is not set\n", "7.3", ("x86_64", 10, 10), ""),
        ("# CONFIG_TRANSPARENT_HUGEPAGE is not set\n", "7.3", ("x86_64", 10, 9), "off, it would be 10, 4 MiB"),
        ("> CONFIG_HIGHMEM=y\n> CONFIG_ARCH_FORCE_MAX_ORDER=11\n", "6.3", ("generic", 10, 9), "32-bit"),
        ("> CONFIG_HIGHMEM=y\n> CONFIG_ARCH_FORCE_MAX_ORDER=11\n", None, ("generic", 11, 9), "order is 10"),
        ("# Linux/riscv 6.18.1 Kernel Configuration\nCONFIG_64BIT=y\n", None, ("generic", 10, 9), "riscv kernel"),
        ("# Linux/x86 6.12.117 Kernel Configuration\nCONFIG_64BIT=y\n", "6.1", ("x86_64", 10, 9), "is of 6.12.117"),
        ("CONFIG_PAGE_SIZE_16KB=y\nCONFIG_LOONGARCH=y\n", "7.3", ("generic", 11, 11), "other kernel"),
        ("# Linux/arm 6.1.9 Kernel Configuration\nCONFIG_MMU=y\n", None, ("generic", 10, 9), "32-bit"),
        ("CONFIG_PAGE_SHIFT=14\n", "7.3", ("arm64", 11, 11), "architecture not given"),
    ],
)
def test_from_kconfig__fragments(text, kernel, expected, note):
    geo = Geometry.from_kconfig(text, kernel=kernel)
    assert (geo.arch, geo.max_page_order, geo.pageblock_order) == expected
    assert note in " | ".join(geo.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CONFIG_X86_64=y\nCONFIG_ARM64=y\n", "<text>: names 2 architectures: arm64, x86_64"),
        ("CONFIG_S390=y\n", "s390 page tables are not modelled"),
        ("CONFIG_X86_32=y\n", "without PAE is not modelled"),
        ("CONFIG_PAGE_BLOCK_MAX_ORDER=12\n", "<text>: pageblock order limit 12 > MAX_PAGE_ORDER 10"),
        ("CONFIG_PAGE_SHIFT=99\n", "power of two"),
        ("CONFIG_ARM64_64K_PAGES=y\nCONFIG_ARCH_FORCE_MAX_ORDER=14\n", "allows 1 to 13 .*older kernel.* order is 13"),
        ("CONFIG_ARCH_FORCE_MAX_ORDER=y\n", "<text>:1: CONFIG_ARCH_FORCE_MAX_ORDER=y is not a number"),
        ("# Linux/x86 next Kernel Configuration\nCONFIG_64BIT=y\n", "kernel 'next' has no version"),
    ],
)
def test_from_kconfig__refused(text, message):
    with pytest.raises(InputError, match=message) as caught:
        Geometry.from_kconfig(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "preempt"),
    [
        ("# CONFIG_PREEMPT is not set\nCONFIG_PREEMPT_VOLUNTARY=y\n", "voluntary"),
        ("# CONFIG_PREEMPT is not set\nCONFIG_PREEMPT_LAZY=y\n", "lazy"),
        ("CONFIG_PREEMPT_NONE=y\n", "none"),
        ("CONFIG_PREEMPT=y\nCONFIG_PREEMPT_DYNAMIC=y\n", "full"),
        ("CONFIG_PREEMPT_LAZY=y\nCONFIG_PREEMPT_RT=y\n", "full"),
        ("CONFIG_CMA=y\n", "full"),
    ],
)
def test_from_kconfig__preempt(lines, preempt):
    assert Geometry.from_kconfig(lines, kernel="7.3").preempt == preempt


def test_from_kconfig__migratetypes():
    assert Geometry.from_kconfig("CONFIG_CMA=y\n").n_migratetypes == 6
    assert Geometry.from_kconfig("# CONFIG_CMA is not set\nCONFIG_MEMORY_ISOLATION=y\n").n_migratetypes == 5
    assert Geometry.from_kconfig("# CONFIG_CMA is not set\n").n_migratetypes == 4


def recordings(pattern):
    root = os.environ.get("MEMMODEL_RECORDS")
    return sorted(Path(root).glob(pattern)) if root else []


needs_records = pytest.mark.skipif("MEMMODEL_RECORDS" not in os.environ, reason="MEMMODEL_RECORDS names no recordings")


@needs_records
def test_from_kconfig__recorded_kernels():
    configs = recordings("**/config.gz")
    assert configs
    for config in configs:
        geo = Geometry.from_kconfig(config)
        assert geo.notes == ()
        dump, *_ = (*config.parent.glob("gt_snap.txt.xz"), None)
        if dump is None:
            continue
        with lzma.open(dump, "rt") as file:
            head = next(line for line in file if line.startswith("S "))
        said = dict(word.split("=") for word in head.split() if "=" in word)
        assert int(said["pageblock_order"]) == geo.pageblock_order
        assert int(said["max_order"]) == geo.max_page_order
        assert int(said["page_shift"]) == geo.page_shift
        assert int(said["migrate_types"]) == geo.n_migratetypes


@needs_records
def test_geometry__recorded_pagetypeinfo():
    found = recordings("**/snap/*/pagetypeinfo")
    assert found
    for path in found:
        order = int(path.read_text().split("Page block order:")[1].split()[0])
        recording = path.parents[2]
        config = recording / "config.gz"
        if config.exists():
            geo = Geometry.from_kconfig(config)
        else:  # Debian's own kernels: THP and HugeTLB on
            kernel = (recording / "version").read_text().split()[2] if (recording / "version").exists() else "6.12.117"
            geo = Geometry(page_size="16KiB" if kernel.endswith("16k") else "4KiB", kernel=kernel)
        assert geo.pageblock_order == order, path


CASES = Path(__file__).parent / "data" / "cases"


def test_from_kconfig__excerpt_without_hugetlb():
    path = CASES / "config-x86-cma-nothp-01.config"
    builds = Geometry.all_from_kconfig(path)
    assert [geo.pageblock_order for geo in builds] == [9, 10]
    assert [geo.cma_min_alignment_bytes >> 20 for geo in builds] == [2, 4]
    assert builds[0] == Geometry.from_kconfig(path)
    (note,) = [note for note in builds[0].notes if "not shown" in note]
    assert note.startswith("hugetlb not shown, taken as on: pageblock_order 9")
    (told,) = Geometry.all_from_kconfig(path, hugetlb=False)
    assert (told.pageblock_order, told.max_page_order) == (10, 10)
    config = read_kconfig(path)
    assert config.is_on("MEMORY_FAILURE") is False
    assert config.is_on("HUGETLB_PAGE", "HUGETLBFS") is None
    assert config.integer("CMA_AREAS") == 8


def test_from_kconfig__quoted_order_of_an_unknown_version():
    path = CASES / "config-arm32-xen-quoted-01.config"
    for kernel, order, largest_mib in (("6.3.13", 10, 4), ("6.4", 11, 8), ("7.3", 11, 8)):
        geo = Geometry.from_kconfig(path, kernel=kernel)
        assert (geo.max_page_order, geo.page_size_bytes << geo.max_page_order) == (order, largest_mib << 20)
        assert geo.highmem
    builds = Geometry.all_from_kconfig(path)
    assert {geo.max_page_order for geo in builds} == {10, 11}
    assert any("in an older kernel the largest order is 10" in note for note in builds[0].notes)
    assert {geo.max_page_order for geo in Geometry.all_from_kconfig(path, kernel="6.6")} == {11}


def test_all_from_kconfig__nothing_open():
    text = "CONFIG_ARM64_16K_PAGES=y\nCONFIG_TRANSPARENT_HUGEPAGE=y\nCONFIG_HUGETLB_PAGE=y\n"
    (geo,) = Geometry.all_from_kconfig(text)
    assert geo.cma_min_alignment_bytes == 32 << 20
    builds = Geometry.all_from_kconfig("CONFIG_X86_64=y\n")  # with and without huge pages; before 5.19
    assert [(geo.pageblock_order, geo.cma_min_alignment_bytes >> 20) for geo in builds] == [(9, 2), (10, 4), (9, 4)]
