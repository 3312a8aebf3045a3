"""Who listens to a stream, and how one who left is found.

NATS tells only the publisher of a message with a reply subject that nobody subscribes to its
subject (503). So now and then a message is published with a reply subject of our own. One 503
may be false just after a subscription was made, or while a client reconnects; two in a row,
some time apart, are not.

Plain state with the clock passed in: no I/O.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.messages.dispatch import MAX_INBOXES

PROBE_INTERVAL_S = 0.4
MISSES_APART_S = 0.7


@dataclass(slots=True)
class _Listener:
    inbox: str
    probed_at: float
    missed: bool = False  # since the last probe
    missed_since: float | None = None


class Inboxes:
    """The inboxes of one stream."""

    def __init__(self, inboxes: Sequence[str], now: float) -> None:
        self._listeners = [_Listener(inbox, now) for inbox in dict.fromkeys(inboxes)]

    def __iter__(self) -> Iterator[str]:
        return iter([listener.inbox for listener in self._listeners])

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, inbox: str, now: float) -> None:
        """One more; the oldest goes when there are too many."""
        if inbox not in self:
            self._listeners.append(_Listener(inbox, now))
            del self._listeners[:-MAX_INBOXES]

    def should_probe(self, inbox: str, now: float) -> bool:
        """Whether the next message to an inbox shall be a probe; counts it as one if so."""
        listener = self._find(inbox)
        if listener is None or now - listener.probed_at < PROBE_INTERVAL_S:
            return False
        if not listener.missed:
            listener.missed_since = None  # the last probe found somebody
        listener.probed_at, listener.missed = now, False
        return True

    @property
    def doubtful(self) -> bool:
        """Whether the next message should come soon, to make sure that somebody is there."""
        return any(listener.missed_since is not None for listener in self._listeners)

    def on_missed(self, inbox: str, now: float) -> None:
        """A probe found nobody: forget the inbox if that is so for long enough."""
        listener = self._find(inbox)
        if listener is None:
            return
        listener.missed = True
        if listener.missed_since is None:
            listener.missed_since = now
        elif now - listener.missed_since >= MISSES_APART_S:
            self._listeners.remove(listener)

    def _find(self, inbox: str) -> _Listener | None:
        return next((each for each in self._listeners if each.inbox == inbox), None)
