"""Threads of engines for matrix products: the engines that have work share the cores."""

from collections.abc import Mapping, Sequence

from shared.settings.worker import EnginesSettings
from worker.engine_process.process import EngineProcess
from worker.host.machine import available_cores
from worker.link.orders import SetBlasThreads


def shared_cores(settings: EnginesSettings) -> int | None:
    """Return the number of cores that busy engines share; None if the settings fix the threads of
    each engine."""
    return available_cores() if settings.fixed_threads is None else None


def shares(busy: Sequence[int], cores: int) -> dict[int, int]:
    """Return the number of threads for each busy engine: in total the number of cores, and at
    least one per engine.

    Args:
        busy: indices of the engines that have work.
    """
    each, more = divmod(cores, len(busy)) if busy else (0, 0)
    return {engine: max(1, each + (rank < more)) for rank, engine in enumerate(busy)}


class CoreAllocator:
    """Sends each engine its number of threads; an idle one gets it when it has work again.

    Args:
        engines: all engines of this worker; the list may still grow.
        cores: cores to share; None if the threads of each engine are fixed.
    """

    def __init__(self, engines: Sequence[EngineProcess], cores: int | None) -> None:
        self._engines = engines
        self._cores = cores

    def share(self, sequences: Mapping[int, int]) -> None:
        """Share the cores; `sequences` has the number of sequences by engine."""
        if self._cores is None:
            return
        busy = [engine.index for engine in self._engines if sequences[engine.index] > 0]
        for index, threads in shares(busy, self._cores).items():
            engine = self._engines[index]
            if engine.threads != threads:
                engine.threads = threads
                engine.send(SetBlasThreads(threads))
