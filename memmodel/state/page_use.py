"""What every page of a placement is: hole, reserved, free, on a per-CPU list, used (by what), lost to an error."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from memmodel.sources.kpageflags import has_flag
from memmodel.sources.records import BoolArray, FreeLists, IntArray, UIntArray, ZoneLists, zone_label
from memmodel.state.layout import RAMFS_BITS, FolioBit, Kind, PageFlag

__all__ = ["PageUse", "use_of_pages"]

Bytes = npt.NDArray[np.uint8]

_FIRST_PMD_LIST = 12
_FLAGS = {
    "HWPOISON": PageFlag.HWPOISON,
    "LRU": PageFlag.LRU,
    "ANON": PageFlag.ANON,
    "SLAB": PageFlag.SLAB,
    "UNEVICTABLE": PageFlag.UNEVICTABLE,
    "PGTABLE": PageFlag.TABLE,
}


@dataclass(frozen=True, eq=False)
class PageUse:
    """By pfn from `first_pfn` on: `kind` (`Kind`), `flags` (`PageFlag`), `order` of the block or folio that begins."""

    first_pfn: int
    kind: Bytes
    flags: Bytes
    order: Bytes
    bits: npt.NDArray[np.uint32]
    """`FolioBit` of folios on LRU lists that are no plain anonymous memory to compaction."""
    assumed: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def use_of_pages(lists: FreeLists, kpageflags: UIntArray | None) -> PageUse:
    """Kinds, flags and orders of all pages that the zones span.

    Free and per-CPU pages are those of the lists. Without kpageflags all others are UNKNOWN. With it compound pages
    become folios again (pages allocated together without ``__GFP_COMP`` look single), and pages of no flag are used.
    """
    whole = 1 << lists.max_order
    first = min(zone.start_pfn for zone in lists.zones) // whole * whole
    end = -(-max(zone.end_pfn for zone in lists.zones) // whole) * whole
    kind = np.full(end - first, Kind.HOLE, np.uint8)
    use = PageUse(first, kind, np.zeros_like(kind), np.zeros_like(kind), np.zeros(kind.size, np.uint32))
    for zone in lists.zones:
        here = slice(zone.start_pfn - first, zone.end_pfn - first)
        if kpageflags is None:
            use.kind[here] = Kind.UNKNOWN
            _put_lists(use, lists, zone)
            continue
        _put_lists(use, lists, zone)
        listed = use.kind[here] != Kind.HOLE
        flags = np.where(listed, np.uint64(0), kpageflags[zone.start_pfn : zone.end_pfn])
        broken = _put_flags(use, here, flags, listed)
        if broken:
            use.differences.append(f"{zone_label(zone.key)}: {broken} compound pages are cut: taken as single pages")
        use.differences.extend(_unlike(use.kind[here], zone, kpageflags[zone.start_pfn : zone.end_pfn]))
    if kpageflags is None:
        use.assumed.append("pages on no list: no file says which are used, which are reserved and which are holes")
    return use


def _put_lists(use: PageUse, lists: FreeLists, zone: ZoneLists) -> None:
    blocks = [(pfns, order, Kind.FREE) for (order, _), pfns in zone.lists.items()]
    for pcp in zone.pcp:
        for pindex, pfns in pcp.lists.items():
            # Page tables have 8-byte entries, so that the PMD order is page_shift - 3.
            order = pindex // 3 if pindex < _FIRST_PMD_LIST else lists.page_shift - 3
            blocks.append((pfns, order, Kind.PCP))
    for pfns, order, kind in blocks:
        index = pfns - use.first_pfn
        use.kind.reshape(-1, 1 << order)[index >> order] = Kind.TAIL
        use.kind[index] = kind
        use.order[index] = order


def _put_flags(use: PageUse, here: slice, flags: UIntArray, listed: BoolArray) -> int:
    """Fill in the pages that are on no list; the number of compound pages that cannot be whole."""
    kind = np.full(flags.size, Kind.USED, np.uint8)
    heads, orders, tail, broken = _folios(flags, here.start)
    kind[has_flag(flags, "HWPOISON")] = Kind.HWPOISON
    kind[tail] = Kind.TAIL
    kind[has_flag(flags, "RESERVED", "OFFLINE")] = Kind.RESERVED
    kind[has_flag(flags, "NOPAGE")] = Kind.HOLE
    use.kind[here] = np.where(listed, use.kind[here], kind)
    use.order[here][heads] = orders
    use.bits[here][kind == Kind.USED] = _folio_bits(flags)[kind == Kind.USED]
    for name, flag in _FLAGS.items():
        use.flags[here][has_flag(flags, name)] |= np.uint8(flag)
    return broken


def _folio_bits(flags: UIntArray) -> npt.NDArray[np.uint32]:
    """Mlocked folios, and page cache that stays where it is.

    What is on the unevictable list, is neither mlocked nor of shared memory, and of a file, is of ramfs.
    """
    bits = np.where(has_flag(flags, "MLOCKED"), FolioBit.MLOCKED, 0)
    kept = has_flag(flags, "UNEVICTABLE") & ~has_flag(flags, "MLOCKED", "ANON", "SWAPBACKED")
    return np.where(has_flag(flags, "LRU"), np.where(kept, RAMFS_BITS, bits), 0).astype(np.uint32)


def _folios(flags: UIntArray, start: int) -> tuple[IntArray, IntArray, BoolArray, int]:
    """Heads of compound pages and their orders, which pages are their tails, and how many compound pages are cut."""
    marked_tail = has_flag(flags, "COMPOUND_TAIL")
    heads = np.flatnonzero(has_flag(flags, "COMPOUND_HEAD") & ~marked_tail)
    others = np.append(np.flatnonzero(~marked_tail), flags.size)
    sizes = others[np.searchsorted(others, heads) + 1] - heads
    orders = np.frexp(sizes)[1] - 1
    good = (sizes == 1 << orders) & ((heads + start) % sizes == 0)
    edge = np.zeros(flags.size + 1, np.int8)
    edge[heads[good] + 1] += 1
    edge[(heads + sizes)[good]] -= 1
    return heads[good], orders[good], np.cumsum(edge[:-1]) > 0, int(np.count_nonzero(~good))


def _unlike(kind: Bytes, zone: ZoneLists, flags: UIntArray) -> Iterator[str]:
    """How kpageflags differs from the lists, and from what the zone says of itself."""
    label = zone_label(zone.key)
    freed = int(np.count_nonzero(has_flag(flags, "BUDDY") & (kind == Kind.USED)))
    if freed:
        yield f"{label}: {freed} pages are free in kpageflags, but on no list: taken as used"
    unmanaged = int(np.count_nonzero((kind == Kind.RESERVED) | (kind == Kind.HOLE)))
    if zone.managed_pages is not None and unmanaged != zone.spanned_pages - zone.managed_pages:
        said = f"{zone.spanned_pages} spanned and {zone.managed_pages} managed pages"
        yield f"{label}: kpageflags has {unmanaged} reserved pages and holes, the zone {said}"
