"""Quarantine: requests that may have crashed an engine run one at a time, so that the next crash
identifies the one to blame."""

from shared.ids import ModelId
from worker.requests.active_request import ActiveRequest


class SuspectAdmission:
    """The suspects that are in engines. A suspect that has generated a token there no longer blocks
    others: a request that crashes engines does so at the same point of its text each time."""

    def __init__(self) -> None:
        self._suspects: list[ActiveRequest] = []

    def admits(self, model: ModelId) -> bool:
        """Whether one more suspect of a model may go to an engine."""
        return not any(each.model == model and not each.started for each in self._suspects)

    def on_admitted(self, request: ActiveRequest) -> None:
        if request.suspect:
            self._suspects.append(request)

    def on_ended(self, request: ActiveRequest) -> None:
        if request in self._suspects:
            self._suspects.remove(request)
