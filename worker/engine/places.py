"""Who gets a place among the rows that decode where all are taken. Decides only.

Some time after it came (`Prefilling`) a prompt is overdue. From then on it may take the place of
the row that has had its own longest, once that is some times what the newcomer's work takes, as far
as can be said; not of one that will have ended before the newcomer would. That row is parked: it
keeps its memory, and is the next to get a place. So whoever is overdue waits for a few times its
own work at most, and a long answer loses a fifth of its time to short ones at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_TURN = 4.0
"""A row keeps its place for so many times the work of who wants it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who is ready to decode.

    Attributes:
        overdue_at: when it may take the place of another.
        priority: 0 is the most urgent.
        work_s: what it takes from its start to its end, as far as can be said.
    """

    overdue_at: float
    priority: int
    work_s: float


@dataclass(frozen=True, slots=True)
class Placed:
    """Who decodes, `since` a time on the same clock; and for `left_s` at most."""

    priority: int
    since: float
    left_s: float


def gives_way(waiting: Waiting, placed: Sequence[Placed], now: float) -> int | None:
    """Which of those that decode gives its place up; None where nobody has to yet."""
    if waiting.overdue_at > now:
        return None
    candidates = [
        (each.since, index)
        for index, each in enumerate(placed)
        if each.priority >= waiting.priority
        and now - each.since > _TURN * waiting.work_s
        and each.left_s > waiting.work_s
    ]
    return min(candidates)[1] if candidates else None
