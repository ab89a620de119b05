"""Kernel configurations as files, texts and junk."""

import gzip
import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.sources.kconfig import geometry_options, read_kconfig

CONFIG = """\
#
# Automatically generated file; DO NOT EDIT.
# Linux/arm64 7.3.4-android17 Kernel Configuration
#
CONFIG_CC_VERSION_TEXT="a compiler \\"19\\" # not a comment"
CONFIG_ARM64=y

# Memory
CONFIG_ARM64_16K_PAGES=y
CONFIG_PAGE_SHIFT=14
# CONFIG_HUGETLBFS is not set
CONFIG_ZRAM=m
CONFIG_PHYSICAL_START=0x1000000
CONFIG_PANIC_TIMEOUT=-1
CONFIG_LOCALVERSION=""
"""


def test_read_kconfig__values(tmp_path):
    path = tmp_path / ".config"
    path.write_text(CONFIG)
    config = read_kconfig(path)
    assert dict(config.symbols) == {
        "CC_VERSION_TEXT": 'a compiler "19" # not a comment',
        "ARM64": "y",
        "ARM64_16K_PAGES": "y",
        "PAGE_SHIFT": 14,
        "HUGETLBFS": "n",
        "ZRAM": "m",
        "PHYSICAL_START": 0x1000000,
        "PANIC_TIMEOUT": -1,
        "LOCALVERSION": "",
    }
    assert (config.path, config.arch, config.kernel) == (str(path), "arm64", "7.3.4-android17")
    assert config.lines["PAGE_SHIFT"] == 10
    assert config.notes == ()
    with pytest.raises(TypeError):
        config.symbols["ARM64"] = "n"


@pytest.mark.parametrize("name", ["config.gz", "config", "config.txt"])
def test_read_kconfig__compression_is_told_by_content(tmp_path, name):
    for packed in (gzip.compress(CONFIG.encode()), lzma.compress(CONFIG.encode()), CONFIG.encode()):
        path = tmp_path / name
        path.write_bytes(packed)
        assert read_kconfig(str(path)).symbols == read_kconfig(CONFIG).symbols


def test_read_kconfig__text():
    assert read_kconfig("CONFIG_ARM64_16K_PAGES=y").path == "<text>"
    assert read_kconfig("# CONFIG_CMA is not set").symbols == {"CMA": "n"}
    assert read_kconfig("> CONFIG_HIGHMEM=y\r\n>> # CONFIG_HIGHPTE is not set\n").symbols == {
        "HIGHMEM": "y",
        "HIGHPTE": "n",
    }


def test_read_kconfig__last_value_holds():
    config = read_kconfig("CONFIG_CMA=y\nCONFIG_ZRAM=m\nCONFIG_ZRAM=m\n# CONFIG_CMA is not set\n")
    assert config.symbols["CMA"] == "n"
    assert config.notes == ("<text>:4: CONFIG_CMA is set again, y to n; the last one holds",)


def test_kconfig__missing_symbols():
    excerpt = read_kconfig(CONFIG)
    assert excerpt.is_on("CMA") is None
    assert excerpt.is_on("HUGETLB_PAGE", "HUGETLBFS") is False
    assert excerpt.is_on("ZRAM") is True
    full = read_kconfig(CONFIG + "".join(f"CONFIG_DRIVER_{n}=m\n" for n in range(100)))
    assert full.is_full
    assert full.is_on("CMA") is False
    assert full.integer("CMA_AREAS") is None
    assert full.integer("PAGE_SHIFT") == 14
    with pytest.raises(InputError, match="<text>:6: CONFIG_ARM64=y is not a number"):
        full.integer("ARM64")


@pytest.mark.parametrize(
    "line",
    [
        "CONFIG_A",
        "CONFIG_A=",
        "CONFIG_A=yes",
        "CONFIG_A = y",
        'CONFIG_A="open',
        'CONFIG_A="a" b',
        "CONFIG_A=0xZZ",
        "config A",
        "A=y",
        "CONFIG_A=1.5",
        "diff --git a/x b/x",
    ],
)
def test_read_kconfig__malformed_line(tmp_path, line):
    path = tmp_path / "broken.config"
    path.write_text(f"CONFIG_X86=y\n\n{line}\n")
    with pytest.raises(InputError) as caught:
        read_kconfig(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: found {line!r}; allowed are CONFIG_NAME=y")
    assert "\n" not in message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n# nothing\n",
        b"\x7fELF\x02\x01\x01\x00\x00",
        b"CONFIG_A=y\nCONFIG_B=\xff\xfe\n",
        CONFIG.encode("utf-16"),
        gzip.compress(CONFIG.encode(), mtime=0)[:-20],
        b"\x1f\x8b\x08\x00junk that is not deflate",
        gzip.compress(b"", mtime=0),
        gzip.compress(b"\x00" * 100, mtime=0),
    ],
)
def test_read_kconfig__not_a_configuration(tmp_path, data):
    path = tmp_path / "config.gz"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_kconfig(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_read_kconfig__unreadable(tmp_path):
    for path in (tmp_path, tmp_path / "missing", tmp_path / "missing" / "deeper"):
        with pytest.raises(InputError, match=str(path)):
            read_kconfig(path)


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=200) | st.text(alphabet='CONFIG_A=ymn0x"\\# \n>is not set', max_size=80).map(str.encode))
def test_read_kconfig__junk_gives_input_error_only(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "junk.config"
    path.write_bytes(data)
    try:
        found = len(read_kconfig(path).symbols)
    except InputError as error:
        found = str(error).count("\n") == 0
    assert found


def test_geometry_options__excerpt_leaves_open():
    options, notes, not_shown = geometry_options(read_kconfig(CONFIG))
    assert options == {
        "kernel": "7.3.4-android17",
        "arch": "arm64",
        "highmem": False,
        "page_size": 16384,
        "max_page_order": None,
        "page_block_max_order": None,
        "hugetlb_size_variable": False,
        "preempt": "full",
        "hugetlb": False,
    }
    assert notes == []
    assert not_shown == ["transparent_hugepage"]


def test_geometry_options__conflicting_limits():
    text = "CONFIG_PAGE_BLOCK_ORDER=9\nCONFIG_PAGE_BLOCK_MAX_ORDER=7\n"
    options, notes, _ = geometry_options(read_kconfig(text), "7.3")
    assert options["page_block_max_order"] == 7
    assert "CONFIG_PAGE_BLOCK_MAX_ORDER=7, CONFIG_PAGE_BLOCK_ORDER=9: the first one holds" in notes


@pytest.mark.skipif("MEMMODEL_RECORDS" not in os.environ, reason="MEMMODEL_RECORDS names no recordings")
def test_read_kconfig__recorded():
    paths = sorted(Path(os.environ["MEMMODEL_RECORDS"]).glob("**/config.gz"))
    assert paths
    for path in paths:
        config = read_kconfig(path)
        assert config.is_full
        assert config.arch == "x86"
        assert config.kernel in ("6.12.117", "7.3.4")
        assert config.symbols["PAGE_SHIFT"] == 12
        assert config.notes == ()
