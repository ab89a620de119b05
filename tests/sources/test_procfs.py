from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.sources.procfs import (
    format_buddyinfo,
    parse_buddyinfo,
    parse_kpageflags,
    parse_meminfo,
    parse_version,
    parse_vmstat,
)

DATA = Path(__file__).parents[1] / "data"
ROW = "Node 0, zone   Normal      1      1      0    427    541    200     59     28     15     17    247 \n"


def test_parse_buddyinfo__two_nodes():
    zones = parse_buddyinfo((DATA / "snap_73_two_nodes" / "buddyinfo").read_text(), "buddyinfo")
    assert list(zones) == [(0, "DMA"), (0, "DMA32"), (1, "DMA32")]
    assert zones[1, "DMA32"].tolist() == [3, 0, 6, 1, 2, 2, 1, 1, 1, 4, 55]


def test_parse_buddyinfo__order_count_of_16_kib_pages():
    zones = parse_buddyinfo((DATA / "snap_73_arm64_16k" / "buddyinfo").read_text(), "buddyinfo")
    assert zones[0, "DMA"].size == 12


@pytest.mark.parametrize("folder", ["snap_612_x86", "snap_73_arm64_16k", "snap_73_two_nodes"])
def test_format_buddyinfo__gives_the_kernels_bytes(folder):
    text = (DATA / folder / "buddyinfo").read_text()
    assert format_buddyinfo(parse_buddyinfo(text, "buddyinfo")) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "buddyinfo: no zone in it"),
        (ROW + ROW, "buddyinfo:2: found 'Node 0, zone Normal'; a zone comes once"),
        (
            ROW + "Node 1, zone   Normal      1      1 \n",
            "buddyinfo:2: found '2 counts'; the rows above have 11 orders",
        ),
        ("Node 0, zone   Normal      1      1 \n", "buddyinfo:1: found '2 counts'; kernels have 8 to 16 orders"),
        (ROW + "Node 1, zone\n", "buddyinfo:2: found 'Node 1, zone'"),
        (ROW.replace("427", "-27"), "buddyinfo:1: found 'Node 0, zone   Normal"),
        (ROW.replace("427", "4e7"), "buddyinfo:1: "),
        (ROW.replace("427", "٤٢٧"), "buddyinfo:1: "),
        (ROW.replace("427", "9" * 5000), "buddyinfo:1: "),
        ("> " + ROW, "buddyinfo:1: "),
    ],
)
def test_parse_buddyinfo__malformed(text, message):
    with pytest.raises(InputError) as error:
        parse_buddyinfo(text, "buddyinfo")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 99), st.sampled_from(["DMA", "DMA32", "Normal", "HighMem", "Movable", "Device"])),
        st.lists(st.integers(0, 10**9), min_size=11, max_size=11),
        min_size=1,
    )
)
def test_format_buddyinfo__round_trip(zones):
    back = parse_buddyinfo(format_buddyinfo({key: np.array(row) for key, row in zones.items()}), "buddyinfo")
    assert {key: row.tolist() for key, row in back.items()} == zones


def test_parse_vmstat__values_and_malformed():
    vmstat = parse_vmstat((DATA / "snap_612_x86" / "vmstat").read_text(), "vmstat")
    assert vmstat["nr_free_pages"] == 14558
    assert parse_vmstat(f"wrapped {2**64 - 1}\n", "vmstat") == {"wrapped": 2**64 - 1}
    for text, message in {
        "": "vmstat: no value in it",
        "nr_free_pages 1\nnr_free_pages 2\n": "vmstat:2: found 'nr_free_pages'; a name comes once",
        "nr_free_pages 1\nnr_zone_ina": "vmstat:2: found 'nr_zone_ina'; every line has a name and a number",
    }.items():
        with pytest.raises(InputError) as error:
            parse_vmstat(text, "vmstat")
        assert str(error.value).startswith(message)


def test_parse_meminfo__bytes_and_counts():
    meminfo = parse_meminfo((DATA / "snap_612_x86" / "meminfo").read_text(), "meminfo")
    assert meminfo["MemTotal"] == 243636 * 1024
    assert meminfo["HugePages_Total"] == 0
    assert parse_meminfo("Active(anon):       8 kB\nHugePages_Free: 3\n", "m") == {
        "Active(anon)": 8192,
        "HugePages_Free": 3,
    }
    with pytest.raises(InputError, match=r"^meminfo:1: found 'MemTotal: 5 MB'"):
        parse_meminfo("MemTotal: 5 MB\n", "meminfo")


def test_parse_kpageflags__words_and_cut_files():
    assert parse_kpageflags(bytes([0, 4, 0, 0, 1, 0, 0, 0]), "kpageflags").tolist() == [1 << 10 | 1 << 32]
    for data in (b"", b"1234567", b"123456789"):
        with pytest.raises(InputError, match=f"^kpageflags: {len(data)} bytes; kpageflags has 8 bytes a page"):
            parse_kpageflags(data, "kpageflags")


def test_parse_version__release_that_debian_made_it_of():
    built = "(root@vm) (gcc 12.2.0) #3 SMP PREEMPT Mon Nov 30 09:17:40 UTC 2026"
    assert parse_version(f"Linux version 7.3.4-gt-pb7 {built}\n", "version") == "7.3.4-gt-pb7"
    debian = "(debian-kernel@lists.debian.org) (gcc 12.2.0) #1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3 (2026-11-26)"
    assert parse_version(f"Linux version 6.1.0-57-amd64 {debian}\n", "version") == "6.1.192"
    with pytest.raises(InputError, match=r"^version:1: found 'Darwin'; version has "):
        parse_version("Darwin\n", "version")
    with pytest.raises(InputError, match=r"^version: no line in it"):
        parse_version("\n", "version")
