"""Where the sessions of clients were served last. A plain data structure."""

from collections import OrderedDict
from typing import Generic, TypeVar

from shared.ids import ClientName, SessionKey

H = TypeVar("H")


class SessionHomes(Generic[H]):
    """The home of each session. If there are too many, the client that has most forgets the one
    that it has used least recently: no client has another one's sessions forgotten."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._by_client: dict[ClientName, OrderedDict[str, H]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, session: SessionKey) -> H | None:
        client, session_id = session
        homes = self._by_client.get(client)
        return homes.get(session_id) if homes is not None else None

    def set(self, session: SessionKey, home: H) -> H | None:
        """Set the home of a session that was just used; returns the one before."""
        client, session_id = session
        homes = self._by_client.setdefault(client, OrderedDict())
        before = homes.pop(session_id, None)
        homes[session_id] = home
        self._count += before is None
        if self._count > self._max_sessions:
            self._forget_one()
        return before

    def _forget_one(self) -> None:
        most = max(self._by_client, key=lambda client: len(self._by_client[client]))
        self._by_client[most].popitem(last=False)
        self._count -= 1
        if not self._by_client[most]:
            del self._by_client[most]
