"""Prefetch: engines learn which queued requests they will get next."""

from collections.abc import Mapping

from worker.engine_process.process import EngineProcess
from worker.link.orders import CancelPrefixPrefetch, PrefetchPrefix
from worker.requests.active_request import ActiveRequest
from worker.requests.engine_order import submit_order
from worker.requests.isolation import FailureIsolation


class PrefetchAssignments:
    """At most one engine prefetches for a request, and the request may still go to another one.
    Only the first choice is prefetched: the others mostly have the same prompt."""

    def __init__(self, isolation: FailureIsolation) -> None:
        self._isolation = isolation
        self._engines: dict[ActiveRequest, EngineProcess] = {}

    def engine_of(self, request: ActiveRequest) -> EngineProcess | None:
        """Return the engine that prefetches for a request."""
        return self._engines.get(request)

    def update(self, expected: Mapping[ActiveRequest, EngineProcess]) -> None:
        """Have engines prefetch for these requests, and for no others."""
        for request, engine in list(self._engines.items()):
            if expected.get(request) is not engine:
                self.forget(request)
        for request, engine in expected.items():
            if request not in self._engines:
                self._engines[request] = engine
                with self._isolation.of(request, "a prefetch"):
                    engine.send(PrefetchPrefix(submit_order(request, request.choices[0])))

    def forget(self, request: ActiveRequest) -> None:
        """Cancel the prefetch for a request, if there is one."""
        if (engine := self._engines.pop(request, None)) is not None:
            engine.send(CancelPrefixPrefetch(request.choices[0].sequence))

    def on_admitted(self, request: ActiveRequest, engine: EngineProcess) -> None:
        """Forget a request that is submitted to an engine, which uses its own prefetch; a prefetch
        by another engine is cancelled."""
        if self._engines.get(request) is engine:
            del self._engines[request]
        else:
            self.forget(request)

    def on_engine_lost(self, lost: EngineProcess) -> None:
        """Forget the prefetches of a dead engine."""
        self._engines = {
            request: engine for request, engine in self._engines.items() if engine is not lost
        }
