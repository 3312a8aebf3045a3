"""The requests of this worker: those that are here, and those that ended not long ago."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from shared.ids import ModelId
from shared.messages.request_events import RequestFailed
from worker.requests.active_request import ActiveRequest, RequestChoice, RequestKey

_KEPT_AFTER_END_S = 30.0


class RequeuedRequest(NamedTuple):
    """A request that its owner got back, with what it was told, on the monotonic clock."""

    request: ActiveRequest
    event: RequestFailed
    at: float


class RequestTable:
    """By the client's id of a request, and by the engine's number of a sequence."""

    def __init__(self) -> None:
        self._present: dict[RequestKey, ActiveRequest] = {}
        self._ended: dict[RequestKey, ActiveRequest] = {}  # in the order of their ends
        self._by_sequence: dict[int, tuple[ActiveRequest, RequestChoice]] = {}
        self._left: dict[int, ActiveRequest] = {}  # those that are in `_ended`
        self._requeued: dict[RequestKey, RequeuedRequest] = {}  # likewise

    def __len__(self) -> int:
        return len(self._present)

    def __iter__(self) -> Iterator[ActiveRequest]:
        """Those that are here now; they may leave meanwhile."""
        return iter(list(self._present.values()))

    def get(self, key: RequestKey) -> ActiveRequest | None:
        """A request that waits or runs here."""
        return self._present.get(key)

    def find(self, key: RequestKey) -> ActiveRequest | None:
        """A request that is here, or ended here not long ago."""
        return self._present.get(key) or self._ended.get(key)

    def by_model(self) -> Counter[ModelId]:
        """How many requests are here for each model."""
        return Counter(request.model for request in self._present.values())

    def add(self, request: ActiveRequest) -> None:
        self._present[request.key] = request

    def end(self, request: ActiveRequest) -> bool:
        """It is here no longer; one that has a terminal message is kept for a while, for those
        who ask for it again. False when it was not here."""
        was_here = self._present.get(request.key) is request  # and not a later attempt of it
        if was_here:
            del self._present[request.key]
        if was_here and request.end is not None:
            if (other := self._ended.get(request.key)) is not None:
                self.forget(other)
            self._ended[request.key] = request
            self._left |= {choice.sequence: request for choice in request.choices}
        return was_here

    def forget(self, request: ActiveRequest) -> None:
        """Nobody may ask for it again."""
        if self._ended.get(request.key) is request:
            del self._ended[request.key]
        for choice in request.choices:
            self._left.pop(choice.sequence, None)

    @property
    def ended(self) -> list[ActiveRequest]:
        """Those that ended not long ago, and whose client was told."""
        return list(self._ended.values())

    @property
    def recent(self) -> list[ActiveRequest]:
        """All that are here, or left not long ago."""
        back = [each.request for each in self._requeued.values()]
        return [*self._present.values(), *back, *self._ended.values()]

    def of_attempt(self, key: RequestKey, attempt: int) -> ActiveRequest | None:
        """One attempt of a request that is here, or went back to the leader not long ago."""
        back = self._requeued.get(key)
        for request in (self._present.get(key), back and back.request):
            if request is not None and request.dispatch.attempt == attempt:
                return request
        return None

    # Given back.

    @property
    def requeued(self) -> list[RequeuedRequest]:
        """Those that went back to their owner not long ago."""
        return list(self._requeued.values())

    def requeue(self, request: ActiveRequest, event: RequestFailed, now: float) -> None:
        """Remember that it went back to its owner: who is gone, perhaps."""
        self._requeued.pop(request.key, None)
        self._requeued[request.key] = RequeuedRequest(request, event, now)

    def take_requeued(self, key: RequestKey) -> RequeuedRequest | None:
        """One of them, which is forgotten then."""
        return self._requeued.pop(key, None)

    def forget_requeued(self, key: RequestKey, attempt: int) -> None:
        """Its owner has seen that an attempt, or any if that is -1, came back."""
        known = self._requeued.get(key)
        if known is not None and attempt in (-1, known.request.dispatch.attempt):
            del self._requeued[key]

    def forget_old(self, now: float) -> None:
        """Forget those that ended, or went back, long ago."""
        for key, each in list(self._requeued.items()):
            if now - each.at > _KEPT_AFTER_END_S:
                del self._requeued[key]
        for request in list(self._ended.values()):
            if now - request.ended_at <= _KEPT_AFTER_END_S:
                return
            self.forget(request)

    # Sequences in engines.

    def enter_engine(self, request: ActiveRequest) -> None:
        """Its sequences are going to an engine."""
        for choice in request.choices:
            self._by_sequence[choice.sequence] = (request, choice)

    def of_sequence(self, sequence: int) -> tuple[ActiveRequest, RequestChoice] | None:
        """Whose answer a sequence of an engine is, while it is in there."""
        return self._by_sequence.get(sequence)

    def by_first_choice(self, sequence: int) -> ActiveRequest | None:
        """Whose first answer a sequence is, or was not long ago."""
        present = self._by_sequence.get(sequence)
        request = present[0] if present is not None else self._left.get(sequence)
        if request is None or request.choices[0].sequence != sequence:
            return None
        return request

    def leave_engine(self, choice: RequestChoice) -> ActiveRequest | None:
        """Its sequence is in no engine any more; whose it was, None when it was in none."""
        request, _ = self._by_sequence.pop(choice.sequence, (None, None))
        return request
