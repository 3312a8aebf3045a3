"""The publish lease: whether this worker may still publish to its streams.

Controllers declare a worker dead when its heartbeats stop; its requests then end, or migrate. A
worker that was stopped, asleep or partitioned must not continue to publish for them. So the worker
holds a lease, which heartbeats that are known to have arrived renew; once the lease has expired,
the worker asks who owns its streams before it publishes.
"""

from collections.abc import Callable

from shared.clock import boottime_s


class PublishLease:
    """Valid for `duration_s` after each heartbeat that is known to have arrived."""

    def __init__(self, duration_s: float, clock: Callable[[], float] = boottime_s) -> None:
        self._duration_s = duration_s
        self._clock = clock
        self._connection: int | None = None
        self._until = 0.0

    def now(self) -> float:
        """Return the time on the lease's clock."""
        return self._clock()

    def is_valid(self, connection: int) -> bool:
        """Whether controllers still count on this worker; `connection` is `Bus.connections`."""
        return connection == self._connection and self._clock() < self._until

    def renew(self, sent_at: float, connection: int) -> None:
        """Extend the lease: a heartbeat sent at `sent_at` has arrived. An expired lease is not
        renewed."""
        if self.is_valid(connection):
            self._until = max(self._until, sent_at + self._duration_s)

    def restore(self, connection: int) -> None:
        """Make the lease valid again, after the ownership of the streams was checked."""
        self._connection = connection
        self._until = self._clock() + self._duration_s
