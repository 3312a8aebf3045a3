"""First tokens: a model that was loaded generates a few before anybody is served."""

import itertools
from typing import NamedTuple

from shared.ids import ModelId
from worker.engine_process.process import EngineProcess
from worker.link.orders import Sampling, Submit
from worker.models.catalogue import Model

_TRIAL_TOKENS = 3
"""The first step of a model is not like others: that shall not be all that is known of its speed
before it has served anybody."""
_GREEDY = Sampling(0.0, 1.0, 0, 0.0, 1.0, 0.0, 0.0, {}, 0, None)


class SmokeTest(NamedTuple):
    """A model that generates its first tokens in an engine."""

    engine: EngineProcess
    model: Model


class SmokeTests:
    """Those that are on their way, by sequence: negative numbers, as requests count upwards."""

    def __init__(self) -> None:
        self._present: dict[int, SmokeTest] = {}
        self._numbers = itertools.count(-1, -1)

    def __bool__(self) -> bool:
        return bool(self._present)

    def begin(self, engine: EngineProcess, model: Model) -> None:
        """Have an engine generate the first tokens of a model that it holds."""
        sequence = next(self._numbers)
        self._present[sequence] = SmokeTest(engine, model)
        engine.send(_order(sequence, model.id))

    def take(self, sequence: int) -> SmokeTest | None:
        """The trial with this sequence, which has ended; None where it is none."""
        return self._present.pop(sequence, None)

    def lost(self, engine: EngineProcess) -> None:
        """An engine ended, and its trials with it."""
        self._present = {n: each for n, each in self._present.items() if each.engine is not engine}


def _order(sequence: int, model: ModelId) -> Submit:
    return Submit(
        sequence=sequence,
        model=model,
        messages=None,
        text="Hello",
        token_ids=None,
        max_tokens=_TRIAL_TOKENS,
        stop=[],
        stop_token_ids=[],
        sampling=_GREEDY,
    )
