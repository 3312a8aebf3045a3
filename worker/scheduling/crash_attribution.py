"""Crash attribution: finds the model, client or requests that may have crashed an engine."""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from shared.errors import Unavailable
from shared.ids import ClientName, ModelId
from worker.engine_process.exit import UnexpectedEngineExit
from worker.engine_process.process import EngineProcess
from worker.link.activity import EngineActivity
from worker.models.loader import WorkerModelLoader
from worker.models.worker_models import ModelCatalogue, WorkerModel
from worker.requests.active_request import ActiveRequest
from worker.requests.table import RequestTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """
    Attributes:
        suspects: the requests that may be to blame; None if unknown.
        failed: the model that is to blame, for `reason`.
    """

    suspects: Collection[ActiveRequest] | None = None
    failed: WorkerModel | None = None
    reason: str = ""


class CrashAttribution:
    """Goes by the activity record of the engine: `worker.link.activity`."""

    def __init__(
        self, models: ModelCatalogue, loader: WorkerModelLoader, requests: RequestTable
    ) -> None:
        self._models = models
        self._loader = loader
        self._requests = requests
        self._verdicts: dict[int, _Verdict] = {}  # by engine

    def explain(self, engine: EngineProcess, end: UnexpectedEngineExit) -> bool:
        """Find what is to blame for the exit of an engine, while its requests are still assigned
        to it; returns whether a model or a request is. Call `apply` next."""
        work = end.work or end.killed_at
        model = self._models.get(work.model) if work is not None else None
        if work is None or model is None:
            self._verdicts[engine.index] = _Verdict()
        elif end.work is not None:
            self._verdicts[engine.index] = self._crashed(model, work, end.reason)
            return True
        else:
            self._verdicts[engine.index] = self._killed(model, work, end.reason)
        return False

    def apply(
        self, engine: EngineProcess, running: Collection[ActiveRequest]
    ) -> Collection[ActiveRequest]:
        """Fail the model that is to blame, if any; returns the suspected requests. If nothing is
        known, those are the requests that ran on the engine and had generated nothing yet, else all
        of them: a request that has generated for a while is hardly to blame."""
        verdict = self._verdicts.pop(engine.index, _Verdict())
        if verdict.failed is not None:
            self._loader.mark_failed(verdict.failed, verdict.reason)
        if verdict.suspects is not None:
            return verdict.suspects
        return [request for request in running if not request.started] or running

    def check_client(self, model: ModelId, client: ClientName) -> None:
        """Raises Unavailable if requests of a client to a model are refused after crashes."""
        if self._loader.crash_history.refuses(model, client, time.monotonic()):
            raise Unavailable(
                f"requests of client {client} to {model} crashed the engine process twice; they "
                "are refused for ten minutes, or until the model is loaded by order",
                code="model_unavailable",
            )

    def is_suspect(self, request: ActiveRequest) -> bool:
        """Whether a request may have crashed an engine, and so runs apart from other such ones."""
        history = self._loader.crash_history
        return history.is_suspect(request.model, request.key, time.monotonic())

    def _crashed(self, model: WorkerModel, work: EngineActivity, reason: str) -> _Verdict:
        numbers = set(work.sequences)
        involved = {
            request.key: request
            for request in self._requests  # also queued ones, for which the engine prefetched
            if any(choice.sequence in numbers for choice in request.choices)
        }
        newcomers = [key for key, request in involved.items() if not request.started]
        logger.error(
            "an engine crashed while using model %s (%s of %d requests): %s",
            model.id, work.phase, len(involved), reason, extra={"model": model.id},
        )  # fmt: skip
        judged = self._loader.crash_history.record_crash(
            model.id, involved, newcomers, time.monotonic()
        )
        if judged.clients:
            names = ", ".join(sorted(judged.clients))
            logger.error(
                "requests of client %s to model %s are refused for ten minutes", names, model.id,
                extra={"model": model.id},
            )  # fmt: skip
        if judged.model_failed:
            return _Verdict([], model, f"it crashed the engine process twice: {reason}")
        return _Verdict([involved[key] for key in judged.suspects])

    def _killed(self, model: WorkerModel, work: EngineActivity, reason: str) -> _Verdict:
        if (
            work.phase == "load"
            and self._loader.crash_history.record_kill(model.id, time.monotonic()).model_failed
        ):
            why = f"the engine process was killed each time that it was loaded ({reason})"
            return _Verdict(failed=model, reason=why)
        return _Verdict()
