"""Whether this worker may still write into its streams.

Controllers give a worker up when its heartbeats stay out; its requests then end, or go
elsewhere. A worker that was stopped, slept, or was cut off must not go on with them as if
nothing had happened. So it holds a lease for as long as its heartbeats surely arrive; once
that has lapsed, it asks whose its streams are before it writes.
"""

from collections.abc import Callable

from shared.clock import awake_or_asleep


class StreamLease:
    """Valid for a while after each heartbeat that is known to have arrived."""

    def __init__(self, duration_s: float, clock: Callable[[], float] = awake_or_asleep) -> None:
        self._duration_s = duration_s
        self._clock = clock
        self._connection: int | None = None
        self._until = 0.0

    def now(self) -> float:
        """On the clock of `renew`."""
        return self._clock()

    def is_valid(self, connection: int) -> bool:
        """Whether controllers surely count on us; `connection` is `Bus.connections`."""
        return connection == self._connection and self._clock() < self._until

    def renew(self, sent_at: float, connection: int) -> None:
        """A heartbeat of that time has arrived. What has lapsed is not renewed by it."""
        if self.is_valid(connection):
            self._until = max(self._until, sent_at + self._duration_s)

    def restore(self, connection: int) -> None:
        """The streams were checked."""
        self._connection = connection
        self._until = self._clock() + self._duration_s
