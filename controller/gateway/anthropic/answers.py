"""Answers in Anthropic's shape: a message, whole or as its sequence of events."""

from collections.abc import Sequence
from typing import Any

import orjson

from shared.client import Completion
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, Usage

_NOTHING = Usage(0, 0, 0)


class MessageForm:
    """`message`, and `message_start` ... `message_stop`."""

    def __init__(self, request_id: RequestId, model: str) -> None:
        self._id = f"msg_{request_id.removeprefix('req-')}"
        self._model = model
        self._last: ChoiceOutput | None = None

    def whole(self, completion: Completion) -> dict[str, Any]:
        (output,) = completion.choices
        return self._message([{"type": "text", "text": output.text}], completion.usage) | _stop(
            output
        )

    def opening(self, usage: Usage | None) -> bytes:
        begun = usage or _NOTHING
        start = Usage(begun.prompt_tokens, begun.cached_tokens, 0)
        block = {"type": "text", "text": ""}
        return (
            _event("message_start", message=self._message([], start))
            + _event("content_block_start", index=0, content_block=block)
            + _event("ping")
        )

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        self._last = outputs[-1]
        deltas = [{"type": "text_delta", "text": output.text} for output in outputs if output.text]
        return b"".join(_event("content_block_delta", index=0, delta=delta) for delta in deltas)

    def closing(self, usage: Usage) -> bytes:
        stop = _stop(self._last) if self._last is not None else {"stop_reason": "end_turn"}
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=stop, usage=_usage(usage))
            + _event("message_stop")
        )

    def _message(self, content: list[dict[str, str]], usage: Usage) -> dict[str, Any]:
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


class CountForm:
    """`message_tokens_count`."""

    def whole(self, completion: Completion) -> dict[str, Any]:
        return {"input_tokens": completion.usage.prompt_tokens}


def _stop(output: ChoiceOutput) -> dict[str, str | None]:
    if output.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if output.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": output.stop_sequence}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, int]:
    """Input tokens are those that were not read from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))
