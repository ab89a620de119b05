"""The sizes of a kernel build: page size, orders, pageblock order, CMA alignment, zones and features."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, SupportsInt

from memmodel.errors import GeometryError, InputError
from memmodel.sources.features import DEFAULT_KERNEL, select_features, version_notes
from memmodel.sources.kconfig import geometry_options, read_kconfig
from memmodel.sources.reading import PathLike
from memmodel.sources.spans import END_OF_MEMORY_BYTES
from memmodel.units import format_bytes, parse_bytes

__all__ = ["ARCHES", "PREEMPT_MODELS", "Geometry", "ZoneLimits", "zone_limits"]

ARCHES = ("x86_64", "arm64", "powerpc64", "generic")
PREEMPT_MODELS = ("none", "voluntary", "lazy", "full")

_ALIASES = {
    **dict.fromkeys(("x86", "x86-64", "amd64", "x64"), "x86_64"),
    "aarch64": "arm64",
    **dict.fromkeys(("powerpc", "ppc64", "ppc64le", "ppc64el"), "powerpc64"),
}
_MIN_PAGE_SHIFT, _MAX_PAGE_SHIFT = 12, 20


class _Build(NamedTuple):
    """What an architecture fixes for one page size."""

    page_shift: int
    max_page_order: int  # default, inclusive
    section_size_bits: int
    pmd_shift: int


# arch/*/Kconfig (ARCH_FORCE_MAX_ORDER) and asm/sparsemem.h of 6.1 to 7.3
_BUILDS = {
    "x86_64": (_Build(12, 10, 27, 21),),
    "arm64": (_Build(12, 10, 27, 21), _Build(14, 11, 27, 25), _Build(16, 13, 29, 29)),
    "powerpc64": (_Build(12, 12, 24, 21), _Build(16, 8, 24, 21)),
}

_FLAGS = ("transparent_hugepage", "hugetlb", "hugetlb_size_variable", "cma", "memory_isolation", "highmem")


@dataclass(frozen=True, init=False)
class Geometry:
    """The memory geometry of one kernel build.

    Built from the kernel's options, it derives what the kernel's headers derive: include/linux/mmzone.h
    (MAX_PAGE_ORDER, PAGE_BLOCK_MAX_ORDER), include/linux/pageblock-flags.h (pageblock_order), include/linux/cma.h
    (CMA_MIN_ALIGNMENT_BYTES), as of 6.1 to 7.3, and the older CMA alignment. Frozen, hashable, comparable by
    what it stands for: ``Geometry()`` equals ``Geometry(page_size="4KiB", arch="amd64")``.

    Parameters
    ----------
    page_size
        Bytes, or text such as ``"16KiB"``: a power of two from 4 KiB to 1 MiB that the architecture has.
    arch
        One of `ARCHES` or a usual alias; None picks x86_64 for 4 KiB, arm64 for 16 and 64 KiB, else generic (page
        tables of one page of 8-byte entries; MAX_PAGE_ORDER large enough for a PMD page).
    kernel
        Name that begins with X.Y[.Z]; picks the features.
    transparent_hugepage, hugetlb, hugetlb_size_variable, cma, memory_isolation, highmem
        CONFIG_TRANSPARENT_HUGEPAGE, CONFIG_HUGETLB_PAGE, CONFIG_HUGETLB_PAGE_SIZE_VARIABLE (powerpc), CONFIG_CMA,
        CONFIG_MEMORY_ISOLATION, CONFIG_HIGHMEM (32-bit kernels: arch generic).
    max_page_order
        Largest order of the buddy allocator, inclusive in every kernel; None is the architecture's default.
    page_block_max_order
        Upper limit of the pageblock order (CONFIG_PAGE_BLOCK_MAX_ORDER); None is no limit but MAX_PAGE_ORDER.
    preempt
        One of `PREEMPT_MODELS`.
    features
        None for the kernel's own; a mapping name -> bool changes single ones; any other iterable of names replaces
        them. The names are the keys of `memmodel.sources.features.FEATURES`.
    notes
        Remarks to keep with it, in front of its own.

    Raises
    ------
    GeometryError
        If no kernel can be built like this; the message names the rule.
    InputError
        If a value is not of its kind: a size that is no size, an option that is neither True nor False.

    Examples
    --------
    >>> geo = Geometry(page_size="16KiB", arch="arm64")
    >>> geo.pageblock_order, geo.cma_min_alignment_bytes
    (11, 33554432)
    >>> geo.replace(page_block_max_order=7).cma_min_alignment_bytes
    2097152
    """

    page_size_bytes: int
    """PAGE_SIZE."""
    arch: str
    """One of `ARCHES`."""
    kernel: str
    """The kernel's name as given."""
    transparent_hugepage: bool
    hugetlb: bool
    hugetlb_size_variable: bool
    cma: bool
    memory_isolation: bool
    highmem: bool
    max_page_order: int
    """MAX_PAGE_ORDER, the largest order of the buddy allocator (inclusive in every kernel)."""
    page_block_max_order: int | None
    """The limit as given; None without one."""
    preempt: str
    """Preemption model: "none", "voluntary", "lazy" or "full"."""
    features: frozenset[str] = field(repr=False)
    """Names of the features in force."""
    hpage_pmd_order: int
    """HPAGE_PMD_ORDER, which is HUGETLB_PAGE_ORDER too: PMD_SHIFT - PAGE_SHIFT."""
    notes: tuple[str, ...] = field(repr=False, compare=False)
    """One-line remarks: what was assumed, and what no upstream kernel has."""
    _given: dict[str, Any] = field(repr=False, compare=False)

    def __init__(  # noqa: PLR0913 - the options of a kernel build, by keyword only
        self,
        *,
        page_size: int | str = 4096,
        arch: str | None = None,
        kernel: str = DEFAULT_KERNEL,
        transparent_hugepage: bool = True,
        hugetlb: bool = True,
        hugetlb_size_variable: bool = False,
        max_page_order: int | None = None,
        page_block_max_order: int | None = None,
        cma: bool = True,
        memory_isolation: bool = True,
        highmem: bool = False,
        preempt: str = "full",
        features: Iterable[str] | Mapping[str, bool] | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        given = _plain({name: value for name, value in locals().items() if name != "self"})
        page_size_bytes = given["page_size"]
        fields = {name: value for name, value in given.items() if name != "page_size"}
        fields |= {"page_size_bytes": page_size_bytes, "arch": _arch(arch, page_size_bytes), "_given": given}
        build = _build(fields["arch"], page_size_bytes)
        if max_page_order is None:
            fields["max_page_order"] = build.max_page_order
        fields["hpage_pmd_order"] = build.pmd_shift - build.page_shift
        fields["features"] = select_features(kernel, given["features"])
        vars(self).update(fields)
        _check_orders(self, build)
        _check_options(self)
        vars(self)["notes"] = (*self.notes, *version_notes(kernel), *_remarks(self, build))

    @classmethod
    def from_kconfig(cls, source: PathLike, kernel: str | None = None, **changes: Any) -> "Geometry":
        """The geometry of a kernel configuration: a `.config`, `/proc/config.gz`, or the text of some `CONFIG_` lines.

        What the configuration leaves open takes the defaults of `Geometry`, and `notes` says so.

        Parameters
        ----------
        source
            As for `memmodel.sources.kconfig.read_kconfig`.
        kernel
            Overrides the version in the configuration's header comment.
        changes
            Options of `Geometry` that override the configuration's.

        Raises
        ------
        InputError
            If it is not a kernel configuration.
        GeometryError
            If the model cannot represent it, or no kernel can be built from it.
        """
        config = read_kconfig(source)
        options, notes, not_shown = geometry_options(config, kernel)
        taken = {"page_size": "page size not given", "arch": "architecture not given"}
        moot = tuple(text for name, text in taken.items() if name in changes)
        notes = [note for note in notes if not note.startswith(moot)]
        try:
            geo = cls(**{**options, "notes": notes, **changes})
        except GeometryError as error:
            because = "".join(f" ({note})" for note in notes if "CONFIG_ARCH_FORCE_MAX_ORDER" in note)
            raise GeometryError(f"{config.path}: {error}{because}") from None
        not_shown = [name for name in not_shown if name not in changes]
        if not_shown:
            other = geo.replace(**dict.fromkeys(not_shown, False))
            if other.summary() != geo.summary():
                geo = geo.replace(notes=(*notes, _not_shown_note(not_shown, geo, other)))
        return geo

    @classmethod
    def all_from_kconfig(cls, source: PathLike, kernel: str | None = None, **changes: Any) -> "tuple[Geometry, ...]":
        """Every build that a configuration leaves open, that of `from_kconfig` first.

        An option of the pageblock order that an excerpt does not show may be on or off, and a version that it does not
        name may be any. Builds of the same orders and alignment count once: more than one means that they cannot be
        told.

        Parameters
        ----------
        source, kernel, changes
            As for `from_kconfig`.

        Raises
        ------
        InputError, GeometryError
            As `from_kconfig`.
        """
        builds = [cls.from_kconfig(source, kernel, **changes)]
        config = read_kconfig(source)
        not_shown = [name for name in geometry_options(config, kernel).not_shown if name not in changes]
        for version in (kernel, *(_other_versions(config.symbols) if kernel is None and config.kernel is None else ())):
            for flags in product((True, False), repeat=len(not_shown)):
                chosen = changes | dict(zip(not_shown, flags, strict=True))
                try:
                    builds.append(cls.from_kconfig(source, version, **chosen))
                except GeometryError:
                    continue  # that one cannot be built
        distinct: dict[tuple[int, ...], Geometry] = {}
        for geo in builds:
            distinct.setdefault((geo.max_page_order, geo.pageblock_order, geo.cma_min_alignment_bytes), geo)
        return tuple(distinct.values())

    @property
    def page_shift(self) -> int:
        """PAGE_SHIFT: log2 of the page size."""
        return self.page_size_bytes.bit_length() - 1

    @property
    def pageblock_order(self) -> int:
        """Order of a pageblock.

        include/linux/pageblock-flags.h; where the huge page size is variable, set_pageblock_order() of mm/mm_init.c
        comes to the same at boot.
        """
        limit = self.max_page_order if self.page_block_max_order is None else self.page_block_max_order
        by_thp = self.transparent_hugepage and "thp_pageblock" in self.features
        return min(self.hpage_pmd_order, limit) if self.hugetlb or by_thp else limit

    @property
    def pageblock_nr_pages(self) -> int:
        """Pages in a pageblock."""
        return 1 << self.pageblock_order

    @property
    def cma_min_alignment_bytes(self) -> int:
        """CMA_MIN_ALIGNMENT_BYTES: CMA areas begin and end on multiples of it.

        A pageblock since 5.19 (commit 11ac3e87ce09); before, the larger of a pageblock and the largest free block.
        """
        if "cma_pageblock_alignment" in self.features:
            return self.page_size_bytes << self.pageblock_order
        return self.page_size_bytes << max(self.max_page_order, self.pageblock_order)

    @property
    def n_migratetypes(self) -> int:
        """MIGRATE_TYPES of this build: 4, one more with MEMORY_ISOLATION, one more with CMA."""
        return 4 + self.memory_isolation + self.cma

    @property
    def ram_start_bytes(self) -> int:
        """Where the RAM of a made-up machine begins: 1 GiB on arm64, as on most boards, else 0."""
        return 1 << 30 if self.arch == "arm64" else 0

    def replace(self, **changes: Any) -> "Geometry":
        """The same build with some options changed; options never given keep following their defaults."""
        return Geometry(**(self._given | changes))

    def as_dict(self) -> dict[str, Any]:
        """The options it was built from, ready for JSON; ``Geometry(**d)`` builds it again."""
        return {name: list(value) if name == "notes" else value for name, value in self._given.items()}

    def summary(self) -> dict[str, Any]:
        """The orders and the alignment that a user asks for, and the notes."""
        return {
            "page_size_bytes": self.page_size_bytes,
            "max_page_order": self.max_page_order,
            "hpage_pmd_order": self.hpage_pmd_order,
            "pageblock_order": self.pageblock_order,
            "cma_min_alignment_bytes": self.cma_min_alignment_bytes,
            "notes": list(self.notes),
        }


class ZoneLimits(NamedTuple):
    """A zone's share of the physical addresses."""

    name: str
    start_bytes: int
    end_bytes: int


def zone_limits(geo: Geometry) -> tuple[ZoneLimits, ...]:
    """Zones of a made-up machine, ascending, each up to the start of the next; the last one ends at 4 PiB.

    x86_64 as arch/x86/mm/init.c: DMA below 16 MiB, DMA32 below 4 GiB. arm64 as arch/arm64/mm/init.c where neither
    device tree nor ACPI limits DMA further: DMA below 4 GiB. A 32-bit kernel's HighMem begins at 896 MiB.
    """
    starts = {"Normal": 0}
    if geo.arch == "x86_64":
        starts = {"DMA": 0, "DMA32": 16 << 20, "Normal": 4 << 30}
    elif geo.arch == "arm64":
        starts = {"DMA": 0, "Normal": 4 << 30}
    elif geo.highmem:
        starts = {"Normal": 0, "HighMem": 896 << 20}
    ends = (*list(starts.values())[1:], END_OF_MEMORY_BYTES)
    return tuple(ZoneLimits(name, start, end) for (name, start), end in zip(starts.items(), ends, strict=True))


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """The options as plain Python values, so that they compare and go into JSON."""
    for name in _FLAGS:
        if given[name] not in (True, False):
            raise InputError(f"{name} is {given[name]!r}; allowed: True, False")
        given[name] = bool(given[name])
    for name in ("max_page_order", "page_block_max_order"):
        given[name] = None if given[name] is None else _whole(given[name], name)
    changes = given["features"]
    if isinstance(changes, Mapping):
        given["features"] = dict(changes)
    elif changes is not None:
        given["features"] = sorted(select_features(given["kernel"], changes))
    return given | {"page_size": _page_size(given["page_size"]), "notes": tuple(given["notes"])}


def _page_size(value: int | str) -> int:
    n_bytes = parse_bytes(value if isinstance(value, str) else _whole(value, "page size"), "page size")
    if n_bytes.bit_count() != 1 or not _MIN_PAGE_SHIFT < n_bytes.bit_length() <= _MAX_PAGE_SHIFT + 1:
        raise GeometryError(f"page size {format_bytes(n_bytes)}: a page is a power of two from 4 KiB to 1 MiB")
    return n_bytes


def _whole(value: SupportsInt, what: str) -> int:
    """A whole number, NumPy's and 7.0 included."""
    try:
        if not isinstance(value, str) and int(value) == value:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise GeometryError(f"{what} is {value!r}; a whole number is needed")


def _arch(name: str | None, page_size_bytes: int) -> str:
    if name is None:
        return {4096: "x86_64", 16384: "arm64", 65536: "arm64"}.get(page_size_bytes, "generic")
    arch = str(name).lower()
    arch = _ALIASES.get(arch, arch)
    if arch not in ARCHES:
        raise GeometryError(
            f"unknown arch {name!r}; one of: {', '.join(ARCHES)} (the last one for any other, and 32 bits)"
        )
    return arch


def _build(arch: str, page_size_bytes: int) -> _Build:
    page_shift = page_size_bytes.bit_length() - 1
    if arch == "generic":  # a PMD entry maps one page of 8-byte entries
        pmd_shift = 2 * page_shift - 3
        return _Build(page_shift, max(10, pmd_shift - page_shift), max(27, pmd_shift), pmd_shift)
    for build in _BUILDS[arch]:
        if build.page_shift == page_shift:
            return build
    sizes = ", ".join(format_bytes(1 << build.page_shift) for build in _BUILDS[arch])
    raise GeometryError(f"page size {format_bytes(page_size_bytes)}: {arch} has {sizes}")


def _check_orders(geo: Geometry, build: _Build) -> None:
    top, limit = geo.max_page_order, geo.page_block_max_order
    highest = build.section_size_bits - build.page_shift
    if not 1 <= top <= highest:
        raise GeometryError(
            f"MAX_PAGE_ORDER {top}: MAX_PAGE_ORDER + PAGE_SHIFT must not exceed SECTION_SIZE_BITS (compile-time check);"
            f" {geo.arch} with {format_bytes(geo.page_size_bytes)} pages allows 1 to {highest}"
        )
    if limit is not None and limit > top:
        raise GeometryError(
            f"pageblock order limit {limit} > MAX_PAGE_ORDER {top}:"
            " PAGE_BLOCK_MAX_ORDER must not exceed MAX_PAGE_ORDER (compile-time check)"
        )
    if limit is not None and limit < 1:
        raise GeometryError(f"pageblock order limit {limit}: PAGE_BLOCK_MAX_ORDER is 1 to {top} (Kconfig range)")
    if geo.transparent_hugepage and geo.hpage_pmd_order > top:
        raise GeometryError(
            f"HPAGE_PMD_ORDER {geo.hpage_pmd_order} > MAX_PAGE_ORDER {top}: the buddy allocator must hold"
            " a transparent huge page (compile-time check); turn transparent_hugepage off"
        )


def _check_options(geo: Geometry) -> None:
    if geo.cma and not geo.memory_isolation:
        raise GeometryError("memory_isolation off with cma on: CONFIG_CMA selects CONFIG_MEMORY_ISOLATION")
    if geo.hugetlb_size_variable and not (geo.hugetlb and geo.arch in ("powerpc64", "generic")):
        raise GeometryError(
            f"hugetlb_size_variable with arch {geo.arch}, hugetlb={geo.hugetlb}:"
            " CONFIG_HUGETLB_PAGE_SIZE_VARIABLE is powerpc's and needs CONFIG_HUGETLB_PAGE"
        )
    if "claim_steal" in geo.features and "freelist_hygiene" not in geo.features:
        raise GeometryError(
            "feature claim_steal without freelist_hygiene: no kernel claims before lists are by block type"
        )
    if geo.highmem and geo.arch != "generic":
        raise GeometryError(f"highmem with arch {geo.arch}: only 32-bit kernels (arch generic) have CONFIG_HIGHMEM")
    if geo.preempt not in PREEMPT_MODELS:
        raise GeometryError(f"unknown preempt {geo.preempt!r}; one of: {', '.join(PREEMPT_MODELS)}")


def _remarks(geo: Geometry, build: _Build) -> list[str]:
    top, default, pages = geo.max_page_order, build.max_page_order, f"{format_bytes(geo.page_size_bytes)} pages"
    notes = []
    if geo.arch == "x86_64" and top != default:
        notes.append(f"max_page_order={top}: upstream x86_64 has {default} and no option for it; a what-if")
    elif geo.arch != "generic" and top != default:
        notes.append(f"max_page_order={top}: upstream {geo.arch} with {pages} has {default} by default")
    if geo.page_block_max_order is not None and "page_block_order" not in geo.features:
        notes.append(
            f"page_block_max_order={geo.page_block_max_order}: kernel {geo.kernel} has no such option"
            " (it came in 6.16); a what-if or a patched kernel"
        )
    if geo.arch == "powerpc64" and build.page_shift == 16:
        notes.append(f"powerpc64 with {pages}: PMD order 5 of the radix MMU (the hash MMU has 8)")
    if geo.arch == "generic" and default > 10 and build.page_shift not in (14, 16):
        notes.append(f"generic with {pages}: no kernel is known; max_page_order {top}, PMD order {geo.hpage_pmd_order}")
    return notes


def _other_versions(symbols: Iterable[str]) -> tuple[str, ...]:
    """A kernel on the other side of each change that the orders hang on, as far as the symbols allow it."""
    names = set(symbols)
    if names & {"PAGE_BLOCK_MAX_ORDER", "PAGE_BLOCK_ORDER"}:
        return ()
    return ("6.9", "6.3") if "ARCH_FORCE_MAX_ORDER" in names else ("6.9", "6.3", "5.18")


def _not_shown_note(names: list[str], geo: Geometry, other: Geometry) -> str:
    return (
        f"{' and '.join(names)} not shown, taken as on: pageblock_order {geo.pageblock_order}, CMA alignment"
        f" {format_bytes(geo.cma_min_alignment_bytes)}; off, it would be {other.pageblock_order},"
        f" {format_bytes(other.cma_min_alignment_bytes)}"
    )
