"""Requests over which an engine ended, tried one at a time: so the next death tells them apart."""

from shared.ids import ModelId
from worker.requests.active_request import ActiveRequest


class Quarantine:
    """The suspects that are in engines. One that generated a token there is cleared: what ends an
    engine again and again does so at the same place of its text."""

    def __init__(self) -> None:
        self._present: list[ActiveRequest] = []

    def admits(self, model: ModelId) -> bool:
        """Whether one more suspect of a model may go to an engine."""
        return not any(each.model == model and not each.started for each in self._present)

    def came(self, request: ActiveRequest) -> None:
        """A request went to an engine."""
        if request.suspect:
            self._present.append(request)

    def went(self, request: ActiveRequest) -> None:
        """A request that was in an engine has ended."""
        if request in self._present:
            self._present.remove(request)
