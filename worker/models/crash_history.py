"""Decides whether a model, a client or a request is to blame for engine crashes. No I/O."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.ids import ClientName, ModelId
from worker.requests.active_request import RequestKey

_WINDOW_S = 600.0
_BLAMED_AFTER_CRASHES = 2
_MAX_BLAMED_REQUESTS = 2
"""Maximum number of requests of a model that are blamed; then the next crash blames their client,
or the model if they are of several. Otherwise a model that crashes with any request would crash
engines for ever."""
_MAX_CRASHES_OF_SEVERAL = 4
"""Number of crashes at which all clients that may have caused each of them are blamed. Until then
their requests run one at a time, so that the next crash is of one of them."""
_MAX_KILLS = 3
"""Number of successive kills during the load of a model for which the model is blamed. One kill is
no evidence: if memory is short, the system kills the process that allocates."""


class _Crash(NamedTuple):
    """
    Attributes:
        likely_clients: of the requests that are the more likely causes.
    """

    at: float
    requests: frozenset[RequestKey]
    likely_clients: frozenset[ClientName]


@dataclass(slots=True)
class _History:
    """Recent events of one model.

    Attributes:
        crashes: engine crashes for which no request is blamed.
        blamed: engine crashes for which a request was blamed.
        kills: times at which an engine was killed while it loaded the model.
        refused: clients that were blamed, and when.
    """

    crashes: list[_Crash] = field(default_factory=list)
    blamed: list[_Crash] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    refused: dict[ClientName, float] = field(default_factory=dict)

    @property
    def common_clients(self) -> frozenset[ClientName]:
        """Those that may have caused each of the crashes; the more likely causes first."""
        crashes = [*self.blamed, *self.crashes]
        if not crashes:
            return frozenset()
        likely = frozenset.intersection(*(crash.likely_clients for crash in crashes))
        return likely or frozenset.intersection(*(_clients(crash.requests) for crash in crashes))

    def drop_before(self, time: float) -> None:
        self.crashes = [crash for crash in self.crashes if crash.at >= time]
        self.blamed = [crash for crash in self.blamed if crash.at >= time]
        self.kills = [at for at in self.kills if at >= time]
        self.refused = {client: at for client, at in self.refused.items() if at >= time}


class CrashBlame(NamedTuple):
    """The conclusion from one more crash.

    Attributes:
        model_failed: the model is to blame, and must not be loaded again.
        suspects: the requests that may be to blame instead.
        clients: those of which the requests to the model are refused from now on.
    """

    model_failed: bool
    suspects: frozenset[RequestKey] = frozenset()
    clients: frozenset[ClientName] = frozenset()


class CrashHistory:
    """Records engine crashes by the model that the engine was busy with.

    After two crashes within ten minutes the model is blamed. If one request was involved in both,
    that request is blamed instead; if requests of one client were, that client, so that nobody can
    end a model for the others. If requests of several clients were, further crashes tell which, as
    far as there are any. A second client with such requests is evidence against the model.
    The crashes are dropped with the blame. Times are of the monotonic clock.
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
        crash = _Crash(now, frozenset(requests), _clients(newcomers or requests))
        history.crashes.append(crash)
        always_present = frozenset.intersection(*(crash.requests for crash in history.crashes))
        suspects = always_present & frozenset(newcomers) or always_present
        if len(history.blamed) >= _MAX_BLAMED_REQUESTS:
            return self._blame_clients(history)
        if len(history.crashes) < _BLAMED_AFTER_CRASHES:
            return CrashBlame(False, suspects)
        likely = frozenset.intersection(*(crash.likely_clients for crash in history.crashes))
        if not suspects or likely - _clients(suspects):
            return self._blame_clients(history)
        history.crashes.clear()
        history.blamed.append(_Crash(now, suspects, _clients(suspects)))
        return CrashBlame(False, suspects)

    def _blame_clients(self, history: _History) -> CrashBlame:
        """Blame the client that may have caused each crash; the model, if there is none. If there
        are several, nobody is blamed yet."""
        clients = history.common_clients
        if not clients or history.refused.keys() - clients:
            return CrashBlame(model_failed=True)
        if len(clients) > 1 and len(history.crashes) < _MAX_CRASHES_OF_SEVERAL:
            return CrashBlame(model_failed=False)
        last = history.crashes[-1]
        suspects = frozenset(request for request in last.requests if request[0] in clients)
        history.refused |= dict.fromkeys(clients, last.at)
        history.crashes.clear()
        history.blamed.clear()
        return CrashBlame(False, suspects, clients)

    def refuses(self, model: ModelId, client: ClientName, now: float) -> bool:
        """Whether requests of a client to a model are refused, because it was blamed."""
        history = self._histories.get(model)
        refused_at = history.refused.get(client) if history is not None else None
        return refused_at is not None and refused_at >= now - _WINDOW_S

    def is_suspect(self, model: ModelId, request: RequestKey, now: float) -> bool:
        """Whether a request was involved in a crash for which nobody is blamed, or is of one of the
        clients that may have caused several."""
        if model not in self._histories:
            return False
        history = self._of(model, now)
        if any(request in crash.requests for crash in history.crashes):
            return True
        several = len(history.crashes) >= _BLAMED_AFTER_CRASHES
        return several and request[0] in history.common_clients

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


def _clients(requests: Collection[RequestKey]) -> frozenset[ClientName]:
    return frozenset(client for client, _ in requests)
