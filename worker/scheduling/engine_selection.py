"""Engine selection: among the engines that hold a request's model, the one with the lowest cost; if
costs are equal or unknown, the one that served the session before, else the least busy one."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from shared.fair_lru import FairLru
from shared.ids import ModelId, SessionKey
from worker.engine_process.process import EngineState

_MAX_SESSIONS = 10_000


class EngineCandidate(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def state(self) -> EngineState: ...


E = TypeVar("E", bound=EngineCandidate)


class EngineSelector(Generic[E]):
    """
    Attributes:
        sequences: number of sequences by engine.

    Args:
        engines: all engines of this worker; the list may still grow.
        max_sequences: returns how many sequences of a model an engine may have; the last argument
            says whether they are urgent.
    """

    def __init__(
        self, engines: Sequence[E], max_sequences: Callable[[E, ModelId, bool], int]
    ) -> None:
        self._engines = engines
        self._max_sequences = max_sequences
        self._by_model: Counter[tuple[int, ModelId]] = Counter()
        self.sequences: Counter[int] = Counter()
        self._homes: FairLru[int] = FairLru(_MAX_SESSIONS)

    def choose(
        self,
        model: ModelId,
        holders: Collection[int],
        session: SessionKey | None = None,
        *,
        urgent: bool = False,
        extra: int = 0,
        cost: Callable[[E, int], float] | None = None,
    ) -> E | None:
        """Return an engine that holds the model and has a free slot; None if there is none.

        Args:
            holders: indices of the engines that hold the model.
            extra: additional sequences beyond the maximum.
            cost: of the request on an engine with this many sequences; by default all cost the
                same.
        """
        free = [
            engine
            for engine in self._engines
            if engine.index in holders and self._has_slot(engine, model, urgent, extra)
        ]
        return self._best(free, session, {}, cost)

    def least_busy(
        self,
        holders: Collection[int],
        session: SessionKey | None = None,
        ahead: Mapping[int, int] | None = None,
        cost: Callable[[E, int], float] | None = None,
    ) -> E | None:
        """Return an engine that holds a model, even if it has no free slot.

        Args:
            ahead: sequences by engine that will be admitted before the request.
        """
        running = [e for e in self._engines if e.index in holders and e.state == "running"]
        return self._best(running, session, ahead or {}, cost)

    def add(
        self, engine: int, model: ModelId, sequences: int, session: SessionKey | None = None
    ) -> None:
        """Record sequences that an engine got."""
        self._by_model[engine, model] += sequences
        self.sequences[engine] += sequences
        if session is not None:
            self.set_home(session, engine)

    def set_home(self, session: SessionKey, engine: int) -> None:
        """Record which engine caches a session."""
        self._homes.set(session, engine)

    def remove(self, engine: int, model: ModelId) -> None:
        """Record that a sequence of an engine ended."""
        self._by_model[engine, model] -= 1
        self.sequences[engine] -= 1

    def _best(
        self,
        engines: Sequence[E],
        session: SessionKey | None,
        ahead: Mapping[int, int],
        cost: Callable[[E, int], float] | None,
    ) -> E | None:
        home = self._homes.get(session) if session is not None else None

        def rank(engine: E) -> tuple[float, bool, int, int]:
            index = engine.index
            sequences = self.sequences[index] + ahead.get(index, 0)
            return cost(engine, sequences) if cost else 0.0, index != home, sequences, index

        return min(engines, key=rank, default=None)

    def _has_slot(self, engine: E, model: ModelId, urgent: bool, extra: int) -> bool:
        count = self._by_model[engine.index, model]
        limit = self._max_sequences(engine, model, urgent) + extra
        return engine.state == "running" and count < limit
