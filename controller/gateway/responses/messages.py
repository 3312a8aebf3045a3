"""What the items of a conversation mean to the cluster: its messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.gateway.responses.items import (
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    ReasoningItem,
    joined,
)
from controller.gateway.responses.names import flat_name, wrapped_input
from controller.gateway.responses.sealing import unseal
from shared.external_model import ExternalModel

MAX_REASONING_BYTES = 2_000_000
"""Of all that was packed in a conversation."""


def messages_of(items: Sequence[ExternalModel]) -> list[dict[str, Any]]:
    """Reasoning, text and calls that follow one another are one answer of the assistant's.

    Raises:
        RequestError: what is packed in it is too much.
    """
    conversation = _Conversation()
    for item in items:
        conversation.add(item)
    return conversation.end()


@dataclass(slots=True)
class _Answer:
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> dict[str, Any] | None:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.content)}
        if reasoning := "".join(self.reasoning):
            message["reasoning"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message if len(message) > 2 or message["content"] else None


class _Conversation:
    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._answer = _Answer()
        self._left_bytes = MAX_REASONING_BYTES

    def add(self, item: ExternalModel) -> None:
        """A model thinks first and calls last: what it could not have said in the same answer
        begins another."""
        match item:
            case ReasoningItem():
                if self._answer.content or self._answer.calls:
                    self._end_answer()
                self._answer.reasoning.append(self._thought(item))
            case MessageItem(role="assistant"):
                if self._answer.calls:
                    self._end_answer()
                self._answer.content.append(joined(item.content))
            case FunctionCallItem():
                self._call(item, item.arguments)
            case CustomCallItem():
                self._call(item, wrapped_input(item.input))
            case MessageItem():
                self._turn({"role": item.role, "content": joined(item.content)})
            case CallOutputItem():
                text = joined(item.output)
                self._turn({"role": "tool", "tool_call_id": item.call_id, "content": text})

    def end(self) -> list[dict[str, Any]]:
        self._end_answer()
        return self._messages

    def _turn(self, message: dict[str, Any]) -> None:
        self._end_answer()
        self._messages.append(message)

    def _end_answer(self) -> None:
        if (message := self._answer.message()) is not None:
            self._messages.append(message)
        self._answer = _Answer()

    def _call(self, item: FunctionCallItem | CustomCallItem, arguments: str) -> None:
        function = {"name": flat_name(item.name, item.namespace), "arguments": arguments}
        self._answer.calls.append({"id": item.call_id, "type": "function", "function": function})

    def _thought(self, item: ReasoningItem) -> str:
        """All of it where a gateway packed it, else what can be read."""
        if item.encrypted_content:
            found = unseal(item.encrypted_content, most_bytes=self._left_bytes)
            if found is not None:
                self._left_bytes -= len(found.encode(errors="surrogatepass"))
                return found
        return joined(item.content or item.summary or "")
