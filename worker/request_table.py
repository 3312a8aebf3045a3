"""The requests of this worker: those that are here, and those that ended not long ago."""

from collections import Counter
from collections.abc import Iterator

from shared.ids import ModelId
from worker.active_request import ActiveRequest, Choice, RequestKey

_KEPT_AFTER_END_S = 30.0


class RequestTable:
    """By the client's id of a request, and by the engine's number of a sequence."""

    def __init__(self) -> None:
        self._present: dict[RequestKey, ActiveRequest] = {}
        self._ended: dict[RequestKey, ActiveRequest] = {}  # in the order of their ends
        self._by_sequence: dict[int, tuple[ActiveRequest, Choice]] = {}

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
        was_here = self._present.pop(request.key, None) is not None
        if was_here and request.end is not None:
            self._ended.pop(request.key, None)
            self._ended[request.key] = request
        return was_here

    def forget(self, request: ActiveRequest) -> None:
        """Nobody may ask for it again."""
        self._ended.pop(request.key, None)

    def forget_old(self, now: float) -> None:
        """Forget those that ended long ago."""
        for request in list(self._ended.values()):
            if now - request.ended_at <= _KEPT_AFTER_END_S:
                return
            del self._ended[request.key]

    # Sequences in engines.

    def enter_engine(self, request: ActiveRequest) -> None:
        """Its sequences are going to an engine."""
        for choice in request.choices:
            self._by_sequence[choice.sequence] = (request, choice)

    def of_sequence(self, sequence: int) -> tuple[ActiveRequest, Choice] | None:
        """Whose answer a sequence of an engine is, while it is in there."""
        return self._by_sequence.get(sequence)

    def leave_engine(self, choice: Choice) -> ActiveRequest | None:
        """Its sequence is in no engine any more; whose it was, None when it was in none."""
        request, _ = self._by_sequence.pop(choice.sequence, (None, None))
        return request
