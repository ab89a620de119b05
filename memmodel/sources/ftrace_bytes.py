"""What the scanner of ftrace text reads from bytes: numbers, words, and strings by their number in a table."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined, kernel

__all__ = ["BLANK", "BRACKET", "COLON", "DASH", "DOT", "END_BRACKET", "HASH", "NEWLINE", "ZERO", "Texts"]
__all__ += ["before_blanks", "decimal", "hexadecimal", "number_of", "skip_blanks", "skip_word"]

TAB, NEWLINE, RETURN, BLANK = 9, 10, 13, 32
HASH, DASH, DOT, ZERO, COLON, BRACKET, END_BRACKET = 35, 45, 46, 48, 58, 91, 93
FREE_SLOT = 0


class Texts(NamedTuple):
    """A table of different strings: string i is text[start[i]:start[i + 1]]; a slot has its number plus one."""

    slots: npt.NDArray[np.int32]  # a power of two of them
    start: npt.NDArray[np.int64]
    text: npt.NDArray[np.uint8]
    n_unknown: npt.NDArray[np.int64]  # by string: how many events have this name, which is none of the known


@inlined
def decimal(data: Any, at: int, end: int) -> tuple[int, int]:
    """The digits from `at` on: where they end, and their number. More than 18 are not all taken."""
    value = 0
    end = min(end, at + 18)
    while at < end and 48 <= data[at] <= 57:
        value = value * 10 + (int(data[at]) - 48)
        at += 1
    return at, value


@inlined
def hexadecimal(data: Any, at: int, end: int) -> tuple[int, int]:
    """The hex digits from `at` on, at most 16, as a 64-bit word with sign."""
    stop = at
    while stop < end and (48 <= data[stop] <= 57 or 97 <= data[stop] <= 102):
        stop += 1
    if stop - at > 16:
        return at, 0
    value = 0
    for i in range(at, stop):
        byte = int(data[i])
        digit = byte - 48 if byte <= 57 else byte - 87
        if stop - i == 16 and digit > 7:
            digit -= 16
        value = value * 16 + digit
    return stop, value


@inlined
def skip_blanks(data: Any, at: int, end: int) -> int:
    """The first position from `at` on that is no blank."""
    while at < end and data[at] == BLANK:
        at += 1
    return at


@inlined
def skip_word(data: Any, at: int, end: int) -> int:
    """The first position from `at` on that is a blank."""
    while at < end and data[at] != BLANK:
        at += 1
    return at


@inlined
def before_blanks(data: Any, at: int, end: int) -> int:
    """`end` without the blanks (tabs, carriage returns) before it."""
    while end > at and (data[end - 1] == BLANK or data[end - 1] == TAB or data[end - 1] == RETURN):
        end -= 1
    return end


@kernel  # inlined in four places it is no faster, and takes a second more to compile
def number_of(texts: Texts, state: Any, data: Any, at: int, end: int) -> int:
    """The number of the string data[at:end]; a new one if it was not in the table."""
    slots, start, text = texts.slots, texts.start, texts.text
    length, key = end - at, 0
    for i in range(at, end):
        key = (key * 1000003 + int(data[i])) & 0x3FFFFFFF
    mask = slots.size - 1
    slot = (key ^ (key >> 15)) & mask
    while slots[slot] != FREE_SLOT:
        found = int(slots[slot]) - 1
        first = int(start[found])
        if int(start[found + 1]) - first == length:
            same = 0
            while same < length and text[first + same] == data[at + same]:
                same += 1
            if same == length:
                return found
        slot = (slot + 1) & mask
    new = int(state[0].n_texts)
    first = int(start[new])
    for i in range(length):
        text[first + i] = data[at + i]
    start[new + 1] = first + length
    slots[slot] = new + 1
    state[0].n_texts = new + 1
    return new
