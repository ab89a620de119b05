"""gfp flags by name: which zones and which migratetype a request asks for (include/linux/gfp_types.h)."""

from memmodel.errors import InputError
from memmodel.state.layout import MigrateType, ZoneType

__all__ = ["zone_and_type"]

# Bits that decide a zone or a migratetype. All others are accepted by name and have no effect on either.
DMA, HIGHMEM, DMA32, MOVABLE, RECLAIMABLE = 0x1, 0x2, 0x4, 0x8, 0x10
FLAGS = {
    "__GFP_DMA": DMA,
    "__GFP_HIGHMEM": HIGHMEM,
    "__GFP_DMA32": DMA32,
    "__GFP_MOVABLE": MOVABLE,
    "__GFP_RECLAIMABLE": RECLAIMABLE,
    "GFP_DMA": DMA,
    "GFP_DMA32": DMA32,
    "GFP_HIGHUSER": HIGHMEM,
    "GFP_HIGHUSER_MOVABLE": HIGHMEM | MOVABLE,
    "GFP_TRANSHUGE": HIGHMEM | MOVABLE,
    "GFP_TRANSHUGE_LIGHT": HIGHMEM | MOVABLE,
}
NEUTRAL = {
    *("GFP_ATOMIC", "GFP_KERNEL", "GFP_KERNEL_ACCOUNT", "GFP_NOWAIT", "GFP_NOIO", "GFP_NOFS", "GFP_USER"),
    *("__GFP_HIGH", "__GFP_IO", "__GFP_FS", "__GFP_ZERO", "__GFP_ATOMIC", "__GFP_DIRECT_RECLAIM", "__GFP_WRITE"),
    *("__GFP_KSWAPD_RECLAIM", "__GFP_RECLAIM", "__GFP_NOWARN", "__GFP_RETRY_MAYFAIL", "__GFP_NOFAIL"),
    *("__GFP_NORETRY", "__GFP_MEMALLOC", "__GFP_COMP", "__GFP_NOMEMALLOC", "__GFP_HARDWALL", "__GFP_THISNODE"),
    *("__GFP_ACCOUNT", "__GFP_ZEROTAGS", "__GFP_SKIP_ZERO", "__GFP_SKIP_KASAN", "__GFP_NOLOCKDEP"),
}
# gfp_zone(): highest zone by the low four bits; one that is not configured is ZONE_NORMAL.
ZONES = {
    0: ZoneType.NORMAL,
    DMA: ZoneType.DMA,
    HIGHMEM: ZoneType.HIGHMEM,
    DMA32: ZoneType.DMA32,
    MOVABLE: ZoneType.NORMAL,
    MOVABLE | DMA: ZoneType.DMA,
    MOVABLE | HIGHMEM: ZoneType.MOVABLE,
    MOVABLE | DMA32: ZoneType.DMA32,
}
ZONES_BELOW_NORMAL = ("x86_64", "arm64")  # architectures with CONFIG_ZONE_DMA and CONFIG_ZONE_DMA32


def zone_and_type(gfp: str, arch: str) -> tuple[ZoneType, MigrateType]:
    """Highest zone and migratetype of a request with these flags.

    Raises
    ------
    InputError
        If it is no text, a flag is unknown, or two zone or two mobility flags exclude each other.
    """
    if not isinstance(gfp, str):
        raise InputError(f"gfp {gfp!r}; flags are given by name, such as 'GFP_KERNEL|__GFP_COMP'")
    bits = 0
    for name in filter(None, (part.strip() for part in gfp.split("|"))):
        if name not in FLAGS and name not in NEUTRAL:
            raise InputError(f"unknown gfp flag {name!r}; known are {', '.join(sorted(FLAGS))} and flags without zone")
        bits |= FLAGS.get(name, 0)
    if bits & (DMA | HIGHMEM | DMA32 | MOVABLE) not in ZONES:
        raise InputError(f"gfp {gfp!r} asks for more than one zone")
    if bits & MOVABLE and bits & RECLAIMABLE:
        raise InputError(f"gfp {gfp!r} is both movable and reclaimable")
    zone = ZONES[bits & 0xF]
    if zone < ZoneType.NORMAL and arch not in ZONES_BELOW_NORMAL:
        zone = ZoneType.NORMAL
    return zone, MigrateType((bits & (MOVABLE | RECLAIMABLE)) >> 3)
