"""The order of the turns of each session: one is served at a time. Plain data."""

from collections import deque

from controller.requests.request import TrackedRequest
from shared.ids import SessionKey


class SessionQueues:
    """The requests of each session that have not ended."""

    def __init__(self) -> None:
        self._turns: dict[SessionKey, deque[TrackedRequest]] = {}

    def add(self, request: TrackedRequest, replaced: TrackedRequest | None = None) -> None:
        """Add a request as the last of its session. A request that was lost and is published again
        takes the position of the lost one (`replaced`); a request whose client already had tokens
        goes before all that have not begun."""
        if request.session is None:
            return
        turns = self._turns.setdefault(request.session, deque())
        if replaced is not None and replaced in turns:
            turns[turns.index(replaced)] = request
        elif request.progress.resumed_tokens:
            turns.insert(sum(turn.state != "waiting" for turn in turns), request)
        else:
            turns.append(request)

    def add_running(self, request: TrackedRequest) -> None:
        """Add a request that a worker has already, before all that wait."""
        if request.session is not None:
            self._turns.setdefault(request.session, deque()).appendleft(request)

    def is_next(self, request: TrackedRequest) -> bool:
        """Whether the request has no session, or is the first of it."""
        return request.session is None or self._turns[request.session][0] is request

    def remove(self, request: TrackedRequest) -> TrackedRequest | None:
        """Remove a request; if it was the first of its session, return the turn that is next."""
        session = request.session
        if session is None or (turns := self._turns.get(session)) is None or request not in turns:
            return None
        was_first = turns[0] is request
        turns.remove(request)
        if not turns:
            del self._turns[session]
            return None
        return turns[0] if was_first else None
