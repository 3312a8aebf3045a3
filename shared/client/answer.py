"""One choice of an answer, assembled from its outputs as they arrive."""

from collections.abc import Mapping
from typing import Any

from shared.messages.request import SentCharacters
from shared.messages.stream import ChoiceOutput, assistant_turn, plain_calls

_MAX_PIECES = 256
"""Pieces are joined at this number: short strings take more memory than their characters."""


class PartialChoice:
    """The content, reasoning and tool calls of one choice so far."""

    def __init__(self) -> None:
        self._text = _Pieces()
        self._reasoning = _Pieces()
        self._calls: dict[int, _PartialCall] = {}
        self.finish_reason: str | None = None

    def add(self, output: ChoiceOutput) -> None:
        """Append an output."""
        self._text.add(output.text)
        self._reasoning.add(output.reasoning or "")
        for piece in output.tool_calls or ():
            index = piece["index"]
            if index not in self._calls:
                self._calls[index] = _PartialCall(piece)
            self._calls[index].arguments.add(piece["function"]["arguments"])
        self.finish_reason = output.finish_reason

    @property
    def text(self) -> str:
        return self._text.joined

    @property
    def reasoning(self) -> str:
        return self._reasoning.joined

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Each {"id", "type", "function": {"name", "arguments"}}."""
        return plain_calls(self._calls[index].whole for index in sorted(self._calls))

    @property
    def message(self) -> dict[str, Any]:
        return assistant_turn(self.text, self.reasoning, self.tool_calls)

    @property
    def characters(self) -> SentCharacters:
        """The number of characters so far, per channel."""
        calls = [self._calls[index].arguments.count for index in sorted(self._calls)]
        return SentCharacters(
            text=self._text.count, reasoning=self._reasoning.count, tool_calls=calls
        )


class _Pieces:
    """A text that arrives in pieces; `count` is its number of characters."""

    def __init__(self) -> None:
        self.count = 0
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        if piece:
            self.count += len(piece)
            self._pieces.append(piece)
            if len(self._pieces) == _MAX_PIECES:
                self._pieces = [self.joined]

    @property
    def joined(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]


class _PartialCall:
    """A tool call: its first piece, and the arguments of all pieces."""

    def __init__(self, first: Mapping[str, Any]) -> None:
        self._first = first
        self.arguments = _Pieces()

    @property
    def whole(self) -> dict[str, Any]:
        function = {**self._first["function"], "arguments": self.arguments.joined}
        return {**self._first, "function": function}
