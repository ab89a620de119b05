"""The size of the default CMA area, as the boot line (cma=) or the kernel's configuration asks for it."""

import re
from typing import NamedTuple

from memmodel.errors import InputError
from memmodel.sources.kconfig import Kconfig
from memmodel.sources.reading import refuse

__all__ = ["CmaOption", "config_cma_bytes", "option_of", "parse_cma"]

_SIZE = r"(0[xX][0-9a-fA-F]{1,16}|\d{1,20})([KMGTPEkmgtpe]?)"
_OPTION = re.compile(rf"{_SIZE}(?:@{_SIZE}(?:-{_SIZE})?)?")
_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_LARGEST = (1 << 64) - 1
_MODES = ("MBYTES", "PERCENTAGE", "MIN", "MAX")


class CmaOption(NamedTuple):
    """What cma= says."""

    size_bytes: int
    """0: no default area at all."""
    base: int = 0
    limit: int = 0
    """The end of the range that it may lie in; 0: not given."""

    @property
    def is_fixed(self) -> bool:
        """Whether the range leaves one place only, so that the kernel takes that or none."""
        return bool(self.base) and self.base + self.size_bytes == self.limit


def parse_cma(text: str) -> CmaOption:
    """Read ``SIZE[@BASE[-LIMIT]]``, or a boot line with ``cma=`` in it, of which the last one holds.

    Raises
    ------
    InputError
        If it is neither, or a number has more than 64 bits.

    References
    ----------
    Documentation/admin-guide/kernel-parameters.txt (cma=); kernel/dma/contiguous.c: early_cma, Linux 6.1 to 7.3.
    """
    given = re.findall(r"(?:^|\s)cma=(\S*)", text) or [text.strip()]
    match = _OPTION.fullmatch(given[-1])
    if match is None:
        raise _no_size(given[-1])
    size, base, limit = (
        None if digits is None else int(digits, 0 if digits[:2] in ("0x", "0X") else 10) << _SHIFT[unit.lower()]
        for digits, unit in zip(match.groups()[::2], match.groups()[1::2], strict=True)
    )
    if max(size or 0, base or 0, limit or 0) > _LARGEST:
        raise _no_size(given[-1])
    if size is None or base is None:
        return CmaOption(size or 0)
    return CmaOption(size, base, base + size if limit is None else limit)


def option_of(cma: CmaOption | str | None) -> CmaOption | None:
    """What `parse_cma` makes of a text, or the option itself; None: not given.

    Raises
    ------
    InputError
        If it is none of these, or malformed.
    """
    if cma is None or isinstance(cma, CmaOption):
        return cma
    if not isinstance(cma, str):
        raise _no_size(cma)
    return parse_cma(cma)


def _no_size(given: object) -> InputError:
    return InputError(
        f"cma={repr(given)[:60]} is no size; allowed: SIZE[@BASE[-LIMIT]], as in 64M, 64M@0x80000000, 0, of 64 bits"
    )


def config_cma_bytes(config: Kconfig, memory_bytes: int | None = None, page_size_bytes: int = 4096) -> int:
    """Size of the default CMA area by CONFIG_CMA_SIZE_*, where the boot line says nothing.

    Parameters
    ----------
    memory_bytes
        RAM of the machine; needed where the size is a share of it, in whole pages.

    Raises
    ------
    InputError
        If the configuration does not show what the size hangs on, a number in it is not possible, or the RAM is
        needed and not given.

    References
    ----------
    kernel/dma/Kconfig; kernel/dma/contiguous.c: dma_contiguous_reserve, Linux 6.1 to 7.3.
    """
    if config.is_on("DMA_CMA") is False or config.is_on("CMA") is False:  # which it depends on
        return 0
    mode = next((mode for mode in _MODES if config.is_on(f"CMA_SIZE_SEL_{mode}")), None)
    if mode is None:
        raise InputError(f"{config.path}: shows no CONFIG_CMA_SIZE_SEL_...=y; the size of the CMA area is not known")
    sizes = []
    if mode != "PERCENTAGE":
        sizes.append(_number(config, "CMA_SIZE_MBYTES", _LARGEST >> 20) << 20)
    if mode != "MBYTES":
        if memory_bytes is None:
            raise InputError(f"{config.path}: CONFIG_CMA_SIZE_SEL_{mode}=y: the size of RAM is needed, and not given")
        pages = memory_bytes // page_size_bytes * _number(config, "CMA_SIZE_PERCENTAGE", 100) // 100
        sizes.append(pages * page_size_bytes)
    return max(sizes) if mode == "MAX" else min(sizes)


def _number(config: Kconfig, name: str, most: int) -> int:
    value = config.integer(name)
    if value is None:
        raise InputError(f"{config.path}: CONFIG_{name} is not shown; the size of the CMA area is not known")
    if not 0 <= value <= most:
        raise refuse(config.path, config.lines[name], f"CONFIG_{name}={value}", f"0 to {most} are possible")
    return value
