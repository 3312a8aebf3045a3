"""Assembles a stream from its messages: a state machine without I/O.

Drops duplicates, orders early messages, and ignores messages of attempts below the highest one
and messages after the end. Reports from which index tokens are missing.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from shared.client.answer import PartialChoice
from shared.errors import StreamFailed
from shared.ids import RequestId, WorkerId
from shared.messages.request import SentCharacters
from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    FailedMessage,
    StatusMessage,
    StatusName,
    StreamMessage,
    Timings,
    Usage,
)

_MAX_EARLY = 100_000


class StreamAssembler:
    """The state of one stream, as its client knows it.

    Attributes:
        status: the last one received; None before the first message.
        usage: of the prompt from the first token on, of everything at the end.
        warnings: sentences for people, in the terminal message.
        done: the end was received; `timings` is set unless it was an error, and `route` if it was
            requested.
    """

    def __init__(self, request_id: RequestId, *, choices: int = 1, first_index: int = 0) -> None:
        """`first_index` is that of the first token to receive, above 0 for a resumed stream."""
        self.request_id = request_id
        self.status: StatusName | None = None
        self.progress: float | None = None
        self.seed: int | None = None
        self.worker: WorkerId | None = None
        self.attempt = 0
        self.done = False
        self.usage: Usage | None = None
        self.timings: Timings | None = None
        self.warnings: tuple[str, ...] = ()
        self.route: dict[str, Any] | None = None
        self._expected_choices = choices
        self._first_index = first_index
        self._choices: dict[int, _Choice] = {}
        self._early = 0
        self._end: DoneMessage | None = None  # arrived before some of the tokens

    @property
    def received_any(self) -> bool:
        return self.status is not None

    @property
    def started(self) -> bool:
        """Whether any output was received."""
        return bool(self._choices)

    @property
    def answer(self) -> PartialChoice:
        """The first choice so far."""
        choice = self._choices.get(0)
        return choice.answer if choice is not None else PartialChoice()

    @property
    def received_answer(self) -> tuple[list[int], SentCharacters] | None:
        """The received tokens of a single answer, and their number of characters; None if there
        are several choices."""
        if self._expected_choices > 1:
            return None
        choice = self._choices.get(0)
        return (choice.token_ids if choice is not None else []), self.answer.characters

    def reset_attempts(self, down_to: int = 0) -> None:
        """Accept attempts from this number on: the process that serves the request now has started
        to count again."""
        self._start_attempt(down_to)

    @property
    def missing_from(self) -> int | None:
        """The index from which tokens of some choice are missing; None if no gap is known."""
        if self.done or (self._early == 0 and self._end is None):
            return None
        return self.resend_from

    @property
    def resend_from(self) -> int:
        """The first index that a resend must include."""
        unfinished = [c.expected for c in self._choices.values() if not c.finished]
        return min(unfinished, default=self._first_index)

    def is_current(self, message: StreamMessage) -> bool:
        """Whether a message belongs to this stream, and not to an abandoned attempt."""
        return message.request_id in (self.request_id, None) and message.attempt >= self.attempt

    def take(self, message: StreamMessage) -> list[ChoiceOutput]:
        """Process a message; return the new outputs, and early ones that are in order now.

        Raises:
            StreamFailed: the message ends the stream with an error, or contradicts earlier ones.
        """
        if self.done or not self.is_current(message):
            return []
        if message.attempt > self.attempt:
            self._start_attempt(message.attempt)
        self.worker = message.worker or self.worker
        match message:
            case StatusMessage():
                self.status, self.progress = message.status, message.progress
                self.seed = message.seed if message.seed is not None else self.seed
                return []
            case ChunkMessage():
                self.status, self.progress = "running", None
                self.usage = self.usage or message.usage
                output = message.output
                ends = output.finish_reason is not None
                return self._join_all((self._aligned_end(output) if ends else output,))
            case DoneMessage():
                self.status = "running"
                self._end = message
                return self._join_all([self._aligned_end(output) for output in message.outputs])
            case FailedMessage():
                self.done = True
                raise message.error.to_exception()

    def _aligned_end(self, output: ChoiceOutput) -> ChoiceOutput:
        """Return the end of a choice at the index that is expected next. The sender of an end need
        not know all tokens: a controller does not if its client cancels between two workers, nor
        does a worker whose answer ends earlier than that of an earlier attempt. Received tokens
        stay; early ones are dropped."""
        choice = self._choices.get(output.choice)
        if choice is None or choice.finished or output.index > choice.expected:
            return output
        is_known = output.index + len(output.token_ids) <= choice.expected
        if output.token_ids and not is_known:
            return output
        self._early -= len(choice.early)
        choice.early.clear()
        end = replace(output, index=choice.expected)
        if not output.token_ids:
            return end
        return replace(end, token_ids=[], text="", logprobs=None, reasoning=None, tool_calls=None)

    def _start_attempt(self, attempt: int) -> None:
        """Drop early messages: the gap before them may never be filled by the new attempt."""
        self.attempt = attempt
        self._early, self._end = 0, None
        for choice in self._choices.values():
            choice.early.clear()

    def _join_all(self, outputs: Iterable[ChoiceOutput]) -> list[ChoiceOutput]:
        new = [joined for output in outputs for joined in self._join(output)]
        if self._end is not None and self._is_whole(self._end):
            self.done, self.timings = True, self._end.timings
            self.warnings = self._end.warnings
            counted = max(self._end.usage.completion_tokens, self._received)
            self.usage = replace(self._end.usage, completion_tokens=counted)
            self.route = self._end.route
        return new

    def _join(self, output: ChoiceOutput) -> list[ChoiceOutput]:
        choice = self._choices.setdefault(output.choice, _Choice(self._first_index))
        if output.index > choice.expected:
            self._store_early(choice, output)
            return []
        joined = []
        pending: ChoiceOutput | None = output
        while pending is not None:
            if choice.accept(pending):
                joined.append(pending)
            pending = choice.early.pop(choice.expected, None)
            self._early -= pending is not None
        return joined

    def _store_early(self, choice: "_Choice", output: ChoiceOutput) -> None:
        if output.index in choice.early:
            return
        if self._early == _MAX_EARLY:
            self.done = True
            raise StreamFailed(
                f"token {choice.expected} of choice {output.choice} is missing, and "
                f"{_MAX_EARLY} messages arrived after it",
                code="stream_broken",
            )
        choice.early[output.index] = output
        self._early += 1

    def _is_whole(self, end: DoneMessage) -> bool:
        """Whether everything before the end was received: its tokens, and the ends of the other
        choices (the end of a single choice is in the terminal message)."""
        choices = self._choices.values()
        if self._expected_choices > 1 and (
            len(choices) < self._expected_choices or not all(c.finished for c in choices)
        ):
            return False
        return self._early == 0 and self._received >= end.usage.completion_tokens

    @property
    def _received(self) -> int:
        return sum(choice.expected for choice in self._choices.values())


class _Choice:
    """One choice: the index of the token expected next, the answer so far, and early outputs."""

    def __init__(self, first_index: int) -> None:
        self.expected = first_index
        self.finished = False
        self.token_ids: list[int] = []
        self.answer = PartialChoice()
        self.early: dict[int, ChoiceOutput] = {}

    def accept(self, output: ChoiceOutput) -> bool:
        """Append an output that begins no later than expected; return whether it is new.

        Raises:
            StreamFailed: only a part of the output is new, and its text cannot be cut.
        """
        end = output.index + len(output.token_ids)
        if end < self.expected or (end == self.expected and (output.token_ids or self.finished)):
            return False
        if output.index < self.expected:
            raise StreamFailed(
                f"tokens {output.index} to {end - 1} of choice {output.choice} arrived in pieces "
                "that do not fit together",
                code="stream_broken",
            )
        self.expected = end
        self.token_ids += output.token_ids
        self.answer.add(output)
        self.finished = output.finish_reason is not None
        return True
