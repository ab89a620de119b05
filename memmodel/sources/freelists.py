"""The exact state of the free lists as text: a dump of one or more labelled states.

A state is a block of lines, each a letter and words between single blanks; every number is decimal, every pfn absolute.

===== ======================================================================================================
``S`` begins a state: label, time in ns, then ``pageblock_order= max_order= page_shift= nr_pcp_lists=
      migrate_types=`` and, only where lists are not in their real order, ``order_known=0``
``Z`` begins a zone: node, name, ``start=`` and ``spanned=`` pages, then what is known of ``present= managed=
      free= cma_free= nr_free_highatomic= reserved_highatomic= min= low= high=``
``F`` a free list: node, name, order, migratetype, ``nr=`` the free blocks of that order of all types, ``:``,
      first pfns of the blocks, the next to be allocated first; an empty list has no line
``C`` compaction's memory of the zone: node, name, ``considered= defer_shift= order_failed= cached_free=
      cached_migrate_async= cached_migrate_sync= blockskip_flush= watermark_boost=``; may be left out
``P`` a per-CPU set: node, name, CPU, ``count= high= batch=`` and what is known of ``free_count= high_min= high_max=``
``L`` one of its lists: node, name, CPU, pindex, ``:``, pfns, head first; pindex is 3 * order + migratetype, and
      12 and 13 are the lists of the PMD order
``B`` a pageblock: node, name, first pfn, migratetype, skip bit (0 or 1)
``E`` ends the state: label, number of bytes of all its lines before this one
===== ======================================================================================================

Migratetypes are numbered as the kernel that was dumped numbers them: with ``migrate_types=5`` ISOLATE is 4.
"""

from collections.abc import Iterable

from memmodel.errors import InputError
from memmodel.sources.freelists_parser import (
    C_WORDS,
    LABEL,
    P_MORE,
    P_NEEDED,
    WATERMARKS,
    Z_WORDS,
    parse_free_lists,
    swap_isolate,
)
from memmodel.sources.reading import PathLike, read_text
from memmodel.sources.records import MIGRATETYPE_NAMES, FreeLists, IntArray, ZoneLists

__all__ = ["format_free_lists", "parse_free_lists", "read_free_lists", "write_free_lists"]


def read_free_lists(path: PathLike) -> tuple[FreeLists, ...]:
    """All states of a dump (plain, .gz, .xz or .zst), in their order.

    Raises
    ------
    InputError
        If the file or one of its lines is not as described above, a pfn lies outside its zone or on two lists, or a
        count is not that of the lists.
    """
    text, _ = read_text(path)
    return parse_free_lists(text, str(path))


def write_free_lists(path: PathLike, states: Iterable[FreeLists]) -> None:
    """Write a dump as text.

    Raises
    ------
    InputError
        If a label is not one word, or a migratetype is not among the kernel's `n_migratetypes`.
    """
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.writelines(map(format_free_lists, states))


def format_free_lists(state: FreeLists) -> str:
    """One state as text, with the end line.

    Raises
    ------
    InputError
        If the label is not one word, or a migratetype is not among the kernel's `n_migratetypes`.
    """
    if not LABEL.fullmatch(state.label):
        raise InputError(f"label {state.label!r} of a state; one word of printable ASCII is allowed")
    words = _words(
        pageblock_order=state.pageblock_order,
        max_order=state.max_order,
        page_shift=state.page_shift,
        nr_pcp_lists=state.n_pcp_lists,
        migrate_types=state.n_migratetypes,
        order_known=None if state.order_known else 0,
    )
    rows = [f"S {state.label} {state.time_ns} {words}"]
    for zone in state.zones:
        rows += _zone_rows(zone, state)
    text = "\n".join(rows) + "\n"
    return f"{text}E {state.label} {len(text)}\n"


def _zone_rows(zone: ZoneLists, state: FreeLists) -> list[str]:
    head = f"{zone.node} {zone.name}"
    facts = {word: getattr(zone, name) for word, name in Z_WORDS.items()}
    rows = [f"Z {head} {_words(**facts, **{name: zone.watermarks.get(name) for name in WATERMARKS})}"]
    nr_free = zone.type_free(state.max_order + 1).sum(axis=0)
    for order, migratetype in sorted(zone.lists):
        number = _number(migratetype, state)
        pfns = _pfns(zone.lists[order, migratetype])
        rows.append(f"F {head} {order} {number} nr={nr_free[order]} : {pfns}")
    if zone.compaction is not None:
        memory = {word: getattr(zone.compaction, name) for word, name in C_WORDS.items()}
        rows.append(f"C {head} {_words(**memory, watermark_boost=zone.watermark_boost)}")
    for pcp in zone.pcp:
        facts = {name: getattr(pcp, name) for name in (*P_NEEDED, *P_MORE)}
        rows.append(f"P {head} {pcp.cpu} {_words(**facts)}")
        rows += [f"L {head} {pcp.cpu} {pindex} : {_pfns(pfns)}" for pindex, pfns in sorted(pcp.lists.items())]
    numbers = [_number(migratetype, state) for migratetype in zone.block_migratetypes.tolist()]
    blocks = zip(zone.block_pfns.tolist(), numbers, zone.block_skip.tolist(), strict=True)
    return rows + [f"B {head} {pfn} {number} {skip:d}" for pfn, number, skip in blocks]


def _words(**values: int | None) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def _pfns(pfns: IntArray) -> str:
    return " ".join(map(str, pfns.tolist()))


def _number(migratetype: int, state: FreeLists) -> int:
    """The kernel's number of a migratetype."""
    number = swap_isolate(migratetype, state.n_migratetypes)
    if number >= state.n_migratetypes:
        name = MIGRATETYPE_NAMES[migratetype]
        raise InputError(f"state {state.label}: a kernel with {state.n_migratetypes} migratetypes has no type {name}")
    return number
