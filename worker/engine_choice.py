"""Which engine a request goes to: the least busy of those that hold its model, and for a session
the one that served it before, where that has room: its KV cache may still be there."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar

from shared.ids import ClientName
from worker.engine_process import EngineState

_KEPT_SESSIONS = 10_000

SessionKey = tuple[ClientName, str]


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
        most_sequences: that one engine may have.
    """

    def __init__(self, engines: Sequence[E], most_sequences: int) -> None:
        self._engines = engines
        self._most_sequences = most_sequences
        self._sequences: Counter[int] = Counter()
        self._homes: OrderedDict[SessionKey, int] = OrderedDict()

    def choose(self, holders: Collection[int], session: SessionKey | None = None) -> E | None:
        """One of those that hold the model and have room; None when there is none.

        Args:
            holders: indices of the engines that hold the model.
        """
        free = [
            engine for engine in self._engines if engine.index in holders and self._free(engine)
        ]
        home = self._homes.get(session) if session is not None else None
        return min(
            free,
            key=lambda engine: (engine.index != home, self._sequences[engine.index], engine.index),
            default=None,
        )

    @property
    def any_free(self) -> bool:
        return any(map(self._free, self._engines))

    def came(self, engine: int, sequences: int, session: SessionKey | None = None) -> None:
        """An engine was given so many sequences."""
        self._sequences[engine] += sequences
        if session is not None:
            self._homes[session] = engine
            self._homes.move_to_end(session)
            if len(self._homes) > _KEPT_SESSIONS:
                self._homes.popitem(last=False)

    def went(self, engine: int) -> None:
        """One of its sequences ended."""
        self._sequences[engine] -= 1

    def _free(self, engine: E) -> bool:
        return engine.state == "running" and self._sequences[engine.index] < self._most_sequences
