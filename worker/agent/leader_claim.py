"""Whose orders count: those of the controller that leads, which has claimed this worker."""

from shared.errors import RequestError
from shared.ids import ControllerId


class LeaderClaim:
    """Attributes:
    term: of the leader that claimed this boot; 0 where none has.
    controller: that leader.
    """

    def __init__(self) -> None:
        self.term = 0
        self.controller: ControllerId | None = None

    def take(self, term: int, controller: ControllerId) -> None:
        """A controller claims this worker.

        Raises:
            RequestError: another one leads since.
        """
        self.check(term)
        if term == self.term and controller != self.controller and self.term:
            raise RequestError(f"{self.controller} leads, in term {term}", code="stale_term")
        self.term, self.controller = term, controller

    def check(self, term: int | None) -> None:
        """An order came: of an operator without a term.

        Raises:
            RequestError: it is that of a leader before.
        """
        if term is not None and term < self.term:
            message = f"an order of term {term}; {self.controller} leads, in term {self.term}"
            raise RequestError(message, code="stale_term")

    def check_work(self, term: int | None, controller: ControllerId) -> None:
        """Work came; of a release without leaders it has no term, and counts until one has claimed
        this worker.

        Raises:
            RequestError: it is not from the leader that has claimed this worker.
        """
        self.check(term)
        if term and term == self.term and controller != self.controller:
            raise RequestError(f"{self.controller} leads, in term {term}", code="stale_term")
        if (term or 0) != self.term:
            message = f"claimed in term {self.term}, not in {term or 'any'}"
            raise RequestError(message, code="not_claimed" if term else "stale_term")
