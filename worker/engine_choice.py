"""Which engine a request goes to: the least busy of those that hold its model, and for a session
the one that served it before, where that has room: its KV cache may still be there."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from shared.ids import ModelId, SessionKey
from worker.engine_process import EngineState

_KEPT_SESSIONS = 10_000


class Engine(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def state(self) -> EngineState: ...


E = TypeVar("E", bound=Engine)


class EngineChoice(Generic[E]):
    """Knows how many sequences each engine has.

    Args:
        engines: all of this worker; the list may still grow.
        most: how many sequences of a model an engine may have; more where they are urgent.
    """

    def __init__(self, engines: Sequence[E], most: Callable[[E, ModelId, bool], int]) -> None:
        self._engines = engines
        self._most = most
        self._by_model: Counter[tuple[int, ModelId]] = Counter()
        self._sequences: Counter[int] = Counter()
        self._homes: OrderedDict[SessionKey, int] = OrderedDict()

    def choose(
        self,
        model: ModelId,
        holders: Collection[int],
        session: SessionKey | None = None,
        *,
        urgent: bool = False,
    ) -> E | None:
        """One of those that hold the model and have room; None when there is none.

        Args:
            holders: indices of the engines that hold the model.
        """
        free = [
            engine
            for engine in self._engines
            if engine.index in holders and self._free(engine, model, urgent)
        ]
        return self._best(free, session, {})

    def least_busy(
        self,
        holders: Collection[int],
        session: SessionKey | None = None,
        ahead: Mapping[int, int] | None = None,
    ) -> E | None:
        """One of those that hold a model, whether it has room or not.

        Args:
            ahead: how many more an engine will have then.
        """
        running = [e for e in self._engines if e.index in holders and e.state == "running"]
        return self._best(running, session, ahead or {})

    def came(
        self, engine: int, model: ModelId, sequences: int, session: SessionKey | None = None
    ) -> None:
        """An engine was given so many sequences."""
        self._by_model[engine, model] += sequences
        self._sequences[engine] += sequences
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
        self._sequences[engine] -= 1

    def _best(
        self, engines: Sequence[E], session: SessionKey | None, ahead: Mapping[int, int]
    ) -> E | None:
        home = self._homes.get(session) if session is not None else None

        def rank(engine: E) -> tuple[bool, int, int]:
            index = engine.index
            return index != home, self._sequences[index] + ahead.get(index, 0), index

        return min(engines, key=rank, default=None)

    def _free(self, engine: E, model: ModelId, urgent: bool) -> bool:
        has = self._by_model[engine.index, model]
        return engine.state == "running" and has < self._most(engine, model, urgent)
