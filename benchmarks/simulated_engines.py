"""Real workers with *simulated* engines, for what depends on how busy workers are.

    python -m benchmarks.simulated_engines --nats URL --worker fast=1 --worker slow=3

Queue, admission, heartbeats, streams, what workers say of their speed: all of that is the worker's
own. Only the device is played: an engine computes prompts one after another, as much of them
between two steps as `max_decode_stall_ms` allows, and makes a step with all its rows; it sleeps for
as long as that would take. It measures itself and sets its batch size as real engines do, and keeps
nothing of prompts. All workers of a call live in one process.
"""

import argparse
import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from shared.bus import Bus
from shared.ids import ModelId, SkillName, WorkerId
from shared.logs import BusLogHandler, set_up_logging
from shared.messages.conversation import utf8_bytes
from shared.service import StopSignal, run_service
from shared.settings import ClusterSettings
from shared.settings.base import DEMO_MODEL
from shared.settings.worker import WorkerSettings
from worker.agent.agent import WorkerAgent
from worker.engine.adaptive_batch_size import AdaptiveBatchSize
from worker.engine.prefill_cost import PrefillCost
from worker.engine_process.process import EngineProcess
from worker.link.facts import (
    BatchMeasurements,
    EngineMeasured,
    EngineStarted,
    Fact,
    ModelLoaded,
    PrefillAdvanced,
    PrefillStarted,
    SequenceOutput,
    StepCompleted,
)
from worker.link.orders import CancelSequence, LoadModel, Order, SubmitSequence

MODEL = ModelId("simulated")
SKILLS = {SkillName("chat"): [MODEL]}
BYTES_PER_TOKEN = 4
TOKEN_TEXT = " tok"

_CONTEXT_TOKENS = 32_768
_FEW_TOKENS, _MANY_TOKENS = 8, 128
_MIN_CHUNK_TOKENS = 8
_LEAST_SHARE = 0.8
_WEIGHT_OF_NEW = 0.3
_MEASURE_S = 1.0
_CATCHES_UP_S = 0.1
"""Of what a sleep took too long so much at most is made up for in the next ones."""


@dataclass(frozen=True, slots=True)
class Device:
    """How fast an engine is.

    Attributes:
        pass_ms: of a pass that computes a prompt, whatever its tokens.
        step_ms, row_ms: of a decode step, and of each of its rows.
    """

    prefill_tokens_per_s: float = 1500.0
    pass_ms: float = 15.0
    step_ms: float = 20.0
    row_ms: float = 1.0

    def slower(self, times: float) -> "Device":
        return Device(
            self.prefill_tokens_per_s / times,
            self.pass_ms * times,
            self.step_ms * times,
            self.row_ms * times,
        )

    def pass_s(self, tokens: int) -> float:
        return self.pass_ms / 1000 + tokens / self.prefill_tokens_per_s

    def step_s(self, rows: int) -> float:
        return (self.step_ms + rows * self.row_ms) / 1000


@dataclass(slots=True, eq=False)
class _Sequence:
    """`left` counts prompt tokens that are not computed."""

    id: int
    prompt_tokens: int
    left: int
    answer_tokens: int
    made: int = 0

    def next_output(self) -> SequenceOutput:
        self.made += 1
        ended = self.made == self.answer_tokens
        index = self.made - 1
        return SequenceOutput(self.id, index, [index], TOKEN_TEXT, "length" if ended else None)


class SimulatedEngine(EngineProcess):
    """Takes the place of an engine process, in the process of its agent.

    Args:
        on_fact, on_lost: as of `EngineProcess`.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        device: Device,
        *,
        on_fact: Callable[[EngineProcess, Fact], Awaitable[None]],
        on_lost: Callable[[EngineProcess, str], Awaitable[None]],
    ) -> None:
        super().__init__(
            0, settings.engines, [], 1, retry_after_failure_s=1, on_fact=on_fact, on_lost=on_lost
        )
        batching = settings.continuous_batching
        self._device = device
        self._stall_s = batching.max_decode_stall_ms / 1000
        self._adaptive = AdaptiveBatchSize(
            settings.adaptive_batching, batching.min_batch_size, batching.max_batch_size
        )
        self._speed = PrefillCost(0, 1)
        self._step_s = 0.0
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._waiting: deque[_Sequence] = deque()
        self._begun: _Sequence | None = None
        self._rows: list[_Sequence] = []
        self._free_at = 0.0
        self._loaded = False

    def send(self, order: Order) -> None:
        self._orders.put_nowait(order)

    async def run(self) -> None:
        """Until cancelled."""
        await self._tell(EngineStarted("simulated", "simulated", "none", 1, 0, {}))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._measure())
            tasks.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            await self._take_orders()
            if self._rows:
                await self._step()
            if self._may_prefill:
                await self._prefill()

    async def _tell(self, fact: Fact) -> None:
        self._note(fact)
        await self._on_fact(self, fact)

    # Orders.

    async def _take_orders(self) -> None:
        """Wait for one only while there is nothing to do."""
        if not self._rows and not self._may_prefill:
            order = await self._orders.get()
            self._free_at = time.monotonic()
            await self._take(order)
        while not self._orders.empty():
            await self._take(self._orders.get_nowait())

    async def _take(self, order: Order) -> None:
        match order:
            case LoadModel():
                few_s = await self._compute(self._device.pass_s(_FEW_TOKENS))
                many_s = await self._compute(self._device.pass_s(_MANY_TOKENS))
                self._speed = PrefillCost.from_measurements(
                    _FEW_TOKENS, few_s, _MANY_TOKENS, many_s
                )
                self._loaded = True
                await self._tell(ModelLoaded(order.model, _CONTEXT_TOKENS, 0, []))
            case SubmitSequence():
                tokens = _prompt_tokens(order)
                self._waiting.append(
                    _Sequence(order.sequence, tokens, tokens, order.max_tokens or 1)
                )
                await self._tell(PrefillStarted(order.sequence, tokens))
            case CancelSequence():
                await self._cancel(order.sequence)
            case _:
                pass  # nothing is kept, unloaded or limited here

    async def _cancel(self, id: int) -> None:
        begun = [self._begun] if self._begun is not None else []
        for sequence in [*self._waiting, *begun, *self._rows]:
            if sequence.id == id:
                self._waiting = deque(each for each in self._waiting if each is not sequence)
                self._rows = [row for row in self._rows if row is not sequence]
                self._begun = None if self._begun is sequence else self._begun
                await self._tell(
                    StepCompleted([SequenceOutput(id, sequence.made, [], "", "cancelled")])
                )

    # The device.

    async def _compute(self, seconds: float) -> float:
        """Return when the device has computed for so long; the seconds that it took, which are more
        where this process was late."""
        began_at = time.monotonic()
        self._free_at = max(self._free_at, began_at - _CATCHES_UP_S) + seconds
        await asyncio.sleep(self._free_at - began_at)
        return max(seconds, time.monotonic() - began_at)

    async def _step(self) -> None:
        took_s = await self._compute(self._device.step_s(len(self._rows)))
        now = time.monotonic()
        self._step_s += _WEIGHT_OF_NEW * (took_s - self._step_s) if self._step_s else took_s
        self._adaptive.record_step(took_s, len(self._rows), len(self._waiting), now)
        outputs = [row.next_output() for row in self._rows]
        self._rows = [row for row in self._rows if row.made < row.answer_tokens]
        await self._tell(StepCompleted(outputs))

    @property
    def _may_prefill(self) -> bool:
        room = len(self._rows) < self._adaptive.limit
        return self._begun is not None or (room and bool(self._waiting))

    async def _prefill(self) -> None:
        """As long as those who decode may wait; who waits alone gets its first token at once."""
        step_s = self._step_s if self._rows else 0.0
        until = time.monotonic() + max(self._stall_s - step_s, _LEAST_SHARE * self._stall_s)
        alone = not self._rows
        while self._may_prefill:
            if self._begun is None:
                self._begun = self._waiting.popleft()
            sequence = self._begun
            wanted = self._speed.tokens_in(until - time.monotonic(), 0)
            tokens = min(max(wanted, _MIN_CHUNK_TOKENS), sequence.left)
            took_s = await self._compute(self._device.pass_s(tokens))
            if tokens >= _MIN_CHUNK_TOKENS:
                self._speed.record_pass(tokens, 0, took_s)
            sequence.left -= tokens
            if sequence.left:
                done = sequence.prompt_tokens - sequence.left
                await self._tell(PrefillAdvanced(sequence.id, done, sequence.prompt_tokens))
            else:
                self._begun = None
                self._rows.append(sequence)
            if (alone and self._rows) or not self._pays(until - time.monotonic()):
                return

    def _pays(self, seconds: float) -> bool:
        """Whether so much time holds a chunk that is worth its pass."""
        following = self._begun or (self._waiting[0] if self._waiting else None)
        worth = max(_MIN_CHUNK_TOKENS, self._speed.overhead_tokens)
        return following is not None and (
            self._speed.tokens_in(seconds, 0) >= min(following.left, worth)
        )

    async def _measure(self) -> None:
        while True:
            waiting = len(self._waiting) + (self._begun is not None)
            step_s = self._step_s if self._rows else 0.0
            rows = min(len(self._rows) + 1, self._adaptive.limit)
            batch = BatchMeasurements(
                MODEL,
                rows=len(self._rows),
                waiting=waiting,
                limit=self._adaptive.limit,
                step_ms=round(1000 * (self._adaptive.latency_s or step_s), 1),
                stability=round(self._adaptive.stability, 3),
                changes=[],
                next_step_ms=round(1000 * (self._adaptive.step_s(rows) or step_s), 1),
                prefill_tokens_per_s=round(self._speed.tokens_per_s, 1),
            )
            sequences, batches = waiting + len(self._rows), [batch] if self._loaded else []
            await self._tell(
                EngineMeasured(sequences, 0, 0, 0, 0, 0, round(1000 * step_s, 2), batches)
            )
            await asyncio.sleep(_MEASURE_S)


def _prompt_tokens(order: SubmitSequence) -> int:
    if order.token_ids is not None:
        return len(order.token_ids)
    texts = [each["content"] for each in order.messages or []] or [order.text or ""]
    return max(1, round(sum(map(utf8_bytes, texts)) / BYTES_PER_TOKEN))


class SimulatedWorker(WorkerAgent):
    """A worker with one simulated engine."""

    def __init__(
        self,
        settings: ClusterSettings,
        bus: Bus,
        worker: WorkerId,
        logs: BusLogHandler,
        device: Device,
    ) -> None:
        super().__init__(settings, bus, worker, logs)
        engine = SimulatedEngine(
            settings.worker, device, on_fact=self._on_fact, on_lost=self._on_engine_lost
        )
        self._engines[:] = [engine]


def _settings(nats: str) -> ClusterSettings:
    """Nothing on disk, and whatever memory this machine has."""
    return ClusterSettings.model_validate(
        {
            "nats": {"servers": nats.split(",")},
            "skills": SKILLS,
            "models": {MODEL: {"path": DEMO_MODEL}},
            "worker": {
                "kv_cache": {"disk_mb": 0},
                "resource_limits": {"enabled": False},
            },
            "logging": {"level": "warning"},
        }
    )


async def _run(nats: str, workers: Sequence[tuple[str, float]], stop: StopSignal) -> int:
    settings = _settings(nats)
    logs = set_up_logging(settings.logging, "worker", "simulated")
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for name, slowness in workers:
            bus = await Bus.connect(settings.nats, name=f"worker {name}", wait_s=10)
            stack.push_async_callback(bus.close)
            device = Device().slower(slowness)
            worker = SimulatedWorker(settings, bus, WorkerId(name), logs, device)
            tasks.create_task(worker.run(stop))
    return 0


def _named(text: str) -> tuple[str, float]:
    name, _, slowness = text.partition("=")
    return name, float(slowness or 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nats", required=True)
    parser.add_argument(
        "--worker", type=_named, action="append", required=True, metavar="NAME[=TIMES]",
        help="one that is so many times slower than others",
    )  # fmt: skip
    arguments = parser.parse_args()
    run_service(lambda stop: _run(arguments.nats, arguments.worker, stop))


if __name__ == "__main__":
    main()
