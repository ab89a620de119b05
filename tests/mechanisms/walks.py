"""A seeded random walk over one machine whose steps are drawn from all mechanisms; the laws after each step."""

import random
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import memmodel as mm
from memmodel.errors import InputError, InvariantError
from memmodel.geometry import Geometry
from memmodel.state.layout import FolioBit, Kind, PageFlag
from memmodel.state.machine import handles_at
from tests.mechanisms.walk_steps import STEPS, Effect

__all__ = ["MACHINES", "MachineSpec", "Walk"]

CPUS = 2
NOBODY = 0xFFFFFFFF
UNKNOWN = -1  # nothing is known of what such a folio holds
SKIPS = PageFlag.HWPOISON


class MachineSpec(NamedTuple):
    """A machine that is walked over."""

    kernel: str
    page_size: str = "4KiB"
    limit: int | None = None
    """page_block_max_order."""
    size: str = "16MiB"
    nodes: int = 1
    contents: bool = False
    movablecore: str | int = 0

    def boot(self, seed):
        arch = "arm64" if self.page_size == "16KiB" else "x86_64"
        geometry = Geometry(arch=arch, kernel=self.kernel, page_size=self.page_size, page_block_max_order=self.limit)
        return mm.PhysicalMemory(
            geometry,
            self.size,
            nodes=self.nodes,
            cpus=CPUS,
            contents=self.contents,
            movablecore=self.movablecore,
            seed=seed,
        )


MACHINES = {
    "6.12-10": MachineSpec("6.12.117", limit=10, size="32MiB", nodes=2),
    "6.12-7-bytes": MachineSpec("6.12.117", limit=7, contents=True),
    "6.12-3": MachineSpec("6.12.117", limit=3, movablecore="4MiB"),
    "6.12-16k-7": MachineSpec("6.12.117", "16KiB", limit=7, size="64MiB", contents=True),
    "7.3-10-bytes": MachineSpec("7.3", limit=10, nodes=2, contents=True),
    "7.3-7": MachineSpec("7.3", limit=7, size="32MiB", movablecore="8MiB"),
    "7.3-16k-3": MachineSpec("7.3", "16KiB", limit=3, size="64MiB", nodes=2),
    "6.1": MachineSpec("6.1", size="32MiB", nodes=2),
    "6.1-bytes": MachineSpec("6.1", contents=True),
    "6.1-16k": MachineSpec("6.1", "16KiB", size="64MiB"),
}
"""By kernel, page size, page_block_max_order, and whether pages have bytes."""


@dataclass
class Before:
    """What there was before a step."""

    live: set
    bits: dict  # of each folio
    digest: str


class Walk:
    """`live` has the tag of each folio's first page, `ranges` and `buffers` what else is held.

    Each page of a folio holds a number of its own, which only an error may take away.
    """

    def __init__(self, spec, seed):
        self.spec, self.rng = spec, random.Random(seed)
        self.mem = spec.boot(self.rng.getrandbits(32))
        self.tlb = mm.Tlb(self.mem.geometry, CPUS, [[0, 1], [0], [1]])
        self.kswapd = mm.WokenKswapd()
        # Before 6.10 larger ones in the way of a range are refused.
        hygiene = "freelist_hygiene" in self.mem.geometry.features
        self.most_order = self.mem.geometry.max_page_order if hygiene else self.mem.geometry.pageblock_order
        self.live, self.ranges, self.buffers = {}, [], []
        self.leaked = set()  # rows of pages that were freed while they were poisoned: nobody's once that is taken back
        self.next_tag, self.tainted = 1, set()
        self.counts = Counter()
        self.n_steps = 0
        self.says_why = False
        self.last = ""

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self, n_steps):
        """Take steps, and look at the laws after each."""
        for _ in range(n_steps):
            self.step()
        return self

    def step(self):
        names, weights = list(STEPS), [weight for weight, _ in STEPS.values()]
        self.last = name = self.rng.choices(names, weights)[0]
        self.n_steps += 1
        before = Before(set(self.live), self.bits_by_handle(), self.digest())
        try:
            effect = STEPS[name][1](self) or Effect()
        except InputError as error:
            self.counts["refused"] += 1
            self.counts[f"{name} refused"] += 1
            if self.says_why:
                self.counts[f"why {name} {''.join(c for c in str(error) if not c.isdigit())}"] += 1
            self.last = f"{name}: {error}"
            if self.digest() != before.digest:
                raise InvariantError(f"a refused step has changed the state ({self.last})") from error
            effect = Effect()
        self.counts[name] += 1
        self.mem.check()
        self.follow(before, effect)
        self.follow_pages(effect.rows)
        self.check_owners()
        self.check_bytes()

    def digest(self):
        """Of all but the bytes, which are looked at after every step anyway."""
        state = self.mem.state
        bare = state._replace(contents=state.contents[:0])
        return self.mem.with_state(self.mem.geometry, bare, self.mem.pfns).digest

    # -- what there is -------------------------------------------------------------------------------------------------

    def handles(self):
        """Of all folios that the memory knows."""
        table = self.mem.state.folios[: int(self.mem.state.slots[1])]
        return handles_at(self.mem.state.folios, np.flatnonzero(table["index"] != NOBODY))

    def bits_by_handle(self):
        handles = self.handles()
        bits = self.mem.state.folios["bits"][handles & NOBODY]
        return dict(zip(handles.tolist(), bits.tolist(), strict=True))

    def rows(self, handles):
        """(first rows, orders) of folios."""
        slots = np.asarray(handles, np.int64) & NOBODY
        rows = self.mem.state.folios.view(np.ndarray)["index"][slots].astype(np.int64)
        return rows, (self.mem.state.pages["state"][rows] & 15).astype(np.int64)

    def stamp(self, handles):
        """Write a number of its own to each page of new folios."""
        handles = [int(handle) for handle in handles]
        rows, orders = self.rows(handles)
        for handle, row, order in zip(handles, rows.tolist(), orders.tolist(), strict=True):
            self.live[handle] = self.next_tag
            n_pages = 1 << order
            if self.spec.contents:
                tags = np.arange(self.next_tag, self.next_tag + n_pages, dtype=np.uint64)
                self.mem.contents[row : row + n_pages].view(np.uint64)[:] = tags[:, None]
                self.taint(row, n_pages, self.next_tag)
            self.next_tag += n_pages

    def taint(self, row, n_pages, tag):
        """Numbers on pages with a latent error may be lost."""
        words = self.mem.state.ue_pages
        pages = np.arange(row, row + n_pages)
        bad = words[pages >> 6] >> (pages & 63).astype(np.uint64) & np.uint64(1)
        self.tainted.update((tag + np.flatnonzero(bad)).tolist())

    def taint_all(self):
        rows, orders = self.rows(list(self.live))
        for tag, row, order in zip(self.live.values(), rows.tolist(), orders.tolist(), strict=True):
            if tag != UNKNOWN:
                self.taint(row, 1 << order, tag)

    # -- laws ----------------------------------------------------------------------------------------------------------

    def follow(self, before, effect):
        """Folios come and go only as the step says."""
        now = set(self.handles().tolist())
        kept = before.live - effect.freed
        for handle in [handle for handle in self.live if handle not in now or handle in effect.freed]:
            del self.live[handle]
        lost = {handle for handle in kept - now if not effect.may_go(handle, before.bits[handle])}
        if lost:
            raise InvariantError(f"folio {min(lost):#x} was lost ({effect})")
        if effect.freed & now:
            raise InvariantError(f"folio {min(effect.freed & now):#x} was freed and is there")
        new = now - before.live
        if effect.gained - new:
            raise InvariantError(f"folio {min(effect.gained - new):#x} was given out and is not new")
        others = new - effect.gained
        if others and not effect.splits:
            raise InvariantError(f"folio {min(others):#x} came from nowhere ({effect})")
        self.stamp(sorted(effect.gained))
        self.adopt(sorted(others))
        for handle in self.pool():
            self.live[handle] = UNKNOWN  # it is replaced, and not copied

    def pool(self):
        """Free folios of the hugetlb pool."""
        handles = np.fromiter(self.live, np.int64, len(self.live))
        table = self.mem.state.folios.view(np.ndarray)[handles & NOBODY]
        return handles[(table["bits"] & FolioBit.HUGETLB != 0) & (table["mms"] == 0)].tolist()

    def adopt(self, handles):
        """The parts of folios that were split hold what the folio held; a page that an error emptied holds anything."""
        rows, _ = self.rows(handles)
        for handle, row in zip(handles, rows.tolist(), strict=True):
            bad = self.mem.state.pages["pg_flags"][row] & SKIPS
            self.live[handle] = UNKNOWN if bad or not self.spec.contents else int(self.tag_at(row))
            self.counts["parts"] += 1

    def follow_pages(self, rows):
        """A page that nobody wants back is leaked, as in the kernel; of a range it stays its holder's until then."""
        mem = self.mem
        for row in rows:
            kind = mem.state.pages["state"][row] >> 4
            if kind == Kind.USED and mem.handles(row)[0] < 0 and not self.in_range(row):
                self.leaked.add(row)
        self.leaked = {row for row in self.leaked if mem.state.pages["state"][row] >> 4 == Kind.USED}

    def in_range(self, row):
        """Places of the ranges that hold a page: one or none."""
        pfn = int(self.mem.pfns.pfn(row))
        return [i for i, (_, part) in enumerate(self.ranges) if part.pfn <= pfn < part.pfn + part.n_pages]

    def tag_at(self, row):
        return self.mem.contents[row].view(np.uint64)[0]

    def check_owners(self):
        """Whatever is in use belongs to a folio or a range, and nothing twice."""
        mem = self.mem
        states, flags = mem.state.pages["state"][: mem.pfns.n_pages], mem.state.pages["pg_flags"][: mem.pfns.n_pages]
        owners = np.zeros(mem.pfns.n_pages, np.int64)
        rows, _ = self.rows(list(self.live))
        np.add.at(owners, rows, 1)
        for _, pages in self.ranges:
            first = int(mem.index(pages.pfn))
            owners[first : first + pages.n_pages] += 1
        owners[sorted(self.leaked)] += 1
        used, lost = states >> 4 == Kind.USED, states >> 4 == Kind.HWPOISON  # a handle may stand for what it was
        wrong = np.flatnonzero((owners > 1) | (owners < used) | (owners > (used | lost)))
        if wrong.size:
            row = int(wrong[0])
            what = f"kind {Kind(int(states[row]) >> 4).name}, flags {int(flags[row])}"
            raise InvariantError(f"row {row} ({what}) has {owners[row]} owners")

    def check_bytes(self):
        """A live folio holds what was written to it."""
        if not self.spec.contents or not self.live:
            return
        mem = self.mem
        known = [(handle, tag) for handle, tag in self.live.items() if tag != UNKNOWN]
        rows, orders = self.rows([handle for handle, _ in known])
        sizes = 1 << orders
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        pages, tags = np.repeat(rows, sizes) + within, np.repeat([tag for _, tag in known], sizes) + within
        words = mem.contents.view(np.uint64)
        step = words.shape[1] // 8  # the first word of each eighth
        wrong = (words[pages][:, ::step] if pages.size < 64 else words[:, ::step][pages]) != tags[:, None].astype(
            np.uint64
        )
        bad = wrong.any(axis=1) & (mem.state.pages["pg_flags"][pages] & SKIPS == 0)
        for place in np.flatnonzero(bad):
            if int(tags[place]) not in self.tainted:
                found = words[pages[place], ::step].tolist()
                raise InvariantError(f"row {pages[place]} holds {found}, {tags[place]} was written to it")
        good = tags[mem.state.pages["pg_flags"][pages] & SKIPS == 0]
        if np.unique(good).size < good.size:
            raise InvariantError("a page is there twice")

    def check_tags(self, handle, tags):
        """A folio holds these numbers, page by page, but for those that nothing is known of."""
        (row,), _ = self.rows([handle])
        found = self.mem.contents[row : row + tags.size].view(np.uint64)[:, 0]
        wrong = [i for i in np.flatnonzero((found != tags) & (tags != UNKNOWN)) if int(tags[i]) not in self.tainted]
        if wrong:
            raise InvariantError(f"page {wrong[0]} of a folio holds {found[wrong[0]]}, not {tags[wrong[0]]}")
