"""Kernel configurations: a `.config`, `/proc/config.gz` or a few `CONFIG_` lines, and what they say of the geometry."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypedDict

from memmodel.errors import GeometryError, InputError
from memmodel.sources.features import DEFAULT_KERNEL, FEATURES, kernel_features
from memmodel.sources.quoting import QUOTE
from memmodel.sources.reading import PathLike, read_text, refuse
from memmodel.units import format_bytes

__all__ = ["ConfigOptions", "ConfigReading", "Kconfig", "geometry_options", "read_kconfig"]

_FULL_CONFIG_SYMBOLS = 100  # "make tinyconfig" writes some 350; an excerpt leaves symbols out without meaning n

_HEADER = re.compile(r"#\s*Linux/(\S+)\s+(\S+)\s+Kernel Configuration")
_ASSIGNMENT = re.compile(r'CONFIG_(\w+)=([ymn]|-?\d+|0[xX][0-9a-fA-F]+|"(?:[^"\\]|\\.)*")')
_NOT_SET = re.compile(r"#\s*CONFIG_(\w+) is not set")
_ALLOWED = 'allowed are CONFIG_NAME=y, m, n, a number, 0x... or "text", and # CONFIG_NAME is not set'
# symbols and header names; any other header name is generic too
_ARCH_NAMES: dict[str | None, str] = {
    **dict.fromkeys(("X86_64", "x86", "x86_64"), "x86_64"),
    **dict.fromkeys(("ARM64", "arm64"), "arm64"),
    **dict.fromkeys(("PPC64", "powerpc"), "powerpc64"),
    **dict.fromkeys(("ALPHA", "IA64", "LOONGARCH", "MIPS", "PARISC", "RISCV", "SPARC64"), "generic"),
}
_PAGE_SIZE = re.compile(r"(?:ARM64|PPC)_(\d+)K_PAGES|PAGE_SIZE_(\d+)KB")


@dataclass(frozen=True)
class Kconfig:
    """The symbols of one kernel configuration, without their ``CONFIG_`` prefix."""

    path: str
    """Where it was read from; ``"<text>"`` if it was given as text."""
    symbols: Mapping[str, int | str]
    """Name -> "y", "m" or "n" ("is not set" is "n"), an int (decimal or hex), or the text of a string."""
    lines: Mapping[str, int] = field(repr=False)
    """Name -> number of the line that set it."""
    arch: str | None = None
    """The kernel's name of the architecture from the header comment, such as "x86"; None without a header."""
    kernel: str | None = None
    """The kernel version from the header comment; None without a header."""
    is_full: bool = False
    """Whether it is a whole configuration, where a symbol that is missing is off, rather than an excerpt."""
    notes: tuple[str, ...] = ()
    """Remarks on the reading, one line each: symbols set twice."""

    def is_on(self, *names: str) -> bool | None:
        """Whether a symbol is "y" or "m": the first of `names` that is there decides; None if an excerpt has none."""
        for name in names:
            if name in self.symbols:
                return self.symbols[name] in ("y", "m")
        return False if self.is_full else None

    def integer(self, name: str) -> int | None:
        """The number a symbol is set to; None if it is missing or not set.

        Raises
        ------
        InputError
            If the symbol holds no number.
        """
        value = self.symbols.get(name, "n")
        if value == "n":
            return None
        if not isinstance(value, int):
            raise InputError(f"{self.path}:{self.lines[name]}: CONFIG_{name}={value} is not a number")
        return value


def read_kconfig(source: PathLike) -> Kconfig:
    """Read a kernel configuration: a file (plain or compressed, told by its first bytes) or the text itself.

    Lines are ``CONFIG_NAME=value``, ``# CONFIG_NAME is not set``, comments or blank, as the kernel's
    scripts/kconfig/confdata.c writes them; a mail's ``> `` in front is dropped. A symbol set twice keeps its last
    value, as there.

    Parameters
    ----------
    source
        A path; text is recognised by a line break or a leading ``CONFIG_``.

    Raises
    ------
    InputError
        If the file cannot be read, is not text, has no ``CONFIG_`` line, or has a line of another form.
    """
    if isinstance(source, str) and ("\n" in source or re.match(r"\s*(#\s*)?CONFIG_", source)):
        return _parse("<text>", source)
    text, _ = read_text(source)
    return _parse(os.fspath(source), text)


def _parse(path: str, text: str) -> Kconfig:
    symbols: dict[str, int | str] = {}
    lines: dict[str, int] = {}
    notes = []
    arch = kernel = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = QUOTE.sub("", raw).strip()
        header = _HEADER.match(line)
        if header and kernel is None:
            arch, kernel = header.groups()
        try:
            item = _symbol(line)
        except ValueError:
            raise refuse(path, number, line, _ALLOWED) from None
        if item is None:
            continue
        name, value = item
        if symbols.get(name, value) != value:
            notes.append(f"{path}:{number}: CONFIG_{name} is set again, {symbols[name]} to {value}; the last one holds")
        symbols[name], lines[name] = value, number
    if not symbols:
        raise InputError(f"{path}: no CONFIG_ line in it; not a kernel configuration")
    is_full = kernel is not None and len(symbols) >= _FULL_CONFIG_SYMBOLS
    return Kconfig(path, MappingProxyType(symbols), MappingProxyType(lines), arch, kernel, is_full, tuple(notes))


def _symbol(line: str) -> tuple[str, int | str] | None:
    """Name and value that a line sets; None for a comment or a blank line; ValueError for anything else."""
    unset = _NOT_SET.fullmatch(line)
    if unset:
        return unset[1], "n"
    if not line or line.startswith("#"):
        return None
    match = _ASSIGNMENT.fullmatch(line)
    if match is None:
        raise ValueError(line)
    name, value = match.groups()
    if value in ("y", "m", "n"):
        return name, value
    if value.startswith('"'):
        return name, re.sub(r"\\(.)", r"\1", value[1:-1])
    return name, int(value, 16 if value[:2].lower() == "0x" else 10)


class ConfigOptions(TypedDict, total=False):
    """The options of `memmodel.geometry.Geometry` that a configuration can give."""

    page_size: int
    arch: str | None
    kernel: str
    transparent_hugepage: bool
    hugetlb: bool
    hugetlb_size_variable: bool
    max_page_order: int | None
    page_block_max_order: int | None
    cma: bool
    memory_isolation: bool
    highmem: bool
    preempt: str


class ConfigReading(NamedTuple):
    """What a configuration says of the geometry."""

    options: ConfigOptions
    """What it gives; an option that it leaves open is missing."""
    notes: list[str]
    """What had to be assumed, one line each."""
    not_shown: list[str]
    """Options of the pageblock order that an excerpt does not show."""


def geometry_options(config: Kconfig, kernel: str | None = None) -> ConfigReading:
    """Translate a configuration into the options of `memmodel.geometry.Geometry`.

    Parameters
    ----------
    config
        As `read_kconfig` gives it.
    kernel
        Overrides the version of the header comment.

    Raises
    ------
    InputError
        If a symbol that should hold a number does not.
    GeometryError
        If the architecture is one that the model cannot represent, or two are named.
    """
    notes = list(config.notes)
    options = ConfigOptions(kernel=_kernel(config, kernel, notes))
    arch, highmem = _arch(config, notes)
    options.update({"arch": arch, "highmem": highmem, "page_size": _page_size(config, arch, notes)})
    options["max_page_order"] = _max_page_order(config, options["kernel"], kernel, notes)
    options["page_block_max_order"] = _page_block_max_order(config, notes)
    options["hugetlb_size_variable"] = config.is_on("HUGETLB_PAGE_SIZE_VARIABLE") is True
    options["preempt"] = _preempt(config, notes)
    not_shown = []
    thp, hugetlb = config.is_on("TRANSPARENT_HUGEPAGE"), config.is_on("HUGETLB_PAGE", "HUGETLBFS")
    if thp is None:
        not_shown.append("transparent_hugepage")
    else:
        options["transparent_hugepage"] = thp
    if hugetlb is None:
        not_shown.append("hugetlb")
    else:
        options["hugetlb"] = hugetlb
    cma, isolation = config.is_on("CMA"), config.is_on("MEMORY_ISOLATION")
    if cma is not None:
        options["cma"] = cma
    if isolation is not None:
        options["memory_isolation"] = isolation or cma is True  # CONFIG_CMA selects it
    elif cma is False:
        options["memory_isolation"] = False
    if config.symbols.get("MEMORY_FAILURE") == "n":
        notes.append("CONFIG_MEMORY_FAILURE is off: this kernel has no memory_failure() and no PG_hwpoison")
    return ConfigReading(options, notes, not_shown)


def _kernel(config: Kconfig, kernel: str | None, notes: list[str]) -> str:
    if kernel is not None:
        if config.kernel not in (None, kernel):
            notes.append(f"kernel {kernel} as asked; the configuration is of {config.kernel}")
        return kernel
    if config.kernel is not None:
        return config.kernel
    for symbol in ("PAGE_BLOCK_MAX_ORDER", "PAGE_BLOCK_ORDER"):
        if symbol in config.symbols:
            first = "{}.{}".format(*FEATURES[symbol.lower()].since)
            notes.append(f"no kernel version given: {first} taken, the first with CONFIG_{symbol}")
            return first
    notes.append(f"no kernel version given: {DEFAULT_KERNEL} taken")
    return DEFAULT_KERNEL


def _arch(config: Kconfig, notes: list[str]) -> tuple[str | None, bool]:
    """Architecture (None: not told) and whether the kernel has HIGHMEM."""
    on = {name for name, value in config.symbols.items() if value == "y"}
    if any(name.startswith("ARM64_") for name in on):
        on.add("ARM64")
    if "S390" in on or config.arch == "s390":
        raise GeometryError(f"{config.path}: s390 page tables are not modelled (their PMD order is not PAGE_SHIFT - 3)")
    if "X86_32" in on and "X86_PAE" not in on:
        raise GeometryError(f"{config.path}: 32-bit x86 without PAE is not modelled (4-byte page table entries)")
    if on & {"HIGHMEM", "X86_32", "ARM", "PPC32"} or config.symbols.get("64BIT") == "n" or config.arch == "arm":
        notes.append('32-bit kernel: arch "generic" with page tables of 8-byte entries (LPAE, PAE)')
        return "generic", "HIGHMEM" in on
    names = {_ARCH_NAMES[name] for name in {*on, config.arch} if name in _ARCH_NAMES}
    if len(names) > 1:
        raise GeometryError(f"{config.path}: names {len(names)} architectures: {', '.join(sorted(names))}")
    if not names and config.arch is None:
        notes.append("architecture not given: picked by the page size")
        return None, False
    arch = names.pop() if names else "generic"
    if arch == "generic":
        notes.append(f'{config.arch or "other"} kernel: arch "generic" with page tables of 8-byte entries')
    return arch, False


def _page_size(config: Kconfig, arch: str | None, notes: list[str]) -> int:
    sizes = {
        int(match[1] or match[2]) << 10
        for name, value in config.symbols.items()
        if value == "y" and (match := _PAGE_SIZE.fullmatch(name))
    }
    shift = config.integer("PAGE_SHIFT")
    if shift is not None:
        sizes.add(1 << min(max(shift, 0), 63))
    if len(sizes) == 1:
        return sizes.pop()
    default = 65536 if arch == "powerpc64" else 4096
    if sizes:
        given = " and ".join(format_bytes(size) for size in sorted(sizes))
        notes.append(f"page sizes {given} are both set: {format_bytes(default)} taken")
    elif arch != "x86_64":  # which has only one, and named it in no symbol before 6.10
        notes.append(f"page size not given: {format_bytes(default)} taken")
    return default


def _max_page_order(config: Kconfig, used: str, asked: str | None, notes: list[str]) -> int | None:
    """Largest order, inclusive; None if the configuration leaves it to the architecture."""
    zoneorder = config.integer("FORCE_MAX_ZONEORDER")  # the name before 6.1
    if zoneorder:
        return zoneorder - 1
    order = config.integer("ARCH_FORCE_MAX_ORDER")
    if not order:
        return None
    if asked is None and config.kernel is None:
        notes.append(
            f"CONFIG_ARCH_FORCE_MAX_ORDER={order} read as the largest order, as since 6.4;"
            f" in an older kernel the largest order is {order - 1}"
        )
        return order
    return order if "max_order_inclusive" in kernel_features(used) else order - 1


def _page_block_max_order(config: Kconfig, notes: list[str]) -> int | None:
    """The limit under its three names: 6.17 and later, 6.16, and the patch's first version."""
    symbols = ("PAGE_BLOCK_MAX_ORDER", "PAGE_BLOCK_ORDER", "ARCH_FORCE_PAGE_BLOCK_ORDER")
    given = {name: order for name in symbols if (order := config.integer(name)) is not None}
    if len(set(given.values())) > 1:
        both = ", ".join(f"CONFIG_{name}={order}" for name, order in given.items())
        notes.append(f"{both}: the first one holds")
    return next(iter(given.values()), None)


def _preempt(config: Kconfig, notes: list[str]) -> str:
    """The preemption model; "full" where none is shown, as in `Geometry`."""
    if config.is_on("PREEMPT_DYNAMIC"):
        notes.append("CONFIG_PREEMPT_DYNAMIC: the boot option preempt= may choose another model than the built-in one")
    models = {"PREEMPT_RT": "full", "PREEMPT": "full", "PREEMPT_LAZY": "lazy", "PREEMPT_VOLUNTARY": "voluntary"}
    for symbol, model in models.items():
        if config.is_on(symbol):
            return model
    return "none" if config.is_on("PREEMPT_NONE") else "full"
