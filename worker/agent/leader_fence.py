"""The leader's claim: this worker accepts orders and requests only from the controller that leads
and has claimed it."""

from shared.errors import RequestError
from shared.ids import ControllerId


class LeaderFence:
    """
    Attributes:
        term: term of the leader that claimed this boot; 0 before the first claim.
        controller: that leader.
    """

    def __init__(self) -> None:
        self.term = 0
        self.controller: ControllerId | None = None

    def accept(self, term: int, controller: ControllerId) -> None:
        """Accept the claim of a leader.

        Raises:
            RequestError: another controller leads in this term or a later one.
        """
        self.check(term)
        if term == self.term and controller != self.controller and self.term:
            raise RequestError(f"{self.controller} leads in term {term}", code="stale_term")
        self.term, self.controller = term, controller

    def check(self, term: int | None) -> None:
        """Check the term of an order; orders of operators have none.

        Raises:
            RequestError: the order is from an earlier leader.
        """
        if term is not None and term < self.term:
            message = f"order of term {term}; {self.controller} leads in term {self.term}"
            raise RequestError(message, code="stale_term")

    def check_work(self, term: int | None, controller: ControllerId) -> None:
        """Check the term of dispatches. Those of a release without leaders have none, and are
        accepted until a leader has claimed this worker.

        Raises:
            RequestError: the dispatch is not from the leader that has claimed this worker.
        """
        self.check(term)
        if term and term == self.term and controller != self.controller:
            raise RequestError(f"{self.controller} leads in term {term}", code="stale_term")
        if (term or 0) != self.term:
            message = f"claimed in term {self.term}, not in {term or 'any'}"
            raise RequestError(message, code="not_claimed" if term else "stale_term")
