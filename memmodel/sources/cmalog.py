"""CMA in kernel logs: areas made or refused at boot, allocations that failed, ranges that stayed busy.

Records are found wherever they stand: behind any prefix, several on a line, quoted, wrapped at blanks. What they mean
is in `memmodel.mechanisms.cma_verdicts`.
"""

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

from memmodel.errors import InputError
from memmodel.sources.quoting import unquote
from memmodel.sources.reading import PathLike, read_text
from memmodel.sources.spans import Span

__all__ = [
    "BOOT_KINDS",
    "PAGE_SIZES",
    "BusyRange",
    "CmaBitmap",
    "CmaBoot",
    "CmaFailure",
    "CmaLog",
    "parse_cma_log",
    "read_cma_log",
]

_N = r"\d{1,18}(?!\d)"  # more digits are no number of the kernel's
_HEX = r"[0-9a-f]{1,16}(?![0-9a-f])"
_FAILURE = re.compile(
    rf"cma_alloc\w*:\s+(?:(?P<area>\S+):\s+)?alloc\s+failed,\s+req-size:\s+(?P<pages>{_N})\s+pages,"
    rf"\s+ret:\s+(?P<errno>-?{_N})"
)
_BITMAP = re.compile(r"number\s+of\s+available\s+pages:")
_BITMAP_END = re.compile(rf"=>\s*(?P<free>{_N})\s+free\s+of\s+(?P<total>{_N})\s+total\s+pages")
_RUN = re.compile(rf"(?<![\w.])({_N})\s*@\s*({_N})")
_BUSY = re.compile(rf"alloc_contig_\w*range\w*:\s+\[(?P<start>{_HEX}),\s+(?P<end>{_HEX})\)\s+PFNs\s+busy")
_TIME = re.compile(r"\[ *(\d{1,18}\.\d{6})\]")
BOOT_KINDS = {
    "reserved": rf"cma:\s+Reserved\s+(?P<mib>{_N})\s+MiB\s+at\s+(?P<base>0x{_HEX})",
    "not reserved": rf"cma:\s+Failed\s+to\s+reserve\s+(?P<mib>{_N})\s+MiB",
    "pool": rf"created\s+CMA\s+memory\s+pool\s+at\s+(?P<base>0x{_HEX}),\s+size\s+(?P<mib>{_N})\s+MiB",
    "initialized": r"initialized\s+node\s+(?P<name>\S+),\s+compatible\s+id\s+shared-dma-pool",
    "misaligned": r"incorrect\s+alignment\s+of\s+CMA\s+region",
    "given back": r"node\s+(?P<name>\S+)\s+compatible\s+matching\s+fail",
    "bypassed": r"bypass\s+(?P<name>\S+)\s+node,\s+using\s+cmdline\s+CMA\s+params",
    "not activated": r"CMA\s+area\s+(?P<name>\S+)\s+could\s+not\s+be\s+activated",
    "no room": r"[Ff]ailed\s+to\s+allocate\s+memory\s+for\s+node\s+'(?P<name>[^']+)'",
}
"""What the log says of an area at boot, and the pattern of that line."""
_BOOT = {kind: re.compile(pattern) for kind, pattern in BOOT_KINDS.items()}
_ZONE = re.compile(rf"\b(?P<zone>DMA|DMA32|Normal|HighMem|Movable)\s+zone:\s+(?P<pages>{_N})\s+pages,\s+LIFO")
_SPAN = re.compile(rf"Initmem\s+setup\s+node\s+\d+\s+\[mem\s+0x({_HEX})-0x({_HEX})\]")
_TOTAL = re.compile(rf"On\s+node\s+\d+\s+totalpages:\s+({_N})")
_VERSION = re.compile(r"Linux\s+version\s+(\d{1,3}\.\d{1,4}(?![\w])\S*)")
_BUFFER = re.compile(rf"failed\s+to\s+allocate\s+buffer\s+with\s+size\s+({_N})")
_STARTS = re.compile(r"req-size:|PFNs busy")
PAGE_SIZES = (1 << 12, 1 << 14, 1 << 16)
"""Of the kernels whose logs these are, bytes."""


class CmaBitmap(NamedTuple):
    """What an area had free: ``pages@bit`` of each run."""

    line: int
    runs: tuple[tuple[int, int], ...]
    """(pages, number of the first bit)."""
    free_pages: int
    total_pages: int

    @property
    def largest_run_pages(self) -> int:
        """Pages of the longest run; 0: nothing is free."""
        return max((pages for pages, _ in self.runs), default=0)


@dataclass(frozen=True)
class CmaFailure:
    """A cma_alloc() that failed."""

    line: int
    area: str | None
    """Its name; None: older kernels do not print it."""
    pages: int
    errno: int
    """As printed, negative."""
    bitmap: CmaBitmap | None
    """What was free then, by kernels with CONFIG_CMA_DEBUG."""


class BusyRange(NamedTuple):
    """A range that alloc_contig_range() could not empty."""

    line: int
    start_pfn: int
    end_pfn: int
    time_s: float | None
    """By the stamp in front of it; None without one."""

    @property
    def pages(self) -> int:
        """Its length."""
        return self.end_pfn - self.start_pfn


class CmaBoot(NamedTuple):
    """A line of the boot log about an area."""

    line: int
    kind: str
    """One of `BOOT_KINDS`."""
    name: str | None
    base: int | None
    size_mib: int | None

    @property
    def span(self) -> Span | None:
        """The area, where the line has both numbers."""
        return None if self.base is None or self.size_mib is None else Span(self.base, self.size_mib << 20)


@dataclass(frozen=True)
class CmaLog:
    """What a kernel log says of CMA."""

    path: str
    failures: tuple[CmaFailure, ...]
    bitmaps: tuple[CmaBitmap, ...]
    """All of them, those of `failures` too."""
    busy: tuple[BusyRange, ...]
    boots: tuple[CmaBoot, ...]
    buffers: tuple[tuple[int, int], ...]
    """(line, bytes) of buffers that drivers did not get."""
    zones: tuple[tuple[str, int], ...]
    """Zones and their pages, all nodes together, by the boot log."""
    kernel: str | None
    page_size_bytes: int | None
    """None: the log does not tell."""
    notes: tuple[str, ...]


def read_cma_log(path: PathLike) -> CmaLog:
    """Read the lines of a kernel log that speak of CMA.

    Parameters
    ----------
    path
        A file, plain or compressed: dmesg, journal, or what somebody posted of one.

    Raises
    ------
    InputError
        If the file cannot be read or has no such line.
    """
    text, _ = read_text(path)
    return parse_cma_log(text, os.fspath(path))


def parse_cma_log(text: str, source: str) -> CmaLog:
    """The same from the text itself; `source` names it in messages.

    Raises
    ------
    InputError
        As `read_cma_log`.
    """
    text = unquote(text)
    notes: list[str] = []
    bitmaps = _bitmaps(text, source, notes)
    failures = _failures(text, bitmaps)
    busy = tuple(found for found in (_busy(text, match) for match in _BUSY.finditer(text)) if found.pages > 0)
    made = [(m.start(), _boot(text, kind, m)) for kind, pattern in _BOOT.items() for m in pattern.finditer(text)]
    boots = tuple(boot for _, boot in sorted(made, key=lambda pair: pair[0]))
    if not (failures or bitmaps or busy or boots):
        raise InputError(
            f"{source}:1: found no line of CMA; such are cma_alloc: alloc failed ..., number of available pages: ...,"
            " alloc_contig_range: [...) PFNs busy, cma: Reserved ..."
        )
    version = _VERSION.search(text)
    zones: dict[str, int] = {}
    for match in _ZONE.finditer(text):
        zones[match["zone"]] = zones.get(match["zone"], 0) + int(match["pages"])
    buffers = tuple((_line(text, match), int(match[1])) for match in _BUFFER.finditer(text))
    pages = {failure.pages for failure in failures} | {found.pages for found in busy}
    return CmaLog(
        path=source,
        failures=failures,
        bitmaps=tuple(bitmaps.values()),
        busy=busy,
        boots=boots,
        buffers=buffers,
        zones=tuple(zones.items()),
        kernel=version[1] if version else None,
        page_size_bytes=_page_size(text, pages, buffers),
        notes=(*notes, *_cut(text, source)),
    )


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def _bitmaps(text: str, source: str, notes: list[str]) -> dict[int, CmaBitmap]:
    """By offset. Newer kernels print a line for each range of an area; what else stands between is passed over."""
    found: dict[int, CmaBitmap] = {}
    for match in _BITMAP.finditer(text):
        line, end = _line(text, match), _BITMAP_END.search(text, match.end())
        inside = text[match.end() : end.start()] if end else ""
        if end is None or _BITMAP.search(inside) or _FAILURE.search(inside):
            notes.append(f"{source}:{line}: not read: a bitmap that is cut before its sum")
            continue
        runs = tuple((int(pages), int(bit)) for pages, bit in _RUN.findall(inside))
        found[match.start()] = CmaBitmap(line, runs, int(end["free"]), int(end["total"]))
        total = sum(pages for pages, _ in runs)
        if total != int(end["free"]):
            notes.append(f"{source}:{line}: the runs come to {total} pages, the line says {end['free']}")
    return found


def _busy(text: str, match: re.Match[str]) -> BusyRange:
    head = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
    stamps = _TIME.findall(head)
    time_s = float(stamps[-1]) if stamps else None
    return BusyRange(_line(text, match), int(match["start"], 16), int(match["end"], 16), time_s)


def _failures(text: str, bitmaps: dict[int, CmaBitmap]) -> tuple[CmaFailure, ...]:
    """Each failure with the bitmap that the kernel prints behind it, before the next failure."""
    found = list(_FAILURE.finditer(text))
    failures = []
    for at, match in enumerate(found):
        end = found[at + 1].start() if at + 1 < len(found) else len(text)
        bitmap = next((bitmap for place, bitmap in bitmaps.items() if match.end() <= place < end), None)
        failure = CmaFailure(_line(text, match), match["area"], int(match["pages"]), int(match["errno"]), bitmap)
        failures.append(failure)
    return tuple(failures)


def _boot(text: str, kind: str, match: re.Match[str]) -> CmaBoot:
    got = match.groupdict()
    base, mib = got.get("base"), got.get("mib")
    return CmaBoot(
        line=_line(text, match),
        kind=kind,
        name=got.get("name"),
        base=None if base is None else int(base, 16),
        size_mib=None if mib is None else int(mib),
    )


def _page_size(text: str, pages: set[int], buffers: tuple[tuple[int, int], ...]) -> int | None:
    """The page size, if the log leaves only one: pages that fill no more than their node, a buffer in bytes."""
    sizes = set(PAGE_SIZES)
    span, total = _SPAN.search(text), _TOTAL.search(text)
    if span and total:
        node_bytes = int(span[2], 16) + 1 - int(span[1], 16)
        sizes = {size for size in sizes if int(total[1]) * size <= node_bytes}
    for _, n_bytes in buffers:
        fitting = {size for size in PAGE_SIZES if -(-n_bytes // size) in pages}
        sizes &= fitting or sizes
    return sizes.pop() if len(sizes) == 1 else None


def _cut(text: str, source: str) -> list[str]:
    """Records that begin and do not go on as they should."""
    whole = [match.span() for pattern in (_FAILURE, _BUSY) for match in pattern.finditer(text)]
    cut = [m for m in _STARTS.finditer(text) if not any(start <= m.start() < end for start, end in whole)]
    return [f"{source}:{_line(text, match)}: not read: a record that is cut at {match[0]!r}" for match in cut]
