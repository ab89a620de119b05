"""The slow obvious twin of x86 TLB flushing: which CPUs a flush interrupts, and what it finds there.

An mm's mask says where the mm may be cached, `loaded` what a CPU runs on, `lazy` who idles with an mm still loaded.
Every flush makes its mm one generation newer; a CPU is behind until it has flushed up to the newest one.
"""

from dataclasses import dataclass

INIT_MM = "init_mm"
CEILING = 33  # entries; a larger range is flushed as a whole (tlb_single_page_flush_ceiling)
ALL = None  # entries of a flush of everything


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """The traits in which kernels differ."""

    batched: bool = True  # the flush of an unmapped page may wait for others
    batched_migration: bool = True  # a batch of folios is unmapped, then flushed, then moved
    lazy_kick_leaves: bool = True  # who loads another mm leaves the old one's mask; else a flush in vain clears the bit
    skips_other_mm: bool = True  # no IPI to a CPU that has another mm loaded
    invlpgb: bool = False  # the hardware broadcasts


KERNELS = {
    "6.1": Kernel(batched=False, batched_migration=False, skips_other_mm=False),
    "6.12.117": Kernel(),
    "7.3": Kernel(lazy_kick_leaves=False),
}


@dataclass(frozen=True)
class Flush:
    """What the CPUs are asked to do; `mm` is None where the batch is flushed, which names no mm."""

    mm: object
    cpu: int  # that asks
    n_entries: int | None
    tables_freed: bool = False


class Tlb:
    """The CPUs' masks and loaded mms, the batch of one task, and what was counted."""

    def __init__(self, masks, lazy=(), loaded=None, kernel=KERNELS["6.12.117"]):
        self.kernel = kernel
        self.masks = {mm: set(cpus) for mm, cpus in masks.items()}
        self.lazy = set(lazy)
        self.loaded = {} if loaded is None else dict(loaded)
        if loaded is None:
            for mm in sorted(self.masks, reverse=True):
                self.loaded.update(dict.fromkeys(self.masks[mm], mm))  # the lowest is written last
        self.newest = {}  # generation of an mm
        self.flushed = {}  # generation that a CPU has flushed its loaded mm up to
        self.flush_required = False
        self.pending = set()  # CPUs that the batch has to reach
        self.local_mm = self.local_batch = self.requests = self.remote = self.wrong_cpu = 0
        self.ipis = self.broadcasts = self.local_full = self.local_pages = 0

    @property
    def flush_ops(self):
        """Flushes on the CPU that asked: reasons 3 and 2."""
        return self.local_mm + self.local_batch

    # -- what a kernel does -----------------------------------------------------------------------------------------

    def flush_page(self, mm, cpu):
        """One base page at once (flush_tlb_page)."""
        self.flush_range(mm, cpu, 1, tables_freed=False)

    def flush_range(self, mm, cpu, n_entries, tables_freed):
        """flush_tlb_mm_range()."""
        flush = Flush(mm, cpu, n_entries if n_entries <= CEILING else ALL, tables_freed)
        self.newest[mm] = self.generation(mm) + 1
        if self.has_others(self.mask(mm), cpu):
            self.flush_many(self.mask(mm), flush)
        elif self.loaded_mm(cpu) == mm:
            self.flush_here(cpu, flush)

    def defers(self, mm, cpu):
        """Is a PTE's flush left to the batch? The mask alone decides, whoever sleeps (should_defer_flush)."""
        return self.kernel.batched and self.has_others(self.mask(mm), cpu)

    def defer(self, mm):
        """One more PTE for the batch (set_tlb_ubc_flush_pending)."""
        self.newest[mm] = self.generation(mm) + 1
        self.pending |= self.mask(mm)
        self.flush_required = True

    def flush_batch(self, cpu):
        """try_to_unmap_flush(): everything, wherever one of the mms may be."""
        if not self.flush_required:
            return
        flush = Flush(None, cpu, ALL)
        if self.kernel.invlpgb or self.has_others(self.pending, cpu):
            self.flush_many(self.pending, flush)
        elif cpu in self.pending:
            self.flush_here(cpu, flush)
        self.pending = set()
        self.flush_required = False

    # -- what CPUs do by themselves ---------------------------------------------------------------------------------

    def run(self, mm, cpu):
        """A thread of that mm, or of none (INIT_MM), comes to run there (switch_mm_irqs_off)."""
        old = self.loaded_mm(cpu)
        if old not in (mm, INIT_MM) and self.kernel.lazy_kick_leaves:
            self.mask(old).discard(cpu)
        self.loaded[cpu] = mm
        self.lazy.discard(cpu)
        if mm != INIT_MM:
            self.mask(mm).add(cpu)
            self.flushed[cpu] = self.generation(mm)

    def idle(self, cpu):
        """Nobody runs there any more; the mm stays loaded (enter_lazy_tlb)."""
        if self.loaded_mm(cpu) != INIT_MM:
            self.lazy.add(cpu)

    # -- steps ------------------------------------------------------------------------------------------------------

    def mask(self, mm):
        return self.masks.setdefault(mm, set())

    def loaded_mm(self, cpu):
        return self.loaded.get(cpu, INIT_MM)

    def generation(self, mm):
        return self.newest.get(mm, 0)

    def has_others(self, mask, cpu):
        return bool(mask - {cpu})

    def flush_many(self, mask, flush):
        """One message to all of the mask that need it (flush_tlb_multi)."""
        if self.kernel.invlpgb:
            self.broadcasts += 1
            self.flushed = {cpu: self.generation(mm) for cpu, mm in self.loaded.items()}
            return
        self.requests += 1
        for cpu in sorted(mask):
            if not self.skipped(cpu, flush):
                self.ipis += cpu != flush.cpu
                self.flush_here(cpu, flush)

    def skipped(self, cpu, flush):
        """should_flush_tlb(): is it enough if this CPU flushes at its next switch of mms?"""
        if flush.tables_freed:
            return False
        if cpu in self.lazy:
            return True
        return self.kernel.skips_other_mm and flush.mm is not None and flush.mm != self.loaded_mm(cpu)

    def flush_here(self, cpu, flush):
        """flush_tlb_func(), on that CPU."""
        mm = self.loaded_mm(cpu)
        if flush.mm is not None and flush.mm != mm:
            if not self.kernel.lazy_kick_leaves:
                self.wrong_cpu += 1
                self.mask(flush.mm).discard(cpu)
        elif mm == INIT_MM:
            pass
        elif cpu in self.lazy:
            self.run(INIT_MM, cpu)
        else:
            self.flush_loaded(cpu, flush)

    def flush_loaded(self, cpu, flush):
        behind = self.generation(self.loaded_mm(cpu)) - self.flushed.get(cpu, 0)
        self.flushed[cpu] = self.generation(self.loaded_mm(cpu))
        if cpu != flush.cpu:
            self.remote += 1
            return
        if flush.mm is None:
            self.local_batch += 1
        else:
            self.local_mm += 1
        if behind == 1 and flush.n_entries is not ALL:
            self.local_pages += flush.n_entries
        elif behind > 0:
            self.local_full += 1
