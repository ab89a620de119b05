"""The slow obvious twin of memmodel.kernels.copying: every call of a copy primitive is played through.

An engine copies [start, start + n_bytes) of the source to the same place of the destination, and returns the bytes
that it did not copy, as the architecture's routine does. `bad` holds the poisoned 64-byte lines, counted from the
folio's first byte.
"""

from dataclasses import dataclass

LINE = 64


class PanicError(Exception):
    """A machine check where the kernel has nothing to fall back on."""


def fragile(dst, src, start, n_bytes, bad):
    """x86 copy_mc_fragile: word by word; the word whose load faults and everything behind it remain."""
    words_left = n_bytes // 8
    at = start
    while words_left > 0:
        if at // LINE in bad:
            return 8 * words_left
        dst[at : at + 8] = src[at : at + 8]
        at += 8
        words_left -= 1
    return 0


def powerpc(dst, src, start, n_bytes, bad):
    """copy_mc_generic: blocks of 128 bytes, loaded before they are stored; after a fault byte by byte to the fault."""
    at, end = start, start + n_bytes
    while at < end:
        if at // LINE in bad or (at + LINE) // LINE in bad:
            while at // LINE not in bad:
                dst[at] = src[at]
                at += 1
            return end - at
        dst[at : at + 128] = src[at : at + 128]
        at += 128
    return 0


def fast_string(granule, lag):
    """x86 rep movsb: bytes left are what the CPU reports, in steps of a granule and late by a lag."""

    def engine(dst, src, start, n_bytes, bad):
        at = start
        while at < start + n_bytes and at // LINE not in bad:
            at += LINE
        if at >= start + n_bytes:
            copied = n_bytes
        else:
            copied = at - start
            copied = max(0, copied - copied % granule - lag)
        dst[start : start + copied] = src[start : start + copied]
        return n_bytes - copied

    return engine


def unprotected(dst, src, start, n_bytes, bad):
    """memcpy or copy_page: nothing catches the machine check."""
    for at in range(start, start + n_bytes, LINE):
        if at // LINE in bad:
            raise PanicError
        dst[at : at + LINE] = src[at : at + LINE]
    return 0


@dataclass
class Outcome:
    """What became of one folio; `pages` counts from its first."""

    status: int = 0
    queued_page: int | None = None
    n_copied: int = 0
    n_calls: int = 0
    n_resched: int = 0
    stretches: tuple = ()

    def longest_stretch(self, preemptible):
        return 0 if preemptible else max(self.stretches)


class Copier:
    """folio_mc_copy() of one kernel on one machine.

    `unit_pages`: None for the whole folio. `one_call`: whether a unit is a single call of the primitive; else the
    kernel was built without that and goes page by page inside the unit.
    """

    def __init__(self, engine, page_size, unit_pages, one_call):
        self.engine = engine
        self.page_size = page_size
        self.unit_pages = unit_pages
        self.one_call = one_call

    def copy(self, dst, src, n_pages, bad):
        """Copy a folio from `src` into `dst` (bytearray)."""
        out = Outcome()
        unit = self.unit_pages or n_pages
        self.since_resched = 0
        stretches = []
        page = 0
        try:
            while True:
                pages = min(unit, n_pages - page)
                if not self.copy_unit(dst, src, page, pages, bad, out):
                    out.status = -133
                    break
                page += pages
                if page == n_pages:
                    break
                out.n_resched += 1
                stretches.append(self.since_resched)
                self.since_resched = 0
        except PanicError:
            out.status = 1
        out.stretches = (*stretches, self.since_resched)
        out.n_copied = sum(out.stretches)
        return out

    def copy_unit(self, dst, src, page, pages, bad, out):
        calls = [(page, pages)] if self.one_call else [(page + i, 1) for i in range(pages)]
        for first, n in calls:
            out.n_calls += 1
            n_bytes = n * self.page_size
            try:
                remaining = self.engine(dst, src, first * self.page_size, n_bytes, bad)
            except PanicError:
                self.since_resched += min(bad) * LINE - first * self.page_size
                raise
            self.since_resched += n_bytes - remaining
            if remaining:
                out.queued_page = first + (n_bytes - remaining) // self.page_size
                return False
        return True
