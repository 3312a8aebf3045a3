"""The order of the turns of each session: one is served at a time. Plain data."""

from collections import deque

from controller.requests.request import ClientRequest
from shared.ids import SessionKey


class SessionTurns:
    """The requests of each session that have not ended."""

    def __init__(self) -> None:
        self._turns: dict[SessionKey, deque[ClientRequest]] = {}

    def arrived(self, request: ClientRequest, instead_of: ClientRequest | None = None) -> None:
        """Add a request as the last of its session. A request that was lost and is published again
        (`instead_of`) keeps its place; one whose client already had tokens goes before all that
        have not begun."""
        if request.session is None:
            return
        turns = self._turns.setdefault(request.session, deque())
        if instead_of is not None and instead_of in turns:
            turns[turns.index(instead_of)] = request
        elif request.progress.heard:
            turns.insert(sum(turn.state != "waiting" for turn in turns), request)
        else:
            turns.append(request)

    def began_before(self, request: ClientRequest) -> None:
        """It runs already: it is before all that wait."""
        if request.session is not None:
            self._turns.setdefault(request.session, deque()).appendleft(request)

    def is_next(self, request: ClientRequest) -> bool:
        """Whether no earlier turn of its session is here."""
        return request.session is None or self._turns[request.session][0] is request

    def left(self, request: ClientRequest) -> ClientRequest | None:
        """It ended, or is gone; returns the turn that is next now, if that was it."""
        session = request.session
        if session is None or (turns := self._turns.get(session)) is None or request not in turns:
            return None
        was_first = turns[0] is request
        turns.remove(request)
        if not turns:
            del self._turns[session]
            return None
        return turns[0] if was_first else None
