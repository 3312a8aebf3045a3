"""The order in which prompts are prepared: clients take turns, and short prompts do not wait for
the long ones of the same client."""

import threading
from collections import OrderedDict, deque

from worker.link.orders import PrefetchPrefix, SubmitSequence

_SHORT_CHARACTERS = 65_536

PreparationOrder = SubmitSequence | PrefetchPrefix
_Lane = tuple[str, bool]


class PreparationQueue:
    """Orders in one lane for the short and one for the long prompts of each client. Lanes take
    turns; each is first in, first out. Any thread may call all methods."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[_Lane, deque[PreparationOrder]] = OrderedDict()  # next turn first
        self._changed = threading.Condition()

    def put(self, order: PreparationOrder) -> None:
        with self._changed:
            self._lanes.setdefault(_lane(order), deque()).append(order)
            self._changed.notify()

    def take(self) -> PreparationOrder:
        """Remove and return the next order; waits for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._lanes)
            return self._pop(next(iter(self._lanes)))

    def take_short(self, other_than: str) -> PreparationOrder | None:
        """Remove and return the next order for a short prompt of another client; None if there is
        none. That client has had its turn."""
        with self._changed:
            for client, is_long in self._lanes:
                if client != other_than and not is_long:
                    return self._pop((client, is_long))
            return None

    def _pop(self, lane: _Lane) -> PreparationOrder:
        orders = self._lanes.pop(lane)
        order = orders.popleft()
        if orders:
            self._lanes[lane] = orders  # behind the others
        return order


def _lane(order: PreparationOrder) -> _Lane:
    submitted = order.order if isinstance(order, PrefetchPrefix) else order
    return submitted.client, _characters(submitted) > _SHORT_CHARACTERS


def _characters(order: SubmitSequence) -> int:
    """Return the approximate number of characters of all that a prompt and its constraint are made
    of."""
    parts = [*(order.messages or ()), *(order.calling.tools if order.calling else ())]
    if order.structure is not None:
        parts.append(order.structure.value)
    return len(order.text or "") + sum(len(str(part)) for part in parts)
