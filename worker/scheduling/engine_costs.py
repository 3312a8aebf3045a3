"""What a request costs on each engine of its worker: the rest of its prompt, of which an engine may
keep the beginning or compute it now for another one, an answer among those it has, and what others
lose where one engine more has work."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from shared.messages.prefixes import PrefixIndex
from worker.engine_process.process import EngineProcess
from worker.requests.active_request import ActiveRequest
from worker.scheduling.cached_prefixes import CachedPrefixTracker
from worker.scheduling.engine_scaling import RequestCost, idle_engine_cost_ms, scale_up_cost_ms
from worker.scheduling.model_speeds import ModelSpeeds

Cost = Callable[[EngineProcess, int], float]
"""Of a request on an engine that has so many sequences."""


class EngineCosts:
    """
    Args:
        engines: all of this worker; the list may still grow.
        kept: what they keep.
        cores: that those with work share; None where each engine keeps its own.
    """

    def __init__(
        self,
        engines: Sequence[EngineProcess],
        speeds: ModelSpeeds,
        kept: CachedPrefixTracker,
        cores: int | None,
    ) -> None:
        self._engines = engines
        self._speeds = speeds
        self._kept = kept
        self._cores = cores
        self._sequences: Counter[int] = Counter()
        self._running: defaultdict[int, PrefixIndex] = defaultdict(PrefixIndex)
        self._engine_of: dict[ActiveRequest, int] = {}

    def came(self, request: ActiveRequest, engine: int) -> None:
        """An engine was given a request."""
        self._engine_of[request] = engine
        self._sequences[engine] += len(request.choices)
        self._running[engine].add(request.prefixes)

    def went(self, request: ActiveRequest) -> None:
        """A request that was given has ended."""
        engine = self._engine_of.pop(request)
        self._sequences[engine] -= len(request.choices)
        self._running[engine].remove(request.prefixes)

    def of(self, request: ActiveRequest) -> Cost | None:
        """Milliseconds; None where there is nothing to choose, or nobody can say. All engines are
        as fast: what one of them measured in a noisy moment says nothing of the others."""
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
        speed = self._speeds.seen(request.model)
        most = request.dispatch.request.max_tokens or math.inf
        answer_tokens = min(speed.answer_tokens, most)
        tokens = request.prompts[0].expected_tokens(speed)
        links = request.prompt_links
        kept = self._kept.shares(links)

        def prompt_ms(engine: int) -> float:
            count = self._running[engine].shared(request.prefixes)
            there = max(kept.get(engine, 0.0), links[count - 1][1] if count else 0.0)
            return (1 - there) * tokens * token_ms

        def work(engine: int) -> RequestCost:
            return RequestCost.measured(prompt_ms(engine), answer_tokens, step_ms, row_ms, threads)

        spread = self._spread(work, len(request.choices))

        def cost(engine: EngineProcess, sequences: int) -> float:
            idle_rows, extra_ms = spread.get(engine.index, (0, 0.0))
            rows = sequences + idle_rows
            return prompt_ms(engine.index) + answer_tokens * row_ms * rows + extra_ms

        return cost

    def _spread(
        self, work: Callable[[int], RequestCost], coming: int
    ) -> dict[int, tuple[int, float]]:
        """For engines that had better have no work: as if they had so many rows more, as many as
        the next best one has, and what all lose by it."""
        counts = {engine.index: self._sequences[engine.index] for engine in self._engines}
        busy = sorted((count, index) for index, count in counts.items() if count > 0)
        if self._cores is None or not busy:
            return {}
        total = sum(counts.values()) + coming
        fewest, last = busy[0]
        found = {
            index: (fewest, scale_up_cost_ms(work(index), len(busy), total, self._cores))
            for index, count in counts.items()
            if count == 0
        }
        if len(busy) > 1:
            lost_ms = idle_engine_cost_ms(work(last), len(busy), total, self._cores)
            if lost_ms > 0:
                found[last] = busy[1][0] - fewest, lost_ms
        return found
