"""Smoke tests: a loaded model generates its first tokens before requests are served."""

import itertools
from typing import NamedTuple

from worker.engine_process.process import EngineProcess
from worker.link.orders import EmbeddingOptions, Sampling, SubmitSequence
from worker.models.worker_models import WorkerModel

_SMOKE_TEST_TOKENS = 3
"""More than one, as a model's first step is slower than later ones, and its speed is measured."""
_GREEDY = Sampling(0.0, 1.0, 0, 0.0, 1.0, 0.0, 0.0, {}, 0, None)


class ModelSmokeTest(NamedTuple):
    """One smoke test of a model in an engine."""

    engine: EngineProcess
    model: WorkerModel


class ModelSmokeTests:
    """The running smoke tests, by sequence number: negative, as those of requests are positive."""

    def __init__(self) -> None:
        self._running: dict[int, ModelSmokeTest] = {}
        self._numbers = itertools.count(-1, -1)

    def __bool__(self) -> bool:
        return bool(self._running)

    def begin(self, engine: EngineProcess, model: WorkerModel) -> None:
        """Order an engine to generate the first tokens of a model that it has loaded, or to embed
        or score a text."""
        sequence = next(self._numbers)
        self._running[sequence] = ModelSmokeTest(engine, model)
        engine.send(_order(sequence, model))

    def finish(self, sequence: int) -> ModelSmokeTest | None:
        """Remove and return the smoke test of a sequence that has ended; None if there is none."""
        return self._running.pop(sequence, None)

    def lost(self, engine: EngineProcess) -> None:
        """Remove the smoke tests of an engine that ended."""
        self._running = {n: each for n, each in self._running.items() if each.engine is not engine}


def _order(sequence: int, model: WorkerModel) -> SubmitSequence:
    return SubmitSequence(
        sequence=sequence,
        model=model.id,
        messages=None,
        text="Hello",
        token_ids=None,
        max_tokens=_SMOKE_TEST_TOKENS,
        stop=[],
        stop_token_ids=[],
        sampling=_GREEDY,
        embedding=_embedding(model) if model.embeds else None,
    )


def _embedding(model: WorkerModel) -> EmbeddingOptions:
    embeds = "embedding" in (model.abilities or ())
    return EmbeddingOptions() if embeds else EmbeddingOptions(query="Hello")
