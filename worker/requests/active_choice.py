"""One choice of a request: one answer, and one sequence of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared.messages.stream import FinishReason
from worker.link.facts import SequenceOutput


@dataclass(slots=True)
class ActiveChoice:
    """
    Attributes:
        token_ids: tokens of the answer, including those of earlier attempts.
        text_length: characters of all channels, up to `end_index`.
        end_index: token index up to which this worker has output the answer.
        reasoning_tokens: reasoning tokens up to `end_index`.
        known_ids: tokens that an earlier attempt generated and the leader knows.
        known_text: number of characters of `known_ids`, if known.
        known_end: finish reason of the earlier attempt, if it finished this choice.
    """

    number: int
    sequence: int
    token_ids: list[int]
    text_length: int
    end_index: int = 0
    reasoning_tokens: int = 0
    known_ids: Sequence[int] = ()
    known_text: int | None = None
    known_end: FinishReason | None = None
    finish_reason: FinishReason | None = None

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def add(self, output: SequenceOutput) -> None:
        """Add an output; tokens that are already known are not counted twice."""
        end = output.index + len(output.token_ids)
        self.token_ids += output.token_ids[len(output.token_ids) - max(0, end - self.tokens) :]
        self.end_index = end
        self.text_length += output_characters(output)
        self.reasoning_tokens = output.reasoning_tokens
        self.finish_reason = output.finish_reason

    @property
    def text_sent(self) -> int | None:
        """Number of characters that `token_ids` made. None if unknown, or if the end of the answer
        may have added characters that belong to no token."""
        if self.finished or self.end_index < len(self.known_ids):
            return self.known_text
        return self.text_length

    def is_known(self, output: SequenceOutput) -> bool:
        """Whether an output only repeats what an earlier attempt generated."""
        if output.finish_reason is not None and not output.token_ids:
            return self.known_end is not None
        return 0 < output.index + len(output.token_ids) <= len(self.known_ids)

    def differs(self, output: SequenceOutput) -> bool:
        """Whether an output, already added, differs from what an earlier attempt generated."""
        end = output.index + len(output.token_ids)
        if output.token_ids != list(self.known_ids[output.index : end]):
            return True
        at_known_end = end == len(self.known_ids) and output.finish_reason is None
        return at_known_end and self.known_text not in (None, self.text_length)


def output_characters(output: SequenceOutput) -> int:
    """Return the number of characters of an output: content, reasoning and tool calls."""
    calls = sum(len(call.arguments) for call in output.calls)
    return len(output.text) + len(output.reasoning) + calls
