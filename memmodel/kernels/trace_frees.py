"""Which frees of a trace are of a batch, and which found the per-CPU lists locked: what next befalls the page."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memmodel.jit import inlined, kernel
from memmodel.kernels.replay_state import Action
from memmodel.sources.ftrace_events import Event

COSTLY = 3  # PAGE_ALLOC_COSTLY_ORDER
ORPHAN = -2  # action of an mm_page_free_batched without its mm_page_free
BEFALLS = (
    Event.MM_PAGE_FREE.value,
    Event.MM_PAGE_FREE_BATCHED.value,
    Event.DIRECT_FREE.value,
    Event.PCP_ADD.value,
    Event.PCP_DELETE.value,
    Event.LIST_DELETE.value,
)


class Frees(NamedTuple):
    """The columns of a trace that tell it."""

    events: npt.NDArray[np.uint8]
    fields: npt.NDArray[np.int64]
    softirq: npt.NDArray[np.bool_]
    last: npt.NDArray[np.int64]  # zero for each page from pfn `base` on
    base: int
    thp_order: int  # the one beyond 3 that has per-CPU lists
    whole: bool  # the kernel's own operations are in the trace


@inlined
def was_direct(frees: Frees, row: int) -> bool:
    """A softirq's free of an order that has per-CPU lists, which no push followed in a whole trace."""
    order = frees.fields[row, 1]
    small = bool(order <= COSTLY) or bool(order == frees.thp_order)
    return frees.whole and bool(frees.softirq[row]) and small


@inlined
def settle(frees: Frees, actions: Any, free: int, event: int) -> None:
    """What an event says of the free of the same page before it."""
    if event == Event.MM_PAGE_FREE_BATCHED.value:
        actions[free] = Action.FREE_IN_BATCH.value
    elif event == Event.DIRECT_FREE.value or (event != Event.PCP_ADD.value and was_direct(frees, free)):
        actions[free] = Action.FREE_DIRECT.value


@kernel
def tell_frees(frees: Frees, actions: Any) -> None:
    """Mark those frees in `actions`, and pushes without a free as ORPHAN."""
    last = frees.last
    for row in range(frees.events.size):
        event = frees.events[row]
        place = frees.fields[row, 0] - frees.base
        if event not in BEFALLS or place < 0 or place >= last.size:
            continue
        if last[place]:
            settle(frees, actions, last[place] - 1, event)
            last[place] = 0
        elif event == Event.MM_PAGE_FREE_BATCHED.value and actions[row] >= 0:
            actions[row] = ORPHAN
        if event == Event.MM_PAGE_FREE.value and actions[row] >= 0:
            last[place] = row + 1
    for place in range(last.size):
        if last[place] and was_direct(frees, last[place] - 1):
            actions[last[place] - 1] = Action.FREE_DIRECT.value
