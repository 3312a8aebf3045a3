"""Preemption of slots in a full batch, as a pure decision.

A prompt becomes overdue some time after its arrival (`PrefillScheduler`). An overdue sequence may
take the slot of the row that has held its slot longest, once that row has held it for a multiple of
the estimated work of the newcomer; never the slot of a row that will end sooner than the newcomer
would. The preempted row is parked: it keeps its KV cache, and gets the next free slot. So an
overdue sequence waits for at most a few times its own work, and a long answer loses at most a fifth
of its time to short ones.

A newcomer, the only sequence of its client, does not wait that long: it takes the slot of a client
that has several, at once, so that no client keeps another one out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_MIN_TENURE = 4.0
"""A row keeps its slot for this multiple of the work of the sequence that wants it."""


@dataclass(frozen=True, slots=True)
class SlotWaiter:
    """A sequence that is ready to decode and has no slot.

    Attributes:
        overdue_at: when it may take the slot of another row.
        priority: 0 is the most urgent.
        work_s: estimated seconds from its start to its end.
        is_newcomer: its client has nothing else in the engine.
    """

    overdue_at: float
    priority: int
    work_s: float
    is_newcomer: bool = False


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """A decoding row: since when (on the same clock), and for how many seconds more at most."""

    priority: int
    since: float
    left_s: float
    client: str = ""


def row_to_preempt(waiting: SlotWaiter, decoding: Sequence[SlotHolder], now: float) -> int | None:
    """Return the index of the row that loses its slot; None if no row has to yet."""
    if waiting.overdue_at > now:
        return None
    if waiting.is_newcomer:
        return _row_of_many(waiting, decoding)
    candidates = [
        (each.since, index)
        for index, each in enumerate(decoding)
        if each.priority >= waiting.priority
        and now - each.since > _MIN_TENURE * waiting.work_s
        and each.left_s > waiting.work_s
    ]
    return min(candidates)[1] if candidates else None


def _row_of_many(waiting: SlotWaiter, decoding: Sequence[SlotHolder]) -> int | None:
    """Return the row that has decoded longest, of the client with the most rows."""
    counts = Counter(each.client for each in decoding)
    candidates = [
        (-counts[each.client], each.since, index)
        for index, each in enumerate(decoding)
        if each.priority >= waiting.priority and counts[each.client] > 1
    ]
    return min(candidates)[2] if candidates else None
