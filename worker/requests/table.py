"""The requests of this worker: those that wait or run, and those that ended recently."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from shared.ids import ModelId
from shared.messages.request_events import AttemptFailed
from worker.requests.active_choice import ActiveChoice
from worker.requests.active_request import ActiveRequest, RequestKey

_RETENTION_S = 30.0


class RequeuedRequest(NamedTuple):
    """A request that was sent back to the leader, with the event that did so; `at` is on the
    monotonic clock."""

    request: ActiveRequest
    event: AttemptFailed
    at: float


class RequestTable:
    """Finds requests by client and request id, and by sequence number."""

    def __init__(self) -> None:
        self._present: dict[RequestKey, ActiveRequest] = {}
        self._ended: dict[RequestKey, ActiveRequest] = {}  # in the order of their ends
        self._by_sequence: dict[int, tuple[ActiveRequest, ActiveChoice]] = {}
        self._ended_by_sequence: dict[int, ActiveRequest] = {}
        self._requeued: dict[RequestKey, RequeuedRequest] = {}  # in the order of their ends

    def __len__(self) -> int:
        return len(self._present)

    def __iter__(self) -> Iterator[ActiveRequest]:
        """Iterate over a copy of the present requests; they may end meanwhile."""
        return iter(list(self._present.values()))

    def get(self, key: RequestKey) -> ActiveRequest | None:
        """Return a request that waits or runs here."""
        return self._present.get(key)

    def find(self, key: RequestKey) -> ActiveRequest | None:
        """Return a request that waits or runs here, or ended here recently."""
        return self._present.get(key) or self._ended.get(key)

    def by_model(self) -> Counter[ModelId]:
        """Return the number of present requests by model."""
        return Counter(request.model for request in self._present.values())

    def add(self, request: ActiveRequest) -> None:
        self._present[request.key] = request

    def end(self, request: ActiveRequest) -> bool:
        """Remove a present request. One with a terminal message is retained for resends. Returns
        whether the request was present."""
        was_here = self._present.get(request.key) is request  # and not a later attempt of it
        if was_here:
            del self._present[request.key]
        if was_here and request.end is not None:
            if (other := self._ended.get(request.key)) is not None:
                self.forget(other)
            self._ended[request.key] = request
            self._ended_by_sequence |= {choice.sequence: request for choice in request.choices}
        return was_here

    def forget(self, request: ActiveRequest) -> None:
        """Forget an ended request: it cannot be resent any more."""
        if self._ended.get(request.key) is request:
            del self._ended[request.key]
        for choice in request.choices:
            self._ended_by_sequence.pop(choice.sequence, None)

    @property
    def ended(self) -> list[ActiveRequest]:
        """The requests that ended recently with a terminal message."""
        return list(self._ended.values())

    @property
    def recent(self) -> list[ActiveRequest]:
        """All requests that are present, or were requeued or ended recently."""
        requeued = [entry.request for entry in self._requeued.values()]
        return [*self._present.values(), *requeued, *self._ended.values()]

    def of_attempt(self, key: RequestKey, attempt: int) -> ActiveRequest | None:
        """Return one attempt of a request that is present, was requeued recently, or whose terminal
        message was not published yet."""
        requeued, ended = self._requeued.get(key), self._ended.get(key)
        unpublished = ended if ended is not None and not ended.end_published else None
        for request in (self._present.get(key), requeued and requeued.request, unpublished):
            if request is not None and request.dispatch.attempt == attempt:
                return request
        return None

    # Requeued.

    @property
    def requeued(self) -> list[RequeuedRequest]:
        """The requests that were requeued recently."""
        return list(self._requeued.values())

    def requeue(self, request: ActiveRequest, event: AttemptFailed, now: float) -> None:
        """Remember a request that was sent back to its owner, who may be dead by now."""
        self._requeued.pop(request.key, None)
        self._requeued[request.key] = RequeuedRequest(request, event, now)

    def forget_requeued(self, key: RequestKey, attempt: int = -1) -> None:
        """Forget a requeued attempt, or any attempt if that is -1: its owner has received it."""
        requeued = self._requeued.get(key)
        if requeued is not None and attempt in (-1, requeued.request.dispatch.attempt):
            del self._requeued[key]

    def forget_old(self, now: float) -> None:
        """Forget the requests whose retention is over."""
        for key, requeued in list(self._requeued.items()):
            if now - requeued.at > _RETENTION_S:
                del self._requeued[key]
        for request in list(self._ended.values()):
            if now - request.ended_at <= _RETENTION_S:
                return
            self.forget(request)

    # Sequences in engines.

    def enter_engine(self, request: ActiveRequest) -> None:
        """Record that the sequences of a request are sent to an engine."""
        for choice in request.choices:
            self._by_sequence[choice.sequence] = (request, choice)

    def of_sequence(self, sequence: int) -> tuple[ActiveRequest, ActiveChoice] | None:
        """Return the request and choice of a sequence that is in an engine."""
        return self._by_sequence.get(sequence)

    def by_first_choice(self, sequence: int) -> ActiveRequest | None:
        """Return the request whose first choice a sequence is; also if it ended recently."""
        present = self._by_sequence.get(sequence)
        request = present[0] if present is not None else self._ended_by_sequence.get(sequence)
        if request is None or request.choices[0].sequence != sequence:
            return None
        return request

    def leave_engine(self, choice: ActiveChoice) -> ActiveRequest | None:
        """Remove the sequence of a choice from its engine; returns its request, None if it was in
        no engine."""
        request, _ = self._by_sequence.pop(choice.sequence, (None, None))
        return request
