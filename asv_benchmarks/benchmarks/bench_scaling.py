"""Cost of an operation from 1 GiB to 256 GiB, beside that of a cache miss over as many bytes, measured in the same run.

scaling.py in the folder above prints the table and draws it.
"""

import numba
import numpy as np

import memmodel as mm
from memmodel.state.layout import page_dtype

from . import best_of, machine, need_memory, skip_slow, warm_kernels

SIZES = [f"{1 << n}GiB" for n in range(9)]
USED_SHARE = 1 / 4
REQUEST_SHARE = {0: 1 / 64, 9: USED_SHARE}
N_STEPS = 1 << 18
MULTIPLIER, INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)
CHANGED, PLACE_BITS = np.uint64(1 << 63), np.uint64((1 << 63) - 1)


@numba.njit(nogil=True)
def chase(words, place, n_steps):
    """Read a word, change it, and go where it leads: each step waits for the miss of the one before."""
    for _ in range(n_steps):
        word = words[place] ^ CHANGED
        words[place] = word
        place = word & PLACE_BITS
    return place


def random_ring(n_words):
    """Words (a power of two) that lead to each other in one ring: the orbit of a congruential generator."""
    places = np.arange(n_words, dtype=np.uint64)
    places *= MULTIPLIER
    places += INCREMENT
    places &= np.uint64(n_words - 1)
    return places


class Scaling:
    """Random folios freed and as many allocated, a quarter of the zone in use; what a call costs is not counted.

    The yardstick is a chain of reads and writes at random places, over as many bytes as the records of all pages take:
    one miss of caches and TLB a step.
    """

    params = (SIZES,)
    param_names = ("zone",)
    unit = "ns"
    timeout = 600
    size: str | None = None  # in place of the parameter
    turns = 5

    def setup(self, zone):
        if zone != SIZES[0]:
            skip_slow()
        warm_kernels()
        self.mem = machine(self.size or zone)
        need_memory(4 * self.mem.nbytes["pages"] + (1 << 30))
        chase(random_ring(8), np.uint64(0), 1)

    def pair_ns(self, order):
        """Shortest time of a free and an allocation."""
        n_pages = self.mem.pfns.n_pages
        folios = mm.alloc_pages(self.mem, order, int(n_pages * USED_SHARE) >> order)
        n_requests = int(n_pages * REQUEST_SHARE[order]) >> order
        rng, best = np.random.default_rng(0), np.inf
        nothing = sum(best_of(100, lambda: mm.free_pages(self.mem, []), lambda: mm.alloc_pages(self.mem, order, 0)))
        for _ in range(self.turns):
            places = rng.choice(folios.size, n_requests, replace=False)
            given, got = folios[places], []
            calls = (
                lambda given=given: mm.free_pages(self.mem, given),
                lambda got=got: got.append(mm.alloc_pages(self.mem, order, n_requests)),
            )
            best = min(best, sum(best_of(1, *calls)))
            (folios[places],) = got
        if (folios < 0).any():
            raise AssertionError("a request failed")
        return (best - nothing) * 1e9 / n_requests

    def track_order_0(self, zone):
        return self.pair_ns(0)

    def track_order_9(self, zone):
        return self.pair_ns(9)

    def track_cache_miss(self, zone):
        n_bytes = self.mem.pfns.n_pages * page_dtype.itemsize
        words = random_ring(1 << (n_bytes >> 3).bit_length() - 1)
        n_steps, place, best = min(words.size, N_STEPS), np.uint64(0), np.inf
        for _ in range(self.turns):  # each goes on where the last one stopped: what it has touched is in the caches
            ends = []
            best = min(best, *best_of(1, lambda at=place, to=ends: to.append(chase(words, at, n_steps))))
            place = np.uint64(ends[0])
        return best * 1e9 / n_steps
