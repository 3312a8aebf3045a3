"""Answers in the shape of OpenAI's Responses API: an object, or the events by which it comes."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from controller.gateway.responses.output import Event, OutputItems, Status
from controller.gateway.responses.requests import ResponsesRequest
from shared.client import Completion
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, Usage


class ResponseForm:
    """`response`, and `response.created` ... `response.completed`."""

    def __init__(self, request_id: RequestId, model: str, asked: ResponsesRequest) -> None:
        unique = request_id.removeprefix("req-")
        self._id = f"resp_{unique}"
        self._model = model
        self._asked = asked
        self._created = int(time.time())
        self._number = 0
        self._cut = False
        self._items = OutputItems(
            unique, asked.names, summarised=asked.summarises, sealed=asked.seals_reasoning
        )

    def whole(self, completion: Completion) -> dict[str, Any]:
        (output,) = completion.choices
        self._taken([output])
        return self._ended(completion.usage)

    def opening(self, usage: Usage | None) -> bytes:
        response = self._response("in_progress", None)
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._written({"type": kind, "response": response}) for kind in kinds)

    def keep_alive(self) -> bytes:
        return b""

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        return b"".join(map(self._written, self._taken(outputs)))

    def closing(self, usage: Usage) -> bytes:
        status = self._status
        events = b"".join(map(self._written, self._items.finish(status)))
        end = {"type": f"response.{status}", "response": self._response(status, usage)}
        return events + self._written(end)

    def _taken(self, outputs: Iterable[ChoiceOutput]) -> list[Event]:
        events: list[Event] = []
        for output in outputs:
            events += self._items.push(output)
            self._cut |= output.finish_reason == "length"
        return events

    def _ended(self, usage: Usage) -> dict[str, Any]:
        for _ in self._items.finish(self._status):
            pass
        return self._response(self._status, usage)

    @property
    def _status(self) -> Status:
        return "incomplete" if self._cut else "completed"

    def _written(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._number}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(numbered))

    def _response(self, status: str, usage: Usage | None) -> dict[str, Any]:
        asked = self._asked
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": details,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "model": self._model,
            "output": self._items.items if usage is not None else [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "prompt_cache_key": asked.prompt_cache_key,
            "reasoning": _shown(asked.reasoning) or {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "text": _shown(asked.text) or {"format": {"type": "text"}},
            "tool_choice": _shown(asked.tool_choice) or "auto",
            "tools": [_shown(tool) for tool in asked.tools or ()],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "truncation": "disabled",
            "usage": _usage(usage) if usage is not None else None,
            "user": asked.user,
            "metadata": asked.metadata or {},
        }


def _shown(value: Any) -> Any:
    """As it was asked for."""
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else value


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
