"""What engines are told of requests that wait: whose prompt will come to them next."""

from collections.abc import Mapping

from worker.engine_process.process import EngineProcess
from worker.link.orders import CancelPrefetch, Prefetch
from worker.requests.active_request import ActiveRequest


class PrefetchPlanner:
    """A request is foreseen by one engine at most, and goes where it likes in the end. Of its
    choices the first one is told: the others mostly have the same prompt."""

    def __init__(self) -> None:
        self._told: dict[ActiveRequest, EngineProcess] = {}

    def engine_of(self, request: ActiveRequest) -> EngineProcess | None:
        """The one that was told of a request."""
        return self._told.get(request)

    def tell(self, expected: Mapping[ActiveRequest, EngineProcess]) -> None:
        """These come next, and no others."""
        for request, engine in list(self._told.items()):
            if expected.get(request) is not engine:
                self.forget(request)
        for request, engine in expected.items():
            if request not in self._told:
                self._told[request] = engine
                engine.send(Prefetch(request.order(request.choices[0])))

    def forget(self, request: ActiveRequest) -> None:
        """It ended, or waits elsewhere; unknown ones are ignored."""
        if (engine := self._told.pop(request, None)) is not None:
            engine.send(CancelPrefetch(request.choices[0].sequence))

    def admitted(self, request: ActiveRequest, engine: EngineProcess) -> None:
        """It goes to an engine, which takes up what it was told itself."""
        if self._told.get(request) is engine:
            del self._told[request]
        else:
            self.forget(request)

    def lost(self, engine: EngineProcess) -> None:
        """An engine died, and what it was told with it."""
        self._told = {request: told for request, told in self._told.items() if told is not engine}
