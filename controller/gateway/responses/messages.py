"""Converts the items of a conversation to the cluster's messages."""

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
    unpack,
)
from controller.gateway.responses.tool_names import flat_name, wrapped_input
from shared.codec import StrictInput

MAX_REASONING_BYTES = 2_000_000
"""Maximum size of all unpacked reasoning of a conversation."""


def messages_of(items: Sequence[StrictInput]) -> list[dict[str, Any]]:
    """Return messages; consecutive reasoning, text and calls become one message of the assistant.

    Raises:
        RequestError: `payload_too_large`: the unpacked reasoning is too large.
    """
    builder = _MessageBuilder()
    for item in items:
        builder.add(item)
    return builder.finish()


@dataclass(slots=True)
class _AssistantMessage:
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


class _MessageBuilder:
    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._assistant = _AssistantMessage()
        self._remaining_bytes = MAX_REASONING_BYTES

    def add(self, item: StrictInput) -> None:
        """Add an item. A model's answer has reasoning first and calls last: an item out of this
        order begins another message."""
        match item:
            case ReasoningItem():
                if self._assistant.content or self._assistant.calls:
                    self._end_assistant_message()
                self._assistant.reasoning.append(self._reasoning(item))
            case MessageItem(role="assistant"):
                if self._assistant.calls:
                    self._end_assistant_message()
                self._assistant.content.append(joined(item.content))
            case FunctionCallItem():
                self._call(item, item.arguments)
            case CustomCallItem():
                self._call(item, wrapped_input(item.input))
            case MessageItem():
                self._add_message({"role": item.role, "content": joined(item.content)})
            case CallOutputItem():
                text = joined(item.output)
                self._add_message({"role": "tool", "tool_call_id": item.call_id, "content": text})

    def finish(self) -> list[dict[str, Any]]:
        self._end_assistant_message()
        return self._messages

    def _add_message(self, message: dict[str, Any]) -> None:
        self._end_assistant_message()
        self._messages.append(message)

    def _end_assistant_message(self) -> None:
        if (message := self._assistant.message()) is not None:
            self._messages.append(message)
        self._assistant = _AssistantMessage()

    def _call(self, item: FunctionCallItem | CustomCallItem, arguments: str) -> None:
        function = {"name": flat_name(item.name, item.namespace), "arguments": arguments}
        self._assistant.calls.append({"id": item.call_id, "type": "function", "function": function})

    def _reasoning(self, item: ReasoningItem) -> str:
        """Return the whole reasoning if a gateway packed it, else the readable text."""
        if item.encrypted_content:
            reasoning = unpack(item.encrypted_content, max_bytes=self._remaining_bytes)
            if reasoning is not None:
                self._remaining_bytes -= len(reasoning.encode(errors="surrogatepass"))
                return reasoning
        return joined(item.content or item.summary or "")
