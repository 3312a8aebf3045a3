"""An engine without a process or a model: each token is a function of seed and position."""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Literal

from shared.messages.stream import FinishReason
from tests.worker.recording_engine import RecordingEngine
from worker.link.facts import PrefillStarted, SequenceOutput, SequenceRejected, StepCompleted
from worker.link.orders import CancelSequence, Order, SubmitSequence
from worker.scheduling.scheduler import RequestScheduler

Word = Literal["token", "end", "refusal"]
EnginePace = Literal["usual", "at once", "idle"]
TOKEN_S = 0.1
ANSWER_TOKENS = 3


def token_of(seed: int, index: int) -> int:
    """The token that every worker draws there."""
    return (seed + 31 * index) % 1000


def answer_of(seed: int) -> list[int]:
    """All tokens of an answer."""
    return [token_of(seed, index) for index in range(ANSWER_TOKENS)]


@dataclass(slots=True)
class _Sequence:
    """
    Attributes:
        tokens: of the answer so far, those of earlier attempts too.
        known, ended: of an earlier attempt, to be put out again first.
        cancelled: the next step ends it.
    """

    seed: int
    tokens: int = 0
    known: Sequence[int] = ()
    ended: FinishReason | None = None
    cancelled: bool = False
    began: bool = False


class SimulatedEngine(RecordingEngine):
    """Generates a short answer for each sequence, a token at a time.

    Attributes:
        pace: at which tokens come; none come by themselves from an idle one.
    """

    def __init__(self, context: Context) -> None:
        """In `context` its worker is told of tokens."""
        super().__init__()
        self._context = context
        self.pace: EnginePace = "usual"
        self._sequences: dict[int, _Sequence] = {}
        self._scheduler: RequestScheduler | None = None

    @property
    def sequences(self) -> list[int]:
        """Those that it has."""
        return list(self._sequences)

    def tell(self, scheduler: RequestScheduler) -> None:
        """Who is told of what it does from now on."""
        self._scheduler = scheduler

    def send(self, order: Order) -> None:
        match order:
            case SubmitSequence():
                seed = order.sampling.seed
                sequence = _Sequence(seed, len(order.resumed_ids), order.replayed_ids, order.ended)
                self._sequences[order.sequence] = sequence
                self._soon(order.sequence)
            case CancelSequence() if order.sequence in self._sequences:
                self._sequences[order.sequence].cancelled = True
                self._soon(order.sequence)
            case _:
                pass

    def go_on(self) -> None:
        """With all it has."""
        if self.pace == "idle":
            self.pace = "usual"
        for number in self._sequences:
            self._soon(number)

    def lose_all(self) -> None:
        """As when its process ended."""
        self._sequences.clear()

    def say(self, number: int, word: Word) -> None:
        """The next token of a sequence, maybe the last one, or why there are none."""
        sequence = self._sequences[number]
        assert self._scheduler is not None
        if sequence.known or sequence.ended:
            self._replay(number, sequence)
            return
        if word == "refusal":
            del self._sequences[number]
            refused = SequenceRejected(number, "request_failed", "the engine does not like it")
            self._scheduler.on_fact(self, refused)
            return
        if sequence.cancelled:
            output = SequenceOutput(number, sequence.tokens, [], "", "cancelled")
        else:
            self._begin(number, sequence)
            index, sequence.tokens = sequence.tokens, sequence.tokens + 1
            last = word == "end" or sequence.tokens >= ANSWER_TOKENS
            output = _output(number, sequence.seed, index, "stop" if last else None)
        if output.finish_reason is not None:
            del self._sequences[number]
        self._scheduler.on_fact(self, StepCompleted([output]))

    def _begin(self, number: int, sequence: _Sequence) -> None:
        if not sequence.began and self._scheduler is not None:
            sequence.began = True
            self._scheduler.on_fact(self, PrefillStarted(number, 5))

    def _replay(self, number: int, sequence: _Sequence) -> None:
        """Put out again what an earlier attempt generated."""
        assert self._scheduler is not None
        self._begin(number, sequence)
        first, known, ended = sequence.tokens, sequence.known, sequence.ended
        sequence.tokens += len(known)
        sequence.known, sequence.ended = (), None
        outputs = [
            SequenceOutput(number, first + offset, [token], f"{token} ")
            for offset, token in enumerate(known)
        ]
        if ended is not None:
            outputs.append(SequenceOutput(number, sequence.tokens, [], "", ended))
            del self._sequences[number]
        self._scheduler.on_fact(self, StepCompleted(outputs))

    def _soon(self, number: int) -> None:
        seconds = 0 if self.pace == "at once" else TOKEN_S
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._by_itself, number, context=self._context)

    def _by_itself(self, number: int) -> None:
        sequence = self._sequences.get(number)
        if sequence is None:
            return
        if sequence.known or sequence.ended:
            self._replay(number, sequence)
        elif self.pace != "idle" or sequence.cancelled:
            self.say(number, "token")
        else:
            return
        if number in self._sequences:
            self._soon(number)


def _output(
    number: int, seed: int, index: int, finish_reason: FinishReason | None
) -> SequenceOutput:
    token = token_of(seed, index)
    return SequenceOutput(number, index, [token], f"{token} ", finish_reason)
