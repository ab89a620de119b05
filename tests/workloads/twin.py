"""The slow obvious twin of the workloads: a coroutine for each generator, lots as lists, one request a call.

It draws the same random numbers from its own xoshiro256++, and asks an equal memory.
"""

import numpy as np

from memmodel.mechanisms.buddy import Asked, allocate, free_pages
from memmodel.sources.gfp import parse_gfp

WORD = (1 << 64) - 1
NAMES = ("anonymous", "page_cache", "kernel", "pinned", "thp", "dma_buf")
TURNS = len(NAMES) + 1
MOVABLE = "GFP_HIGHUSER_MOVABLE"
LARGE_SLAB = "__GFP_IO|__GFP_FS|__GFP_RECLAIMABLE|__GFP_COMP|__GFP_NOMEMALLOC|__GFP_NOWARN|__GFP_NORETRY"
LARGE_CHUNK = "__GFP_IO|__GFP_FS|__GFP_HARDWALL|__GFP_HIGHMEM|__GFP_ZERO|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP"


class Random:
    """xoshiro256++ (Blackman and Vigna), and the numbers made of it."""

    def __init__(self, seed, code):
        self.s = np.random.SeedSequence(seed, spawn_key=(code,)).generate_state(4, np.uint64).tolist()

    def draw(self):
        def rotate(x, k):
            return (x << k | x >> 64 - k) & WORD

        s = self.s
        result = (rotate((s[0] + s[3]) & WORD, 23) + s[0]) & WORD
        t = s[1] << 17 & WORD
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotate(s[3], 45)
        return result

    def below(self, n):
        return (self.draw() >> 32) * n >> 32

    def fraction(self):
        return (self.draw() >> 11) / 2**53

    def chance(self, probability):
        return self.fraction() < probability

    def about(self, mean):
        return self.below(int(2 * mean - 1)) + 1


# -- the generators: each yields operations, and is told whether its request succeeded -------------------------------


def anonymous(me, random, process_pages=512):
    faults = [0] * 4
    while True:
        pool = random.below(4)
        if faults[pool]:
            faults[pool] -= 1
            came = yield "join", 0, "anonymous", pool
        elif me.room <= 0:
            yield "end_random", pool
            continue
        else:
            faults[pool] = random.about(process_pages) - 1
            came = yield "begin", 0, "anonymous", pool
        if not came:
            faults[pool] = 0
            yield "end_random", pool


def page_cache(me, random, file_pages=32, slab_chance=0.4, drop_chance=0):
    to_drop = 0

    def reclaim():
        files, slabs = len(me.pools[0]), len(me.pools[1])
        return ("end_random", 1) if random.below(files + slabs) < slabs else ("end_oldest", 0)

    while True:
        if to_drop or me.room <= 0:
            to_drop = max(to_drop - 1, 0)
            yield reclaim()
            continue
        if random.chance(drop_chance):
            to_drop = len(me.pools[0])
        if random.chance(slab_chance):
            order = min(3, me.max_order) if random.chance(0.5) else 0
            came = yield "begin", order, "reclaimable_slab", 1
            if not came and order:
                came = yield "begin", 0, "reclaimable_slab", 1
        else:
            left = random.about(file_pages) - 1
            came = yield "begin", 0, "page_cache", 0
            while came and left:
                left -= 1
                came = yield "join", 0, "page_cache", 0
        if not came:
            yield reclaim()


def kernel(me, random, burst_requests=64, long_chance=0.25, larger_chance=0.3, kernel_turnover=0.1):
    while True:
        while me.pools[0]:
            yield "end_random", 0
        while me.room < -8:
            yield "end_random", 1
        replaces = me.room <= 0 and random.chance(kernel_turnover)
        left = random.about(burst_requests)
        if replaces:
            yield "end_random", 1
        while left:
            left -= 1
            order = 0
            while order < min(3, me.max_order) and random.chance(larger_chance):
                order += 1
            long_lived = me.room > 2 * burst_requests or (me.room > 0 and random.chance(long_chance))
            if not (yield "begin", order, "kernel", int(long_lived)):
                left = 0


def pinned(me, random, pinned_pages=64, pinned_turnover=0.01):
    while True:
        if me.room <= 0:
            goes = me.room < -2 * pinned_pages or random.chance(pinned_turnover)
            yield ("end_random", 0) if goes else ("nothing",)
            continue
        left = random.about(pinned_pages) - 1
        came = yield "begin", 0, "pinned", 0
        while came and left:
            left -= 1
            came = yield "join", 0, "pinned", 0
        if not came:
            yield "end_random", 0


def thp(me, random, huge_pages=8, fallback_pages=512):
    while True:
        if me.room <= 0:
            yield "end_random", 0
            continue
        left, action = random.about(huge_pages), "begin"
        while left:
            left -= 1
            came = yield action, me.pmd_order, "thp", 0
            action = "join"
            singles = 0 if came else int(fallback_pages)
            while singles:
                singles -= 1
                if not (yield "join", 0, "anonymous", 0):
                    yield "end_random", 0
                    left = singles = 0


def dma_buf(me, random, dma_buf_pages=2048):
    while True:
        if me.room <= 0:
            yield "end_random", 0
            continue
        remaining, max_order, action = random.about(dma_buf_pages), 8, "begin"
        while remaining:
            for order in (8, 4, 0):
                if remaining >= 1 << order and order <= min(max_order, me.max_order):
                    if (yield action, order, "dma_buf", 0):
                        remaining -= 1 << order
                        max_order, action = order, "join"
                        break
            else:
                remaining = 0
                yield ("end_newest", 0) if action == "join" else ("nothing",)


GENERATORS = {f.__name__: f for f in (anonymous, page_cache, kernel, pinned, thp, dma_buf)}


# -- the loop ----------------------------------------------------------------------------------------------------------


def gfp_of(kind, order):
    """(flags, on an LRU list) of a request, from 6.2 on."""
    return {
        "anonymous": (MOVABLE, True),
        "page_cache": (MOVABLE, True),
        "reclaimable_slab": (LARGE_SLAB if order else "GFP_KERNEL|__GFP_RECLAIMABLE", False),
        "kernel": ("GFP_KERNEL", False),
        "pinned": (MOVABLE, False),
        "thp": ("GFP_TRANSHUGE_LIGHT", True),
        "dma_buf": (LARGE_CHUNK if order else "GFP_HIGHUSER|__GFP_ZERO", False),
    }[kind]


class Member:
    """One generator of a mix: its pools of lots, each lot a list of (handle, order, kind)."""

    def __init__(self, name, share, seed, geometry, settings):
        self.share, self.debt = share, 0
        self.max_order, self.pmd_order = geometry.max_page_order, geometry.hpage_pmd_order
        self.pools = [[] for _ in range(4)]
        self.open = [None] * 4
        self.level = 0
        self.random = Random(seed, NAMES.index(name))
        self.operations = GENERATORS[name](self, self.random, **settings)
        self.answer = None

    @property
    def folios(self):
        return [folio for pool in self.pools for lot in pool for folio in lot]

    @property
    def pages(self):
        return sum(1 << order for _, order, _ in self.folios)

    @property
    def room(self):
        return self.level - self.pages


class Twin:
    """A workload on a memory; `log` has every request and every free, in order, with the page frame numbers."""

    def __init__(self, mem, weights, seed, fill, cpu=0, **settings):
        self.mem, self.cpu, self.log = mem, cpu, []
        total = sum(weights.values())
        self.members = [
            Member(name, weights[name] / total, seed, mem.geometry, settings.get(name, {}))
            for name in NAMES
            if name in weights
        ]
        self.turns = Random(seed, TURNS)
        zones, pcp = mem.state.zones, mem.state.pcp
        managed = int(zones["managed"].sum())
        free = int(zones["free_pages"].sum() + pcp["free_diff"].sum() + pcp["count"].sum())
        for member in self.members:
            member.level = int(member.share * max(fill * managed - (managed - free), 0.0))

    def whose_turn(self):
        if len(self.members) == 1:
            return self.members[0]
        while True:
            drawn, shares = self.turns.fraction(), np.cumsum([member.share for member in self.members])
            member = next((m for m, share in zip(self.members[:-1], shares, strict=False) if drawn < share), None)
            member = member or self.members[-1]
            if member.debt == 0:
                return member
            member.debt -= 1

    def step(self):
        member = self.whose_turn()
        action, *rest = member.operations.send(member.answer)
        member.answer = True
        if action in ("begin", "join"):
            member.answer = self.request(member, action, *rest)
        elif action != "nothing":
            self.end(member, action, *rest)

    def request(self, member, action, order, kind, pool):
        gfp, lru = gfp_of(kind, order)
        if action == "begin":
            member.open[pool] = None
        handle = int(allocate(self.mem, Asked(order, parse_gfp(gfp), 0, self.cpu, lru), 1)[0])
        if handle == -1:
            self.log.append(("failed", kind, order))
            return False
        if member.open[pool] is None:
            member.open[pool] = []
            member.pools[pool].append(member.open[pool])
        member.open[pool].append((handle, order, kind))
        member.debt = (1 << order) - 1
        self.log.append(("allocated", kind, order, int(self.mem.pfn(handle)[0])))
        return True

    def end(self, member, action, pool):
        lots = member.pools[pool]
        if not lots:
            return
        if action == "end_oldest":
            lot = lots.pop(0)
        elif action == "end_newest":
            lot = lots.pop()
        else:
            place = member.random.below(len(lots))
            lot, lots[place] = lots[place], lots[-1]
            lots.pop()
        if lot is member.open[pool]:
            member.open[pool] = None
        handles = [handle for handle, _, _ in lot]
        pfns = self.mem.pfn(handles).tolist()
        self.log += [("freed", kind, order, pfn) for (_, order, kind), pfn in zip(lot, pfns, strict=True)]
        free_pages(self.mem, handles, cpu=self.cpu)

    def counts(self, what, kinds, n_orders):
        """Of the log, as the outcome has them."""
        table = np.zeros((len(kinds), n_orders), np.int64)
        for happened, kind, order, *_ in self.log:
            table[kinds.index(kind), order] += happened == what
        return table

    def handles(self):
        return sorted(handle for member in self.members for handle, _, _ in member.folios)
