"""Reply subjects of probes: short ones, so that a message to any inbox fits into a protocol line.

The server closes a connection that sends a line of more than `max_control_line` bytes, 4,096 by
default, and a line has the subject and the reply subject.
"""

from collections import OrderedDict

_REMEMBERED_S = 30.0
"""The server answers a probe at once; after a reconnect its answer is ignored anyway."""


class ProbeSubjects:
    """Numbers the inboxes that are probed.

    Args:
        prefix: an inbox of this worker, under which the answers arrive.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._next = 1
        self._numbers: OrderedDict[str, tuple[int, float]] = OrderedDict()  # by inbox, last probed
        self._inboxes: dict[int, str] = {}

    @property
    def all(self) -> str:
        """The subject of all answers."""
        return f"{self._prefix}.*"

    def subject(self, inbox: str, now: float) -> str:
        """Return the reply subject of a probe of an inbox. It keeps its number while it is probed.

        Args:
            now: seconds on any clock that does not go back.
        """
        number, _ = self._numbers.get(inbox, (self._next, now))
        if number == self._next:
            self._next += 1
        self._numbers[inbox] = number, now
        self._numbers.move_to_end(inbox)
        self._inboxes[number] = inbox
        while now - next(iter(self._numbers.values()))[1] > _REMEMBERED_S:
            _, (forgotten, _) = self._numbers.popitem(last=False)
            del self._inboxes[forgotten]
        return f"{self._prefix}.{number}"

    def inbox(self, subject: str) -> str | None:
        """Return the inbox of an answer; None if it was not probed recently."""
        number = subject.removeprefix(f"{self._prefix}.")
        return self._inboxes.get(int(number)) if number.isdecimal() else None
