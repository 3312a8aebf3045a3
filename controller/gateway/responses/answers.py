"""Answers of OpenAI's Responses API, complete or as a sequence of events."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import orjson
from pydantic import BaseModel

from controller.gateway.error_format import prompt_is_too_long, status_of
from controller.gateway.openai.errors import error_message
from controller.gateway.responses.output import Event, OutputItems, Status
from controller.gateway.responses.requests import ResponsesRequest
from controller.gateway.responses.tools import echoed_tool
from shared.client import Completion
from shared.errors import ClusterError
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, Usage

StoreCallback = Callable[[dict[str, Any]], Awaitable[bool]]
"""Stores a finished response; returns whether it is stored."""


class ResponseObjectSerializer:
    """Objects of the type `response`, and the events `response.created` ... `response.completed`.

    Args:
        store: called before the end of the response is sent; None to store nothing.
    """

    def __init__(
        self,
        request_id: RequestId,
        model: str,
        request: ResponsesRequest,
        store: StoreCallback | None,
    ) -> None:
        unique = unique_part(request_id)
        self._id = f"resp_{unique}"
        self._model = model
        self._request = request
        self._store = store
        self._created = int(time.time())
        self._sequence_number = 0
        self._opened = False
        self._truncated = False
        self._items = OutputItems(
            unique,
            request.tool_names,
            summarised=request.summarises,
            packed=request.packs_reasoning,
        )

    async def whole(self, completion: Completion) -> dict[str, Any]:
        self._push(completion.choices)
        for _ in self._items.finish(self._status):
            pass
        return await self._finished(completion.usage)

    def opening(self, usage: Usage | None) -> bytes:
        self._opened = True
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._encoded({"type": kind, "response": response}) for kind in kinds)

    def keep_alive(self) -> bytes:
        return b""

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        return b"".join(map(self._encoded, self._push(outputs)))

    async def closing(self, usage: Usage) -> bytes:
        events = b"".join(map(self._encoded, self._items.finish(self._status)))
        response = await self._finished(usage)
        return events + self._encoded({"type": f"response.{self._status}", "response": response})

    def failure(self, error: ClusterError) -> bytes:
        opening = b"" if self._opened else self.opening(None)
        response = self._response("failed")
        response["error"] = {"code": _code(error), "message": error_message(error)}
        return opening + self._encoded({"type": "response.failed", "response": response})

    def _push(self, outputs: Iterable[ChoiceOutput]) -> list[Event]:
        events: list[Event] = []
        for output in outputs:
            events += self._items.push(output)
            self._truncated |= output.finish_reason == "length"
        return events

    async def _finished(self, usage: Usage) -> dict[str, Any]:
        """Return the whole response, and store it if the request asks for it."""
        response = self._response(self._status)
        response |= {"output": self._items.items, "usage": _usage(usage)}
        if self._store is not None:
            response["store"] = await self._store(response)
        return response

    @property
    def _status(self) -> Status:
        return "incomplete" if self._truncated else "completed"

    def _encoded(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._sequence_number}
        self._sequence_number += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(numbered))

    def _response(self, status: str) -> dict[str, Any]:
        """Return a response without output."""
        request = self._request
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
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": self._model,
            "output": [],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None} | _echoed(request.reasoning),
            "store": self._store is not None,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": {"type": "text"}} | _echoed(request.text),
            "tool_choice": _echoed(request.tool_choice) or "auto",
            "tools": [echoed_tool(tool) for tool in request.tools or ()],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": "disabled",
            "metadata": request.metadata or {},
        }
        return response if request.user is None else response | {"user": request.user}


def unique_part(request_id: RequestId) -> str:
    """Return the part that the ids of a response and of its items share."""
    return request_id.removeprefix("req-")


def _echoed(value: Any) -> Any:
    """Return a field of the request as the response repeats it."""
    if value is None:
        return {}
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value


def _code(error: ClusterError) -> str:
    """Return one of the API's few codes, or `context_length_exceeded`, which clients know although
    the API does not list it."""
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
