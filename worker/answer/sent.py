"""How much of an answer the client has received."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from worker.answer.delta import AnswerDelta, CallDelta


@dataclass(frozen=True, slots=True)
class DeliveredLengths:
    """Number of characters per channel; `tool_calls` has one count per call, of its arguments."""

    text: int = 0
    reasoning: int = 0
    tool_calls: Sequence[int] = ()


class DeliveredTextFilter:
    """Removes from deltas what the client has already."""

    def __init__(self, sent: DeliveredLengths) -> None:
        self._text = sent.text
        self._reasoning = sent.reasoning
        self._calls = list(sent.tool_calls)
        self._begun = len(self._calls)

    def unsent(self, delta: AnswerDelta) -> AnswerDelta:
        text, self._text = _without_first(delta.text, self._text)
        reasoning, self._reasoning = _without_first(delta.reasoning, self._reasoning)
        calls = [unsent for call in delta.calls if (unsent := self._unsent_call(call))]
        return AnswerDelta(text, reasoning, calls, delta.warnings)

    def _unsent_call(self, call: CallDelta) -> CallDelta | None:
        if call.index >= self._begun:
            return call
        skip = self._calls[call.index]
        arguments, self._calls[call.index] = _without_first(call.arguments, skip)
        return replace(call, arguments=arguments, name=None) if arguments else None


def _without_first(text: str, skip: int) -> tuple[str, int]:
    """Return the text without its first characters, and how many characters are left to skip."""
    skipped = min(skip, len(text))
    return text[skipped:], skip - skipped
