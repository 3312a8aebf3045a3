"""The subscribers of a stream, and the detection of those that left.

NATS reports a missing subscriber (503) only to the publisher of a message with a reply subject.
So some messages are probes: they have a reply subject of ours. One 503 may be false just after a
subscription was made, or while a client reconnects; two in a row, some time apart, are not.

Plain state with the clock passed in: no I/O.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.messages.dispatch import MAX_INBOXES

PROBE_INTERVAL_S = 0.4
MISSES_APART_S = 0.7


@dataclass(slots=True)
class _Subscriber:
    inbox: str
    probed_at: float
    missed: bool = False  # since the last probe
    missed_since: float | None = None


class StreamSubscribers:
    """The inboxes of one stream."""

    def __init__(self, inboxes: Sequence[str], now: float) -> None:
        self._subscribers = [_Subscriber(inbox, now) for inbox in dict.fromkeys(inboxes)]

    def __iter__(self) -> Iterator[str]:
        return iter([subscriber.inbox for subscriber in self._subscribers])

    def __len__(self) -> int:
        return len(self._subscribers)

    def add(self, inbox: str, now: float) -> None:
        """Add an inbox; above `MAX_INBOXES` the oldest is removed."""
        if inbox not in self:
            self._subscribers.append(_Subscriber(inbox, now))
            del self._subscribers[:-MAX_INBOXES]

    def should_probe(self, inbox: str, now: float) -> bool:
        """Whether the next message to an inbox must be a probe; if so, records the probe."""
        subscriber = self._find(inbox)
        if subscriber is None or now - subscriber.probed_at < PROBE_INTERVAL_S:
            return False
        if not subscriber.missed:
            subscriber.missed_since = None  # the last probe was delivered
        subscriber.probed_at, subscriber.missed = now, False
        return True

    @property
    def doubtful(self) -> bool:
        """Whether the next message should be sent soon, to confirm or clear a missed probe."""
        return any(each.missed_since is not None for each in self._subscribers)

    def on_missed(self, inbox: str, now: float) -> None:
        """Record a probe without a subscriber; remove the inbox if that has lasted long enough."""
        subscriber = self._find(inbox)
        if subscriber is None:
            return
        subscriber.missed = True
        if subscriber.missed_since is None:
            subscriber.missed_since = now
        elif now - subscriber.missed_since >= MISSES_APART_S:
            self._subscribers.remove(subscriber)

    def _find(self, inbox: str) -> _Subscriber | None:
        return next((each for each in self._subscribers if each.inbox == inbox), None)
