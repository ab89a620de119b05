"""The slow obvious twin of what a request says: its zones, its migratetype, and the flags of each attempt."""

from dataclasses import dataclass

from tests.reference.allocator_zone import LOW, MIN, MOVABLE

ZONE_INDEX = {"DMA": 0, "DMA32": 1, "Normal": 2, "Movable": 3}
NORMAL_INDEX, MOVABLE_INDEX = 2, 3

RECLAIM = {"DIRECT_RECLAIM", "KSWAPD_RECLAIM"}
KERNEL = RECLAIM | {"IO", "FS"}
HIGHUSER_MOVABLE = KERNEL | {"HARDWALL", "HIGHMEM", "MOVABLE"}
TRANSHUGE_LIGHT = (HIGHUSER_MOVABLE | {"COMP", "NOMEMALLOC", "NOWARN"}) - RECLAIM
GFP = {
    "GFP_TRANSHUGE": TRANSHUGE_LIGHT | {"DIRECT_RECLAIM"},
    "GFP_TRANSHUGE_LIGHT": TRANSHUGE_LIGHT,
    "GFP_HIGHUSER_MOVABLE": HIGHUSER_MOVABLE,
    "GFP_HIGHUSER": HIGHUSER_MOVABLE - {"MOVABLE"},
    "GFP_USER": KERNEL | {"HARDWALL"},
    "GFP_KERNEL_ACCOUNT": KERNEL | {"ACCOUNT"},
    "GFP_KERNEL": KERNEL,
    "GFP_NOFS": RECLAIM | {"IO"},
    "GFP_ATOMIC": {"HIGH", "KSWAPD_RECLAIM"},
    "GFP_NOIO": RECLAIM,
    "GFP_NOWAIT": {"KSWAPD_RECLAIM", "NOWARN"},
    "GFP_DMA": {"DMA"},
    "GFP_DMA32": {"DMA32"},
    "__GFP_RECLAIM": RECLAIM,
    "none": set(),
}


@dataclass(frozen=True)
class Request:
    """What a caller asks for; `gfp` are the bits by name, without __GFP_."""

    order: int
    migratetype: int
    gfp: frozenset

    @classmethod
    def parse(cls, order, migratetype, gfp_text):
        bits = set()
        for name in gfp_text.split("|"):
            bits |= GFP.get(name, {name.removeprefix("__GFP_")})
        return cls(order, migratetype, frozenset(bits))

    @property
    def highest_zone(self):
        """The highest zone it may come from (gfp_zone)."""
        if "DMA" in self.gfp:
            return ZONE_INDEX["DMA"]
        if "DMA32" in self.gfp:
            return ZONE_INDEX["DMA32"]
        return MOVABLE_INDEX if {"HIGHMEM", "MOVABLE"} <= self.gfp else NORMAL_INDEX

    @property
    def non_block(self):
        return not self.gfp & {"DIRECT_RECLAIM", "NOMEMALLOC"}

    @property
    def may_reserve(self):
        """Is it one of those that HIGHATOMIC blocks are kept for?"""
        return self.non_block and "HIGH" in self.gfp and self.order > 0


@dataclass(frozen=True)
class AllocFlags:
    """The ALLOC_* bits of one attempt; `mark` is None for ALLOC_NO_WATERMARKS."""

    mark: str | None
    cma: bool = False
    kswapd: bool = False
    nofragment: bool = False
    non_block: bool = False
    min_reserve: bool = False
    highatomic: bool = False
    oom: bool = False

    @property
    def reserves(self):
        return self.non_block or self.min_reserve or self.highatomic or self.oom

    @classmethod
    def fast(cls, request, preferred_zone):
        """Of the first attempt (prepare_alloc_pages, alloc_flags_nofragment)."""
        may_reserve = "highatomic_fast_path" in preferred_zone.features
        return cls(
            mark=LOW,
            cma=request.migratetype == MOVABLE,
            kswapd="KSWAPD_RECLAIM" in request.gfp,
            nofragment=preferred_zone.index == NORMAL_INDEX,
            highatomic=may_reserve and request.may_reserve,
        )

    @classmethod
    def slow(cls, request):
        """Of all later ones (gfp_to_alloc_flags); callers with PF_MEMALLOC or real-time priority are not modelled."""
        return cls(
            mark=MIN,
            cma=request.migratetype == MOVABLE,
            kswapd="KSWAPD_RECLAIM" in request.gfp,
            non_block=request.non_block,
            min_reserve="HIGH" in request.gfp,
            highatomic=request.may_reserve,
        )
