"""The real engine on a thread of its own, in the test's process."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shared.ids import ModelId
from shared.settings.worker import AdaptiveBatchingSettings
from tests.worker.engine.samplings import GREEDY
from worker.engine.kv_block_store import KV_MEMORY_DISABLED, PrefixCacheConfig
from worker.engine.loop import Engine
from worker.kv_memory.block import Block
from worker.link.facts import (
    Fact,
    ModelFailed,
    ModelLoaded,
    SequenceOutput,
    SequenceRejected,
    StepCompleted,
)
from worker.link.orders import CancelSequence, LoadModel, Order, Stop, SubmitSequence

TINY = ModelId("tiny")
_LIMIT_S = 60

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """A sequence from its first output to its last."""

    outputs: list[SequenceOutput]

    @property
    def token_ids(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def reasoning(self) -> str:
        return "".join(output.reasoning for output in self.outputs)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments of each tool call."""
        calls: list[list[str]] = []
        for output in self.outputs:
            for piece in output.calls:
                if piece.name is not None:
                    calls.append([piece.name, ""])
                calls[piece.index][1] += piece.arguments
        return [(name, arguments) for name, arguments in calls]

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[-1].finish_reason if self.outputs else None


class RunningEngine:
    """Collects the facts of an engine, and waits for them."""

    def __init__(
        self,
        *,
        prefill_chunk_tokens: int,
        kv_budget_bytes: int | None = None,
        evaluates_ahead: bool | None = None,
        kv_memory: PrefixCacheConfig = KV_MEMORY_DISABLED,
        preparation_limit_s: float = 60.0,
    ) -> None:
        self._engine = Engine(
            self._collect,
            lambda: None,
            max_batch_size=32,
            max_chunk_tokens=prefill_chunk_tokens,
            max_decode_stall_s=0.5,
            kv_budget_bytes=kv_budget_bytes,
            adaptive=AdaptiveBatchingSettings(),
            evaluates_ahead=evaluates_ahead,
            kv_memory=kv_memory,
            preparation_limit_s=preparation_limit_s,
        )
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._facts: list[Fact] = []
        self._reactions: list[tuple[Callable[[Fact], object], Callable[[], None]]] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._engine.enqueue(Stop())
        self._thread.join(_LIMIT_S)
        assert not self._thread.is_alive()

    def give(self, order: Order) -> None:
        self._engine.enqueue(order)

    def on_first(self, applies: Callable[[Fact], object], act: Callable[[], None]) -> None:
        """Call `act` on the engine's thread at the first fact that `applies`."""
        self._reactions.append((applies, act))

    def wait(self, find: Callable[[list[Fact]], T | None]) -> T:
        """What `find` makes of the facts so far, as soon as it makes something."""
        found: list[T] = []

        def has_found() -> bool:
            if (value := find(self._facts)) is not None:
                found.append(value)
            return bool(found) or self._failure is not None

        with self._changed:
            assert self._changed.wait_for(has_found, _LIMIT_S), "the fact never came"
        if not found:
            raise AssertionError("the engine died") from self._failure
        return found[0]

    def load(self, folder: Path, model: ModelId = TINY, **fields: Any) -> ModelLoaded | ModelFailed:
        with self._changed:
            seen = len(self._facts)
        self.give(LoadModel(model, str(folder), **fields))

        def find(facts: list[Fact]) -> list[ModelLoaded | ModelFailed] | None:
            ends = [fact for fact in facts[seen:] if isinstance(fact, ModelLoaded | ModelFailed)]
            return ends or None

        return self.wait(find)[0]

    def submit(self, text: str | None = "Hello", **fields: Any) -> int:
        """Give one sequence; returns its number."""
        order = self.order(text, **fields)
        self.give(order)
        return order.sequence

    def order(self, text: str | None = "Hello", **fields: Any) -> SubmitSequence:
        defaults: dict[str, Any] = {
            "model": TINY,
            "messages": None,
            "token_ids": None,
            "max_tokens": 24,
            "stop": [],
            "stop_token_ids": [],
            "sampling": GREEDY,
        }
        return SubmitSequence(sequence=next(self._numbers), text=text, **{**defaults, **fields})

    def cancel(self, sequence: int) -> None:
        self.give(CancelSequence(sequence))

    def answer(self, sequence: int) -> Answer:
        """The whole sequence, once it has ended."""

        def find(facts: list[Fact]) -> Answer | None:
            answer = Answer(outputs_of(facts, sequence))
            return answer if answer.finish_reason is not None else None

        return self.wait(find)

    def refusal(self, sequence: int) -> SequenceRejected:
        def find(facts: list[Fact]) -> SequenceRejected | None:
            refused = (f for f in facts if isinstance(f, SequenceRejected))
            return next((f for f in refused if f.sequence == sequence), None)

        return self.wait(find)

    def generate(self, text: str | None = "Hello", **fields: Any) -> Answer:
        return self.answer(self.submit(text, **fields))

    @property
    def blocks(self) -> list[Block]:
        """All that is kept of texts; of use while the engine does nothing."""
        return list(self._engine._kv_memory.tree)

    def facts(self) -> list[Fact]:
        with self._changed:
            return list(self._facts)

    def _run(self) -> None:
        try:
            self._engine.run()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _collect(self, fact: Fact) -> None:
        with self._changed:
            self._facts.append(fact)
            self._changed.notify_all()
        for reaction in [*self._reactions]:
            applies, act = reaction
            if applies(fact):
                self._reactions.remove(reaction)
                act()


def outputs_of(facts: list[Fact], sequence: int) -> list[SequenceOutput]:
    steps = (fact for fact in facts if isinstance(fact, StepCompleted))
    return [output for step in steps for output in step.outputs if output.sequence == sequence]


@contextmanager
def running_engine(model: Path, **options: Any) -> Iterator[RunningEngine]:
    """An engine that holds `model` as `TINY`."""
    engine = RunningEngine(**{"prefill_chunk_tokens": 64, **options})
    engine.start()
    try:
        assert isinstance(engine.load(model), ModelLoaded)
        yield engine
    finally:
        engine.stop()
