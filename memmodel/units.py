"""Byte sizes as people write them: "16KiB", "4 GiB", "512M" (a bare K, M, G is the kernel's: 1024)."""

import re
from fractions import Fraction
from numbers import Integral

from memmodel.errors import InputError

__all__ = ["format_bytes", "parse_bytes"]

_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([kmgtKMGT]?)(i?[bB])?\s*")
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(value: int | str, what: str = "size") -> int:
    """Number of bytes in `value`: an int, or text such as ``"16KiB"``, ``"64M"`` (memparse), ``"10GB"`` (decimal).

    Raises
    ------
    InputError
        If the text is not a size or not a whole, positive number of bytes.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            raise InputError(f"{what} {value!r} is not a number of bytes; write it as 4096, 16KiB, 4GiB, 512M")
        number, prefix, suffix = match.groups()
        base = 1000 if prefix and suffix in ("B", "b") else 1024
        size = Fraction(number) * base ** _POWER[prefix.lower()]
        if size.denominator != 1:
            raise InputError(f"{what} {value!r} is not a whole number of bytes")
        value = int(size)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{what} {value!r} is not a whole number of bytes")
    if value <= 0:
        raise InputError(f"{what} {value} is not positive")
    return int(value)


def format_bytes(n_bytes: int) -> str:
    """`n_bytes` in the largest binary unit that divides it: 33554432 is ``"32 MiB"``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if n_bytes and n_bytes % 1024**power == 0:
            return f"{n_bytes >> (10 * power)} {unit}"
    return f"{n_bytes} B"
