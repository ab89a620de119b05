import math
import os
from pathlib import Path

import pytest

from memmodel.sources.indices import extfrag_for_order, fragmentation_index, unusable_index
from memmodel.sources.snapshot import read_snapshot

RECORDS = os.environ.get("MEMMODEL_RECORDS")
REAL = [16978, 4314, 751, 704, 9, 144, 174, 24, 5, 21, 94]  # Linux 6.18, x86-64


def printed(values):
    """As the kernel prints thousandths: both parts divided towards zero."""
    return [f"{int(value / 1000)}.{int(math.fmod(value, 1000)):03d}" for value in values.tolist()]


def test_unusable_index__as_a_kernel_printed_it():
    assert unusable_index(REAL).tolist() == [0, 105, 158, 177, 212, 212, 241, 310, 329, 337, 403]


def test_unusable_index__nothing_free():
    assert unusable_index([0] * 11).tolist() == [1000] * 11


def test_fragmentation_index__as_a_kernel_printed_it():
    # 6.12.117, 256 MiB, after THP faults in fragmented memory
    fragmented = printed(fragmentation_index([5932, 108, 100, 107, 6, 4, 1, 0, 0, 0, 0]))
    assert fragmented == ["-1.000"] * 7 + ["0.991", "0.996", "0.998", "0.999"]
    assert fragmentation_index(REAL).tolist() == [-1000] * 11


def test_fragmentation_index__one_free_page_and_none():
    assert fragmentation_index([1] + [0] * 10)[:3].tolist() == [-1000, -500, -250]
    assert fragmentation_index([0] * 11).tolist() == [0] * 11


def test_extfrag_for_order__percent_below_the_order():
    assert extfrag_for_order([2, 1, 0, 1]).tolist() == [0, 16, 33, 33]
    assert extfrag_for_order([0] * 4).tolist() == [0] * 4


@pytest.mark.skipif(not RECORDS, reason="MEMMODEL_RECORDS is not set")
def test_indices__all_recordings():
    compared = 0
    for folder in sorted(Path(RECORDS).glob("**/snap/*")):
        if not (folder / "unusable_index").exists():
            continue
        snapshot = read_snapshot(folder / "buddyinfo", folder / "pagetypeinfo", folder / "zoneinfo", folder / "vmstat")
        if snapshot.differences:
            continue  # read while blocks were being freed
        for name, index in (("unusable_index", unusable_index), ("extfrag_index", fragmentation_index)):
            for row in (folder / name).read_text().splitlines():
                words = row.split()
                zone = snapshot.zones[int(words[1].rstrip(",")), words[3]]
                assert printed(index(zone.nr_free)) == words[4:], (folder, name)
                compared += 1
    assert compared > 1400
