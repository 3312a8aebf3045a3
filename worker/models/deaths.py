"""Whom to blame when engines end: a model, or one request to it. Values in, values out."""

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from shared.ids import ModelId
from worker.active_request import RequestKey

_WINDOW_S = 600.0
_MOST_DEATHS = 2
_MOST_KILLS = 3
"""A kill says nothing of a model, unless so many in a row hit it while it was loaded: where memory
is short, the system ends whoever takes it."""


class _Death(NamedTuple):
    at: float
    requests: frozenset[RequestKey]


class Verdict(NamedTuple):
    """What one more death says.

    Attributes:
        fails: the model is to blame, and not to be tried again.
        suspects: the requests that may be to blame instead.
    """

    fails: bool
    suspects: frozenset[RequestKey] = frozenset()


class ModelDeaths:
    """Counts how often engines ended while they were busy with a model.

    Two deaths within ten minutes blame the model, unless one request was there each time: then that
    one is to blame. Times are of the monotonic clock.
    """

    def __init__(self) -> None:
        self._deaths: defaultdict[ModelId, list[_Death]] = defaultdict(list)
        self._kills: defaultdict[ModelId, list[float]] = defaultdict(list)

    def died(
        self,
        model: ModelId,
        requests: Collection[RequestKey],
        newcomers: Collection[RequestKey],
        now: float,
    ) -> Verdict:
        """An engine ended over a model.

        Args:
            requests: that it was busy with; none while the model was loaded, or generated its first
                token.
            newcomers: those that had generated nothing in that engine: what has generated for a
                while is hardly why it ends.
        """
        deaths = self._deaths[model] = [
            *(death for death in self._deaths[model] if now - death.at <= _WINDOW_S),
            _Death(now, frozenset(requests)),
        ]
        always_there = frozenset.intersection(*(death.requests for death in deaths))
        if len(deaths) >= _MOST_DEATHS and not always_there:
            return Verdict(fails=True)
        return Verdict(False, always_there & frozenset(newcomers) or always_there)

    def killed(self, model: ModelId, now: float) -> Verdict:
        """An engine was killed from outside while it loaded a model."""
        kills = [at for at in self._kills[model] if now - at <= _WINDOW_S]
        self._kills[model] = [*kills, now]
        return Verdict(fails=len(self._kills[model]) >= _MOST_KILLS)

    def loaded(self, model: ModelId) -> None:
        """A model generated its first token: kills that hit it before were chance."""
        self._kills.pop(model, None)

    def forgive(self, model: ModelId) -> None:
        """Count anew."""
        self._deaths.pop(model, None)
        self._kills.pop(model, None)

    def count(self, model: ModelId) -> int:
        """Deaths and kills of a model that are not forgiven."""
        return len(self._deaths.get(model, ())) + len(self._kills.get(model, ()))
