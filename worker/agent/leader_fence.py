"""The leader's claim: this worker accepts orders and requests only from the controller that leads
and has claimed it."""

from shared.errors import RequestError
from shared.ids import BootId, ControllerId


class StaleTerm(RequestError):
    """Raised for an order or dispatch of a leader that another one has followed.

    Attributes:
        term: of the leader that claimed this worker.
    """

    code = "stale_term"

    def __init__(self, message: str, term: int) -> None:
        super().__init__(message)
        self.term = term


class LeaderFence:
    """
    Attributes:
        term: term of the leader that claimed this boot; 0 before the first claim.
        controller, boot_id: that leader.
    """

    def __init__(self) -> None:
        self.term = 0
        self.controller: ControllerId | None = None
        self.boot_id: BootId | None = None

    def accept(self, term: int, controller: ControllerId, boot_id: BootId) -> None:
        """Accept the claim of a leader.

        Raises:
            StaleTerm: another controller leads in this term or a later one.
        """
        self.check(term)
        is_other = (controller, boot_id) != (self.controller, self.boot_id)
        if term == self.term and is_other and self.term:
            raise StaleTerm(f"{self.controller} leads in term {term}", term)
        self.term, self.controller, self.boot_id = term, controller, boot_id

    def check(self, term: int | None) -> None:
        """Check the term of an order; orders of operators have none.

        Raises:
            StaleTerm: the order is from an earlier leader.
        """
        if term is not None and term < self.term:
            message = f"order of term {term}; {self.controller} leads in term {self.term}"
            raise StaleTerm(message, self.term)

    def check_work(self, term: int, controller: ControllerId) -> None:
        """Check the term of dispatches.

        Raises:
            StaleTerm: the dispatch is from an earlier leader.
            RequestError: the leader of this dispatch has not claimed this worker.
        """
        self.check(term)
        if term == self.term and controller != self.controller and self.term:
            raise StaleTerm(f"{self.controller} leads in term {term}", term)
        if term != self.term or not self.term:
            message = f"claimed in term {self.term}, not in {term}"
            raise RequestError(message, code="not_claimed")
