"""Requests of many sizes that come at random, whatever became of those before; or, to see what a
cluster can serve, always so many at once."""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.simulated_engines import BYTES_PER_TOKEN
from shared.client import Cluster
from shared.errors import ClusterError

_PATIENCE_MS = 600_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of prompts and answers, log-uniform between these."""

    prompt: tuple[int, int] = (50, 1000)
    answer: tuple[int, int] = (16, 256)

    @property
    def mean_answer(self) -> float:
        least, most = self.answer
        return (most - least) / math.log(most / least)


@dataclass(slots=True)
class Outcome:
    """What became of one request.

    Attributes:
        at_s: when it was sent, since the begin of the load.
        token_s: when each of its tokens came, likewise.
        forecast_ms: the time to its first token as its controller foretold it, in parts.
        others_ms: what it foretold for the other workers.
        code: of its error, if it had one.
    """

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    worker: str | None = None
    token_s: list[float] = field(default_factory=list)
    forecast_ms: dict[str, float] = field(default_factory=dict)
    others_ms: dict[str, float] = field(default_factory=dict)
    code: str | None = None

    @property
    def first_token_s(self) -> float:
        return self.token_s[0] - self.at_s

    @property
    def seconds(self) -> float:
        return self.token_s[-1] - self.at_s


class Load:
    """Requests that are the same for the same `seed`, and share nothing."""

    def __init__(self, cluster: Cluster, sizes: Sizes, seed: int) -> None:
        self._cluster = cluster
        self._sizes = sizes
        self._draw = random.Random(seed)
        self._words = ["".join(word) for word in itertools.product("abcdefgh", repeat=3)]
        self._began_at = 0.0
        self.outcomes: list[Outcome] = []

    async def at_rate(self, per_s: float, seconds: float) -> None:
        """Send at random times (Poisson) for so long; return when all are answered."""
        self._began_at = time.perf_counter()
        at_s = self._draw.expovariate(per_s)
        async with asyncio.TaskGroup() as tasks:
            for prompt, answer in self._requests():
                if at_s > seconds:
                    break
                await asyncio.sleep(self._began_at + at_s - time.perf_counter())
                tasks.create_task(self._ask(prompt, answer))
                at_s += self._draw.expovariate(per_s)

    async def at_once(self, count: int, seconds: float) -> None:
        """Have always so many open; after so long those that are left are cancelled."""
        self._began_at = time.perf_counter()
        requests = self._requests()

        async def client() -> None:
            while True:
                await self._ask(*next(requests))

        async with asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(client()) for _ in range(count)]
            await asyncio.sleep(seconds)
            for each in clients:
                each.cancel()

    def _requests(self) -> Iterator[tuple[str, int]]:
        """Prompts, and how many tokens their answers are to have."""
        while True:
            tokens = self._size(self._sizes.prompt)
            text = " ".join(self._draw.choices(self._words, k=tokens))
            yield text, self._size(self._sizes.answer)

    def _size(self, bounds: tuple[int, int]) -> int:
        least, most = bounds
        return round(least * math.pow(most / least, self._draw.random()))

    async def _ask(self, prompt: str, answer_tokens: int) -> None:
        sent_s = time.perf_counter() - self._began_at
        outcome = Outcome(sent_s, len(prompt) // BYTES_PER_TOKEN, answer_tokens)
        self.outcomes.append(outcome)
        stream = self._cluster.stream(
            prompt, max_tokens=answer_tokens, timeout_ms=_PATIENCE_MS, debug=True
        )
        try:
            async with stream:
                async for chunk in stream:
                    now_s = time.perf_counter() - self._began_at
                    outcome.token_s += [now_s] * len(chunk.token_ids)
                    outcome.worker = stream.worker
        except ClusterError as error:
            outcome.code = error.code or type(error).__name__
            return
        if stream.route is not None:
            chosen, *others = stream.route["candidates"]
            outcome.forecast_ms = chosen["forecast_ms"]
            outcome.others_ms = {each["worker"]: each["forecast_ms"]["total"] for each in others}
