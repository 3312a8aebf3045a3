"""Fair sharing of the device among the models of an engine, and among the groups of a model: each
gets time in proportion to the square root of its rows.

A group with the share s of the time is 1/s times slower than alone. Shares proportional to
sqrt(rows) minimise the sum of this slowdown over all rows: one long row beside seven short ones
gets 27 % of the time, not half of it. The order is that of stride scheduling (Waldspurger and
Weihl, 1995).
"""

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar


class SchedulableGroup(Protocol):
    """A group of rows, or the batch of a model.

    Attributes:
        virtual_time: the lowest is scheduled next.
    """

    virtual_time: float

    def __len__(self) -> int: ...


G = TypeVar("G", bound=SchedulableGroup)


class FairShareScheduler:
    """Schedules groups by their virtual time.

    Args:
        longest_debt_s: caps the time charged at once: after a long prompt a group does not wait
            until the others have had as much.
    """

    def __init__(self, *, longest_debt_s: float = math.inf) -> None:
        self._longest_debt_s = longest_debt_s
        self._now = 0.0

    def next(self, groups: Sequence[G]) -> G:
        """Return the group that steps next; a group that was idle gets no credit for that time."""
        for group in groups:
            group.virtual_time = max(group.virtual_time, self._now)
        chosen = min(groups, key=lambda group: group.virtual_time)
        self._now = chosen.virtual_time
        return chosen

    def charge(self, group: SchedulableGroup, seconds: float) -> None:
        """Charge a group for the time that it used the device."""
        weight = math.sqrt(max(1, len(group)))
        latest = self._now + self._longest_debt_s / weight
        group.virtual_time = min(
            group.virtual_time + seconds / weight, max(group.virtual_time, latest)
        )
