"""Answers in the shape of OpenAI's Responses API: an object, or the events by which it comes."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import orjson
from pydantic import BaseModel

from controller.gateway.dialect import prompt_is_too_long, status_of
from controller.gateway.openai.errors import error_message
from controller.gateway.responses.output import Event, OutputItems, Status
from controller.gateway.responses.requests import ResponsesRequest
from controller.gateway.responses.tools import shown_tool
from shared.client import Completion
from shared.errors import ClusterError
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, Usage

Keep = Callable[[dict[str, Any]], Awaitable[bool]]
"""Stores a response that has ended; returns whether it is stored."""


class ResponseObjectFormat:
    """`response`, and `response.created` ... `response.completed`.

    Args:
        keep: called before a client is told the end; None where nothing is to be stored.
    """

    def __init__(
        self, request_id: RequestId, model: str, asked: ResponsesRequest, keep: Keep | None
    ) -> None:
        unique = unique_of(request_id)
        self._id = f"resp_{unique}"
        self._model = model
        self._asked = asked
        self._keep = keep
        self._created = int(time.time())
        self._number = 0
        self._opened = False
        self._cut = False
        self._items = OutputItems(
            unique, asked.names, summarised=asked.summarises, sealed=asked.seals_reasoning
        )

    async def whole(self, completion: Completion) -> dict[str, Any]:
        self._taken(completion.choices)
        for _ in self._items.finish(self._status):
            pass
        return await self._ended(completion.usage)

    def opening(self, usage: Usage | None) -> bytes:
        self._opened = True
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._written({"type": kind, "response": response}) for kind in kinds)

    def keep_alive(self) -> bytes:
        return b""

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        return b"".join(map(self._written, self._taken(outputs)))

    async def closing(self, usage: Usage) -> bytes:
        events = b"".join(map(self._written, self._items.finish(self._status)))
        response = await self._ended(usage)
        return events + self._written({"type": f"response.{self._status}", "response": response})

    def failure(self, error: ClusterError) -> bytes:
        opening = b"" if self._opened else self.opening(None)
        response = self._response("failed")
        response["error"] = {"code": _code(error), "message": error_message(error)}
        return opening + self._written({"type": "response.failed", "response": response})

    def _taken(self, outputs: Iterable[ChoiceOutput]) -> list[Event]:
        events: list[Event] = []
        for output in outputs:
            events += self._items.push(output)
            self._cut |= output.finish_reason == "length"
        return events

    async def _ended(self, usage: Usage) -> dict[str, Any]:
        response = self._response(self._status)
        response |= {"output": self._items.items, "usage": _usage(usage)}
        if self._keep is not None:
            response["store"] = await self._keep(response)
        return response

    @property
    def _status(self) -> Status:
        return "incomplete" if self._cut else "completed"

    def _written(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._number}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(numbered))

    def _response(self, status: str) -> dict[str, Any]:
        """One without output."""
        asked = self._asked
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response = {
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
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "prompt_cache_key": asked.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None} | _shown(asked.reasoning),
            "store": self._keep is not None,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "text": {"format": {"type": "text"}} | _shown(asked.text),
            "tool_choice": _shown(asked.tool_choice) or "auto",
            "tools": [shown_tool(tool) for tool in asked.tools or ()],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "truncation": "disabled",
            "metadata": asked.metadata or {},
        }
        return response if asked.user is None else response | {"user": asked.user}


def unique_of(request_id: RequestId) -> str:
    """What the ids of a response and of its items have in common."""
    return request_id.removeprefix("req-")


def _shown(value: Any) -> Any:
    """As it was asked for."""
    if value is None:
        return {}
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value


def _code(error: ClusterError) -> str:
    """The API has few; clients know that of a prompt that is too long, which it does not list."""
    if prompt_is_too_long(error):
        return "context_length_exceeded"
    status = status_of(error)
    if status == 429:
        return "rate_limit_exceeded"
    return "server_error" if status >= 500 else "invalid_prompt"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
