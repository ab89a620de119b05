"""Phases of page migration between two nodes, as recorded with their TLB flushes, and as the model does them.

A QEMU guest with two nodes moved fresh pages in ten ways; tracepoints tlb_flush and mm_migrate_pages and the counters
of /proc/vmstat were read around each. Five groups: one CPU; two, where the process has run on one only; where a second
thread sleeps on the other but for 2 ms wakes, spins there, or reads the pages. Debian's 6.1.192, 6.12.117 and 7.3.4,
and 6.12.117 built with another configuration (612gt).
"""

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from memmodel.geometry import Geometry
from memmodel.mechanisms.buddy import alloc_pages
from memmodel.mechanisms.folio_state import set_folio
from memmodel.mechanisms.huge_pages import fault_thp
from memmodel.mechanisms.migration import MigrationOutcome, migrate_pages
from memmodel.mechanisms.move_pages import Entry, move_pages
from memmodel.mechanisms.tlb import Tlb
from memmodel.memory import PhysicalMemory

__all__ = ["KERNELS", "NUMBERS", "Phase", "model_phase", "recorded_phases"]

KERNELS = {"61": "6.1.192", "612": "6.12.117", "612gt": "6.12.117", "73": "7.3.4"}
NUMBERS = (
    *("pages_migrated", "migrate_calls", "flush_ops", "ipi_requests", "ret", "status"),
    *("nr_failed", "set_migration_pte", "remove_migration_pte"),
)
"""What is compared."""
N_PAGES, N_FEW, N_SHARED, N_THP, N_PIPE, N_PINNED = 1024, 128, 512, 8, 64, 16
IN_MASK_FIRST = ("one_call", "calls_of_32", "one_page_a_call")  # later an munmap() had taken the idle CPU out
MEMORY = "512MiB"


@dataclass(frozen=True)
class Phase:
    """One phase of one recording."""

    kernel: str
    """A key of `KERNELS`."""
    group: str
    name: str
    numbers: dict[str, Any]
    """Of `NUMBERS`."""
    targets: int
    """pgalloc: pages allocated, the targets and whatever else needed some."""


def recorded_phases() -> Iterator[Phase]:
    """All phases of all recordings."""
    text = resources.files("memmodel.studies").joinpath("data/tlb_phases.csv").read_text("ascii")
    for row in csv.DictReader(text.splitlines()):
        group, _, name = row["phase"].partition(".")
        number = {key: int(value) for key, value in row.items() if key not in ("kernel", "phase", "status")}
        numbers = {
            "pages_migrated": number["pgmigrate_success"],
            "migrate_calls": number["mm_migrate_pages_calls"],
            "flush_ops": number["tlb_local_mm"] + number["tlb_local"],
            "ipi_requests": number["tlb_remote_send_ipi"],
            "ret": number["ret"],
            "status": row["status"],
            "nr_failed": number["pgmigrate_fail"],
            "set_migration_pte": number["set_migration_pte"],
            "remove_migration_pte": number["remove_migration_pte"],
        }
        yield Phase(row["kernel"], group, name, numbers, number["pgalloc"])


def model_phase(recorded: Phase) -> Phase:
    """The same phase in the model.

    From the recording come what nothing but it tells: how many pages the process had (migrate_pages_self), how many
    first writes after a fork fell into the phase (shared_MOVE), and by group which CPUs are in the mask.
    """
    return _Model(recorded).run()


class _Model:
    """A machine with two nodes, and a process on CPU 0."""

    def __init__(self, recorded: Phase) -> None:
        self.recorded, self.group = recorded, recorded.group
        self.name = recorded.name.removeprefix("move_pages_")
        geometry = Geometry(kernel=KERNELS[recorded.kernel])
        n_cpus = 1 if self.group == "1cpu" else 2
        self.mem = PhysicalMemory(geometry, MEMORY, nodes=2, cpus=n_cpus, seed=0)
        self.tlb = self._address_spaces(geometry, n_cpus)
        self.calls: list[MigrationOutcome] = []
        self.ret, self.status = 0, Counter[int]()

    def _address_spaces(self, geometry: Geometry, n_cpus: int) -> Tlb:
        """The process, and a child that has run on CPU 0 alone."""
        alone = self.group == "2cpu_one_thread"
        if n_cpus == 1 or (alone and self.name not in IN_MASK_FIRST):
            return Tlb(geometry, n_cpus, [[0], [0]], loaded={0: 0})
        asleep = self.group == "2cpu_thread_asleep"
        idle = [1] if alone or asleep else []
        return Tlb(geometry, n_cpus, [[0, 1], [0]], lazy=idle, wakes=asleep, loaded={0: 0, 1: 0})

    def run(self) -> Phase:
        {
            "one_call": self._one_call,
            "calls_of_32": self._calls_of_32,
            "one_page_a_call": self._one_page_a_call,
            "mbind_move": self._mbind,
            "half_absent": self._half_absent,
            "8_thp": self._thps,
            "16_of_64_pinned": self._pinned,
            "shared_MOVE": self._shared,
            "shared_MOVE_ALL": self._shared,
            "migrate_pages_self": self._migrate_self,
        }[self.name]()
        self.mem.check()
        flushes = self.tlb.counts
        numbers = {
            "pages_migrated": sum(call.nr_succeeded for call in self.calls),
            "migrate_calls": len(self.calls),
            "flush_ops": flushes["local_mm"] + flushes["local_batch"],
            "ipi_requests": flushes["requests"],
            "ret": self.ret,
            "status": " ".join(f"[{node}]={n}" for node, n in sorted(self.status.items())),
            "nr_failed": sum(call.nr_failed for call in self.calls),
            "set_migration_pte": self._sum("n_set"),
            "remove_migration_pte": self._sum("n_removed"),
        }
        return Phase(self.recorded.kernel, self.group, self.recorded.name, numbers, self._sum("n_target_pages"))

    def _sum(self, name: str) -> int:
        return sum(call.counts[name] for call in self.calls)

    def _move(self, pages: Any, node: int = 1, *, move_all: bool = False) -> None:
        out = move_pages(self.mem, pages, node, move_all=move_all, tlb=self.tlb)
        self.calls += out.calls
        self.ret += out.ret
        self.status.update(out.status.tolist())

    def _one_call(self) -> None:
        self._move(alloc_pages(self.mem, count=N_PAGES))

    def _calls_of_32(self) -> None:
        pages = alloc_pages(self.mem, count=N_PAGES, node=1)
        for first in range(0, N_PAGES, 32):
            self._move(pages[first : first + 32], 0)

    def _one_page_a_call(self) -> None:
        for page in alloc_pages(self.mem, count=N_FEW):
            self._move(page)

    def _mbind(self) -> None:
        out = migrate_pages(self.mem, alloc_pages(self.mem, count=N_PAGES), 1, caller="mbind", tlb=self.tlb)
        self.calls.append(out)
        self.ret += out.rc

    def _half_absent(self) -> None:
        pages = np.full(N_PAGES, Entry.ABSENT, np.int64)
        pages[::2] = alloc_pages(self.mem, count=N_PAGES // 2)
        self._move(pages)

    def _thps(self) -> None:
        self._move(fault_thp(self.mem, N_THP))

    def _pinned(self) -> None:
        pages = alloc_pages(self.mem, count=N_PIPE)
        set_folio(self.mem, pages[:: N_PIPE // N_PINNED], pins=1)
        self._move(pages)

    def _shared(self) -> None:
        everybody = self.name == "shared_MOVE_ALL"
        pages = alloc_pages(self.mem, count=N_SHARED)
        set_folio(self.mem, pages, mapped_by=[0, 1])
        self._move(pages, move_all=everybody)
        if not everybody:
            for _ in range(self.recorded.numbers["flush_ops"]):
                self.tlb.flush(0, 0)

    def _migrate_self(self) -> None:
        pages = alloc_pages(self.mem, count=self.recorded.numbers["pages_migrated"])
        if self.recorded.kernel == "73":  # the vDSO's data page, on no LRU list: seen from some kernel after 6.12 on
            pages = np.append(pages, alloc_pages(self.mem, migratetype="unmovable"))
        out = migrate_pages(self.mem, pages, 1, caller="migrate_pages", tlb=self.tlb)
        self.calls.append(out)
        self.ret += out.rc + out.n_not_isolated
