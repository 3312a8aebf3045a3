"""How the engines of a worker share its cores, and what they generated with them."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence

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


class BlasThreadAllocator:
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


_RATE_WINDOW_S = 5.0
_BALANCE_WINDOW_S = 60.0


class ThroughputMeter:
    """
    Args:
        clock: seconds, monotonic.

    Attributes:
        total: tokens since the start.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.total = 0
        self._recent: deque[tuple[float, int, int]] = deque()  # time, engine, tokens

    def add(self, engine: int, tokens: int) -> None:
        self.total += tokens
        self._recent.append((self._clock(), engine, tokens))
        self._forget_old()

    def tokens_per_s(self) -> float:
        """Return the rate over the last five seconds."""
        self._forget_old()
        since = self._clock() - _RATE_WINDOW_S
        return round(sum(count for at, _, count in self._recent if at >= since) / _RATE_WINDOW_S, 1)

    def balance(self, engines: Collection[int]) -> float:
        """Return how evenly these engines shared the tokens of the last minute: Jain's fairness
        index, 1 if all generated the same number, 1 / engines if one generated all of them."""
        self._forget_old()
        tokens: Counter[int] = Counter()
        for _, engine, count in self._recent:
            tokens[engine] += count
        shares = [tokens[engine] for engine in engines]
        if not any(shares):
            return 1.0
        return round(sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)), 3)

    def _forget_old(self) -> None:
        horizon = self._clock() - _BALANCE_WINDOW_S
        while self._recent and self._recent[0][0] < horizon:
            self._recent.popleft()
