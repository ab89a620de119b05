"""The slow path: its order of attempts against the slow twin on random policies, and its rules one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memmodel as mm
from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED
from memmodel.kernels.freelist import ONE
from memmodel.mechanisms import slowpath
from memmodel.mechanisms.policies import ANSWERS
from memmodel.memory import PhysicalMemory
from memmodel.state.layout import NONE, Kind, PageFlag, Vmstat
from memmodel.state.sizing import Sysctls
from tests.reference import slowpath as twin
from tests.reference import views
from tests.reference.views import refused

SMALL = {"arch": "generic", "max_page_order": 4, "page_block_max_order": 2, "transparent_hugepage": False}
TRANSHUGE = "GFP_TRANSHUGE|__GFP_KSWAPD_RECLAIM"
SKIPPED, DEFERRED = mm.CompactResult.SKIPPED, mm.CompactResult.DEFERRED
COMPLETE, SUCCESS = mm.CompactResult.COMPLETE, mm.CompactResult.SUCCESS
GFP = (
    *("GFP_HIGHUSER_MOVABLE", "GFP_KERNEL", "GFP_NOFS", "GFP_NOIO", "GFP_KERNEL|__GFP_NORETRY"),
    *("GFP_HIGHUSER_MOVABLE|__GFP_RETRY_MAYFAIL", "GFP_KERNEL|__GFP_RETRY_MAYFAIL", "GFP_KERNEL|__GFP_NOFAIL"),
    *("GFP_TRANSHUGE|__GFP_NORETRY|__GFP_THISNODE", "GFP_TRANSHUGE", "GFP_TRANSHUGE|__GFP_NORETRY"),
    *("GFP_KERNEL|__GFP_MEMALLOC", "GFP_KERNEL|__GFP_HIGH", "GFP_NOFS|__GFP_NOFAIL", "GFP_KERNEL|__GFP_THISNODE"),
    *("GFP_KERNEL|__GFP_NORETRY|__GFP_NOFAIL", "GFP_HIGHUSER_MOVABLE|__GFP_NOFAIL"),
    *("GFP_KERNEL|__GFP_RECLAIMABLE", "GFP_KERNEL|__GFP_MEMALLOC|__GFP_NOMEMALLOC"),
)


class Script:
    """Both policies, from lists of what they do; the last entry is repeated."""

    def __init__(self, folios, amounts, compactions):
        self.folios, self.amounts, self.compactions = list(folios), list(amounts), list(compactions)

    def free(self, mem, count):
        taken, self.folios = self.folios[:count], self.folios[count:]
        mm.free_pages(mem, taken)
        return len(taken)

    def reclaim(self, mem, request):
        assert request.n_pages == 32
        amount = self.amounts.pop(0) if len(self.amounts) > 1 else self.amounts[0]
        return 32 if amount < 0 else self.free(mem, amount)  # a liar's progress

    def compact(self, mem, request):
        result, action = self.compactions.pop(0) if len(self.compactions) > 1 else self.compactions[0]
        captured = None
        if action == "free":
            self.free(mem, 8)
        if action == "capture" and result != SKIPPED:
            row = int(twin.capture(mem.state, request.zones[0], np.uint64(0), np.uint64(request.order)))
            captured = None if row == NONE else row
        return mm.Compaction(result, captured)


def full_memory(kernel_name, seed, n_free, nodes=1, reserve=False):
    """1024 pages, all but some movable and on the LRU lists, and the folios in random order."""
    geometry = Geometry(kernel=kernel_name, **SMALL)
    sysctls = Sysctls(min_free_kbytes=128)
    mem = PhysicalMemory(geometry, 1024 * 4096, nodes=nodes, cpus=2, sysctls=sysctls, seed=0)
    if reserve:  # two pageblocks for urgent requests, half of each free
        pages = mm.alloc_pages(mem, 1, 4, gfp="GFP_KERNEL")
        for row in mem.index(mem.pfn(pages[::2])):
            twin.reserve_pageblock(
                mem.state, np.uint64(mem.state.pages["zone"][row]), np.uint64(0), np.uint64(row), ONE
            )
        mm.free_pages(mem, pages[1::2])
        mm.drain_all_pages(mem)
    folios = np.empty(0, np.int64)
    while (got := mm.alloc_pages(mem, count=1024))[0] >= 0:
        folios = np.concatenate([folios, got[got >= 0]])
        mm.drain_all_pages(mem)  # what the last refill brought too much
    random = np.random.default_rng(seed)
    random.shuffle(folios)
    mm.free_pages(mem, folios[:n_free])
    mm.drain_all_pages(mem)
    return mem, folios[n_free:]


def bend(mem, random):
    """Marks close to what is free, differences between CPUs and counters, and few or no pages on LRU lists."""
    zones = mem.state.zones
    zones["stat_threshold"] = 30
    for row in range(zones.size):
        hidden = random.integers(-20, 20)
        zones["free_pages"][row] += hidden
        mem.state.pcp["free_diff"][row * mem.cpus] -= hidden
        zones["stat_threshold"][row] += abs(int(mem.state.pcp["free_diff"][row * mem.cpus]))
        free = int(zones["free_pages"][row])
        zones["watermark"][row] = max(free - random.integers(-40, 40), 0) + np.cumsum([0, *random.integers(0, 40, 2)])
        zones["watermark_boost"][row] = random.choice([0, 0, 30])
    on_lists = np.flatnonzero(mem.state.pages["pg_flags"] & PageFlag.LRU)
    kept = random.choice([0, 20, 60, on_lists.size])
    mem.state.pages["pg_flags"][random.permutation(on_lists)[kept:]] = 0


ACTIONS = st.tuples(st.sampled_from(ANSWERS), st.sampled_from([None, None, "free", "capture"]))


@pytest.fixture
def few_rounds(monkeypatch):
    monkeypatch.setattr(slowpath, "MAX_STUCK_ROUNDS", 40)


@pytest.mark.parametrize("kernel_name", ["6.1", "6.12.117", "7.3"])
def test_alloc_pages__steps_as_the_twin(kernel_name, few_rounds):
    seen = set()

    @settings(deadline=None, max_examples=200 if JIT_ENABLED else 10)
    @given(
        order=st.integers(0, 4),
        gfp=st.sampled_from(GFP),
        amounts=st.lists(st.sampled_from([0, 0, 1, 4, 32, -1]), min_size=1, max_size=4),
        compactions=st.lists(ACTIONS, min_size=1, max_size=4),
        plugged=st.sampled_from([(True, True), (True, True), (True, False), (False, True)]),
        start=st.tuples(st.integers(0, 1000), st.sampled_from([0, 0, 3, 20]), st.integers(1, 2), st.booleans()),
        bent=st.sampled_from(["", "bent", "bent", "exhausted"]),
    )
    def compare(order, gfp, amounts, compactions, plugged, start, bent):
        seed, n_free, nodes, reserve = start
        mem, folios = full_memory(kernel_name, seed, n_free, nodes, reserve)
        if bent == "bent":
            bend(mem, np.random.default_rng(seed))
        elif bent:
            mm.alloc_pages(mem, count=1024, gfp="GFP_KERNEL|__GFP_MEMALLOC")
        mem.check()
        other = mem.copy()
        ours, theirs = (Script(folios, amounts, compactions) for _ in range(2))
        reclaim, compact = plugged
        trace = []
        handles = mm.alloc_pages(
            mem,
            order,
            gfp=gfp,
            reclaim=ours.reclaim if reclaim else None,
            compact=ours.compact if compact else None,
            trace=trace,
        )
        world = twin.World(
            *(other, order, gfp, 0, theirs.reclaim if reclaim else None, theirs.compact if compact else None, 40)
        )
        handle, outcome = twin.alloc(world)
        first = {"wake_kswapd", "freelist low", "freelist min", "freelist reserves"}
        if outcome == "page" and first >= set(world.log) and world.log.count("freelist min") == 1:
            assert trace == []
        else:
            assert trace == world.log + [outcome] * (outcome is not None)
        assert handles.tolist() == [handle]
        assert views.frozen(mem) == views.frozen(other)
        mem.check()
        seen.update(trace)

    compare()
    if JIT_ENABLED:
        assert {"drain_all_pages", "would_oom", "failed", "page"} <= seen


def counted(mem):
    other = ("pg", "pcp_refills", "buddy_splits", "extfrag_events")
    return {name: n for name, n in mem.vmstat().items() if n and not name.startswith(other)}


def never(mem, request):
    return 0


def always(result):
    return lambda mem, request: mm.Compaction(result)


@pytest.fixture
def full():
    return full_memory("6.12.117", 0, 0)


def run(mem, order, gfp, reclaim=never, compact=None):
    trace = []
    handles = mm.alloc_pages(mem, order, gfp=gfp, reclaim=reclaim, compact=compact, trace=trace)
    mem.check()
    return int(handles[0]), trace


def test_alloc_pages__without_policies_a_request_fails_after_two_attempts(full):
    mem, _ = full
    trace = []
    assert mm.alloc_pages(mem, 2, 3, gfp="GFP_KERNEL", trace=trace).tolist() == [-1] * 3
    assert trace == ["freelist low", "wake_kswapd", "freelist min", "failed"]
    assert counted(mem) == {}


def test_alloc_pages__a_request_that_may_not_reclaim_fails_at_once(full):
    mem, folios = full
    mm.alloc_pages(mem, count=1024, gfp="GFP_KERNEL|__GFP_MEMALLOC")  # the last page
    policy = mm.LeastRecentlyAllocated(folios)
    assert run(mem, 0, "GFP_ATOMIC", policy)[1] == ["freelist low", "wake_kswapd", "freelist min", "failed"]
    assert run(mem, 0, "GFP_TRANSHUGE_LIGHT", policy)[1] == ["freelist low", "freelist min", "failed"]


def test_alloc_pages__reclaim_gives_a_page_once_the_lists_are_drained(full):
    """The 32 pages freed lie on the CPU's list, where no watermark sees them."""
    mem, folios = full
    handle, trace = run(mem, 0, "GFP_HIGHUSER_MOVABLE", mm.LeastRecentlyAllocated(folios))
    assert handle >= 0
    start = ["freelist low", "wake_kswapd", "freelist min"]
    assert trace[:3] == start
    assert trace[3:6] == ["wake_kswapd", "freelist min", "reclaim"]
    assert trace[-1] == "page"
    assert counted(mem) == {"allocstall_movable": 1}
    assert mem.vmstat()["pgsteal_direct"] == 32


def test_alloc_pages__seventeen_rounds_without_progress_and_oom(full):
    """no_progress_loops reaches 17 at the seventeenth round."""
    mem, _ = full
    handle, trace = run(mem, 0, "GFP_KERNEL")
    assert (handle, trace[-1]) == (-1, "would_oom")
    assert trace.count("reclaim") == 17
    assert trace[-4:] == ["unreserve_highatomic force", "freelist high", "oom", "would_oom"]
    assert counted(mem) == {"allocstall_normal": 17}


def test_alloc_pages__nothing_reclaimable_is_one_round(full):
    """No zone would pass even with all that is on the LRU lists."""
    mem, _ = full
    mem.state.pages["pg_flags"] &= ~np.uint8(PageFlag.LRU)
    assert run(mem, 0, "GFP_KERNEL")[1].count("reclaim") == 1


@pytest.mark.parametrize(
    ("gfp", "outcome"),
    [
        ("GFP_KERNEL", "would_oom"),
        ("GFP_KERNEL|__GFP_RETRY_MAYFAIL", "failed"),
        ("GFP_KERNEL|__GFP_THISNODE", "failed"),
        ("GFP_KERNEL|__GFP_NORETRY", "failed"),
        ("GFP_NOFS", "would_loop"),
        ("GFP_NOFS|__GFP_NOFAIL|__GFP_NORETRY", "would_loop"),
        ("GFP_KERNEL|__GFP_RETRY_MAYFAIL|__GFP_NOFAIL", "would_loop"),
    ],
)
def test_alloc_pages__how_it_ends(full, gfp, outcome):
    mem, _ = full
    mm.alloc_pages(mem, count=1024, gfp="GFP_KERNEL|__GFP_MEMALLOC")  # the last page
    assert run(mem, 0, gfp)[1][-1] == outcome


def test_alloc_pages__nofail_may_take_the_reserves(full):
    mem, _ = full
    handle, trace = run(mem, 0, "GFP_KERNEL|__GFP_NOFAIL")
    assert handle >= 0
    assert trace[-3:] == ["oom", "freelist no_watermarks", "page"]


def test_alloc_pages__a_policy_that_lies_for_ever_ends(full, few_rounds):
    mem, _ = full
    handle, trace = run(mem, 0, "GFP_KERNEL", lambda mem, request: 1)
    assert (handle, trace[-1], trace.count("reclaim")) == (-1, "would_loop", 41)


@pytest.mark.parametrize(
    ("kernel_name", "result", "n_compactions", "n_reclaims"),
    [
        ("6.12.117", SKIPPED, 1, 0),
        ("6.12.117", DEFERRED, 1, 0),
        ("6.12.117", COMPLETE, 2, 1),
        ("7.3", SKIPPED, 2, 1),
        ("7.3", COMPLETE, 2, 1),
    ],
)
def test_alloc_pages__costly_noretry(kernel_name, result, n_compactions, n_reclaims):
    """Before 7.2 a first compaction that did not run ends it; since then there is one round of reclaim."""
    mem, _ = full_memory(kernel_name, 0, 0)
    _, trace = run(mem, 4, "GFP_TRANSHUGE|__GFP_NORETRY", compact=always(result))
    assert sum(step.startswith("compact async") for step in trace) == n_compactions
    assert trace.count("reclaim") == n_reclaims
    assert trace[-1] == "failed"


@pytest.mark.parametrize("kernel_name", ["6.1", "6.12.117", "7.3"])
def test_alloc_pages__a_huge_page_fault_on_its_node_compacts_and_never_reclaims(kernel_name):
    mem, _ = full_memory(kernel_name, 0, 0)
    _, trace = run(mem, 4, "GFP_TRANSHUGE|__GFP_NORETRY|__GFP_THISNODE", compact=always(COMPLETE))
    assert trace == ["freelist low", "freelist min", "compact async complete", "freelist min", "failed"]


@pytest.mark.parametrize(
    ("order", "gfp", "n_compactions"),
    [
        (4, "GFP_HIGHUSER_MOVABLE|__GFP_RETRY_MAYFAIL", 1 + 5),
        (3, "GFP_HIGHUSER_MOVABLE", 17 + 17),
        (2, "GFP_KERNEL", 1 + 17 + 17),
    ],
)
def test_alloc_pages__compactions_after_success(order, gfp, n_compactions):
    """A success that brings no page is tried 16 times again (costly: 4) at each priority, after the first ASYNC one."""
    mem, _ = full_memory("6.12.117", 0, 0)
    mem.state.pages["pg_flags"] &= ~np.uint8(PageFlag.LRU)  # reclaim alone is no reason to go on
    _, trace = run(mem, order, gfp, lambda mem, request: 1, always(SUCCESS))
    compactions = [step for step in trace if step.startswith("compact")]
    assert len(compactions) == n_compactions
    assert counted(mem)["compact_stall"] == counted(mem)["compact_fail"] == n_compactions
    last = "sync_light" if order > 3 else "sync_full"
    assert compactions[-1] == f"compact {last} success"


@pytest.mark.parametrize("kernel_name", ["6.12.117", "7.3"])
@pytest.mark.parametrize("enough", [True, False])
@pytest.mark.parametrize(
    ("order", "gfp", "mark", "given_up"),
    [(2, "GFP_HIGHUSER_MOVABLE", 0, "would_oom"), (4, "GFP_HIGHUSER_MOVABLE|__GFP_RETRY_MAYFAIL", 1, "failed")],
)
def test_alloc_pages__skipped_compactions(kernel_name, order, gfp, mark, given_up, enough, few_rounds):
    """Tried again while free + reclaimable / order > mark + compact_gap: the low mark if costly, else the min mark."""
    mem, _ = full_memory(kernel_name, 0, 0)
    mm.alloc_pages(mem, count=1024, gfp="GFP_KERNEL|__GFP_MEMALLOC")  # the last page
    on_lists = int(np.count_nonzero(mem.state.pages["pg_flags"] & PageFlag.LRU))
    needed = on_lists // order - (2 << order) - enough
    mem.state.zones["watermark"] = [[needed, 1 << 20, 1 << 20], [0, needed, 1 << 20]][mark]
    _, trace = run(mem, order, gfp, lambda mem, request: 1, always(SKIPPED))
    assert trace[-1] == ("would_loop" if enough else given_up)


def test_alloc_pages__with_all_reserves_compaction_is_not_tried_first(full):
    mem, _ = full
    mm.alloc_pages(mem, count=1024, gfp="GFP_KERNEL|__GFP_MEMALLOC")
    _, trace = run(mem, 2, "GFP_KERNEL|__GFP_MEMALLOC", compact=always(COMPLETE))
    assert trace[3:8] == [
        "wake_kswapd",
        "freelist reserves",
        "reclaim",
        "compact sync_light complete",
        "freelist reserves",
    ]


def test_alloc_pages__a_deferred_compaction_counts_as_a_stall(full):
    mem, _ = full
    run(mem, 4, "GFP_TRANSHUGE|__GFP_NORETRY|__GFP_THISNODE", compact=always(DEFERRED))
    assert counted(mem) == {"compact_stall": 1, "compact_fail": 1}
    run(mem, 4, "GFP_TRANSHUGE|__GFP_NORETRY|__GFP_THISNODE", compact=always(SKIPPED))
    assert counted(mem) == {"compact_stall": 1, "compact_fail": 1}


def test_alloc_pages__captured(small_geometry):
    """The block never was on a free list as far as the request goes, and pgalloc does not count it."""
    mem = views.plain_memory(small_geometry, 64 * 4096, seed=0)
    mm.alloc_pages(mem, count=48)
    mem.state.zones["watermark"] = 16
    before = mem.vmstat()["pgalloc_normal"]
    script = Script([], [0], [(SUCCESS, "capture")])
    handle, trace = run(mem, 4, "GFP_TRANSHUGE", compact=script.compact)
    assert mem.pfn([handle]).tolist() == [48]
    assert trace[-3:] == ["compact async success", "captured", "page"]
    assert mem.vmstat()["pgalloc_normal"] == before
    assert views.pages_of_kind(mem, Kind.FREE) == set()
    assert counted(mem) == {"compact_stall": 1, "compact_success": 1}
    assert mem.state.pages["pg_flags"][48] & PageFlag.LRU


def test_alloc_pages__several_requests_each_with_reclaim(full):
    mem, folios = full
    trace = []
    got = mm.alloc_pages(mem, count=200, reclaim=mm.LeastRecentlyAllocated(folios), trace=trace)
    assert (got >= 0).all()
    assert trace.count("page") == mem.vmstat()["allocstall_movable"]
    assert 5 <= trace.count("page") <= 200
    mem.check()


def test_alloc_pages__policies_that_allocate(full):
    """The table of folios grows under the request's feet."""
    mem, folios = full
    policy = mm.LeastRecentlyAllocated(folios)

    def greedy(mem, request):
        freed = policy(mem, request) + policy(mem, request)
        mm.alloc_pages(mem, count=16, gfp="GFP_KERNEL|__GFP_MEMALLOC")
        return freed

    assert run(mem, 0, "GFP_KERNEL", greedy)[0] >= 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reclaim": lambda mem, request: None}, "a reclaim policy says how many pages it freed, not None"),
        ({"reclaim": lambda mem, request: -1}, "not -1"),
        ({"reclaim": lambda mem, request: True}, "not True"),
        ({"reclaim": 32}, "reclaim, compact and kswapd are functions, not 32"),
        ({"compact": "success"}, "reclaim, compact and kswapd are functions, not 'success'"),
        ({"compact": lambda mem, request: SUCCESS}, "a compaction policy answers a Compaction"),
        ({"compact": lambda mem, request: mm.Compaction(8)}, "a compaction policy answers a Compaction"),
        ({"compact": lambda mem, request: mm.Compaction(SUCCESS, 0)}, "captured row 0: no used block of order 4"),
        ({"compact": lambda mem, request: mm.Compaction(SUCCESS, -5)}, "captured row -5"),
    ],
)
def test_alloc_pages__bad_policies(full, options, message):
    mem, _ = full
    with pytest.raises(mm.InputError, match=message) as caught:
        mm.alloc_pages(mem, 4, gfp="GFP_KERNEL", **options)
    assert "\n" not in str(caught.value)
    mem.check()


def test_alloc_pages__a_captured_folio_is_not_somebody_else_s(full):
    mem, folios = full
    row = int(mem.index(mem.pfn(folios[:1]))[0])
    mem.state.pages["state"][row] = Kind.USED << 4 | 4
    with pytest.raises(mm.InputError, match=f"captured row {row}: no used block of order 4 without a handle"):
        mm.alloc_pages(mem, 4, gfp="GFP_KERNEL", compact=lambda mem, request: mm.Compaction(SUCCESS, row))


def test_alloc_pages__bad_policies_change_nothing(full):
    refused(full[0], "are functions", mm.alloc_pages, reclaim=1)
    refused(full[0], "trace is a list", mm.alloc_pages, trace=5)
    with pytest.raises(mm.InputError, match="reclaim is a function, not 5"):
        mm.WokenKswapd(5)


@pytest.mark.parametrize(
    "allocate",
    [
        mm.alloc_pages,
        lambda mem, order, count, **steps: mm.thp_fault(mem, count, **steps),
        lambda mem, order, count, **steps: mm.alloc_hugetlb(mem, count, **steps),
    ],
)
def test_alloc_pages__a_policy_that_raises_loses_no_page(allocate):
    """What the call had got before is free again."""

    def fails(mem, request):
        raise KeyError

    mem = PhysicalMemory(Geometry(), "64MiB", seed=0)
    with pytest.raises(KeyError):
        allocate(mem, 9, 100, compact=fails)
    assert mem.state.slots[0] == 0  # live folios
    mem.check()


def fragmented(kernel_name):
    """Every other page is free: a huge page takes a compaction."""
    mem = PhysicalMemory(Geometry(kernel=kernel_name), "64MiB", cpus=2, seed=3)
    folios = mm.alloc_pages(mem, count=1 << 14)
    mm.free_pages(mem, folios[folios >= 0][::2])
    mm.drain_all_pages(mem)
    return mem


@pytest.mark.parametrize("kernel_name", ["6.1", "6.12.117", "7.3"])
@pytest.mark.parametrize("busy", [False, True])
def test_alloc_pages__kswapd_has_its_turn_before_the_first_pageblock_is_scanned(kernel_name, busy):
    """What it does then, compaction on the same CPU too, leaves the request's own run as it was."""
    mem, turns = fragmented(kernel_name), []

    def kswapd(mem, wake):
        turns.append(mem.state.vmstat[[Vmstat.COMPACT_STALL, Vmstat.COMPACT_MIGRATE_SCANNED]].tolist())
        if busy:
            mm.free_pages(mem, mm.alloc_pages(mem, 2, 3))
            mm.compact_zone(mem, mem.zone_name(0), order=3)

    plain = mem.copy()
    got = mm.alloc_pages(mem, 9, 2, gfp=TRANSHUGE, compact=mm.try_to_compact_pages, kswapd=kswapd)
    assert turns[0] == [0, 0]
    assert (got >= 0).all()
    mem.check()
    expected = mm.alloc_pages(plain, 9, 2, gfp=TRANSHUGE, compact=mm.try_to_compact_pages)
    assert busy or (got.tolist(), mem.digest) == (expected.tolist(), plain.digest)


def test_alloc_pages__kswapd_s_turn_at_reclaim_or_at_the_end(full):
    mem, _ = full
    seen = []
    policies = {
        "kswapd": lambda mem, wake: seen.append("kswapd"),
        "compact": lambda mem, request: seen.append("compact") or mm.Compaction(SKIPPED),
        "reclaim": lambda mem, request: seen.append("reclaim") or 0,
    }
    mm.alloc_pages(mem, 3, gfp="GFP_HIGHUSER_MOVABLE|__GFP_NORETRY", **policies)
    assert seen[: seen.index("reclaim") + 1] == ["kswapd", "reclaim"]
    seen.clear()
    mm.alloc_pages(mem, 4, gfp=f"{TRANSHUGE}|__GFP_NORETRY|__GFP_THISNODE", **policies)
    assert seen == ["compact", "kswapd"]
