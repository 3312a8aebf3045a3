"""Whom to blame when engines end: a model, or one request to it. Values in, values out."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.ids import ModelId
from worker.requests.active_request import RequestKey

_WINDOW_S = 600.0
_MOST_DEATHS = 2
_MOST_CONVICTIONS = 2
"""After so many requests that each ended two engines, the model is to blame for the next death: a
model that ends engines over whatever it is asked must not do so for ever."""
_MOST_KILLS = 3
"""A kill says nothing of a model, unless so many in a row hit it while it was loaded: where memory
is short, the system ends whoever takes it."""


class _Death(NamedTuple):
    at: float
    requests: frozenset[RequestKey]


@dataclass(slots=True)
class _History:
    """What one model did lately.

    Attributes:
        deaths: of engines, that nobody is convicted of.
        convictions: when requests were found to be to blame.
        kills: when engines were killed while they loaded it.
    """

    deaths: list[_Death] = field(default_factory=list)
    convictions: list[float] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)

    def forget_before(self, time: float) -> None:
        self.deaths = [death for death in self.deaths if death.at >= time]
        self.convictions = [at for at in self.convictions if at >= time]
        self.kills = [at for at in self.kills if at >= time]


class CrashVerdict(NamedTuple):
    """What one more death says.

    Attributes:
        fails: the model is to blame, and not to be tried again.
        suspects: the requests that may be to blame instead.
    """

    fails: bool
    suspects: frozenset[RequestKey] = frozenset()


class CrashHistory:
    """Counts how often engines ended while they were busy with a model.

    Two deaths within ten minutes blame the model, unless one request was there each time: then that
    one is to blame, and they count no more. Times are of the monotonic clock.
    """

    def __init__(self) -> None:
        self._histories: dict[ModelId, _History] = {}

    def died(
        self,
        model: ModelId,
        requests: Collection[RequestKey],
        newcomers: Collection[RequestKey],
        now: float,
    ) -> CrashVerdict:
        """An engine ended over a model.

        Args:
            requests: that it was busy with; none while the model was loaded, or generated its first
                token.
            newcomers: those that had generated nothing in that engine: what has generated for a
                while is hardly why it ends.
        """
        history = self._of(model, now)
        history.deaths.append(_Death(now, frozenset(requests)))
        always_there = frozenset.intersection(*(death.requests for death in history.deaths))
        suspects = always_there & frozenset(newcomers) or always_there
        if len(history.convictions) >= _MOST_CONVICTIONS:
            return CrashVerdict(fails=True)
        if len(history.deaths) < _MOST_DEATHS:
            return CrashVerdict(False, suspects)
        if not always_there:
            return CrashVerdict(fails=True)
        history.deaths.clear()
        history.convictions.append(now)
        return CrashVerdict(False, suspects)

    def suspects(self, model: ModelId, request: RequestKey) -> bool:
        """Whether an engine ended while it was busy with a request, and nobody is convicted yet."""
        history = self._histories.get(model)
        return history is not None and any(request in each.requests for each in history.deaths)

    def killed(self, model: ModelId, now: float) -> CrashVerdict:
        """An engine was killed from outside while it loaded a model."""
        history = self._of(model, now)
        history.kills.append(now)
        return CrashVerdict(fails=len(history.kills) >= _MOST_KILLS)

    def loaded(self, model: ModelId) -> None:
        """A model generated its first token: kills that hit it before were chance."""
        if (history := self._histories.get(model)) is not None:
            history.kills.clear()

    def forgive(self, model: ModelId) -> None:
        """Count anew."""
        self._histories.pop(model, None)

    def count(self, model: ModelId) -> int:
        """Deaths that a model may be to blame for, and kills that hit it."""
        history = self._histories.get(model, _History())
        return len(history.deaths) + len(history.kills)

    def _of(self, model: ModelId, now: float) -> _History:
        history = self._histories.setdefault(model, _History())
        history.forget_before(now - _WINDOW_S)
        return history
