"""CMA areas: where each lies, and the bitmap of what is allocated of it."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["area_dtype", "taken_bits"]

area_dtype = np.dtype(
    [
        ("row", "u8"),  # first row in `pages`
        ("n_pages", "u8"),
        ("available", "u8"),  # available_count: pages that no allocation holds, whoever else uses them
        ("first_word", "u8"),  # of its bitmap in `area_bits`
        ("order_per_bit", "u4"),
        ("zone", "u4"),
    ]
)


def taken_bits(area: Any, area_bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """The bitmap of one area: True where allocated, a bit for ``2**order_per_bit`` pages."""
    n_bits, first = int(area["n_pages"]) >> int(area["order_per_bit"]), int(area["first_word"])
    words = area_bits[first : first + -(-n_bits // 64)]
    return np.unpackbits(words.view(np.uint8), count=n_bits, bitorder="little").view(np.bool_)
