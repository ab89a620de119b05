"""What /proc/kpageflags and the kernel's dumps show of pages."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memmodel.kernels import page_flags as kernels
from memmodel.sources.kpageflags import KPF
from memmodel.state.gigantic import rows_of
from memmodel.state.layout import PageFlag, ZoneType
from memmodel.state.machine import Machine

__all__ = ["FlagsLayout", "format_page_flags", "kpageflags"]

NAMES_6_12 = (
    *("locked", "writeback", "referenced", "uptodate", "dirty", "lru", "head", "waiters", "active", "workingset"),
    *("owner_priv_1", "owner_2", "arch_1", "reserved", "private", "private_2", "reclaim", "swapbacked"),
    *("unevictable", "mlocked"),
)
NAMES_6_1 = (
    *("locked", "referenced", "uptodate", "dirty", "lru", "active", "workingset", "waiters", "error", "slab"),
    *("owner_priv_1", "arch_1", "reserved", "private", "private_2", "writeback", "head", "mappedtodisk", "reclaim"),
    *("swapbacked", "unevictable", "mlocked"),
)
PRINTED = (  # in the order of include/trace/events/mmflags.h
    *("locked", "waiters", "referenced", "uptodate", "dirty", "lru", "active", "workingset", "slab", "owner_priv_1"),
    *("owner_2", "arch_1", "reserved", "private", "private_2", "writeback", "head", "mappedtodisk", "reclaim"),
    *("swapbacked", "unevictable", "mlocked"),
)
KPF_OF = {"owner_2": "OWNER_2", "mappedtodisk": "OWNER_2", "head": "COMPOUND_HEAD"}


@dataclass(frozen=True, kw_only=True)
class FlagsLayout:
    """How a build divides the upper bits of page->flags; the defaults are those of distributions' x86-64 kernels."""

    node_bits: int = 10
    """CONFIG_NODES_SHIFT."""
    zone_bits: int = 3
    """2 without CONFIG_ZONE_DEVICE."""
    cpupid_bits: int = 21
    """8, and those of CONFIG_NR_CPUS; 0 without CONFIG_NUMA_BALANCING."""


def kpageflags(mem: Machine, pfn: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """The words of /proc/kpageflags for pages, as far as the model has their bits.

    Parameters
    ----------
    mem
        Read only.
    pfn
        Page frame numbers, any shape.

    Returns
    -------
    KPF_ bits (`memmodel.sources.kpageflags.KPF`), uint64, of that shape. RECLAIM, IDLE and the bits from ARCH on are
    never set.

    Raises
    ------
    InputError
        If a pfn is outside memory.

    References
    ----------
    fs/proc/page.c: stable_page_flags, Linux 6.1.192, 6.12.117, 7.3.4.
    """
    rows = mem.index(pfn).astype(np.uint64)
    words = np.zeros(rows.size, np.uint64)
    kernels.page_flags_words(mem.state, rows.reshape(-1), words)
    for page in mem.state.gigantic:
        _show_gigantic(mem, *rows_of(page), rows.reshape(-1), words)
    return words.reshape(rows.shape)


def _show_gigantic(
    mem: Machine, first: int, end: int, rows: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]
) -> None:
    """A gigantic page shows what any free page of the hugetlb pool does."""
    inside, head = (rows >= first) & (rows < end), rows == first
    of_folio = "kpageflags_of_folio" in mem.geometry.features
    words[inside] |= np.uint64(1 << KPF["HUGE"])
    words[head] |= np.uint64(1 << KPF["COMPOUND_HEAD"])
    words[inside & ~head] |= np.uint64(1 << KPF["COMPOUND_TAIL"])
    words[inside if of_folio else head] |= np.uint64(1 << KPF["UPTODATE"])
    if np.any(mem.state.pages["pg_flags"][first:end] & PageFlag.HWPOISON):
        words[head] |= np.uint64(1 << KPF["HWPOISON"])


def format_page_flags(mem: Machine, pfn: int, layout: FlagsLayout | None = None) -> str:
    """page->flags as the kernel's messages print it (%pGp): the word, names of bits, node, zone and last CPU.

    No CPU is known to have touched the page last.

    References
    ----------
    include/linux/page-flags.h, include/linux/page-flags-layout.h; lib/vsprintf.c: format_page_flags, Linux 6.12.117.
    """
    layout = layout or FlagsLayout()
    order = NAMES_6_12 if "page_flags_6_12" in mem.geometry.features else NAMES_6_1
    word = int(kpageflags(mem, [pfn])[0])
    names = [name for name in PRINTED if name in order and word >> KPF.get(KPF_OF.get(name, name.upper()), 63) & 1]
    zone = mem.state.zones[int(mem.state.pages["zone"][mem.index([pfn])[0]])]
    node, kind = int(zone["node"]), int(zone["zone_type"])
    if kind == ZoneType.MOVABLE:
        kind -= 1  # 64-bit kernels have no ZONE_HIGHMEM
    cpupid = (1 << layout.cpupid_bits) - 1
    zone_at = 64 - layout.node_bits - layout.zone_bits
    flags = sum(1 << order.index(name) for name in names)
    flags |= node << zone_at + layout.zone_bits | kind << zone_at | cpupid << zone_at - layout.cpupid_bits
    fields = [*names, f"node={node}", f"zone={kind}", *([f"lastcpupid={cpupid:#x}"] if cpupid else [])]
    return f"{flags:#x}({'|'.join(fields)})"
