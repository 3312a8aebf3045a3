"""Answers of OpenAI's Chat Completions, complete and in chunks."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from controller.gateway.openai.answers import (
    DONE,
    event,
    finish_reason,
    token_entries,
    usage_body,
)
from controller.gateway.openai.errors import error_body
from shared.client import Completion
from shared.errors import ClusterError
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, Usage, plain_calls


class ChatCompletionSerializer:
    """Objects of the types `chat.completion` and `chat.completion.chunk`."""

    def __init__(
        self, request_id: RequestId, model: str, *, choices: int, include_usage: bool
    ) -> None:
        self._id = f"chatcmpl-{request_id.removeprefix('req-')}"
        self._model = model
        self._created = int(time.time())
        self._choices = choices
        self._include_usage = include_usage

    async def whole(self, completion: Completion) -> dict[str, Any]:
        choices = [
            {
                "index": output.choice,
                "message": _message(output),
                "logprobs": _logprobs(output),
                "finish_reason": finish_reason(output),
            }
            for output in completion.choices
        ]
        return self._body("chat.completion", choices) | {"usage": usage_body(completion.usage)}

    def opening(self, usage: Usage | None) -> bytes:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._chunk(index, delta) for index in range(self._choices))

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        return b"".join(map(self._events, outputs))

    def keep_alive(self) -> bytes:
        return b""

    async def closing(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        body = self._body("chat.completion.chunk", []) | {"usage": usage_body(usage)}
        return event(body) + DONE

    def failure(self, error: ClusterError) -> bytes:
        return event(error_body(error))

    def _events(self, output: ChoiceOutput) -> bytes:
        events = b"".join(
            self._chunk(output.choice, delta, logprobs) for delta, logprobs in _deltas(output)
        )
        if output.finish_reason is not None:
            events += self._chunk(output.choice, {}, None, finish_reason(output))
        return events

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason
        }  # fmt: skip
        body = self._body("chat.completion.chunk", [choice])
        if self._include_usage:
            body["usage"] = None
        return event(body)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


def _message(output: ChoiceOutput) -> dict[str, Any]:
    """Return the message of a complete answer, without fields for absent reasoning and calls."""
    calls = plain_calls(output.tool_calls or ())
    content = None if calls and not output.text else output.text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if output.reasoning:
        message["reasoning_content"] = output.reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _deltas(output: ChoiceOutput) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yield deltas with their log-probabilities. Each has one channel or one piece of a call, since
    some clients read only one field of a delta."""
    if output.reasoning:
        yield {"reasoning_content": output.reasoning}, None
    logprobs = _logprobs(output)
    if output.text or logprobs:
        yield {"content": output.text}, logprobs
    for piece in output.tool_calls or ():
        yield {"tool_calls": [piece]}, None


def _logprobs(output: ChoiceOutput) -> dict[str, Any] | None:
    """Return the log-probabilities of the content only."""
    content = token_entries(output)
    return {"content": content, "refusal": None} if content else None
