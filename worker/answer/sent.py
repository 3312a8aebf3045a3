"""How much of an answer its client has."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from worker.answer.delta import CallDelta, Delta


@dataclass(frozen=True, slots=True)
class DeliveredText:
    """Characters of each channel; `tool_calls` has those of each call's arguments."""

    text: int = 0
    reasoning: int = 0
    tool_calls: Sequence[int] = ()


class DeliveredFilter:
    """Leaves out what a client has already; what is new passes."""

    def __init__(self, sent: DeliveredText) -> None:
        self._text = sent.text
        self._reasoning = sent.reasoning
        self._calls = list(sent.tool_calls)
        self._begun = len(self._calls)

    def unsent(self, delta: Delta) -> Delta:
        text, self._text = _behind(delta.text, self._text)
        reasoning, self._reasoning = _behind(delta.reasoning, self._reasoning)
        calls = [unsent for call in delta.calls if (unsent := self._unsent_call(call))]
        return Delta(text, reasoning, calls, delta.warnings)

    def _unsent_call(self, call: CallDelta) -> CallDelta | None:
        if call.index >= self._begun:
            return call
        arguments, self._calls[call.index] = _behind(call.arguments, self._calls[call.index])
        return replace(call, arguments=arguments, name=None) if arguments else None


def _behind(text: str, skip: int) -> tuple[str, int]:
    """A text without its first characters, and how many more are to be left out."""
    skipped = min(skip, len(text))
    return text[skipped:], skip - skipped
