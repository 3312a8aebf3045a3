"""Which workers the leader has asked what they have. Until those answered that were there at the
beginning, what it is asked for may run at one of them.

Plain state; seconds of any monotonic clock.
"""

from collections.abc import Iterable

from shared.ids import WorkerId

_ANSWER_S = 1.0
"""Requests without a session begin so long after the leader began to lead, whoever has not
answered."""
_ASK_AGAIN_S = 1.0
ASKED_AGAIN_S = 4.5
"""Within this time a client publishes a request again that was lost with its worker and its leader:
it takes three seconds of silence for a loss."""
_IN_FLIGHT_S = 1.0
"""So much of what a worker told may have been on its way when it answered."""


class WorkerClaims:
    """
    Args:
        workers: heard of when the leader began to lead.

    Attributes:
        open_at: from then on requests without a session begin.
        turns_open_at: from then on turns of sessions begin. It is later if a worker left before it
            answered: an earlier turn may be lost with it.
    """

    def __init__(self, workers: Iterable[WorkerId], now: float) -> None:
        self._missing = set(workers)
        self._asked_at: dict[WorkerId, float] = {}
        self._answered: dict[WorkerId, float] = {}
        self.open_at = now + _ANSWER_S
        self.turns_open_at = now

    @property
    def missing(self) -> bool:
        """Whether some that were there at the beginning have not answered yet."""
        return bool(self._missing)

    def may_begin(self, now: float, *, turn: bool) -> bool:
        """Whether a request may go to a worker: a turn of a session only when none can have an
        earlier one."""
        if turn:
            return not self._missing and now >= self.turns_open_at
        return not self._missing or now >= self.open_at

    def asked_for_s(self, worker: WorkerId, now: float) -> float:
        """Since it was asked last."""
        return now - self._asked_at.get(worker, now)

    def ask(self, worker: WorkerId, now: float) -> bool:
        """Whether it is to be asked now; then it was asked."""
        asked_at = self._asked_at.get(worker)
        if asked_at is not None and now - asked_at < _ASK_AGAIN_S:
            return False
        self._asked_at[worker] = now
        return True

    def answered(self, worker: WorkerId, asked_at: float) -> None:
        """It told what it had when it was asked."""
        self._answered[worker] = asked_at
        self._missing.discard(worker)

    def known_for_ms(self, worker: WorkerId, now: float) -> int | None:
        """Since when what it told may be out of date; None where it told nothing yet."""
        asked_at = self._answered.get(worker)
        return round((now - asked_at + _IN_FLIGHT_S) * 1000) if asked_at is not None else None

    def lost(self, worker: WorkerId, now: float) -> None:
        """It is gone, started again, or takes no work from us: to be asked anew."""
        self._asked_at.pop(worker, None)
        self._answered.pop(worker, None)
        if worker in self._missing:
            self._missing.discard(worker)
            self.turns_open_at = now + ASKED_AGAIN_S
