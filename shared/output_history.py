"""The outputs of a stream, for clients that missed some or subscribed late."""

from collections import deque
from collections.abc import Iterator

from shared.messages.stream import ChoiceOutput

MAX_BYTES = 8 * 1024 * 1024
_OUTPUT_BYTES = 150
_TOKEN_BYTES = 10
_CALL_BYTES = 300
_LOGPROB_BYTES = 100


class OutputHistory:
    """The outputs of all choices, those of each choice in order.

    Above `max_bytes` the oldest outputs are dropped; a resend then starts at the oldest one left.

    Attributes:
        whole: no output was dropped.
    """

    def __init__(self, choices: int, *, max_bytes: int | None = MAX_BYTES) -> None:
        self._outputs: list[deque[ChoiceOutput]] = [deque() for _ in range(choices)]
        self._max_bytes = max_bytes
        self._bytes = 0
        self.whole = True

    def append(self, output: ChoiceOutput) -> None:
        self._outputs[output.choice].append(output)
        self._bytes += _size(output)
        while self._max_bytes is not None and self._bytes > self._max_bytes:
            longest = max(self._outputs, key=len)
            self._bytes -= _size(longest.popleft())
            self.whole = False

    def since(self, choice: int | None, index: int) -> Iterator[ChoiceOutput]:
        """Yield the outputs that reach a token index or end a choice: of one choice, or of all."""
        for number, outputs in enumerate(self._outputs):
            if choice in (None, number):
                for output in outputs:
                    end = output.index + len(output.token_ids)
                    if end > index or output.finish_reason is not None:
                        yield output

    def joined(self) -> tuple[ChoiceOutput, ...]:
        """Return each choice as one output; each must have at least one."""
        return tuple(ChoiceOutput.joined(outputs) for outputs in self._outputs)


def _size(output: ChoiceOutput) -> int:
    """Return the approximate size of an output in memory, in bytes."""
    logprobs = sum(1 + len(entry.get("top", ())) for entry in output.logprobs or ())
    return (
        _OUTPUT_BYTES
        + len(output.text)
        + len(output.reasoning or "")
        + sum(_CALL_BYTES + len(call["function"]["arguments"]) for call in output.tool_calls or ())
        + _TOKEN_BYTES * len(output.token_ids)
        + _LOGPROB_BYTES * logprobs
        + len(output.embedding or "")
    )
