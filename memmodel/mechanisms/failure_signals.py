"""Who gets a signal when a page that tasks map has gone bad (collect_procs, kill_procs in mm/memory-failure.c)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memmodel.errors import InputError
from memmodel.state.failure_layout import MfFlag

__all__ = [
    "BUS_MCEERR_AO",
    "BUS_MCEERR_AR",
    "SIGBUS",
    "SIGKILL",
    "Signal",
    "Task",
    "check_tasks",
    "collected",
    "signals",
]

SIGKILL, SIGBUS = 9, 7
BUS_MCEERR_AR, BUS_MCEERR_AO = 4, 5


@dataclass(frozen=True)
class Task:
    """A process, as far as errors of its memory are concerned."""

    comm: str
    """Its name, as the log prints it."""
    pid: int
    mm: int
    """Number of its address space."""
    address: int | None = None
    """Where it has the page; None: rmap finds no address, and the kernel can only kill it."""
    early_kill: bool | None = None
    """Its own PR_MCE_KILL policy: early or late; None: the machine's (vm.memory_failure_early_kill)."""


@dataclass(frozen=True)
class Signal:
    """A signal that a task got."""

    task: Task
    number: int
    """7 (SIGBUS) or 9 (SIGKILL)."""
    si_code: int
    """Of SIGBUS: 4 (BUS_MCEERR_AR, forced) or 5 (BUS_MCEERR_AO, which a task may block)."""
    lsb: int
    """si_addr_lsb: log2 of the bytes lost."""

    @property
    def line(self) -> str:
        """What the log says, behind the pfn."""
        who = f"{self.task.comm}:{self.task.pid}"
        if self.number == SIGKILL:
            return f"forcibly killing {who} because of failure to unmap corrupted page"
        return f"Sending SIGBUS to {who} due to hardware memory corruption"


def check_tasks(tasks: Iterable[Task], current: Task | None) -> tuple[Task, ...]:
    """The tasks, as a tuple.

    Raises
    ------
    InputError
        If something else is among them.
    """
    try:
        given = tuple(tasks)
    except TypeError:
        raise InputError(f"tasks {tasks!r}; a sequence of Task is possible") from None
    for task in (*given, *([] if current is None else [current])):
        if not isinstance(task, Task):
            raise InputError(f"task {task!r}; a Task(comm, pid, mm, address) is possible")
    return given


def collected(
    tasks: Sequence[Task], current: Task | None, mms: int, of_file: bool, flags: int, early_kill: bool
) -> list[Task]:
    """The tasks that are told at once: the current one if it met the error, others by their early-kill policy.

    Of a file's pages those count too that have them in a VMA without having mapped them.
    """
    found = []
    for task in tasks:
        if not mms >> task.mm & 1 and not (of_file and task.address is not None):
            continue
        if flags & MfFlag.ACTION_REQUIRED and current is not None and task.mm == current.mm:
            found.append(current)
        elif early_kill if task.early_kill is None else task.early_kill:
            found.append(task)
    return found


def signals(tasks: Sequence[Task], current: Task | None, flags: int, lsb: int, stays_mapped: bool) -> list[Signal]:
    """What each gets: where an address is missing, or a mapping could not be taken away, only SIGKILL helps."""
    sent = []
    for task in tasks:
        if stays_mapped or task.address is None:
            sent.append(Signal(task, SIGKILL, 0, 0))
        elif flags & MfFlag.ACTION_REQUIRED and task == current:
            sent.append(Signal(task, SIGBUS, BUS_MCEERR_AR, lsb))
        else:
            sent.append(Signal(task, SIGBUS, BUS_MCEERR_AO, lsb))
    return sent
