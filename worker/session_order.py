"""The turns of a session: one at a time, in the order in which they came."""

from collections import deque
from typing import Generic, Protocol, TypeVar

from shared.ids import SessionKey


class Turn(Protocol):
    @property
    def ordered_session(self) -> SessionKey | None: ...


T = TypeVar("T", bound=Turn)


class SessionOrder(Generic[T]):
    """Requests of sessions, from their coming to their end. Those of no session are ignored."""

    def __init__(self) -> None:
        self._turns: dict[SessionKey, deque[T]] = {}

    def __len__(self) -> int:
        """Sessions of which a request is here."""
        return len(self._turns)

    def came(self, request: T) -> None:
        """A request is the last of its session now."""
        if (session := request.ordered_session) is not None:
            self._turns.setdefault(session, deque()).append(request)

    def is_next(self, request: T) -> bool:
        """Whether all that came before it in its session have ended."""
        session = request.ordered_session
        return session is None or self._turns[session][0] is request

    def ended(self, request: T) -> None:
        """A request ended, or went elsewhere, whether it had begun or not; again is no harm."""
        session = request.ordered_session
        if session is None or (turns := self._turns.get(session)) is None:
            return
        if request in turns:
            turns.remove(request)
        if not turns:
            del self._turns[session]
