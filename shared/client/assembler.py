"""Puts a stream together from its messages: a state machine without I/O.

Drops what comes twice, puts into order what comes early, ignores attempts lower than the
highest seen and all that comes after the end. What is missing can be asked for.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from shared.client.answer import PartialAnswer
from shared.errors import StreamFailed
from shared.ids import RequestId, WorkerId
from shared.messages.request import SentCharacters
from shared.messages.stream import (
    ChoiceOutput,
    Chunk,
    Done,
    Failed,
    Status,
    StatusName,
    StreamMessage,
    Timings,
    Usage,
)

_MAX_EARLY = 100_000


class Assembler:
    """The state of one stream, as its client knows it.

    Attributes:
        status: the last one heard; None before the first message.
        usage: of the prompt from the first token on, of everything at the end.
        warnings: what the end says for people.
        done: the end has come; `timings` is set unless it was an error, and `route` where that was
            asked for.
    """

    def __init__(self, request_id: RequestId, *, choices: int = 1, first_index: int = 0) -> None:
        """`first_index` is that of the first token to come, above 0 for a resumed stream."""
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
        self._end: Done | None = None  # came before some of the tokens

    @property
    def heard(self) -> bool:
        return self.status is not None

    @property
    def started(self) -> bool:
        """Whether any output came."""
        return bool(self._choices)

    @property
    def answer(self) -> PartialAnswer:
        """What has come of the first choice."""
        choice = self._choices.get(0)
        return choice.answer if choice is not None else PartialAnswer()

    @property
    def heard_answer(self) -> tuple[list[int], SentCharacters] | None:
        """Of the only answer the tokens that came, and how many characters they made; None where
        there are several."""
        if self._expected_choices > 1:
            return None
        choice = self._choices.get(0)
        return (choice.token_ids if choice is not None else []), self.answer.characters

    def forget_attempts(self, down_to: int = 0) -> None:
        """Whoever serves the request from now on counts its attempts anew, and is at this one."""
        self._begin(down_to)

    @property
    def missing_from(self) -> int | None:
        """The index from which tokens of some choice are missing; None where none are known
        to be."""
        if self.done or (self._early == 0 and self._end is None):
            return None
        return self.resend_from

    @property
    def resend_from(self) -> int:
        """The index from which a resend would bring something new."""
        unfinished = [c.expected for c in self._choices.values() if not c.finished]
        return min(unfinished, default=self._first_index)

    def counts(self, message: StreamMessage) -> bool:
        """Whether a message belongs to this stream, and to no attempt that was given up."""
        return message.request_id in (self.request_id, None) and message.attempt >= self.attempt

    def take(self, message: StreamMessage) -> list[ChoiceOutput]:
        """What is new in a message, and what it makes complete.

        Raises:
            StreamFailed: the message is the stream's bad end, or does not fit to the others.
        """
        if self.done or not self.counts(message):
            return []
        if message.attempt > self.attempt:
            self._begin(message.attempt)
        self.worker = message.worker or self.worker
        match message:
            case Status():
                self.status, self.progress = message.status, message.progress
                self.seed = message.seed if message.seed is not None else self.seed
                return []
            case Chunk():
                self.status, self.progress = "running", None
                self.usage = self.usage or message.usage
                output = message.output
                ends = output.finish_reason is not None and not output.token_ids
                return self._new((self._last_word(output) if ends else output,))
            case Done():
                self.status = "running"
                self._end = message
                return self._new([self._last_word(output) for output in message.outputs])
            case Failed():
                self.done = True
                raise message.error.to_exception()

    def _last_word(self, output: ChoiceOutput) -> ChoiceOutput:
        """Who ends a stream need not know all of its tokens: a controller whose client cancels
        between two workers does not. What came before the end stays, what came early goes."""
        choice = self._choices.get(output.choice)
        if choice is None or choice.finished or output.token_ids or output.index > choice.expected:
            return output
        self._early -= len(choice.early)
        choice.early.clear()
        return replace(output, index=choice.expected)

    def _begin(self, attempt: int) -> None:
        """Another worker took over: what came early from the last one may never be joined."""
        self.attempt = attempt
        self._early, self._end = 0, None
        for choice in self._choices.values():
            choice.early.clear()

    def _new(self, outputs: Iterable[ChoiceOutput]) -> list[ChoiceOutput]:
        new = [joined for output in outputs for joined in self._join(output)]
        if self._end is not None and self._is_whole(self._end):
            self.done, self.timings = True, self._end.timings
            self.warnings = self._end.warnings
            counted = max(self._end.usage.completion_tokens, self._came)
            self.usage = replace(self._end.usage, completion_tokens=counted)
            self.route = self._end.route
        return new

    def _join(self, output: ChoiceOutput) -> list[ChoiceOutput]:
        choice = self._choices.setdefault(output.choice, _Choice(self._first_index))
        if output.index > choice.expected:
            self._keep_early(choice, output)
            return []
        joined = []
        pending: ChoiceOutput | None = output
        while pending is not None:
            if choice.accept(pending):
                joined.append(pending)
            pending = choice.early.pop(choice.expected, None)
            self._early -= pending is not None
        return joined

    def _keep_early(self, choice: "_Choice", output: ChoiceOutput) -> None:
        if output.index in choice.early:
            return
        if self._early == _MAX_EARLY:
            self.done = True
            raise StreamFailed(
                f"token {choice.expected} of choice {output.choice} is missing, and "
                f"{_MAX_EARLY} messages came after it",
                code="stream_broken",
            )
        choice.early[output.index] = output
        self._early += 1

    def _is_whole(self, end: Done) -> bool:
        """Whether all came that belongs before the end: its tokens, and the last words of the
        other choices (of a single choice they come with the end)."""
        choices = self._choices.values()
        if self._expected_choices > 1 and (
            len(choices) < self._expected_choices or not all(c.finished for c in choices)
        ):
            return False
        return self._early == 0 and self._came >= end.usage.completion_tokens

    @property
    def _came(self) -> int:
        return sum(choice.expected for choice in self._choices.values())


class _Choice:
    """One choice: the index of the token expected next, what came, and what came before its
    turn."""

    def __init__(self, first_index: int) -> None:
        self.expected = first_index
        self.finished = False
        self.token_ids: list[int] = []
        self.answer = PartialAnswer()
        self.early: dict[int, ChoiceOutput] = {}

    def accept(self, output: ChoiceOutput) -> bool:
        """Whether the output is new; it does not begin after what is expected.

        Raises:
            StreamFailed: only a part of it is new, and its text cannot be cut.
        """
        end = output.index + len(output.token_ids)
        if end < self.expected or (end == self.expected and (output.token_ids or self.finished)):
            return False
        if output.index < self.expected:
            raise StreamFailed(
                f"tokens {output.index} to {end - 1} of choice {output.choice} came in pieces "
                "that do not fit together",
                code="stream_broken",
            )
        self.expected = end
        self.token_ids += output.token_ids
        self.answer.add(output)
        self.finished = output.finish_reason is not None
        return True
