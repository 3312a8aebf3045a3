"""An engine without a process or a model."""

import asyncio
from contextvars import Context
from dataclasses import dataclass
from typing import Literal

from tests.worker.recording_engine import RecordingEngine
from worker.link.messages import (
    Cancel,
    Order,
    Output,
    SequenceRefused,
    SequenceStarted,
    StepCompleted,
    Submit,
)
from worker.scheduler import Scheduler

Word = Literal["token", "end", "refusal"]
EnginePace = Literal["usual", "at once", "idle"]
TOKEN_S = 0.1
ANSWER_TOKENS = 2


@dataclass(slots=True)
class _Sequence:
    """
    Attributes:
        tokens: of the answer so far.
        cancelled: the next step ends it.
    """

    tokens: int = 0
    cancelled: bool = False


class VirtualEngine(RecordingEngine):
    """Generates a short answer for each sequence, a token at a time; its text tells whose it is.

    Attributes:
        pace: at which tokens come; none come by themselves from an idle one.
    """

    def __init__(self, mark: str, context: Context) -> None:
        """`mark` stands in the text of all tokens; in `context` its worker is told of them."""
        super().__init__()
        self._context = context
        self.pace: EnginePace = "usual"
        self._mark = mark
        self._sequences: dict[int, _Sequence] = {}
        self._scheduler: Scheduler | None = None

    @property
    def sequences(self) -> list[int]:
        """Those that it has."""
        return list(self._sequences)

    def tell(self, scheduler: Scheduler) -> None:
        """Who is told of what it does from now on."""
        self._scheduler = scheduler

    def send(self, order: Order) -> None:
        match order:
            case Submit():
                self._sequences[order.sequence] = _Sequence()
                self._soon(order.sequence)
            case Cancel() if order.sequence in self._sequences:
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
        if word == "refusal":
            del self._sequences[number]
            refused = SequenceRefused(number, "request_failed", "the engine does not like it")
            self._scheduler.on_fact(self, refused)
            return
        if sequence.cancelled:
            output = Output(number, sequence.tokens, [], "", "cancelled")
        else:
            if sequence.tokens == 0:
                self._scheduler.on_fact(self, SequenceStarted(number, 5))
            index, sequence.tokens = sequence.tokens, sequence.tokens + 1
            last = word == "end" or sequence.tokens >= ANSWER_TOKENS
            output = Output(number, index, [index], f"{self._mark} ", "stop" if last else None)
        if output.finish_reason is not None:
            del self._sequences[number]
        self._scheduler.on_fact(self, StepCompleted([output]))

    def _soon(self, number: int) -> None:
        seconds = 0 if self.pace == "at once" else TOKEN_S
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._by_itself, number, context=self._context)

    def _by_itself(self, number: int) -> None:
        sequence = self._sequences.get(number)
        if sequence is None or (self.pace == "idle" and not sequence.cancelled):
            return
        self.say(number, "token")
        if number in self._sequences:
            self._soon(number)
