"""The real engine process and what it reported; also a program whose death orphans one.

`python -m tests.worker.engine_owner MODEL_FOLDER` starts an engine, prints its pid, loads the
model, begins a prefill that takes long, says so, and waits to be killed.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from shared.change_notifier import ChangeNotifier
from shared.ids import ModelId
from shared.settings.worker import (
    AdaptiveBatchingSettings,
    ContinuousBatchingSettings,
    EnginesSettings,
    WorkerSettings,
)
from tests.worker.engine.samplings import GREEDY
from worker.engine_process.exit import UnexpectedEngineExit
from worker.engine_process.process import EngineProcess
from worker.link.facts import (
    EngineStarted,
    Fact,
    ModelLoaded,
    PrefillStarted,
    SequenceOutput,
    StepCompleted,
)
from worker.link.orders import LoadModel, SubmitSequence

TINY = ModelId("tiny")
_LIMIT_S = 120

F = TypeVar("F", bound=Fact)


class EngineOwner:
    """Owns one `EngineProcess`, as the agent does. Takes facts in while `reading` is set."""

    def __init__(
        self,
        *,
        chunk_tokens: int,
        max_stall_ms: int = 500,
        retry_after_failure_s: float,
        **engines: Any,
    ) -> None:
        self.facts: list[Fact] = []
        self.losses: list[str] = []
        self.ends: list[UnexpectedEngineExit] = []
        self.changes = ChangeNotifier()
        self.reading = asyncio.Event()
        self.reading.set()
        batching = ContinuousBatchingSettings(
            max_batch_size=8, max_decode_stall_ms=max_stall_ms, prefill_chunk_tokens=chunk_tokens
        )
        worker = WorkerSettings(
            engines=EnginesSettings(step_timeout_ms=max(60_000, 2 * max_stall_ms)),
            continuous_batching=batching,
            adaptive_batching=AdaptiveBatchingSettings(enabled=False),
        )
        self.process = EngineProcess(
            0,
            EnginesSettings(**engines),
            ["--settings", worker.model_dump_json(), "--engines", "1"],
            2,
            retry_after_failure_s=retry_after_failure_s,
            on_fact=self._on_fact,
            on_lost=self._on_lost,
            explain=self._explain,
        )

    def limit_steps(self, timeout_ms: int) -> None:
        """Limit steps from now on: those of loading take what the machine takes."""
        settings = self.process._settings.model_copy(update={"step_timeout_ms": timeout_ms})
        self.process._settings = settings

    async def wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(_LIMIT_S):
            await self.changes.wait_until(condition)

    async def wait_fact(self, kind: type[F], count: int = 1) -> F:
        """The `count`-th fact of a kind."""
        await self.wait(lambda: len(self.of_kind(kind)) >= count)
        return self.of_kind(kind)[count - 1]

    def of_kind(self, kind: type[F]) -> list[F]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def outputs(self, sequence: int) -> list[SequenceOutput]:
        steps = self.of_kind(StepCompleted)
        return [o for step in steps for o in step.outputs if o.sequence == sequence]

    def submit(self, sequence: int, token_ids: list[int], max_tokens: int) -> None:
        self.process.send(
            SubmitSequence(sequence, TINY, None, None, token_ids, max_tokens, [], [], GREEDY)
        )

    def chat(self, sequence: int, content: str) -> None:
        turns = [{"role": "user", "content": content}]
        self.process.send(SubmitSequence(sequence, TINY, turns, None, None, 8, [], [], GREEDY))

    async def generate(self, sequence: int) -> list[int]:
        """The tokens of a short answer."""
        before = len(self.outputs(sequence))
        self.submit(sequence, [1, 2, 3], 8)

        def new() -> list[SequenceOutput]:
            return self.outputs(sequence)[before:]

        await self.wait(lambda: any(output.finish_reason for output in new()))
        return [token for output in new() for token in output.token_ids]

    async def _on_fact(self, _: EngineProcess, fact: Fact) -> None:
        self.facts.append(fact)
        self.changes.notify()
        await self.reading.wait()

    def _explain(self, _: EngineProcess, end: UnexpectedEngineExit) -> bool:
        self.ends.append(end)
        return False

    async def _on_lost(self, _: EngineProcess, reason: str) -> None:
        self.losses.append(reason)
        self.changes.notify()


@asynccontextmanager
async def owned_engine(
    *,
    chunk_tokens: int = 512,
    max_stall_ms: int = 500,
    retry_after_failure_s: float = 60,
    **engines: Any,
) -> AsyncIterator[EngineOwner]:
    """A running engine; `engines` are keys of the settings' section."""
    owner = EngineOwner(
        chunk_tokens=chunk_tokens,
        max_stall_ms=max_stall_ms,
        retry_after_failure_s=retry_after_failure_s,
        **engines,
    )
    running = asyncio.create_task(owner.process.run())
    try:
        yield owner
    finally:
        await owner.process.stop()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def _begin_a_long_prefill(folder: str) -> None:
    async with owned_engine(chunk_tokens=8192, max_stall_ms=10**6) as owner:
        await owner.wait_fact(EngineStarted)
        print(owner.process.pid, flush=True)
        owner.process.send(LoadModel(TINY, folder))
        loaded = await owner.wait_fact(ModelLoaded)
        owner.submit(1, [1] * (loaded.max_context_tokens - 1), 1)
        await owner.wait_fact(PrefillStarted)
        print("prefill", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_begin_a_long_prefill(sys.argv[1]))
