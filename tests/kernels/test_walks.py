"""Random walks of a whole machine and its slow twin, compared after every step."""

import pickle
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.state.layout import Kind, Vmstat
from tests.reference import buddy as reference
from tests.reference import copying, poisoning, views

TYPE_NAMES = {"unmovable": 0, "movable": 1, "reclaimable": 2}
GFP = {
    "movable": "GFP_HIGHUSER_MOVABLE|__GFP_COMP",
    "unmovable": "GFP_KERNEL",
    "reclaimable": "GFP_KERNEL|__GFP_RECLAIMABLE",
}
ENGINES = {
    "fragile": copying.fragile,
    "fast_string": copying.fast_string(64, 0),
    "powerpc": copying.powerpc,
    "memcpy": copying.unprotected,
    "none": copying.unprotected,
}
N_CPUS = 2
# A step draws one seed: thousands of single draws would cost more than the step.
kinds = st.sampled_from(sorted(TYPE_NAMES))
seeds = st.integers(0, 2**32).map(random.Random)


@st.composite
def geometries(draw):
    max_order = draw(st.integers(1, 6))
    return Geometry(
        arch="generic",
        page_size=draw(st.sampled_from(["4KiB", "4KiB", "16KiB"])),
        transparent_hugepage=False,
        max_page_order=max_order,
        page_block_max_order=draw(st.integers(1, max_order)),
        features=draw(st.sampled_from([{}, views.BEFORE_6_10])),
    )


@st.composite
def zone_layouts(draw):
    """Zones of one or two nodes that begin and end anywhere, with gaps, each with reserved pages at its ends."""
    zones, pfn = [], draw(st.sampled_from([0, 0, 1, 24, 64, 1000]))
    names = [(node, name) for node in range(draw(st.integers(1, 2))) for name in ("Normal", "Movable")]
    for node, name in names:
        if name == "Normal" or draw(st.booleans()):
            n_pages = draw(st.sampled_from([150, 128, 100, 77, 64, 33, 17, 5, 1]))
            cuts = sorted(draw(st.lists(st.integers(0, n_pages), max_size=2).filter(lambda x: len(x) != 1)))
            start, end = pfn, pfn + n_pages
            ranges = [(start, start + cuts[0]), (start + cuts[1], end)] if cuts else [(start, end)]
            zones.append(reference.Zone(node, name, start, end, [r for r in ranges if r[0] < r[1]]))
            pfn = end + draw(st.sampled_from([0, 0, 1, 70]))
    return zones


@st.composite
def type_layouts(draw, geometry, zones):
    """Types of pageblocks. Before 6.10 a free block has one type, so that they change between the largest blocks."""
    order = geometry.pageblock_order
    unit = order if "freelist_hygiene" in geometry.features else geometry.max_page_order
    blocks = sorted({pfn >> order for zone in zones for pfn in range(zone.start, zone.end)})
    units = sorted({block << order >> unit for block in blocks})
    types = draw(st.lists(st.sampled_from([1, 1, 1, 0, 2, 3, 4, 5]), min_size=len(units), max_size=len(units)))
    return {block: types[units.index(block << order >> unit)] for block in blocks}


class Walk(RuleBasedStateMachine):
    """A memory, its twin, and what is allocated: `live` holds handles, pfns in the same order."""

    @initialize(data=st.data(), geometry=geometries(), zones=zone_layouts(), isolate_bit=st.booleans())
    def boot(self, data, geometry, zones, isolate_bit):
        mixed = data.draw(st.booleans())
        types = data.draw(type_layouts(geometry, zones)) if mixed else None
        self.geometry, self.zones = geometry, zones
        self.mem = views.machine(geometry, zones, cpus=N_CPUS, contents=True, types=types, isolate_bit=isolate_bit)
        hygiene = "freelist_hygiene" in geometry.features
        self.twin = reference.Buddy(zones, geometry.max_page_order, geometry.pageblock_order, hygiene, types)
        self.errors = poisoning.HardwareErrors()
        self.queues = [poisoning.FailureQueue() for _ in range(N_CPUS)]
        rng = np.random.default_rng(0)
        self.mem.contents[:] = rng.integers(0, 256, self.mem.contents.shape, dtype=np.uint8)
        self.bytes = self.mem.contents.copy()
        self.live, self.pfns, self.stale = [], [], []
        self.taken = []  # handles of pages that were lost to errors

    # -- steps ---------------------------------------------------------------------------------------------------------

    @rule(
        share=st.floats(0, 1),
        count=st.integers(0, 40),
        kind=kinds,
        node=st.integers(0, 1),
        by_gfp=st.booleans(),
    )
    def allocate(self, share, count, kind, node, by_gfp):
        order = int(share * share * (self.geometry.max_page_order + 0.99))
        nodes = {zone.node for zone in self.zones}
        node = node if node in nodes else 0
        how = {"gfp": GFP[kind]} if by_gfp else {"migratetype": kind}
        handles = mm.alloc_pages(self.mem, order, count, node=node, cpu=1, **how)
        highest = "Movable" if kind == "movable" else "Normal"
        for handle in handles.tolist():
            pfn = self.twin.alloc(order, TYPE_NAMES[kind], node, highest)
            assert (handle == -1) == (pfn is None)
            if pfn is not None:
                self.live.append(handle)
                self.pfns.append(pfn)
        assert len(set(self.live)) == len(self.live)

    @precondition(lambda self: self.live)
    @rule(rng=seeds, share=st.sampled_from([0.1, 0.5, 1.0]), failed=st.integers(0, 2))
    def free(self, rng, share, failed):
        chosen = rng.sample(range(len(self.live)), max(1, int(share * len(self.live))))
        handles = [self.live[i] for i in chosen] + [-1] * failed
        mm.free_pages(self.mem, handles)
        for i in chosen:
            self.twin.free(self.pfns[i])
        self.stale += [self.live[i] for i in chosen]
        kept = [i for i in range(len(self.live)) if i not in chosen]
        self.live, self.pfns = [self.live[i] for i in kept], [self.pfns[i] for i in kept]

    @rule(rng=seeds, n=st.integers(1, 30))
    def churn(self, rng, n):
        for _ in range(n):
            if rng.random() < 0.4 and self.live:
                self.free(rng, rng.choice([0.1, 0.3]), 0)
            else:
                self.allocate(rng.random(), rng.randrange(6), rng.choice(sorted(TYPE_NAMES)), rng.randrange(2), False)

    @precondition(lambda self: self.stale)
    @rule(rng=seeds)
    def free_stale(self, rng):
        before = views.frozen(self.mem)
        with pytest.raises(mm.InputError):
            mm.free_pages(self.mem, [*self.live, rng.choice(self.stale)])
        assert views.frozen(self.mem) == before

    @rule(rng=seeds, n=st.integers(1, 12), anywhere=st.booleans())
    def inject(self, rng, n, anywhere):
        present = [pfn for zone in self.zones for pfn in range(zone.start, zone.end)]
        pfns = rng.choices(present if anywhere else self.pfns or present, k=n)
        lines = rng.choices(range(self.geometry.page_size_bytes // 64), k=n)
        addresses = mm.inject_poison(self.mem, pfn=pfns, line=lines)
        for pfn, line in zip(pfns, lines, strict=True):
            self.errors.inject(pfn, line)
        expected = {pfn * self.geometry.page_size_bytes + line * 64 for pfn, line in zip(pfns, lines, strict=True)}
        assert addresses.tolist() == sorted(expected)

    @precondition(lambda self: len(self.live) >= 2)
    @rule(
        rng=seeds,
        engine=st.sampled_from(sorted(ENGINES)),
        batch=st.sampled_from(["page", "extent"]),
        preempt=st.sampled_from(["none", "full"]),
        cpu=st.integers(0, N_CPUS - 1),
    )
    def copy_folios(self, rng, engine, batch, preempt, cpu):
        orders = [self.twin.used[pfn] for pfn in self.pfns]
        order = rng.choice(orders)
        chosen = [i for i in range(len(self.live)) if orders[i] == order]
        rng.shuffle(chosen)
        half = len(chosen) // 2
        to, of = chosen[:half], chosen[half : 2 * half]
        out = mm.folio_mc_copy(
            self.mem,
            [self.live[i] for i in to],
            [self.live[i] for i in of],
            engine=engine,
            batch=batch,
            preempt=preempt,
            cpu=cpu,
        )
        copier = copying.Copier(
            ENGINES[engine],
            self.geometry.page_size_bytes,
            None if batch == "extent" and preempt == "full" else 1 if batch == "page" or engine == "none" else 8192,
            batch == "extent" and engine != "none",
        )
        panicked = False
        for k, (i, j) in enumerate(zip(to, of, strict=True)):
            if panicked:
                assert out.status[k] == 2
                continue
            expected, queued, dropped = self._copy_one(copier, self.pfns[i], self.pfns[j], order, cpu)
            panicked = expected.status == 1
            assert out.status[k] == expected.status
            assert (out.pfn_queued[k], out.queue_dropped[k]) == (queued, dropped)
            assert (out.n_calls[k], out.n_resched[k]) == (expected.n_calls, expected.n_resched)
            assert out.longest_stretch_bytes[k] == expected.longest_stretch(preempt == "full")

    def _copy_one(self, copier, to, of, order, cpu):
        to_row, of_row, n_pages = *self.mem.index([to, of]), 2**order
        dst = bytearray(self.bytes[to_row : to_row + n_pages].tobytes())
        src = self.bytes[of_row : of_row + n_pages].tobytes()
        page_size = self.geometry.page_size_bytes
        out = copier.copy(dst, src, n_pages, self.errors.in_folio(of, order, page_size // 64))
        self.bytes[to_row : to_row + n_pages] = np.frombuffer(dst, np.uint8).reshape(n_pages, page_size)
        if out.queued_page is None:
            return out, -1, False
        return out, of + out.queued_page, not self.queues[cpu].put(of + out.queued_page)

    @rule(cpu=st.integers(0, N_CPUS - 1))
    def work(self, cpu):
        done = mm.run_memory_failure_work(self.mem, cpu)
        expected = self.queues[cpu].work(self.twin)
        got = zip(done.pfn.tolist(), done.already_poisoned.tolist(), done.taken_off_buddy.tolist(), strict=True)
        assert list(got) == expected
        for outcome in done.outcomes:
            parts = outcome.parts.tolist()
            if parts:
                at = self.live.index(parts[0])
                del self.live[at], self.pfns[at]
                self.live += parts
                self.pfns += self.mem.pfn(parts).tolist()
            if outcome.result == "Recovered" and outcome.folio >= 0:
                at = self.live.index(outcome.folio)
                del self.live[at], self.pfns[at]
                self.taken.append(outcome.folio)

    @precondition(lambda self: self.taken)
    @rule(rng=seeds)
    def free_taken(self, rng):
        """Their owners go away: the pages stay lost."""
        self.taken.sort(key=lambda _: rng.random())
        self.stale.append(self.taken.pop())
        mm.free_pages(self.mem, self.stale[-1])

    @rule(how=st.sampled_from(["copy", "pickle", "file"]))
    def go_on_with_a_copy(self, how):
        old = self.mem
        if how == "copy":
            self.mem = old.copy()
        elif how == "pickle":
            self.mem = pickle.loads(pickle.dumps(old))
        else:
            with tempfile.TemporaryDirectory() as folder:
                old.save(Path(folder) / "state.npz")
                self.mem = mm.load(Path(folder) / "state.npz")
        # whatever happens to the old one, the copy stays as it was
        mm.free_pages(old, self.live)
        mm.alloc_pages(old, 0, 10)
        old.contents[:] = 0

    # -- comparison ----------------------------------------------------------------------------------------------------

    @invariant()
    def sound(self):
        self.mem.check()

    @invariant()
    def same_lists(self):
        assert views.free_lists(self.mem) == self.twin.lists

    @invariant()
    def same_block_types(self):
        types = views.block_types(self.mem)
        assert {block: types[block] for block in self.twin.block_types} == self.twin.block_types

    @invariant()
    def same_pages(self):
        assert self.mem.pfn(self.live).tolist() == self.pfns
        assert views.pages_of_kind(self.mem, Kind.USED) == set(self.twin.used)
        assert views.pages_of_kind(self.mem, Kind.HWPOISON) == self.twin.lost
        assert views.pages_of_kind(self.mem, Kind.FREE) == set(self.twin.free_blocks)
        flagged = np.flatnonzero(self.mem.state.pages["pg_flags"] & 1)
        assert set(self.mem.pfns.pfn(flagged).tolist()) == self.twin.poisoned

    @invariant()
    def same_counts(self):
        state = self.mem.state
        for number, zone in enumerate(state.zones):
            assert zone["free_pages"] == self.twin.free_pages(number)
            assert zone["free_cma"] == self.twin.free_cma(number)
            assert zone["nr_free"][: self.geometry.max_page_order + 1].tolist() == self.twin.nr_free(number)
        allocated = self.twin.n_allocated
        assert state.vmstat[Vmstat.PGALLOC_NORMAL] == allocated["Normal"]
        assert state.vmstat[Vmstat.PGALLOC_MOVABLE] == allocated["Movable"]
        assert state.vmstat[Vmstat.PGFREE] == self.twin.n_freed
        assert state.queues["dropped"].tolist() == [queue.n_dropped for queue in self.queues]

    @invariant()
    def same_bytes(self):
        assert np.array_equal(self.mem.contents, self.bytes)


def test_walk__every_step_as_the_twin(walk_settings):
    run_state_machine_as_test(Walk, settings=walk_settings)
