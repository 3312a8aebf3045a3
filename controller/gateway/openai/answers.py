"""Answers in OpenAI's shape: chat and plain completions, whole and in chunks."""

import time
from collections.abc import Sequence
from typing import Any

import orjson

from controller.gateway.openai.errors import error_body
from shared.client import Completion
from shared.ids import RequestId
from shared.messages.stream import ChoiceOutput, Usage

_DONE = b"data: [DONE]\n\n"
_FINISH_REASONS = {"cancelled": "stop"}
"""Where OpenAI has no such word."""


class ChatForm:
    """`chat.completion` and its chunks."""

    def __init__(
        self, request_id: RequestId, model: str, *, choices: int, include_usage: bool
    ) -> None:
        self._id = f"chatcmpl-{request_id.removeprefix('req-')}"
        self._model = model
        self._created = int(time.time())
        self._choices = choices
        self._include_usage = include_usage

    def whole(self, completion: Completion) -> dict[str, Any]:
        choices = [
            {
                "index": output.choice,
                "message": {"role": "assistant", "content": output.text, "refusal": None},
                "logprobs": _chat_logprobs(output),
                "finish_reason": _finish_reason(output),
            }
            for output in completion.choices
        ]
        return self._body("chat.completion", choices) | {"usage": usage_body(completion.usage)}

    def opening(self, usage: Usage | None) -> bytes:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._chunk(index, delta) for index in range(self._choices))

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        return b"".join(map(self._events, outputs))

    def closing(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return _DONE
        body = self._body("chat.completion.chunk", []) | {"usage": usage_body(usage)}
        return _event(body) + _DONE

    def _events(self, output: ChoiceOutput) -> bytes:
        events = b""
        if output.text or output.logprobs:
            delta = {"content": output.text}
            events = self._chunk(output.choice, delta, _chat_logprobs(output))
        if output.finish_reason is not None:
            events += self._chunk(output.choice, {}, None, _finish_reason(output))
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
        return _event(body)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


class TextForm:
    """`text_completion`, whole and in chunks of the same shape."""

    def __init__(self, request_id: RequestId, model: str, *, include_usage: bool) -> None:
        self._id = f"cmpl-{request_id.removeprefix('req-')}"
        self._model = model
        self._created = int(time.time())
        self._include_usage = include_usage
        self._offsets: dict[int, int] = {}

    def whole(self, completion: Completion) -> dict[str, Any]:
        choices = [self._choice(output) for output in completion.choices]
        return self._body(choices) | {"usage": usage_body(completion.usage)}

    def opening(self, usage: Usage | None) -> bytes:
        return b""

    def events(self, outputs: Sequence[ChoiceOutput]) -> bytes:
        return b"".join(map(self._events, outputs))

    def closing(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return _DONE
        return _event(self._body([]) | {"usage": usage_body(usage)}) + _DONE

    def _events(self, output: ChoiceOutput) -> bytes:
        if not (output.text or output.logprobs or output.finish_reason):
            return b""
        body = self._body([self._choice(output)])
        if self._include_usage:
            body["usage"] = None
        return _event(body)

    def _choice(self, output: ChoiceOutput) -> dict[str, Any]:
        choice = {
            "text": output.text,
            "index": output.choice,
            "logprobs": self._logprobs(output),
            "finish_reason": _finish_reason(output),
        }
        if output.error is not None:  # one prompt of several failed
            choice |= error_body(output.error.to_exception())
        return choice

    def _logprobs(self, output: ChoiceOutput) -> dict[str, Any] | None:
        if not output.logprobs:
            return None
        offsets = []
        offset = self._offsets.get(output.choice, 0)
        for entry in output.logprobs:
            offsets.append(offset)
            offset += len(entry["token"])
        self._offsets[output.choice] = offset
        return {
            "tokens": [entry["token"] for entry in output.logprobs],
            "token_logprobs": [entry["logprob"] for entry in output.logprobs],
            "top_logprobs": [
                {other["token"]: other["logprob"] for other in entry.get("top", [])}
                for entry in output.logprobs
            ],
            "text_offset": offsets,
        }

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _finish_reason(output: ChoiceOutput) -> str | None:
    reason = output.finish_reason
    return None if reason is None else _FINISH_REASONS.get(reason, reason)


def _chat_logprobs(output: ChoiceOutput) -> dict[str, Any] | None:
    if not output.logprobs:
        return None
    content = [
        _token(entry) | {"top_logprobs": [_token(other) for other in entry.get("top", [])]}
        for entry in output.logprobs
    ]
    return {"content": content, "refusal": None}


def _token(entry: dict[str, Any]) -> dict[str, Any]:
    token = entry["token"]
    return {"token": token, "logprob": entry["logprob"], "bytes": list(token.encode())}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(body)
