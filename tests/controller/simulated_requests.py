"""What a simulated worker has of requests, and had: what it tells a leader that claims it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shared.ids import ClientName, RequestId
from shared.messages.control import AttemptRef, ClaimedRequest, ClaimedState
from shared.messages.dispatch import Continuation, Dispatch
from shared.messages.request_events import AttemptFailed

_Key = tuple[ClientName, RequestId]


@dataclass(slots=True)
class _Held:
    """`tokens` that were emitted, of all attempts, by choice."""

    dispatch: Dispatch
    tokens: dict[int, list[int]]
    inboxes: list[str]
    state: ClaimedState = "running"
    failure: AttemptFailed | None = None


class SimulatedRequests:
    """By the client's id; a later attempt takes the place of an earlier one.

    Attributes:
        given_back: attempts that the leader got back.
    """

    def __init__(self) -> None:
        self.requeued: set[tuple[RequestId, int]] = set()
        self._held: dict[_Key, _Held] = {}

    def accept(self, dispatch: Dispatch) -> None:
        begun = dispatch.resume.token_ids if dispatch.resume is not None else {}
        tokens = {choice: list(token_ids) for choice, token_ids in begun.items()}
        self._held[_key(dispatch)] = _Held(dispatch, tokens, list(dispatch.inboxes))

    def emit(self, dispatch: Dispatch, choice: int, index: int, token_ids: Iterable[int]) -> None:
        for held in self._of(dispatch):
            tokens = held.tokens.setdefault(choice, list(dispatch.request.received_ids))
            tokens[index:] = token_ids

    def end(
        self, dispatch: Dispatch, state: ClaimedState, failure: AttemptFailed | None = None
    ) -> None:
        if state == "returned":
            self.requeued.add((dispatch.request_id, dispatch.attempt))
        for held in self._of(dispatch):
            held.state, held.failure = state, failure

    def listen(self, client: ClientName, request_id: RequestId, inbox: str) -> None:
        """One more inbox hears a request."""
        held = self._held.get((client, request_id))
        if held is not None and inbox not in held.inboxes:
            held.inboxes.append(inbox)

    def inboxes(self, dispatch: Dispatch) -> list[str]:
        """Who listens to that attempt."""
        return next((held.inboxes for held in self._of(dispatch)), dispatch.inboxes)

    def forget(self, client: ClientName, request_id: RequestId, attempt: int) -> None:
        """Drop an attempt, if it is here."""
        held = self._held.get((client, request_id))
        if held is not None and held.dispatch.attempt == attempt:
            del self._held[client, request_id]

    def claimed(self) -> list[ClaimedRequest]:
        """As a worker tells it."""
        return [_claimed(held) for held in self._held.values()]

    def contents(self, asked: Iterable[AttemptRef]) -> list[Dispatch]:
        """Those that are here, with what was emitted."""
        told = []
        for ref in asked:
            held = self._held.get((ref.client, ref.request_id))
            if held is not None and held.dispatch.attempt == ref.attempt:
                resume = Continuation(token_ids=held.tokens) if held.tokens else None
                now = {"resume": resume, "inboxes": held.inboxes}
                told.append(held.dispatch.model_copy(update=now))
        return told

    def _of(self, dispatch: Dispatch) -> Iterator[_Held]:
        """That attempt, where it is here."""
        held = self._held.get(_key(dispatch))
        if held is not None and held.dispatch.attempt == dispatch.attempt:
            yield held


def _key(dispatch: Dispatch) -> _Key:
    return dispatch.client, dispatch.request_id


def _claimed(held: _Held) -> ClaimedRequest:
    dispatch = held.dispatch
    return ClaimedRequest(
        client=dispatch.client,
        request_id=dispatch.request_id,
        attempt=dispatch.attempt,
        state=held.state,
        skill=dispatch.skill,
        model=dispatch.model,
        session_id=dispatch.request.ordered_session,
        fingerprint=dispatch.body_fingerprint,
        tokens=sum(map(len, held.tokens.values())),
        resumed_tokens=len(dispatch.request.received_ids),
        failure=held.failure,
        retries=dispatch.retries,
        migrations=dispatch.migrations,
        crashes=dispatch.crashes,
    )
