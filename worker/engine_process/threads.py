"""How many threads engines may use for matrix products: those that have work share the cores."""

from collections.abc import Mapping, Sequence

from shared.settings.worker import EnginesSettings
from worker.engine_process.process import EngineProcess
from worker.host.machine import available_cores
from worker.link.orders import UseThreads


def shared_cores(settings: EnginesSettings) -> int | None:
    """The cores that engines with work share; None where each keeps the threads that are set."""
    return available_cores() if settings.fixed_threads is None else None


def shares(busy: Sequence[int], cores: int) -> dict[int, int]:
    """Threads for each engine that has work; together as many as there are cores, and never none.

    Args:
        busy: indices of the engines that have work.
    """
    each, more = divmod(cores, len(busy)) if busy else (0, 0)
    return {engine: max(1, each + (rank < more)) for rank, engine in enumerate(busy)}


class EngineThreads:
    """Tells engines. What an idle one is told can wait until it has work.

    Args:
        engines: all of this worker; the list may still grow.
        cores: to be shared; None where each engine keeps those that it has.
    """

    def __init__(self, engines: Sequence[EngineProcess], cores: int | None) -> None:
        self._engines = engines
        self._cores = cores

    def share(self, sequences: Mapping[int, int]) -> None:
        """Engines have so many sequences now."""
        if self._cores is None:
            return
        busy = [engine.index for engine in self._engines if sequences[engine.index] > 0]
        for index, threads in shares(busy, self._cores).items():
            engine = self._engines[index]
            if engine.threads != threads:
                engine.threads = threads
                engine.send(UseThreads(threads))
