"""The term of a leader, as the parts of the state machine share it."""

from dataclasses import dataclass

from controller.requests.request import TrackedRequest

_ATTEMPTS_PER_TERM = 1000


@dataclass(slots=True)
class LeaderTerm:
    """
    Attributes:
        number: of the term.
        settled_at: from then on every live worker has reported its state.
        shutting_down: requests that no worker has stay here, to be transferred.
    """

    number: int
    settled_at: float
    shutting_down: bool = False

    @property
    def attempts_before(self) -> int:
        """The highest attempt number that earlier leaders may have used."""
        return _ATTEMPTS_PER_TERM * (self.number - 1)

    def raise_attempt(self, request: TrackedRequest) -> None:
        """Raise the attempt number of a request above those of earlier terms, so that messages of
        this term supersede theirs."""
        request.attempt = max(request.attempt, self.attempts_before)
