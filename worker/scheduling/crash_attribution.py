"""Laying the death of an engine at a door: a model's, some requests', or nobody's."""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from worker.engine_process.exit import EngineExit
from worker.engine_process.process import EngineProcess
from worker.link.activity import EngineActivity
from worker.models.catalogue import Model, ModelCatalogue
from worker.models.loader import ModelLoader
from worker.requests.active_request import ActiveRequest
from worker.requests.table import RequestTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Blame:
    """
    Attributes:
        suspects: the requests that may be to blame; None where nobody knows.
        fails: the model that is.
    """

    suspects: Collection[ActiveRequest] | None = None
    fails: Model | None = None
    why: str = ""


class CrashAttribution:
    """Judges by what a dead engine had written down: `worker.link.activity`."""

    def __init__(self, models: ModelCatalogue, loader: ModelLoader, requests: RequestTable) -> None:
        self._models = models
        self._loader = loader
        self._requests = requests
        self._found: dict[int, _Blame] = {}  # by engine

    def explain(self, engine: EngineProcess, end: EngineExit) -> bool:
        """Find who is to blame for the end of an engine, while its requests are still known as
        its; whether anybody is. `carry_out` comes then."""
        work = end.work or end.killed_at
        model = self._models.get(work.model) if work is not None else None
        if work is None or model is None:
            self._found[engine.index] = _Blame()
        elif end.work is not None:
            self._found[engine.index] = self._died(model, work, end.reason)
            return True
        else:
            self._found[engine.index] = self._killed(model, work, end.reason)
        return False

    def carry_out(
        self, engine: EngineProcess, on_it: Collection[ActiveRequest]
    ) -> Collection[ActiveRequest]:
        """Fail the model that is to blame, if one is; returns the requests that may be. Where
        nobody knows, they are of those that were on the engine: what has generated there for a
        while is hardly why it ended, what came just now is."""
        found = self._found.pop(engine.index, _Blame())
        if found.fails is not None:
            self._loader.give_up(found.fails, found.why)
        if found.suspects is not None:
            return found.suspects
        return [request for request in on_it if not request.started] or on_it

    def _died(self, model: Model, work: EngineActivity, reason: str) -> _Blame:
        numbers = set(work.sequences)
        involved = {
            request.key: request
            for request in self._requests  # those too of which an engine was told beforehand
            if any(choice.sequence in numbers for choice in request.choices)
        }
        newcomers = [key for key, request in involved.items() if not request.started]
        logger.error(
            "model %s: an engine ended over it (%s of %d requests): %s",
            model.id, work.phase, len(involved), reason, extra={"model": model.id},
        )  # fmt: skip
        verdict = self._loader.deaths.died(model.id, involved, newcomers, time.monotonic())
        if verdict.fails:
            return _Blame([], model, f"it ended the engine process twice: {reason}")
        return _Blame([involved[key] for key in verdict.suspects])

    def _killed(self, model: Model, work: EngineActivity, reason: str) -> _Blame:
        if work.phase == "load" and self._loader.deaths.killed(model.id, time.monotonic()).fails:
            why = f"the engine process was killed each time that it was loaded ({reason})"
            return _Blame(fails=model, why=why)
        return _Blame()
