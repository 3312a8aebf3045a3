"""The output items of a response, and their events."""

from collections.abc import Iterator
from typing import Any, Literal

from controller.gateway.openai.answers import token_entries
from controller.gateway.responses.items import pack
from controller.gateway.responses.tool_names import ToolNameMap, unwrapped_input
from shared.messages.stream import ChoiceOutput

Event = dict[str, Any]
Status = Literal["completed", "incomplete"]


class OutputItems:
    """Builds items from an answer's outputs; streamed and complete answers have the same items.

    Args:
        unique: part of all item ids, besides their number.
        summarised: reasoning is sent as a summary, else as the content of its item.
        packed: reasoning items also have `encrypted_content`, for clients to send back.

    Attributes:
        items: the items that have begun.
    """

    def __init__(self, unique: str, names: ToolNameMap, *, summarised: bool, packed: bool) -> None:
        self._unique = unique
        self._names = names
        self._summarised = summarised
        self._packed = packed
        self._open: _Item | None = None
        self.items: list[dict[str, Any]] = []

    def push(self, output: ChoiceOutput) -> Iterator[Event]:
        """Yield the events of a new output."""
        if output.reasoning:
            if not isinstance(self._open, _Reasoning):
                yield from self._begin(_Reasoning(self._id("rs"), self._summarised, self._packed))
            yield from self._indexed(self._item.add(output.reasoning, []))
        logprobs = token_entries(output)
        if output.text or logprobs:
            if not isinstance(self._open, _Message):
                yield from self._begin(_Message(self._id("msg")))
            yield from self._indexed(self._item.add(output.text, logprobs))
        for piece in output.tool_calls or ():
            function = piece["function"]
            if "id" in piece:
                tool = self._names.find(function["name"])
                kind = _CustomCall if tool.kind == "custom" else _FunctionCall
                prefix = "ctc" if tool.kind == "custom" else "fc"
                call = kind(self._id(prefix), piece["id"], tool.name, tool.namespace)
                yield from self._begin(call)
            if function["arguments"]:
                yield from self._indexed(self._item.add(function["arguments"], []))

    def finish(self, status: Status) -> Iterator[Event]:
        """Yield the events after the last output."""
        if not self.items and status == "completed":
            yield from self._begin(_Message(self._id("msg")))
        yield from self._end(status)

    @property
    def _item(self) -> "_Item":
        assert self._open is not None
        return self._open

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._unique}_{len(self.items)}"

    def _begin(self, item: "_Item") -> Iterator[Event]:
        yield from self._end("completed")
        self._open = item
        self.items.append(item.to_json("in_progress"))
        yield from self._indexed(
            [{"type": "response.output_item.added", "item": item.to_json("in_progress")}]
        )
        yield from self._indexed(item.opening())

    def _end(self, status: Status) -> Iterator[Event]:
        if self._open is None:
            return
        item = self._open
        yield from self._indexed(item.closing())
        self.items[-1] = item.to_json(status)
        yield from self._indexed(
            [{"type": "response.output_item.done", "item": item.to_json(status)}]
        )
        self._open = None

    def _indexed(self, events: "Iterator[Event] | list[Event]") -> Iterator[Event]:
        for event in events:
            yield {**event, "output_index": len(self.items) - 1}


class _Item:
    """An output item that is being generated."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._text = ""

    def to_json(self, status: str) -> dict[str, Any]:
        """Return the item in its current state."""
        raise NotImplementedError

    def opening(self) -> list[Event]:
        return []

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        """Return the events of more text."""
        raise NotImplementedError

    def closing(self) -> list[Event]:
        return []


class _Reasoning(_Item):
    def __init__(self, id: str, summarised: bool, packed: bool) -> None:
        super().__init__(id)
        self._summarised = summarised
        self._packed = packed

    def to_json(self, status: str) -> dict[str, Any]:
        has_ended = status != "in_progress"
        item: dict[str, Any] = {"id": self._id, "type": "reasoning", "summary": []}
        if has_ended and self._summarised:
            item["summary"] = [self._part(self._text)]
        elif has_ended:
            item["content"] = [self._part(self._text)]
        if self._packed:
            item["encrypted_content"] = pack(self._text) if has_ended else ""
        return item

    def opening(self) -> list[Event]:
        return [self._event("part.added", part=self._part(""))]

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        self._text += text
        return [self._event("text.delta", delta=text)]

    def closing(self) -> list[Event]:
        return [
            self._event("text.done", text=self._text),
            self._event("part.done", part=self._part(self._text)),
        ]

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "summary_text" if self._summarised else "reasoning_text", "text": text}

    def _event(self, kind: str, **fields: Any) -> Event:
        if self._summarised:
            name, index = f"response.reasoning_summary_{kind}", {"summary_index": 0}
        else:
            within = "content" if kind.startswith("part") else "reasoning"
            name, index = f"response.{within}_{kind}", {"content_index": 0}
        return {"type": name, "item_id": self._id, **index, **fields}


class _Message(_Item):
    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._logprobs: list[dict[str, Any]] = []

    def to_json(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part(self._text, self._logprobs)]
        return {
            "id": self._id, "type": "message", "role": "assistant", "status": status,
            "content": content,
        }  # fmt: skip

    def opening(self) -> list[Event]:
        return [self._event("content_part.added", part=self._part("", []))]

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        self._text += text
        self._logprobs += logprobs
        return [self._event("output_text.delta", delta=text, logprobs=logprobs)]

    def closing(self) -> list[Event]:
        return [
            self._event("output_text.done", text=self._text, logprobs=self._logprobs),
            self._event("content_part.done", part=self._part(self._text, self._logprobs)),
        ]

    @staticmethod
    def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"response.{kind}", "item_id": self._id, "content_index": 0, **fields}


class _Call(_Item):
    def __init__(self, id: str, call_id: str, name: str, namespace: str | None) -> None:
        super().__init__(id)
        self._identity = {"id": id, "call_id": call_id, "name": name}
        if namespace is not None:
            self._identity["namespace"] = namespace

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": f"response.{kind}", "item_id": self._id, **fields}


class _FunctionCall(_Call):
    def to_json(self, status: str) -> dict[str, Any]:
        arguments = self._text if status != "in_progress" else ""
        item = {"type": "function_call", **self._identity}
        return {**item, "arguments": arguments, "status": status}

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        self._text += text
        return [self._event("function_call_arguments.delta", delta=text)]

    def closing(self) -> list[Event]:
        fields = {"name": self._identity["name"], "arguments": self._text}
        return [self._event("function_call_arguments.done", **fields)]


class _CustomCall(_Call):
    """A call with free text, which is sent at the end: until then it is incomplete JSON."""

    def to_json(self, status: str) -> dict[str, Any]:
        text = unwrapped_input(self._text) if status != "in_progress" else ""
        return {"type": "custom_tool_call", **self._identity, "input": text}

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        self._text += text
        return []

    def closing(self) -> list[Event]:
        text = unwrapped_input(self._text)
        return [
            self._event("custom_tool_call_input.delta", delta=text),
            self._event("custom_tool_call_input.done", input=text),
        ]
