"""One engine process without agent, NATS or controller: what the loop itself can do."""

import contextlib
import itertools
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, BinaryIO, TypeVar, cast

from benchmarks.children import started
from benchmarks.measures import Run, StreamClock
from benchmarks.threads import as_many_threads
from shared.ids import ModelId
from shared.settings.worker import (
    AdaptiveBatchingSettings,
    ContinuousBatchingSettings,
    WorkerSettings,
)
from worker.link.activity import new_activity_file
from worker.link.facts import EngineMeasured, Fact, ModelLoaded, SequenceRejected, StepCompleted
from worker.link.frames import HEADER, decode_body, encode_frame, frame_length
from worker.link.orders import CancelSequence, LoadModel, Sampling, SubmitSequence

_MODEL = ModelId("model")
F = TypeVar("F", bound=Fact)


class EngineAlone:
    """The process, as benchmarks use it; a context manager.

    Attributes:
        pid: of the process.
        measured: the last figures that it told of itself.
        received_at: when the last fact came, on the performance clock.
    """

    def __init__(
        self, folder: str, *, max_stall_ms: int = 500, kv_memory_mb: int | None = None
    ) -> None:
        batching = ContinuousBatchingSettings(
            max_batch_size=64, max_decode_stall_ms=max_stall_ms, kv_memory_mb=kv_memory_mb
        )
        self._settings = WorkerSettings(
            continuous_batching=batching, adaptive_batching=AdaptiveBatchingSettings(enabled=False)
        )
        self._folder = folder
        self._numbers = itertools.count()
        self.measured: EngineMeasured | None = None
        self.received_at = 0.0

    def __enter__(self) -> "EngineAlone":
        self._socket, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            with theirs, os.fdopen(new_activity_file()) as activity:
                descriptors = [theirs.fileno(), activity.fileno()]
                command = [sys.executable, "-m", "worker.engine", "--fd", str(descriptors[0])]
                command += ["--activity-fd", str(descriptors[1]), "--engines", "1"]
                command += ["--settings", self._settings.model_dump_json()]
                engine = started(command, as_many_threads(), pass_fds=descriptors)
                self.pid = stack.enter_context(engine).pid
            stack.callback(self._cut_off)
            self._facts: BinaryIO = self._socket.makefile("rb")
            self._socket.sendall(encode_frame(LoadModel(_MODEL, self._folder)))
            self.wait_for(ModelLoaded)
            self._until_exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._until_exit.close()

    def _cut_off(self) -> None:
        """Without an agent an engine ends at once, whatever it does."""
        with contextlib.suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def submit(
        self,
        prompt: str | Sequence[int],
        max_tokens: int,
        how: Sampling | None = None,
        **fields: Any,
    ) -> int:
        """Begin a sequence, greedy if not told otherwise; its number.

        Args:
            prompt: token ids, or what a user says.
            fields: others of `SubmitSequence`.
        """
        number = next(self._numbers)
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else None
        ids = None if isinstance(prompt, str) else list(prompt)
        how = how or sampling()
        order = SubmitSequence(number, _MODEL, said, None, ids, max_tokens, [], [], how, **fields)
        self._socket.sendall(encode_frame(order))
        return number

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        max_tokens: int,
        samplings: Sequence[Sampling] = (),
        fields: Sequence[dict[str, Any]] = (),
    ) -> tuple[Run, list[list[int]]]:
        """Generate all at once; arguments as of `submit`, for each of them."""
        run = Run()
        started = time.perf_counter()
        hows = samplings or [sampling()] * len(prompts)
        more = fields or [{}] * len(prompts)
        numbers = [
            self.submit(prompt, max_tokens, how, **own)
            for prompt, how, own in zip(prompts, hows, more, strict=True)
        ]
        clocks = {number: StreamClock(run) for number in numbers}
        tokens: dict[int, list[int]] = {number: [] for number in numbers}
        running = set(numbers)
        while running:
            for output in self.wait_for(StepCompleted).outputs:
                clocks[output.sequence].tick(len(output.token_ids))
                tokens[output.sequence] += output.token_ids
                if output.finish_reason is not None:
                    running.remove(output.sequence)
        run.seconds = time.perf_counter() - started
        return run, [tokens[number] for number in numbers]

    def cancel_all(self, sequences: Sequence[int]) -> None:
        """Cancel sequences, and return when the engine has nothing more of them to send."""
        for sequence in sequences:
            self._socket.sendall(encode_frame(CancelSequence(sequence)))
        (marker,) = (self.submit([1], 1),)
        while all(output.sequence != marker for output in self.wait_for(StepCompleted).outputs):
            pass

    def wait_for(self, kind: type[F]) -> F:
        """The next fact of a kind."""
        while not isinstance(fact := self.next_fact(), kind):
            if isinstance(fact, SequenceRejected):
                raise SystemExit(f"the engine refused a sequence: {fact.message}")
        return fact

    def next_fact(self) -> Fact:
        header = self._facts.read(HEADER.size)
        if not header:
            raise SystemExit("the engine ended")
        fact = cast(Fact, decode_body(self._facts.read(frame_length(header))))
        self.received_at = time.perf_counter()
        if isinstance(fact, EngineMeasured):
            self.measured = fact
        return fact


def sampling(temperature: float = 0.0, top_p: float = 1.0, seed: int = 0) -> Sampling:
    """How tokens are drawn, all else as by default."""
    return Sampling(temperature, top_p, 0, 0.0, 1.0, 0.0, 0.0, {}, seed, None)
