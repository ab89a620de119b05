"""The words of /proc/kpageflags (stable_page_flags in fs/proc/page.c), and the filter of injected errors on them."""

from typing import Any

import numpy as np

from memmodel.jit import inlined, kernel
from memmodel.kernels.folio_state import ANON, HUGETLB, bits_of, mappers, mapping_of
from memmodel.kernels.folios import slot_of
from memmodel.kernels.freelist import FREE, ONE, ORDER_BITS
from memmodel.kernels.pageblock import KIND_BITS, containing_head
from memmodel.sources.kpageflags import KPF
from memmodel.state.layout import NONE, Feature, FolioBit, Kind, Memory, PageFlag

U = np.uint64
ZERO = np.uint64(0)
HOLE, RESERVED = np.uint64(Kind.HOLE << 4), np.uint64(Kind.RESERVED << 4)
USED, LOST = np.uint64(Kind.USED << 4), np.uint64(Kind.HWPOISON << 4)
HWPOISON, ON_LRU = np.uint64(PageFlag.HWPOISON), np.uint64(PageFlag.LRU)
OF_FOLIO, KSM = np.uint64(Feature.KPAGEFLAGS_OF_FOLIO), np.uint64(Feature.KPAGEFLAGS_KSM)
KSM_EXACT = np.uint64(Feature.KPAGEFLAGS_KSM_EXACT)
KPF_BUDDY, KPF_MMAP, KPF_ANON = (np.uint64(1 << KPF[name]) for name in ("BUDDY", "MMAP", "ANON"))
KPF_HEAD, KPF_TAIL = np.uint64(1 << KPF["COMPOUND_HEAD"]), np.uint64(1 << KPF["COMPOUND_TAIL"])
KPF_HUGE, KPF_THP, KPF_KSM = (np.uint64(1 << KPF[name]) for name in ("HUGE", "THP", "KSM"))
KPF_HWPOISON, KPF_NOPAGE = np.uint64(1 << KPF["HWPOISON"]), np.uint64(1 << KPF["NOPAGE"])
KPF_RESERVED, KPF_ZERO_PAGE = np.uint64(1 << KPF["RESERVED"]), np.uint64(1 << KPF["ZERO_PAGE"])
# Bits of the page's flags, and of its folio's, that show as they are.
PAGE_BITS = tuple(
    (np.uint64(flag), np.uint64(KPF[name]))
    for name, flag in (
        *(("LRU", PageFlag.LRU), ("SLAB", PageFlag.SLAB)),
        *(("UNEVICTABLE", PageFlag.UNEVICTABLE), ("PGTABLE", PageFlag.TABLE)),
    )
)
FOLIO_BITS = tuple((np.uint64(bit), np.uint64(KPF[name])) for name, bit in FolioBit.__members__.items() if name in KPF)


@inlined
def shown_bits(flags: U, bits: U) -> U:
    """What a page's flags and its folio's bits show."""
    word = ZERO
    for pair in PAGE_BITS:
        if flags & pair[0]:
            word |= ONE << pair[1]
    for pair in FOLIO_BITS:
        if bits & pair[0]:
            word |= ONE << pair[1]
    return word


@inlined
def compound_word(mem: Memory, index: U, head: U, bits: U) -> U:
    """What a page of a large folio shows of that; the head of a hugetlb folio shows the errors of all its pages."""
    word = KPF_HEAD if index == head else KPF_TAIL
    if bits & HUGETLB:
        word |= KPF_HUGE
        if index == head:
            size = ONE << (np.uint64(mem.pages[head].state) & ORDER_BITS)
            for part in range(head, head + size):
                if np.uint64(mem.pages[part].pg_flags) & HWPOISON:
                    word |= KPF_HWPOISON
    elif np.uint64(mem.pages[head].pg_flags) & ON_LRU:
        word |= KPF_THP
    return word


@inlined
def folio_word(mem: Memory, index: U, head: U) -> U:
    """What a page in use shows, or one that was in use when an error struck it."""
    page = mem.pages[head]
    slot = slot_of(mem, head)
    bits, word, large = ZERO, ZERO, bool(np.uint64(page.state) & ORDER_BITS)
    if np.uint64(page.state) & KIND_BITS == USED or slot != NONE:
        bits = bits_of(mem, head, slot)
    if large:
        word |= compound_word(mem, index, head, bits)
    if mappers(mem, slot, bits):
        word |= KPF_MMAP
    if mapping_of(bits) == ANON and not (bits & HUGETLB and not mem.folios[slot].mms):
        word |= KPF_ANON
        if mem.params.features & KSM and not mem.params.features & KSM_EXACT:
            word |= KPF_KSM
    if index == head or mem.params.features & OF_FOLIO:
        word |= shown_bits(np.uint64(page.pg_flags), bits)
    return word


@inlined
def page_flags_word(mem: Memory, index: U) -> U:
    """The KPF_ bits of one page, as far as the model has them."""
    head = containing_head(mem, index)
    kind = np.uint64(mem.pages[head].state) & KIND_BITS
    word = ZERO
    if np.uint64(mem.pages[index].pg_flags) & HWPOISON:
        word |= KPF_HWPOISON
    if kind == HOLE:
        word |= KPF_NOPAGE
    elif kind == RESERVED:
        word |= KPF_RESERVED
        if index == mem.failure[0].zero_page:
            word |= KPF_ZERO_PAGE
    elif kind == FREE:
        word |= KPF_BUDDY
    elif kind == USED or kind == LOST:
        word |= folio_word(mem, index, head)
    return word


@kernel
def page_flags_words(mem: Memory, rows: Any, words: Any) -> None:
    """Of many pages."""
    for i in range(rows.size):
        words[i] = page_flags_word(mem, rows[i])


@inlined
def filtered(mem: Memory, index: U) -> bool:
    """Whether the filter keeps injected errors away from this page (hwpoison_filter_flags)."""
    mask = np.uint64(mem.failure[0].filter_mask)
    return bool(mask) and page_flags_word(mem, index) & mask != mem.failure[0].filter_value
