"""Remembers which worker served a session last: that worker has the session's prefix cached."""

from controller.fleet.prefix_cache_index import PrefixCacheIndex
from shared.fair_lru import FairLru
from shared.ids import SessionKey, WorkerId

_MAX_SESSIONS = 100_000


class SessionAffinity:
    """
    Args:
        prefixes: finds the worker of a session that was served before this controller started.
        ttl_s: a session without a turn for this time has no home worker any more; None disables
            session affinity.
    """

    def __init__(self, prefixes: PrefixCacheIndex, *, ttl_s: float | None) -> None:
        self._prefixes = prefixes
        self.ttl_s = ttl_s
        self._homes: FairLru[tuple[WorkerId, float]] = FairLru(_MAX_SESSIONS)

    def last_worker(self, session: SessionKey) -> WorkerId | None:
        """Return the worker that served the session last, however long ago."""
        known = self._homes.get(session)
        return known[0] if known is not None else self._prefixes.home(session)

    def home(self, session: SessionKey, now: float) -> WorkerId | None:
        """Return the worker that the next turn of the session should go to."""
        if self.ttl_s is None:
            return None
        known = self._homes.get(session)
        if known is None:
            return self._prefixes.home(session)
        worker, used_at = known
        return worker if now - used_at <= self.ttl_s else None

    def record_turn(self, session: SessionKey, worker: WorkerId, now: float) -> WorkerId | None:
        """Record that a worker served a turn; returns the worker that served the turn before, if
        this controller knows it."""
        before = self._homes.set(session, (worker, now))
        return before[0] if before is not None else None
