"""Which engine a request goes to: of those that hold its model the one where it costs least; where
nobody can say that, for a session the one that served it before, else the least busy one."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from shared.ids import ModelId, SessionKey
from worker.engine_process.process import EngineState

_KEPT_SESSIONS = 10_000


class SelectableEngine(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def state(self) -> EngineState: ...


E = TypeVar("E", bound=SelectableEngine)


class EngineSelection(Generic[E]):
    """
    Attributes:
        sequences: how many each engine has.

    Args:
        engines: all of this worker; the list may still grow.
        most: how many sequences of a model an engine may have; more where they are urgent.
    """

    def __init__(self, engines: Sequence[E], most: Callable[[E, ModelId, bool], int]) -> None:
        self._engines = engines
        self._most = most
        self._by_model: Counter[tuple[int, ModelId]] = Counter()
        self.sequences: Counter[int] = Counter()
        self._homes: OrderedDict[SessionKey, int] = OrderedDict()

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
        """One of those that hold the model and have room; None when there is none.

        Args:
            holders: indices of the engines that hold the model.
            extra: so many sequences more than that are room, too.
            cost: on an engine with so many sequences; by default the least busy one costs least.
        """
        free = [
            engine
            for engine in self._engines
            if engine.index in holders and self._free(engine, model, urgent, extra)
        ]
        return self._best(free, session, {}, cost)

    def least_busy(
        self,
        holders: Collection[int],
        session: SessionKey | None = None,
        ahead: Mapping[int, int] | None = None,
        cost: Callable[[E, int], float] | None = None,
    ) -> E | None:
        """One of those that hold a model, whether it has room or not.

        Args:
            ahead: how many more an engine will have then.
        """
        running = [e for e in self._engines if e.index in holders and e.state == "running"]
        return self._best(running, session, ahead or {}, cost)

    def came(
        self, engine: int, model: ModelId, sequences: int, session: SessionKey | None = None
    ) -> None:
        """An engine was given so many sequences."""
        self._by_model[engine, model] += sequences
        self.sequences[engine] += sequences
        if session is not None:
            self.settle(session, engine)

    def settle(self, session: SessionKey, engine: int) -> None:
        """An engine keeps what is kept of a session."""
        self._homes[session] = engine
        self._homes.move_to_end(session)
        if len(self._homes) > _KEPT_SESSIONS:
            self._homes.popitem(last=False)

    def went(self, engine: int, model: ModelId) -> None:
        """One of its sequences ended."""
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

    def _free(self, engine: E, model: ModelId, urgent: bool, extra: int) -> bool:
        has = self._by_model[engine.index, model]
        return engine.state == "running" and has < self._most(engine, model, urgent) + extra
