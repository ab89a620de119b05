"""Sizes as people write them."""

import pytest

from memmodel.errors import InputError
from memmodel.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("4096", 4096), ("1.5GiB", 3 << 29), ("10GB", 10**10), ("0.1MB", 10**5), ("9007199254740993", 2**53 + 1)],
)
def test_parse_bytes__to_the_byte(text, n_bytes):
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["9" * 5000, "0.3KiB", "0", "-1", "1e3", "1PiB", "", "4 KiB, 16 KiB"])
def test_parse_bytes__refused(text):
    with pytest.raises(InputError, match="size"):
        parse_bytes(text)


def test_format_bytes__largest_unit_that_divides():
    assert [format_bytes(n) for n in (0, 4095, 4096, 3 << 29, 1 << 40)] == [
        "0 B",
        "4095 B",
        "4 KiB",
        "1536 MiB",
        "1 TiB",
    ]
