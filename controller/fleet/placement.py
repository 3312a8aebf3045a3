"""A request at a worker, as the controller's books have it: what the worker is expected to do, and
what becoming of it says of the worker."""

from typing import Literal

from controller.fleet.worker_view import WorkerView

Outcome = Literal["served", "fault", "other"]
"""The worker did its part, failed by its own fault, or neither can be said."""


class Placement:
    """One attempt at one worker, from the moment it is chosen. Each end is told once; what comes
    later changes nothing."""

    def __init__(
        self, view: WorkerView, prefill_ms: float, now: float, *, choices: int = 1
    ) -> None:
        self._view = view
        self._choices = choices
        self._call = view.breaker.begin(now) if view.breaker is not None else 0
        self._state: Literal["asked", "taken", "over"] = "asked"
        self._judged = False
        view.asked(self, prefill_ms, choices)

    def taken(self) -> None:
        """The worker has it."""
        if self._state == "asked":
            self._view.answered(self, took=True)
            self._state = "taken"

    def began(self, now: float) -> None:
        """Tokens came: the worker works."""
        if self._judged or self._state == "over":
            return
        self._view.began(self)
        self._judge("served", now)

    def ended(self, outcome: Outcome, now: float) -> None:
        """It is with that worker no longer."""
        if self._state == "over":
            return
        if self._state == "asked":
            self._view.answered(self, took=False)
        else:
            self._view.ended(self, self._choices)
        self._state = "over"
        self._judge(outcome, now)

    def _judge(self, outcome: Outcome, now: float) -> None:
        """A worker that gave tokens may still fail later: that is a failure of its own."""
        breaker = self._view.breaker
        if breaker is None or (self._judged and outcome != "fault"):
            return
        self._judged = True
        match outcome:
            case "served":
                breaker.succeeded(self._call, now)
            case "fault":
                breaker.failed(self._call, now)
            case "other":
                breaker.abandoned(self._call)
