"""Address spaces and the CPUs that may hold their translations."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.kernels import tlb as kernels
from memmodel.kernels.tlb import Tlb as TlbState
from memmodel.kernels.tlb import TlbCount, TlbRule
from memmodel.state.layout import NONE

__all__ = ["MAX_MMS", "Tlb"]

MAX_MMS = 32  # a folio's owners are bits of a word
WORD = 64
FLUSH_CEILING = 33


class Tlb:
    """Which CPUs may hold translations of which address spaces; flushes interrupt them, and may take them out.

    Parameters
    ----------
    geometry
        Of the kernel, whose features decide what a flush does.
    cpus
        CPUs of the machine.
    cpumasks
        mm_cpumask of each address space, by its number: the CPUs that may hold its translations.
    lazy
        CPUs that idle with an address space loaded. They count as asked, but most flushes do not interrupt them.
    loaded
        Address space that a CPU has loaded; without an entry the lowest one whose mask holds the CPU, and where no mask
        does none (init_mm).
    wakes
        Whether the threads of idle CPUs run again before the next flush. Else an interrupt takes an idle CPU out: it
        lets go of the address space, and nothing brings it back.
    invlpgb
        Whether the CPUs have INVLPGB (AMD Zen 3 on): one broadcast in place of interrupts, from 6.15 on.

    Raises
    ------
    InputError
        If there are too many address spaces, or a CPU or address space is none of the machine's.

    Notes
    -----
    That a kernel looks once a second for CPUs that an address space has left (6.14 on) is not modelled.

    References
    ----------
    arch/x86/mm/tlb.c, Linux 6.1.192, 6.12.117 and 7.3.4.
    """

    def __init__(
        self,
        geometry: Geometry,
        cpus: int,
        cpumasks: Sequence[Sequence[int]],
        *,
        lazy: Sequence[int] = (),
        loaded: Mapping[int, int] | None = None,
        wakes: bool = False,
        invlpgb: bool = False,
    ) -> None:
        if not 1 <= len(cpumasks) <= MAX_MMS:
            raise InputError(f"{len(cpumasks)} address spaces; 1 to {MAX_MMS} are possible")
        if invlpgb and "invlpgb" not in geometry.features:
            raise InputError(f"invlpgb: kernel {geometry.kernel} does not use it (it came in 6.15)")
        masks = np.stack([_mask(cpus, mask) for mask in cpumasks])
        in_mm = np.full(cpus, NONE, np.uint64)
        for mm in reversed(range(len(cpumasks))):
            in_mm[list(cpumasks[mm])] = mm
        for cpu, mm in (loaded or {}).items():
            if cpu not in range(cpus) or mm not in range(len(cpumasks)):
                raise InputError(f"loaded: CPU {cpu!r} with address space {mm!r}; there are {cpus} and {len(cpumasks)}")
            in_mm[cpu] = mm
        idle = _mask(cpus, lazy)
        without = [cpu for cpu in lazy if in_mm[cpu] == NONE]
        if without:
            raise InputError(f"lazy: CPU {without[0]} has no address space loaded to be lazy about")
        rules = TlbRule(0)
        for feature, rule in (
            ("flush_skips_other_mm", TlbRule.SKIPS_OTHER_MM),
            ("mm_cpumask_lazy", TlbRule.WRONG_CPU_LEAVES),
        ):
            if feature in geometry.features:
                rules |= rule
        rules |= TlbRule.BROADCAST if invlpgb else TlbRule(0)
        rules |= TlbRule.WAKES if wakes else TlbRule(0)
        counts, pending = np.zeros(len(TlbCount), np.int64), np.zeros_like(idle)
        self.cpus = cpus
        newest, flushed = np.zeros(len(masks), np.uint64), np.zeros(cpus, np.uint64)
        self.state = TlbState(masks, idle, pending, in_mm, newest, flushed, counts, np.uint64(rules))

    def flush(self, mm: int, cpu: int, n_pages: int = 1, *, tables_freed: bool = False) -> None:
        """An immediate flush of so many pages of an address space, asked for by a CPU (flush_tlb_mm_range).

        More than 33 pages (tlb_single_page_flush_ceiling) are a flush of everything. `tables_freed`: page tables go
        too, as in munmap() and in every flush_tlb_range(); then idle CPUs are interrupted as well.

        Raises
        ------
        InputError
            If there is no such address space or CPU.
        """
        if mm not in range(len(self.state.masks)) or cpu not in range(self.cpus):
            raise InputError(f"address space {mm!r}, CPU {cpu!r}; there are {len(self.state.masks)} and {self.cpus}")
        pages = 0 if n_pages > FLUSH_CEILING else n_pages
        kernels.flush_pages(self.state, np.uint64(mm), np.uint64(cpu), np.uint64(pages), tables_freed)

    @property
    def cpumasks(self) -> list[list[int]]:
        """mm_cpumask of each address space now."""
        bits = self.state.masks[:, :, None] >> np.arange(WORD, dtype=np.uint64) & np.uint64(1)
        return [np.flatnonzero(mask).tolist() for mask in bits.reshape(len(bits), -1)]

    @property
    def counts(self) -> dict[str, int]:
        """All flushes so far, by the names of `TlbCount`."""
        return {count.name.lower(): int(self.state.counts[count]) for count in TlbCount}


def _mask(cpus: int, members: Sequence[int]) -> npt.NDArray[np.uint64]:
    """The bits of some CPUs."""
    mask = np.zeros(-(-cpus // WORD), np.uint64)
    for cpu in members:
        if isinstance(cpu, bool) or cpu not in range(cpus):
            raise InputError(f"cpu {cpu!r} in a mask; this machine has 0 to {cpus - 1}")
        mask[cpu // WORD] |= np.uint64(1) << np.uint64(cpu % WORD)
    return mask
