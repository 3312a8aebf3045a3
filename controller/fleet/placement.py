"""One attempt of a request at one worker: accounts for its load, and judges the worker by it."""

from typing import Literal

from controller.fleet.worker_view import WorkerView
from shared.ids import ClientName

Outcome = Literal["served", "fault", "other"]
"""The worker did its part, failed by its own fault, or the outcome says neither."""
_NOBODY = ClientName("")


class RequestPlacement:
    """An attempt at a worker, from the moment the worker is selected. Each end is reported once;
    later reports change nothing."""

    def __init__(
        self,
        view: WorkerView,
        prefill_ms: float,
        now: float,
        *,
        choices: int = 1,
        client: ClientName = _NOBODY,
    ) -> None:
        self._view = view
        self._choices = choices
        self._client = client
        view.held[client] += 1
        self._call = view.breaker.begin(now) if view.breaker is not None else 0
        self._state: Literal["offered", "accepted", "ended"] = "offered"
        self._judged = False
        view.offered(self, prefill_ms, choices)

    def accepted(self) -> None:
        """Record that the worker accepted the request."""
        if self._state == "offered":
            self._view.answered(self, accepted=True)
            self._state = "accepted"

    def tokens_arrived(self, now: float) -> None:
        """Record that tokens arrived: the worker serves the request."""
        if self._judged or self._state == "ended":
            return
        self._view.prefilled(self)
        self._judge("served", now)

    def ended(self, outcome: Outcome, now: float) -> None:
        """Record that the worker no longer has the request."""
        if self._state == "ended":
            return
        self._view.release(self._client)
        if self._state == "offered":
            self._view.answered(self, accepted=False)
        else:
            self._view.ended(self, self._choices)
        self._state = "ended"
        self._judge(outcome, now)

    def _judge(self, outcome: Outcome, now: float) -> None:
        """Tell the breaker. A fault after the first tokens is reported too, as a second outcome."""
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
