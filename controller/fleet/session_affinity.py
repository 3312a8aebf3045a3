"""Which worker served a session last, so that its next turn finds there what is kept of it."""

from collections import OrderedDict

from controller.fleet.prefix_cache_index import PrefixCacheIndex
from shared.ids import SessionKey, WorkerId

_MOST_HOMES = 100_000


class SessionAffinity:
    """
    Args:
        kept: tells who knows a session that was served before this controller began.
        ttl_s: after so long without a turn a session has no home; None where sessions are not sent
            back to where they were.
    """

    def __init__(self, kept: PrefixCacheIndex, *, ttl_s: float | None) -> None:
        self._kept = kept
        self.ttl_s = ttl_s
        self._homes: OrderedDict[SessionKey, tuple[WorkerId, float]] = OrderedDict()

    def last(self, session: SessionKey) -> WorkerId | None:
        """Who served a session last, however long ago."""
        known = self._homes.get(session)
        return known[0] if known is not None else self._kept.home(session)

    def home(self, session: SessionKey, now: float) -> WorkerId | None:
        """Where the next turn of a session is best served."""
        if self.ttl_s is None:
            return None
        known = self._homes.get(session)
        if known is None:
            return self._kept.home(session)
        worker, used_at = known
        return worker if now - used_at <= self.ttl_s else None

    def settle(self, session: SessionKey, worker: WorkerId, now: float) -> WorkerId | None:
        """A worker answered a turn; returns who served the session before, if this controller
        knows."""
        before = self._homes.get(session)
        self._homes[session] = worker, now
        self._homes.move_to_end(session)
        if len(self._homes) > _MOST_HOMES:
            self._homes.popitem(last=False)
        return before[0] if before is not None else None
