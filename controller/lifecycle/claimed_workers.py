"""Which workers the leader has claimed, and which have answered with their requests. Until all
workers that were known when the term began have answered, a published request may already run on
one of them.

Plain state; seconds of any monotonic clock.
"""

from collections.abc import Iterable

from shared.ids import WorkerId

_ANSWER_S = 1.0
"""Requests without a session start this long after the term began, even if workers have not
answered."""
_ASK_AGAIN_S = 1.0
REPUBLISHED_WITHIN_S = 4.5
"""A client publishes a request that was lost with its worker and its leader again within this time:
three seconds of silence count as a loss."""
_IN_FLIGHT_S = 1.0
"""Events of the last second before an answer may still have been in flight."""


def turns_wait_until(
    *,
    first_term: bool,
    was_released: bool,
    started_at: float,
    settled_at: float,
    last_gone_at: float | None,
) -> float:
    """Return until when a new leader may not know which turns run, or are lost with a worker.

    A controller that has just started does not know a worker that is silent since. The leader
    before it knew which workers were lost, and told which requests those had, if it left in good
    order.

    Args:
        first_term: no worker can have a request.
        was_released: the leader before left in good order.
        started_at: when this controller started.
        settled_at: from then on every live worker has reported to it.
        last_gone_at: when the last worker was lost of those that it knew.
    """
    if first_term:
        return 0.0
    knows_workers_at = started_at + REPUBLISHED_WITHIN_S
    if was_released:
        return max(settled_at, knows_workers_at)
    return max(knows_workers_at, (last_gone_at or started_at) + REPUBLISHED_WITHIN_S)


class ClaimedWorkers:
    """
    Args:
        workers: known when the term began.
        turns_wait_until: turns wait for workers that were lost before the term, or that are not
            known yet.

    Attributes:
        starts_at: from then on requests without a session start.
        turns_start_at: from then on turns of sessions start. An earlier turn may be lost with a
            worker that was lost before it answered, or before the term, together with the leader.
    """

    def __init__(
        self, workers: Iterable[WorkerId], now: float, turns_wait_until: float = 0.0
    ) -> None:
        self._unanswered = set(workers)
        self._asked_at: dict[WorkerId, float] = {}
        self._answered: dict[WorkerId, float] = {}
        self.starts_at = now + _ANSWER_S
        self.turns_start_at = max(now, turns_wait_until)

    @property
    def incomplete(self) -> bool:
        """Whether a worker that was known when the term began has not answered yet."""
        return bool(self._unanswered)

    def may_start(self, now: float, *, turn: bool) -> bool:
        """Whether a request may be dispatched; a turn of a session only when no worker can have an
        earlier turn."""
        if turn:
            return not self._unanswered and now >= self.turns_start_at
        return not self._unanswered or now >= self.starts_at

    def since_asked_s(self, worker: WorkerId, now: float) -> float:
        """Return the seconds since the last claim; 0 without one."""
        return now - self._asked_at.get(worker, now)

    def ask(self, worker: WorkerId, now: float) -> bool:
        """Whether to claim a worker now; if so, the claim is recorded as sent."""
        asked_at = self._asked_at.get(worker)
        if asked_at is not None and now - asked_at < _ASK_AGAIN_S:
            return False
        self._asked_at[worker] = now
        return True

    def answered(self, worker: WorkerId, asked_at: float) -> None:
        """The worker answered the claim of `asked_at`."""
        self._answered[worker] = asked_at
        self._unanswered.discard(worker)

    def answer_age_ms(self, worker: WorkerId, now: float) -> int | None:
        """Return how long ago the last answer of a worker may have become out of date; None if the
        worker has not answered yet."""
        asked_at = self._answered.get(worker)
        return round((now - asked_at + _IN_FLIGHT_S) * 1000) if asked_at is not None else None

    def reset(self, worker: WorkerId, now: float) -> None:
        """The worker is gone, was restarted, or rejected a dispatch as unclaimed: it must be
        claimed anew."""
        self._asked_at.pop(worker, None)
        self._answered.pop(worker, None)
        self.refused(worker, now)

    def refused(self, worker: WorkerId, now: float) -> None:
        """The worker refused the claim: its requests are as unknown as those of a lost one."""
        if worker in self._unanswered:
            self._unanswered.discard(worker)
            self.turns_start_at = max(self.turns_start_at, now + REPUBLISHED_WITHIN_S)
