"""Decides whether a model or one of its requests is to blame for engine crashes. No I/O."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.ids import ModelId
from worker.requests.active_request import RequestKey

_WINDOW_S = 600.0
_BLAMED_AFTER_CRASHES = 2
_MAX_BLAMED_REQUESTS = 2
"""Maximum number of requests of a model that are blamed; then the model is blamed for the next
crash. Otherwise a model that crashes with any request would crash engines for ever."""
_MAX_KILLS = 3
"""Number of successive kills during the load of a model for which the model is blamed. One kill is
no evidence: if memory is short, the system kills the process that allocates."""


class _Crash(NamedTuple):
    at: float
    requests: frozenset[RequestKey]


@dataclass(slots=True)
class _History:
    """Recent events of one model.

    Attributes:
        crashes: engine crashes for which no request is blamed.
        blamed: times at which a request was blamed.
        kills: times at which an engine was killed while it loaded the model.
    """

    crashes: list[_Crash] = field(default_factory=list)
    blamed: list[float] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)

    def drop_before(self, time: float) -> None:
        self.crashes = [crash for crash in self.crashes if crash.at >= time]
        self.blamed = [at for at in self.blamed if at >= time]
        self.kills = [at for at in self.kills if at >= time]


class CrashBlame(NamedTuple):
    """The conclusion from one more crash.

    Attributes:
        model_failed: the model is to blame, and must not be loaded again.
        suspects: the requests that may be to blame instead.
    """

    model_failed: bool
    suspects: frozenset[RequestKey] = frozenset()


class CrashHistory:
    """Records engine crashes by the model that the engine was busy with.

    After two crashes within ten minutes the model is blamed. If one request was involved in both,
    that request is blamed instead, and the crashes are dropped. Times are of the monotonic clock.
    """

    def __init__(self) -> None:
        self._histories: dict[ModelId, _History] = {}

    def record_crash(
        self,
        model: ModelId,
        requests: Collection[RequestKey],
        newcomers: Collection[RequestKey],
        now: float,
    ) -> CrashBlame:
        """Record the crash of an engine that was busy with a model.

        Args:
            requests: the requests of the model in the engine; none during its load or smoke test.
            newcomers: those of them that had generated nothing in that engine. They are the more
                likely causes.
        """
        history = self._of(model, now)
        history.crashes.append(_Crash(now, frozenset(requests)))
        always_present = frozenset.intersection(*(crash.requests for crash in history.crashes))
        suspects = always_present & frozenset(newcomers) or always_present
        if len(history.blamed) >= _MAX_BLAMED_REQUESTS:
            return CrashBlame(model_failed=True)
        if len(history.crashes) < _BLAMED_AFTER_CRASHES:
            return CrashBlame(False, suspects)
        if not always_present:
            return CrashBlame(model_failed=True)
        history.crashes.clear()
        history.blamed.append(now)
        return CrashBlame(False, suspects)

    def is_suspect(self, model: ModelId, request: RequestKey) -> bool:
        """Whether a request was involved in a crash for which no request is blamed."""
        history = self._histories.get(model)
        return history is not None and any(request in each.requests for each in history.crashes)

    def record_kill(self, model: ModelId, now: float) -> CrashBlame:
        """Record that an engine was killed from outside while it loaded a model."""
        history = self._of(model, now)
        history.kills.append(now)
        return CrashBlame(model_failed=len(history.kills) >= _MAX_KILLS)

    def loaded(self, model: ModelId) -> None:
        """Drop the kills of a model that generated its first token."""
        if (history := self._histories.get(model)) is not None:
            history.kills.clear()

    def reset(self, model: ModelId) -> None:
        """Drop the history of a model."""
        self._histories.pop(model, None)

    def count(self, model: ModelId) -> int:
        """Return the number of recent crashes and kills that count against a model."""
        history = self._histories.get(model, _History())
        return len(history.crashes) + len(history.kills)

    def _of(self, model: ModelId, now: float) -> _History:
        history = self._histories.setdefault(model, _History())
        history.drop_before(now - _WINDOW_S)
        return history
