"""The cost of a request on each engine of its worker: the prefill of its prompt, less the prefix
that the engine has cached or is computing; its decode steps beside the sequences of that engine;
and what other requests lose if one more engine becomes busy."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from shared.messages.prefixes import PrefixChainSet
from worker.engine_process.process import EngineProcess
from worker.requests.active_request import ActiveRequest
from worker.scheduling.local_prefix_index import LocalPrefixIndex
from worker.scheduling.model_statistics import ModelStatistics

_SERIAL_PREFILL = 0.5
_SERIAL_STEP = 0.25
"""Serial shares of the prefill of a prompt, and of the fixed part of a step."""
_MIN_GAIN = 0.9
"""An engine becomes busy, or is left to become idle, only if that saves a tenth of the machine's
time."""


@dataclass(frozen=True, slots=True)
class RequestCost:
    """A typical request. Durations are those of one thread.

    Attributes:
        prompt_ms: prefill of the part of its prompt that is not cached.
        answer_tokens: tokens that it generates.
        step_ms, row_ms: a step takes `step_ms`, and `row_ms` per row.
    """

    prompt_ms: float
    answer_tokens: float
    step_ms: float
    row_ms: float

    @classmethod
    def measured(
        cls, prompt_ms: float, answer_tokens: float, step_ms: float, row_ms: float, threads: float
    ) -> "RequestCost":
        """Convert durations that were measured with `threads` threads."""
        return cls(
            prompt_ms / _share(_SERIAL_PREFILL, threads),
            answer_tokens,
            step_ms / _share(_SERIAL_STEP, threads),
            row_ms,
        )


def scale_up_cost_ms(work: RequestCost, busy: int, sequences: int, cores: int) -> float:
    """Return the milliseconds that all sequences together lose if one more engine than `busy` has
    work, beyond the required gain; negative if they gain."""
    before = _machine_ms(work, busy, sequences, cores)
    return sequences * (_machine_ms(work, busy + 1, sequences, cores) - _MIN_GAIN * before)


def idle_engine_cost_ms(work: RequestCost, busy: int, sequences: int, cores: int) -> float:
    """Return the milliseconds that all sequences together lose with `busy` engines instead of one
    fewer; 0 if the gain is too small for a change."""
    before = _machine_ms(work, busy, sequences, cores)
    return max(
        0.0, sequences * (_MIN_GAIN * before - _machine_ms(work, busy - 1, sequences, cores))
    )


def _machine_ms(work: RequestCost, engines: int, sequences: int, cores: int) -> float:
    """Return the machine's time that each sequence takes, if they are spread over engines that
    share its cores."""
    threads = max(1.0, cores / engines)
    prefill = work.prompt_ms * _share(_SERIAL_PREFILL, threads) / engines
    step = work.step_ms * _share(_SERIAL_STEP, threads) + work.row_ms * sequences / engines
    return prefill + work.answer_tokens * step / sequences


def _share(serial: float, threads: float) -> float:
    """Return the duration with this many threads, as a share of that with one (Amdahl's law)."""
    return serial + (1 - serial) / threads


Cost = Callable[[EngineProcess, int], float]
"""Returns the cost of a request on an engine that has this many sequences, in milliseconds."""


class EngineCostEstimator:
    """
    Args:
        engines: all engines of this worker; the list may still grow.
        cores: cores that busy engines share; None if the threads of each engine are fixed.
    """

    def __init__(
        self,
        engines: Sequence[EngineProcess],
        speeds: ModelStatistics,
        cached_prefixes: LocalPrefixIndex,
        cores: int | None,
    ) -> None:
        self._engines = engines
        self._speeds = speeds
        self._cached_prefixes = cached_prefixes
        self._cores = cores
        self._sequences: Counter[int] = Counter()
        self._running: defaultdict[int, PrefixChainSet] = defaultdict(PrefixChainSet)
        self._engine_of: dict[ActiveRequest, int] = {}

    def on_admitted(self, request: ActiveRequest, engine: int) -> None:
        self._engine_of[request] = engine
        self._sequences[engine] += len(request.choices)
        self._running[engine].add(request.prefixes)

    def on_ended(self, request: ActiveRequest) -> None:
        engine = self._engine_of.pop(request)
        self._sequences[engine] -= len(request.choices)
        self._running[engine].remove(request.prefixes)

    def of(self, request: ActiveRequest) -> Cost | None:
        """Return the cost function of a request; None with a single engine, or before the speed of
        the model was measured. All engines are assumed to be equally fast: the mean of their
        measurements is used, since a single one may be noisy."""
        measured = [
            (engine.threads, batch)
            for engine in self._engines
            for batch in engine.measured.batches
            if batch.model == request.model and batch.prefill_tokens_per_s > 0
        ]
        if len(self._engines) < 2 or not measured:
            return None
        token_ms = fmean(1000 / batch.prefill_tokens_per_s for _, batch in measured)
        row_ms = max(0.0, fmean(batch.step_row_ms for _, batch in measured))
        step_ms = max(0.0, fmean(batch.step_fixed_ms for _, batch in measured))
        threads = fmean(threads for threads, _ in measured)
        speed = self._speeds.observed(request.model)
        max_tokens = request.dispatch.request.max_tokens or math.inf
        answer_tokens = min(speed.answer_tokens, max_tokens)
        tokens = request.prompts[0].expected_tokens(speed)
        links = request.prompt_links
        cached = self._cached_prefixes.cached_shares(links)

        def prompt_ms(engine: int) -> float:
            count = self._running[engine].shared(request.prefixes)
            share = max(cached.get(engine, 0.0), links[count - 1][1] if count else 0.0)
            return (1 - share) * tokens * token_ms

        def request_cost(engine: int) -> RequestCost:
            return RequestCost.measured(prompt_ms(engine), answer_tokens, step_ms, row_ms, threads)

        spread = self._spread(request_cost, len(request.choices))

        def cost(engine: EngineProcess, sequences: int) -> float:
            idle_rows, extra_ms = spread.get(engine.index, (0, 0.0))
            rows = sequences + idle_rows
            return prompt_ms(engine.index) + answer_tokens * row_ms * rows + extra_ms

        return cost

    def _spread(
        self, request_cost: Callable[[int], RequestCost], new_sequences: int
    ) -> dict[int, tuple[int, float]]:
        """Return surcharges for engines that should rather be idle, by engine: extra rows, so that
        the engine looks as busy as the next best one, and the milliseconds that all sequences lose
        if the engine has work."""
        counts = {engine.index: self._sequences[engine.index] for engine in self._engines}
        busy = sorted((count, index) for index, count in counts.items() if count > 0)
        if self._cores is None or not busy:
            return {}
        total = sum(counts.values()) + new_sequences
        fewest, last = busy[0]
        surcharges = {
            index: (fewest, scale_up_cost_ms(request_cost(index), len(busy), total, self._cores))
            for index, count in counts.items()
            if count == 0
        }
        if len(busy) > 1:
            lost_ms = idle_engine_cost_ms(request_cost(last), len(busy), total, self._cores)
            if lost_ms > 0:
                surcharges[last] = busy[1][0] - fewest, lost_ms
        return surcharges
