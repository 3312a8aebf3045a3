"""The outputs of an answer so far: of a stream, for clients that missed some or subscribed late; of
an answer in one message, until it is whole."""

from collections import deque
from collections.abc import Iterator

from shared.messages.stream import ChoiceOutput

MAX_BYTES = 8 * 1024 * 1024
_JOINED_AT_ONCE = 64
_OUTPUT_BYTES = 150
_TOKEN_BYTES = 10
_CALL_BYTES = 300
_LOGPROB_BYTES = 100


class OutputHistory:
    """The outputs of all choices, those of each choice in order.

    Above `max_bytes` the oldest outputs of a stream are dropped; a resend then starts at the oldest
    one left. An answer in one message `is_too_large` then. Its outputs are joined as they come,
    since each one costs more memory than its tokens.

    Attributes:
        whole: no output was dropped.
    """

    def __init__(self, choices: int, *, streams: bool = True, max_bytes: int = MAX_BYTES) -> None:
        self._outputs: list[deque[ChoiceOutput]] = [deque() for _ in range(choices)]
        self._single = [0] * choices
        """The number of outputs at the end of each choice that are not joined."""
        self._streams = streams
        self._max_bytes = max_bytes
        self._bytes = 0
        self.whole = True

    @property
    def memory_bytes(self) -> int:
        """About what the outputs take."""
        return self._bytes

    @property
    def is_too_large(self) -> bool:
        """Whether an answer in one message has more bytes than are kept."""
        return not self._streams and self._bytes > self._max_bytes

    def append(self, output: ChoiceOutput) -> None:
        self._outputs[output.choice].append(output)
        self._bytes += _size(output)
        if self._streams:
            self._drop_oldest()
        else:
            self._join_last(output.choice)

    def _drop_oldest(self) -> None:
        while self._bytes > self._max_bytes:
            longest = max(self._outputs, key=len)
            self._bytes -= _size(longest.popleft())
            self.whole = False

    def _join_last(self, choice: int) -> None:
        self._single[choice] += 1
        if self._single[choice] == _JOINED_AT_ONCE:
            outputs = self._outputs[choice]
            last = [outputs.pop() for _ in range(_JOINED_AT_ONCE)][::-1]
            joined = ChoiceOutput.joined(last)
            outputs.append(joined)
            self._bytes += _size(joined) - sum(map(_size, last))
            self._single[choice] = 0

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
