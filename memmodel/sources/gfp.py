"""gfp flags by name, as tracepoints and the kernel log print them: include/trace/events/mmflags.h, gfp_types.h.

The numbers of the flags beyond __GFP_ACCOUNT differ between kernels and configurations; the names do not.
"""

import functools
import re
from dataclasses import dataclass
from typing import Final

from memmodel.errors import InputError
from memmodel.sources.records import MIGRATE_MOVABLE, MIGRATE_RECLAIMABLE, MIGRATE_UNMOVABLE

__all__ = ["COMPOSITES", "FLAGS", "PAGE_ALLOC_COSTLY_ORDER", "Gfp", "parse_gfp"]

PAGE_ALLOC_COSTLY_ORDER: Final = 3

_ZONES = ("DMA", "HIGHMEM", "DMA32", "MOVABLE")
_PLAIN = (
    *("RECLAIMABLE", "HIGH", "IO", "FS", "ZERO", "DIRECT_RECLAIM", "KSWAPD_RECLAIM", "WRITE", "NOWARN"),
    *("RETRY_MAYFAIL", "NOFAIL", "NORETRY", "MEMALLOC", "COMP", "NOMEMALLOC", "HARDWALL", "THISNODE", "ACCOUNT"),
)
_SOME_KERNELS = (
    *("ATOMIC", "ZEROTAGS", "SKIP_ZERO", "SKIP_KASAN", "SKIP_KASAN_POISON", "SKIP_KASAN_UNPOISON", "NOLOCKDEP"),
    "NO_OBJ_EXT",
)
FLAGS: Final = frozenset(f"__GFP_{name}" for name in (*_ZONES, *_PLAIN, *_SOME_KERNELS))
"""The single flags of the kernels from 6.1 to 7.3."""


def _flags(text: str) -> frozenset[str]:
    return frozenset(f"__GFP_{name}" for name in text.split())


_RECLAIM = _flags("DIRECT_RECLAIM KSWAPD_RECLAIM")
_KERNEL = _RECLAIM | _flags("IO FS")
_USER = _KERNEL | _flags("HARDWALL")
_MOVABLE = _USER | _flags("HIGHMEM MOVABLE")
_TRANSHUGE_LIGHT = (_MOVABLE | _flags("COMP NOMEMALLOC NOWARN")) - _RECLAIM

COMPOSITES: Final = {
    "__GFP_RECLAIM": _RECLAIM,
    "GFP_DMA": _flags("DMA"),
    "GFP_DMA32": _flags("DMA32"),
    "GFP_ATOMIC": _flags("HIGH KSWAPD_RECLAIM"),
    "GFP_NOWAIT": _flags("KSWAPD_RECLAIM"),
    "GFP_NOIO": _RECLAIM,
    "GFP_NOFS": _RECLAIM | _flags("IO"),
    "GFP_KERNEL": _KERNEL,
    "GFP_KERNEL_ACCOUNT": _KERNEL | _flags("ACCOUNT"),
    "GFP_USER": _USER,
    "GFP_HIGHUSER": _USER | _flags("HIGHMEM"),
    "GFP_HIGHUSER_MOVABLE": _MOVABLE,
    "GFP_TRANSHUGE_LIGHT": _TRANSHUGE_LIGHT,
    "GFP_TRANSHUGE": _TRANSHUGE_LIGHT | _flags("DIRECT_RECLAIM"),
}
"""Names of several flags, without what some kernels add: __GFP_ATOMIC to GFP_ATOMIC (6.1), __GFP_NOWARN to GFP_NOWAIT
(later ones), __GFP_SKIP_KASAN to GFP_HIGHUSER_MOVABLE (hardware tags)."""

# gfp_zone(): the highest zone by the zone flags; one that is not configured is Normal.
_HIGHEST_ZONE = {
    frozenset[str](): "Normal",
    _flags("DMA"): "DMA",
    _flags("DMA32"): "DMA32",
    _flags("HIGHMEM"): "HighMem",
    _flags("MOVABLE"): "Normal",
    _flags("DMA MOVABLE"): "DMA",
    _flags("DMA32 MOVABLE"): "DMA32",
    _flags("HIGHMEM MOVABLE"): "Movable",
}
_BITS = re.compile("0x[0-9a-f]{1,16}|0")
_NAMED_BITS = 0x7FFFFF & ~0x200  # these have the same name in all kernels


@dataclass(frozen=True)
class Gfp:
    """What a request asks for: single flags by name, and the bits that were printed without one."""

    flags: frozenset[str]
    unnamed_bits: int = 0

    def __contains__(self, flag: str) -> bool:
        return flag in self.flags

    @property
    def is_movable(self) -> bool:
        """__GFP_MOVABLE."""
        return "__GFP_MOVABLE" in self.flags

    @property
    def is_reclaimable(self) -> bool:
        """__GFP_RECLAIMABLE."""
        return "__GFP_RECLAIMABLE" in self.flags

    @property
    def migratetype(self) -> int:
        """gfp_migratetype(), if the kernel groups pages by mobility."""
        if self.is_movable:
            return MIGRATE_MOVABLE
        return MIGRATE_RECLAIMABLE if self.is_reclaimable else MIGRATE_UNMOVABLE

    @property
    def highest_zone(self) -> str:
        """gfp_zone(), as /proc names it: DMA, DMA32, Normal, HighMem or Movable. One that is not there is Normal."""
        return _HIGHEST_ZONE[self.flags & _flags(" ".join(_ZONES))]

    @property
    def direct_reclaim(self) -> bool:
        """__GFP_DIRECT_RECLAIM: the caller may reclaim and compact, and so sleep."""
        return "__GFP_DIRECT_RECLAIM" in self.flags

    @property
    def kswapd_reclaim(self) -> bool:
        """__GFP_KSWAPD_RECLAIM: kswapd may be woken."""
        return "__GFP_KSWAPD_RECLAIM" in self.flags

    @property
    def io(self) -> bool:
        """__GFP_IO, which direct compaction needs too."""
        return "__GFP_IO" in self.flags

    @property
    def high(self) -> bool:
        """__GFP_HIGH: may use a part of the reserves."""
        return "__GFP_HIGH" in self.flags

    @property
    def memalloc(self) -> bool:
        """__GFP_MEMALLOC: may use all reserves."""
        return "__GFP_MEMALLOC" in self.flags

    @property
    def nomemalloc(self) -> bool:
        """__GFP_NOMEMALLOC: never uses reserves."""
        return "__GFP_NOMEMALLOC" in self.flags

    @property
    def noretry(self) -> bool:
        """__GFP_NORETRY."""
        return "__GFP_NORETRY" in self.flags

    @property
    def retry_mayfail(self) -> bool:
        """__GFP_RETRY_MAYFAIL."""
        return "__GFP_RETRY_MAYFAIL" in self.flags

    @property
    def nofail(self) -> bool:
        """__GFP_NOFAIL."""
        return "__GFP_NOFAIL" in self.flags

    @property
    def thisnode(self) -> bool:
        """__GFP_THISNODE: no zone of another node."""
        return "__GFP_THISNODE" in self.flags

    @property
    def write(self) -> bool:
        """__GFP_WRITE: dirty pages are to be spread over zones."""
        return "__GFP_WRITE" in self.flags

    @property
    def comp(self) -> bool:
        """__GFP_COMP: a compound page."""
        return "__GFP_COMP" in self.flags

    def is_costly_noretry(self, order: int) -> bool:
        """Whether the first failed compaction may end the request (__alloc_pages_slowpath)."""
        return order > PAGE_ALLOC_COSTLY_ORDER and self.noretry

    def fails_after_first_round(self, order: int) -> bool:
        """Whether one round of reclaim and compaction is all there is: __GFP_NORETRY, or costly without
        __GFP_RETRY_MAYFAIL (__alloc_pages_slowpath).
        """
        return self.noretry or (order > PAGE_ALLOC_COSTLY_ORDER and not self.retry_mayfail)


def parse_gfp(text: str) -> Gfp:
    """The flags that a text names, such as ``GFP_KERNEL|__GFP_COMP``; "none", "0" and no text are no flag.

    Raises
    ------
    InputError
        If it is no text, a name is unknown, two zone or two mobility flags exclude each other, or a number has bits
        that the kernel prints by name.
    """
    if not isinstance(text, str):
        raise InputError(f"gfp {text!r}; flags are given by name, such as 'GFP_KERNEL|__GFP_COMP'")
    return _parse(text)


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> Gfp:
    flags, bits = frozenset[str](), 0
    for name in filter(None, (part.strip() for part in text.split("|"))):
        if name in FLAGS:
            flags |= {name}
        elif name in COMPOSITES:
            flags |= COMPOSITES[name]
        elif _BITS.fullmatch(name):
            bits |= int(name, 16)
        elif name != "none":
            names = ", ".join((*COMPOSITES, *sorted(FLAGS)))
            raise InputError(f"unknown gfp flag {name!r}; one of: {names}")
    if bits & _NAMED_BITS:
        raise InputError(f"gfp {text!r}: bits {bits & _NAMED_BITS:#x} have names, and flags are given by name")
    if flags & _flags(" ".join(_ZONES)) not in _HIGHEST_ZONE:
        raise InputError(f"gfp {text!r} asks for more than one zone")
    if flags >= _flags("MOVABLE RECLAIMABLE"):
        raise InputError(f"gfp {text!r} is both movable and reclaimable")
    return Gfp(flags, bits)
