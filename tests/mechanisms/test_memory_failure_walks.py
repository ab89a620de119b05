"""Random walks of failures, soft offlines, unpoisoning and frees over pages of all kinds: the laws after each step."""

import random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED
from memmodel.mechanisms.folio_state import MAPPINGS
from memmodel.state.layout import Kind, PageFlag
from tests.reference import views
from tests.reference.buddy import Zone

MARKS = ("dirty", "pte_dirty", "mlocked", "swapcache", "writeback", "locked", "uptodate", "unmap_fails")
SIMULATED = int(mm.MfFlag.SW_SIMULATED)
rngs = st.integers(0, 2**32).map(random.Random)


class Failures(RuleBasedStateMachine):
    """`live` are handles of folios that nothing took away; `out` are pages that nobody may get again."""

    @initialize(kernel=st.sampled_from(["6.1", "6.12.117", "7.3"]), pcp=st.booleans())
    def boot(self, kernel, pcp):
        options = {"arch": "generic", "max_page_order": 5, "page_block_max_order": 3, "transparent_hugepage": False}
        zones = [Zone(0, "Normal", 0, 160, [(0, 30), (33, 160)]), Zone(1, "Normal", 160, 320, [(160, 320)])]
        self.mem = views.machine(Geometry(kernel=kernel, **options), zones, cpus=2)
        if pcp:
            self.mem.state.pcp["high_min"] = self.mem.state.pcp["high_max"] = self.mem.state.pcp["high"] = 12
            self.mem.state.pcp["batch"] = 3
        self.live, self.out = [], set()
        self.n_poisoned = 0

    def folio_of(self, pfn):
        """The live folio that a page is in, or None."""
        for folio, first in zip(self.live, self.mem.pfn(self.live).tolist(), strict=True):
            order = int(self.mem.state.pages["state"][self.mem.index([first])[0]]) & 15
            if first <= pfn < first + (1 << order):
                return folio
        return None

    def kind(self, pfn):
        return self.mem.state.pages["state"][self.mem.index([pfn])[0]] >> 4

    def flagged(self):
        rows = np.flatnonzero(self.mem.state.pages["pg_flags"][: self.mem.pfns.n_pages] & PageFlag.HWPOISON)
        return set(self.mem.pfns.pfn(rows).tolist())

    def forget_stale(self):
        """Handles that unpoisoning or dissolving made stale."""
        slots = self.mem.state.folios
        now = [f for f in self.live if slots["index"][f & 0xFFFFFFFF] != 0xFFFFFFFF]
        self.live = [f for f in now if slots["sequence"][f & 0xFFFFFFFF] == f >> 32]

    # -- steps ---------------------------------------------------------------------------------------------------------

    @rule(order=st.integers(0, 4), count=st.integers(1, 30), kind=st.sampled_from(["movable", "unmovable"]))
    def allocate(self, order, count, kind):
        got = mm.alloc_pages(self.mem, order, count, kind, cpu=1)
        got = got[got >= 0]
        pages = {int(first) + i for first in self.mem.pfn(got) for i in range(1 << order)}
        assert not pages & self.out
        self.live += got.tolist()

    @rule(order=st.integers(1, 4))
    def grow_hugetlb(self, order):
        got = mm.alloc_hugetlb(self.mem, 1, size=4096 << order)
        self.live += got[got >= 0].tolist()

    @rule(rng=rngs)
    def say(self, rng):
        huge = int(mm.alloc_hugetlb(self.mem, 1, size=8192)[0]) if rng.random() < 0.1 else -1
        self.live += [huge] if huge >= 0 else []
        for folio in rng.sample(self.live, min(len(self.live), 5)):
            row = int(self.mem.index(self.mem.pfn(folio))[0])
            order = int(self.mem.state.pages["state"][row]) & 15
            marked = self.mem.state.pages["pg_flags"][row : row + (1 << order)] & PageFlag.HWPOISON
            if marked.any():  # an error took it: nobody can say what it is any more
                continue
            name = rng.choice(sorted(MAPPINGS))
            marks = {mark: True for mark in MARKS if rng.random() < 0.2}
            if name != "anon":
                marks.pop("swapcache", None)
            owners = [mm for mm in range(3) if rng.random() < 0.5]
            mm.set_folio(self.mem, folio, mapping=name, mapped_by=owners, pins=rng.choice([0, 0, 0, 1, 3]), **marks)

    @rule(rng=rngs, n=st.integers(1, 6))
    def fail(self, rng, n):
        for _ in range(n):
            pfn = rng.randrange(320)
            before = self.flagged()
            out = mm.memory_failure(self.mem, pfn, flags=SIMULATED, cpu=rng.randrange(2))
            again = mm.memory_failure(self.mem, pfn, flags=SIMULATED)
            assert (again.rc, again.counted) == (-133, False)
            assert self.flagged() - before <= {pfn}
            self.n_poisoned += pfn not in before
            if out.page_type in ("free buddy page", "free huge page"):
                self.out.add(pfn)
            self.live += [part for part in out.parts.tolist() if part not in self.live]
            self.forget_stale()
            self.mem.check()

    @rule(rng=rngs)
    def offline(self, rng):
        pfn = rng.randrange(320)
        before = self.flagged()
        out = mm.soft_offline_page(self.mem, pfn)
        after = self.flagged()
        moved = out.rc == 0 and pfn not in before
        assert after - before == ({pfn} if moved else set())
        if out.rc == 0 and out.moved_to >= 0:
            assert self.kind(pfn) == Kind.HWPOISON
        self.n_poisoned += moved
        if moved and out.vacated < 0 and out.folio < 0:
            self.out.add(pfn)
        self.live += {f for f in (*out.parts.tolist(), out.vacated) if f >= 0} - set(self.live)
        self.forget_stale()

    @rule(rng=rngs)
    def unpoison(self, rng):
        before = self.flagged()
        pfn = rng.choice(sorted(before)) if before and rng.random() < 0.9 else rng.randrange(320)
        out = mm.unpoison_memory(self.mem, pfn, cpu=1)
        after = self.flagged()
        assert (after < before) == (out.rc == 0)
        self.n_poisoned -= len(before - after)
        self.out -= before - after
        self.forget_stale()

    @rule(rng=rngs, share=st.sampled_from([0.1, 0.5]))
    def free(self, rng, share):
        chosen = rng.sample(self.live, int(len(self.live) * share))
        single = {int(p) for p, f in zip(self.mem.pfn(chosen), chosen, strict=True) if self.is_single(f)}
        mm.free_pages(self.mem, chosen, cpu=0)
        self.out |= single & self.flagged()
        self.live = [folio for folio in self.live if folio not in chosen]

    def is_single(self, folio):
        row = int(self.mem.index(self.mem.pfn(folio))[0])
        return int(self.mem.state.pages["state"][row]) & 15 == 0

    @rule()
    def go_on_with_a_copy(self):
        twin = self.mem.copy()
        assert twin.digest == self.mem.digest
        mm.memory_failure(self.mem, 35)
        assert twin.digest != self.mem.digest
        self.mem.restore(twin)
        assert twin.digest == self.mem.digest

    # -- laws ----------------------------------------------------------------------------------------------------------

    @invariant()
    def sound(self):
        self.mem.check()

    @invariant()
    def counted(self):
        assert len(self.flagged()) == self.n_poisoned
        assert mm.hardware_corrupted_kib(self.mem) == 4 * self.n_poisoned
        for node in mm.memory_failure_stats(self.mem).values():
            assert node["total"] == sum(node.values()) - node["total"]

    @invariant()
    def handles(self):
        assert len(set(self.live)) == len(self.live)
        self.mem.pfn(self.live)  # none is stale

    @invariant()
    def out_of_reach(self):
        for pfn in self.out:
            assert self.kind(pfn) == Kind.HWPOISON


def test_memory_failure__laws_of_a_walk(walk_settings):
    # In plain Python a step takes 50 ms.
    few = walk_settings if JIT_ENABLED else settings(walk_settings, max_examples=6)
    run_state_machine_as_test(Failures, settings=few)
