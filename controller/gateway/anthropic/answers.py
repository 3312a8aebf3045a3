"""Answers of Anthropic's Messages API, complete or as a sequence of events."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from controller.gateway.anthropic.errors import error_body
from shared.client import Completion
from shared.errors import ClusterError
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, Usage, plain_calls

_NO_USAGE = Usage(0, 0, 0)
_EMPTY_BLOCK = {"type": "text", "text": ""}
"""The content of an empty answer: clients expect at least one block."""


class MessageSerializer:
    """Objects of the type `message`, and the events `message_start` ... `message_stop`."""

    def __init__(self, request_id: RequestId, model: str) -> None:
        self._id = f"msg_{request_id.removeprefix('req-')}"
        self._request_id = request_id
        self._model = model
        self._last: ChoiceOutput | None = None
        self._blocks = _BlockEvents()

    async def whole(self, completion: Completion) -> dict[str, Any]:
        (output,) = completion.choices
        content = list(_blocks(output)) or [_EMPTY_BLOCK]
        return self._message(content, completion.usage) | _stop(output)

    def opening(self, usage: Usage | None) -> bytes:
        known = usage or _NO_USAGE
        prompt_usage = Usage(known.prompt_tokens, known.cached_tokens, 0)
        return _event("message_start", message=self._message([], prompt_usage)) + self.keep_alive()

    def keep_alive(self) -> bytes:
        return _event("ping")

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        self._last = outputs[-1]
        return b"".join(map(self._blocks.events, outputs))

    async def closing(self, usage: Usage) -> bytes:
        stop = _stop(self._last) if self._last is not None else {"stop_reason": "end_turn"}
        return (
            self._blocks.end()
            + _event("message_delta", delta=stop, usage=_usage(usage))
            + _event("message_stop")
        )

    def failure(self, error: ClusterError) -> bytes:
        return b"event: error\ndata: %b\n\n" % orjson.dumps(error_body(error, self._request_id))

    def _message(self, content: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }


class TokenCountSerializer:
    """Objects of the type `message_tokens_count`."""

    async def whole(self, completion: Completion) -> dict[str, Any]:
        return {"input_tokens": completion.usage.prompt_tokens}


class _BlockEvents:
    """Makes the events of an answer's blocks: a block begins when the previous one has ended."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None
        self._reasoning_hash = hashlib.sha256()

    def events(self, output: ChoiceOutput) -> bytes:
        """Return the events of a new output."""
        events = b""
        if output.reasoning:
            self._reasoning_hash.update(output.reasoning.encode())
            events += self._begin("thinking", thinking="", signature="")
            events += self._delta("thinking_delta", thinking=output.reasoning)
        if output.text:
            events += self._begin("text", text="")
            events += self._delta("text_delta", text=output.text)
        for piece in output.tool_calls or ():
            function = piece["function"]
            if "id" in piece:
                events += self._end_block()
                name = function["name"]
                events += self._begin("tool_use", id=piece["id"], name=name, input={})
            if function["arguments"]:
                events += self._delta("input_json_delta", partial_json=function["arguments"])
        return events

    def end(self) -> bytes:
        """Return the events after the last output."""
        return (self._begin("text", text="") if self._index < 0 else b"") + self._end_block()

    def _begin(self, kind: str, **fields: Any) -> bytes:
        if self._open == kind:
            return b""
        events = self._end_block()
        self._open = kind
        self._index += 1
        block = {"type": kind, **fields}
        return events + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, kind: str, **fields: Any) -> bytes:
        delta = {"type": kind, **fields}
        return _event("content_block_delta", index=self._index, delta=delta)

    def _end_block(self) -> bytes:
        if self._open is None:
            return b""
        events = b""
        if self._open == "thinking":
            signature = _signature(self._reasoning_hash.digest())
            events = self._delta("signature_delta", signature=signature)
            self._reasoning_hash = hashlib.sha256()
        self._open = None
        return events + _event("content_block_stop", index=self._index)


def _blocks(output: ChoiceOutput) -> Iterator[dict[str, Any]]:
    if output.reasoning:
        signature = _signature(hashlib.sha256(output.reasoning.encode()).digest())
        yield {"type": "thinking", "thinking": output.reasoning, "signature": signature}
    if output.text:
        yield {"type": "text", "text": output.text}
    for call in plain_calls(output.tool_calls or ()):
        function = call["function"]
        arguments = _arguments(function["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}


def _signature(digest: bytes) -> str:
    """Return the signature of a thinking block, which clients send back and the gateway ignores."""
    return base64.b64encode(digest).decode()


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; none if they are truncated."""
    try:
        arguments = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _stop(output: ChoiceOutput) -> dict[str, str | None]:
    reasons = {"length": "max_tokens", "tool_calls": "tool_use"}
    if (reason := reasons.get(output.finish_reason or "")) is not None:
        return {"stop_reason": reason, "stop_sequence": None}
    if output.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": output.stop_sequence}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, int]:
    """Return the usage; `input_tokens` are those that were not read from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
